#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan report from its input file to its advice: scenarios with opposite advice whose deciding
figures are worked out here once more, what is not compared, and one line for what is wrong.

usage: plan_report.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import html.parser
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

from cases import case, run_all

# A session: 30,208 tokens of 253,952 bytes. Local: one drive. Array: four behind one port.
BASE = {
    'model': {'bytes_per_token': '248 KiB', 'prefill': '3700 tokens/s', 'tp': '8'},
    'workload': {'preset': 'all-again', 'sessions': '8', 'tokens': '30208', 'kept': '600'},
    'local': {'drives': '1', 'fixed': '0.5 s'},
    'array': {'drives': '4', 'ports': '1', 'fixed': '0.7 s'},
    'drives': {'capacity': '7.68 TB', 'read': '6.9 GB/s'},
    'link': {'port': '100 Gbit/s', 'efficiency': '85 %'},
    'sla': {'ttft': '20 s', 'quantile': 'last'},
}
SESSION = 30208 * 253952


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-report-')

    def run(self, *words, stdin=''):
        return subprocess.run([self.kvof, 'plan', 'report'] + [str(w) for w in words], input=stdin,
                              capture_output=True, text=True, timeout=60)

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
        return path

    def input(self, **changes):
        """BASE with workload__sessions='9' for [workload] sessions."""
        sections = {name: dict(keys) for name, keys in BASE.items()}
        for key, value in changes.items():
            section, name = key.split('__')
            sections.setdefault(section, {})[name] = str(value)
        text = ''.join(f'[{s}]\n' + ''.join(f'{k} = {v}\n' for k, v in keys.items())
                       for s, keys in sections.items())
        return self.file('plan.ini', text)

    def json(self, *words, **changes):
        done = self.run('--input', self.input(**changes), '--json', *words)
        assert done.returncode == 0 and done.stderr == '', done.stderr
        assert done.stdout.count('\n') == 1
        return json.loads(done.stdout)

    def profile(self, name, **fields):
        arms = fields.pop('arms', [('recompute', 'tokens_per_s', 4000.0),
                                   ('local', 'bytes_per_s', 7e9), ('array', 'bytes_per_s', 1e10)])
        whole = {'kvof_profile': 1, 'made': '2026-07-05T00:00:00Z', 'machine': 'box A',
                 'source': 'rows', 'arms': [
                     {'arm': arm, 'source': 'rows', 'bottleneck': 'unknown', 'fixed_s': 0.5,
                      rate: value, 'median_share': 1.0, 'median_rank': 0.0, 'output_tokens': 64}
                     for arm, rate, value in arms]}
        whole.update(fields)
        return self.file(name, json.dumps(whole))

    def refused(self, code, words, *args, stdin=''):
        done = self.run(*args, stdin=stdin)
        assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
        assert done.stdout == '' and done.stderr.count('\n') == 1, done.stderr
        for word in words:
            assert word in done.stderr, f'no {word!r} in {done.stderr!r}'


def near(got, want):
    assert math.isclose(got, want, rel_tol=1e-6), f'{got}, not {want}'


def flip(report, fact, above):
    rows = [f for f in report['flips'] if (f['fact'], f['above']) == (fact, above)]
    assert len(rows) == 1, f'{fact}: {report["flips"]}'
    return rows[0]


def arm(report, name):
    return [a for a in report['advice']['arms'] if a['arm'] == name][0]


def local_s(n):
    return 0.5 + n * SESSION / 6.9e9


def array_s(n):
    return 0.7 + n * SESSION / (12.5e9 * 0.85)


def recompute_s(n, tokens=30208):
    return n * tokens / 3700


@case('local NVMe is enough for eight sessions, and an array pays from as many as it is late for')
def local_enough(b):
    got = b.json()
    assert got['advice']['advice'] == 'local' and got['advice']['why'] == 'enough'
    assert got['advice']['buy'] is True and got['advice']['meets_sla'] is True
    near(arm(got, 'local')['ttft_s'], local_s(8))
    near(arm(got, 'array')['ttft_s'], array_s(8))
    near(arm(got, 'recompute')['ttft_s'], recompute_s(8))
    most = math.floor((20 - 0.5) / (SESSION / 6.9e9))
    assert arm(got, 'local')['sla_sessions'] == most
    turn = flip(got, 'sessions', True)
    assert (turn['at'], turn['advice']) == (most + 1, 'array'), turn


