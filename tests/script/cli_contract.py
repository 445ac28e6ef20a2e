#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line as scripts rely on it: exit codes, JSON fields, one line for what is wrong, and
nothing half done. One TAP line a case.

usage: cli_contract.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import glob
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from cases import case, run_all
from nvmetcp import Array

class Answer:
    def __init__(self, done):
        self.code, self.out, self.raw = done.returncode, done.stdout, done.stderr
        self.line = done.stderr.decode(errors='replace').strip()

    def json(self):
        value = json.loads(self.out)
        assert self.out.endswith(b'\n') and self.out.count(b'\n') == 1, self.out
        return value


class Bench:
    """One array in memory, one program, one folder, for all cases."""

    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-cli-')
        self.array = Array(kvof)
        self.target = f'tcp://127.0.0.1:{self.array.port}'

    def run(self, *words, stdin=b'', to=None):
        words = [self.kvof] + [w if isinstance(w, bytes) else str(w) for w in words]
        done = subprocess.run(words, input=stdin, stdout=to or subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=30)
        return Answer(done)

    def put(self, key, value, *more):
        return self.run('put', self.target, key, *more, stdin=value)

    def get(self, key, *more):
        return self.run('get', self.target, key, *more)

    def path(self, name):
        return os.path.join(self.dir, name)

    def end(self):
        self.array.stop()
        shutil.rmtree(self.dir)


def says(answer, code, *words):
    """It ended with the code and, unless 0, one line that has all the words."""
    assert answer.code == code, f'exit code {answer.code}, wanted {code}: {answer.line}'
    if code != 0:
        assert len(answer.line.splitlines()) == 1, f'not one line: {answer.line!r}'
    for word in words:
        assert word in answer.line, f'no {word!r} in {answer.line!r}'


def absent(b, key):
    """`exists` of a key that is not there is an answer, not an error: 1, and no line."""
    answer = b.run('exists', b.target, key)
    assert (answer.code, answer.out, answer.line) == (1, b'', ''), vars(answer)


# --- put, get, exists, rm ------------------------------------------------------------------------

@case('put and get move the bytes of standard input and output')
def run(b):
    value = bytes(range(256)) * 41 + b'x'
    says(b.put('text:a', value), 0)
    got = b.get('text:a')
    says(got, 0)
    assert got.out == value
    assert got.raw == b'', got.raw


@case('a value of no bytes is a value')
def run(b):
    says(b.put('text:empty', b''), 0)
    got = b.get('text:empty')
    says(got, 0)
    assert got.out == b''
    says(b.run('exists', b.target, 'text:empty'), 0)


@case('put and get take FILE, and a dash is standard input or output')
def run(b):
    with open(b.path('in'), 'wb') as f:
        f.write(b'from a file')
    says(b.put('text:f', b'not this', b.path('in')), 0)
    says(b.get('text:f', b.path('out')), 0)
    assert open(b.path('out'), 'rb').read() == b'from a file'
    says(b.put('text:f', b'from a pipe', '-'), 0)
    assert b.get('text:f', '-').out == b'from a pipe'


@case('hex and text name the same key, capital or small')
def run(b):
    says(b.put('text:key', b'1'), 0)
    for same in ('6b6579', '6B6579', '0x6b6579'):
        says(b.run('exists', b.target, same), 0)
    says(b.put('00ff00', b'binary'), 0)
    assert b.get('00FF00').out == b'binary'


@case('a miss is 1 and leaves no file')
def run(b):
    says(b.get('text:no', b.path('no')), 1, 'no such key')
    assert not os.path.exists(b.path('no'))
    absent(b, 'text:no')
    says(b.run('rm', b.target, 'text:no'), 1, 'no such key')


@case('a get that fails leaves an older file as it was')
def run(b):
    with open(b.path('old'), 'wb') as f:
        f.write(b'old')
    says(b.get('text:no', b.path('old')), 1)
    assert open(b.path('old'), 'rb').read() == b'old'
    assert not glob.glob(b.path('old') + '.*')


