#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts that break every rule, against a real `kvof serve`: one TAP line a case.

usage: abuse.py KVOF [WORDS]     runs the cases whose name contains WORDS

After each case a canary on connections of its own stores, retrieves and compares; the array's open
files must be back where they were within a second. Case numbers are those of the abuse set (T
transport, D data, C Connect, Q queues, P properties, A admin, S descriptors, K Key Value, L life).
"""
import os
import resource
import struct
import sys
import tempfile
import threading
import time

from abuse_base import *
import abuse_wire                              # the order of cases is the order of these lines
import abuse_commands
import abuse_kv

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
        self.notes = []                        # the main thread prints: two would share a line

    def one(self, name, greet):
        for c in [l1(self.array.port) for _ in range(50)]:
            c.close()                          # what the process needs once is there before
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
        self.notes.append(f'# {name}: {per_socket:.1f} KiB a socket, all gone after {took:.1f} s, '
                          f'a new host connects in {connect_ms:.0f} ms')
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


def one(array, canary, run):
    fds = array.fds()
    run(array)
    canary.sing()
    end = time.monotonic() + 1.5
    while array.fds() > fds:
        assert time.monotonic() < end, f'{array.fds() - fds} connections stay open in the array'
        time.sleep(0.005)                      # waits-for: files to be closed in the array
    assert array.proc.poll() is None, 'the array has ended'


def main():
    kvof, words = sys.argv[1], ' '.join(sys.argv[2:])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tap = Tap()
    silent = Silent(kvof) if not words else None
    if silent:
        silent.start()
    with tempfile.TemporaryDirectory() as folder:
        array = Array(kvof, log=os.path.join(folder, 'err'))
        canary = Canary(array)
        for name, run in chosen(words):
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
            for note in silent.notes:
                print(note)
            for name, error in silent.results:
                tap.tell(name, error)
        else:
            array.stop()
    return tap.end()


sys.exit(main())
