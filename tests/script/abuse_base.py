# SPDX-License-Identifier: Apache-2.0
"""What the abuse cases share: what counts as a right answer."""
import random

from cases import *
from nvmetcp import *

def status_of(answer, *wanted):
    assert answer.type == RESP and answer.status in wanted, f'{answer}, wanted {wanted}'


def term(c, *wanted):
    """A C2HTermReq with one of (FES, FEI); FEI None is any. Then the target closes."""
    pdu = c.recv()
    while pdu.type != C2HTERM:
        assert pdu.type in (RESP, C2H, R2T), pdu
        pdu = c.recv()
    fes, fei = pdu.fes
    assert any(fes == f and (i is None or fei == i) for f, i in wanted), \
        f'{pdu}, wanted {wanted}'
    assert pdu.hlen == 24 and 24 <= pdu.plen <= 152, pdu
    c.sock.shutdown(1)
    assert c.eof(), 'still open after C2HTermReq'


def closed(c, within=1.5):
    assert c.eof(within), 'still open'


def closed_without_answer(c):
    try:
        pdu = c.recv()
    except Closed:
        return
    raise AssertionError(f'{pdu} where a silent close was due')


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)
