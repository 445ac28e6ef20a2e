#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command line says and does of block namespaces: stat, and bench read and write.

usage: block_cli.py KVOF
"""
import json
import subprocess
import sys

from abuse_block import *

KVOF = sys.argv[1]


def kvof(*words, code=0):
    run = subprocess.run([KVOF, *words], capture_output=True, text=True, timeout=60)
    assert run.returncode == code, f'{words}: exit code {run.returncode}, {run.stderr}'
    assert code == 0 or run.stderr.count('\n') == 1, f'not one line: {run.stderr!r}'
    return run.stdout if code == 0 else run.stderr


def target(a, nsid=None):
    return f'tcp://127.0.0.1:{a.port}' + (f'?nsid={nsid}' if nsid else '')


CASES.clear()


@case('stat tells kind, blocks and what they take of the drives')
def stat(a):
    with Host(a.port) as h:
        status_of(put(h.io, 0, noise(64 * BLOCK)), (0, 0))
    got = json.loads(kvof('stat', target(a, 2), '--json'))
    assert got['kind'] == 'block' and got['block_bytes'] == BLOCK, got
    assert got['size_bytes'] == BLOCKS * BLOCK and got['used_bytes'] >= 64 * BLOCK, got
    assert json.loads(kvof('stat', target(a), '--json'))['kind'] == 'kv'
    assert f'{BLOCKS} blocks of 4096 bytes' in kvof('stat', target(a, 2))


@case('a command for values says that a namespace is none of them')
def wrong_kind(a):
    assert 'no KV namespace' in kvof('get', target(a, 2), '0x01', code=3)
    assert 'no block namespace' in kvof('bench', 'fabric', target(a, 1), '--op', 'read', code=3)


@case('a write bench wants to be told that it may overwrite')
def overwrite(a):
    with Host(a.port) as h:
        status_of(put(h.io, 0, noise(64 * BLOCK)), (0, 0))
        assert '--overwrite' in kvof('bench', 'fabric', target(a, 2), '--op', 'write', code=4)
        kvof('bench', 'fabric', target(a, 2), '--op', 'read', '--seconds', '0.1')
        assert get(h.io, 0, 64) == noise(64 * BLOCK), 'a bench changed blocks unasked'


@each('bench', ['read 4096 random', 'read 131072 sequential', 'write 4096 random',
                'write 1048576 sequential'])
def bench(a, what):
    op, size, order = what.split()
    words = ['bench', 'fabric', target(a, 2), '--op', op, '--value-bytes', size, '--overwrite',
             '--seconds', '0.3', '--depth', '8', '--queues', '2', '--span', '16MiB', '--json']
    got = json.loads(kvof(*words, *(['--sequential'] if order == 'sequential' else [])))
    assert got['op'] == op and got['value_bytes'] == int(size) and got['ops'] > 0, got
    assert got['verify'] == ('stamps' if op == 'read' else 'none'), got
    assert got['sequential'] == (order == 'sequential') and got['span_bytes'] == 16 << 20, got
    assert got['p50_us'] <= got['p99_us'] and got['bytes_per_s'] > 0, got


@each('bench refuses sizes that are no blocks', ['4095', '512', '16MiB'])
def sizes(a, size):
    assert 'whole blocks' in kvof('bench', 'fabric', target(a, 2), '--op', 'read', '--value-bytes',
                                  size, code=2)


def main():
    tap = Tap()
    array = Array(KVOF, '--kv', '64MiB', '--block', '64MiB')
    for name, run in CASES:
        tap.tell(name, attempt(lambda: run(array)))
    array.stop()
    return tap.end()


sys.exit(main())
