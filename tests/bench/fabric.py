#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Retrieve and Store over loopback from memory, beside a raw TCP stream, in turns on one machine.

usage: fabric.py BUILD [--value-bytes N] [--queues Q] [--depth D] [--seconds S] [--rounds R]

The stream moves buffers of the same size, from a set of the same size, over as many connections,
pinned alike: sender and array on one core, receiver and host on another. Prints one JSON object:
bytes per second and CPU seconds per GB of both ends together, the medians of all rounds, and the
ratios. It judges nothing.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys


def cpu_s(pid):
    with open(f'/proc/{pid}/stat') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def words(*all_):
    return [str(w) for w in all_]


class Bench:
    def __init__(self, opts):
        self.opts = opts
        self.pin = (os.cpu_count() or 1) > 1
        size = opts.keys * opts.value_bytes * 2 + (512 << 20)
        self.serve = subprocess.Popen(
            self.on(0) + words(f'{opts.build}/kvof', 'serve', '--listen', 'tcp://127.0.0.1:0',
                               '--drive', f'mem,size={size >> 20}MiB'),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.serve.stdout.readline()
        self.target = re.match(r'ready (\S+)', line)[1]
        # Memory that was never touched costs the kernel a cleared page: once through all of it
        # (the first keys are evicted by the last, so this bench fails, as it should).
        subprocess.run(words(f'{opts.build}/kvof', 'bench', 'fabric', self.target, '--op', 'exist',
                             '--value-bytes', 1 << 20, '--keys', (size >> 20) * 11 // 10,
                             '--seconds', '0.01', '--keep', '--json'),
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def on(self, core):
        return ['taskset', '-c', str(core)] if self.pin else []

    def raw(self):
        o = self.opts
        out = subprocess.run(
            words(f'{o.build}/tests/bench/loop_stream', '--mode', 'raw', '--buffer-bytes',
                  o.value_bytes, '--set-bytes', o.keys * o.value_bytes, '--streams', o.queues,
                  '--seconds', o.seconds,
                  *(('--cpu-send', 0, '--cpu-recv', 1) if self.pin else ())),
            capture_output=True, text=True, check=True).stdout
        row = json.loads(out)
        return row['bytes_per_s'], row['cpu_s'] / (row['bytes'] / 1e9)

    def kvof(self, op, *more):
        o = self.opts
        before = cpu_s(self.serve.pid)
        out = subprocess.run(
            self.on(1) + words(f'{o.build}/kvof', 'bench', 'fabric', self.target, '--op', op,
                               '--value-bytes', o.value_bytes, '--depth', o.depth, '--queues',
                               o.queues, '--keys', o.keys, '--seconds', o.seconds, '--json',
                               '--keep', *more),
            capture_output=True, text=True, check=True).stdout
        row = json.loads(out)
        moved = row['ops'] * o.value_bytes / 1e9
        # The array's time includes the filling: its share of all bytes is left out by proportion.
        filled = o.keys * o.value_bytes / 1e9 if op == 'retrieve' else 0
        served = (cpu_s(self.serve.pid) - before) * moved / (moved + filled)
        return row['bytes_per_s'], (row['cpu_s'] + served) / moved

    def run(self):
        runs = {'raw': [], 'retrieve': [], 'retrieve_stamps': [], 'store': []}
        for _ in range(self.opts.rounds):
            runs['raw'].append(self.raw())
            runs['retrieve'].append(self.kvof('retrieve'))
            runs['retrieve_stamps'].append(self.kvof('retrieve', '--verify', 'stamps'))
            runs['store'].append(self.kvof('store'))
        out = {'value_bytes': self.opts.value_bytes, 'queues': self.opts.queues,
               'depth': self.opts.depth, 'keys': self.opts.keys, 'rounds': self.opts.rounds,
               'pinned': self.pin, 'load': os.getloadavg()[0]}
        for name, rows in runs.items():
            out[name] = {'bytes_per_s': statistics.median(r[0] for r in rows),
                         'cpu_s_per_gb': statistics.median(r[1] for r in rows)}
        for name in list(runs)[1:]:
            out[name]['of_raw'] = out[name]['bytes_per_s'] / out['raw']['bytes_per_s']
            out[name]['cpu_of_raw'] = out[name]['cpu_s_per_gb'] / out['raw']['cpu_s_per_gb']
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--value-bytes', type=int, default=1 << 20)
    parser.add_argument('--queues', type=int, default=1)
    parser.add_argument('--depth', type=int, default=8)
    parser.add_argument('--keys', type=int, default=128)
    parser.add_argument('--seconds', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=3)
    bench = Bench(parser.parse_args())
    try:
        print(json.dumps(bench.run()))
    finally:
        bench.serve.terminate()
        bench.serve.wait()


if __name__ == '__main__':
    sys.exit(main())
