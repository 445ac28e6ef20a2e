#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cap and the reopening of a real array on real files: ten times the cap is written over the
fabric; usage never passes the cap; after a kill and after a clean stop the reopening reads at most
1 % of the data's bytes, counted by the kernel at the device (/proc/PID/io), and serves.

usage: cap_real.py KVOF
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

from cases import Tap

KVOF = sys.argv[1]
DRIVES, DRIVE_MIB, CAP_MIB, VALUE = 4, 160, 400, 256 * 1024


class Array:
    def __init__(self, folder):
        self.files = [os.path.join(folder, f'd{i}') for i in range(DRIVES)]
        self.start()

    def start(self):
        command = [KVOF, 'serve', '--listen', 'tcp://127.0.0.1:0', '--kv', f'{CAP_MIB}MiB',
                   '--drive-depth', '32']     # else the probe of the depth reads the drives too
        for file in self.files:
            command += ['--drive', f'{file},size={DRIVE_MIB}MiB']
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.target = re.match(r'ready (\S+)', self.process.stdout.readline())[1]

    def stop(self, signo):
        self.process.send_signal(signo)
        self.process.wait(10)

    def read_bytes(self):
        with open(f'/proc/{self.process.pid}/io') as f:
            return int(re.search(r'read_bytes: (\d+)', f.read())[1])

    def stat(self):
        out = subprocess.run([KVOF, 'stat', self.target, '--json'], capture_output=True, text=True,
                             check=True, timeout=10)
        return json.loads(out.stdout)

    def disk_bytes(self):
        return max(os.stat(f).st_blocks * 512 for f in self.files)


def write_ten_times(array, seen):
    """Every key is new, so every byte has to find room; usage is watched all the while."""
    keys = 10 * CAP_MIB * 1024 * 1024 // VALUE
    bench = subprocess.Popen([KVOF, 'bench', 'fabric', array.target, '--op', 'exist',
                              '--value-bytes', str(VALUE), '--keys', str(keys), '--seconds', '0.1',
                              '--keep', '--json'], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    ended = threading.Event()
    threading.Thread(target=lambda: (bench.wait(), ended.set()), daemon=True).start()
    while not ended.wait(0.2):
        stat = array.stat()
        seen['used'] = max(seen['used'], stat['used_bytes'])
        seen['disk'] = max(seen['disk'], array.disk_bytes())
        seen['looks'] += 1
    stat = array.stat()
    seen['written'] = stat['device_write_bytes']
    seen['evicted'] = stat['evicted_keys']


def main():
    tap = Tap()

    def check(good, name, detail):
        tap.tell(f'{name} ({detail})', None if good else detail)

    with tempfile.TemporaryDirectory(dir='.') as folder:
        array = Array(folder)
        seen = {'used': 0, 'disk': 0, 'looks': 0}
        cap = CAP_MIB << 20
        write_ten_times(array, seen)
        check(seen['written'] >= 10 * cap and seen['evicted'] > 0, 'ten times the cap is written',
              f'{seen["written"] >> 20} MiB, {seen["evicted"]} keys evicted')
        check(0 < seen['used'] <= cap, 'usage never passes the cap',
              f'{seen["used"]} of {cap} bytes at most in {seen["looks"]} looks')
        check(seen['disk'] <= (DRIVE_MIB << 20) + (1 << 20), 'no file grows past its size',
              f'{seen["disk"]} bytes on disk')
        for signo, how in ((signal.SIGTERM, 'a clean stop'), (signal.SIGKILL, 'a kill')):
            before = array.stat()
            array.stop(signo)
            array.start()
            read, after = array.read_bytes(), array.stat()
            check(0 < read <= before['value_bytes'] // 100,
                  f'after {how} reopening reads at most 1 % of the data',
                  f'{read} of {before["value_bytes"]} bytes')
            check(after['keys'] == before['keys'] and after['used_bytes'] <= cap,
                  f'after {how} every key is there and usage is right',
                  f'{after["keys"]} of {before["keys"]} keys, {after["used_bytes"]} bytes')
        array.stop(signal.SIGTERM)
    return tap.end()


sys.exit(main())