@case('an array pays for 24 sessions, down to where local NVMe brings them back in time')
def array_pays(b):
    got = b.json(workload__sessions=24)
    assert (got['advice']['advice'], got['advice']['why']) == ('array', 'cheaper-is-too-slow')
    near(arm(got, 'local')['ttft_s'], local_s(24))
    near(arm(got, 'array')['ttft_s'], array_s(24))
    assert local_s(24) > 20 >= array_s(24)
    turn = flip(got, 'sessions', False)
    assert (turn['at'], turn['advice']) == (17, 'local'), turn
    turn = flip(got, 'array_bytes_per_s', False)       # local NVMe is then as quick, and cheaper
    near(turn['at'], 24 * SESSION / (local_s(24) / 1.1 - 0.7))
    assert got['supply']['array']['bottleneck'] == 'link'
    near(got['supply']['array']['bytes_per_s'], 12.5e9 * 0.85)


@case('nothing is bought for short prompts that are computed in time')
def short_prompts(b):
    got = b.json(workload__tokens=2000)
    assert (got['advice']['advice'], got['advice']['why']) == ('nothing', 'recompute-is-enough')
    assert got['advice']['buy'] is False
    near(arm(got, 'recompute')['ttft_s'], recompute_s(8, 2000))
    turn = flip(got, 'tokens', True)
    assert turn['advice'] == 'local' and turn['at'] == math.floor(20 * 3700 / 8) + 1, turn


@case('nothing is bought for what never comes again, is quicker computed, or fits in GPU memory')
def nothing(b):
    got = b.json(workload__preset='cold-long', workload__sessions=24)
    assert got['advice']['why'] == 'nothing-comes-again'
    got = b.json(model__prefill='200000 tokens/s', workload__sessions=200, local__drives=0)
    assert got['advice']['why'] == 'recompute-is-quicker'
    got = b.json(model__weights='450 GB', workload__kept=100)
    assert got['advice']['why'] == 'fits-in-gpu-memory'
    near(got['spill']['kv_bytes'], 8 * 192e9 * 0.9 * 0.97 - 450e9)
    got = b.json(model__weights='450 GB', workload__kept=100, workload__outlive='restart')
    assert got['advice']['advice'] == 'local'


@case('an array behind a network that loses packets is not advised, and the place is told')
def lossy(b):
    clean = b.json(workload__sessions=24, link__rtt='2 ms')
    assert clean['advice']['advice'] == 'array'
    at = flip(clean, 'loss', True)['at']
    got = b.json(workload__sessions=24, link__rtt='2 ms', link__loss=f'{200 * at:.6f} %')
    assert got['advice']['advice'] != 'array' and got['advice']['why'] == 'lossy-network'
    assert 0 < clean['network']['flips_at_loss'] <= 1


@case('sharing between hosts makes it an array, sticky routing local NVMe')
def sharing(b):
    shared = {'workload__hosts': 2, 'workload__sessions': 16}
    got = b.json(**shared)
    assert (got['advice']['advice'], got['advice']['why']) == ('array', 'shared')
    near(arm(got, 'local')['hit'], 0.5)
    assert b.json(workload__routing='sticky', **shared)['advice']['advice'] == 'local'


@case('what GPUs do more is a share of time: a sixth, where a linear sum says a fifth')
def time_share(b):
    rate = SESSION / (recompute_s(1) / 1.4 - 0.7)      # loads are 1.4 times as fast as prefill
    per_day = 43200 / recompute_s(1)                   # which takes half of the time
    changes = {'prices__gpu_hour': 2, 'prices__array': 1000, 'workload__sessions': 1,
               'workload__overlap': 'no', 'workload__requests': f'{per_day:.9f} /day',
               'link__port': f'{rate:.6f} B/s', 'link__efficiency': '100 %'}
    money = b.json(**changes)['money']['array']
    near(money['restored_share_of_time'], 0.5)
    near(money['speedup'], 1.4)
    assert abs(money['uplift'] - 0.167) < 0.0005, money
    near(money['gpu_hours_per_day'], 12 * (1 - 1 / 1.4) * 8)
    changes.update(workload__overlap='yes', workload__requests='882 /h')
    money = b.json(**changes)['money']['array']        # more than there is time for
    near(money['prefill_share_of_time'], 882 * 24 * recompute_s(1) / 86400)
    near(money['gpu_hours_per_day'], 24 * 8)


