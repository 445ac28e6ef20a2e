#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""L20: any one call to the system fails while a host comes, works and goes.

usage: call_fail.py KVOF LIBRARY [WORDS]     runs the cases whose name contains WORDS

For each call and each error that it may end with, the n-th one fails, n = 1 to N. That host may lose
its connection, told within the time of an answer; a host beside it and the next one are served whole,
no file stays open, and the array ends as it should.
"""
import errno
import os
import sys
import tempfile
import time

from cases import each, run_all
from fail_calls import Fail
from nvmetcp import *

KVOF, LIBRARY = sys.argv[1:3]
NTH = 8
# No EINTR for those of sockets that do not wait: Linux has none.
SOCKETS = [('recv', errno.ECONNRESET), ('recv', errno.ENOMEM), ('send', errno.EPIPE),
           ('send', errno.ENOBUFS),
           ('epoll_wait', errno.EINTR), ('epoll_ctl', errno.ENOMEM), ('epoll_ctl', errno.ENOSPC)]
ALL = [('accept4', errno.EMFILE), ('accept4', errno.ENOMEM), ('accept4', errno.ECONNABORTED),
       ('accept4', errno.EINTR), ('setsockopt', errno.ENOMEM), ('getpeername', errno.ENOTCONN),
       ('mmap', errno.ENOMEM)]
RING = [('io_uring_submit', errno.EAGAIN), ('io_uring_submit', errno.EBUSY),
        ('io_uring_submit', errno.EINTR)]
ROWS = [f'{kind} {call} {errno.errorcode[error]}'
        for kind, rows in (('plain', ALL + SOCKETS), ('uring', ALL + RING)) for call, error in rows]
value = bytes(range(256)) * 512                # larger than a capsule: R2T and several sends


def work(a, key):
    with Host(a.port) as h:
        for size in (100, len(value)):
            status_ok(h.io.store(key, value[:size]))
            assert h.io.retrieve(key, size)[1] == value[:size], 'wrong bytes'


def served(a, beside):
    status_ok(beside.io.store(b'beside', value))
    assert beside.io.retrieve(b'beside', len(value))[1] == value
    work(a, b'next')


def files_back(a, files):
    end = time.monotonic() + 5
    while a.fds() > files:
        assert time.monotonic() < end, f'{a.fds() - files} files stay open'
        time.sleep(0.01)                       # waits-for: files to be closed in the array


@each('L20 one call that fails costs one connection at most', ROWS)
def call_fails(d, row):
    kind, call, name = row.split()
    fail = Fail(LIBRARY, d)
    if kind == 'plain':
        fail.env['KVOF_LOOP'] = 'plain'
    a = Array(KVOF, drives=[os.path.join(d, 'drive') + ',size=64MiB'], env=fail.env,
              log=os.path.join(d, 'log'))
    fired = 0
    try:
        with Host(a.port) as beside:
            served(a, beside)
            files = a.fds()
            for nth in range(1, NTH + 1):
                before = fail.fired()
                fail.arm(call, nth, getattr(errno, name))
                try:
                    work(a, b'work')
                except (Closed, OSError):
                    pass                       # told; a wait for it would end in TimeoutError
                fail.disarm()
                fired += fail.fired() - before
                assert a.proc.poll() is None, f'the array is gone, n = {nth}'
                if beside_lost(beside):        # the call was one for that host
                    beside.close()
                    beside = Host(a.port)
                served(a, beside)
            files_back(a, files)
        code, seconds = a.stop()
        assert code == 0 and seconds < 5, (code, seconds)
        assert fired > 0 or call in ('mmap', 'epoll_ctl', 'getpeername', 'setsockopt'), \
            'the call was never made'
    except Exception:
        a.err.seek(0)
        print('#', a.err.read().decode()[-300:].replace('\n', '\n# '))
        raise


def beside_lost(h):
    try:
        h.io.exist(b'beside')
        return False
    except (Closed, OSError):
        return True


def in_folder(run):
    with tempfile.TemporaryDirectory(prefix='kvof-calls-') as folder:
        return run(folder)


sys.exit(run_all(' '.join(sys.argv[3:]), in_folder))
