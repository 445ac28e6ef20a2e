#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the drives that earlier versions of the format left behind (tests/data/drive-*.img.xz, made
by the program of that time) and reads every value and block; a newer and a foreign drive are refused.

usage: images.py KVOF
"""
import json
import lzma
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from abuse_block import Host, dsm, get, put, status_of
from cases import Tap

KVOF = sys.argv[1]
DATA = pathlib.Path(__file__).resolve().parents[1] / 'data'
BLOCK = 4096


def value(key, version, size):
    word = f'{key}.{version}.'.encode()
    return (word * (size // len(word) + 1))[:size]


def check(tap, name, good, why):
    tap.tell(name, None if good else str(why) or 'no more is known')


def kvof(*args):
    return subprocess.run([KVOF, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                          check=False)


class Array:
    def __init__(self, drive, options=()):
        self.process = subprocess.Popen(
            [KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', *options, '--drive', str(drive)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ready = re.match(r'ready (\S+)', self.process.stdout.readline())
        self.target = ready[1] if ready else None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=20)[1], self.process.returncode


def blocks_read(tap, name, target, told):
    """Of namespace 2: each range holds its version, or zeros where that is 0."""
    with Host(int(target.split(':')[2].split('/')[0])) as h:
        for first, count, version in told['blocks']:
            want = value(f'block{first}', version, count * BLOCK) if version else bytes(count * BLOCK)
            if get(h.io, first, count) != want:
                check(tap, f'{name}: blocks from {first}', False, f'not version {version}')
        at = told['blocks'][-1][0] + told['blocks'][-1][1]
        status_of(put(h.io, at, value('new', 1, BLOCK)), (0, 0))
        good = get(h.io, at, 1) == value('new', 1, BLOCK)
        status_of(dsm(h.io, [(at, 1)]), (0, 0))
        check(tap, f'{name}: {len(told["blocks"])} ranges of blocks, and takes new ones', good,
              'a new block is wrong')


def image_read(tap, name, drive):
    told = json.loads((DATA / f'{name}.json').read_text())
    for start in ('first', 'second'):
        array = Array(drive, told['serve'])
        if array.target is None:
            check(tap, f'{name}: the {start} start', False, array.stop()[0])
            return
        for key, (version, size) in told['values'].items():
            got = kvof('get', array.target, f'text:{key}')
            if got.returncode != 0 or got.stdout != value(key, version, size):
                check(tap, f'{name}: {key}', False, f'{got.returncode}, {len(got.stdout)} bytes')
        gone = [kvof('get', array.target, f'text:{key}').returncode for key in told['deleted']]
        check(tap, f'{name}: deleted keys stay so ({start} start)', gone == [1] * len(gone), gone)
        count = len(kvof('ls', array.target).stdout.splitlines())
        check(tap, f'{name}: {len(told["values"])} values, no other ({start} start)',
                  count == len(told['values']), f'{count} keys are listed')
        put = subprocess.run([KVOF, 'put', array.target, 'text:new'], input=b'x', check=False)
        get = kvof('get', array.target, 'text:new')
        kvof('rm', array.target, 'text:new')
        check(tap, f'{name}: takes new values ({start} start)',
                  put.returncode == 0 and get.stdout == b'x', get.stderr)
        if 'blocks' in told:
            blocks_read(tap, name, array.target, told)
        err, code = array.stop()
        check(tap, f'{name}: stops well ({start} start)', code == 0, err)


def refused(tap, name, drive, word):
    before = drive.read_bytes()
    array = Array(drive)
    err, code = array.stop()
    check(tap, f'{name}: refused with "{word}"', array.target is None and word in err and code == 4,
              f'{code}: {err}')
    check(tap, f'{name}: not a byte is changed', drive.read_bytes() == before, '')


def poke(drive, at, data):
    with open(drive, 'r+b') as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix='kvof-images-') as folder:
        for packed in sorted(DATA.glob('drive-*.img.xz')):
            name = packed.name.replace('.img.xz', '')
            drive = pathlib.Path(folder) / name
            drive.write_bytes(lzma.decompress(packed.read_bytes()))
            image_read(tap, name, drive)
            drive.write_bytes(lzma.decompress(packed.read_bytes()))
            for at in (12, -BLOCK + 12):
                poke(drive, at, b'\x63')
            refused(tap, f'{name}, newer', drive, 'newer')
            for at in (0, -BLOCK):
                poke(drive, at, b'not a drive')
            refused(tap, f'{name}, foreign', drive, "not kvof's")
    return tap.end()


if __name__ == '__main__':
    sys.exit(main())
