#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvof` and an array with a bad network between them (proxy.py): slow but right, nothing hangs,
deadlines are kept. L10 and L11 of the abuse set.

usage: slow_net.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from cases import case, each, run_all
from nvmetcp import *
from proxy import Proxy, Weather

KVOF = sys.argv[1]


def kvof(*args, timeout=60, **more):
    begin = time.monotonic()
    got = subprocess.run([KVOF, *args], capture_output=True, timeout=timeout, **more)
    got.seconds = time.monotonic() - begin
    return got


def target(proxy):
    return f'tcp://127.0.0.1:{proxy.port}/{NQN}'


def value(n, seed=1):
    return random.Random(seed).randbytes(n)


def round_trip(proxy, size, *options):
    data = value(size, size)
    got = kvof('put', target(proxy), 'text:v', *options, input=data)
    assert got.returncode == 0, got.stderr
    got = kvof('get', target(proxy), 'text:v', *options)
    assert got.returncode == 0 and got.stdout == data, (got.returncode, got.stderr)


class Net:
    """An array and a proxy before it."""

    def __init__(self, *args, **weather):
        self.array = Array(KVOF, *args, drives=['mem,size=256MiB'])
        self.proxy = Proxy(self.array.port, Weather(**weather))

    def __enter__(self):
        return self.array, self.proxy

    def __exit__(self, *_):
        code, seconds = self.array.stop() if self.array.proc.poll() is None else (0, 0)
        self.proxy.close()
        assert code == 0 and seconds < 5, (code, seconds)


@each('L11 every byte alone, digests', ['none', 'both'])
def bytes_alone(d, digests):
    with Net(piece=1) as (_, proxy):
        options = ['--header-digest', '--data-digest'] if digests == 'both' else []
        round_trip(proxy, 10000, *options)


@each('L11 pieces that come late and unevenly', [1, 2, 3])
def late(d, seed):
    with Net(seed=seed, delay_s=(0, 0.02), piece=100000) as (_, proxy):
        for size in (0, 1, 8192, 8193, 300000, 2000000):
            round_trip(proxy, size)


@case('L11 a bench over a network of 10 ms and uneven pieces has no error')
def bench(d):
    with Net(delay_s=(0.005, 0.015), piece=50000) as (_, proxy):
        for op in ('store', 'retrieve', 'exist'):
            got = kvof('bench', 'fabric', target(proxy), '--op', op, '--value-bytes', '64KiB', '--depth',
                       '8', '--queues', '2', '--keys', '32', '--seconds', '1', '--json')
            assert got.returncode == 0, got.stderr
            row = json.loads(got.stdout)
            assert row['ops_per_s'] > 0 and row.get('errors', 0) == 0, row
            assert row['p50_us'] >= 5000, 'faster than the network'


@case('a throttled network: slow but right; a deadline ends it in time, and the next call works')
def throttled(d):
    data = value(1500000)
    with Net(rate=1000000) as (_, proxy):
        got = kvof('put', target(proxy), 'text:slow', input=data)
        assert got.returncode == 0 and got.seconds > 1.0, got
        got = kvof('get', target(proxy), 'text:slow', '--timeout', '300ms')
        assert got.returncode == 3 and got.stdout == b'' and got.seconds < 2.0, (got.seconds, got.stderr)
        assert len(got.stderr.strip().splitlines()) == 1, got.stderr
        got = kvof('get', target(proxy), 'text:slow')
        assert got.returncode == 0 and got.stdout == data and got.seconds > 1.0