@case('wear has what is computed anew, admission and amplification in it')
def wear(b):
    changes = {'workload__preset': 'cold-long', 'workload__requests': '100 /h',
               'workload__output': 64, 'drives__tbw': '14 PB',
               'drives__write_amplification': '1.1', 'drives__admission': '50 %'}
    got = b.json(**changes)
    stored = 2400 * (30208 + 64) * 253952
    near(got['wear']['array']['stored_bytes_per_day'], stored)
    near(got['wear']['array']['drive_bytes_per_day'], stored * 0.5 * 1.1 / 4)
    near(got['wear']['array']['days'], 14e15 / (stored * 0.5 * 1.1 / 4))
    near(got['wear']['local']['drive_writes_per_day'], stored * 0.55 / 7.68e12)
    assert got['wear']['array']['worn_out'][:2] == '20'
    lasts = 50 * got['wear']['local']['days'] / (4 * 365.25)
    assert f'admission of {lasts:.2g} % would do' in got['advice']['reasons'][4]


@case('capacity and bandwidth are told apart: room decides what is hit, not how fast')
def capacity(b):
    got = b.json(workload__preset='multi-turn', workload__kept=4000, workload__sessions=24)
    local, array = arm(got, 'local'), arm(got, 'array')
    assert local['hit'] < array['hit'] <= 1
    assert [h['hit'] for h in got['hits']] == sorted(h['hit'] for h in got['hits'])
    whole = [a for a in got['sets'][0]['arms'] if a['arm'] == 'local'][0]
    wave = [w for w in whole['waves'] if w['concurrency'] == 24][0]
    near(wave['ttft_last_s'], local_s(24))             # whatever the room hits
    loaded = 30208 * local['hit']
    near(local['ttft_s'], 0.5 + 24 * loaded * 253952 / 6.9e9 + recompute_s(24, 30208 - loaded))


@case('arms of a profile are advised by, marked with their source, date and machine')
def profile(b):
    path = b.profile('a.json')
    got = b.json('--profile', path)
    assert got['advice']['figures_of'] == path
    used = [s for s in got['sets'] if s['advised_by']][0]
    assert (used['source'], used['machine']) == ('rows', 'box A')
    assert used['made'] == '2026-07-05T00:00:00Z'
    near(arm(got, 'local')['ttft_s'], 0.5 + 8 * SESSION / 7e9)
    assert any('nobody measured' in d for d in got['differences'])
    sheet = [s for s in got['sets'] if s['name'] == 'data sheets'][0]
    assert sheet['source'] == 'spec' and not sheet['advised_by']


@case('arms that differ in machine, engine, model or precision are not compared, and it is said')
def differences(b):
    first = b.profile('a.json', engine='engine 1', precision='bf16',
                      model={'type': 'm1', 'bytes_per_token': 253952})
    for name, fields, words in [
            ('machine', {'machine': 'box B'}, ['machine (box A | box B)']),
            ('engine', {'engine': 'engine 2'}, ['engine (engine 1 | engine 2)']),
            ('precision', {'precision': 'fp8'}, ['precision (bf16 | fp8)']),
            ('model', {'model': {'type': 'm2', 'bytes_per_token': 131072}},
             ['model (m1 | m2)', 'bytes per token (253952 | 131072)'])]:
        other = {'engine': 'engine 1', 'precision': 'bf16',
                 'model': {'type': 'm1', 'bytes_per_token': 253952}}
        other.update(fields)
        second = b.profile('b.json', **other)
        got = b.json('--profile', first, '--profile', second)
        said = [d for d in got['differences'] if first in d and second in d]
        assert len(said) == 1, got['differences']
        for word in words:
            assert word in said[0], said[0]
        assert len(got['sets']) == 3 and got['advice']['figures_of'] == first, name
        assert all(len({a['arm'] for a in s['arms']}) == len(s['arms']) for s in got['sets'])


@case('a profile of another model or precision is shown and not advised by')
def other_model(b):
    path = b.profile('a.json', model={'type': 'm2', 'bytes_per_token': 131072})
    got = b.json('--profile', path)
    assert got['advice']['figures_of'] == 'data sheets'
    assert any('bytes per token (253952 | 131072)' in d for d in got['differences'])
    shown = [s for s in got['sets'] if s['name'] == path][0]
    assert [a['arm'] for a in shown['arms']] == ['local', 'array']     # recompute is its model's
    path = b.profile('b.json', precision='fp8')
    got = b.json('--profile', path, '--model-kv-dtype', 'bf16')
    assert got['advice']['figures_of'] == 'data sheets'
    path = b.profile('c.json', arms=[('local', 'bytes_per_s', 7e9)])
    got = b.json('--profile', path, model__prefill='3700 tokens/s')
    assert any('recompute of' in d and 'told' in d for d in got['differences'])


