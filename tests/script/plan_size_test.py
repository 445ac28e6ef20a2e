#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan sla and kvof plan move as scripts rely on them: published runs, what holds and what one
more would have, and one line for what is wrong. One TAP line a case.

usage: plan_size_test.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cases import case, run_all

CODER_480B = {
    'model_type': 'qwen3_moe', 'num_hidden_layers': 62, 'num_attention_heads': 96,
    'num_key_value_heads': 8, 'head_dim': 128, 'hidden_size': 6144, 'moe_intermediate_size': 2560,
    'num_experts': 160, 'num_experts_per_tok': 8, 'decoder_sparse_step': 1, 'mlp_only_layers': [],
    'vocab_size': 151936, 'torch_dtype': 'bfloat16',
    'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 128]}}
ROWS = """arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s
array,8,30208,7.53,7.54,56.6
array,32,30208,26.35,26.37,71.6
local,8,30208,10.17,10.18,43.9
local,32,30208,35.73,35.75,53.9
recompute,8,30208,78.1,125,4.1
recompute,16,30208,140.6,250,4.1
"""


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix='kvof-plan-'))
        self.config = self.dir / 'config.json'
        self.config.write_text(json.dumps(CODER_480B))
        self.profile = self.dir / 'profile.json'
        (self.dir / 'rows.csv').write_text(ROWS)
        self.good('calibrate', '--rows', self.dir / 'rows.csv', '--profile', self.profile)

    def run(self, *words):
        return subprocess.run([self.kvof, 'plan'] + [str(w) for w in words], capture_output=True,
                              text=True, timeout=60)

    def good(self, *words):
        done = self.run(*words)
        assert done.returncode == 0 and done.stderr == '', done.stderr
        return done.stdout

    def json(self, *words):
        return json.loads(self.good(*words, '--json'))

    def sla(self, *words):
        got = self.json('sla', '--model', self.config, '--profile', self.profile, *words)
        return {one['arm']: one for one in got}

    def ttft(self, tokens, concurrency):
        got = self.json('ttft', '--model', self.config, '--profile', self.profile, '--tokens',
                        tokens, '--concurrency', concurrency)
        return {one['arm']: one for one in got}

    def refused(self, code, words, *args):
        done = self.run(*args)
        assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
        assert done.stdout == '' and done.stderr.count('\n') == 1, done.stderr
        for word in words:
            assert word in done.stderr, f'no {word!r} in {done.stderr!r}'


def near(got, want, share):
    assert abs(got - want) <= share * abs(want), f'{got}, not {want}'


@case('five seconds allow four sessions on the published array, three on the drive, none anew')
def published(b):
    got = b.sla('--tokens', 30208, '--within', '5s')
    assert [got[a]['sessions']['last'] for a in ('array', 'local', 'recompute')] == [4, 3, 0]
    assert got['array']['beyond'] and got['array']['source'] == 'rows'
    near(got['array']['saturation_sessions'], 14.5, 0.01)
    assert got['array']['break_even']['load_is_sooner'].startswith('from ')


@case('what sla tells holds in ttft, and one more does not')
def agree(b):
    for within in (5, 12, 40):
        got = b.sla('--tokens', 30208, '--within', f'{within}s', '--concurrency', 6)
        for arm in ('array', 'local'):
            told = got[arm]['sessions']['last']
            assert b.ttft(30208, told)[arm]['ttft_last_s'] <= within
            assert b.ttft(30208, told + 1)[arm]['ttft_last_s'] > within
            longest = got[arm]['longest_tokens']['last']
            assert b.ttft(longest, 6)[arm]['ttft_last_s'] <= within + 1e-6
            assert b.ttft(longest + 1, 6)[arm]['ttft_last_s'] > within - 1e-6


@case('staging for a part of a wave allows no more sessions than staging for all')
def staging(b):
    free = b.sla('--tokens', 30208, '--within', '20s')['array']['sessions']['last']
    tight = b.sla('--tokens', 30208, '--within', '20s', '--staging', 4)['array']['sessions']['last']
    assert 0 < tight < free, (tight, free)


@case('the page says what holds, what one more has, and where the line was not seen to hold')
def page(b):
    text = b.good('sla', '--model', b.config, '--profile', b.profile, '--tokens', 30208,
                  '--within', '5s')
    for word in ('array (rows)', '4.402 s', '5.186 s', 'sooner than recompute', 'GB/s',
                 'beyond the calibrated 8 to 32'):
        assert word in text, f'no {word!r} in {text}'


@case('weights of a config.json, and a load by the line through two that were seen')
def load(b):
    got = b.json('move', '--model', b.config, '--seen', '65.53GB=112s', '--seen=141.1GB=150s')
    assert got['params'] == 480154875392
    near(got['weight_bytes'], 482.2e9, 1e-4)
    near(got['load']['bytes_per_s'], 1.989e9, 2e-3)
    near(got['load']['fixed_s'], 79.1, 2e-3)
    near(got['load']['load_s'], 79.06 + 482.2 / 1.989, 2e-3)
    assert got['switch'] is None and got['checkpoint'] is None


@case('published switches and checkpoints')
def move(b):
    got = b.json('move', '--per-hour', 20, '--switch', '66.96s')
    near(got['switch']['use'], 0.628, 1e-6)
    got = b.json('move', '--checkpoint', '524.8GB', '--write', '6.4 GB/s', '--save-fixed', '12s',
                 '--interval', '30m')
    near(got['checkpoint']['total_s'], 94, 1e-6)
    near(got['checkpoint']['use'], 1800 / 1894, 1e-6)
    got = b.json('move', '--checkpoint', '524.8GB', '--write', '6.4GB/s', '--copy', '100GB/s')
    near(got['checkpoint']['blocked_s'], 5.248, 1e-6)


@case('what is wrong is one line with the option or the field')
def wrong(b):
    b.refused(2, ['--within'], 'sla', '--profile', b.profile, '--tokens', 30208)
    b.refused(2, ['--tokens'], 'sla', '--profile', b.profile, '--within', '5s')
    b.refused(2, ['--tokens 0'], 'sla', '--profile', b.profile, '--within', '5s', '--tokens', 0)
    b.refused(3, ['/no/such'], 'sla', '--profile', '/no/such', '--within', '5s', '--tokens', 1)
    b.refused(2, ['--model'], 'move')
    b.refused(2, ['--seen', 'another'], 'move', '--seen', '1GB=1s')
    b.refused(2, ['SIZE=TIME'], 'move', '--seen', '1GB')
    b.refused(4, ['seconds'], 'move', '--seen', '1GB=2s', '--seen', '2GB=1s')
    b.refused(2, ['--read', '6.4GB/s'], 'move', '--weights', '1GB', '--read', 'fast')
    b.refused(2, ['--switch'], 'move', '--per-hour', 3)
    b.refused(2, ['--write'], 'move', '--checkpoint', '1GB')
    awq = dict(CODER_480B, quantization_config={'quant_method': 'awq'})
    b.config.write_text(json.dumps(awq))
    b.refused(2, ['awq', '--weights'], 'move', '--model', b.config, '--read', '1GB/s')
    b.config.write_text(json.dumps(dict(CODER_480B, model_type='falcon')))
    b.refused(2, ['model_type', 'falcon'], 'move', '--model', b.config, '--read', '1GB/s')


def main():
    bench = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(bench))
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
