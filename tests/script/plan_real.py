# SPDX-License-Identifier: Apache-2.0
"""Real tiers of this machine and their model: replays that calibrate, a profile made of them, the
planner's simulator, and what a replay of another workload really did. Used by the test of what is
counted (plan_replay_test.py) and the bench of what is timed (tests/bench/plan_replay.py)."""
import json
import os
import shutil
import subprocess
import tempfile

from nvmetcp import Array

TIERS = (('dram', 'dram'), ('flash', 'local'), ('remote', 'array'))     # of replay, of the planner
MIB = 1 << 20


class Real:
    """flash_rate, array_rate: bytes a second of a drive; 0: as fast as it is."""

    def __init__(self, kvof, block_bytes=64 << 10, block_tokens=512, flash_rate=0, array_rate=0,
                 folder=None):
        self.kvof, self.block_bytes, self.block_tokens = kvof, block_bytes, block_tokens
        self.flash_rate, self.array_rate = flash_rate, array_rate
        self.dir = tempfile.mkdtemp(prefix='kvof-plan-', dir=folder)
        self.files = 0

    def close(self):
        shutil.rmtree(self.dir)

    def json(self, *words):
        done = subprocess.run([self.kvof] + [str(w) for w in words] + ['--json'],
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f'{words}: {done.stderr}'
        return json.loads(done.stdout)

    def replay(self, workload, requests, seed, dram=0, flash=0, remote=0):
        """New tiers of so many MiB each (0: none), one replay, everything removed again."""
        words = ['replay', workload, '--requests', requests, '--seed', seed, '--policy', 'lru',
                 '--block-bytes', self.block_bytes, '--real']
        array = None
        path = os.path.join(self.dir, f'flash{self.files}')
        self.files += 1
        if dram:
            words += ['--dram', f'{dram}MiB']
        if flash:
            words += ['--flash', f'{path},size={flash}MiB' +
                      (f',rate={self.flash_rate}B' if self.flash_rate else '')]
        try:
            if remote:
                rate = ['--drive-rate', f'{self.array_rate}B'] if self.array_rate else []
                array = Array(self.kvof, '--control', 'none', *rate,
                              drives=[f'mem,size={remote}MiB'])
                words += ['--target', f'tcp://127.0.0.1:{array.port}']
            return self.json(*words)
        finally:
            if array is not None:
                array.stop()
            if os.path.exists(path):
                os.unlink(path)

    def calibrate(self, workload, requests, dram, flash, remote, rounds=1):
        """An arm of each tier from replays with that tier alone; what it takes to save, and to find
        nothing, from one with all of them. Of several rounds the quickest counts."""
        all_mib = 2 * max(dram, flash, remote)
        alone = {}
        for n in range(rounds):
            for seed, (tier, _) in enumerate(TIERS, 1):
                got = self.replay(workload, requests, 100 * n + seed, **{tier: all_mib})
                line = got['tiers'][0]['loads']
                best = alone.get(tier)
                if best is None or line['seconds'] / line['blocks'] < \
                        best['seconds'] / best['blocks']:
                    alone[tier] = line
        saves = min((self.replay(workload, requests, 100 * n + 9, dram, flash, remote)
                     for n in range(rounds)),
                    key=lambda r: r['saves']['seconds'] / r['saves']['blocks'])
        arms = [self.arm(arm, alone[tier]['fixed_s'], bytes_per_s=alone[tier]['bytes_per_s'])
                for tier, arm in TIERS]
        tokens = saves['saves']['bytes_per_s'] / self.block_bytes * self.block_tokens
        arms.append(self.arm('recompute', saves['miss_s'] / max(saves['misses'], 1),
                             session_s=saves['saves']['fixed_s'], tokens_per_s=tokens))
        path = os.path.join(self.dir, 'profile.json')
        with open(path, 'w', encoding='utf-8') as f:
            json.dump({'kvof_profile': 1, 'made': '2026-11-30T00:00:00Z', 'machine': 'this one',
                       'source': 'measured', 'arms': arms, 'devices': []}, f)
        return path, arms

    def room(self, flash):
        """Blocks that a flash of so many MiB holds once it is full: a log keeps a few segments
        free."""
        blocks = flash * MIB // self.block_bytes
        requests = blocks // 40 + 8                            # prompts of 16,000 tokens and more
        told = self.replay('cold-long', requests, 1, flash=flash)['tiers'][0]
        assert told['evicted_blocks'] > 0, told
        return told['used_blocks']

    @staticmethod
    def arm(name, fixed_s, **figures):
        """One after another, as the requests of a replay are."""
        return {'arm': name, 'source': 'measured', 'bottleneck': 'a replay', 'fixed_s': fixed_s,
                'median_share': 0.5, 'median_rank': 1, **figures}

    def simulate(self, profile, workload, requests, seed, dram, room, remote):
        """One user who asks again at once; what is computed stands for what the replay saved.
        room: of flash, in blocks."""
        return self.json('plan', 'simulate', workload, '--requests', requests, '--seed', seed,
                         '--arrivals', 'closed', '--users', 1, '--load', 'always',
                         '--dram', f'{dram}MiB', '--local', f'{room * self.block_bytes}B',
                         '--array', f'{remote}MiB', '--log', 'local,array',
                         '--profile', profile,
                         '--bytes-per-token', self.block_bytes // self.block_tokens)


def hits(told):
    """Blocks by tier, in the order of TIERS, of a replay or a simulation."""
    by_name = {t['name']: t['hit_blocks'] for t in told['tiers']}
    return [by_name.get(real, by_name.get(planned)) for real, planned in TIERS]


def seconds(told):
    """(loads, everything but the comparing of bytes) of a replay or a simulation."""
    if 'save_s' in told:
        return told['load_s'], told['load_s'] + told['miss_s'] + told['save_s']
    return told['load_s'], told['wall_s']