@case('a trace makes tokens, how often they come, the working set and what is hit')
def trace(b):
    rows = [{'timestamp': 1000 * i, 'input_length': 1024, 'output_length': 10,
             'hash_ids': [2 * (i % 4), 2 * (i % 4) + 1]} for i in range(41)]
    path = b.file('t.jsonl', ''.join(json.dumps(r) + '\n' for r in rows))
    changes = {'workload__trace': 't.jsonl'}
    ini = b.input(**changes)
    with open(ini, encoding='utf-8') as f:
        text = f.read()
    for line in ['preset = all-again\n', 'tokens = 30208\n', 'kept = 600\n']:
        assert line in text
        text = text.replace(line, '')
    done = b.run('--input', b.file('plan.ini', text), '--json')
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got['sizes']['tokens'] == 1024
    near(got['sizes']['requests_per_s'], 41 / 40)
    near(got['sizes']['working_set_bytes'], 8 * 512 * 253952)
    near(got['hits'][-1]['hit'], 37 / 41)
    os.remove(path)
    b.refused(3, ['t.jsonl', 'No such file'], '--input', os.path.join(b.dir, 'plan.ini'))


@case('a config.json gives geometry and weights, beside the input file')
def config(b):
    b.file('config.json', json.dumps({
        'model_type': 'llama', 'num_hidden_layers': 80, 'num_attention_heads': 64,
        'num_key_value_heads': 8, 'hidden_size': 8192, 'intermediate_size': 28672,
        'vocab_size': 128256, 'torch_dtype': 'bfloat16'}))
    ini = b.input(model__config='config.json')
    with open(ini, encoding='utf-8') as f:
        text = f.read().replace('bytes_per_token = 248 KiB\n', '')
    done = b.run('--input', b.file('plan.ini', text), '--json')
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got['sizes']['bytes_per_token'] == 327680
    assert got['sizes']['session_rank_bytes'] == 30208 * 327680 / 8
    assert 'notes' in got and got['notes'] == []               # prefill was told
    done = b.run('--model-config', os.path.join(b.dir, 'config.json'), '--gpu-flops',
                 '1 PFLOP/s', '--json')
    assert done.returncode == 0, done.stderr
    worked = json.loads(done.stdout)
    assert 'tokens/s is 8e+03 TFLOP/s x 40 %' in worked['notes'][0], worked['notes']
    rate = worked['sets'][0]['arms'][0]['tokens_per_s']
    assert 0.9 < rate / (8e15 * 0.4 / (2 * 69.5e9)) < 1.1, rate        # 2 FLOP a parameter
    done = b.run('--model-config', os.path.join(b.dir, 'config.json'), '--json')
    assert 'standard value' in json.loads(done.stdout)['notes'][0]
    page = b.run('--model-config', os.path.join(b.dir, 'config.json')).stdout
    assert 'bytes_per_token=' not in page and 'prefill=3700 tokens/s*' in page
    page = b.run('--model-config', os.path.join(b.dir, 'config.json'), '--gpu-flops',
                 '1 PFLOP/s').stdout
    assert 'prefill=' not in page, page                        # what stands in is in the note
    page = b.run('--model-bytes-per-token', '100 kB', '--workload-tokens', '2000',
                 '--workload-kept', '20', '--array-fixed', '100 s').stdout
    assert 'Spill: 4.00 GB should' in page and 'KV of a session = 200.000 MB (190.735 MiB)' in page
    assert 'even without loss and jitter' in page, page
    weights = 8 * 192e9 * 0.9 * 0.97 - got['spill']['kv_bytes']
    assert 140e9 < weights < 142e9, weights
    b.refused(2, ['[model] bytes_per_token', 'config'], '--input',
              b.input(model__config='config.json'))