@case('get replaces a file whole and leaves nothing beside it')
def run(b):
    with open(b.path('dst'), 'wb') as f:
        f.write(b'x' * 100000)
    says(b.put('text:short', b'short'), 0)
    says(b.get('text:short', b.path('dst')), 0)
    assert open(b.path('dst'), 'rb').read() == b'short'
    assert glob.glob(b.path('dst') + '*') == [b.path('dst')]


@case('get to a place that can not be written is 3 and names it')
def run(b):
    says(b.put('text:w', b'w'), 0)
    says(b.get('text:w', b.path('no/such/folder')), 3, 'no/such/folder')
    with open('/dev/full', 'wb') as full:
        says(b.run('get', b.target, 'text:w', to=full), 3, 'standard output')


@case('put of a file that is not there is 3, names it and stores nothing')
def run(b):
    says(b.put('text:nofile', b'', b.path('nothing')), 3, b.path('nothing'), 'nothing was stored')
    absent(b, 'text:nofile')
    says(b.put('text:nofile', b'', b.dir), 3, b.dir)


@case('put of more than the longest value is 3 and says how long that is')
def run(b):
    says(b.put('text:long', bytes((8 << 20) + 1)), 3, '8388608')
    absent(b, 'text:long')
    says(b.put('text:long', bytes(8 << 20)), 0)


@case('standard input may take longer than a connection would live')
def run(b):
    array = Array(b.kvof)
    try:
        words = [b.kvof, 'put', f'tcp://127.0.0.1:{array.port}', 'text:slow']
        done = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        done.stdin.write(b'first half, ')
        done.stdin.flush()
        array.stop()
        array = Array(b.kvof, port=array.port)
        done.communicate(b'second half', timeout=30)
        assert done.returncode == 0, done.returncode
        got = b.run('get', f'tcp://127.0.0.1:{array.port}', 'text:slow')
        assert got.out == b'first half, second half', got.out
    finally:
        array.stop()


@case('--if-absent on a key that exists is 4 and leaves the value')
def run(b):
    says(b.put('text:once', b'first', '--if-absent'), 0)
    says(b.put('text:once', b'second', '--if-absent'), 4, 'exists')
    assert b.get('text:once').out == b'first'


@case('--if-present on a key that does not exist is 4 and stores nothing')
def run(b):
    says(b.put('text:maybe', b'x', '--if-present'), 4, 'no such key')
    absent(b, 'text:maybe')
    says(b.put('text:maybe', b'x'), 0)
    says(b.put('text:maybe', b'y', '--if-present'), 0)
    assert b.get('text:maybe').out == b'y'


@case('rm deletes')
def run(b):
    says(b.put('text:gone', b'x'), 0)
    says(b.run('rm', b.target, 'text:gone'), 0)
    absent(b, 'text:gone')


@case('digests on the wire change nothing')
def run(b):
    value = os.urandom(300001)
    for flags in ((), ('--header-digest',), ('--data-digest',), ('--header-digest', '--data-digest')):
        says(b.put('text:d', value, *flags), 0)
        assert b.get('text:d', *flags).out == value


# --- JSON ----------------------------------------------------------------------------------------

@case('put, get, exists and rm with --json print key, found or stored, and value_bytes')
def run(b):
    key = {'key': b'text:json'[5:].hex()}
    assert b.put('text:json', b'12345', '--json').json() == {**key, 'stored': True, 'value_bytes': 5}
    assert b.put('text:json', b'9', '--json', '--if-absent').json() == {
        **key, 'stored': False, 'value_bytes': 1}
    assert b.get('text:json', '--json').json() == {**key, 'found': True, 'value_bytes': 5}
    assert b.get('text:json', b.path('j'), '--json').json()['found'] is True
    assert open(b.path('j'), 'rb').read() == b'12345'
    assert b.run('exists', b.target, 'text:json', '--json').json() == {
        **key, 'found': True, 'value_bytes': 5}
    assert b.run('rm', '--json', b.target, 'text:json').json() == {
        **key, 'found': True, 'value_bytes': 5}
    for words in (('get',), ('exists',), ('rm',)):
        answer = b.run(*words, b.target, 'text:json', '--json')
        assert answer.code == 1
        assert answer.json() == {**key, 'found': False, 'value_bytes': 0}


