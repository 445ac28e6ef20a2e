#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof replay as scripts rely on it: the fields of its JSON, the same figures each time, one line for
what is wrong, and a page that needs nothing else. One TAP line a case.

usage: replay_cli.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import html.parser
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from cases import case, each, run_all
from nvmetcp import Array

SMALL = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'trace-small.jsonl'
LINE = {'timestamp': 1, 'input_length': 600, 'output_length': 5, 'hash_ids': [1, 2]}
TIERS = ['--bytes-per-token', '128KiB', '--dram', '1GiB', '--flash', '8GiB', '--remote', '64GiB']


class Bench:
    def __init__(self, kvof):
        self.kvof = kvof
        self.dir = tempfile.mkdtemp(prefix='kvof-replay-')

    def run(self, *words, stdin=''):
        return subprocess.run([self.kvof, 'replay'] + [str(w) for w in words], input=stdin,
                              capture_output=True, text=True, timeout=60)

    def json(self, *words, stdin=''):
        done = self.run(*words, '--json', stdin=stdin)
        assert done.returncode == 0 and done.stderr == '', done.stderr
        assert done.stdout.count('\n') == 1, done.stdout
        return json.loads(done.stdout)

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
        return path

    def refused(self, code, words, *args, stdin=''):
        done = self.run(*args, stdin=stdin)
        assert done.returncode == code, f'exit code {done.returncode}: {done.stderr}'
        assert done.stdout == '' and done.stderr.count('\n') == 1, done.stderr
        for word in words:
            assert word in done.stderr, f'no {word!r} in {done.stderr!r}'


def lru(requests, capacity, rev):
    """A list, the longest unused block first."""
    order, hits, tokens = [], 0, 0
    for request in requests:
        ids, found = request['hash_ids'], 0
        while found < len(ids) and ids[found] in order:
            found += 1
        hits += found
        tokens += min(512 * found, request['input_length'])
        for block in reversed(ids) if rev else ids:
            if block in order:
                order.remove(block)
            elif len(order) == capacity:
                order.pop(0)
            order.append(block)
    return hits, tokens


@each('lru counts what a list counts', [(1, 'fwd'), (7, 'fwd'), (7, 'rev'), (64, 'fwd'),
                                        (64, 'rev'), (300, 'rev')])
def run(b, row):
    capacity, touch = row
    requests = [json.loads(line) for line in SMALL.read_text().splitlines()]
    told = b.json(SMALL, '--policy', 'lru', '--capacity-blocks', capacity, '--touch', touch)
    hits, tokens = lru(requests, capacity, touch == 'rev')
    assert told['hit_blocks'] == hits and told['hit_tokens'] == tokens, told
    assert told['requests'] == len(requests)
    assert told['blocks'] == sum(len(r['hash_ids']) for r in requests)
    assert told['unique_blocks'] == len({i for r in requests for i in r['hash_ids']})
    assert told['tokens'] == sum(r['input_length'] for r in requests)


@case('without --touch blocks are used from the first to the last')
def run(b):
    fwd = b.json(SMALL, '--policy', 'lru', '--capacity-blocks', 20, '--touch', 'fwd')
    assert fwd == b.json(SMALL, '--policy', 'lru', '--capacity-blocks', 20)


@case('without a size there is room for all')
def run(b):
    told = b.json(SMALL)
    assert told['hit_blocks'] == 759 and told['policy'] == 'worth', told


@case('a trace comes from standard input as from a file')
def run(b):
    assert b.json('-', '--capacity-blocks', 50, stdin=SMALL.read_text()) == \
        b.json(SMALL, '--capacity-blocks', 50)


@each('a workload is the same each time', ['multi-turn', 'shared-prefix', 'cold-long', 'mixed'])
def run(b, name):
    words = [name, '--requests', 300, '--capacity-blocks', 2000]
    first = b.json(*words, '--seed', 5)
    assert first == b.json(*words, '--seed', 5)
    assert first['tokens'] != b.json(*words, '--seed', 6)['tokens']
    assert first['requests'] == 300
    assert (first['hit_blocks'] == 0) == (name == 'cold-long')


@case('tiers add up, and an engine that is told of gives times')
def run(b):
    told = b.json('mixed', '--requests', 500, *TIERS, '--prefill-tokens-per-s', 20000,
                  '--engines', 8, '--speed', 2, '--second-touch', 'both')
    assert [t['name'] for t in told['tiers']] == ['dram', 'flash', 'remote']
    assert sum(t['hit_blocks'] for t in told['tiers']) == told['hit_blocks'] > 0
    for tier in told['tiers']:
        assert tier['read_bytes'] == tier['hit_blocks'] * told['block_bytes']
        assert tier['used_blocks'] <= tier['capacity_blocks']
    for name in ('p50', 'p90', 'p99', 'mean'):
        assert told['ttft_s'][name] <= told['ttft_without_s'][name]


