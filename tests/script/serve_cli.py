#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvof serve` and `kvof config` as a person meets them: wrong options and drives, start and stop.

usage: serve_cli.py KVOF [WORDS]     runs the cases whose name contains WORDS

A refusal is one line on standard error that names the object, has the exit code of the contract,
and leaves no file and no byte changed.
"""
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cases import case, run_all
from nvmetcp import DISCOVERY, Array, Host, kv, l1, l2, sgl, status_ok

KVOF = sys.argv[1]


def kvof(*args, timeout=10):
    return subprocess.run([KVOF, *args], capture_output=True, text=True, timeout=timeout)


def refused(code, *args, words=(), folder=None):
    """Runs `kvof serve` with args, wants one line and an untouched folder."""
    before = snapshot(folder) if folder else None
    got = kvof('serve', *args)
    lines = got.stderr.strip().splitlines()
    assert got.returncode == code, f'exit code {got.returncode}, wanted {code}: {got.stderr}'
    assert len(lines) == 1 and lines[0].startswith('kvof serve: '), got.stderr
    assert got.stdout == '', got.stdout
    for word in words:
        assert word in lines[0], f'{word!r} is not in {lines[0]!r}'
    if folder:
        assert snapshot(folder) == before, 'the folder has changed'


def snapshot(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, 'rb') as f:
                out[name] = (os.path.getsize(path), f.read(1 << 20))
        else:
            out[name] = 'folder'
    return out


MEM = ('--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB')


@case('an unknown option names the nearest one')
def unknown_option(d):
    refused(2, *MEM, '--alow-host', 'x', words=['--alow-host', '--allow-host'])
    refused(2, *MEM, '--wrong-entirely', words=['--wrong-entirely'])
    refused(2, *MEM, 'stray', words=['stray'])
    refused(2, *MEM, '--kv', words=['--kv', 'value'])


@case('a size without a unit is refused')
def size_unit(d):
    refused(2, *MEM, '--kv', '1000000', words=['--kv', 'unit'])
    refused(2, '--drive', 'mem,size=64', words=['--drive', 'unit'])
    refused(2, *MEM, '--value-bytes-max', '1TiB', words=['range'])
    refused(2, *MEM, '--kv', '99999999999999999999GiB', words=['--kv'])
    refused(2, *MEM, '--kv', '65MiB', words=['--kv', str(65 << 20), 'free'])
    array = Array(KVOF, '--kv', '64MiB', drives=['mem,size=64MiB'])
    assert array.stop()[0] == 0


@case('a drive with two sizes is refused')
def two_sizes(d):
    path = os.path.join(d, 'two')
    for first in (path, 'mem'):
        refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', first + ',size=64MiB,size=65MiB',
                words=['--drive', 'twice'], folder=d)


@case('no drive at all is refused')
def no_drive(d):
    refused(2, '--listen', 'tcp://127.0.0.1:0', words=['--drive'])


@case('a drive that is a folder is refused')
def drive_folder(d):
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', d + ',size=64MiB', words=[d], folder=d)
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', d, words=[d, 'a directory'], folder=d)


@case('a drive that is a pipe, an empty file or a device of characters says which')
def drive_odd(d):
    pipe, empty = os.path.join(d, 'pipe'), os.path.join(d, 'empty')
    os.mkfifo(pipe)
    open(empty, 'w').close()
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', pipe, words=[pipe, 'not a file'])
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', '/dev/zero', words=['not a file'])
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', empty, words=[empty, 'smaller', 'size='])


@case('what a drive that exists can not follow is refused, not ignored')
def drive_ineffective(d):
    path = os.path.join(d, 'made')
    array = Array(KVOF, '--segment-bytes', '10MiB', drives=[path + ',size=64MiB'])
    with Host(array.port) as h:
        status_ok(h.io.store(b'kept', b'value'))
    assert array.stop()[0] == 0
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', path + ',size=65MiB', folder=d,
            words=[path, 'size='])
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', path, '--segment-bytes', '12MiB',
            words=['segments', '10485760'])
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', os.path.join(d, 'no', 'drive,size=64MiB'),
            folder=d, words=['folder does not exist'])
    array = Array(KVOF, '--segment-bytes', '10MiB', drives=[path + ',size=64MiB'])
    with Host(array.port) as h:
        assert h.io.retrieve(b'kept', 5)[1] == b'value'
    assert array.stop()[0] == 0


@case('more memory than the machine has is refused, not promised')
def memory(d):
    has = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    path = os.path.join(d, 'new')
    refused(3, '--listen', 'tcp://127.0.0.1:0', '--drive', f'mem,size={(has >> 20) + 64}MiB',
            words=['memory', str(has >> 20)])
    if has < 48 << 31:
        refused(3, '--listen', 'tcp://127.0.0.1:0', '--drive', path + ',size=64MiB', '--index-keys',
                str(1 << 31), words=['index', str(1 << 31)], folder=d)
    refused(2, *MEM, '--index-keys', str((1 << 31) + 1), words=['range'])


@case('a drive that is too small is refused and not made')
def drive_small(d):
    path = os.path.join(d, 'small')
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', path + ',size=256KiB', words=[path],
            folder=d)


@case('a missing drive without size= is refused and not made')
def drive_missing(d):
    path = os.path.join(d, 'none')
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', path, words=[path, 'size='], folder=d)
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', os.path.join(d, 'no', 'such') +
            ',size=64MiB', words=[os.path.join(d, 'no', 'such')], folder=d)


@case('a drive with something else on it is refused, and taken with --format')
def drive_foreign(d):
    path = os.path.join(d, 'foreign')
    with open(path, 'wb') as f:
        f.write(b'\x7fELF precious data' * 1000)
        f.truncate(64 << 20)
    refused(4, '--listen', 'tcp://127.0.0.1:0', '--drive', path, words=[path, '--format'], folder=d)
    array = Array(KVOF, '--format', drives=[path])
    assert array.stop()[0] == 0


@case('a drive in use by another array is refused')
def drive_busy(d):
    path = os.path.join(d, 'busy')
    array = Array(KVOF, drives=[path + ',size=64MiB'])
    try:
        refused(3, '--listen', 'tcp://127.0.0.1:0', '--drive', path, words=[path])
    finally:
        assert array.stop()[0] == 0


@case('a set with a drive missing is refused without --degraded')
def drive_gone(d):
    paths = [os.path.join(d, f'set{i}') for i in range(3)]
    array = Array(KVOF, drives=[p + ',size=64MiB' for p in paths])
    with Host(array.port) as h:
        for i in range(64):
            status_ok(h.io.store(b'set%d' % i, bytes([i]) * 5000))
    assert array.stop()[0] == 0
    os.rename(paths[1], os.path.join(d, 'elsewhere'))
    args = [x for p in paths for x in ('--drive', p)]
    refused(2, '--listen', 'tcp://127.0.0.1:0', *args, words=[paths[1], '--degraded'], folder=d)
    array = Array(KVOF, '--degraded', drives=paths)
    with Host(array.port) as h:
        answers = [h.io.exist(b'set%d' % i).status for i in range(64)]
        there = answers.count((0, 0))
        assert 16 < there < 64, there
        assert answers.count((0, 0x87)) == 64 - there
    assert array.stop()[0] == 0


@case('the start line counts the keys of all shards')
def start_line_keys(d):
    path, log = os.path.join(d, 'made'), os.path.join(d, 'log')
    array = Array(KVOF, '--loops', '2', '--shards', '2', drives=[path + ',size=128MiB'])
    with Host(array.port) as h:
        for i in range(20):
            status_ok(h.io.store(b'key%d' % i, b'value'))
    assert array.stop()[0] == 0
    array = Array(KVOF, '--loops', '2', drives=[path], log=log)
    assert array.stop()[0] == 0
    with open(log, encoding='utf-8') as f:
        assert '20 keys on 1 drives' in f.read()


@case('a blank drive takes the place of a lost one with --replace, also under several namespaces')
def drive_replaced(d):
    paths = [os.path.join(d, n) for n in ('one', 'two', 'new')]
    control = os.path.join(d, 'control')
    array = Array(KVOF, '--kv', '96MiB', '--block', '32MiB', '--control', control,
                  drives=[p + ',size=128MiB' for p in paths[:2]])
    got = kvof('ns', 'create', '--size', '96MiB', '--control', control, timeout=30)
    assert got.returncode == 0, got
    with Host(array.port) as h:
        for nsid in (1, 3):
            for i in range(20):
                status_ok(h.io.command(kv(1, i, b'r%d' % i, 5000, nsid=nsid, dptr=sgl(1, 5000)),
                                       bytes([i + nsid]) * 5000)[0])
    assert array.stop()[0] == 0
    os.unlink(paths[0])
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', paths[1], words=['2 drives'])
    array = Array(KVOF, '--replace', drives=[paths[2] + ',size=128MiB', paths[1]])
    for _ in range(2):
        with Host(array.port) as h:
            there = 0
            for nsid in (1, 3):
                for i in range(20):
                    answer, data = h.io.command(kv(2, i, b'r%d' % i, 5000, nsid=nsid, dptr=sgl(0x5A, 5000)))
                    assert answer.status in ((0, 0), (0, 0x87)), answer
                    if answer.status == (0, 0):
                        there += 1
                        assert data == bytes([i + nsid]) * 5000
                    status_ok(h.io.command(kv(1, i, b'n%d' % i, 5000, nsid=nsid, dptr=sgl(1, 5000)),
                                           bytes(5000))[0])
            assert 0 < there < 40, f'{there} of 40: one drive of two was lost'
        assert array.stop()[0] == 0
        array = Array(KVOF, drives=paths[1:])
    assert array.stop()[0] == 0


@case('the same drive twice is refused')
def drive_twice(d):
    path = os.path.join(d, 'twice')
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', path + ',size=64MiB', '--drive', path,
            words=[path, 'twice'], folder=d)


@case('when a later drive is refused the files made before it are gone again')
def drive_undo(d):
    path, there = os.path.join(d, 'first'), os.path.join(d, 'there')
    with open(there, 'wb') as f:
        f.truncate(64 << 20)                   # blank, and not ours to remove
    free = os.statvfs(d).f_bfree * os.statvfs(d).f_frsize
    for second, words in ((os.path.join(d, '.', 'first') + ',size=64MiB', ['in use']),
                          (os.path.join(d, 'big') + f',size={(free >> 20) + 4096}MiB', ['big', 'space']),
                          (d, ['a directory'])):
        refused(3 if words != ['a directory'] else 2, '--listen', 'tcp://127.0.0.1:0', '--drive', there,
                '--drive', path + ',size=64MiB', '--drive', second, words=words, folder=d)


@case('a drive put back from an older copy is not believed')
def drive_old_copy(d):
    paths = [os.path.join(d, name) for name in 'ab']
    array = Array(KVOF, drives=[p + ',size=64MiB' for p in paths])
    with Host(array.port) as h:
        for i in range(60):
            status_ok(h.io.store(b'copy%d' % i, b'old %d' % i * 1000))
    assert array.stop()[0] == 0
    shutil.copyfile(paths[1], paths[1] + '.old')
    array = Array(KVOF, drives=paths)
    with Host(array.port) as h:
        for i in range(0, 40, 2):
            status_ok(h.io.delete(b'copy%d' % i))
            status_ok(h.io.store(b'copy%d' % (i + 1), b'new %d' % (i + 1) * 1000))
    assert array.stop()[0] == 0
    os.replace(paths[1] + '.old', paths[1])
    for _ in range(2):
        array = Array(KVOF, drives=paths)
        there = 0
        with Host(array.port) as h:
            for i in range(60):
                answer, data = h.io.retrieve(b'copy%d' % i, 10000)
                if answer.status == (0, 0x87):
                    continue
                status_ok(answer)
                there += 1
                assert i >= 40 or i % 2 == 1, f'key {i} was deleted'
                want = b'old %d' if i >= 40 else b'new %d'
                assert data == want % i * 1000, f'key {i} has an old value'
        assert 5 < there < 40, there           # those of the other drive
        assert array.stop()[0] == 0


@case('a port in use is refused before a drive is made')
def port_busy(d):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(1)
        port = s.getsockname()[1]
        refused(3, '--listen', f'tcp://127.0.0.1:{port}', '--drive',
                os.path.join(d, 'new') + ',size=64MiB', words=[str(port), 'in use'], folder=d)


@case('a wrong address is refused')
def address(d):
    for text in ('127.0.0.1:4420', 'tcp://127.0.0.1', 'tcp://127.0.0.1:99999', 'tcp://:4420',
                 'rdma://127.0.0.1:4420', 'tcp://localhost:4420', 'tcp://::1:4420'):
        refused(2, '--listen', text, '--drive', 'mem,size=64MiB', words=['--listen', text])
    refused(2, '--listen', 'tcp://192.0.2.7:4420', '--drive', 'mem,size=64MiB', '--allow-host',
            'nqn.2026-11.io.kvof:h', words=['192.0.2.7'])


@case('an address given twice is refused before a drive is made')
def address_twice(d):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        at = f'tcp://127.0.0.1:{s.getsockname()[1]}'
    refused(2, '--listen', at, '--listen', at, '--drive', os.path.join(d, 'new') + ',size=64MiB',
            words=[at, 'twice'], folder=d)


@case('an address beyond loopback needs --allow-host')
def beyond_loopback(d):
    refused(2, '--listen', 'tcp://0.0.0.0:0', '--drive', 'mem,size=64MiB', words=['--allow-host'])
    refused(2, '--listen', 'tcp://[::]:0', '--drive', 'mem,size=64MiB', words=['--allow-host'])


@case('an NQN that is none is refused')
def nqn(d):
    for name in ('', 'kvof', 'nqn.', 'nqn.2026.io.kvof', 'nqn.2026-11.io.kvof:' + 'x' * 220,
                 'nqn.2026-11.io.kvof:a\nb'):
        refused(2, *MEM, '--subsystem', name, words=['--subsystem'])
        refused(2, *MEM, '--allow-host', name, words=['--allow-host'])


@case('the name of Discovery is refused before a drive is made')
def discovery_name(d):
    refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', os.path.join(d, 'new') + ',size=64MiB',
            '--subsystem', DISCOVERY, words=['--subsystem', DISCOVERY], folder=d)


@case('what can not be had at all is refused with the option named')
def not_to_be_had(d):
    refused(2, *MEM, '--block', '1GiB', words=['--block', 'free'])
    refused(2, *MEM, '--block', '1000B', words=['--block', '4KiB'])
    refused(2, *MEM, '--block-bytes', '1024', words=['--block-bytes', '512|4096'])
    refused(2, *MEM, '--metrics', 'localhost:9000', words=['--metrics', 'numeric'])
    refused(2, *MEM, '--metrics', '192.0.2.1:9000', words=['--metrics', 'no such address'])
    refused(2, *MEM, '--control', 'x' * 108, words=['--control', '107'])
    refused(2, *MEM, '--control', os.path.join(d, 'no', 'where', 'x'), words=['--control', 'no/where'])
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        refused(3, *MEM, '--metrics', str(s.getsockname()[1]), words=['--metrics', 'in use'])


@case('flags that the catalog contradicts are refused with the difference named')
def catalog(d):
    path = os.path.join(d, 'drive')
    drive = ('--listen', 'tcp://127.0.0.1:0', '--drive', path)
    array = Array(KVOF, '--block', '32MiB', '--kv', '64MiB', '--on-full', 'refuse',
                  drives=[path + ',size=256MiB'])
    assert array.stop()[0] == 0
    refused(4, *drive, '--kv', '128MiB', words=['--kv', 'namespace 1', str(64 << 20)])
    refused(4, *drive, '--kv', '0', words=['--kv', 'namespace 1', 'kvof ns rm'])
    refused(4, *drive, '--block', '64MiB', words=['--block', 'namespace 2', str(32 << 20)])
    refused(4, *drive, '--block-bytes', '512', words=['--block-bytes', '4096'])
    refused(4, *drive, '--on-full', 'evict', words=['--on-full', 'refuse'])
    refused(4, *drive, '--value-bytes-max', '1MiB', words=['--value-bytes-max', str(8 << 20)])
    refused(4, *drive, '--subsystem', 'nqn.2026-11.io.kvof:x', words=['--subsystem', 'kvof:array'])
    refused(4, *drive, '--shards', '9', words=['--shards 9'])
    for same in ((), ('--block', '32MiB', '--kv', '64MiB', '--on-full', 'refuse'), ('--kv', '48MiB')):
        array = Array(KVOF, *same, drives=[path])
        assert array.stop()[0] == 0, same
    only = os.path.join(d, 'only')
    array = Array(KVOF, '--block', '32MiB', '--kv', '0', drives=[only + ',size=128MiB'])
    with Host(array.port) as h:
        assert h.admin.identify(2)[1][:8] == b'\1\0\0\0\0\0\0\0'
        assert h.admin.identify(7, 0, 0)[1][:4] == b'\1\0\0\0', 'namespace 1 is one of blocks'
    assert array.stop()[0] == 0
    refused(4, '--listen', 'tcp://127.0.0.1:0', '--drive', only, '--kv', '16MiB', words=['--kv', 'ns create'])


@case('a config file with an unknown key names the line and the nearest key')
def file_key(d):
    path = os.path.join(d, 'a.conf')
    with open(path, 'w') as f:
        f.write('[array]\nlisten = tcp://127.0.0.1:0\ndirve = mem,size=64MiB\n')
    refused(2, '--config', path, words=[path + ':3', 'dirve', 'drive'])
    with open(path, 'w') as f:
        f.write('[store]\nlisten = tcp://127.0.0.1:0\n')
    refused(2, '--config', path, words=[path + ':2', '[array]'])
    with open(path, 'w') as f:
        f.write('[array]\nformat = yes\n')
    refused(2, '--config', path, words=['format', 'flag'])
    with open(path, 'w') as f:
        f.write('[array]\nthis is no pair\n')
    refused(2, '--config', path, words=[path + ':2'])
    with open(path, 'w') as f:
        f.write('[array]\ndrive = ' + 'x' * 500 + '\n')
    refused(2, '--config', path, words=[path + ':2', 'long'])
    refused(2, '--config', os.path.join(d, 'nowhere'), words=['nowhere'])
    got = subprocess.run([KVOF, 'serve', '--config', '/dev/stdin'], input='[array]\nkv = 1GiB\n',
                         capture_output=True, text=True, timeout=10)
    assert got.returncode == 2 and 'pipe' in got.stderr, got
    refused(2, '--config', d, words=[d])
    pipe = os.path.join(d, 'pipe')
    os.mkfifo(pipe)                                            # nobody writes to it, ever
    refused(2, '--config', pipe, words=[pipe, 'pipe'])


@case('a flag beats the file, the file beats the default, and config says so')
def effective(d):
    path = os.path.join(d, 'b.conf')
    with open(path, 'w') as f:
        f.write('[array]\nlisten = tcp://127.0.0.1:0\ndrive = mem,size=64MiB\n'
                '[store]\nvalue-bytes-max = 1 MiB\nack = durable\n')
    got = kvof('config', '--effective', '--json', '--config', path, '--value-bytes-max', '2MiB')
    assert got.returncode == 0, got.stderr
    rows = {r['name']: r for r in json.loads(got.stdout)}
    assert rows['value-bytes-max']['values'] == ['2MiB']
    assert rows['value-bytes-max']['origin'] == 'flag'
    assert rows['ack']['values'] == ['durable'] and rows['ack']['origin'] == path
    assert rows['on-full']['origin'] == 'default'
    assert rows['drive']['values'] == ['mem,size=64MiB']
    text = kvof('config', '--effective', '--config', path)
    assert text.returncode == 0
    again = os.path.join(d, 'c.conf')
    with open(again, 'w') as f:                # what it prints is a file it reads
        f.write(text.stdout)
    second = kvof('config', '--effective', '--json', '--config', again)
    assert second.returncode == 0, second.stderr
    first = json.loads(kvof('config', '--effective', '--json', '--config', path).stdout)
    values = [(r['name'], r['values']) for r in first]
    assert values == [(r['name'], r['values']) for r in json.loads(second.stdout)]


@case('the ready line, as text and as JSON, and the options of a file')
def ready(d):
    path = os.path.join(d, 'd.conf')
    with open(path, 'w') as f:
        f.write('[array]\nlisten = tcp://127.0.0.1:0\nlisten = tcp://127.0.0.1:0\n'
                'drive = mem,size=64MiB\nsubsystem = nqn.2026-11.io.kvof:two\n')
    proc = subprocess.Popen([KVOF, 'serve', '--config', path, '--json'], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    row = json.loads(proc.stdout.readline())
    assert row['subsystem'] == 'nqn.2026-11.io.kvof:two' and row['pid'] == proc.pid
    assert len(row['ready']) == 2 and row['memory'] is True
    ports = [int(x.rsplit(':', 1)[1]) for x in row['ready']]
    for port in ports:
        with Host(port, subnqn='nqn.2026-11.io.kvof:two') as h:
            status_ok(h.io.store(b'port', str(port).encode()))
    proc.send_signal(signal.SIGINT)
    assert proc.wait(6) == 0
    assert 'memory:' in proc.stderr.read()


@case('--loop-kind plain serves without io_uring, and the ready line says so')
def loop_kind(d):
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', f'{d}/d0,size=64MiB',
                             '--loop-kind', 'plain', '--json'], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    row = json.loads(proc.stdout.readline())
    assert row['loop'] == 'plain', row
    with Host(int(row['ready'][0].rsplit(':', 1)[1]), subnqn=row['subsystem']) as h:
        status_ok(h.io.store(b'kind', b'plain'))
    proc.send_signal(signal.SIGTERM)
    assert proc.wait(6) == 0


@case('the log as JSON is one object a line: start, connect, refusal, disconnect, stop')
def log_json(d):
    host = 'nqn.2026-11.io.kvof:friend'
    path = os.path.join(d, 'log')
    array = Array(KVOF, '--log', 'info', '--log-format', 'json', '--allow-host', host,
                  drives=['mem,size=64MiB'], log=path)
    with Host(array.port, hostnqn=host) as h:
        status_ok(h.io.store(b'log', b'x'))
    with l1(array.port) as c:
        assert c.connect().status == (1, 0x84)
    assert array.stop()[0] == 0
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    events = {r['event']: r for r in rows if 'event' in r}
    assert set(events) >= {'connect', 'disconnect', 'host_refused', 'stopping'}, events
    assert events['connect']['host'] == host and events['connect']['peer'].startswith('127.0.0.1:')
    assert events['host_refused']['level'] == 'warn'
    assert all({'time', 'level'} < set(r) for r in rows)


@case('an IPv6 address is listened at')
def ipv6(d):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(('::1', 0))
    except OSError:
        return 'this machine has no IPv6 loopback'
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://[::1]:0', '--drive',
                             'mem,size=64MiB'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)
    assert proc.stdout.readline().startswith('ready tcp://[::1]:')
    proc.send_signal(signal.SIGTERM)
    assert proc.wait(6) == 0


@case('listening everywhere, Discovery names an address that can be used')
def everywhere(d):
    host = 'nqn.2026-11.io.kvof:host'
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://0.0.0.0:0', '--allow-host', host,
                             '--drive', 'mem,size=64MiB'], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    port = int(proc.stdout.readline().split()[1].rsplit(':', 1)[1])
    try:
        with l2(port, subnqn=DISCOVERY, hostnqn=host) as c:
            entry = c.log(0x70, 1024, 1024)[1]
            at = entry[512:768].rstrip(b'\0 ').decode()
            if at == '0.0.0.0':
                return 'this machine has loopback alone'
            with socket.create_connection((at, port), timeout=2):
                pass
        with Host(port, hostnqn=host) as h:
            status_ok(h.io.store(b'any', b'x'))
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0


@case('K28 values are there again after SIGTERM and after SIGKILL')
def restart(d):
    paths = [os.path.join(d, f'r{i}') for i in range(2)]
    drives = [p + ',size=64MiB' for p in paths]
    for how in (signal.SIGTERM, signal.SIGKILL):
        array = Array(KVOF, drives=drives)
        with Host(array.port) as h:
            for size in (0, 1, 4097, 300000):
                status_ok(h.io.store(b'r%d' % size, bytes([size % 251]) * size))
        array.proc.send_signal(how)
        array.proc.wait(6)
        array = Array(KVOF, drives=paths)
        with Host(array.port) as h:
            for size in (0, 1, 4097, 300000):
                if size == 0:
                    status_ok(h.io.exist(b'r0'))
                    continue
                answer, data = h.io.retrieve(b'r%d' % size, size)
                status_ok(answer)
                assert data == bytes([size % 251]) * size
        assert array.stop()[0] == 0


@case('SIGHUP stops an array cleanly, and is ignored under nohup')
def hangup(d):
    for ignored in (False, True):
        proc = subprocess.Popen([KVOF, 'serve', *MEM], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True,
                                preexec_fn=lambda: signal.signal(
                                    signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL))
        target = proc.stdout.readline().split()[1]
        proc.send_signal(signal.SIGHUP)
        if ignored:
            assert kvof('stat', target).returncode == 0
            proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0


@case('with its last drive lost an array can still be asked what has failed')
def last_drive(d):
    path = os.path.join(d, 'lost')
    array = Array(KVOF, drives=[path + ',size=64MiB'])
    target = f'tcp://127.0.0.1:{array.port}'
    with Host(array.port) as h:
        for i in range(20):
            status_ok(h.io.store(b'lost%d' % i, bytes([i]) * 100000))
        os.truncate(path, 0)
        for i in range(20):
            assert h.io.retrieve(b'lost%d' % i, 100000)[0].status in ((0, 0x88), (0, 0x87), (0, 6)), i
    until = time.monotonic() + 5
    while True:
        got = kvof('stat', target, '--json')
        assert got.returncode == 0, got.stderr
        if json.loads(got.stdout)['drives_failed'] == 1:
            break
        assert time.monotonic() < until
    assert kvof('exists', target, 'text:lost1').returncode == 1
    got = kvof('put', target, 'text:new', __file__)
    assert got.returncode == 3 and len(got.stderr.strip().splitlines()) == 1, got
    assert array.stop()[0] == 0


@case('a host that stops reading does not stop the others')
def stuck_reader(d):
    array = Array(KVOF, drives=['mem,size=256MiB'])
    value = os.urandom(8 << 20)
    with Host(array.port) as h:
        status_ok(h.io.store(b'large', value))
        status_ok(h.io.store(b'small', b'x' * 1000))
    with Host(array.port) as stuck:
        for _ in range(12):
            stuck.io.send(stuck.io.capsule(kv(2, stuck.io.next_cid(), b'large', len(value),
                                              dptr=sgl(0x5A, len(value)))))
        stuck.io.recv()
        for key, size in ((b'small', 1000), (b'large', len(value))):
            with Host(array.port) as h:        # answered within the 2 s of its timeout
                answer, data = h.io.retrieve(key, size)
                status_ok(answer)
                assert len(data) == size
                status_ok(h.io.store(b'more', value))
    assert array.stop()[0] == 0


def ask_for_much(host, key, size, count):
    for _ in range(count):
        host.io.send(host.io.capsule(kv(2, host.io.next_cid(), key, size, dptr=sgl(0x5A, size))))


@case('three hosts that stop reading cost a quiet one nothing, a crowd a tenth of the stall time')
def stuck_readers(d):
    array = Array(KVOF, drives=[os.path.join(d, 'drive') + ',size=512MiB'])
    value = os.urandom(8 << 20)
    with Host(array.port) as h:
        status_ok(h.io.store(b'large', value))
        status_ok(h.io.store(b'small', b'x' * 1000))
        for count, bound in ((3, 0.5), (12, 1.9)):
            with contextlib.ExitStack() as crowd:
                for _ in range(count):
                    stuck = crowd.enter_context(Host(array.port))
                    ask_for_much(stuck, b'large', len(value), 6)
                    stuck.io.recv()
                for key, size in ((b'small', 1000), (b'large', len(value)), (b'small', 1000)):
                    start = time.monotonic()
                    answer, data = h.io.retrieve(key, size)
                    status_ok(answer)
                    took = time.monotonic() - start
                    assert len(data) == size and took < bound, (count, key, took)
    assert array.stop()[0] == 0


def quiet_times(host, goes_on):
    took = []
    while goes_on() or len(took) < 200:
        start = time.monotonic()
        status_ok(host.io.retrieve(b'small', 1000)[0])
        took.append(time.monotonic() - start)
    return sorted(took)[len(took) * 99 // 100]


@case('a quiet host beside a flood of large values waits less than the flood does')
def flood(d):
    array = Array(KVOF, drives=[os.path.join(d, 'drive') + ',size=512MiB'])
    with Host(array.port) as h:
        status_ok(h.io.store(b'small', b'x' * 1000))
        alone = quiet_times(h, lambda: False)
        bench = subprocess.Popen([KVOF, 'bench', 'fabric', f'tcp://127.0.0.1:{array.port}', '--op', 'retrieve',
                                  '--value-bytes', '1MiB', '--depth', '32', '--queues', '4', '--keys', '64',
                                  '--seconds', '2', '--json'],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        beside = quiet_times(h, lambda: bench.poll() is None)
        out, err = bench.communicate(timeout=30)
        assert bench.returncode == 0, err
        flood_p99 = json.loads(out)['p99_us'] / 1e6
        print(f'# quiet p99 {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside a flood, whose own is '
              f'{flood_p99 * 1e3:.2f} ms')
        assert beside < flood_p99, (alone, beside, flood_p99)      # both scale with the machine
    assert array.stop()[0] == 0


@case('an array outlives whoever reads its lines')
def reader_gone(d):
    proc = subprocess.Popen([KVOF, 'serve', *MEM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    proc.stderr.close()
    target = proc.stdout.readline().split()[1]
    proc.stdout.close()
    try:
        with socket.create_connection(('127.0.0.1', int(target.rsplit(':', 1)[1]))) as s:
            s.sendall(b'rubbish' * 100)
        assert kvof('put', target, 'text:a', __file__).returncode == 0
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0


@case('a closed standard descriptor never becomes a drive')
def closed_descriptors(d):
    path = os.path.join(d, 'never')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    proc = subprocess.Popen(['sh', '-c', 'exec "$@" <&- >&- 2>&-', 'sh', KVOF, 'serve', '--log', 'debug',
                             '--listen', f'tcp://127.0.0.1:{port}', '--drive', path + ',size=64MiB'])
    try:
        until = time.monotonic() + 8
        while kvof('exists', f'tcp://127.0.0.1:{port}', 'text:x').returncode != 1:
            assert time.monotonic() < until and proc.poll() is None, proc.poll()
        for fd in range(3):
            assert os.readlink(f'/proc/{proc.pid}/fd/{fd}') == '/dev/null', fd
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0
    got = subprocess.run(['sh', '-c', 'exec "$@" >&-', 'sh', KVOF, '--help'], capture_output=True)
    assert got.returncode == 3 and b'standard output' in got.stderr, got


@case('--value-bytes-max moves KVVML and MDTS, up to 64 MiB')
def value_limit(d):
    for text, size, mdts in (('512KiB', 512 << 10, 7), ('3MiB', 3 << 20, 10),
                             ('64MiB', 64 << 20, 14)):
        array = Array(KVOF, '--value-bytes-max', text, drives=['mem,size=512MiB'])
        with Host(array.port) as h:
            assert h.admin.identify(1)[1][77] == mdts, text
            assert int.from_bytes(h.admin.identify(5, 1, 1)[1][76:80], 'little') == size
            value = bytes(range(256)) * (size // 256)
            status_ok(h.io.store(b'limit', value))
            assert h.io.retrieve(b'limit', size)[1] == value
            assert h.io.store(b'over', value + b'x').status == (0, 0x85)
        assert array.stop()[0] == 0


@case('K24 --on-full refuse answers 0/81 and keeps what is there; evict makes room')
def full(d):
    for how in ('refuse', 'evict'):
        array = Array(KVOF, '--on-full', how, '--value-bytes-max', '1MiB',
                      drives=['mem,size=64MiB'])
        with Host(array.port) as h:
            answers = [h.io.store(b'full%03d' % i, bytes([i]) * 1000000).status
                       for i in range(100)]
            first = h.io.exist(b'full000').status
            if how == 'refuse':
                assert answers[0] == (0, 0) and answers[-1] == (0, 0x81), answers
                assert set(answers) == {(0, 0), (0, 0x81)} and first == (0, 0)
            else:
                there = [h.io.exist(b'full%03d' % i).status == (0, 0) for i in range(100)]
                assert set(answers) == {(0, 0)} and sum(there[:40]) < 10 and all(there[70:]), there
            last = answers.index((0, 0x81)) - 1 if how == 'refuse' else 99
            assert h.io.retrieve(b'full%03d' % last, 1000000)[1] == bytes([last]) * 1000000
        assert array.stop()[0] == 0


@case('an unreachable array is an error of one line, at once')
def unreachable(d):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        begin = time.monotonic()
        got = kvof('get', f'tcp://127.0.0.1:{s.getsockname()[1]}', 'text:x')
        assert got.returncode == 3 and len(got.stderr.strip().splitlines()) == 1, got
        assert time.monotonic() - begin < 5


@case('fsck reads a stopped array, changes nothing, and finds one damaged byte')
def fsck(d):
    drive, value = os.path.join(d, 'drive'), os.path.join(d, 'value')
    with open(value, 'wb') as f:
        f.write(b'fsck looks at this ' * 1000)
    array = Array(KVOF, drives=[drive + ',size=64MiB'])
    assert kvof('put', f'tcp://127.0.0.1:{array.port}', 'text:a', value).returncode == 0
    busy = kvof('fsck', '--drive', drive)
    assert busy.returncode == 3 and drive in busy.stderr, busy
    assert len(busy.stderr.strip().splitlines()) == 1, busy.stderr
    array.stop()
    with open(drive, 'rb') as f:
        before = f.read()
    good = kvof('fsck', '--json', '--drive', drive)
    said = json.loads(good.stdout)
    assert good.returncode == 0 and good.stderr == '', good
    assert said['values'] == 1 and said['value_bytes'] == 19000, said
    assert said['superblocks_bad'] + said['frames_bad'] + said['records_bad'] == 0, said
    with open(drive, 'rb') as f:
        assert f.read() == before, 'fsck has written'
    with open(drive, 'r+b') as f:
        at = before.find(b'fsck looks at this ') + 5000
        f.seek(at)
        f.write(bytes([before[at] ^ 1]))
    bad = kvof('fsck', '--json', '--drive', drive)
    assert bad.returncode == 3 and json.loads(bad.stdout)['records_bad'] == 1, bad


@case('fsck of a drive that was cut short tells its old size, wherever the cut is')
def fsck_short(d):
    drive, size = os.path.join(d, 'drive'), 64 << 20
    assert Array(KVOF, drives=[f'{drive},size={size}B']).stop()[0] == 0
    for cut in (size - 4096, size - (1 << 20), size // 2, 1 << 20):
        os.truncate(drive, cut)
        got = kvof('fsck', '--drive', drive)
        assert got.returncode == 3 and str(size) in got.stderr, (cut, got)
        refused(2, '--listen', 'tcp://127.0.0.1:0', '--drive', drive, words=[drive, str(size)], folder=d)


@case('fsck refuses what it can not look at')
def fsck_refused(d):
    longest = os.path.join(d, 'y' * (254 - len(d)))            # 255 bytes, the most that is taken
    for args, code, word in ((['--drive', os.path.join(d, 'no')], 3, 'no'),
                             (['--drive', longest], 3, 'y' * 100),
                             (['--drive', os.path.join(d, 'no') + ',size=1MiB'], 3, 'no'),
                             ([], 2, '--drive'), (['--drive'], 2, '--drive'),
                             (['--drive', d], 3, d)):
        got = kvof('fsck', *args)
        assert got.returncode == code and got.stdout == '', (args, got)
        assert len(got.stderr.strip().splitlines()) == 1 and word in got.stderr, (args, got)
    assert os.listdir(d) == []


@case('fsck says of a drive that it may not open that it may not, and quotes no control character')
def fsck_denied(d):
    odd = os.path.join(d, 'a\n\x1b[31m')
    for name in (odd, odd + ',size=1MiB'):
        got = kvof('fsck', '--drive', name)
        assert got.returncode in (2, 3) and got.stderr.count('\n') == 1, got
        assert '\x1b' not in got.stderr and 'a??[31m' in got.stderr, got
    drive = os.path.join(d, 'drive')
    assert Array(KVOF, drives=[drive + ',size=64MiB']).stop()[0] == 0
    if subprocess.run(['mount', '--bind', d, d], capture_output=True).returncode != 0:
        return 'a folder can not be mounted read-only here'
    try:
        assert subprocess.run(['mount', '-o', 'remount,ro,bind', d]).returncode == 0
        got = kvof('fsck', '--drive', drive)
        assert got.returncode == 3 and 'no permission' in got.stderr and drive in got.stderr, got
        assert got.stderr.count('\n') == 1, got
    finally:
        subprocess.run(['umount', d], check=True)


def serve_limited(files, *args):
    """`kvof serve` under `ulimit -n FILES`, its line when ready ('' if it is not)."""
    limit = (resource.RLIMIT_NOFILE, (files, files))
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--metrics',
                             '127.0.0.1:0', '--loops', '2', '--json', *args], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=lambda: resource.setrlimit(*limit))
    return proc, proc.stdout.readline()


@case('with too few open files serve is refused, and with just enough a crowd does not end it')
def few_files(d):
    args = ['--drive', 'mem,size=64MiB', '--control', os.path.join(d, 'control')]
    for files in (16, 32, 64):
        proc, ready = serve_limited(files, *args)
        text = proc.communicate(timeout=10)[1]
        assert (proc.returncode, ready, text.count('\n')) == (3, '', 1), (files, ready, text)
        assert 'ulimit -n' in text, text
    least = int(re.search(r'at least (\d+)', text)[1])
    proc, ready = serve_limited(least, *args)
    said = json.loads(ready)
    target = said['ready'][0]
    ports = [int(target.rsplit(':', 1)[1])] * 60 + [said['metrics_port']] * 60
    crowd = [socket.create_connection(('127.0.0.1', port), 5) for port in ports]
    for s in crowd:
        s.close()
    until = time.monotonic() + 20
    while kvof('put', target, 'text:a', '/dev/null').returncode != 0:
        assert proc.poll() is None and time.monotonic() < until, proc.poll()
    proc.send_signal(signal.SIGTERM)
    code = proc.wait(10)
    assert code == 0, (code, proc.stderr.read())


@case('the least number of files is enough for all who may hold one at once')
def files_of_all(d):
    args = ['--kv', '64MiB', '--control', os.path.join(d, 'control')]
    args += ['--listen', 'tcp://127.0.0.1:0'] * 7
    for i in range(12):
        args += ['--drive', os.path.join(d, f'd{i}') + ',size=128MiB']
    proc, _ = serve_limited(32, *args)
    least = int(re.search(r'at least (\d+)', proc.communicate(timeout=10)[1])[1])
    proc, ready = serve_limited(least, *args)
    assert ready, proc.communicate()
    files = len(os.listdir(f'/proc/{proc.pid}/fd'))
    proc.send_signal(signal.SIGTERM)
    assert proc.wait(10) == 0
    # metrics, the control socket with one that is refused, a probe of each drive, connections
    assert files + 32 + 17 + 12 + 8 <= least, (files, least)


def in_folder(run):
    with tempfile.TemporaryDirectory(prefix='kvof-cli-') as folder:
        return run(folder)


sys.exit(run_all(' '.join(sys.argv[2:]), in_folder))