@case('without input the example is shown, and it is the file that --example prints')
def example(b):
    done = b.run('--example')
    assert done.returncode == 0
    shown, told = b.run('--json'), b.run('--input', '-', '--json', stdin=done.stdout)
    assert shown.returncode == told.returncode == 0, told.stderr
    shown, told = json.loads(shown.stdout), json.loads(told.stdout)
    assert shown.pop('example') is True and told.pop('example') is False
    assert shown == told
    page = b.run().stdout
    for word in ['built-in example', 'ADVICE', 'IT FLIPS', 'TIME TO FIRST TOKEN', 'SUPPLY',
                 'HIT RATE AGAINST CAPACITY', 'ARITHMETIC', 'nobody measured it', '*']:
        assert word in page, word
    assert all(len(line) <= 200 for line in page.splitlines())


@case('each result stands with its formula and the numbers put in')
def steps(b):
    got = b.json(prices__gpu_hour=2, prices__array=50000, prices__local_drive=1000,
                 model__weights='450 GB')
    sections = {s['section'] for s in got['steps']}
    assert sections == {'geometry', 'workload', 'spill', 'supply', 'model load', 'ttft',
                        'capacity', 'wear', 'money'}, sections
    for s in got['steps']:
        assert s['formula'] and s['numbers'] and s['result'], s
    loads = {s['what']: s['result'] for s in got['steps'] if s['section'] == 'model load'}
    assert loads == {'load of the model, local': f'{450 / 6.9:.1f} s',
                     'load of the model, array': f'{450 / (12.5 * 0.85):.1f} s'}, loads
    page = b.run('--input', os.path.join(b.dir, 'plan.ini')).stdout
    assert '0.50 s + 8 x 7.671 GB / 6.90 GB/s' in page and f'{local_s(8):.2f} s' in page


class Tags(html.parser.HTMLParser):
    EMPTY = {'meta', 'br', 'rect', 'line', 'circle', 'polyline', 'li'}

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ('src', 'href') and 'nan' not in (value or '').split(','), value

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag, tag


@case('the HTML page needs nothing else, closes what it opens and has its three pictures')
def page(b):
    path = os.path.join(b.dir, 'plan.html')
    done = b.run('--input', b.input(model__name='<x> & "y"'), '--html', path)
    assert done.returncode == 0, done.stderr
    with open(path, encoding='utf-8') as f:
        text = f.read()
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and tags.seen.count('svg') == 3
    assert 'http' not in text and '<script' not in text and '<x>' not in text
    assert 'prefers-color-scheme:dark' in text and 'asked for: 20 s' in text
    assert tags.seen.count('circle') >= 4 and 'inf' not in text.split('<svg')[1]
    assert b.run('--input', b.input(), '--html', '-').stdout.startswith('<!doctype html>')


@case('what is wrong is told in one line that says where and what to do')
def wrong(b):
    b.refused(2, ['plan.ini:2', 'no such key', 'capacity'], '--input',
              b.file('plan.ini', '[drives]\ncapacty = 1 TB\n'))
    b.refused(2, ['[drvies]', 'nearest is [drives]'], '--input',
              b.file('plan.ini', '[drvies]\nxyz = 1 TB\n'))
    b.refused(2, ['[drives] capacity', 'unit'], '--input',
              b.file('plan.ini', '[drives]\ncapacity = 1000\n'))
    b.refused(2, ['twice'], '--input', b.file('plan.ini', '[sla]\nttft = 1 s\nttft = 2 s\n'))
    b.refused(2, ['plan.ini:1'], '--input', b.file('plan.ini', 'nothing\n'))
    b.refused(2, ['--array-drive', '--array-drives'], '--array-drive', '4')
    b.refused(2, ['--sla-ttft', 'unit'], '--sla-ttft', '5')
    b.refused(2, ['--sla-ttft', 'value'], '--sla-ttft')
    b.refused(2, ['plan.ini', '--input'], 'plan.ini')
    b.refused(2, ['[workload] kept', 'sessions'], '--workload-kept', '4')
    b.refused(4, ['[dram] staging'], '--dram-staging', '1 GB')
    b.refused(4, ['heads'], '--model-config', b.file('c.json', json.dumps({
        'model_type': 'llama', 'num_hidden_layers': 2, 'num_attention_heads': 6,
        'num_key_value_heads': 2, 'hidden_size': 768})))
    b.refused(3, ['none.ini'], '--input', os.path.join(b.dir, 'none.ini'))
    flagged = b.json('--workload-sessions', '24')
    assert flagged['advice']['advice'] == 'array'              # a flag beats the file
    assert flagged['input']['workload']['sessions'] == {
        'text': '24', 'origin': 'flag', 'value': 24.0}


def main():
    bench = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(bench))
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
