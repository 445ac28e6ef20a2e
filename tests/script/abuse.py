#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts that break every rule, against a real `kvof serve`: one TAP line a case.

usage: abuse.py KVOF [WORDS]     runs the cases whose name contains WORDS

After each case a canary on connections of its own stores, retrieves and compares; the array's open
files must be back where they were within a second. Case numbers are those of the abuse set (T
transport, D data, C Connect, Q queues, P properties, A admin, S descriptors, K Key Value, L life).
"""
import os
import random
import resource
import struct
import sys
import tempfile
import threading
import time
import traceback

from nvmetcp import *

CASES = []
KNOWN_IO = {0x00, 0x01, 0x02, 0x06, 0x10, 0x14, 0x7F}
KNOWN_ADMIN = {0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F}


def case(name):
    def add(run):
        CASES.append((name, run))
        return run
    return add


def each(name, rows):
    """The same case for several rows; the row is in the name."""
    def add(run):
        for row in rows:
            label = row if isinstance(row, str) else repr(row)
            CASES.append((f'{name}: {label}', lambda array, row=row: run(array, row)))
        return run
    return add


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


# --- T: headers and handshake ---------------------------------------------------------------------


@case('T01 a type that does not exist is 01/0')
def t01(a):
    c = l1(a.port)
    c.send(bytes.fromhex('0a00180018000000') + bytes(16))
    term(c, (1, 0))


@each('T02 a type of the other direction is 01/0', [1, 3, 5, 7, 9])
def t02(a, kind):
    c = l1(a.port)
    hlen = 128 if kind == 1 else 24
    c.send(struct.pack('<BBBBI', kind, 0, hlen, 0, hlen) + bytes(hlen - 8))
    term(c, (1, 0))


@each('T03 a reserved type is 01/0', [0x08, 0xFF])
def t03(a, kind):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', kind, 0, 24, 0, 24) + bytes(16))
    term(c, (1, 0))


@each('T04 ICReq with a wrong HLEN is 01/2', [0x7F, 0, 0xFF])
def t04(a, hlen):
    c = Conn(a.port)
    c.send(icreq(hlen=hlen))
    term(c, (1, 2))


@each('T05 ICReq with a wrong PLEN is 01/4', [0x7F, 0x81, 0, 0xFFFFFFFF])
def t05(a, plen):
    c = Conn(a.port)
    c.send(icreq(plen=plen))
    term(c, (1, 4))


@case('T07 ICReq with PFV 1 is refused')
def t07(a):
    c = Conn(a.port)
    c.send(icreq(pfv=1))
    term(c, (1, 8), (6, 8))


@case('T08 ICReq with HPDA 32 is 01/10')
def t08(a):
    c = Conn(a.port)
    c.send(icreq(hpda=32))
    term(c, (1, 10))


@case('T09 reserved digest bits are not echoed')
def t09(a):
    c = Conn(a.port)
    c.send(icreq(digests=0xFC))
    got = c.recv()
    if got.type == ICRESP:
        assert got.raw[11] & 0xFC == 0, got.raw[11]
    else:
        assert got.type == C2HTERM and got.fes == (1, 11), got


@each('T11 a second ICReq is a sequence error, digests', [0, 3])
def t11(a, digests):
    c = l1(a.port, digests)
    c.send(icreq(digests))
    term(c, (2, None), (1, 0))


@case('T12 a command before ICReq is a sequence error')
def t12(a):
    c = Conn(a.port)
    c.send(c.capsule(connect_sqe(1), connect_data()))
    term(c, (2, None))


@case('T15 ICReq one byte at a time is answered')
def t15(a):
    c = Conn(a.port)
    for byte in icreq():
        c.send(bytes([byte]))
    assert c.recv().type == ICRESP


@case('T16 data before any command is refused')
def t16(a):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHHII4x', H2C, LAST, 24, 24, 28, 1, 1, 0, 4) + b'abcd')
    term(c, (2, None), (1, 10))


@each('T17 a capsule with a wrong HLEN is 01/2', [0x47, 0, 0xFF])
def t17(a, hlen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, 0, hlen, 0, 72) + connect_sqe(1))
    term(c, (1, 2))


@each('T18 a capsule with a wrong PLEN is 01/4', [0, 8, 0x47])
def t18(a, plen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, 0, 72, 0, plen) + connect_sqe(1))
    term(c, (1, 4))


@each('T19 a capsule of gigabytes is refused at once and takes no memory', [0xFFFFFFFF, 0x7FFFFFFF])
def t19(a, plen):
    with Host(a.port) as h:
        before = a.rss_kib()
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, 72, plen) +
                  kv(1, 1, b'big', 4096, dptr=sgl(1, 4096)))
        term(h.io, (1, 4), (5, None))
        assert a.rss_kib() < before + 4096


@each('T20, T21 a wrong PDO is 01/3', [0, 4, 0x47, 0x49, 0x99, 0xC8, 0xFF])
def t21(a, pdo):
    with Host(a.port) as h:
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, pdo, 72 + 4096) +
                  kv(1, 1, b'pdo', 4096, dptr=sgl(1, 4096)) + bytes(4096))
        term(h.io, (1, 3))


@case('T21 a PDO past PLEN is 01/3')
def t21b(a):
    with Host(a.port) as h:
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, 0xF0, 80) +
                  kv(1, 1, b'pdo', 8, dptr=sgl(1, 8)) + bytes(8))
        term(h.io, (1, 3))


@each('T23 a digest flag that was not agreed is 01/1', [HDGST, DDGST])
def t23(a, flag):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, flag, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T23 no digest flag where a header digest was agreed is 01/1')
def t23b(a):
    c = l1(a.port, 3)
    c.send(struct.pack('<BBBBI', CMD, 0, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T24 a data digest flag without data is refused')
def t24(a):
    c = l1(a.port, 3)
    head = struct.pack('<BBBBI', CMD, HDGST | DDGST, 72, 0, 76) + connect_sqe(1)
    c.send(head + struct.pack('<I', crc32c(head)))
    term(c, (1, 1), (1, 4))


@each('T26 a flag of data PDUs on a capsule is 01/1', [LAST, SUCCESS])
def t26(a, flag):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, flag, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T27 a wrong header digest is 03 with the digest received')
def t27(a):
    with Host(a.port, 3) as h:
        bad = h.io.capsule(kv(1, 1, b'hdgst', 0), bad_header=True)
        h.io.send(bad)
        term(h.io, (3, struct.unpack('<I', bad[72:76])[0]))
        again = h.queue(2)
        status_of(again.exist(b'hdgst'), (0, 0x87))
        again.close()


@case('T29 a wrong digest of in-capsule data is 0/22 and nothing changes')
def t29(a):
    with Host(a.port, 3) as h:
        status_of(h.io.store(b't29', b'old' * 100), (0, 0))
        answer, _ = h.io.command(kv(1, 77, b't29', 300, dptr=sgl(1, 300)), b'new' * 100,
                                 bad_data=True)
        status_of(answer, (0, 0x22))
        assert not answer.dnr, '0/22 may be sent again'
        assert h.io.retrieve(b't29', 300)[1] == b'old' * 100


@case('T30 a wrong digest in the second of four H2CData is one 0/22')
def t30(a):
    value = noise(65536)
    with Host(a.port, 3) as h:
        h.io.send(h.io.capsule(kv(1, 5, b't30', 65536, dptr=sgl(0x5A, 65536))))
        sent = 0
        while sent < 65536:
            cid, ttag, offset, length = h.io.r2t()
            assert (cid, offset) == (5, sent)
            while length:
                part = min(16384, length)
                length -= part
                h.io.send(h.io.h2c(5, ttag, sent, value[sent:sent + part], last=length == 0,
                                   bad_data=sent == 16384))
                sent += part
        answer, _ = h.io.answer()
        status_of(answer, (0, 0x22))
        assert h.io.silent()
        status_of(h.io.exist(b't30'), (0, 0x87))


@each('T31 a bad command with a bad digest is completed once',
      ['opcode', 'namespace'])
def t31(a, what):
    with Host(a.port, 3) as h:
        command = kv(0x55 if what == 'opcode' else 1, 9, b't31', 64,
                     nsid=1 if what == 'opcode' else 0xFFFF, dptr=sgl(1, 64))
        answer, _ = h.io.command(command, bytes(64), bad_data=True)
        assert answer.status != (0, 0) and answer.cid == 9
        assert h.io.silent()
        status_of(h.io.exist(b't31'), (0, 0x87))


@each('T32 H2CTermReq closes at once and without an answer', [1, 2, 3, 4, 5, 6, 7, 0xFFFF])
def t32(a, fes):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, 24, fes, 0))
    closed_without_answer(c)


@each('T33 a malformed H2CTermReq closes silently', [8, 23, 153, 1000])
def t33(a, plen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, plen, 1, 0) + bytes(max(0, plen - 24)))
    closed_without_answer(c)


@case('T33 H2CTermReq before ICReq closes silently')
def t33b(a):
    c = Conn(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, 24, 1, 0))
    closed_without_answer(c)


@case('T35 a capsule cut after each byte leaves nothing behind')
def t35(a):
    with Host(a.port) as h:
        capsule = h.io.capsule(kv(0x14, 1, b't35'))
        for cut in range(1, 72):
            c = h.queue(2 + cut % 60)
            c.send(capsule[:cut])
            c.sock.shutdown(1)
            closed_without_answer(c)
            c.close()


@case('T36 a Store cut at every 16th byte stores nothing')
def t36(a):
    with Host(a.port) as h:
        capsule = h.io.capsule(kv(1, 1, b't36', 4096, dptr=sgl(1, 4096)), noise(4096))
        for n, cut in enumerate(range(16, len(capsule), 16)):
            c = h.queue(2 + n % 60)
            c.send(capsule[:cut])
            c.reset()
        status_of(h.io.exist(b't36'), (0, 0x87))


@each('T37 64 commands are answered however they are cut', ['one send', 'single bytes'])
def t37(a, how):
    with Host(a.port) as h:
        c = h.queue(2, sqsize=127)
        out = b''.join(c.capsule(kv(1, 100 + i, bytes([1 + i]) + b't37', 8, dptr=sgl(1, 8)),
                                 struct.pack('<Q', i)) for i in range(64))
        if how == 'one send':
            c.send(out)
        else:
            for at in range(0, len(out), 1):
                c.sock.send(out[at:at + 1])
        answers = [c.answer()[0] for _ in range(64)]
        assert sorted(x.cid for x in answers) == list(range(100, 164))
        assert all(x.status == (0, 0) for x in answers)
        assert [x.u16(16) for x in answers] == list(range(2, 66)), 'SQHD goes up by one each'
        for i in range(64):
            assert c.retrieve(bytes([1 + i]) + b't37', 8)[1] == struct.pack('<Q', i)
        c.close()


@case('T39 in-capsule data above IOCCSZ is refused')
def t39(a):
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 1, b't39', 8704, dptr=sgl(1, 8704)), bytes(8704)))
        pdu = h.io.recv()
        ok = pdu.type == RESP and pdu.status in ((0, 0x0F), (0, 0x16)) or \
            pdu.type == C2HTERM and pdu.fes[0] in (5, 1)
        assert ok, pdu


@case('T40 an admin capsule may carry 8192 bytes and not 8196')
def t40(a):
    with l2(a.port) as c:
        answer, _ = c.command(sqe(0x18, 500, dptr=sgl(1, 8192)), bytes(8192))
        assert answer.cid == 500
        status_of(c.prop(0x1C), (0, 0))
        c.send(c.capsule(sqe(0x18, 501, dptr=sgl(1, 8196)), bytes(8196)))
        pdu = c.recv()
        assert pdu.type == C2HTERM or pdu.status != (0, 0), pdu


@each('T41 what is not NVMe/TCP is dropped within a second',
      ['http', 'tls', 'ssh', 'noise'])
def t41(a, what):
    c = Conn(a.port)
    c.send({'http': b'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
            'tls': bytes.fromhex('16030100c8010000c40303') + noise(200),
            'ssh': b'SSH-2.0-OpenSSH_9.2\r\n',
            'noise': noise(1 << 20, 7)}[what])
    closed(c, 1.0)


# --- D: data towards the array --------------------------------------------------------------------


class Data:
    """A Store of 64 KiB whose first R2T is here; cid 5."""

    def __init__(self, a, key):
        self.host = Host(a.port)
        self.c = self.host.io
        self.c.send(self.c.capsule(kv(1, 5, key, 65536, dptr=sgl(0x5A, 65536))))
        _, self.ttag, self.offset, self.length = self.c.r2t()

    def raw(self, cid=5, ttag=None, offset=None, length=None, plen=None, flags=LAST, data=None):
        ttag = self.ttag if ttag is None else ttag
        offset = self.offset if offset is None else offset
        length = self.length if length is None else length
        data = bytes(length) if data is None else data
        self.c.send(struct.pack('<BBBBIHHII4x', H2C, flags, 24, 24,
                                24 + length if plen is None else plen, cid, ttag & 0xFFFF, offset,
                                length) + data)

    def finish(self, key, stored=False):
        self.c.close()
        again = self.host.queue(2)
        status_of(again.exist(key), (0, 0) if stored else (0, 0x87))
        again.close()
        self.host.close()


@each('D01 a TTAG that was not given is 01/10', ['0', 'T+1', '80h', 'FFFFh'])
def d01(a, which):
    d = Data(a, b'd01')
    ttag = {'0': 0 if d.ttag else 7, 'T+1': d.ttag + 1, '80h': 0x80 ^ d.ttag, 'FFFFh': 0xFFFF}
    d.raw(ttag=ttag[which])
    term(d.c, (1, 10))
    d.finish(b'd01')


@case('D02 the CID of another command is refused')
def d02(a):
    d = Data(a, b'd02')
    d.raw(cid=6)
    term(d.c, (1, 8), (1, 10), (2, None))
    d.finish(b'd02')


@case('D03 an offset past what was asked is 04')
def d03(a):
    d = Data(a, b'd03')
    d.raw(offset=d.offset + d.length, length=4)
    term(d.c, (4, None))
    d.finish(b'd03')


@each('D05 more data than was asked is refused', ['R2TL', 'MAXH2CDATA'])
def d05(a, which):
    d = Data(a, b'd05')
    d.raw(length=d.length + 4 if which == 'R2TL' else d.c.maxh2c + 4)
    term(d.c, (4, None), (5, None))
    d.finish(b'd05')


@case('D07 data that overlaps is refused')
def d07(a):
    d = Data(a, b'd07')
    d.raw(length=8192, flags=0)
    d.raw(offset=4096, length=8192, flags=0)
    term(d.c, (2, None), (4, None))
    d.finish(b'd07')


@each('D09 PLEN that does not fit DATAL is refused', [-4, 4])
def d09(a, off):
    d = Data(a, b'd09')
    d.raw(length=4096, plen=24 + 4096 + off, flags=0)
    term(d.c, (1, 16), (1, 4))
    d.finish(b'd09')


@case('D10 LAST before the last is a sequence error')
def d10(a):
    d = Data(a, b'd10')
    d.raw(length=4096, flags=LAST)
    term(d.c, (2, None))
    d.finish(b'd10')


@case('D10 no LAST on the last is a sequence error')
def d10b(a):
    d = Data(a, b'd10b')
    d.raw(flags=0)
    term(d.c, (2, None))
    d.finish(b'd10b')


@each('D11, D12 data after all data is refused', ['after the answer', 'twice'])
def d11(a, how):
    d = Data(a, b'd11')
    value = bytes(65536)
    if how == 'twice' and d.length == 65536:
        d.raw()
        d.raw()
    else:
        d.raw()
        answer = d.c.feed(5, value)
        status_of(answer, (0, 0))
        d.raw()
    term(d.c, (1, 10), (2, None))
    d.c.close()
    d.host.close()


@case('D13 data for a Retrieve is refused')
def d13(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'd13', noise(65536)), (0, 0))
        h.io.send(h.io.capsule(kv(2, 5, b'd13', 65536, dptr=sgl(0x5A, 65536))) +
                  h.io.h2c(5, 0, 0, bytes(4096)))
        term(h.io, (1, 10), (1, 8), (2, None))


@case('D14 data for a Store with its data in the capsule is refused')
def d14(a):
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'd14', 64, dptr=sgl(1, 64)), bytes(64)) +
                  h.io.h2c(5, 0, 0, bytes(64)))
        term(h.io, (1, 10), (1, 8), (2, None))


@case('D16 SUCCESS in H2CData is 01/1')
def d16(a):
    d = Data(a, b'd16')
    d.raw(flags=LAST | SUCCESS)
    term(d.c, (1, 1))
    d.finish(b'd16')


@case('D18 hosts that hoard R2T and move nothing leave others their rate')
def d18(a):
    with Host(a.port) as other:
        value = noise(262144)

        def rate(seconds=0.7):
            n, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                status_of(other.io.store(b'd18', value), (0, 0))
                assert other.io.retrieve(b'd18', len(value))[1] == value
                n += 1
            return n / seconds

        rate(0.2)
        alone = rate()
        hoards = []
        for i in range(32):
            h = Host(a.port, sqsize=127, hostid=bytes([i + 1] * 16))
            h.io.send(b''.join(h.io.capsule(kv(1, n + 1, b'hoard', 1 << 20,
                                               dptr=sgl(0x5A, 1 << 20))) for n in range(120)))
            hoards.append(h)
        beside = rate()
        for h in hoards:
            h.close()
        print(f'# D18: {alone:.0f} rounds/s alone, {beside:.0f} beside 32 hoarding hosts')
        assert beside >= 0.5 * alone


@case('D20 a host that goes after half the data leaves nothing')
def d20(a):
    d = Data(a, b'd20')
    d.raw(length=d.length // 2 // 4 * 4, flags=0)
    d.c.reset()
    d.finish(b'd20')


@case('D20 a host that goes after half the data leaves the old value whole')
def d20b(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'd20b', b'old' * 1000), (0, 0))
        c = h.queue(2)
        c.send(c.capsule(kv(1, 5, b'd20b', 65536, dptr=sgl(0x5A, 65536))))
        _, ttag, offset, length = c.r2t()
        c.send(c.h2c(5, ttag, offset, bytes(4096), last=length == 4096))
        c.reset()
        assert h.io.retrieve(b'd20b', 4000)[1] == b'old' * 1000


@case('D21 there is never a second R2T while one is open')
def d21(a):
    with Host(a.port) as h:
        value = noise(1 << 20)
        h.io.send(h.io.capsule(kv(1, 5, b'd21', 1 << 20, dptr=sgl(0x5A, 1 << 20))))
        done = 0
        while done < 1 << 20:
            cid, ttag, offset, length = h.io.r2t()
            assert (cid, offset) == (5, done)
            assert h.io.silent(0.02), 'something came while an R2T was open'
            while length:
                part = min(h.io.maxh2c, length)
                length -= part
                h.io.send(h.io.h2c(5, ttag, done, value[done:done + part], last=length == 0))
                done += part
        status_of(h.io.answer()[0], (0, 0))
        assert h.io.retrieve(b'd21', 1 << 20)[1] == value


# --- C: Connect -----------------------------------------------------------------------------------


@each('C01 a command before Connect is 0/0C',
      ['identify', 'property get', 'retrieve', 'disconnect'])
def c01(a, what):
    with l1(a.port) as c:
        command = {'identify': sqe(6, 1, cdw10=1, dptr=sgl(0x5A, 4096)),
                   'property get': prop_get(1, 0, 1),
                   'retrieve': kv(2, 1, b'x', 64, dptr=sgl(0x5A, 64)),
                   'disconnect': struct.pack('<BBHB59x', 0x7F, 0x40, 1, 8)}[what]
        answer, _ = c.command(command)
        status_of(answer, (0, 0x0C))
        assert answer.dnr
        status_of(c.connect(), (0, 0))


@each('C02 an unknown FCTYPE is 0/01', [2, 3, 0x7F, 0xC0])
def c02(a, fctype):
    with l1(a.port) as c:
        status_of(c.command(struct.pack('<BBHB59x', 0x7F, 0x40, 1, fctype))[0], (0, 1))


def refused(a, *wanted, dw0=None, command=None, data=None):
    with l1(a.port) as c:
        answer, _ = c.command(command or connect_sqe(1), connect_data() if data is None else data)
        status_of(answer, *wanted)
        assert answer.dnr
        assert dw0 is None or answer.dw0 == dw0, hex(answer.dw0)


@case('C03 a record format that does not exist is 1/80')
def c03(a):
    refused(a, (1, 0x80), command=connect_sqe(1, recfmt=1))


@case('C04 an unknown subsystem is 1/82 and names SUBNQN')
def c04(a):
    refused(a, (1, 0x82), dw0=256 | 1 << 16, data=connect_data(subnqn='nqn.2026-11.io.kvof:other'))


@each('C05 a host name that is none is refused', ['', 'kvof', 'x' * 223])
def c05(a, name):
    with l1(a.port) as c:
        answer = c.connect(hostnqn=name)
        status_of(answer, (1, 0x82), (1, 0x84))
        assert answer.status != (1, 0x82) or answer.dw0 == (512 | 1 << 16), hex(answer.dw0)


@case('C07 a host identifier of zero is 1/82 and names HOSTID')
def c07(a):
    refused(a, (1, 0x82), dw0=0 | 1 << 16, data=connect_data(hostid=bytes(16)))


@each('C09 a name without its end is refused', ['subnqn', 'hostnqn'])
def c09(a, field):
    refused(a, (1, 0x82), dw0=(256 if field == 'subnqn' else 512) | 1 << 16,
            data=connect_data(**{field: b'nqn.2026-11.io.kvof:' + b'a' * 236}))


@case('C10 a controller of the host\'s choice is 1/82 and names CNTLID')
def c10(a):
    refused(a, (1, 0x82), dw0=16 | 1 << 16, data=connect_data(1))


@each('C12 Connect data of another length is refused', [1023, 1025, 0])
def c12(a, length):
    with l1(a.port) as c:
        data = (connect_data() + b'x')[:length]
        status_of(c.command(connect_sqe(1, dptr=sgl(1, length)), data)[0], (1, 0x82), (0, 2))


@case('C13 Connect data by R2T is served')
def c13(a):
    with l1(a.port) as c:
        c.send(c.capsule(connect_sqe(3, dptr=sgl(0x5A, 1024))))
        status_of(c.feed(3, connect_data()), (0, 0))


@each('C14 an I/O queue without its controller is 1/82 and names CNTLID', [0xFFFF, 0x7FFF, 0])
def c14(a, cntlid):
    refused(a, (1, 0x82), dw0=16 | 1 << 16, command=connect_sqe(1, qid=1),
            data=connect_data(cntlid))


@case('C14 an I/O queue of another host\'s controller is 1/82')
def c14b(a):
    with l2(a.port) as admin, l1(a.port) as c:
        answer = c.connect(1, admin.cntlid, hostid=b'\2' * 16)
        status_of(answer, (1, 0x82))


@each('C15 a queue that was not granted is refused', [65535, 65])
def c15(a, qid):
    with l2(a.port) as admin, l1(a.port) as c:
        status_of(c.connect(qid, admin.cntlid), (1, 1), (1, 0x82))


@case('C15 a queue above the number granted is refused')
def c15b(a):
    with l2(a.port) as admin, l1(a.port) as c:
        answer = admin.feature(7, 1 | 1 << 16)
        status_of(answer, (0, 0))
        assert answer.dw0 == 1 | 1 << 16, hex(answer.dw0)
        status_of(c.connect(3, admin.cntlid), (1, 1), (1, 0x82))
        status_of(c.connect(2, admin.cntlid), (0, 0))


@case('C15 a queue in use is refused and its user goes on')
def c15c(a):
    with Host(a.port) as h, l1(a.port) as c:
        status_of(c.connect(1, h.admin.cntlid), (1, 1), (1, 0x82))
        status_of(h.io.exist(b'c15'), (0, 0x87))


@case('C16 an I/O queue before CC.EN is refused')
def c16(a):
    with l2(a.port, cc=None) as admin, l1(a.port) as c:
        status_of(c.connect(1, admin.cntlid), (1, 0x82), (0, 0x0C))


@case('C18 a queue without SQ flow control has SQHD FFFFh')
def c18(a):
    with l1(a.port) as c:
        answer, _ = c.command(connect_sqe(1, cattr=4), connect_data())
        status_of(answer, (0, 0))
        assert answer.u16(16) == 0xFFFF


@case('C18 reserved attribute bits do no harm')
def c18b(a):
    with l1(a.port) as c:
        answer, _ = c.command(connect_sqe(1, cattr=0xF0), connect_data())
        status_of(answer, (0, 0), (1, 0x82), (0, 2))


@case('C19 SQSIZE 0 and one above MQES are refused')
def c19(a):
    for sqsize in (0, 128, 65535):
        refused(a, (1, 0x82), dw0=44, command=connect_sqe(1, sqsize=sqsize))


@case('C20 Connect twice is 0/0C')
def c20(a):
    with l2(a.port) as c:
        status_of(c.connect(), (0, 0x0C))


@case('C21 Discovery has no I/O queues')
def c21(a):
    with l2(a.port, subnqn=DISCOVERY) as admin, l1(a.port) as c:
        status_of(c.connect(1, admin.cntlid, subnqn=DISCOVERY), (1, 0x85), (1, 0x82))


def disconnect(cid, recfmt=0):
    return struct.pack('<BBHB19x16xH22x', 0x7F, 0x40, cid, 8, recfmt)


@case('C22 Disconnect of an I/O queue is answered, then it closes')
def c22(a):
    with Host(a.port) as h:
        c = h.queue(2)
        status_of(c.command(disconnect(1))[0], (0, 0))
        closed(c, 2.0)
        c.close()
        h.queue(2).close()


@case('C22 Disconnect of the admin queue is 1/85, a wrong format 1/80')
def c22b(a):
    with Host(a.port) as h:
        status_of(h.admin.command(disconnect(1))[0], (1, 0x85))
        status_of(h.io.command(disconnect(1, recfmt=1))[0], (1, 0x80))
        status_of(h.io.exist(b'c22'), (0, 0x87))


# --- Q: queues ------------------------------------------------------------------------------------


@case('Q01 a CID in use is 0/03 and its first user is unharmed')
def q01(a):
    value = noise(65536, 3)
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'q01', 65536, dptr=sgl(0x5A, 65536))))
        first = h.io.r2t()
        answer, _ = h.io.command(kv(0x14, 5, b'q01'))
        status_of(answer, (0, 3))
        h.io.send(h.io.h2c(5, first[1], first[2], value[first[2]:first[2] + first[3]]))
        status_of(h.io.feed(5, value), (0, 0))
        assert h.io.retrieve(b'q01', 65536)[1] == value


@each('Q04 fused commands are 0/02', [1, 2])
def q04(a, fuse):
    with Host(a.port) as h:
        command = bytearray(kv(0x14, 1, b'q04'))
        command[1] |= fuse
        status_of(h.io.command(bytes(command))[0], (0, 2))


@case('Q06 every unknown admin opcode is 0/01')
def q06(a):
    with l2(a.port) as c:
        for opcode in sorted(set(range(256)) - KNOWN_ADMIN):
            status_of(c.command(sqe(opcode, 7))[0], (0, 1))


@case('Q06 every unknown I/O opcode is 0/01')
def q06b(a):
    with Host(a.port) as h:
        for opcode in sorted(set(range(256)) - KNOWN_IO):
            status_of(h.io.command(sqe(opcode, 7, 1))[0], (0, 1))


@each('Q07 queue commands do not exist over fabrics', [0, 1, 4, 5])
def q07(a, opcode):
    with l2(a.port) as c:
        status_of(c.command(sqe(opcode, 1, cdw10=1))[0], (0, 1))


@case('Q08 commands on the wrong kind of queue are 0/01')
def q08(a):
    with Host(a.port) as h:
        status_of(h.admin.command(kv(0x14, 1, b'q08'))[0], (0, 1))
        status_of(h.io.command(sqe(0x0A, 1, 1, cdw10=7))[0], (0, 1))
        status_of(h.io.command(sqe(0x18, 2, 1))[0], (0, 1))


@case('Q10 CC.EN cleared with 31 Stores in flight: all stops, then RDY is 0')
def q10(a):
    with Host(a.port) as h:
        h.io.send(b''.join(h.io.capsule(kv(1, i + 1, b'q10' + bytes([i]), 65536,
                                           dptr=sgl(0x5A, 65536))) for i in range(31)))
        h.io.r2t()
        status_of(h.admin.set_cc(CC_ON & ~1), (0, 0))
        end = time.monotonic() + 1
        while h.admin.prop(0x1C).dw0 & 1:
            assert time.monotonic() < end, 'RDY stays'
        closed(h.io)
        status_of(h.admin.set_cc(CC_ON), (0, 0))
        assert h.admin.prop(0x1C).dw0 & 1
        again = h.queue(1)
        for i in range(31):
            status_of(again.exist(b'q10' + bytes([i])), (0, 0x87))
        again.close()


# --- P: properties --------------------------------------------------------------------------------


@case('P01 a property read with the wrong size is refused')
def p01(a):
    with l2(a.port, cc=None) as c:
        status_of(c.prop(0, 1), (0, 0))
        status_of(c.prop(0, 0), (1, 0x82), (0, 2))
        status_of(c.prop(4, 0), (1, 0x82), (0, 2))
        status_of(c.prop(0x14, 1), (1, 0x82), (0, 2))
        cap = c.prop(0, 1)
        assert cap.dw1 >> 11 & 1, 'CAP.CSS bit 6: all I/O command sets'
        assert c.prop(8).dw0 >= 0x10400


@each('P03 a property that can only be read is refused', [0x00, 0x08, 0x1C])
def p03(a, offset):
    with l2(a.port, cc=None) as c:
        answer, _ = c.command(prop_set(1, offset, 1, wide=offset == 0))
        status_of(answer, (1, 0x82), (0, 2))


@each('P04 CC with a bad field never becomes ready',
      ['MPS', 'AMS', 'CSS', 'IOSQES 0', 'IOSQES 15', 'reserved'])
def p04(a, what):
    cc = {'MPS': CC_ON | 0xF << 7, 'AMS': CC_ON | 7 << 11, 'CSS': CC_ON & ~0x70 | 5 << 4,
          'IOSQES 0': CC_ON & ~(0xF << 16), 'IOSQES 15': CC_ON | 0xF << 16,
          'reserved': CC_ON | 1 << 30}[what]
    with l2(a.port, cc=None) as c:
        answer = c.set_cc(cc)
        csts = c.prop(0x1C).dw0
        assert answer.status in ((1, 0x82), (0, 2)) or csts & 2, answer
        assert not csts & 1


@case('P05 CC.EN on and off 1,000 times without waiting')
def p05(a):
    with l2(a.port, cc=None) as c:
        before = a.rss_kib()
        for _ in range(40):
            out = b''.join(c.capsule(prop_set(i + 1, 0x14, CC_ON if i % 2 else CC_ON & ~1))
                           for i in range(25))
            c.send(out)
            for _ in range(25):
                status_of(c.answer()[0], (0, 0))
        status_of(c.set_cc(CC_ON), (0, 0))
        assert c.prop(0x1C).dw0 & 1
        assert a.rss_kib() < before + 2048


@case('P06 CC.SHN with Stores in flight: done only when they are')
def p06(a):
    value = noise(65536, 6)
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'p06', 65536, dptr=sgl(0x5A, 65536))))
        r2t = h.io.r2t()
        status_of(h.admin.set_cc(CC_ON | 1 << 14), (0, 0))
        assert h.admin.prop(0x1C).dw0 >> 2 & 3 == 1, 'shutdown is going on'
        status_of(h.io.command(kv(0x14, 9, b'p06'))[0], (0, 0x0C))
        h.io.send(h.io.h2c(5, r2t[1], r2t[2], value[r2t[2]:r2t[2] + r2t[3]]))
        status_of(h.io.feed(5, value), (0, 0))
        end = time.monotonic() + 1
        while h.admin.prop(0x1C).dw0 >> 2 & 3 != 2:
            assert time.monotonic() < end, 'shutdown does not end'
    with Host(a.port) as h:
        assert h.io.retrieve(b'p06', 65536)[1] == value


@case('P07 a property on an I/O queue is refused')
def p07(a):
    with Host(a.port) as h:
        status_of(h.io.set_cc(CC_ON & ~1), (0, 0x0C), (0, 1))
        status_of(h.io.prop(0x1C), (0, 0x0C), (0, 1))
        status_of(h.io.exist(b'p07'), (0, 0x87))


@case('P09 a subsystem reset that is not offered has no effect')
def p09(a):
    with l2(a.port) as c:
        c.command(prop_set(1, 0x20, 0x4E564D65))
        assert c.prop(0x1C).dw0 & 1


# --- A: admin -------------------------------------------------------------------------------------


@each('A01 an unknown CNS is 0/02', [0x04, 0x1F, 0x7F, 0xFF])
def a01(a, cns):
    with l2(a.port) as c:
        status_of(c.identify(cns, nsid=1)[0], (0, 2))


@each('A02 Identify of a namespace that is not there', [0, 2, 17, 0xFFFFFFFF])
def a02(a, nsid):
    with l2(a.port) as c:
        answer, data = c.identify(0, nsid)
        if nsid == 2:
            status_of(answer, (0, 0))
            assert data == bytes(4096)
        else:
            status_of(answer, (0, 0x0B))


@each('A04 a command set that is not there is 0/02', [2, 0x30, 0xFF])
def a04(a, csi):
    with l2(a.port) as c:
        for cns in (5, 6, 7):
            status_of(c.identify(cns, 1 if cns == 5 else 0, csi)[0], (0, 2))


@case('A05 what Linux asks about a KV namespace is answered')
def a05(a):
    with l2(a.port) as c:
        answer, data = c.identify(2)
        assert struct.unpack_from('<II', data) == (1, 0)
        _, data = c.identify(3, 1)
        types, at = {}, 0
        while data[at + 1]:
            types[data[at]] = data[at + 4:at + 4 + data[at + 1]]
            at += 4 + data[at + 1]
        assert types[4] == b'\1' and len(types[2]) == 16 and len(types[3]) == 16, types
        _, data = c.identify(8, 1)
        assert data[14] & 1, 'NSTAT: ready'
        answer, data = c.log(5, 4096, csi=1)
        status_of(answer, (0, 0))
        for opcode in (1, 2, 6, 0x10, 0x14):
            assert data[1024 + 4 * opcode] & 1, hex(opcode)
        _, data = c.identify(5, 1, 1)
        assert struct.unpack_from('<HxxI', data, 72) == (16, 8 << 20), 'KVKML and KVVML'
        _, data = c.identify(1)
        assert data[77] == 11 and data[111] == 1 and struct.unpack_from('<I', data, 536)[0] & 3
        assert data[76] == 0, 'CMIC: one controller'
        assert struct.unpack_from('<I', data, 1792)[0] == 516, 'IOCCSZ'
        for cns, csi in ((6, 0), (6, 1), (0x1C, 0), (7, 1)):
            status_of(c.identify(cns, 0, csi)[0], (0, 0))
        assert c.identify(7, 0, 0)[1] == bytes(4096), 'no block namespace'


@each('A06 a log page that is not there is 1/09', [0x7F, 0xC1, 0x70])
def a06(a, lid):
    with l2(a.port) as c:
        status_of(c.log(lid)[0], (1, 9))


@each('A07 an offset that is no dword is 0/02', [1, 2, 3])
def a07(a, offset):
    with l2(a.port) as c:
        status_of(c.log(1, 512, offset)[0], (0, 2))


@each('A08 an offset past the log is 0/02', [1 << 20, 0xFFFFFFFFFFFFFFFC])
def a08(a, offset):
    for nqn, lid in ((NQN, 1), (DISCOVERY, 0x70)):
        with l2(a.port, subnqn=nqn) as c:
            status_of(c.log(lid, 512, offset)[0], (0, 2))


@case('A10 bytes past the end of a log are zeros')
def a10(a):
    with l2(a.port) as c:
        status_of(c.identify(0x7F)[0], (0, 2))
        answer, data = c.log(1, 64 * 17)
        status_of(answer, (0, 0))
        assert struct.unpack_from('<Q', data)[0] == 1 and data[14:16] == b'\x28\0'
        assert data[64:] == bytes(64 * 16)
        answer, data = c.log(2, 262144)
        status_of(answer, (0, 0))
        assert len(data) == 262144 and data[512:] == bytes(262144 - 512)


@case('A12 log pages before CC.EN are 0/0C')
def a12(a):
    for nqn, lid in ((NQN, 2), (DISCOVERY, 0x70)):
        with l2(a.port, cc=None, subnqn=nqn) as c:
            status_of(c.log(lid, 4096, 4096)[0], (0, 0x0C))


@case('A14 a queue count of FFFFh is 0/02, a second count 0/0C')
def a14(a):
    with Host(a.port) as h:
        status_of(h.admin.feature(7, 0xFFFFFFFF), (0, 2), (0, 0x0C))
        status_of(h.admin.feature(7, 3 | 3 << 16), (0, 0x0C))
    with l2(a.port) as c:
        status_of(c.feature(7, 0xFFFFFFFF), (0, 2))


@each('A15 any keep alive time is taken or refused', [0, 1, 0xFFFFFFFF])
def a15(a, kato):
    with l2(a.port) as c:
        answer = c.feature(0x0F, kato)
        status_of(answer, (0, 0), (0, 0x1A))
        status_of(c.command(sqe(0x18, 9))[0], (0, 0))


@case('A16 reserved event bits are 0/02')
def a16(a):
    with l2(a.port) as c:
        status_of(c.feature(0x0B, 0x0F000000), (0, 2))
        status_of(c.feature(0x0B, 0x100), (0, 0))


@case('A17 saving a feature is 1/0D')
def a17(a):
    with l2(a.port) as c:
        status_of(c.feature(0x0B, 0, save=1), (1, 0x0D))


@case('A18 Get Features with a wrong SEL or FID is 0/02')
def a18(a):
    with l2(a.port) as c:
        for sel in range(4, 8):
            status_of(c.command(sqe(0x0A, 1, cdw10=0x0B | sel << 8))[0], (0, 2))
        for fid in (0, 0x7F):
            status_of(c.command(sqe(0x0A, 1, cdw10=fid))[0], (0, 2))


@case('A19 one event request too many is 1/05, the others stay open')
def a19(a):
    with l2(a.port) as c:
        c.send(b''.join(c.capsule(sqe(0x0C, 200 + i)) for i in range(5)))
        answer, _ = c.answer()
        status_of(answer, (1, 5))
        assert answer.cid == 204
        assert c.silent()
        status_of(c.command(sqe(0x18, 9))[0], (0, 0))


@case('A21 Abort of what is not there says so')
def a21(a):
    with l2(a.port) as c:
        for what in (0x1234 << 16, 0x1234 << 16 | 0x77, 0xFFFFFFFF, 5 << 16):
            answer, _ = c.command(sqe(8, 5, cdw10=what))
            status_of(answer, (0, 0))
            assert answer.dw0 & 1


@case('A21 Abort of an event request ends it')
def a21b(a):
    with l2(a.port) as c:
        c.send(c.capsule(sqe(0x0C, 300)) + c.capsule(sqe(8, 301, cdw10=300 << 16)))
        answers = {x.cid: x for x in (c.answer()[0], c.answer()[0])}
        status_of(answers[300], (0, 7))
        assert answers[301].dw0 & 1 == 0


@case('A22 many Aborts at once are all answered')
def a22(a):
    with l2(a.port) as c:
        c.send(b''.join(c.capsule(sqe(8, 400 + i, cdw10=9 << 16)) for i in range(20)))
        for _ in range(20):
            status_of(c.answer()[0], (0, 0), (1, 3))


@case('A24 Keep Alive: before CC.EN 0/0C, with KATO 0 success')
def a24(a):
    with l2(a.port, cc=None) as c:
        status_of(c.command(sqe(0x18, 1))[0], (0, 0x0C))
        status_of(c.set_cc(CC_ON), (0, 0))
        status_of(c.command(sqe(0x18, 1))[0], (0, 0))


@case('A25 a host that goes silent is dropped at 1.0 to 1.5 times KATO, others are not')
def a25(a):
    with Host(a.port) as other, Host(a.port, kato=600) as h:
        begin = time.monotonic()
        h.io.sock.settimeout(3)
        try:
            h.io.recv()
        except Closed:
            pass
        took = time.monotonic() - begin
        assert 0.55 <= took <= 0.95, f'{took:.2f} s'
        closed(h.admin)
        status_of(other.io.exist(b'a25'), (0, 0x87))


@case('A26 traffic counts as keep alive')
def a26(a):
    with Host(a.port, kato=400) as h:
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            status_of(h.io.exist(b'a26'), (0, 0x87))
            time.sleep(0.1)
        status_of(h.admin.command(sqe(0x18, 1))[0], (0, 0))


@each('A27 a command that is not offered is 0/01',
      [0x80, 0x84, 0x10, 0x11, 0x0D, 0x81, 0x82, 0x19, 0x1C])
def a27(a, opcode):
    with l2(a.port) as c:
        status_of(c.command(sqe(opcode, 1, 1))[0], (0, 1))


@case('A28 a namespace where none is meant is refused')
def a28(a):
    with l2(a.port) as c:
        status_of(c.command(sqe(0x18, 1, 5))[0], (0, 2), (0, 0x0B))
        status_of(c.identify(1, nsid=5)[0], (0, 2), (0, 0x0B))
        status_of(c.feature(0x0B, 0, nsid=1), (1, 0x0F), (0, 2), (0, 0x0B))


@case('A30 the statistics log tells keys and bytes')
def a30(a):
    with Host(a.port) as h:
        answer, before = h.admin.log(0xC0, 512, nsid=1)
        status_of(answer, (0, 0))
        assert before[:8] == b'kvofSTAT' and struct.unpack_from('<II', before, 8) == (1, 512)
        status_of(h.io.store(b'a30', bytes(70000)), (0, 0))
        _, after = h.admin.log(0xC0, 512, nsid=1)
        (keys0, used0), (keys1, used1) = (struct.unpack_from('<QQ', x, 40) for x in (before, after))
        assert keys1 == keys0 + 1 and used1 >= used0 + 70000
        wrote = [struct.unpack_from('<Q', x, 96)[0] for x in (before, after)]
        assert wrote[1] >= wrote[0] + 70000


@case('A31 Discovery lists the subsystem once, at this address')
def a31(a):
    with l2(a.port, subnqn=DISCOVERY) as c:
        _, head = c.log(0x70, 1024)
        assert struct.unpack_from('<Q', head, 8)[0] == 1
        _, both = c.log(0x70, 2048)
        entry = both[1024:]
        assert entry[0] == 3 and entry[1] == 1 and entry[2] == 2
        assert entry[32:64].rstrip(b'\0 ') == str(a.port).encode()
        assert entry[256:512].rstrip(b'\0') == NQN.encode()
        assert entry[512:768].rstrip(b'\0 ') == b'127.0.0.1'
        assert c.log(0x70, 1024, 1024)[1] == entry
        status_of(c.identify(2)[0], (0, 2), (0, 0x0B))


# --- S: data descriptors --------------------------------------------------------------------------


@each('S01 PSDT other than SGL is 0/02', [0x00, 0xC0])
def s01(a, flags):
    with Host(a.port) as h:
        command = bytearray(kv(2, 1, b's01', 64, dptr=sgl(0x5A, 64)))
        command[1] = flags
        status_of(h.io.command(bytes(command))[0], (0, 2))


@each('S02, S03, S04, S07 a descriptor type that TCP has not is refused',
      [0x40, 0x20, 0x30, 0x10, 0x5B, 0x5F, 0xF0, 0xFF])
def s02(a, kind):
    with Host(a.port) as h:
        for opcode in (2, 1):
            status_of(h.io.command(kv(opcode, 1, b's02', 64, dptr=sgl(kind, 64)))[0],
                      (0, 0x11), (0, 0x0E), (0, 0x0D))
        status_of(h.io.exist(b's02'), (0, 0x87))


@case('S06 an in-capsule descriptor for data to the host is refused')
def s06(a):
    with Host(a.port) as h:
        status_of(h.io.store(b's06', bytes(64)), (0, 0))
        status_of(h.io.command(kv(2, 1, b's06', 64, dptr=sgl(1, 64)))[0], (0, 2), (0, 0x11))


@each('S08, S09, K07 a descriptor length other than the value\'s is 0/0F',
      [0, 4095, 4097, 8192])
def s08(a, length):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b's08', 4096, dptr=sgl(0x5A, length)))[0], (0, 0x0F))
        status_of(h.io.command(kv(2, 1, b's08', 4096, dptr=sgl(0x5A, length)))[0], (0, 0x0F))
        if 0 < length <= 8192:
            status_of(h.io.command(kv(1, 1, b's08', 4096, dptr=sgl(1, length)),
                                   bytes(length))[0], (0, 0x0F))
        status_of(h.io.exist(b's08'), (0, 0x87))


@case('S09 in-capsule data that lies outside the capsule is refused')
def s09(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096, 4096)), bytes(4096))
        status_of(answer, (0, 0x0F), (0, 0x16))
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096, 1 << 40)), bytes(4096))
        status_of(answer, (0, 0x0F), (0, 0x16))
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096)), bytes(512))
        status_of(answer, (0, 0x0F), (0, 0x16))
        status_of(h.io.exist(b's09'), (0, 0x87))


@case('S10 lengths beyond MDTS are refused before a buffer is taken')
def s10(a):
    with Host(a.port) as h:
        for size in (8 << 20 | 4, 0xFFFFFFFF):
            status_of(h.io.command(kv(1, 1, b's10', size, dptr=sgl(0x5A, size)))[0],
                      (0, 0x85), (0, 2))
            status_of(h.io.command(kv(2, 1, b's10', size, dptr=sgl(0x5A, size)))[0],
                      (0, 2), (0, 0x0F))


@case('S11 a descriptor on a command without data is ignored or refused')
def s11(a):
    with Host(a.port) as h:
        status_of(h.io.store(b's11', b'x'), (0, 0))
        answer, _ = h.io.command(kv(0x10, 1, b's11', 0, dptr=sgl(0x5A, 4096)))
        status_of(answer, (0, 0), (0, 0x0F))


# --- K: Key Value ---------------------------------------------------------------------------------


@each('K01, K02, K03 a key length that is none is 0/86', [0, 17, 32, 255])
def k01(a, length):
    with Host(a.port) as h:
        for opcode in (1, 2, 0x10, 0x14):
            size, dptr, data = (8, sgl(1, 8), bytes(8)) if opcode == 1 else \
                (8, sgl(0x5A, 8), b'') if opcode == 2 else (0, b'', b'')
            status_of(h.io.command(kv(opcode, 1, b'k' * 16, size, dptr=dptr, key_len=length),
                                   data)[0], (0, 0x86))
        assert h.io.silent(0.02)


@case('K04 List takes a key of length 0 and not of 17')
def k04(a):
    with Host(a.port) as h:
        status_of(h.io.list(b'', 4096)[0], (0, 0))
        status_of(h.io.command(kv(6, 1, b'k' * 16, 4096, dptr=sgl(0x5A, 4096), key_len=17))[0],
                  (0, 0x86), (0, 2))


@each('K05 a value above KVVML is 0/85', [(8 << 20) + 1, 0xFFFFFFFF])
def k05(a, size):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b'k05', size, dptr=sgl(0x5A, size)))[0], (0, 0x85))


@case('K06 an empty value is a value')
def k06(a):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b'k06', 0))[0], (0, 0))
        answer, data = h.io.retrieve(b'k06', 100)
        status_of(answer, (0, 0))
        assert answer.dw0 == 0 and data == b''
        status_of(h.io.exist(b'k06'), (0, 0))


@case('K08 Retrieve into a smaller buffer moves what fits and tells the whole length')
def k08(a):
    value = noise(8192, 8)
    with Host(a.port) as h:
        status_of(h.io.store(b'k08', value), (0, 0))
        answer, data = h.io.retrieve(b'k08', 1000)
        status_of(answer, (0, 0))
        assert data == value[:1000] and answer.dw0 == 8192 and answer.dw1 == 0
        answer, data = h.io.retrieve(b'k08', 65536)
        assert data == value and answer.dw0 == 8192


@case('K09 Retrieve into no buffer tells the length')
def k09(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k09', bytes(777)), (0, 0))
        answer, data = h.io.command(kv(2, 1, b'k09', 0))
        status_of(answer, (0, 0))
        assert answer.dw0 == 777 and data == b''


@case('K12 store-if-absent: new succeeds, old is 0/89 and stays')
def k12(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k12', b'first', options=2), (0, 0))
        status_of(h.io.store(b'k12', b'second', options=2), (0, 0x89))
        assert h.io.retrieve(b'k12', 64)[1] == b'first'


@case('K13 store-if-present: missing is 0/87, old is replaced')
def k13(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k13', b'x', options=1), (0, 0x87))
        status_of(h.io.exist(b'k13'), (0, 0x87))
        status_of(h.io.store(b'k13', b'x'), (0, 0))
        status_of(h.io.store(b'k13', b'yy', options=1), (0, 0))
        assert h.io.retrieve(b'k13', 64)[1] == b'yy'


@case('K14 both conditions at once are 0/02 and store nothing')
def k14(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k14', b'x', options=3), (0, 2))
        status_of(h.io.exist(b'k14'), (0, 0x87))


@case('K15 store-if-absent of one key from 8 connections has one winner a round')
def k15(a):
    with Host(a.port) as h:
        queues = [h.queue(2 + i) for i in range(8)]
        for r in range(100):
            key = b'k15' + struct.pack('<H', r)
            for i, q in enumerate(queues):
                q.send(q.capsule(kv(1, 1 + r % 9, key, 64, 2, dptr=sgl(1, 64)), bytes([i] * 64)))
            answers = [q.answer()[0].status for q in queues]
            assert answers.count((0, 0)) == 1 and answers.count((0, 0x89)) == 7, answers
            assert queues[0].retrieve(key, 64)[1] == bytes([answers.index((0, 0))] * 64)
        for q in queues:
            q.close()


@case('K18 Delete of an absent key follows EDNEK, for this host alone')
def k18(a):
    with Host(a.port) as h, Host(a.port, hostid=b'\7' * 16) as other:
        status_of(h.io.delete(b'k18'), (0, 0x87))
        status_of(h.admin.feature(0x20, 0, nsid=1), (0, 0))
        status_of(h.io.delete(b'k18'), (0, 0))
        status_of(other.io.delete(b'k18'), (0, 0x87))


@case('K20 key bytes past the length are ignored')
def k20(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b'k20', 4, dptr=sgl(1, 4), tail=b'\xff' * 13), b'abcd')
        status_of(answer, (0, 0))
        assert h.io.retrieve(b'k20', 4)[1] == b'abcd'
        status_of(h.io.exist(b'k20\xff'), (0, 0x87))


@case('K21 CDW12 and CDW13 are ignored')
def k21(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b'k21', 4, dptr=sgl(1, 4), cdw12=527,
                                    cdw13=0xFFFFFFFF), b'abcd')
        status_of(answer, (0, 0))
        assert h.io.retrieve(b'k21', 4)[1] == b'abcd'


def list_keys(data):
    count, at, out = struct.unpack_from('<I', data)[0], 4, []
    for _ in range(count):
        length = struct.unpack_from('<H', data, at)[0]
        assert 1 <= length <= 16
        out.append(data[at + 2:at + 2 + length])
        at += (2 + length + 3) // 4 * 4
    assert at <= len(data)
    return out


@each('K22 List into 3, 0 and 4 bytes', [3, 0, 4, 5])
def k22(a, room):
    with Host(a.port) as h:
        status_of(h.io.store(b'k22', b'x'), (0, 0))
        answer, data = h.io.list(b'', room)
        if room < 4:
            status_of(answer, (0, 2), (0, 0x85))
        else:
            status_of(answer, (0, 0))
            assert list_keys(data) == []


@case('K22 keys that live through a paged List are seen exactly once')
def k22b(a):
    with Host(a.port) as h:
        mine = {b'k22:%04d' % i for i in range(300)}
        for key in mine:
            status_of(h.io.store(key, b'x'), (0, 0))
        seen, start, n = [], b'', 0
        while True:
            answer, data = h.io.list(start, 600)
            status_of(answer, (0, 0))
            keys = [k for k in list_keys(data) if k != start]
            if not keys:
                break
            seen += keys
            start = keys[-1]
            n += 1
            status_of(h.io.store(b'k23:%04d' % n, b'y'), (0, 0))
        assert seen == sorted(seen)
        assert sorted(k for k in seen if k in mine) == sorted(mine)


@case('K25 opcodes of the block command set are those of KV here')
def k25(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(sqe(1, 1, 1, dptr=sgl(1, 512), cdw10=0, cdw12=0), bytes(512))
        status_of(answer, (0, 0x86), (0, 0x0F))


@case('K26 KV commands without CC.CSS 110b are refused')
def k26(a):
    h = Host.__new__(Host)
    h.port, h.digests, h.more = a.port, 0, {}
    h.admin = l2(a.port, cc=0x00460001)
    h.io = h.queue(1)
    status_of(h.io.exist(b'k26'), (0, 0x0B), (1, 0x29), (1, 0x2A))
    h.close()


@case('K30 values of every odd size come back, in the capsule and by R2T')
def k30(a):
    for digests in (0, 3):
        with Host(a.port, digests) as h:
            for size in (1, 2, 3, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 131071,
                         131073):
                value = noise(size, size)
                if size <= 8192:
                    status_of(h.io.store(b'k30', value, inline=True), (0, 0))
                    assert h.io.retrieve(b'k30', size)[1] == value
                status_of(h.io.store(b'k30', value[::-1], inline=False), (0, 0))
                answer, data = h.io.retrieve(b'k30', size + 9)
                assert data == value[::-1] and answer.dw0 == size, size


@each('K31 a namespace that is not there is 0/0B', [0, 2, 17, 0xFFFFFFFF])
def k31(a, nsid):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(0x14, 1, b'k31', nsid=nsid))
        status_of(answer, (0, 0x0B))
        assert answer.dnr


# --- L: life --------------------------------------------------------------------------------------


@case('L05 connect, I/O, close, 300 times')
def l05(a):
    before = a.rss_kib()
    for i in range(300):
        with Host(a.port) as h:
            status_of(h.io.store(b'l05', b'x' * (i + 1)), (0, 0))
    assert a.rss_kib() < before + 8192


@each('L06 closed in the middle of 100 commands',
      ['Retrieves', 'half-sent Stores', 'open R2Ts'])
def l06(a, what):
    with Host(a.port) as h:
        status_of(h.io.store(b'l06', noise(262144)), (0, 0))
        for r in range(5):
            c = h.queue(2 + r, sqsize=127)
            if what == 'Retrieves':
                c.send(b''.join(c.capsule(kv(2, i + 1, b'l06', 262144, dptr=sgl(0x5A, 262144)))
                                for i in range(100)))
            elif what == 'half-sent Stores':
                out = b''.join(c.capsule(kv(1, i + 1, b'l06x', 8192, dptr=sgl(1, 8192)),
                                         bytes(8192)) for i in range(100))
                c.send(out[:len(out) // 2])
            else:
                c.send(b''.join(c.capsule(kv(1, i + 1, b'l06x', 65536, dptr=sgl(0x5A, 65536)))
                                for i in range(100)))
                c.r2t()
            if r % 2:
                c.reset()
            else:
                c.close()
        assert h.io.retrieve(b'l06', 262144)[1] == noise(262144)


@case('L07 a reset in each state')
def l07(a):
    for _ in range(10):
        Conn(a.port).reset()
        c = Conn(a.port)
        c.send(icreq())
        c.reset()
        l1(a.port).reset()
        c = l1(a.port)
        c.send(c.capsule(connect_sqe(1), connect_data()))
        c.reset()
        c = l1(a.port)
        c.send(c.capsule(connect_sqe(1, dptr=sgl(0x5A, 1024))))
        c.reset()
        l2(a.port, cc=None).reset()
        c = l2(a.port, cc=None)
        c.send(c.capsule(prop_set(1, 0x14, CC_ON)))
        c.reset()
        h = Host(a.port)
        h.admin.reset()
        closed(h.io)
        h.io.close()
        h = Host(a.port)
        h.io.reset()
        status_of(h.admin.prop(0x1C), (0, 0))
        h.admin.close()


@case('L18 a storm of bad PDUs writes few lines')
def l18(a):
    a.err.seek(0, 2)
    before = a.err.tell()
    begin = time.monotonic()
    for _ in range(1000):
        c = Conn(a.port)
        c.send(b'\xff' * 24)
        c.close()
    seconds = time.monotonic() - begin
    a.err.seek(before)
    lines = a.err.read().count(b'\n')
    assert lines <= 11 * (seconds + 1), f'{lines} lines in {seconds:.1f} s'


# --- what runs beside and after the cases ---------------------------------------------------------


class Canary:
    def __init__(self, array):
        self.host = Host(array.port, hostid=b'\x0c' * 16)
        self.n = 0

    def sing(self):
        self.n += 1
        value = noise(3000 + self.n * 37 % 60000, self.n)
        begin = time.monotonic()
        status_of(self.host.io.store(b'canary', value), (0, 0))
        answer, data = self.host.io.retrieve(b'canary', len(value))
        assert data == value and answer.dw0 == len(value), 'the canary read other bytes'
        assert time.monotonic() - begin < 1.0, 'the canary waited'


class Silent(threading.Thread):
    """L01 and L03 on an array of their own, beside the other cases: they take 5 s each."""

    def __init__(self, kvof, count=1000):
        super().__init__()
        self.array = Array(kvof)
        self.count = count
        self.results = []

    def one(self, name, greet):
        rss = self.array.rss_kib()
        begin = time.monotonic()
        socks = []
        for _ in range(self.count):
            c = Conn(self.array.port)
            if greet:
                c.icreq()
            socks.append(c)
        opened = time.monotonic() - begin
        per_socket = (self.array.rss_kib() - rss) / self.count
        at = time.monotonic()
        with Host(self.array.port) as h:
            status_of(h.io.exist(b'x'), (0, 0x87))
        connect_ms = (time.monotonic() - at) * 1000
        late = [c for c in socks if not c.eof(max(0.3, begin + opened + 6.5 - time.monotonic()))]
        took = time.monotonic() - begin
        for c in socks:
            c.close()
        print(f'# {name}: {per_socket:.1f} KiB a socket, all gone after {took:.1f} s, a new host '
              f'connects in {connect_ms:.0f} ms')
        assert not late, f'{len(late)} still open'
        assert per_socket <= (16 if greet else 4), f'{per_socket:.1f} KiB a socket'
        assert connect_ms < 500, f'{connect_ms:.0f} ms'

    def run(self):
        for name, greet in (('L01 1,000 sockets that say nothing are closed within the handshake '
                             'time', False),
                            ('L03 1,000 sockets that stop after ICReq are closed the same way',
                             True)):
            try:
                self.one(name, greet)
                self.results.append((name, None))
            except Exception:
                self.results.append((name, traceback.format_exc()))
        self.array.stop()


class Allow:
    """C06, on an array with a list: an unknown subsystem and a forbidden host are one answer."""

    @staticmethod
    def run(kvof):
        array = Array(kvof, '--allow-host', 'nqn.2014-08.org.nvmexpress:uuid:'
                      '00000000-0000-4000-8000-0000000000aa')
        try:
            answers = set()
            for nqn in (NQN, 'nqn.2026-11.io.kvof:nowhere'):
                with l1(array.port) as c:
                    answer = c.connect(subnqn=nqn)
                    answers.add((answer.status, answer.dw0, answer.dw1))
            assert answers == {((1, 0x84), 0, 0)}, answers
            with l2(array.port, subnqn=DISCOVERY) as c:
                _, head = c.log(0x70, 1024)
                assert struct.unpack_from('<Q', head, 8)[0] == 0, 'Discovery tells it'
            good = HOSTNQN[:-2] + 'aa'
            with l2(array.port, hostnqn=good) as c:
                status_of(c.prop(0x1C), (0, 0))
        finally:
            array.stop()


def sigterm_under_load(array):
    with Host(array.port) as h:
        h.io.send(b''.join(h.io.capsule(kv(1, i + 1, b'l13', 65536, dptr=sgl(0x5A, 65536)))
                           for i in range(20)))
        code, seconds = array.stop()
    assert code == 0 and seconds <= 5, f'exit code {code} after {seconds:.1f} s'


def attempt(run):
    try:
        run()
        return None
    except Exception:
        return traceback.format_exc()


class Tap:
    def __init__(self):
        self.n = self.bad = 0

    def tell(self, name, error):
        self.n += 1
        self.bad += error is not None
        print(f'{"not ok" if error else "ok"} {self.n} - {name}')
        if error:
            for line in error.strip().splitlines()[-6:]:
                print(f'# {line}')
        sys.stdout.flush()


def one(array, canary, run):
    fds = array.fds()
    run(array)
    canary.sing()
    end = time.monotonic() + 1.5
    while array.fds() > fds:
        assert time.monotonic() < end, f'{array.fds() - fds} connections stay open in the array'
        time.sleep(0.005)
    assert array.proc.poll() is None, 'the array has ended'


def main():
    kvof, words = sys.argv[1], ' '.join(sys.argv[2:])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tap = Tap()
    chosen = [c for c in CASES if words in c[0]]
    silent = Silent(kvof) if not words else None
    if silent:
        silent.start()
    with tempfile.TemporaryDirectory() as folder:
        array = Array(kvof, log=os.path.join(folder, 'err'))
        canary = Canary(array)
        for name, run in chosen:
            error = attempt(lambda: one(array, canary, run))
            tap.tell(name, error)
            if array.proc.poll() is not None:
                array.err.seek(0)
                tap.tell('the array lives', array.err.read().decode()[-2000:])
                array = Array(kvof, log=os.path.join(folder, 'err2'))
                canary = Canary(array)
        if not words:
            tap.tell('C06 an unknown subsystem and a forbidden host get one answer',
                     attempt(lambda: Allow.run(kvof)))
            tap.tell('L13 SIGTERM under load ends within 5 s with exit code 0',
                     attempt(lambda: sigterm_under_load(array)))
            silent.join()
            for name, error in silent.results:
                tap.tell(name, error)
        else:
            array.stop()
    print(f'1..{tap.n}')
    return 1 if tap.bad else 0


sys.exit(main())
