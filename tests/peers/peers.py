#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts of other people against `kvof serve`: SPDK (KV initiator, identify, fuzz, perf, bdevperf) and
xNVMe's KV tests, as built by tests/peers/build.sh.

usage: peers.py BUILD [WORDS]      (the array to test; only cases with these words)

Prints TAP. Peers are looked for in KVOF_PEERS (default /tmp/kvof-peers); what is not there is a
skip with the reason. KVOF_FUZZ_S seconds of fuzz a seed (10). Everything is on loopback.
"""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'script'))
from cases import case, run_all                                     # noqa: E402

PEERS = pathlib.Path(os.environ.get('KVOF_PEERS', '/tmp/kvof-peers'))
SPDK = PEERS / 'spdk'
XNVME = PEERS / 'xnvme' / 'build'
NQN = 'nqn.2026-11.io.kvof:array'
# spdk_nvme_perf sends an empty host NQN where none is given; Connect refuses it.
HOST = ' hostnqn:nqn.2014-08.org.nvmexpress:uuid:2fee39be-cc39-400c-b2db-77f1a81ec281'
FUZZ_S = os.environ.get('KVOF_FUZZ_S', '10')
BUILD = None


def need(*paths):
    """Why these can't be run, or None."""
    for path in paths:
        if not pathlib.Path(path).exists():
            return f'{path} is not there: tests/peers/build.sh makes it, KVOF_PEERS says where'
    return None


