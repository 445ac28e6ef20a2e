#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan as scripts rely on it: the fields of its JSON for every published model, what its page
shows, and one line for what is wrong. One TAP line a case.

usage: plan_cli.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cases import case, run_all

TABLE = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'plan-models.json'
LLAMA = {'model_type': 'llama', 'num_hidden_layers': 80, 'num_attention_heads': 64,
         'num_key_value_heads': 8, 'hidden_size': 8192}


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-plan-')

    def run(self, *words, stdin=''):
        return subprocess.run([self.kvof, 'plan'] + [str(w) for w in words], input=stdin,
                              capture_output=True, text=True, timeout=60)

    def config(self, fields):
        path = os.path.join(self.dir, 'config.json')
        with open(path, 'w', encoding='utf-8') as f:
            json.dump(fields, f)
        return path

    def json(self, fields, *words):
        done = self.run('geometry', self.config(fields), '--json', *words)
        assert done.returncode == 0 and done.stderr == '', done.stderr
        assert done.stdout.count('\n') == 1, done.stdout
        return json.loads(done.stdout)

    def refused(self, code, words, *args, stdin=''):
        done = self.run(*args, stdin=stdin)
        assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
        assert done.stdout == '' and done.stderr.count('\n') == 1, done.stderr
        for word in words:
            assert word in done.stderr, f'no {word!r} in {done.stderr!r}'


@case('every published model is exact: a token, each split, each length')
def published(b):
    for row in json.loads(TABLE.read_text()):
        lengths = [w for n in row['bytes_at'] for w in ('--tokens', n)]
        got = b.json(row['config'], *lengths)
        assert got['bytes_per_token'] == row['growth'], row['id']
        assert got['bytes_per_token_first_token'] == row['first'], row['id']
        assert got['bytes_at'] == row['bytes_at'], row['id']
        if 'state' in row:
            assert got['state_bytes'] == row['state']['bytes'], row['id']
        for tp, want in row['growth_per_rank'].items():
            if want is None:
                b.refused(4, ['heads', tp], 'geometry', b.config(row['config']), '--tp', tp)
            else:
                assert b.json(row['config'], '--tp', tp)['bytes_per_token_per_rank'] == want


@case('the data type of the cache is an option and never that of the weights')
def dtype(b):
    fields = dict(LLAMA, quantization_config={'quant_method': 'fp8'})
    assert b.json(fields)['bytes_per_token'] == 327680
    assert b.json(fields)['weights'] == 'fp8'
    for name, want in [('fp8', 163840), ('fp16', 327680), ('fp32', 655360)]:
        got = b.json(fields, '--kv-dtype', name)
        assert (got['bytes_per_token'], got['kv_dtype']) == (want, name)
    b.refused(2, ['--kv-dtype bf15', 'bf16'], 'geometry', b.config(LLAMA), '--kv-dtype', 'bf15')


@case('the page shows each step, the rule, copies and both units')
def page(b):
    done = b.run('geometry', b.config(LLAMA), '--tp', '16', '--tokens=8192', '--tokens', '10')
    assert done.returncode == 0 and done.stderr == '', done.stderr
    for words in ['80 layers x 8 KV heads x (128 K + 128 V) x 2 bytes = 327680 bytes',
                  'hidden_size 8192 / 64 heads', 'the same bytes on 2 ranks',
                  'per rank 40960', '2684354560 bytes  2.684 GB (2.500 GiB)', '10 tokens']:
        assert words in done.stdout, f'no {words!r} in {done.stdout}'


@case('a config comes from standard input as well')
def piped(b):
    done = b.run('geometry', '-', '--json', stdin=json.dumps(LLAMA))
    assert json.loads(done.stdout)['bytes_per_token'] == 327680


@case('what is wrong is one line with the field, the option or the file')
def wrong(b):
    b.refused(2, ['model_type', 'novel', 'missing: num_hidden_layers'], 'geometry',
              b.config({'model_type': 'novel'}))
    b.refused(2, ['num_hidden_layers', 'is missing'], 'geometry', b.config({'model_type': 'gpt2'}))
    b.refused(2, ['no JSON'], 'geometry', '-', stdin='hello')
    b.refused(3, ['/no/such/file'], 'geometry', '/no/such/file')
    for bad in ['0', '-1', 'x', '99999999999999999']:
        b.refused(2, ['--tokens'], 'geometry', b.config(LLAMA), f'--tokens={bad}')
    b.refused(2, ['geometry'], 'geometri')
    b.refused(2, ['usage'])
    b.refused(2, ['usage'], 'geometry')
    assert 'geometry' in b.run('--help').stdout
    assert '--tokens' in b.run('geometry', '--help').stdout


def main():
    bench = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(bench))
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