@case('ls --json is an array of key and value_bytes, in order, from a key on')
def run(b):
    for n in range(0, 300, 100):
        says(b.put(f'ff{n:04x}', b'v' * (n % 7)), 0)
    keys = [f'ff{n:04x}' for n in range(0, 300, 100)]
    rows = [r for r in b.run('ls', b.target, '--json').json() if r['key'].startswith('ff')]
    assert [r['key'] for r in rows] == keys
    assert [r['value_bytes'] for r in rows] == [int(k[2:], 16) % 7 for k in keys]
    rows = b.run('ls', b.target, '--json', '--from', 'ff0001').json()
    assert [r['key'] for r in rows] == keys[1:]
    assert b.run('ls', b.target, '--json', '--from', 'ff' * 16).json() == []


@case('ls prints a line a key')
def run(b):
    says(b.put('text:line', b'abc'), 0)
    lines = b.run('ls', b.target).out.decode().splitlines()
    line = next(l for l in lines if l.startswith(b'line'.hex()))
    assert line.split() == [b'line'.hex(), '3', 'bytes', 'text:line'], line


@case('ls goes on over many pages')
def run(b):
    array = Array(b.kvof)
    try:
        target = f'tcp://127.0.0.1:{array.port}'
        says(b.run('bench', 'fabric', target, '--op', 'exist', '--value-bytes', '100', '--keys',
                   '9000', '--depth', '64', '--seconds', '0.1', '--keep'), 0)
        keys = [r['key'] for r in b.run('ls', target, '--json').json()]
        assert keys == sorted(keys) and len(set(keys)) == len(keys) == 9000, len(keys)
        assert b.run('stat', target, '--json').json()['keys'] == 9000
    finally:
        array.stop()


@case('stat --json has the fields that scripts rely on')
def run(b):
    before = b.run('stat', b.target, '--json').json()
    for field in ('keys', 'used_bytes', 'capacity_bytes', 'evicted_keys', 'device_read_bytes',
                  'device_write_bytes'):
        assert isinstance(before[field], int), field
    says(b.put('text:stat', bytes(1 << 20)), 0)
    after = b.run('stat', b.target, '--json').json()
    assert after['keys'] == before['keys'] + 1
    assert after['used_bytes'] >= before['used_bytes'] + (1 << 20)
    assert after['device_write_bytes'] >= before['device_write_bytes'] + (1 << 20)
    assert 0 < after['used_bytes'] <= after['capacity_bytes']
    says(b.run('stat', b.target), 0)


@case('discover takes an address, not a subsystem or namespace of it')
def discover_address(b):
    for more in ('/nqn.2026-11.io.kvof:array', '?nsid=1'):
        says(b.run('discover', b.target.split('/nqn')[0] + more), 2, 'tcp://ADDR:PORT')


@case('discover lists the subsystem, and each line is a target')
def run(b):
    lines = b.run('discover', b.target).out.decode().split()
    assert lines == [f'{b.target}/{b.array.nqn}'], lines
    says(b.put('text:there', b'x'), 0)
    says(b.run('exists', lines[0], 'text:there'), 0)
    says(b.run('exists', lines[0] + '?nsid=1', 'text:there'), 0)
    row = b.run('discover', b.target, '--json').json()[0]
    assert row['subnqn'] == b.array.nqn and row['trsvcid'] == str(b.array.port)


