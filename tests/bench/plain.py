#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plain loop beside io_uring, in turns on one machine: what does it cost to go without?

usage: plain.py BUILD [--folder DIR] [--seconds S] [--rounds R]

Over loopback `kvof bench fabric` and an array of memory, both of one kind; on drives that are files
in DIR `kvof bench store`. Prints one JSON object: medians of operations a second, p99 and CPU (of
array and client together) an operation, and the ratios plain to io_uring. It judges nothing.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile

KINDS = ('io_uring', 'plain')
FABRIC = {'fabric_retrieve_4KiB': ('retrieve', 4096, 64), 'fabric_retrieve_1MiB': ('retrieve', 1 << 20, 16),
          'fabric_store_1MiB': ('store', 1 << 20, 16)}
STORE = {'store_retrieve_4KiB': ('retrieve', 4096, 32), 'store_retrieve_1MiB': ('retrieve', 1 << 20, 16),
         'store_store_1MiB': ('store', 1 << 20, 16)}


def cpu_s(pid):
    with open(f'/proc/{pid}/stat') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


class Array:
    def __init__(self, build, kind):
        self.proc = subprocess.Popen(
            [f'{build}/kvof', 'serve', '--listen', 'tcp://127.0.0.1:0', '--loop-kind', kind, '--loops', '1',
             '--control', 'none', '--drive', 'mem,size=512MiB'],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.target = re.match(r'ready (\S+)', self.proc.stdout.readline())[1]

    def stop(self):
        self.proc.terminate()
        self.proc.wait()


def bench(build, kind, words, work, seconds):
    op, size, depth = work
    out = subprocess.run(
        [f'{build}/kvof', 'bench', *words, '--op', op, '--value-bytes', str(size), '--depth', str(depth),
         '--keys', '128', '--seconds', str(seconds), '--json'],
        capture_output=True, text=True, check=True, env={**os.environ, 'KVOF_LOOP': kind}).stdout
    row = json.loads(out)
    assert row['loop'] == kind, row
    return row


def fabric(opts, kind, array, work):
    before = cpu_s(array.proc.pid)
    row = bench(opts.build, kind, ['fabric', array.target], work, opts.seconds)
    cpu = row['cpu_s'] + cpu_s(array.proc.pid) - before
    return row['ops_per_s'], row['p99_us'], cpu / row['ops_per_s'] / opts.seconds


def store(opts, kind, folder, work):
    drives = [w for i in range(2) for w in ('--drive', f'{folder}/d{i},size=512MiB')]
    row = bench(opts.build, kind, ['store', '--format', *drives], work, opts.seconds)
    return row['ops_per_s'], row['p99_us'], row['cpu_s'] / row['ops_per_s'] / opts.seconds


def told(rows):
    mid = {k: [statistics.median(r[i] for r in rows[k]) for i in range(3)] for k in KINDS}
    return {'ops_per_s': {k: round(m[0]) for k, m in mid.items()},
            'p99_us': {k: round(m[1]) for k, m in mid.items()},
            'cpu_us_per_op': {k: round(m[2] * 1e6, 1) for k, m in mid.items()},
            'ratio': round(mid['plain'][0] / mid['io_uring'][0], 2),
            'cpu_ratio': round(mid['plain'][2] / mid['io_uring'][2], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--folder', default=tempfile.gettempdir())
    parser.add_argument('--seconds', type=float, default=1)
    parser.add_argument('--rounds', type=int, default=5)
    opts = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='kvof-bench-', dir=opts.folder)
    arrays, out = {}, {'rounds': opts.rounds, 'seconds': opts.seconds, 'cores': os.cpu_count()}
    try:
        for kind in KINDS:
            arrays[kind] = Array(opts.build, kind)
        for works, run, at in ((FABRIC, fabric, arrays), (STORE, store, dict.fromkeys(KINDS, folder))):
            for name, work in works.items():
                rows = {k: [] for k in KINDS}
                for _ in range(opts.rounds):
                    for kind in KINDS:
                        rows[kind].append(run(opts, kind, at[kind], work))
                out[name] = told(rows)
    finally:
        for array in arrays.values():
            array.stop()
        shutil.rmtree(folder)
    print(json.dumps(out))


if __name__ == '__main__':
    main()