@case('real tiers hit what comes again, with the right bytes, and keep it for the next run')
def run(b):
    array = Array(b.kvof)
    try:
        words = ['mixed', '--requests', 120, '--block-bytes', '16KiB', '--dram', '4MiB', '--flash',
                 os.path.join(b.dir, 'flash') + ',size=128MiB', '--target',
                 f'tcp://127.0.0.1:{array.port}', '--prefill-tokens-per-s', 20000]
        first = b.json(*words)
        assert first['real'] and first['wrong_blocks'] == first['unsaved_blocks'] == 0, first
        assert first['hit_blocks'] == first['blocks'] - first['unique_blocks'] > 1000, first
        again = b.json(*words)
        assert again['hit_blocks'] == again['blocks'] and again['wrong_blocks'] == 0, again
        for told in first, again:
            assert told['verified_blocks'] == told['hit_blocks']
            assert sum(t['hit_tokens'] for t in told['tiers']) == told['hit_tokens']
            assert [t['name'] for t in told['tiers']] == ['dram', 'flash', 'remote']
        assert b.json(*words, '--seed', 9)['hit_blocks'] < again['hit_blocks']
    finally:
        array.stop()


def lru_of_library(requests, capacity):
    """What is found is used from its last block to its first; the rest is saved, last one first."""
    order, hits = [], 0
    for request in requests:
        ids, found = request['hash_ids'], 0
        while found < len(ids) and ids[found] in order:
            found += 1
        hits += found
        for block in ids[:found][::-1] + ids[found:][::-1]:
            if block in order:
                order.remove(block)
            elif len(order) == capacity:
                order.pop(0)
            order.append(block)
    return hits


@each("the library's DRAM with lru hits what a list hits", [20, 64, 200])
def run(b, blocks):
    requests = [json.loads(line) for line in SMALL.read_text().splitlines()]
    told = b.json(SMALL, '--real', '--policy', 'lru', '--block-bytes', 4096, '--dram',
                  f'{4 * blocks}KiB')
    assert told['hit_blocks'] == lru_of_library(requests, blocks), told
    assert told['verified_blocks'] == told['hit_blocks'] and told['wrong_blocks'] == 0


@case("the library's DRAM with the default hits about what the model of it says")
def run(b):
    words = ['mixed', '--requests', 400]
    model = b.json(*words, '--capacity-blocks', 2000)['hit_blocks']
    told = b.json(*words, '--real', '--block-bytes', 4096, '--dram', 4096 * 2000)
    print(f"# {told['hit_blocks']} of {told['blocks']} blocks, {model} by the model")
    assert told['wrong_blocks'] == 0 and 0.9 * model < told['hit_blocks'] < 1.1 * model


@case('an array out of reach ends a run before it begins, with one line')
def run(b):
    with socket.socket() as s:                     # bound, and nobody listens
        s.bind(('127.0.0.1', 0))
        at = f'127.0.0.1:{s.getsockname()[1]}'
        done = b.run('mixed', '--requests', 3, '--block-bytes', '16KiB', '--target', f'tcp://{at}', '--json')
    assert done.returncode == 3 and done.stdout == '', done
    assert done.stderr.count('kvof replay: ') == 1 and "can't be opened" in done.stderr, done


@case('what nobody tells is told as unknown')
def run(b):
    words = ['mixed', '--requests', 3, '--block-bytes', '16KiB', '--dram', '4MiB', '--real']
    tier = b.json(*words)['tiers'][0]
    assert tier['written_bytes'] is None and tier['write_amplification'] is None, tier
    row = next(line for line in b.run(*words).stdout.splitlines() if line.startswith('dram'))
    assert row.split().count('-') == 2, row


@case('a page that can not be written is refused before the work')
def run(b):
    for path, said in ((os.path.join(b.dir, 'no', 'page.html'), 'No such file'), (b.dir, 'directory')):
        b.refused(3, [f'--html {path}', said], '/nonexistent', '--html', path)
    page = os.path.join(b.dir, 'page.html')
    b.refused(3, ['/nonexistent'], '/nonexistent', '--html', page)
    assert not os.path.exists(page)


@case('a real cache whose flash is a wrong file is refused')
def run(b):
    told = b.json('multi-turn', '--requests', 30, '--block-bytes', '16KiB', '--dram', '64MiB',
                  '--flash', os.path.join(b.dir, 'other') + ',size=128MiB')
    assert told['hit_blocks'] == told['blocks'] - told['unique_blocks']
    path = b.file('foreign', 'not ours ' * 100000)
    b.refused(2, [path], 'multi-turn', '--requests', 3, '--block-bytes', '16KiB', '--flash', path)
    assert pathlib.Path(path).read_text().startswith('not ours not ours')
    b.refused(2, ['--remote SIZE is of a model', f'--flash {path} is a path'], 'mixed',
              '--block-bytes', '16KiB', '--flash', path, '--remote', '1GiB')
    for name, value in (('dram-rate', '1GB'), ('flash-rate', '6GB'), ('remote-latency', '1ms')):
        b.refused(2, [f'--{name} is of a model'], 'mixed', '--block-bytes', '16KiB', '--flash', path,
                  f'--{name}', value)


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ('src', 'href')]

    def handle_data(self, data):
        assert 'nan' not in data and 'inf' not in data, data


