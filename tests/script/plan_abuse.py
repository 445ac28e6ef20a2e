#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof plan before users who are hostile or careless: files that are none, texts that drive a terminal
or break a page, places that can't be written to, figures at the end of their range. What is refused is
said on one line and leaves nothing behind; what is answered is whole. One TAP line a case.

usage: plan_abuse.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from cases import case, run_all

CONTROL = re.compile(rb'[\x00-\x08\x0b-\x1f\x7f]')
ENDLESS = re.compile(rb'.{0,40}(?<![A-Za-z])-?(?:inf|nan)(?![A-Za-z])')
MOE = {'model_type': 'qwen3_moe', 'num_hidden_layers': 62, 'num_attention_heads': 96,
       'num_key_value_heads': 8, 'head_dim': 128, 'hidden_size': 6144}
HEAD = 'arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s'
ROWS = ['array,8,30208,6,7,60', 'array,32,30208,20,25,80',
        'recompute,8,30208,30,60,8', 'recompute,32,30208,120,240,8']


def arm(kind, **fields):
    rate = ('tokens_per_s', 4000.0) if kind == 'recompute' else ('bytes_per_s', 7e9)
    return {'arm': kind, 'source': 'rows', 'bottleneck': 'unknown', 'fixed_s': 0.5, rate[0]: rate[1],
            'median_share': 1.0, 'median_rank': 0.0, 'output_tokens': 64, **fields}


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-plan-abuse-')

    def path(self, name):
        return os.path.join(self.dir, name)

    def file(self, name, content):
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        data = content if isinstance(content, bytes) else content.encode()
        pathlib.Path(self.path(name)).write_bytes(data)
        return self.path(name)

    def profile(self, *arms, **fields):
        return self.file('profile.json', {'kvof_profile': 1, 'made': '2026-07-05T00:00:00Z',
                         'machine': 'box A', 'source': 'rows',
                         'arms': list(arms) or [arm('recompute'), arm('local'), arm('array')], **fields})

    def run(self, *words, **more):
        return subprocess.run([self.kvof, 'plan', *words], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60, **more)

    def asks(self, profile):
        """One question to each part that reads a profile."""
        config = self.file('config.json', MOE_JSON)
        return [('ttft', '--model', config, '--profile', profile, '--tokens', '30208',
                 '--concurrency', '1', '8'),
                ('sla', '--model', config, '--profile', profile, '--tokens', '30208',
                 '--within', '5s'),
                ('report', '--profile', profile)]


MOE_JSON = json.dumps(MOE)


def answered(done):
    assert done.returncode == 0 and done.stderr == b'', (done.returncode, done.stderr)
    assert CONTROL.search(done.stdout) is None, CONTROL.search(done.stdout)
    assert ENDLESS.search(done.stdout) is None, ENDLESS.search(done.stdout)
    return done.stdout


def whole_json(done):
    """The one JSON text on standard output; Infinity and NaN are none."""
    def none(word):
        raise AssertionError(f'{word} in JSON')
    return json.loads(answered(done).decode(), parse_constant=none)


def refused(done, code, *words):
    assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
    assert done.stdout == b'', done.stdout
    assert done.stderr.count(b'\n') == 1 and CONTROL.search(done.stderr) is None, done.stderr
    for word in words:
        assert word.encode() in done.stderr, f'no {word!r} in {done.stderr}'
    assert b'stored' not in done.stderr, done.stderr


def readers(b, path):
    """Every part of the planner that opens a file that users name."""
    good = b.profile()
    config = b.file('config.json', MOE_JSON)
    return [('geometry', path), ('move', '--model', path, '--read', '1GB/s'),
            ('ttft', '--model', path, '--profile', good, '--tokens', '9', '--concurrency', '1'),
            ('ttft', '--model', config, '--profile', path, '--tokens', '9', '--concurrency', '1'),
            ('sla', '--profile', path, '--tokens', '9', '--within', '5s'),
            ('calibrate', '--rows', path, '--profile', b.path('made.json')),
            ('report', '--input', path), ('report', '--profile', path),
            ('report', '--model-config', path)]