@case('bench fabric --json has the fields that scripts rely on, and cleans up')
def run(b):
    for op, bytes_ in (('store', 65536), ('retrieve', 65536), ('exist', 1000)):
        answer = b.run('bench', 'fabric', b.target, '--op', op, '--value-bytes', bytes_, '--depth', 8,
                       '--queues', 2, '--keys', 32, '--seconds', '0.3', '--json')
        says(answer, 0)
        row = answer.json()
        assert (row['op'], row['value_bytes'], row['depth'], row['queues']) == (op, bytes_, 8, 2)
        for field in ('seconds', 'ops_per_s', 'p50_us', 'p99_us', 'cpu_s'):
            assert row[field] > 0, (field, row)
        assert row['p50_us'] <= row['p99_us']
        assert row['bytes_per_s'] > 0 or op == 'exist'
    assert not [r for r in b.run('ls', b.target, '--json').json()
                if r['key'].startswith(b'kvbn'.hex())]


@case('bench fabric with more values than the namespace keeps says so and what to lower')
def run(b):
    small = Array(b.kvof, drives=('mem,size=64MiB',))
    target = f'tcp://127.0.0.1:{small.port}'
    for more in ((), ('--keys', '200', '--value-bytes', '512KiB')):
        for op in ('retrieve', 'exist'):
            says(b.run('bench', 'fabric', target, '--op', op, '--seconds', '0.3', *more), 3, '--keys',
                 '--value-bytes', 'keeps')
    says(b.run('bench', 'fabric', target, '--keys', '8', '--seconds', '0.2'), 0)
    small.stop()


@case('config --effective --json is JSON')
def run(b):
    answer = b.run('config', '--effective', '--json')
    says(answer, 0)
    json.loads(answer.out)


# --- what is wrong -------------------------------------------------------------------------------

@case('a wrong key is 2 and says why')
def run(b):
    for key, words in (('abc', 'hex digits'), ('', 'hex digits'), ('xyz', 'not hex'),
                       ('00' * 17, 'hex digits'), ('text:', '1 to 16'), ('text:' + 'a' * 17, '1 to 16'),
                       ('0g', 'not hex')):
        for command in ('get', 'put', 'exists', 'rm'):
            says(b.run(command, b.target, key), 2, words)
    says(b.run('ls', b.target, '--from', 'x'), 2)


@case('a wrong target is 2 and shows the form of one')
def run(b):
    for target in ('', 'tcp://', 'http://127.0.0.1:4420', '127.0.0.1:4420', 'tcp://127.0.0.1',
                   'tcp://127.0.0.1:0', 'tcp://127.0.0.1:99999', 'tcp://[::1', 'tcp://nohost:1',
                   b.target + '/noname', b.target + '?nsid=0', b.target + '?x=1'):
        says(b.run('get', target, 'text:a'), 2, 'tcp://ADDR:PORT')
        says(b.run('discover', target), 2, 'tcp://ADDR:PORT')


@case('an unreachable target is 3 and named')
def run(b):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        target = f'tcp://127.0.0.1:{s.getsockname()[1]}'
        for words in (('get', target, 'text:a'), ('put', target, 'text:a'), ('ls', target),
                      ('stat', target), ('discover', target), ('bench', 'fabric', target)):
            says(b.run(*words), 3, target)


@case('a subsystem that is not there is 3, a namespace that is not there too')
def run(b):
    says(b.run('get', b.target + '/nqn.2026-11.io.kvof:other', 'text:a'), 3, 'Connect')
    says(b.run('get', b.target + '?nsid=9', 'text:a'), 3)


@case('an unknown option is 2 and names the nearest')
def run(b):
    says(b.put('text:a', b'', '--if-absnt'), 2, '--if-absent')
    says(b.get('text:a', '--tiemout', '3s'), 2, '--timeout')
    says(b.get('text:a', '-j'), 2, '-j')
    says(b.get('text:a', '--json=yes'), 2, 'takes no value')
    says(b.get('text:a', '--timeout'), 2, 'needs a value')
    says(b.get('text:a', '--timeout', '5'), 2, 'unit')
    says(b.get('text:a', '--host-nqn', 'me'), 2, 'NQN')
    says(b.put('text:a', b'', '--if-absent', '--if-present'), 2, 'exclude')
    says(b.run('bench', 'fabric', b.target, '--op', 'erase'), 2, 'retrieve')
    says(b.run('bench', 'fabric', b.target, '--keys', '0'), 2, '--keys')
    says(b.run('bench', 'fabric', b.target, '--value-bytes', '1 MiP'), 2, '--value-bytes')
    says(b.run('bench', 'everything'), 2, 'fabric')