@each('the page has its pictures and needs nothing else', ['one tier', 'tiers', 'nothing'])
def run(b, row):
    path = os.path.join(b.dir, 'page.html')
    more = {'one tier': [SMALL, '--capacity-blocks', 30],
            'tiers': [SMALL, *TIERS, '--prefill-tokens-per-s', 9000],
            'nothing': [b.file('<i>.jsonl', '')]}[row]
    done = b.run(*more, '--html', path)
    assert done.returncode == 0, done.stderr
    page, text = Page(), pathlib.Path(path).read_text()
    page.feed(text)
    assert page.tags.count('svg') == {'one tier': 2, 'tiers': 3, 'nothing': 1}[row], page.tags
    assert not page.links and 'script' not in page.tags and '<i>' not in text
    for part in text.split('points="')[1:]:
        assert len(part.split('"')[0].split()) > 10


@case('what is wrong in a trace is told with its file, line and field')
def run(b):
    good = json.dumps(LINE) + '\n'
    for change, field, why in (
            ({'timestamp': -1}, 'timestamp', 'is negative'),
            ({'input_length': None}, 'input_length', 'is no whole number'),
            ({'output_length': 2.5}, 'output_length', 'is no whole number'),
            ({'hash_ids': 'x'}, 'hash_ids', 'is no array'),
            ({'hash_ids': [1, -2]}, 'hash_ids', 'entry 1 is negative')):
        path = b.file('bad.jsonl', good + json.dumps(dict(LINE, **change)) + '\n')
        b.refused(2, [f'{path}:2: {field} {why}'], path)
    for field in LINE:
        short = {k: v for k, v in LINE.items() if k != field}
        path = b.file('bad.jsonl', good * 3 + json.dumps(short))
        b.refused(2, [f'{path}:4: {field} is missing'], path)
    b.refused(2, ['-:1: the line is no JSON'], '-', stdin='{"timestamp": \n')
    b.refused(2, ['-:1: the line is longer than'], '-', stdin='[' * (17 << 20))


@case('options that do not fit are refused before anything is read')
def run(b):
    for words, said in (
            (['--policy', 'lfu'], ['--policy lfu', 'lru']),
            (['--touch', 'back'], ['--touch back', 'fwd, rev']),
            (['--capacity-blocks', 0], ['--capacity-blocks 0']),
            (['--capacity-blocks', -4], ['--capacity-blocks -4']),
            (['--dram', '1GiB'], ['--bytes-per-token']),
            (['--dram', '1MiB', '--bytes-per-token', '1MiB'], ['--dram holds not even one block']),
            (['--dram', '1GiB', '--bytes-per-token', '1KiB', '--capacity-blocks', 5],
             ['--capacity-blocks is of one tier']),
            (['--prefill-tokens-per-s', 5], ['needs tiers']),
            (['--second-touch', 'dram'], ['--second-touch dram', 'flash']),
            (['--speed', '0'], ['--speed 0: not a factor']),
            (['--speed', 'fast'], ['--speed fast: not a factor']),
            (['--capacity-block', 5], ['did you mean --capacity-blocks']),
            (['--flash-rate', '0', *TIERS], ['--flash-rate 0']),
            (['--dram', '256', '--bytes-per-token', '1KiB'],
             ['--dram 256: not clear: say 256B, 256KiB or 256MiB']),
            (['--dram', '1GiB', '--bytes-per-token', '1Q'],
             ['--bytes-per-token 1Q: not a size, as in 4096 or 64KiB']),
            (['--real', '--block-bytes', '4KiB'], ['--real needs a tier'])):
        b.refused(2, said, '/nonexistent', *words)


@each('a size of flash that is none is told as one, and no file is made', [
    ('-1',), ('16EiB',), ('1e308',), ('1Q',), ('+1GiB',), ('',)])
def run(b, row):
    b.refused(2, [f'--flash {row[0]}: not a size'], 'mixed', '--block-bytes', '16KiB', '--dram', '64MiB',
              f'--flash={row[0]}', '--remote', '1GiB')
    assert not os.path.exists(row[0])


@case('a trace that is not there, a folder, a misspelt workload')
def run(b):
    b.refused(3, ['/nonexistent: No such file'], '/nonexistent')
    b.refused(3, ["can't be read"], b.dir)
    b.refused(3, ['did you mean the workload multi-turn?'], 'multi-turns')
    b.refused(2, ['usage: kvof replay'])


@case('help names every policy and workload')
def run(b):
    done = b.run('--help')
    assert done.returncode == 0
    for word in ('worth', 'lru', 's3fifo', 'multi-turn', 'shared-prefix', 'cold-long', 'mixed'):
        assert word in done.stdout, word


def main():
    bench = Bench(sys.argv[1])
    try:
        return run_all(' '.join(sys.argv[2:]), lambda run: run(bench))
    finally:
        shutil.rmtree(bench.dir)


if __name__ == '__main__':
    sys.exit(main())
