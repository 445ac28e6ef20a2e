#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvof ns`, `kvof subsys` and the control socket of a running array, and what hosts see of it.

usage: ns_cli.py KVOF LIBRARY [WORDS]     runs the cases whose name contains WORDS; LIBRARY is
fail_calls, which lets a drive hang
"""
import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

from cases import case, each, run_all
from fail_calls import Fail
from nvmetcp import *

KVOF, LIBRARY = sys.argv[1:3]
TWO = 'nqn.2026-11.io.kvof:two'


def sanitized():
    with open(KVOF, 'rb') as f:
        code = f.read()
    return b'__asan_init' in code or b'__tsan_init' in code


class Served(Array):
    """An array with its control socket in a folder of the case."""

    def __init__(self, folder, *args, drives=('mem,size=512MiB',), **more):
        self.path = os.path.join(folder, 'control')
        super().__init__(KVOF, '--control', self.path, *args, drives=drives, **more)

    def run(self, *args):
        return subprocess.run([KVOF, *args, '--control', self.path], capture_output=True, text=True,
                              timeout=30)

    def json(self, *args):
        got = self.run(*args, '--json')
        assert got.returncode == 0, got.stderr
        return json.loads(got.stdout)

    def refused(self, code, words, *args):
        got = self.run(*args)
        assert got.returncode == code and got.stdout == '', (args, got)
        assert len(got.stderr.strip().splitlines()) == 1, got.stderr
        for word in words:
            assert word in got.stderr, (word, got.stderr)

    def raw(self, line, end=True):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(self.path)
            try:
                s.sendall(line)
                if end:
                    s.shutdown(socket.SHUT_WR)
            except BrokenPipeError:
                pass
            out = b''
            while True:
                part = s.recv(65536)
                if not part:
                    return out
                out += part

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            code, seconds = self.stop()
            assert code == 0 and seconds < 5, (code, seconds)


def ids(h, nsid, **more):
    _, data = h.admin.identify(3, nsid)
    out, at = {}, 0
    while data[at + 1]:
        out[data[at]] = data[at + 4:at + 4 + data[at + 1]]
        at += 4 + data[at + 1]
    return out[1], out[2], out[3]


def nsids(h):
    _, data = h.admin.identify(2)
    return [n for n in struct.unpack_from('<64I', data) if n]


def changed(c, retain=0):
    answer, data = c.command(sqe(0x02, c.next_cid(), dptr=sgl(0x5A, 4096),
                                 cdw10=0x04 | 1023 << 16 | retain << 15))
    status_ok(answer)
    return [n for n in struct.unpack_from('<1024I', data) if n]


@case('a namespace is made, listed, used and removed while the array serves')
def life(d):
    with Served(d, '--kv', '128MiB') as a, Host(a.port) as h:
        rows = a.json('ns', 'ls')['namespaces']
        assert [(r['nsid'], r['kind']) for r in rows] == [(1, 'kv')], rows
        made = a.json('ns', 'create', '--size', '96MiB')
        assert made['nsid'] == 2 and made['kind'] == 'kv' and len(made['uuid']) == 36, made
        block = a.json('ns', 'create', '--kind', 'block', '--size', '32MiB', '--nsid', '7',
                       '--block-bytes', '512')
        assert block['nsid'] == 7 and block['size_bytes'] == 32 << 20 and block['block_bytes'] == 512
        assert nsids(h) == [1, 2, 7]
        c = h.io
        answer, _ = c.command(kv(1, c.next_cid(), b'key', 4, nsid=2, dptr=sgl(1, 4)), b'data')
        status_ok(answer)
        assert c.exist(b'key').status == (0, 0x87), 'namespace 1 has not what is in 2'
        rows = {r['nsid']: r for r in a.json('ns', 'ls')['namespaces']}
        assert rows[2]['keys'] == 1 and rows[2]['used_bytes'] > 0 and rows[1]['keys'] == 0
        text = a.run('ns', 'ls')
        assert text.returncode == 0 and rows[2]['uuid'] in text.stdout and 'block' in text.stdout
        gone = a.run('ns', 'rm', '2')
        assert gone.returncode == 0, gone.stderr
        answer, _ = c.command(kv(0x14, c.next_cid(), b'key', nsid=2))
        assert answer.status == (0, 0x0B) and answer.dnr
        assert nsids(h) == [1, 7]
        a.refused(1, ['namespace 2', 'none'], 'ns', 'rm', '2')


@case('hosts that asked for it are told once of what comes and goes, and find it in the list')
def told(d):
    with Served(d, '--kv', '128MiB') as a, Host(a.port) as h, Host(a.port, hostid=b'\2' * 16) as deaf:
        status_ok(h.admin.feature(0x0B, 0x100))
        h.admin.send(h.admin.capsule(sqe(0x0C, 77)))
        deaf.admin.send(deaf.admin.capsule(sqe(0x0C, 78)))
        a.json('ns', 'create', '--size', '64MiB')
        answer, _ = h.admin.answer()
        status_ok(answer)
        assert answer.cid == 77 and answer.dw0 == 0x040002, hex(answer.dw0)
        assert deaf.admin.silent(), 'a host that did not ask was told'
        h.admin.send(h.admin.capsule(sqe(0x0C, 79)))
        a.json('ns', 'create', '--size', '64MiB', '--nsid', '9')
        assert h.admin.silent(), 'told again before the list was read'
        assert changed(h.admin, retain=1) == [2, 9]
        assert changed(h.admin) == [2, 9]
        assert changed(h.admin) == []
        assert a.run('ns', 'rm', '9').returncode == 0
        answer, _ = h.admin.answer()
        assert answer.cid == 79 and answer.dw0 == 0x040002
        assert changed(h.admin) == [9] and sorted(changed(deaf.admin)) == [2, 9]


@case('identifiers stay over restarts, and are others after remove and create')
def identifiers(d):
    drive = os.path.join(d, 'drive')
    seen = []
    with Served(d, '--kv', '64MiB', drives=[drive + ',size=256MiB']) as a:
        a.json('ns', 'create', '--size', '64MiB')
        a.json('subsys', 'create', TWO)
        a.json('ns', 'create', '--size', '64MiB', '--subsystem', TWO)
        with Host(a.port) as h, Host(a.port, subnqn=TWO) as two:
            seen += [ids(h, 1), ids(h, 2), ids(two, 1)]
        told = {(r['subsystem'], r['nsid']): bytes.fromhex(r['uuid'].replace('-', ''))
                for r in a.json('ns', 'ls')['namespaces']}
        assert [s[2] for s in seen] == [told[NQN, 1], told[NQN, 2], told[TWO, 1]], 'ns ls tells others'
        assert all(s[2][6] >> 4 == 4 and s[2][8] >> 6 == 2 for s in seen), 'not UUIDs of version 4'
    with Served(d, drives=[drive]) as a, Host(a.port) as h, Host(a.port, subnqn=TWO) as two:
        assert [ids(h, 1), ids(h, 2), ids(two, 1)] == seen, 'other identifiers after a restart'
        assert a.run('ns', 'rm', '2').returncode == 0
        a.json('ns', 'create', '--size', '64MiB', '--nsid', '2')
        seen.append(ids(h, 2))
    for part in range(3):
        assert len({s[part] for s in seen}) == 4, 'two namespaces with one identifier'


@case('values and settings are there again after a restart, also after SIGKILL')
def restart(d):
    drive = os.path.join(d, 'drive')
    with Served(d, '--kv', '64MiB', drives=[drive + ',size=256MiB']) as a:
        a.json('ns', 'create', '--size', '64MiB', '--on-full', 'refuse', '--value-bytes-max', '1MiB')
        a.json('subsys', 'create', TWO, '--allow-host', 'nqn.2026-11.io.kvof:friend')
        a.json('ns', 'create', '--size', '64MiB', '--subsystem', TWO)
        with Host(a.port) as h:
            c = h.io
            status_ok(c.command(kv(1, 1, b'kept', 4, nsid=2, dptr=sgl(1, 4)), b'data')[0])
        before = a.json('ns', 'ls')['namespaces']
        a.proc.kill()
        a.proc.wait()
    with Served(d, drives=[drive]) as a:
        rows = a.json('ns', 'ls')['namespaces']
        keep = ('subsystem', 'nsid', 'kind', 'uuid', 'capacity_bytes', 'on_full', 'value_bytes_max')
        key = lambda r: (r['subsystem'], r['nsid'])
        assert [[r[k] for k in keep] for r in sorted(rows, key=key)] == \
            [[r[k] for k in keep] for r in sorted(before, key=key)]
        assert a.json('subsys', 'ls')['subsystems'][1]['hosts'] == ['nqn.2026-11.io.kvof:friend']
        with Host(a.port) as h:
            answer, data = h.io.command(kv(2, 1, b'kept', 16, nsid=2, dptr=sgl(0x5A, 16)))
            status_ok(answer)
            assert data == b'data'
        with l1(a.port) as c:
            assert c.connect(subnqn=TWO).status == (1, 0x84), 'a stranger got in after the restart'
        with Host(a.port, subnqn=TWO, hostnqn='nqn.2026-11.io.kvof:friend') as h:
            assert h.io.exist(b'kept').status == (0, 0x87)


@case('subsystems: made, found by Discovery, kept from strangers, removed when empty')
def subsystems(d):
    with Served(d, '--kv', '64MiB') as a:
        with l2(a.port, subnqn=DISCOVERY) as disc:
            status_ok(disc.feature(0x0B, 0x80000000))
            disc.send(disc.capsule(sqe(0x0C, 5)))
            a.json('subsys', 'create', TWO)
            answer, _ = disc.answer()
            assert answer.cid == 5 and answer.dw0 == 0x70F002, hex(answer.dw0)
            _, log = disc.log(0x70, 3072)
            assert struct.unpack_from('<QQ', log) == (2, 2), struct.unpack_from('<QQ', log)
        a.refused(4, [TWO, 'exists'], 'subsys', 'create', TWO)
        a.refused(2, ['NQN'], 'subsys', 'create', 'two')
        a.refused(2, ['NQN'], 'subsys', 'create', DISCOVERY)
        a.refused(2, ['NQN'], 'subsys', 'create', TWO + '2', '--allow-host', 'x')
        a.json('ns', 'create', '--size', '64MiB', '--subsystem', TWO)
        a.refused(4, [TWO, 'namespaces'], 'subsys', 'rm', TWO)
        a.refused(4, ['first'], 'subsys', 'rm', NQN)
        with Host(a.port, subnqn=TWO) as h:
            assert h.io.exist(b'x').status == (0, 0x87)
            assert a.run('ns', 'rm', '1', '--subsystem', TWO).returncode == 0
            assert a.run('subsys', 'rm', TWO).returncode == 0
            assert h.admin.eof() and h.io.eof(), 'its hosts stay'
        a.refused(1, [TWO, 'none'], 'subsys', 'rm', TWO)
        assert len(a.json('subsys', 'ls')['subsystems']) == 1


@case('K29 one key in two subsystems is two keys, and neither host learns of the other')
def apart(d):
    with Served(d, '--kv', '64MiB') as a:
        a.json('subsys', 'create', TWO)
        a.json('ns', 'create', '--size', '64MiB', '--subsystem', TWO)
        with Host(a.port) as one, Host(a.port, subnqn=TWO, hostid=b'\2' * 16) as two:
            status_ok(one.io.store(b'same', b'of one'))
            assert two.io.exist(b'same').status == (0, 0x87)
            assert two.io.store(b'same', b'of two', options=2).status == (0, 0), 'if absent'
            assert one.io.retrieve(b'same', 16)[1] == b'of one'
            assert two.io.retrieve(b'same', 16)[1] == b'of two'
            status_ok(two.io.delete(b'same'))
            assert one.io.exist(b'same').status == (0, 0)
            assert two.io.list(b'', 4096)[1][:4] == bytes(4)


@case('large values of object namespaces span the drives, and of caches where that is asked for')
def striped(d):
    with Served(d, '--kv', '0', drives=('mem,size=256MiB', 'mem,size=256MiB')) as a:
        assert a.json('ns', 'create', '--size', '96MiB')['stripe'] is False
        assert a.json('ns', 'create', '--size', '96MiB', '--stripe')['stripe'] is True
        assert a.json('ns', 'create', '--size', '96MiB', '--on-full', 'refuse')['stripe'] is True
        said = json.loads(a.raw(b'{"command": "ns create", "size_bytes": 100663296, "on_full": "refuse", '
                                b'"stripe": false}\n'))
        assert said['ok'] and said['stripe'] is False, said
        data = bytes(range(256)) * 20000
        with Host(a.port) as h:
            for nsid in (1, 2, 3, 4):
                c = h.queue(10 + nsid)
                cid = c.next_cid()
                c.send(c.capsule(kv(1, cid, b'large', len(data), nsid=nsid, dptr=sgl(0x5A, len(data)))))
                status_ok(c.feed(cid, data))
                answer, got = c.command(kv(2, c.next_cid(), b'large', len(data), nsid=nsid,
                                           dptr=sgl(0x5A, len(data))))
                status_ok(answer)
                assert got == data, nsid
                c.close()


@each('L08 a namespace is removed under load within a second: the host', ['reads', 'stores', 'sends nothing'])
def removed_under_load(d, what):
    with Served(d, '--kv', '64MiB') as a, Host(a.port) as other:
        a.json('ns', 'create', '--size', '256MiB')
        hosts = [Host(a.port, hostid=bytes([i + 1]) * 16, sqsize=63) for i in range(3)]
        for h in hosts:
            status_ok(h.io.command(kv(1, 999, b'v', 8192, nsid=2, dptr=sgl(1, 8192)), bytes(8192))[0])
            for i in range(60):
                if what == 'reads':
                    h.io.send(h.io.capsule(kv(2, i, b'v', 8192, nsid=2, dptr=sgl(0x5A, 8192))))
                elif what == 'stores':
                    h.io.send(h.io.capsule(kv(1, i, b's%d' % i, 8192, nsid=2, dptr=sgl(1, 8192)),
                                           bytes(8192)))
                else:
                    h.io.send(h.io.capsule(kv(1, i, b'n%d' % i, 65536, nsid=2, dptr=sgl(0x5A, 65536))))
        begin = time.monotonic()
        got = a.run('ns', 'rm', '2')
        took = time.monotonic() - begin
        assert got.returncode == 0 and took < 2.0, (got, took)
        for h in hosts:
            statuses = []
            try:
                while len(statuses) < 60:
                    pdu = h.io.recv()
                    if pdu.type == RESP:
                        statuses.append(pdu.status)
            except Closed:
                assert what == 'sends nothing', 'a host that moved its data was cut off'
            assert set(statuses) <= {(0, 0), (0, 0x0B), (0, 0x87)}, set(statuses)
            h.close()
        status_ok(other.io.store(b'other', b'fine'))
        a.json('ns', 'create', '--size', '256MiB')
        with Host(a.port) as h:
            assert h.io.command(kv(0x14, 1, b'v', nsid=2))[0].status == (0, 0x87), 'old values'


@case('namespaces come and go 30 times under load, and nothing grows')
def churn(d):
    with Served(d, '--kv', '64MiB', drives=[os.path.join(d, 'drive') + ',size=256MiB']) as a:
        stop, errors = threading.Event(), []

        def load():
            try:
                with Host(a.port) as h:
                    n = 0
                    while not stop.is_set():
                        n += 1
                        status_ok(h.io.store(b'load%d' % (n % 50), bytes(4000)))
                        assert h.io.command(kv(1, 1, b'x', 4, nsid=2, dptr=sgl(1, 4)), b'data')[0].status \
                            in ((0, 0), (0, 0x0B))
            except Exception as e:
                errors.append(e)

        thread = threading.Thread(target=load)
        thread.start()
        for i in range(30):
            a.json('ns', 'create', '--size', '64MiB', '--nsid', '2')
            assert a.run('ns', 'rm', '2').returncode == 0
            if i == 9:
                rss, fds, room = a.rss_kib(), a.fds(), a.json('ns', 'ls')['free_bytes']
        stop.set()
        thread.join()
        assert not errors, errors
        assert a.rss_kib() < rss + 4096, (rss, a.rss_kib())
        assert a.fds() <= fds and a.json('ns', 'ls')['free_bytes'] == room


@case('a small namespace that lay on the missing drive alone does not keep the others from serving')
def lone(d):
    paths = [os.path.join(d, f'drive{i}') for i in range(3)]
    with Served(d, '--kv', '96MiB', drives=[p + ',size=96MiB' for p in paths]) as a:
        for more in (('--kind', 'block', '--size', '1MiB'), ('--size', '34MiB')):
            for _ in range(2):
                a.json('ns', 'create', *more)
        before = len(a.json('ns', 'ls')['namespaces'])
        with Host(a.port) as h:
            for nsid in (2, 3):
                status_ok(h.io.command(sqe(1, 1, nsid, dptr=sgl(1, 4096)), b'b' * 4096)[0])
            for nsid in (1, 4, 5):
                status_ok(h.io.command(kv(1, 1, b'k', 4, nsid=nsid, dptr=sgl(1, 4)), b'data')[0])
    served = set()
    for gone in paths:
        os.rename(gone, gone + '.away')
        with Served(d, '--degraded', drives=paths) as a, Host(a.port) as h:
            here = nsids(h)
            assert {1, 2, 3} <= set(here), here
            for nsid in (2, 3):
                answer, data = h.io.command(sqe(2, 1, nsid, dptr=sgl(0x5A, 4096)))
                assert answer.status == (2, 0x81) or data == b'b' * 4096, (gone, nsid, answer)
                served |= {(nsid, answer.status == (0, 0))}
            for nsid in set(here) & {4, 5}:
                answer, data = h.io.command(kv(2, 1, b'k', 4, nsid=nsid, dptr=sgl(0x5A, 4)))
                assert answer.status == (0, 0x87) or data == b'data', (gone, nsid, answer)
            served |= {(nsid, nsid in here) for nsid in (4, 5)}
        os.rename(gone + '.away', gone)
    assert {(n, True) for n in (2, 3, 4, 5)} <= served and (2, False) in served, served
    assert (4, False) in served or (5, False) in served, served
    with Served(d, drives=paths) as a, Host(a.port) as h:
        assert len(nsids(h)) == before


@case('blocks that were on a replaced drive alone are errors and not zeros, until they are made anew')
def replaced(d):
    paths = [os.path.join(d, f'drive{i}') for i in range(2)]
    with Served(d, '--kv', '96MiB', drives=[p + ',size=96MiB' for p in paths]) as a:
        for _ in range(2):
            a.json('ns', 'create', '--kind', 'block', '--size', '1MiB')
        with Host(a.port) as h:
            for nsid in (2, 3):
                status_ok(h.io.command(sqe(1, 1, nsid, dptr=sgl(1, 4096)), b'b' * 4096)[0])
    lost = set()
    for path in paths:
        kept = [open(p, 'rb').read() for p in paths]
        with open(path, 'wb') as f:
            f.truncate(96 << 20)
        for more in (['--replace'], [], []):
            with Served(d, *more, drives=paths) as a, Host(a.port) as h:
                for nsid in (2, 3):
                    answer, data = h.io.command(sqe(2, 1, nsid, dptr=sgl(0x5A, 4096)))
                    assert answer.status == (2, 0x81) or data == b'b' * 4096, (path, nsid, answer)
                    lost |= {nsid} if answer.status != (0, 0) else set()
        told = subprocess.run([KVOF, 'fsck', '--drive', paths[0], '--drive', paths[1]],
                              capture_output=True, text=True)
        assert (told.returncode == 3) == ('lost with its drive' in told.stderr), told
        if lost:
            assert told.returncode == 3, told
            with Served(d, drives=paths) as a, Host(a.port) as h:
                nsid = str(min(lost))
                assert a.run('ns', 'rm', nsid).returncode == 0
                a.json('ns', 'create', '--kind', 'block', '--size', '1MiB', '--nsid', nsid)
                answer, data = h.io.command(sqe(2, 1, int(nsid), dptr=sgl(0x5A, 4096)))
                assert answer.status == (0, 0) and data == bytes(4096), answer
        for p, bytes_ in zip(paths, kept):
            with open(p, 'wb') as f:
                f.write(bytes_)
    assert lost, 'no namespace lay on one drive'


@case('a block part with no whole superblock is refused, and degraded costs its own blocks')
def headless(d):
    paths = [os.path.join(d, f'drive{i}') for i in range(2)]
    with Served(d, '--kv', '96MiB', drives=[p + ',size=96MiB' for p in paths]) as a:
        a.json('ns', 'create', '--kind', 'block', '--size', '4MiB')
        with Host(a.port) as h:
            status_ok(h.io.command(kv(1, 1, b'k', 4, dptr=sgl(1, 4)), b'data')[0])
    for path in paths:
        with open(path, 'r+b') as f:
            whole = f.read()
            at = whole.find(b'KVOFBLKS')
            while at >= 0:
                f.seek(at + 40)
                f.write(bytes([whole[at + 40] ^ 1]))
                at = whole.find(b'KVOFBLKS', at + 1)
    got = subprocess.run([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--control', 'none',
                          '--drive', paths[0], '--drive', paths[1]], capture_output=True, text=True)
    assert got.returncode == 4 and 'degraded' in got.stderr, got
    with Served(d, '--degraded', drives=paths) as a, Host(a.port) as h:
        answer, data = h.io.command(kv(2, 1, b'k', 4, dptr=sgl(0x5A, 4)))
        assert answer.status == (0, 0) and data == b'data', answer
        assert h.io.command(sqe(2, 1, 2, dptr=sgl(0x5A, 4096)))[0].status == (2, 0x81)
        assert h.io.command(sqe(1, 1, 2, dptr=sgl(1, 4096)), bytes(4096))[0].status == (2, 0x80)


@case('a buffer up to MDTS is taken also where the largest value is smaller')
def room(d):
    with Served(d, '--kv', '128MiB') as a:
        a.json('ns', 'create', '--size', '64MiB', '--value-bytes-max', '1MiB')
        with Host(a.port) as h:
            c = h.io
            assert h.admin.identify(1)[1][77] == 11, 'MDTS is not 8 MiB'
            status_ok(c.command(kv(1, c.next_cid(), b'k', 4, nsid=2, dptr=sgl(1, 4)), b'data')[0])
            for room, status in ((1 << 20, (0, 0)), (8 << 20, (0, 0)), ((8 << 20) + 4, (0, 2))):
                answer, data = c.command(kv(2, c.next_cid(), b'k', room, nsid=2, dptr=sgl(0x5A, room)))
                assert answer.status == status and (data == b'data') == (status == (0, 0)), answer
                answer, _ = c.command(kv(6, c.next_cid(), b'', room, nsid=2, dptr=sgl(0x5A, room)))
                assert answer.status == status, answer
            answer, _ = c.command(kv(1, c.next_cid(), b'k', (1 << 20) + 1, nsid=2,
                                     dptr=sgl(0x5A, (1 << 20) + 1)))
            assert answer.status == (0, 0x85), answer


@case('what can not be made is refused with the reason, and changes nothing')
def refusals(d):
    with Served(d, '--kv', '64MiB') as a:
        before = a.json('ns', 'ls')
        for code, words, args in (
                (2, ['kind'], ['--kind', 'file', '--size', '1GiB']),
                (2, ['size'], ['--kind', 'block']),
                (2, ['4096'], ['--kind', 'block', '--size', '1000B']),
                (2, ['512 or 4096'], ['--kind', 'block', '--size', '1MiB', '--block-bytes', '1024']),
                (2, ['on_full'], ['--on-full', 'wait']),
                (2, ['KV'], ['--kind', 'block', '--size', '1MiB', '--on-full', 'evict']),
                (2, ['KV'], ['--block-bytes', '512']),
                (2, ['value_bytes_max'], ['--value-bytes-max', '100MiB']),
                (2, ['buffer'], ['--value-bytes-max', '64MiB']),
                (2, ['nsid'], ['--nsid', '65']),
                (4, ['1'], ['--nsid', '1', '--size', '64MiB']),
                (4, ['free'], ['--size', '1TiB']),
                (4, ['free'], ['--kind', 'block', '--size', '1TiB']),
                (1, [TWO], ['--subsystem', TWO, '--size', '64MiB']),
                (2, ['--sise', '--size'], ['--sise', '1GiB'])):
            a.refused(code, words, 'ns', 'create', *args)
        a.refused(2, ['create'], 'ns', 'crate')
        a.refused(2, ['usage'], 'ns', 'rm')
        a.refused(2, ['number'], 'ns', 'rm', 'one')
        assert a.json('ns', 'ls') == before
        got = subprocess.run([KVOF, 'ns', 'ls', '--control', os.path.join(d, 'nobody')],
                             capture_output=True, text=True, timeout=10)
        assert got.returncode == 3 and len(got.stderr.strip().splitlines()) == 1, got


@case('a ninth subsystem, a 65th host and a 65th namespace are refused alike, and nothing of them stays')
def limits(d):
    with Served(d, '--kv', '64MiB') as a:
        hosts = [x for i in range(60) for x in ('--allow-host', f'nqn.2026-11.io.kvof:host{i}')]
        a.json('subsys', 'create', 'nqn.2026-11.io.kvof:many', *hosts)
        before = a.json('subsys', 'ls')
        more = [x for i in range(60, 65) for x in ('--allow-host', f'nqn.2026-11.io.kvof:host{i}')]
        a.refused(4, ['64 hosts'], 'subsys', 'create', 'nqn.2026-11.io.kvof:more', *more)
        assert a.json('subsys', 'ls') == before
        for i in range(6):
            a.json('subsys', 'create', f'nqn.2026-11.io.kvof:n{i}')
        before = a.json('subsys', 'ls')
        a.refused(4, ['8 subsystems'], 'subsys', 'create', 'nqn.2026-11.io.kvof:ninth')
        assert a.json('subsys', 'ls') == before
        for _ in range(63):
            a.json('ns', 'create', '--kind', 'block', '--size', '4MiB')
        before = a.json('ns', 'ls')
        a.refused(4, ['64 namespaces'], 'ns', 'create', '--kind', 'block', '--size', '4MiB')
        assert a.json('ns', 'ls') == before


@case('hostile bytes on the control socket get one clear error and harm nothing')
def hostile(d):
    with Served(d) as a:
        mode = os.stat(a.path).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode)
        for line in (b'rubbish\n', b'{}\n', b'[]\n', b'{"command": 5}\n', b'{"command": "ns explode"}\n',
                     b'{"command": "ns ls", "extra": 1}\n', b'{"command": "ns ls", "command": "ns ls"}\n',
                     b'{"command": "ns create", "size_bytes": -1}\n',
                     b'{"command": "ns create", "size_bytes": 1e300}\n',
                     b'{"command": "ns create", "nsid": 4294967297}\n',
                     b'{"command": "ns create", "kind": "\\u0000kv"}\n', b'{"command": "\xff\xfe"}\n',
                     b'{"command": "ns rm", "nsid": 0}\n', b'[' * 5000 + b'\n', b'"' + b'x' * 60000 + b'"\n',
                     b'{"command": "subsys create", "subsystem": "%s"}\n' % (b'n' * 5000),
                     b'{"command": "subsys create", "subsystem": "nqn.2026-11.io.kvof:h", "hosts": %s}\n' %
                     json.dumps(['nqn.2026-11.io.kvof:%d' % i for i in range(65)]).encode(),
                     b'\0' * 100 + b'\n', b'x' * 70000):
            out = a.raw(line)
            assert out.count(b'\n') == 1 and out.endswith(b'\n'), (line[:60], out)
            said = json.loads(out)
            assert said['ok'] is False and said['error'] and said['exit'] in (1, 2), (line[:60], said)
        assert a.raw(b'') == b'' and a.raw(b'{"command": "ns ls"') == b''
        begin = time.monotonic()
        assert a.raw(b'silent', end=False) == b'', 'a client that says nothing is answered'
        assert time.monotonic() - begin < 4
        with Host(a.port) as h:
            status_ok(h.io.store(b'fine', b'x'))
        assert len(a.json('ns', 'ls')['namespaces']) == 1


@case('a socket left by a killed array is replaced, one that answers is not')
def stale(d):
    with Served(d) as a:
        got = subprocess.run([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB',
                              '--control', a.path], capture_output=True, text=True, timeout=10)
        assert got.returncode == 3 and 'another array' in got.stderr, got
        a.proc.send_signal(signal.SIGKILL)
        a.proc.wait()
        assert os.path.exists(a.path)
    with Served(d) as a:
        assert len(a.json('ns', 'ls')['namespaces']) == 1
    assert not os.path.exists(a.path), 'the socket stays after a clean stop'
    with open(a.path, 'w') as f:
        f.write('a file of mine')
    got = subprocess.run([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB',
                          '--control', a.path], capture_output=True, text=True, timeout=10)
    assert got.returncode == 2 and 'not a socket' in got.stderr, got
    assert open(a.path).read() == 'a file of mine'
    os.chmod(d, 0o777)
    got = subprocess.run([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB',
                          '--control', os.path.join(d, 'open')], capture_output=True, text=True, timeout=10)
    assert got.returncode == 2 and 'other users' in got.stderr, got


@case('another user than the owner is refused')
def other_user(d):
    if os.geteuid() != 0:
        return 'not root'
    with Served(d) as a:
        os.chmod(d, 0o755)
        os.chmod(a.path, 0o666)                # what the mode keeps out, asked all the same
        code = ("import os,socket,sys;os.setgid(65534);os.setuid(65534);s=socket.socket(socket.AF_UNIX);"
                "s.connect(sys.argv[1]);s.sendall(b'{\"command\": \"ns ls\"}\\n');print(s.recv(999))")
        parent = os.path.dirname(d)
        if not os.stat(parent).st_mode & 0o001:
            return 'the folder of tests is closed to others'
        got = subprocess.run([sys.executable, '-c', code, a.path], capture_output=True, text=True,
                             timeout=10)
        assert 'only the owner' in got.stdout, got


@case('an array that starts removes the sockets of killed ones, and no others')
def sockets_swept(d):
    folder = '/run/kvof' if os.geteuid() == 0 else os.path.join(d, 'kvof')
    os.makedirs(folder, 0o700, exist_ok=True)
    made, hour_ago = {}, time.time() - 3600
    for name, stays in (('00001.sock', False), ('00002.sock', True), ('00003.sock', True),
                        (f'{os.getpid()}-x.sock', True)):
        path = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        made[path] = (stays, socket.socket(socket.AF_UNIX))
        made[path][1].bind(path)
        if name != '00003.sock':                   # it may be about to listen
            os.utime(path, (hour_ago, hour_ago))
        if name == '00002.sock':
            made[path][1].listen(1)
        else:
            made[path][1].close()
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB'],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env=dict(os.environ, XDG_RUNTIME_DIR=d))
    try:
        assert proc.stdout.readline().startswith('ready ')
        for path, (stays, _) in made.items():
            assert os.path.exists(path) == stays, path
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0
        for path, (_, s) in made.items():
            s.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


@case('by the port alone the socket is found where serve puts it by itself')
def standard_path(d):
    env = dict(os.environ, XDG_RUNTIME_DIR=d)
    proc = subprocess.Popen([KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', 'mem,size=64MiB',
                             '--json'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env=env)
    try:
        row = json.loads(proc.stdout.readline())
        port = row['ready'][0].rsplit(':', 1)[1]
        assert row['control'].endswith(f'/kvof/{port}.sock'), row
        got = subprocess.run([KVOF, 'ns', 'ls', '--port', port, '--json'], capture_output=True,
                             text=True, timeout=10, env=env)
        assert got.returncode == 0 and len(json.loads(got.stdout)['namespaces']) == 1, got
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(6) == 0


@case('SIGTERM while a namespace is made or removed ends within 5 s with exit code 0')
def stop_in_between(d):
    for i in range(4):
        with Served(d, '--kv', '64MiB') as a:
            client = subprocess.Popen([KVOF, 'ns', 'create', '--size', '64MiB', '--control', a.path],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if i % 2:
                client.wait(10)
                client = subprocess.Popen([KVOF, 'ns', 'rm', '1', '--control', a.path],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            code, seconds = a.stop()
            assert code == 0 and seconds < 5, (i, code, seconds)
            client.wait(10)


def half_line(a):
    s = socket.socket(socket.AF_UNIX)
    s.connect(a.path)                              # waits for room in the backlog
    s.settimeout(5)
    s.sendall(b'{"command"')
    return s


def half_lines_round(a, count, files):
    """Whether a command was answered while the last half line was still waited for."""
    halves = [half_line(a) for _ in range(count)]
    assert len(a.json('ns', 'ls')['namespaces']) == 1
    before = not select.select([halves[-1]], [], [], 0)[0]
    assert a.fds() <= files + 32, (a.fds(), files)
    assert halves[-1].recv(1) == b'', 'half a line is answered'
    for s in halves:
        s.close()
    return before


@case('clients of the control socket that send half a line, however many, hold up no other')
def half_lines(d):
    with Served(d, '--kv', '64MiB') as a:
        files = a.fds()
        for count in (3, 300):
            # A busy machine may take longer over an answer than a half line lasts: not each time.
            assert any(half_lines_round(a, count, files) for _ in range(8)), \
                'answers come after the half lines have ended'


@contextlib.contextmanager
def no_stacks(a):
    """No thread can be started: there is room for a little, but not for its stack."""
    with open(f'/proc/{a.proc.pid}/statm') as f:
        size = (4 << 20) + int(f.read().split()[0]) * resource.getpagesize()
    limits = resource.prlimit(a.proc.pid, resource.RLIMIT_AS)
    resource.prlimit(a.proc.pid, resource.RLIMIT_AS, (size, limits[1]))
    try:
        yield
    finally:
        if a.proc.poll() is None:
            resource.prlimit(a.proc.pid, resource.RLIMIT_AS, limits)


@case('a client for whom there is no thread is closed at once, and the next one is answered')
def no_thread(d):
    if sanitized():
        return 'a sanitizer needs all addresses'
    with Served(d, '--kv', '64MiB', '--loops', '1') as a:
        with no_stacks(a), contextlib.suppress(ConnectionResetError):
            assert a.raw(b'{"command": "ns ls"}\n') == b'', 'the limit is none'
        assert len(a.json('ns', 'ls')['namespaces']) == 1


@case('an array that finds no thread to stop with says so, and the next start recovers')
def no_thread_to_stop(d):
    if sanitized():
        return 'a sanitizer needs all addresses'
    drives = (os.path.join(d, 'drive') + ',size=128MiB',)
    with Served(d, '--kv', '64MiB', '--loops', '1', drives=drives) as a:
        with Host(a.port) as h:
            status_ok(h.io.store(b'there', b'value'))
        with no_stacks(a):
            code, _ = a.stop()
        assert code == 3, code
    with Served(d, drives=drives) as a, Host(a.port) as h:
        assert h.io.retrieve(b'there', 16)[1] == b'value'


@case('while a namespace is taken from a drive that hangs other commands are answered')
def hung_removal(d):
    fail = Fail(LIBRARY, d)
    fail.env['KVOF_LOOP'] = 'plain'
    drives = [os.path.join(d, name) + ',size=128MiB' for name in ('well', 'hang')]
    with Served(d, '--kv', '96MiB', drives=drives, env=fail.env) as a, \
            Host(a.port) as other, Host(a.port, sqsize=63) as h:
        a.json('ns', 'create', '--size', '64MiB')
        a.json('subsys', 'create', TWO)
        fail.hang(True)
        for i in range(16):                        # some of them go to the drive that hangs
            h.io.send(h.io.capsule(kv(1, i, b'v%d' % i, 4096, nsid=2, dptr=sgl(1, 4096)), bytes(4096)))
        removal = subprocess.Popen([KVOF, 'ns', 'rm', '2', '--control', a.path],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while 2 in nsids(other):
            assert removal.poll() is None, removal.communicate()
        assert 1 in {n['nsid'] for n in a.json('ns', 'ls')['namespaces']}
        assert [s['subsystem'] for s in a.json('subsys', 'ls')['subsystems']] == [NQN, TWO]
        a.refused(1, ['there is none'], 'ns', 'rm', '2')
        a.refused(2, ['kind'], 'ns', 'create', '--kind', 'odd', '--size', '1MiB')
        made = subprocess.Popen([KVOF, 'ns', 'create', '--kind', 'block', '--size', '8MiB',
                                 '--control', a.path],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert removal.poll() is None, 'the drive did not hang'
        code = removal.wait(30)                    # the store gives the drive up
        assert code == 0, removal.communicate()
        assert made.wait(30) == 0, made.communicate()[0]
        fail.hang(False)
        status_ok(other.io.store(b'other', b'fine'))


def in_folder(run):
    with tempfile.TemporaryDirectory(prefix='kvof-ns-') as folder:
        return run(folder)


sys.exit(run_all(' '.join(sys.argv[3:]), in_folder))