@case('a file that is not there, or a folder, is named on one line; nothing speaks of a store')
def no_file(b):
    os.makedirs(b.path('folder'), exist_ok=True)
    for path in (b.path('none'), b.path('folder')):
        for words in readers(b, path):
            refused(b.run(*words), 3, path)
    assert not os.path.exists(b.path('made.json'))


@case('names and words with line ends and escapes stay one line and drive no terminal')
def no_terminal(b):
    path = b.path('a\nb\x1b[31m')
    for words in readers(b, path):
        if '--model-config' in words:
            refused(b.run(*words), 2, 'model-config')
        else:
            refused(b.run(*words), 3, 'a?b?[31m')
    refused(b.run('geometry', b.file('c.json', {'model_type': 'x\x1b[2J\n'})), 2, 'x')
    refused(b.run('rep\nort'), 2)
    refused(b.run('move', '--model', b.file('c.json', 'no'), '--read', '1GB/s'), 2, 'c.json: the text')


HOSTILE = ['<script>alert(1)</script>&"', '\x1b[2J\x07 a\nb', '\u00f6' * 300, 'x' + '\u20ac' * 300,
           '\U0001d11e' * 300]


@case('texts of a profile break no page, no terminal and no JSON, wherever they are cut')
def profile_texts(b):
    for text in HOSTILE:
        loads = [arm(k, notes=[text], bottleneck=text) for k in ('local', 'array')]
        name = b.profile(arm('recompute', notes=[text]), *loads, machine=text, made=text, engine=text,
                         precision=text)
        for words in b.asks(name):
            answered(b.run(*words)).decode()
            whole_json(b.run(*words, '--json'))
        page = answered(b.run('report', '--profile', name, '--html', '-')).decode()
        assert '<script>' not in page


@case('names that users give break no page and no JSON; those that are no text are refused')
def own_texts(b):
    for text in HOSTILE:
        for key in ('--model-name', '--model-engine', '--prices-currency'):
            short = text[:60]
            if '\x1b' in short:
                refused(b.run('report', key, short), 2, key)
                continue
            answered(b.run('report', key, short)).decode()
            whole_json(b.run('report', key, short, '--json'))
            page = answered(b.run('report', key, short, '--html', '-')).decode()
            assert '<script>' not in page
    refused(b.run('report', '--model-name', b'\xff'), 2, '--model-name')
    rows = b.file('rows.csv', '\n'.join([HEAD + ',\x1b[31mx'] + [r + ',1' for r in ROWS]))
    assert 'columns that say nothing here: ?[31mx' in answered(b.run('calibrate', '--rows', rows)).decode()
    for text in HOSTILE:
        got = whole_json(b.run('calibrate', '--rows', rows, '--machine', text, '--json'))
        assert got['machine'][:2] == re.sub('[\x00-\x1f]', '?', text)[:2], got['machine']


@case('a file may have any name; pages and JSON stay text')
def file_names(b):
    plain = pathlib.Path(b.profile()).read_bytes()
    for name in (b'\xff\xfe.json', b'<b>&.json', b'\x1b[31m.json', '\u00f6'.encode() * 100):
        path = os.path.join(b.dir.encode(), name)
        pathlib.Path(os.fsdecode(path)).write_bytes(plain)
        for words in b.asks(path):
            answered(b.run(*words)).decode()
            whole_json(b.run(*words, '--json'))
        page = answered(b.run('report', '--profile', path, '--html', '-')).decode()
        assert '<b>' not in page