@case('an unknown command is 2 and names the nearest; too few or many words are 2')
def run(b):
    says(b.run('gte', b.target, 'text:a'), 2, 'did you mean get?')
    says(b.run('wibble'), 2, '--help')
    says(b.run('get', b.target), 2, 'TARGET KEY')
    says(b.run('get', b.target, 'text:a', 'x', 'y'), 2, 'too many')
    says(b.run('ls'), 2, 'TARGET')
    assert b.run().code == 2


@case('help and version go to standard output with 0')
def run(b):
    for words in (('--help',), ('help',), ('help', 'put'), ('put', '--help'), ('get', '-h'), ('serve', '-h'),
                  ('exists', '--help'), ('rm', '--help'), ('ls', '--help'), ('stat', '--help'),
                  ('discover', '--help'), ('bench', '--help'), ('bench', 'fabric', '--help'),
                  ('serve', '--help'), ('config', '--help'), ('--version',)):
        answer = b.run(*words)
        says(answer, 0)
        assert answer.out and not answer.raw, words
    assert b'kvof ' in b.run('--version').out
    assert b.run('bench', 'store', '--help').code == 0


@case('a host that is not on the list is refused with 3')
def run(b):
    array = Array(b.kvof, '--allow-host', 'nqn.2026-11.io.kvof:good')
    try:
        target = f'tcp://127.0.0.1:{array.port}/{array.nqn}'
        says(b.run('exists', target, 'text:a'), 3, 'not allowed')
        says(b.run('stat', f'tcp://127.0.0.1:{array.port}', '--host-nqn', 'nqn.2026-11.io.kvof:bad'),
             3, 'It is nqn.2026-11.io.kvof:bad')
        says(b.run('rm', target, 'text:a', '--host-nqn', 'nqn.2026-11.io.kvof:good'), 1)
    finally:
        array.stop()


@case('an IPv6 address in brackets works everywhere')
def run(b):
    if not socket.has_ipv6 or not os.path.exists('/proc/net/if_inet6'):
        return
    serve = subprocess.Popen([b.kvof, 'serve', '--listen', 'tcp://[::1]:0', '--drive',
                              'mem,size=64MiB'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        target = serve.stdout.readline().split()[1].decode()
        assert target.startswith('tcp://[::1]:'), target
        says(b.run('put', target, 'text:six', stdin=b'6'), 0)
        assert b.run('get', target, 'text:six').out == b'6'
        assert b.run('discover', target).out.decode().startswith(target)
    finally:
        serve.terminate()
        serve.wait()


@case('a value damaged on the drive is 3, and nothing of it is written')
def run(b):
    drive = b.path('drive')
    array = Array(b.kvof, drives=[f'{drive},size=64MiB'])
    for key in (b'1', b'2', b'3'):
        says(b.run('put', f'tcp://127.0.0.1:{array.port}', 'text:' + key.decode(),
                   stdin=(b'damage test ' + key) * 4096), 0)
    array.stop()
    with open(drive, 'r+b') as f:
        data = f.read()
        for key in (b'1', b'2'):
            at = data.find((b'damage test ' + key) * 8)
            assert at > 0
            f.seek(at + 30000)
            f.write(bytes([data[at + 30000] ^ 1]))
    array = Array(b.kvof, drives=[drive])
    try:
        target = f'tcp://127.0.0.1:{array.port}'
        got = b.run('get', target, 'text:1')
        says(got, 3, 'damaged')
        assert got.out == b''
        says(b.run('get', target, 'text:2', b.path('hurt')), 3, 'damaged')
        assert not glob.glob(b.path('hurt') + '*')
        assert b.run('get', target, 'text:3').out == b'damage test 3' * 4096
    finally:
        array.stop()


def main():
    bench = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(bench))
    finally:
        bench.end()


if __name__ == '__main__':
    sys.exit(main())