@case('a connection broken at any byte: old or new value whole, an error in time, never other bytes')
def cut(d):
    old, new = value(60000, 1), value(60000, 2)
    with Net(cut=(1, 140000)) as (array, proxy):
        direct = f'tcp://127.0.0.1:{array.port}/{NQN}'
        codes = {'put': set(), 'get': set()}
        for seed in range(20):
            proxy.weather.seed = seed
            assert kvof('put', direct, 'text:cut', input=old).returncode == 0
            got = kvof('put', target(proxy), 'text:cut', '--timeout', '3s', input=new)
            assert got.returncode in (0, 3) and got.seconds < 6, (seed, got)
            codes['put'].add(got.returncode)
            there = kvof('get', direct, 'text:cut').stdout
            assert there == new if got.returncode == 0 else there in (old, new), seed
            got = kvof('get', target(proxy), 'text:cut', '--timeout', '3s')
            assert got.returncode in (0, 3) and got.seconds < 6, (seed, got)
            assert got.stdout == (there if got.returncode == 0 else b''), seed
            codes['get'].add(got.returncode)
        assert proxy.cuts > 8 and 0 in codes['put'] and 0 in codes['get'], (proxy.cuts, codes)
        with Host(array.port) as h:
            status_ok(h.io.exist(b'cut'))


@case('L10 nothing moves any more: a call ends by its deadline, and so does a bench')
def stalled(d):
    with Net() as (array, proxy):
        round_trip(proxy, 100000)
        proxy.stalled.set()
        got = kvof('get', target(proxy), 'text:v', '--timeout', '500ms', '--connect-timeout', '500ms')
        assert got.returncode == 3 and got.seconds < 2.5, (got.seconds, got.stderr)
        proxy.stalled.clear()
        round_trip(proxy, 100000)
        bench = subprocess.Popen([KVOF, 'bench', 'fabric', target(proxy), '--op', 'retrieve',
                                  '--value-bytes', '64KiB', '--keys', '16', '--seconds', '3', '--timeout',
                                  '500ms', '--json'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1)                          # waits-for: the bench to be at work
        proxy.stalled.set()
        bench.wait(15)
        proxy.stalled.clear()
        round_trip(proxy, 1000)


@case('L10 a host whose cable was pulled is served over a new connection before the old one is gone')
def half_open(d):
    with Net() as (array, proxy):
        with Host(proxy.port, kato=1000) as h:
            status_ok(h.io.store(b'before', b'x'))
            proxy.stalled.set()
            with Host(array.port) as again:    # the same host, by its name and identifier
                assert again.io.retrieve(b'before', 8)[1] == b'x'
                status_ok(again.io.store(b'after', b'y'))
                fds = array.fds()
                end = time.monotonic() + 3
                while array.fds() >= fds:
                    assert time.monotonic() < end, 'the dead association stays'
                    time.sleep(0.02)           # waits-for: the array to drop it at KATO
                status_ok(again.io.exist(b'after'))
            proxy.stalled.clear()


@case('L13 SIGTERM ends within 5 s with many hosts at work and one that is stuck')
def sigterm(d):
    with Net() as (array, proxy):
        stuck = Host(proxy.port)
        status_ok(stuck.io.store(b'large', bytes(4 << 20)))
        for i in range(8):
            stuck.io.send(stuck.io.capsule(kv(2, 100 + i, b'large', 4 << 20, dptr=sgl(0x5A, 4 << 20))))
            stuck.io.send(stuck.io.capsule(kv(1, 200 + i, b'never', 1 << 20, dptr=sgl(0x5A, 1 << 20))))
        stuck.io.recv()
        proxy.stalled.set()
        busy = [subprocess.Popen([KVOF, 'bench', 'fabric', f'tcp://127.0.0.1:{array.port}', '--op', 'store',
                                  '--value-bytes', '256KiB', '--depth', '8', '--keys', '16', '--seconds',
                                  '20'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(4)]
        time.sleep(1)                          # waits-for: the benches to be at work
        code, seconds = array.stop()
        assert code == 0 and seconds < 5, (code, seconds)
        for b in busy:
            b.terminate()
            b.wait(10)
        stuck.close()


def in_folder(run):
    with tempfile.TemporaryDirectory(prefix='kvof-net-') as folder:
        return run(folder)


sys.exit(run_all(' '.join(sys.argv[2:]), in_folder))