@case('figures of rows that no machine has are refused by line and column')
def row_figures(b):
    for column in range(1, 6):
        for word in ('1e-308', '1e-13', '1e308', '1e19', '-1', '-0', 'inf', '0x10', '5 s'):
            cells = 'array,8,30208,6,7,60'.split(',')
            cells[column] = word
            rows = b.file('rows.csv', '\n'.join([HEAD, ','.join(cells), ROWS[1]]))
            refused(b.run('calibrate', '--rows', rows, '--profile', b.path('made.json')), 2,
                    'line 2, ' + HEAD.split(',')[column])
    assert not os.path.exists(b.path('made.json'))


@case('a place that takes no file keeps what was there, and nothing half is left')
def no_place(b):
    rows = b.file('rows.csv', '\n'.join([HEAD] + ROWS))
    makes = [('calibrate', '--rows', rows, '--profile'), ('report', '--html')]
    for words in makes:
        for place in (b.path('none/at/all'), b.path(''), '/dev/full', '/proc/kvof.out'):
            refused(b.run(*words, place), 3, place)
        old = b.file('old', 'what was there')
        before = sorted(os.listdir(b.dir))
        done = b.run(*words, old, preexec_fn=lambda: __import__('resource').setrlimit(
            __import__('resource').RLIMIT_FSIZE, (100, 100)))
        assert done.returncode in (3, -25), done
        assert pathlib.Path(old).read_text() == 'what was there'
        for name in set(os.listdir(b.dir)) - set(before):
            os.unlink(b.path(name))
            assert done.returncode != 3, name
        with open('/dev/full', 'w', encoding='utf-8') as full:
            done = subprocess.run([b.kvof, 'plan', *words, b.path('new')], stdout=full,
                                  stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 3 and done.stderr.count(b'\n') == 1, done


@case('money that nothing is saved for is told in words, not as a figure without end')
def endless(b):
    words = ('report', '--workload-overlap', 'no', '--dram-size', '0 B', '--local-fixed', '1000 s',
             '--prices-gpu-hour', '2', '--prices-local-drive', '1000', '--prices-array', '60000')
    assert b'no GPU time is saved' in answered(b.run(*words))
    assert b'no GPU time is saved' in answered(b.run(*words, '--html', '-'))
    whole_json(b.run(*words, '--json'))


@case('a full or closed standard output is named, also for JSON')
def full_output(b):
    for words in (('report',), ('report', '--json'), ('geometry', b.file('c.json', MOE), '--json')):
        with open('/dev/full', 'w', encoding='utf-8') as full:
            done = subprocess.run([b.kvof, 'plan', *words], stdout=full, stderr=subprocess.PIPE,
                                  timeout=60)
        assert done.returncode == 3 and done.stderr.count(b'\n') == 1, done
        assert b'standard output: No space left' in done.stderr, done


@case('a number with more digits than one has is refused whole, not read in part')
def long_words(b):
    good, config = b.profile(), b.file('config.json', MOE_JSON)
    ask = ('ttft', '--model', config, '--profile', good, '--tokens', '9')
    refused(b.run(*ask, '--concurrency', '0' * 22 + '5x'), 2, '--concurrency')
    refused(b.run(*ask, '--concurrency', '0' * 22 + '5' + '0' * 9), 2, '--concurrency')
    size = '1.' + '0' * 27 + 'GB'
    refused(b.run('move', '--weights', '1GB', '--read', size + 'x/s'), 2, '--read')
    refused(b.run('move', '--weights', '1GB', '--seen', size + 'x=1s', '--seen', '2GB=2s'), 2,
            '--seen')


@case('blocks of a trace without a trace are refused')
def no_trace(b):
    refused(b.run('report', '--workload-trace-block', '1'), 2, 'trace_block', '[workload] trace')


def main():
    bench = Bench(sys.argv[1])
    code = run_all(sys.argv[2] if len(sys.argv) > 2 else '', lambda run: run(bench))
    shutil.rmtree(bench.dir)
    return code


if __name__ == '__main__':
    sys.exit(main())
