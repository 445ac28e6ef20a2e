#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvof serve` on real block devices of this machine: loop devices of 512 and 4096 byte sectors.

usage: loop_dev.py KVOF [WORDS]      runs the cases whose name contains WORDS

Killed and started again, full, held exclusively, with a drive gone. Skipped only where the machine
gives no loop device, with what losetup said; tests/guest does the same on other devices then.
"""
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

from cases import each, run_all
from nvmetcp import Array, Closed, Host, status_ok

KVOF = sys.argv[1]
SECTORS = (512, 4096)
MIB = 1 << 20
DRIVE_BYTES = 64 * MIB


def run(*words, timeout=20):
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout)


class Loops:
    """Loop devices over sparse files in a folder; detached at the end, and no others."""

    def __init__(self, folder, sector, count=2, size=DRIVE_BYTES):
        self.paths, self.files, self.devices, self.arrays = [], [], [], []
        for number in range(count):
            file = os.path.join(folder, f'drive{number}')
            with open(file, 'wb') as f:
                f.truncate(size)
            self.files.append(file)
            self.devices.append(self.attach(file, sector))
            self.paths.append(os.path.join(folder, f'disk{number}'))
            os.symlink(self.devices[-1], self.paths[-1])

    @staticmethod
    def attach(file, sector):
        got = run('losetup', '--direct-io=on', '-b', str(sector), '-f', '--show', file)
        if got.returncode != 0:
            raise OSError(f'`losetup -f --show` failed with {got.returncode}: {got.stderr.strip()}')
        return got.stdout.strip()

    def detach(self, number):
        """The drive is gone, and so is its name."""
        got = run('losetup', '-d', self.devices[number])
        assert got.returncode == 0, got.stderr
        os.unlink(self.paths[number])
        self.devices[number] = None

    def allocated(self):
        return sum(os.stat(f).st_blocks * 512 for f in self.files)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for array in self.arrays:
            if array.proc.poll() is None:
                array.proc.kill()
                array.proc.wait()
        for device in self.devices:
            if device:
                run('losetup', '-d', device)


def key_of(n):
    return hashlib.sha256(b'%d' % n).digest()[:16]


def value_of(n):
    return random.Random(n).randbytes(4096 + n * 7919 % 60000)


def fill(array, numbers):
    with Host(array.port) as host:
        for n in numbers:
            status_ok(host.io.store(key_of(n), value_of(n)))


def count_whole(array, numbers):
    """How many of the values are there; one with other bytes fails."""
    there = 0
    with Host(array.port) as host:
        for n in numbers:
            answer, data = host.io.retrieve(key_of(n), 65536)
            if answer.status == (0, 0x87):
                continue
            status_ok(answer)
            assert data[:answer.dw0] == value_of(n), f'value {n} has other bytes'
            there += 1
    return there


def stat(array):
    got = run(KVOF, 'stat', f'tcp://127.0.0.1:{array.port}', '--json')
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout)


def serve(loops, *more):
    loops.arrays.append(Array(KVOF, *more, drives=loops.paths))
    return loops.arrays[-1]


@each('values are there after a stop and after kill -9', SECTORS)
def restarts(d, sector):
    with Loops(d, sector) as loops:
        array = serve(loops)
        fill(array, range(40))
        assert array.stop()[0] == 0
        array = serve(loops)
        assert count_whole(array, range(40)) == 40
        fill(array, range(40, 80))
        array.proc.kill()
        array.proc.wait()
        array = serve(loops)
        assert count_whole(array, range(80)) == 80
        assert array.stop()[0] == 0


@each('ten kills in the middle of Stores lose nothing that was acknowledged', SECTORS)
def kills(d, sector):
    with Loops(d, sector) as loops:
        acknowledged, turn = [], 0
        while turn < 10:
            array = serve(loops)
            assert count_whole(array, acknowledged) == len(acknowledged)
            first = 1000 * turn
            with Host(array.port) as host:
                for n in range(first, first + 12):
                    status_ok(host.io.store(key_of(n), value_of(n)))
                    acknowledged.append(n)
                try:
                    for n in range(first + 12, first + 20):
                        if n == first + 14 + turn % 4:
                            array.proc.send_signal(signal.SIGKILL)
                        status_ok(host.io.store(key_of(n), value_of(n)))
                        acknowledged.append(n)
                except (OSError, Closed, AssertionError):
                    pass
            array.proc.kill()
            array.proc.wait()
            turn += 1
        array = serve(loops)
        assert count_whole(array, acknowledged) == len(acknowledged)
        assert array.stop()[0] == 0


@each('a device in use is refused by either side', SECTORS)
def exclusive(d, sector):
    with Loops(d, sector) as loops:
        array = serve(loops)
        second = run(KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', loops.paths[1],
                     '--format')
        assert second.returncode != 0 and len(second.stderr.strip().splitlines()) == 1, second
        assert loops.paths[1] in second.stderr, second.stderr
        for path in loops.paths:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_EXCL))
                raise AssertionError(f'{path} could be opened exclusively')
            except OSError as error:
                assert error.errno == errno.EBUSY, error
        got = run('mkfs.ext4', '-q', '-F', loops.paths[0])
        assert got.returncode != 0, 'mkfs.ext4 formatted a drive in use'
        fill(array, range(5))
        assert count_whole(array, range(5)) == 5
        assert array.stop()[0] == 0
        held = os.open(loops.paths[0], os.O_RDWR | os.O_EXCL)
        try:
            refused = run(KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0',
                          *sum((['--drive', p] for p in loops.paths), []))
            assert refused.returncode != 0 and loops.paths[0] in refused.stderr, refused
        finally:
            os.close(held)


@each('a device with a file system is refused unless told to format', SECTORS)
def foreign(d, sector):
    with Loops(d, sector, count=1) as loops:
        got = run('mkfs.ext4', '-q', '-F', loops.paths[0])
        assert got.returncode == 0, got.stderr
        refused = run(KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive', loops.paths[0])
        assert refused.returncode != 0 and loops.paths[0] in refused.stderr, refused
        assert run('e2fsck', '-fn', loops.paths[0]).returncode == 0, 'the file system was touched'
        array = serve(loops, '--format')
        fill(array, range(5))
        assert array.stop()[0] == 0
        array = serve(loops)
        assert count_whole(array, range(5)) == 5
        assert array.stop()[0] == 0


@each('a drive that is gone is refused at start, and costs its share when told so', SECTORS)
def missing(d, sector):
    with Loops(d, sector, count=4) as loops:
        array = serve(loops)
        fill(array, range(200))
        assert array.stop()[0] == 0
        loops.detach(2)
        for paths in (loops.paths, loops.paths[:2] + loops.paths[3:]):
            refused = run(KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0',
                          *sum((['--drive', p] for p in paths), []))
            assert refused.returncode != 0 and not refused.stdout, refused
            assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
            if paths == loops.paths:
                assert loops.paths[2] in refused.stderr, refused.stderr
        array = serve(loops, '--degraded')
        left = count_whole(array, range(200))
        assert 100 <= left < 200, f'{left} of 200 values, one drive of four is gone'
        fill(array, range(300, 310))
        assert count_whole(array, range(300, 310)) == 10
        assert array.stop()[0] == 0


@each('room that eviction frees is given back to the devices, and the cap is theirs', SECTORS)
def trim(d, sector):
    with Loops(d, sector) as loops:
        array = serve(loops)
        most = given_back = 0
        with Host(array.port) as host:
            for n in range(400):
                status_ok(host.io.store(key_of(n), random.Random(n).randbytes(MIB)))
                now = loops.allocated()
                most, given_back = max(most, now), max(given_back, most - now)
        told = stat(array)
        assert told['evicted_keys'] > 0, told
        assert told['used_bytes'] <= told['capacity_bytes'] <= 2 * DRIVE_BYTES, told
        assert array.stop()[0] == 0
        array = serve(loops)
        assert stat(array)['used_bytes'] <= told['capacity_bytes']
        assert array.stop()[0] == 0
        assert given_back >= 4 * MIB, f'at most {given_back} of {most} bytes were given back'


def main():
    folder = tempfile.mkdtemp(prefix='kvof-loop-')
    try:
        try:
            Loops(folder, 4096, count=1).__exit__()
        except (OSError, FileNotFoundError) as error:
            print(f'1..0 # SKIP no loop device: {error}')
            return 0

        def call(case):
            d = tempfile.mkdtemp(dir=folder)
            try:
                return case(d)
            finally:
                shutil.rmtree(d, ignore_errors=True)

        return run_all(sys.argv[2] if len(sys.argv) > 2 else '', call)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
