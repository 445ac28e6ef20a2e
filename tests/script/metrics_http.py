#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metrics and health of a running array over HTTP, and clients that misuse it.

usage: metrics_http.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cases import case, run_all
from nvmetcp import *

KVOF = sys.argv[1]
NAME = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*$')
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


class Metered:
    def __init__(self, *args, drives=('mem,size=256MiB',)):
        command = [KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--metrics', '0', '--json',
                   '--control', 'none']
        for drive in drives:
            command += ['--drive', drive]
        self.proc = subprocess.Popen(command + list(args), stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True)
        row = json.loads(self.proc.stdout.readline())
        self.port = int(row['ready'][0].rsplit(':', 1)[1])
        self.http = row['metrics_port']

    def ask(self, path, method='GET', body=None):
        c = http.client.HTTPConnection('127.0.0.1', self.http, timeout=5)
        c.request(method, path, body)
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, text, dict(answer.getheaders())

    def metrics(self):
        status, text, headers = self.ask('/metrics')
        assert status == 200 and headers['Content-Type'].startswith('text/plain; version=0.0.4')
        return parse(text)

    def rss_kib(self):
        return Array.rss_kib(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            assert self.proc.wait(6) == 0


def parse(text):
    """The text format, strictly: HELP, then TYPE, then all samples of a name together; no name and
    no set of labels twice; label values escaped; the last line ends."""
    assert text.endswith('\n')
    out, kinds, helped, current = {}, {}, set(), None
    for line in text.split('\n')[:-1]:
        assert line == line.strip() and line, repr(line)
        if line.startswith('# HELP '):
            name, words = line[7:].split(' ', 1)
            assert NAME.match(name) and name not in helped and words, line
            helped.add(name)
            current = name
        elif line.startswith('# TYPE '):
            name, kind = line[7:].split(' ')
            assert name == current and name not in kinds and kind in ('counter', 'gauge'), line
            kinds[name] = kind
            assert (kind == 'counter') == name.endswith('_total'), line
        else:
            assert not line.startswith('#'), line
            got = SAMPLE.match(line)
            assert got, line
            name, labels, value = got[1], got[2] or '{}', float(got[3])
            assert name == current and name in kinds, f'{line}: not below its TYPE'
            rest = LABEL.sub('', labels[1:-1])
            assert set(rest) <= {','}, line
            pairs = tuple(sorted(LABEL.findall(labels)))
            assert len({k for k, _ in pairs}) == len(pairs), line
            assert (name, pairs) not in out, f'{line}: twice'
            assert value >= 0
            out[name, pairs] = value
    return out


def of(samples, name, **labels):
    found = [v for (n, pairs), v in samples.items()
             if n == 'kvof_' + name and labels.items() <= dict(pairs).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@case('the text format is kept, and each row of the table is there')
def form(d):
    with Metered('--block', '16MiB') as a:
        with Host(a.port) as h:
            status_ok(h.io.store(b'key', b'value'))
        samples = a.metrics()
        table = open(os.path.join(os.path.dirname(__file__), '../../src/tbl/metrics.def')).read()
        rows = re.findall(r'^METRIC\((\w+), (\w+), (\w+), (\w+),', table, re.M)
        assert len(rows) > 50
        names = {n for n, _ in samples}
        assert not [r for r in rows if 'kvof_' + r[0] not in names]


@case('names that are no UTF-8 and names that quote leave the text one that scrapers read')
def odd_names(d):
    names = [b'fine-\xc3\xa9', b'bad-\xff', b'half-\xc3', b'surrogate-\xed\xa0\x80', b'q"b\\n\n']
    drives = [os.path.join(d, os.fsdecode(n)) + ',size=64MiB' for n in names]
    with Metered(drives=drives) as a:
        samples = a.metrics()
        shown = {dict(pairs)['drive'] for name, pairs in samples if name == 'kvof_drive_up'}
        assert shown == {f'{d}/fine-\u00e9', f'{d}/bad-?', f'{d}/half-?', f'{d}/surrogate-???',
                         f'{d}/q\\"b\\\\n\\n'}, shown
        assert a.ask('/health')[0] == 200


@case('P10: hit, miss, error and deadline are counted apart, and per namespace, drive and host')
def truth(d):
    drive = os.path.join(d, 'a "drive"\\x')
    with Metered('--handshake', '200ms', drives=[drive + ',size=256MiB']) as a:
        begin = a.metrics()
        with Host(a.port) as h, Host(a.port, hostnqn='nqn.2026-11.io.kvof:b', hostid=b'\2' * 16) as b:
            for i in range(5):
                status_ok(h.io.store(b'k%d' % i, bytes(100000)))
            for i in range(7):
                answer, data = h.io.retrieve(b'k%d' % i, 100000)
                assert answer.status == ((0, 0) if i < 5 else (0, 0x87))
            status_ok(b.io.retrieve(b'k1', 100000)[0])
            assert b.io.command(sqe(0x7E, 1, 1))[0].status == (0, 1)
            c = l1(a.port)
            assert c.eof(2), 'a connection without Connect stays'
            time.sleep(0.25)                   # waits-for: the snapshot to be too old to be given again
            s = a.metrics()
        host = 'nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-0000000000ab'
        grew = lambda name, **labels: of(s, name, **labels) - of(begin, name, **labels)
        assert grew('kv_hits_total', nsid='1') == 6 and grew('kv_misses_total', nsid='1') == 2
        assert grew('kv_retrieves_total', nsid='1') == 8 and grew('kv_stores_total', nsid='1') == 5
        assert of(s, 'kv_keys', nsid='1') == 5 and of(s, 'kv_value_bytes', nsid='1') == 500000
        assert grew('connect_deadline_total') == 1 and grew('digest_errors_total') == 0
        assert grew('commands_failed_total') == 3
        assert of(s, 'host_writes_total', host=host) == 5
        assert of(s, 'host_reads_total', host=host) == 7
        assert of(s, 'host_commands_failed_total', host=host) == 2
        assert of(s, 'host_commands_total', host='nqn.2026-11.io.kvof:b') == 2
        assert of(s, 'host_commands_failed_total', host='nqn.2026-11.io.kvof:b') == 1
        assert of(s, 'host_sent_bytes_total', host='nqn.2026-11.io.kvof:b') == 100000
        escaped = drive.replace('\\', '\\\\').replace('"', '\\"')
        assert of(s, 'drive_up', drive=escaped) == 1
        assert grew('drive_written_bytes_total', drive=escaped) >= 500000
        assert of(s, 'drive_written_bytes_total', drive=escaped) == \
            of(s, 'kv_device_written_bytes_total', nsid='1'), 'bytes at the device, told twice'


@case('health: 200 while it is well, 503 with the drive when one has failed, 503 while it stops')
def health(d):
    paths = [os.path.join(d, n) for n in ('one', 'two')]
    with Metered(drives=[p + ',size=128MiB' for p in paths]) as a:
        status, text, headers = a.ask('/health')
        assert status == 200 and json.loads(text) == {'status': 'ok', 'reasons': []}
        assert headers['Content-Type'] == 'application/json'
        with Host(a.port) as h:
            for i in range(20):
                status_ok(h.io.store(b'h%d' % i, bytes([i]) * 100000))
            os.truncate(paths[0], 0)
            for i in range(20):
                h.io.retrieve(b'h%d' % i, 100000)
            until = time.monotonic() + 15
            while a.ask('/health')[0] == 200:
                assert time.monotonic() < until, 'a dead drive is healthy'
                for i in range(20):
                    h.io.store(b'again%d' % i, bytes(100000))
                    h.io.retrieve(b'h%d' % i, 100000)
            status, text, _ = a.ask('/health')
            said = json.loads(text)
            assert status == 503 and said['status'] == 'failing' and paths[0] in said['reasons'][0], said
            h.io.send(h.io.capsule(kv(1, 99, b'held', 65536, dptr=sgl(0x5A, 65536))))
            h.io.r2t()
            a.proc.send_signal(signal.SIGTERM)
            seen = False
            try:
                while a.proc.poll() is None:
                    seen |= 'draining' in a.ask('/health')[1]
            except OSError:
                pass
            assert seen, 'nothing said that it drains'


@case('what is not asked for is refused, and the door is on loopback')
def refused(d):
    with Metered() as a:
        assert a.ask('/')[0] == 404 and a.ask('/metrics/../etc/passwd')[0] == 404
        for method in ('POST', 'PUT', 'DELETE', 'TRACE'):
            assert a.ask('/metrics', method, b'x' * 1000)[0] == 405, method
        assert a.ask('/metrics', 'HEAD')[1] == ''
        with open('/proc/net/tcp') as f:
            rows = [row.split() for row in f]
        # who listens (0A); others may have the number at their own end
        at = [row[1] for row in rows if row[1].endswith(':%04X' % a.http) and row[3] == '0A']
        assert at and all(x.startswith('0100007F') for x in at), at


@case('slow, many and hostile clients hold up neither hosts nor the others for long')
def hostile(d):
    with Metered() as a, Host(a.port) as h:
        for i in range(300):
            status_ok(h.io.store(b'load', bytes(3000)))
        a.metrics()
        before = a.rss_kib()
        socks = []
        for i in range(200):
            s = socket.create_connection(('127.0.0.1', a.http), timeout=5)
            socks.append(s)
            try:
                if i % 4 == 0:
                    s.sendall(b'GET /met')
                elif i % 4 == 1:
                    s.sendall(b'\xff' * 4096)
                elif i % 4 == 2:
                    s.sendall(b'GET /metrics HTTP/1.1\r\n' + b'X: ' + b'y' * 60000)
                else:
                    s.sendall(b'POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n')
            except OSError:
                pass
        worst = 0
        for i in range(300):
            begin = time.monotonic()
            status_ok(h.io.store(b'load', bytes(3000)))
            worst = max(worst, time.monotonic() - begin)
        assert worst < 0.5, worst
        assert a.rss_kib() < before + 4096, 'clients of metrics took memory'
        end = time.monotonic() + 12
        while True:
            try:
                assert a.ask('/health')[0] == 200
                break
            except OSError:
                assert time.monotonic() < end, 'held for longer than their time'
        for s in socks:
            s.close()


def trickle_client(address, port):
    """A connection from that address that has begun a request, if it was taken."""
    s = socket.socket()
    s.bind((address, 0))
    s.settimeout(5)
    try:
        s.connect(('127.0.0.1', port))
        s.sendall(b'GET /met')
    except OSError:
        pass
    return s


class Tricklers:
    """Clients that never end their request, send a byte now and then and come again when closed."""

    def __init__(self, port, addresses, count):
        self.port, self.stop, self.closed = port, threading.Event(), 0
        self.socks = [(a, trickle_client(a, port)) for a in addresses for _ in range(count)]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop.wait(0.1):
            for i, (address, s) in enumerate(self.socks):
                try:
                    s.sendall(b'x')
                except OSError:
                    s.close()
                    self.closed += 1
                    self.socks[i] = address, trickle_client(address, self.port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for _, s in self.socks:
            s.close()


@case('clients that send a byte now and then keep nobody from an answer')
def trickle(d):
    with Metered() as a:
        for addresses in (['127.0.0.2'], ['127.0.0.1'], ['127.0.0.%d' % i for i in range(2, 50)]):
            with Tricklers(a.http, addresses, 48 if len(addresses) == 1 else 1) as t:
                until, n = time.monotonic() + 60, 0
                while n < 20 or t.closed == 0:
                    # kept out, it ends with the time of ask(): tricklers come again at once
                    assert a.ask(('/health', '/metrics')[n % 2])[0] == 200, addresses
                    assert time.monotonic() < until, 'nobody made room'
                    n += 1


@case('a request that is not whole after its time is closed, though its bytes come')
def request_time(d):
    with Metered() as a:
        s = trickle_client('127.0.0.1', a.http)
        s.settimeout(0.2)
        begin = time.monotonic()
        while True:
            try:
                s.sendall(b'x')
                if s.recv(100) == b'':
                    break
            except TimeoutError:
                pass
            except OSError:
                break
            assert time.monotonic() - begin < 15, 'a byte now and then holds a place for ever'
        assert a.ask('/health')[0] == 200


@case('metrics answer beside more connections of hosts than select() can look at')
def many_files(d):
    with Metered('--connections', '1500', '--handshake', '60s', '--loop-kind', 'plain') as a:
        socks = [socket.create_connection(('127.0.0.1', a.port)) for _ in range(1023)]
        until = time.monotonic() + 20
        while len(os.listdir(f'/proc/{a.proc.pid}/fd')) <= 1024:
            assert time.monotonic() < until, 'they are not accepted'
            time.sleep(0.01)                   # waits-for: connections to be accepted
        assert a.ask('/health')[0] == 200
        assert a.metrics()
        for s in socks:
            s.close()


@case('scraping without pause changes nothing for hosts')
def scrape(d):
    with Metered() as a, Host(a.port) as h:
        stop, n = threading.Event(), [0]

        def scraper():
            while not stop.is_set():
                a.metrics()
                n[0] += 1

        threads = [threading.Thread(target=scraper) for _ in range(3)]
        for t in threads:
            t.start()
        for i in range(500):
            status_ok(h.io.store(b's%d' % (i % 20), bytes(2000)))
            assert len(h.io.retrieve(b's%d' % (i % 20), 2000)[1]) == 2000
        stop.set()
        for t in threads:
            t.join()
        assert n[0] > 0


def in_folder(run):
    with tempfile.TemporaryDirectory(prefix='kvof-http-') as folder:
        return run(folder)


sys.exit(run_all(' '.join(sys.argv[2:]), in_folder))
