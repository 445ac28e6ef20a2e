#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A block namespace beside SPDK's target, both asked by spdk_nvme_perf, in turns on the same cores.

usage: spdk.py BUILD [--peers DIR] [--seconds S] [--rounds R] [--set-mib N]

Both targets serve memory, on one core; perf runs on another. `kvof` sleeps when it has found nothing
to do for 20 us, the default; `kvof_poll` keeps its core busy with a long `--poll`, as SPDK's target does.
Rows: 4 KiB random read at depth 1, 32 and 128, 4 KiB random write at 32, 1 MiB random read at depth 8.
`retrieve` is the last one's pair in KV: 1 MiB values, depth 8, by `kvof bench fabric` on the host's core,
8 bytes of each 4 KiB compared (perf compares none); `retrieve_full` with every byte compared. Prints one
JSON object: operations and bytes per second, mean latency, CPU seconds of the target per million operations
(SPDK's polls: its core is always busy), the medians of all rounds, and the ratio. It judges nothing.
DIR is what tests/peers/build.sh has made (KVOF_PEERS, /tmp/kvof-peers).
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HOST = 'nqn.2014-08.org.nvmexpress:uuid:2fee39be-cc39-400c-b2db-77f1a81ec281'
NQN = 'nqn.2026-11.io.kvof:array'
ROWS = (('randread', 4096, 1), ('randread', 4096, 32), ('randread', 4096, 128),
        ('randwrite', 4096, 32), ('randread', 1 << 20, 8))


def cpu_s(pid):
    with open(f'/proc/{pid}/stat') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


class Bench:
    def __init__(self, opts):
        self.opts = opts
        opts.build = pathlib.Path(opts.build).resolve()
        self.spdk = pathlib.Path(opts.peers) / 'spdk'
        self.dir = tempfile.TemporaryDirectory(prefix='kvof-bench-')
        self.env = {**os.environ, 'LD_LIBRARY_PATH': f'{self.spdk}/build/lib'}
        two = (os.cpu_count() or 1) > 1
        self.host_core = 1 if two else 0

    def kvof_poll(self):
        return self.kvof('--poll', '100ms')

    def kvof(self, *more):
        child = subprocess.Popen(
            ['taskset', '-c', '0', f'{self.opts.build}/kvof', 'serve', '--listen',
             'tcp://127.0.0.1:0', '--control', 'none', '--drive',
             f'mem,size={self.opts.set_mib * 2 + 256}MiB', '--block', f'{self.opts.set_mib}MiB',
             '--block-bytes', '4096', *more],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.dir.name)
        hit = re.match(r'ready tcp://127\.0\.0\.1:(\d+)', child.stdout.readline())
        return child, f'trsvcid:{hit[1]} subnqn:{NQN} hostnqn:{HOST} ns:2'

    def target(self):
        """SPDK's own, with the same memory; told by a configuration file."""
        blocks = self.opts.set_mib * 256
        port = 40000 + os.getpid() % 20000
        steps = {'bdev': [('bdev_malloc_create', {'name': 'M0', 'num_blocks': blocks,
                                                 'block_size': 4096})],
                 'nvmf': [('nvmf_create_transport', {'trtype': 'TCP', 'max_io_size': 1 << 20}),
                          ('nvmf_create_subsystem', {'nqn': NQN, 'allow_any_host': True,
                                                     'serial_number': 'B1'}),
                          ('nvmf_subsystem_add_ns', {'nqn': NQN, 'namespace': {
                              'nsid': 2, 'bdev_name': 'M0'}}),
                          ('nvmf_subsystem_add_listener', {'nqn': NQN, 'listen_address': {
                              'trtype': 'TCP', 'adrfam': 'IPv4', 'traddr': '127.0.0.1',
                              'trsvcid': str(port)}})]}
        config = pathlib.Path(self.dir.name) / 'target.json'
        config.write_text(json.dumps({'subsystems': [
            {'subsystem': name, 'config': [{'method': m, 'params': p} for m, p in calls]}
            for name, calls in steps.items()]}))
        log = open(pathlib.Path(self.dir.name) / 'target.log', 'w+')
        child = subprocess.Popen(
            [f'{self.spdk}/build/bin/nvmf_tgt', '--no-huge', '-s', str(self.opts.set_mib + 512),
             '-m', '0x1', '--json', config, '-r', f'{self.dir.name}/rpc.sock'],
            env=self.env, stdout=log, stderr=log)
        for _ in range(300):
            log.flush()
            text = pathlib.Path(log.name).read_text()
            if 'Target Listening' in text:
                return child, f'trsvcid:{port} subnqn:{NQN} hostnqn:{HOST} ns:2'
            try:
                child.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        sys.exit(f'nvmf_tgt did not start: {text[-1000:]}')

    def perf(self, child, where, pattern, size, depth):
        before = cpu_s(child.pid)
        text = subprocess.run(
            [f'{self.spdk}/build/bin/spdk_nvme_perf', '--no-huge', '-s', '512', '-c',
             hex(1 << self.host_core), '-q', str(depth), '-o', str(size), '-w', pattern, '-t',
             str(self.opts.seconds), '-r',
             f'trtype:TCP adrfam:IPv4 traddr:127.0.0.1 {where}'],
            env=self.env, capture_output=True, text=True).stdout
        hit = re.search(r'^Total\s*:\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)', text, re.M)
        if not hit:
            sys.exit(f'spdk_nvme_perf: {text[-1000:]}')
        done = float(hit[1]) * self.opts.seconds
        return {'ops_per_s': float(hit[1]), 'bytes_per_s': float(hit[1]) * size,
                'mean_us': float(hit[3]),
                'target_cpu_s_per_m_ops': (cpu_s(child.pid) - before) / done * 1e6}

    def retrieve(self, where, verify):
        """What our own host gets of 1 MiB values."""
        port = re.search(r'trsvcid:(\d+)', where)[1]
        out = subprocess.run(
            ['taskset', '-c', str(self.host_core), f'{self.opts.build}/kvof', 'bench', 'fabric',
             f'tcp://127.0.0.1:{port}/{NQN}?nsid=1', '--op', 'retrieve', '--value-bytes',
             str(1 << 20), '--depth', '8', '--keys', str(min(128, self.opts.set_mib // 2)),
             '--verify', verify, '--seconds', str(self.opts.seconds), '--json'],
            capture_output=True, text=True)
        if out.returncode != 0:
            sys.exit(f'kvof bench: {out.stderr[-1000:]}')
        row = json.loads(out.stdout)
        return {'ops_per_s': row['ops_per_s'], 'bytes_per_s': row['bytes_per_s'],
                'mean_us': 8e6 / row['ops_per_s'], 'p99_us': row['p99_us']}

    def one(self, start):
        """All rows of one target, which runs alone: another that polls would take its core."""
        child, where = start()
        try:
            self.perf(child, where, 'write', 1 << 20, 4)        # its memory is there
            rows = [self.perf(child, where, *row) for row in ROWS]
            if start != self.target:
                rows += [self.retrieve(where, 'stamps'), self.retrieve(where, 'full')]
            return rows
        finally:
            child.terminate()
            child.wait()

    def run(self):
        start = {'kvof': self.kvof, 'kvof_poll': self.kvof_poll, 'spdk': self.target}
        sides = {side: [] for side in start}
        for _ in range(self.opts.rounds):
            for side, rounds in sides.items():
                rounds.append(self.one(start[side]))
        out = {'seconds': self.opts.seconds, 'rounds': self.opts.rounds, 'set_mib': self.opts.set_mib,
               'load': os.getloadavg()[0], 'rows': []}
        for i, (pattern, size, depth) in enumerate(ROWS):
            row = {'pattern': pattern, 'io_bytes': size, 'depth': depth}
            for side, rounds in sides.items():
                row[side] = {key: statistics.median(r[i][key] for r in rounds)
                             for key in rounds[0][i]}
            for name, side in (('of_spdk', 'kvof'), ('poll_of_spdk', 'kvof_poll')):
                row[name] = row[side]['ops_per_s'] / row['spdk']['ops_per_s']
                row[name + '_rounds'] = [a[i]['ops_per_s'] / b[i]['ops_per_s']
                                         for a, b in zip(sides[side], sides['spdk'])]
            out['rows'].append(row)
        for name, side, at in (('retrieve', 'kvof', 0), ('retrieve_poll', 'kvof_poll', 0),
                               ('retrieve_full', 'kvof', 1), ('retrieve_full_poll', 'kvof_poll', 1)):
            rows = [r[len(ROWS) + at] for r in sides[side]]
            out[name] = {key: statistics.median(r[key] for r in rows) for key in rows[0]}
            out[name]['of_spdk'] = (out[name]['bytes_per_s'] /
                                    out['rows'][-1]['spdk']['bytes_per_s'])
            out[name]['of_spdk_rounds'] = [r['bytes_per_s'] / s[len(ROWS) - 1]['bytes_per_s']
                                           for r, s in zip(rows, sides['spdk'])]
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--peers', default=os.environ.get('KVOF_PEERS', '/tmp/kvof-peers'))
    parser.add_argument('--seconds', type=int, default=3)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--set-mib', type=int, default=256)
    opts = parser.parse_args()
    if not (pathlib.Path(opts.peers) / 'spdk/build/bin/nvmf_tgt').exists():
        sys.exit(f'no SPDK in {opts.peers}: tests/peers/build.sh makes it')
    print(json.dumps(Bench(opts).run()))


if __name__ == '__main__':
    sys.exit(main())
