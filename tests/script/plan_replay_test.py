#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner's simulator against `kvof replay` on real tiers: DRAM of the process, flash in a file,
`kvof serve` on loopback. Calibrated on one workload, it tells of others what each tier serves, and the
bytes. What is timed is a bench (tests/bench/plan_replay.py): machines that run tests are busy.

usage: plan_replay_test.py KVOF [WORDS]     runs the cases whose name contains WORDS
"""
import sys

from cases import case, each, run_all
from plan_real import MIB, Real, hits, seconds

PART = 0.10


def near(got, want, blocks):
    """Within a tenth, or 3 in a hundred of all blocks: a store gives up whole segments, so what just
    fits the model may lie one tier further down."""
    return abs(got - want) <= max(PART * want, 0.03 * blocks)


@each('hits of each tier are foretold', [
    ('mixed', 90, 24, 192), ('shared-prefix', 60, 8, 192), ('multi-turn', 350, 64, 192),
    ('mixed', 60, 24, 512), ('cold-long', 40, 24, 192)])
def run(b, row):
    workload, requests, dram, flash = row
    if flash not in b.rooms:                               # what is never full has room for all
        b.rooms[flash] = b.room(flash) if flash < 512 else flash * MIB // b.block_bytes
    room = b.rooms[flash]
    real = b.replay(workload, requests, 77, dram, flash, 1024)
    told = b.simulate(b.profile, workload, requests, 77, dram, room, 1024)
    assert real['wrong_blocks'] == 0 and real['blocks'] == told['blocks'], (real, told)
    assert near(told['hit_blocks'], real['hit_blocks'], 0), (told['hit_blocks'], real)
    assert near(told['hit_tokens'], real['hit_tokens'], 0), (told['hit_tokens'], real)
    for got, want in zip(hits(told), hits(real)):
        assert near(got, want, real['blocks']), (hits(told), hits(real))
    read = sum(t['read_bytes'] for t in real['tiers'])
    assert read == real['hit_blocks'] * b.block_bytes, real
    assert near(sum(t['read_bytes'] for t in told['tiers']) / b.block_bytes, read / b.block_bytes,
                0), (told, real)


@case('a replay tells where its time went, and the line of each tier that served alone')
def run(b):
    real = b.replay('shared-prefix', 40, 5, flash=256)
    parts = real['load_s'] + real['miss_s'] + real['save_s'] + real['check_s']
    assert 0 < parts <= real['seconds'], (parts, real['seconds'])
    line = real['tiers'][0]['loads']
    assert line['blocks'] == real['hit_blocks'] and line['requests'] + real['misses'] == 40, real
    assert abs(line['seconds'] - real['load_s']) < 1e-6 and line['bytes_per_s'] > 0, real
    assert line['fixed_s'] >= 0, line
    assert real['saves']['blocks'] == real['blocks'] - real['hit_blocks'], real


@case('what is foretold takes time, with every part of it above 0')
def run(b):
    told = b.simulate(b.profile, 'mixed', 60, 3, 24, 3000, 1024)
    load_s, all_s = seconds(told)
    assert 0 < load_s < all_s, told
    assert told['ttft_s']['p50'] > 0 and told['late'] == 0, told


def main():
    b = Real(sys.argv[1])
    try:
        b.rooms = {}
        b.profile, b.arms = b.calibrate('shared-prefix', 40, 24, 192, 512)
        return run_all(sys.argv[2] if len(sys.argv) > 2 else '', lambda run: run(b))
    finally:
        b.close()


if __name__ == '__main__':
    sys.exit(main())