class Serve:
    """A `kvof serve` of its own; at the end it must still be there, and end well."""

    def __init__(self, *options, port='0'):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix='kvof-peers-'))
        self.err = open(self.dir / 'err', 'w+')
        self.child = subprocess.Popen(
            [f'{BUILD}/kvof', 'serve', '--listen', f'tcp://127.0.0.1:{port}', '--control', 'none',
             *options],
            stdout=subprocess.PIPE, stderr=self.err, text=True, cwd=self.dir)
        hit = re.match(r'ready tcp://127\.0\.0\.1:(\d+) (\S+)', self.child.stdout.readline())
        assert hit, 'kvof serve did not start: ' + self.said()
        self.port = hit[1]

    def said(self):
        self.err.flush()
        return (self.dir / 'err').read_text()[-2000:]

    def address(self, more=''):
        return (f'trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{self.port} subnqn:{NQN}' + more)

    def worked(self, cpu_s, within_s=20):
        """True as soon as it has spent so much time; that is I/O, since it never polls."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            words = pathlib.Path(f'/proc/{self.child.pid}/stat').read_text().rsplit(')', 1)[1]
            if sum(map(int, words.split()[11:13])) > cpu_s * os.sysconf('SC_CLK_TCK') + 20:
                return True
            select.select([], [], [], 0.05)
        return False

    def kill(self):
        self.child.kill()
        self.child.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def rss_kib(self):
        text = pathlib.Path(f'/proc/{self.child.pid}/status').read_text()
        return int(re.search(r'VmRSS:\s+(\d+)', text)[1])

    def files(self):
        return len(os.listdir(f'/proc/{self.child.pid}/fd'))

    def answers(self):
        """A host of ours still gets service, at once."""
        at = f'tcp://127.0.0.1:{self.port}/{NQN}'
        value = self.dir / 'value'
        value.write_bytes(b'is it there?')
        for words in (('put', at, 'text:alive', str(value)), ('get', at, 'text:alive')):
            out = subprocess.run([f'{BUILD}/kvof', *words], capture_output=True, timeout=10)
            assert out.returncode == 0, f'kvof {words[0]}: {out.stderr.decode()}'
        assert out.stdout == b'is it there?', out.stdout

    def attaches(self):
        """A host of ours is shown the subsystem."""
        out = subprocess.run([f'{BUILD}/kvof', 'discover', f'tcp://127.0.0.1:{self.port}'],
                             capture_output=True, text=True, timeout=10)
        assert out.returncode == 0 and NQN in out.stdout, out.stderr

    def __enter__(self):
        return self

    def __exit__(self, kind, what, trace):
        gone = self.child.poll()
        if gone is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                gone = self.child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.child.kill()
                gone = 'not ended within 10 s'
        said = self.said()
        shutil.rmtree(self.dir, ignore_errors=True)
        if kind is None:
            assert gone == 0, f'kvof serve ended with {gone}: {said}'
            assert 'ERROR: ' not in said and 'runtime error' not in said, said


def peer(command, limit_s=120, preload=None, **environment):
    env = {**os.environ, **environment,
           'LD_LIBRARY_PATH': f'{SPDK}/build/lib:{XNVME}/lib'}
    words = [str(w) for w in command]
    if preload:
        words = ['env', f'LD_PRELOAD={preload}', *words]
    out = subprocess.run(words, env=env, capture_output=True, text=True, timeout=limit_s)
    return out.returncode, out.stdout + out.stderr


SMALL = ('--no-huge', '-s', '256')


def huge_pages():
    """xNVMe's SPDK backend has no option to do without; why it can't be run, or None."""
    text = pathlib.Path('/proc/meminfo').read_text()
    if int(re.search(r'HugePages_Free:\s+(\d+)', text)[1]) < 32:
        return 'fewer than 32 huge pages are free: sysctl vm.nr_hugepages=64'
    if 'hugetlbfs' not in pathlib.Path('/proc/mounts').read_text():
        return 'no hugetlbfs is mounted: mount -t hugetlbfs nodev /dev/hugepages'
    return None


# --- KV -----------------------------------------------------------------------------------------

def kv_run(*options):
    lacks = need(PEERS / 'spdk_kv')
    if lacks:
        return lacks
    with Serve('--drive', 'mem,size=512MiB') as serve:
        code, text = peer([PEERS / 'spdk_kv', '127.0.0.1', serve.port, NQN, *options])
        assert code == 0 and '\nnot ok' not in '\n' + text and '1..' in text, text[-2000:]
        serve.answers()
    return None


@case('spdk kv: store, retrieve, exist, delete, list on 1 queue')
def kv_one(what):
    return kv_run('1')


@case('spdk kv: the same on 4 queues at once')
def kv_four(what):
    return kv_run('4')


@case('spdk kv: header and data digests on 4 queues')
def kv_digests(what):
    return kv_run('4', 'hdgst', 'ddgst')


# --- identify -----------------------------------------------------------------------------------

@case('spdk identify: controller, its limits, the KV namespace and its ids')
def identify(what):
    tool = SPDK / 'build/bin/spdk_nvme_identify'
    lacks = need(tool)
    if lacks:
        return lacks
    with Serve('--drive', 'mem,size=256MiB') as serve:
        code, text = peer([tool, *SMALL, '-r', serve.address()])
        assert code == 0, text[-1000:]
        for words in ('kvof array', 'Traffic Based Keep ALive:            Supported',
                      'Namespace ID:1', 'Command Set Identifier:                KV (01h)'):
            assert words in text, f'{words!r} is not in: {text[-3000:]}'
        assert re.search(r'NGUID: +[0-9A-F]{32}\n', text) and re.search(r'UUID: +[0-9a-f-]{36}', text)
        serve.answers()
    return None


# --- fuzz ---------------------------------------------------------------------------------------

def fuzz(seed, *more, options=(), alive=True):
    tool = SPDK / 'test/app/fuzz/nvme_fuzz/nvme_fuzz'
    lacks = need(tool)
    if lacks:
        return lacks
    with Serve('--drive', 'mem,size=512MiB', *options) as serve:
        answers = serve.answers if alive else serve.attaches
        answers()
        rss, files = serve.rss_kib(), serve.files()
        for turn in range(2):
            code, text = peer([tool, '-m', '0x1', '--no-huge', '-s', '512', '-t', FUZZ_S, '-S',
                               seed + turn, '-U', *more, '-F', serve.address()],
                              limit_s=int(FUZZ_S) + 60)
            done = [int(n) for n in re.findall(r'Total commands completed: (\d+)', text)]
            assert code == 0 and sum(done) > 1000, f'{code} {text[-1500:]}'
            assert 'Outstanding' not in text and 'timeout' not in text.lower(), text[-1500:]
            assert serve.child.poll() is None, serve.said()
            answers()
            if turn == 0:
                rss = max(rss, serve.rss_kib())
        grown = serve.rss_kib() - rss
        assert grown < 8192 or 'asan' in str(BUILD), f'{grown} KiB more after the second turn'
        end = time.monotonic() + 5
        while serve.files() > files and time.monotonic() < end:
            answers()
        assert serve.files() <= files, f'{serve.files()} files open, {files} before'
    return None


@case('spdk nvme_fuzz: any namespace id, admin and I/O, is answered and leaves nothing behind')
def fuzz_any(what):
    return fuzz(11, '-a')


@case('spdk nvme_fuzz: the KV namespace alone')
def fuzz_namespace(what):
    return fuzz(21, '-a', '-N')


@case('spdk nvme_fuzz: a block namespace alone')
def fuzz_block(what):
    return fuzz(31, '-a', '-N', alive=False, options=('--kv', '0', '--block', '128MiB'))


# No -a: with two namespaces nvme_fuzz has 36 admin commands for a queue of 32, and the last of them
# never leaves it.
@case('spdk nvme_fuzz: I/O of a KV and a block namespace, on two loops')
def fuzz_both(what):
    return fuzz(41, '-N', options=('--block', '128MiB', '--loops', '2'))


# --- block --------------------------------------------------------------------------------------

def block_serve(**more):
    return Serve('--drive', 'mem,size=768MiB', '--block', '256MiB', **more)


@case('spdk perf: 4 KiB reads and writes on 4 queues of depth 32, with and without digests')
def perf(what):
    tool = SPDK / 'build/bin/spdk_nvme_perf'
    lacks = need(tool)
    if lacks:
        return lacks
    with block_serve() as serve:
        for more in ((), ('-H', '-I')):
            code, text = peer([tool, *SMALL, '-q', '32', '-P', '4', '-o', '4096', '-w', 'randrw',
                               '-M', '50', '-t', '3', *more, '-r', serve.address(HOST + ' ns:2')])
            assert code == 0 and re.search(r'Total\s+:\s+\d', text), text[-1500:]
            # At its end it disconnects with I/O under way; SPDK's own target sees the same line.
            ends = [line for line in text.splitlines() if 'CQ transport error -6' not in line]
            assert not any('*ERROR*' in line for line in ends), text[-1500:]
        serve.answers()
    return None


@case('spdk bdevperf -w verify: every byte of 4 KiB and 128 KiB writes comes back')
def bdevperf(what):
    tool = SPDK / 'build/examples/bdevperf'
    lacks = need(tool)
    if lacks:
        return lacks
    with block_serve() as serve:
        config = serve.dir / 'bdev.json'
        config.write_text(json.dumps({'subsystems': [{'subsystem': 'bdev', 'config': [{
            'method': 'bdev_nvme_attach_controller', 'params': {
                'name': 'K', 'trtype': 'tcp', 'adrfam': 'ipv4', 'traddr': '127.0.0.1',
                'trsvcid': serve.port, 'subnqn': NQN, 'hdgst': True, 'ddgst': True}}]}]}))
        for size in ('4096', '131072'):
            code, text = peer([tool, '--no-huge', '-s', '512', '--json', config, '-q', '16', '-o',
                               size, '-w', 'verify', '-t', '3'])
            assert code == 0 and re.search(r'Total\s+:\s+\d', text), text[-1500:]
            assert 'Kn2' in text and not re.search(r'fail(ed)? [1-9]', text), text[-1500:]
        serve.answers()
    return None


@case('spdk abort: reads that wait can be aborted, and all end')
def abort(what):
    tool = SPDK / 'build/examples/abort'
    lacks = need(tool)
    if lacks:
        return lacks
    with block_serve() as serve:
        code, text = peer([tool, *SMALL, '-q', '64', '-o', '65536', '-w', 'randread', '-t', '3',
                           '-c', '0x1', '-r', serve.address(' ns:2')])
        done = re.search(r'NSID 2 I/O completed: (\d+), failed: (\d+)', text)
        told = re.search(r'success (\d+), unsuccessful (\d+), failed (\d+)', text)
        assert code == 0 and done and told and int(done[1]) > 0, text[-1500:]
        assert done[2] == told[1] and told[3] == '0', f'{done[0]}; {told[0]}'
        serve.answers()
    return None


@case('spdk reconnect: a host attaches again after the array was killed and started')
def reconnect(what):
    tool = SPDK / 'build/examples/reconnect'
    lacks = need(tool)
    if lacks:
        return lacks
    options = ('--kv', '0', '--drive', 'mem,size=512MiB', '--block', '256MiB')
    first = Serve(*options)
    host = subprocess.Popen(
        [str(w) for w in (tool, *SMALL, '-q', '32', '-o', '4096', '-w', 'randrw', '-M', '50', '-t', '8',
                          '-c', '0x1', '-r', first.address(' ns:1'))],
        env={**os.environ, 'LD_LIBRARY_PATH': f'{SPDK}/build/lib'}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert first.worked(0.1), 'no I/O came'
    first.kill()
    with Serve(*options, port=first.port):
        text, _ = host.communicate(timeout=60)         # its I/O is over then: it starts none anew
        assert host.returncode == 0, text[-1500:]
        assert 'Controller properly reset.' in text, text[-1500:]
    return None


# --- xNVMe --------------------------------------------------------------------------------------

class Xnvme:
    """Its KV tool and test over SPDK's TCP host."""

    def __init__(self, serve):
        self.at = [f'127.0.0.1:{serve.port}', '--be', 'spdk', '--dev-nsid', '1']
        self.nqn = ['--subnqn', NQN]

    def run(self, program, *words, env=None):
        return peer([XNVME / program, words[0], *self.at, *words[1:]], limit_s=60,
                    preload=f'{SPDK}/build/lib/libspdk_sock_posix.so', **(env or {}))

    def test(self, *words, env=None):
        return self.run('tests/xnvme_tests_kvs', 'kvs_io', *words, *self.nqn, env=env)

    def kvs(self, good, command, *words):
        code, text = self.run('tools/kvs', command, *words)
        assert (code == 0) == good, f'kvs {command} {words}: {code} {text[-800:]}'
        return text


