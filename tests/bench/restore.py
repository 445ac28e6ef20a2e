#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cold restore of 30K tokens of SmolLM2's geometry (0.7 GB): from local drives beside fio on the same
files, with and without a millisecond added to each read, and over the wire; and over block tokens
and part sizes.

usage: restore.py BUILD [--dir D] [--drives N] [--rounds R] [--no-wire] [--no-sweep]

Rounds take turns: fio at its best depth, the restore with 16 parts in flight, the restore with the
default staging; then the same with the delay (below the store, and in a proxy that both directions of the
wire go through), and the same reads one after another. Prints one JSON object with medians and
ratios; judges nothing. The files are removed at the end.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

DEPTHS = (4, 8, 16, 32, 64)
PART = 256 << 10
TOKENS, TOKEN_BYTES = 30208, 23040
BYTES = TOKENS * TOKEN_BYTES


def say(text):
    print(text, file=sys.stderr, flush=True)


def fio(files, kind, block, depth, *more):
    """Bytes per second; the depth is shared by the files."""
    command = ['fio', '--ioengine=io_uring', '--direct=1', f'--rw={kind}', f'--bs={block}',
               f'--iodepth={max(1, depth // len(files))}', '--group_reporting', '--output-format=json',
               '--randrepeat=0', *more]
    for i, file in enumerate(files):
        command += [f'--name=j{i}', f'--filename={file}']
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return sum(j['write' if 'write' in kind else 'read']['bw_bytes'] for j in out['jobs'])


class Bench:
    def __init__(self, build, files, rounds):
        self.program = f'{build}/tests/bench/restore'
        self.files, self.rounds = files, rounds

    def run(self, *words, drives=True):
        files = [f'flash={file}' for file in self.files] if drives else []
        out = subprocess.run([self.program, *files, *words], capture_output=True, text=True)
        if out.returncode != 0:
            raise SystemExit(f'{words}: {out.stderr}')
        return json.loads(out.stdout)

    def restore(self, *words, **more):
        """One restore of values that are there already."""
        return self.run('save=0', 'rounds=1', *words, **more)


def local(bench, files):
    """Both rows of the design's figures."""
    # one layer a block: the parts are then exactly those of the figure
    bench.run(f'part={PART}', 'layers=1', 'rounds=1')
    # where the store has just written, as much as a restore reads: what is below may cache it alike
    where = ('--time_based', '--runtime=2', f'--size={BYTES // len(files) >> 20}m', '--norandommap')
    rates = {d: fio(files, 'randread', PART, d, *where) for d in DEPTHS}
    depth = max(rates, key=rates.get)
    rows = {name: [] for name in ('fio', 'deep', 'sixteen', 'slow_deep', 'slow_sixteen', 'serial',
                                  'slow_serial')}
    for turn in range(bench.rounds):
        say(f'local, round {turn + 1} of {bench.rounds}')
        base = (f'part={PART}', 'layers=1')
        rows['fio'].append(BYTES / fio(files, 'randread', PART, depth, *where))
        for name, words in (('deep', ()), ('sixteen', ('concurrency=16',)),
                            ('slow_deep', ('delay_us=1000',)),
                            ('slow_sixteen', ('concurrency=16', 'delay_us=1000'))):
            rows[name] += bench.restore(*base, *words)['restore_s']
        for name, delay in (('serial', 0), ('slow_serial', 1000)):
            rows[name] += bench.run(f'serial={files[0]}', f'delay_us={delay}', f'part={PART}',
                                    'rounds=1', drives=False)['restore_s']
    median = {name: statistics.median(row) for name, row in rows.items()}
    return {
        'fio_depth': depth, 'fio_bytes_per_s': {d: round(r) for d, r in rates.items()},
        'seconds': {name: [round(s, 4) for s in row] for name, row in rows.items()},
        'median_s': {name: round(s, 4) for name, s in median.items()},
        'slow_sixteen_times_faster_than_serial': round(median['slow_serial'] / median['slow_sixteen'], 2),
        'deep_of_fio': round(median['fio'] / median['deep'], 3),
        'sixteen_of_fio': round(median['fio'] / median['sixteen'], 3),
    }


