#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan hits and kvof plan simulate as scripts rely on them: fields, agreement with kvof replay and
kvof plan ttft, one line for what is wrong.

usage: plan_trace_cli.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cases import case, each, run_all

DATA = pathlib.Path(__file__).resolve().parents[1] / 'data'
SMALL = DATA / 'trace-small.jsonl'
BYTES = ('--bytes-per-token', '253952B')


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-plan-')
        self.profile = os.path.join(self.dir, 'profile.json')
        self.run('plan', 'calibrate', '--rows', DATA / 'plan-rows.csv', '--profile', self.profile)

    def run(self, *words):
        return subprocess.run([self.kvof] + [str(w) for w in words], capture_output=True,
                              text=True, timeout=60)

    def json(self, *words):
        done = self.run(*words, '--json')
        assert done.returncode == 0 and done.stderr == '', done.stderr
        assert done.stdout.count('\n') == 1, done.stdout
        return json.loads(done.stdout)

    def refused(self, code, word, *words):
        done = self.run(*words)
        assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
        assert done.stdout == '' and done.stderr.count('\n') == 1, done.stderr
        assert word in done.stderr, f'no {word!r} in {done.stderr!r}'


@each('each size hits what a replay of lru hits', ['fwd', 'rev'])
def run(b, touch):
    told = b.json('plan', 'hits', SMALL, '--blocks', '1,5,20,50,100,200', '--touch', touch)
    for size in told['capacities']:
        one = b.json('replay', SMALL, '--policy', 'lru', '--touch', touch,
                     '--capacity-blocks', size['capacity_blocks'])
        assert size['hit_blocks'] == one['hit_blocks'], (size, one)
        assert size['hit_tokens'] == one['hit_tokens'], (size, one)
    assert told['ideal']['hit_blocks'] == 759 and told['unique_blocks'] == 807, told


@case('sizes in bytes, what their hits draw, and policy worth')
def run(b):
    told = b.json('plan', 'hits', SMALL, '--capacity', '2GB,20GB', '--worth', *BYTES)
    small, large = told['capacities']
    assert small['capacity_blocks'] == 2 * 10**9 // (512 * 253952), small
    assert 0 < small['load_bytes_per_s'] <= small['load_bytes_per_s_peak'], small
    assert small['hit_tokens'] < large['hit_tokens'], told
    assert small['worth_hit_tokens'] >= small['hit_tokens'], small
    assert told['least_capacity'][-1]['capacity_blocks'] <= 807, told


@case('room and rate are told apart, and computing is never worse')
def run(b):
    told = b.json('plan', 'hits', 'mixed', '--requests', 600, '--capacity', '100GB,1TB,20TB',
                  '--rate', '3GB', '--prefill-tokens-per-s', 3000, *BYTES)
    for size in told['capacities']:
        assert size['ttft_mean_s'] <= told['ttft_mean_computed_s'], size
        assert size['ttft_mean_twice_rate_s'] <= size['ttft_mean_s'] * 1.001, size
        assert size['brings_more'] in ('room', 'rate', 'neither'), size
    assert told['capacities'][-1]['ttft_mean_twice_room_s'] == \
        told['capacities'][-1]['ttft_mean_s'], told
    slow = b.json('plan', 'hits', 'mixed', '--requests', 600, '--capacity', '1TB', '--rate',
                  '100MB', '--prefill-tokens-per-s', 3000, *BYTES)['capacities'][0]
    assert slow['brings_more'] == 'neither' and slow['loaded_tokens'] == 0, slow


@each('a simulated wave is that of the closed form', [('array', 8), ('array', 32), ('local', 16)])
def run(b, row):
    arm, sessions = row
    model = os.path.join(b.dir, 'config.json')
    with open(model, 'w', encoding='utf-8') as f:
        json.dump({'model_type': 'qwen3_moe', 'num_hidden_layers': 62, 'num_attention_heads': 96,
                   'num_key_value_heads': 8, 'head_dim': 128, 'hidden_size': 6144}, f)
    want = next(w for w in b.json('plan', 'ttft', '--model', model, '--profile', b.profile,
                                  '--tokens', 30208, '--concurrency', sessions)
                if w['arm'] == arm)
    got = b.json('plan', 'simulate', '--tokens', 30208, '--sessions', sessions, f'--{arm}', 'all',
                 '--model', model, '--profile', b.profile, '--load', 'always')
    for have, name in ((got['ttft_s']['last'], 'ttft_last_s'), (got['wall_s'], 'wall_s'),
                       (got['tokens_per_s'], 'tokens_per_s')):
        assert abs(have - want[name]) <= 0.02 * want[name], (name, have, want)


@case('a run tells first tokens, tiers, resources and where requests waited; again the same')
def run(b):
    words = ('plan', 'simulate', 'mixed', '--requests', 300, '--arrivals', 'closed', '--users', 20,
             '--think', '5s', '--dram', '100GB', '--array', '2TB', '--dram-rate', '40GB',
             '--array-rate', '10GB', '--array-fixed', '500ms', '--prefill-tokens-per-s', 5000,
             '--output-tokens', 64, *BYTES)
    told = b.json(*words)
    assert told == b.json(*words) and told != b.json(*words, '--seed', 2)
    assert told['late'] == 0 and told['requests'] == 300, told
    t = told['ttft_s']
    assert 0 < t['p50'] <= t['p90'] <= t['p99'] <= t['last'] <= told['wall_s'], t
    assert [x['name'] for x in told['tiers']] == ['dram', 'array'], told
    assert sum(x['hit_blocks'] for x in told['tiers']) == told['hit_blocks'] > 0, told
    names = [x['name'] for x in told['resources']]
    assert names == ['engine', 'dram', 'array', 'staging'], names
    assert told['bottleneck'] in names + ['none'], told
    assert all(0 <= x['utilisation'] <= 1.000001 for x in told['resources']), told


@case('what does not fit is refused with one line')
def run(b):
    b.refused(2, '--model or --bytes-per-token', 'plan', 'hits', SMALL, '--capacity', '1TB')
    b.refused(2, 'go together', 'plan', 'hits', SMALL, '--rate', '1GB', *BYTES)
    b.refused(2, 'not a size', 'plan', 'hits', SMALL, '--capacity', '1TB,x', *BYTES)
    b.refused(2, 'not even one block', 'plan', 'hits', SMALL, '--capacity', '1MB', *BYTES)
    b.refused(2, 'fwd or rev', 'plan', 'hits', SMALL, '--touch', 'up')
    b.refused(3, 'did you mean', 'plan', 'hits', 'mixd')
    sim = ('plan', 'simulate')
    b.refused(2, 'one of them', *sim)
    b.refused(2, 'needs --users', *sim, 'mixed', '--arrivals', 'closed')
    b.refused(2, 'did you mean closed', *sim, 'mixed', '--arrivals', 'closd')
    b.refused(2, 'how fast', *sim, 'mixed', '--array', 'all', *BYTES)
    b.refused(2, 'how fast is a prompt', *sim, 'mixed', '--array', 'all', '--array-rate', '1GB',
              *BYTES)
    b.refused(2, '--local is not given', *sim, 'mixed', '--warm', 'local')
    b.refused(2, 'dram, local or array', *sim, 'mixed', '--log', 'flash')
    b.refused(2, 'counts bytes', *sim, 'mixed', '--array', 'all', '--array-rate', '1GB',
              '--load', 'always')


def main():
    b = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(b))
    finally:
        shutil.rmtree(b.dir)


if __name__ == '__main__':
    sys.exit(main())