def xnvme_case(body):
    lacks = need(XNVME / 'tests/xnvme_tests_kvs', XNVME / 'tools/kvs') or huge_pages()
    if lacks:
        return lacks
    with Serve('--drive', 'mem,size=256MiB') as serve:
        body(Xnvme(serve))
        serve.answers()
    return None


@case('xnvme_tests_kvs kvs_io: its own key and value, and others')
def xnvme_io(what):
    def body(x):
        for words in ((), ('--key', 'tango', '--value', 'charlie')):
            code, text = x.test(*words)
            assert code == 0, text[-800:]
    return xnvme_case(body)


@case('xnvme_tests_kvs kvs_io: with both digests, a value of a multiple of 4 bytes')
def xnvme_digests(what):
    def body(x):
        code, text = x.test('--value', 'pol', env={'XNVME_DIGESTS': '1'})
        assert code == 0, text[-800:]
        # SPDK fills the digest of 5 bytes up to 8 with zeros that are not on the wire: refused.
        code, text = x.test('--value', 'polo', env={'XNVME_DIGESTS': '1'})
        assert code != 0 and 'sc: 0x22, sct: 0x0' in text, text[-800:]
    return xnvme_case(body)


@case('xnvme kvs: the steps of its test_kvs.py')
def xnvme_kvs(what):
    def body(x):
        key, value = ('--key', 'hello'), ('--value', 'world')
        x.kvs(True, 'idfy-ns', '--nsid', '1')
        x.kvs(False, 'exist', *key)
        x.kvs(False, 'retrieve', *key)
        x.kvs(False, 'store', *key, *value, '--only-update')
        x.kvs(True, 'store', *key, *value, '--only-add')
        x.kvs(True, 'store', *key, *value, '--only-update')
        x.kvs(True, 'store', *key, *value, '--compress')
        x.kvs(True, 'store', *key, *value)
        x.kvs(True, 'exist', *key)
        x.kvs(True, 'retrieve', *key)
        x.kvs(False, 'store', *key, *value, '--only-add')
        x.kvs(True, 'store', '--key', 'marco', '--value', 'polo')
        x.kvs(True, 'list', *key)
        x.kvs(True, 'delete', *key)
        x.kvs(False, 'exist', *key)
        x.kvs(True, 'store', *key, *value, '--only-add')
    return xnvme_case(body)


def main():
    global BUILD
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    return run_all(sys.argv[2] if len(sys.argv) > 2 else '', lambda run: run(None))


if __name__ == '__main__':
    sys.exit(main())