def wire(bench, build):
    """The same over NVMe/TCP on loopback, from memory, with the delay in a proxy."""
    serve = subprocess.Popen([f'{build}/kvof', 'serve', '--listen', 'tcp://127.0.0.1:0', '--drive',
                              'mem,size=1GiB'], stdout=subprocess.PIPE, text=True)
    proxies = []
    try:
        port = int(re.search(r':(\d+)', serve.stdout.readline().split()[1])[1])
        nqn = 'nqn.2026-11.io.kvof:array'
        rows = {'direct': [], 'slow': []}
        proxies.append(subprocess.Popen([f'{build}/tests/bench/delay_proxy', str(port), '500'],
                                        stdout=subprocess.PIPE, text=True))
        through = int(proxies[0].stdout.readline())
        base = (f'part={PART}', 'layers=1')
        direct, slow = f'target=tcp://127.0.0.1:{port}/{nqn}', f'target=tcp://127.0.0.1:{through}/{nqn}'
        bench.run(direct, *base, 'rounds=1', drives=False)
        for turn in range(bench.rounds):
            say(f'wire, round {turn + 1} of {bench.rounds}')
            rows['direct'] += bench.restore(direct, *base, 'concurrency=16', drives=False)['restore_s']
            rows['slow'] += bench.restore(slow, *base, 'concurrency=16', drives=False)['restore_s']
        one = json.loads(subprocess.run(
            [f'{build}/kvof', 'bench', 'fabric', slow[len('target='):], '--op', 'retrieve', '--json',
             '--value-bytes', str(PART), '--depth', '1', '--queues', '1', '--keys', '64',
             '--seconds', '3'], capture_output=True, text=True, check=True).stdout)
        median = {n: statistics.median(r) for n, r in rows.items()}
        serial = BYTES / one['bytes_per_s']
        return {'seconds': rows, 'median_s': median, 'round_trip_added_us': 1000,
                'serial_s': round(serial, 4),
                'slow_times_faster_than_serial': round(serial / median['slow'], 2)}
    finally:
        for process in (*proxies, serve):
            process.kill()
            process.wait()


def sweep(bench):
    """Read amplification and time, from which the defaults are argued."""
    rows = []
    for tokens in (16, 64, 128, 256, 512):
        for part in (64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20):
            got = bench.run(f'block_tokens={tokens}', f'part={part}', f'rounds={bench.rounds}')
            rows.append({'block_tokens': tokens, 'part_bytes': part,
                         'restore_s': statistics.median(got['restore_s']),
                         'first_layer_s': statistics.median(got['first_layer_s']),
                         'cpu_s': statistics.median(got['cpu_s']), 'save_s': got['save_s'],
                         'read_per_delivered': got['read_per_delivered']})
            say(f'{rows[-1]}')
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--dir', default='/var/tmp')
    parser.add_argument('--drives', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--no-wire', action='store_true')
    parser.add_argument('--no-sweep', action='store_true')
    opts = parser.parse_args()
    files = [pathlib.Path(opts.dir, f'restore-bench-{i}') for i in range(opts.drives)]
    gib = max(1, 2 // opts.drives)
    try:
        for file in files:
            fio([file], 'write', 1 << 20, 8, f'--size={gib}g')
        bench = Bench(opts.build, files, opts.rounds)
        out = {'drives': opts.drives, 'bytes': BYTES, 'part_bytes': PART, 'local': local(bench, files)}
        if not opts.no_wire:
            out['wire'] = wire(bench, opts.build)
        if not opts.no_sweep:
            out['sweep'] = sweep(bench)
        print(json.dumps(out, indent=1))
    finally:
        for file in files:
            file.unlink(missing_ok=True)


if __name__ == '__main__':
    main()
