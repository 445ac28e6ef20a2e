#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The array with one loop and with more, in turns on one machine: does spreading pay, what does it cost?

usage: loops.py BUILD [--loops N] [--queues Q] [--seconds S] [--rounds R]

Each round measures both arrays, one after the other, with `kvof bench fabric` over loopback from
memory: exist and retrieve of 4 KiB with 128 in flight, retrieve of 1 MiB with 32. Prints one JSON
object: operations per second and the array's CPU seconds per operation, medians, and the ratios
(N loops to one). It judges nothing.
"""
import argparse
import json
import os
import re
import statistics
import subprocess

WORK = {'exist_4KiB': ('exist', 4096, 128), 'retrieve_4KiB': ('retrieve', 4096, 128),
        'retrieve_1MiB': ('retrieve', 1 << 20, 32), 'store_1MiB': ('store', 1 << 20, 32)}


def cpu_s(pid):
    with open(f'/proc/{pid}/stat') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


class Array:
    def __init__(self, build, loops):
        self.proc = subprocess.Popen(
            [f'{build}/kvof', 'serve', '--listen', 'tcp://127.0.0.1:0', '--loops', str(loops), '--shards',
             str(loops), '--control', 'none', '--drive', 'mem,size=1GiB'],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.target = re.match(r'ready (\S+)', self.proc.stdout.readline())[1]

    def stop(self):
        self.proc.terminate()
        self.proc.wait()


def measure(build, array, work, queues, seconds):
    op, size, depth = WORK[work]
    before = cpu_s(array.proc.pid)
    out = subprocess.run(
        [f'{build}/kvof', 'bench', 'fabric', array.target, '--op', op, '--value-bytes', str(size),
         '--depth', str(depth), '--queues', str(queues), '--keys', '128', '--seconds', str(seconds), '--json'],
        capture_output=True, text=True, check=True).stdout
    row = json.loads(out)
    return row['ops_per_s'], row['p99_us'], (cpu_s(array.proc.pid) - before) / (row['ops_per_s'] * seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--loops', type=int, default=2)
    parser.add_argument('--queues', type=int, default=4)
    parser.add_argument('--seconds', type=float, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    opts = parser.parse_args()
    rows = {w: {1: [], opts.loops: []} for w in WORK}
    arrays = {n: Array(opts.build, n) for n in (1, opts.loops)}
    try:
        for work in WORK:
            for _ in range(opts.rounds):
                for n, array in arrays.items():
                    rows[work][n].append(measure(opts.build, array, work, opts.queues, opts.seconds))
    finally:
        for array in arrays.values():
            array.stop()
    out = {'loops': opts.loops, 'queues': opts.queues, 'rounds': opts.rounds, 'cores': os.cpu_count()}
    for work, by in rows.items():
        mid = {n: [statistics.median(r[i] for r in by[n]) for i in range(3)] for n in by}
        out[work] = {
            'ops_per_s': {n: round(m[0]) for n, m in mid.items()},
            'p99_us': {n: round(m[1]) for n, m in mid.items()},
            'cpu_us_per_op': {n: round(m[2] * 1e6, 1) for n, m in mid.items()},
            'ratio': round(mid[opts.loops][0] / mid[1][0], 2),
            'cpu_ratio': round(mid[opts.loops][2] / mid[1][2], 2)}
    print(json.dumps(out))


if __name__ == '__main__':
    main()
