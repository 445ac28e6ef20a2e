#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan as scripts rely on it: the fields of its JSON for every published model, profiles from
measured rows and what they predict, what pages show, and one line for what is wrong. One TAP line a case.

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
DATA = TABLE.parent
HEAD = 'arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s\n'
# 62 layers x 8 KV heads x 2 x 128 x 2 bytes: 253,952 bytes a token
MOE = {'model_type': 'qwen3_moe', 'num_hidden_layers': 62, 'num_attention_heads': 96,
       'num_key_value_heads': 8, 'head_dim': 128, 'hidden_size': 6144}
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

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        pathlib.Path(path).write_text(text, encoding='utf-8')
        return path

    def published(self, left_out=()):
        """The published rows without those of some concurrencies."""
        lines = (DATA / 'plan-rows.csv').read_text().splitlines(True)
        return self.file('rows.csv', ''.join(
            line for line in lines if not any(f',{n},' in line for n in left_out)))

    def calibrate(self, rows, *words):
        profile = os.path.join(self.dir, 'profile.json')
        done = self.run('calibrate', '--rows', rows, '--profile', profile, *words)
        assert done.returncode == 0 and done.stderr == '', done.stderr
        return profile, done.stdout

    def ttft(self, profile, *words, config=MOE, tokens=30208):
        done = self.run('ttft', '--model', self.config(config), '--profile', profile, '--tokens',
                        tokens, '--json', *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

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


@case('two points of published rows predict the third within 5 percent')
def predicted(b):
    profile, _ = b.calibrate(b.published(left_out=[16]))
    rows, _ = b.ttft(profile, '--concurrency', 16, '--resident', 2)
    want = {'array': (11.85, 11.87, 74.9), 'local': (17.31, 17.32, 53.6)}
    assert {r['arm'] for r in rows} == set(want)
    for r in rows:
        p50, last, tokens_per_s = want[r['arm']]
        for got, published in [(r['ttft_p50_s'], p50), (r['ttft_last_s'], last),
                               (r['tokens_per_s'], tokens_per_s)]:
            assert abs(got / published - 1) < 0.05, (r['arm'], got, published)
        assert r['ttft_p50_s'] <= r['ttft_p90_s'] <= r['ttft_last_s']
        assert r['concurrency'] == 16 and r['bottleneck'] == 'unknown' and r['beyond'] is None
        assert r['session_bytes'] == 30208 * 253952


@case('concurrency is a list after one flag, with commas, or the flag again')
def lists(b):
    profile, _ = b.calibrate(b.published(left_out=[16]))
    for words in [('--concurrency', 8, 16, 32), ('--concurrency', '8,16,32'),
                  ('--concurrency', 8, '--concurrency=16', '--concurrency', 32),
                  ('--concurrency=8,16', '--concurrency', 32), ('--concurrency', '8,16', 32)]:
        rows, _ = b.ttft(profile, *words)
        for arm in ('local', 'array'):
            assert [r['concurrency'] for r in rows if r['arm'] == arm] == [8, 16, 32], words
    # a list ends at the next option
    done = b.run('ttft', '--concurrency', 8, 16, '--profile', profile, '--tokens', 30208, '--json')
    assert len(json.loads(done.stdout)) == 4, done.stderr


@case('rows off the line are named, with the sessions that were not read')
def odd(b):
    profile, page = b.calibrate(b.published())
    assert page.count('14 of 16 sessions were read and 2 were in memory already') == 2, page
    for words in ['12.25 s if', '16.57 s if', 'odd, not used', 'recompute: 1 row']:
        assert words in page, f'no {words!r} in {page}'
    done = b.run('calibrate', '--rows', b.published(), '--json')
    got = json.loads(done.stdout)
    assert [(o['arm'], o['concurrency'], o['unread'], o['used']) for o in got['odd_rows']] == [
        ('local', 16, 2, False), ('array', 16, 2, False)]
    assert 'of the others' in ''.join(json.load(open(profile))['arms'][2]['notes'])
    _, page = b.calibrate(b.published(), '--keep-odd')
    assert 'array: 3 rows' in page and 'not used' not in page


@case('a profile says what it is made of and is read back')
def profile(b):
    path, page = b.calibrate(b.published(left_out=[16]), '--model', b.config(MOE), '--machine',
                             'two sockets', '--engine', 'an engine', '--precision', 'fp8')
    got = json.load(open(path))
    assert got['kvof_profile'] == 1 and got['source'] == 'rows' and got['made'].endswith('Z')
    assert got['machine'] == 'two sockets' and got['engine'] == 'an engine'
    assert got['model'] == {'type': 'qwen3_moe', 'bytes_per_token': 253952}
    array = [a for a in got['arms'] if a['arm'] == 'array'][0]
    assert abs(array['bytes_per_s'] - 9.778e9) < 1e6 and array['tokens_per_s'] == 0
    assert (array['concurrency_min'], array['concurrency_max'], array['rows']) == (8, 32, 2)
    assert array['tokens_min'] == array['tokens_max'] == 30208
    assert array['worst_row_error'] < 1e-9 and any('64 output' in n for n in array['notes'])
    assert 'GB/s' in page and 'written to ' + path in page
    done = b.run('calibrate', '--rows', b.published())
    assert 'nothing written: --profile OUT' in done.stdout
    done = b.run('calibrate', '--rows', b.published(), '--profile', '-')
    assert json.loads(done.stdout)['kvof_profile'] == 1


@case('the page of first tokens shows the arithmetic and puts arms side by side')
def ttft_page(b):
    path, _ = b.calibrate(b.published(left_out=[16]), '--model', b.config(MOE))
    done = b.run('ttft', '--model', b.config(MOE), '--profile', path, '--tokens', 30208,
                 '--concurrency', 8, 64, '--resident', 2)
    assert done.returncode == 0 and done.stderr == '', done.stderr
    for words in ['7671382016 bytes, 7.671 GB (7.145 GiB)', 'last = 1.263 s fixed + loads x 0.7846 s',
                  '0.7846 s = 7671382016 bytes / 9.778e+09 bytes/s (9.778 GB/s)',
                  '2 of them are in memory', 'side by side', 'array',
                  '* 64 sessions are beyond the calibrated 8 to 32', '* the line goes on']:
        assert words in done.stdout, f'no {words!r} in {done.stdout}'


@case('what lies beyond the rows is marked in each row of JSON')
def beyond(b):
    path, _ = b.calibrate(b.published(left_out=[16]))
    rows, _ = b.ttft(path, '--concurrency', 8, 4)
    assert [r['beyond'] for r in rows if r['arm'] == 'array'] == [
        None, '4 sessions are beyond the calibrated 8 to 32']
    rows, _ = b.ttft(path, '--concurrency', 8, tokens=8448)
    assert '8448 tokens are beyond the calibrated 30208 to 30208' in rows[0]['beyond']


@case('another model has its loads carried over in bytes and no recompute')
def other_model(b):
    path, _ = b.calibrate(b.published(), '--model', b.config(MOE))
    rows, err = b.ttft(path, '--concurrency', 16, config=LLAMA)
    assert [r['arm'] for r in rows] == ['local', 'array']
    assert err.count('\n') == 1 and 'recompute: not told' in err and 'qwen3_moe' in err
    assert '327680' in rows[0]['carried_over']
    same, err = b.ttft(path, '--concurrency', 16)
    assert [r['arm'] for r in same] == ['recompute', 'local', 'array'] and err == ''
    assert abs((rows[1]['ttft_last_s'] - rows[1]['fixed_s']) /
               (same[2]['ttft_last_s'] - same[2]['fixed_s']) - 327680 / 253952) < 1e-9
    # another data type of the cache is another precision
    rows, err = b.ttft(path, '--concurrency', 16, '--kv-dtype', 'fp8')
    assert [r['arm'] for r in rows] == ['local', 'array'] and '126976' in err
    only = b.file('only.csv', HEAD + 'recompute,8,30208,60,100,5\n')
    path, _ = b.calibrate(only, '--model', b.config(MOE))
    b.refused(4, ['not told', 'qwen3_moe'], 'ttft', '--model', b.config(LLAMA), '--profile', path,
              '--tokens', 30208, '--concurrency', 8)


@case('bytes of a session follow from the geometry and not from tokens alone')
def windows(b):
    sliding = dict(MOE, model_type='gpt_oss', num_hidden_layers=2, sliding_window=1000)
    path, _ = b.calibrate(b.file('w.csv', HEAD + 'array,8,8000,10,10,\narray,16,8000,18,18,\n'))
    rows, _ = b.ttft(path, '--concurrency', 8, config=sliding, tokens=16000)
    assert abs(rows[0]['ttft_last_s'] - (2 + 8 * 17 / 9)) < 1e-6
    assert rows[0]['tokens_per_s'] is None


@case('rows that differ in engine are refused with the difference named, and can be chosen')
def mixed(b):
    patch = DATA / 'plan-rows-patch.csv'
    b.refused(4, ['plan-rows-patch.csv', 'line 5, engine:', 'before in line 4', '--where'],
              'calibrate', '--rows', patch)
    fixed = []
    for engine in ('before', 'after'):
        path, page = b.calibrate(patch, '--where', f'engine={engine}')
        assert f'engine: {engine}' in page and '1 passed over' in page
        got = json.load(open(path))
        assert got['engine'] == engine
        fixed.append(round(got['arms'][0]['fixed_s'], 2))
    assert fixed == [2.66, 2.68]


@case('what is wrong with rows, a profile or the question is one line')
def wrong_rows(b):
    bad = b.file('bad.csv', HEAD + 'array,8,30208,7.53,7.5x,56.6\n')
    b.refused(2, ['bad.csv', 'line 2, ttft_last_s:'], 'calibrate', '--rows', bad)
    b.refused(3, ['/no/such/file'], 'calibrate', '--rows', '/no/such/file')
    b.refused(2, ['unknown option --profil'], 'calibrate', '--rows', bad, '--profil', 'x')
    b.refused(2, ['--where tape'], 'calibrate', '--rows', bad, '--where', 'tape')
    good = b.published()
    b.refused(3, ['/no/such/dir/p.json'], 'calibrate', '--rows', good, '--profile',
              '/no/such/dir/p.json')
    b.refused(2, ['kv-dtype'], 'calibrate', '--rows', good, '--kv-dtype', 'bf15', '--model',
              b.config(MOE))
    path, _ = b.calibrate(good)
    asked = ['ttft', '--model', b.config(MOE), '--profile', path]
    b.refused(2, ['--tokens is missing'], *asked, '--concurrency', 8)
    b.refused(2, ['--concurrency is missing'], *asked, '--tokens', 8)
    b.refused(2, ['--concurrency needs a value'], *asked, '--tokens', 8, '--concurrency')
    b.refused(2, ['--concurrency needs a value'], *asked, '--concurrency', '--tokens', 8)
    for words in ['0', '8,x', '8,,9', '-3', '2000000', '1.5']:
        b.refused(2, ['--concurrency'], *asked, '--tokens', 8, f'--concurrency={words}')
    b.refused(2, ['--tokens 0'], *asked, '--tokens', 0, '--concurrency', 8)
    b.refused(2, ['--resident 9', '8 sessions'], *asked, '--tokens', 8, '--concurrency', 8,
              '--resident', 9)
    b.refused(2, ['profile.json', 'another version'], 'ttft', '--profile',
              b.file('profile.json', '{"kvof_profile": 7}'), '--tokens', 8, '--concurrency', 8)
    b.refused(2, ['arms[0].fixed_s', 'below 0'], 'ttft', '--tokens', 8, '--concurrency', 8,
              '--profile', b.file('profile.json', '{"kvof_profile":1,"source":"rows","arms":[{'
                                  '"arm":"array","source":"rows","fixed_s":-1}]}'))
    b.refused(2, ['--profile is missing'], 'ttft', '--tokens', 8, '--concurrency', 8)
    for part in ('ttft', 'calibrate'):
        assert 'usage' in b.run(part, '--help').stdout


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
