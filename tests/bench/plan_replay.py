#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner's simulator against `kvof replay` on real tiers of this machine: hits and seconds.

usage: plan_replay.py BUILD [--rounds R] [--flash-rate B] [--array-rate B] [--dir D]

Calibrates on one workload (mixed): loads of each tier alone, saves with all of them. Then foretells
others through DRAM of the process, flash in a file and `kvof serve` on loopback with a drive in
memory, and replays them. Drives are held to a rate, so that they and not the processor, which others
use too, set the pace. Calibration and replay are each the best of R rounds.

Prints one JSON object and a table; judges nothing. Files and processes are removed at the end.
"""
import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/script'))

from plan_real import Real, hits, seconds

BLOCK = 64 << 10
DRAM, FLASH, REMOTE = 16, 320, 1024             # MiB
CASES = (('shared-prefix', 80), ('multi-turn', 500), ('mixed', 160))


def compared(b, profile, workload, requests, rounds):
    told = b.simulate(profile, workload, requests, 5, DRAM, b.full_room, REMOTE)
    runs = [b.replay(workload, requests, 5, DRAM, FLASH, REMOTE) for _ in range(rounds)]
    best = min(runs, key=lambda r: seconds(r)[1])
    load_s = min(seconds(r)[0] for r in runs)
    return {'workload': workload, 'requests': requests, 'blocks': best['blocks'],
            'hits_foretold': hits(told), 'hits': hits(best),
            'load_s_foretold': seconds(told)[0], 'load_s': load_s,
            'load_error': seconds(told)[0] / load_s - 1,
            'all_s_foretold': seconds(told)[1], 'all_s': seconds(best)[1],
            'all_error': seconds(told)[1] / seconds(best)[1] - 1,
            'all_s_rounds': [seconds(r)[1] for r in runs]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--flash-rate', type=int, default=40_000_000)
    p.add_argument('--array-rate', type=int, default=20_000_000)
    p.add_argument('--dir')
    args = p.parse_args()
    b = Real(os.path.join(args.build, 'kvof'), block_bytes=BLOCK,
             flash_rate=args.flash_rate, array_rate=args.array_rate, folder=args.dir)
    try:
        b.full_room = b.room(FLASH)
        profile, arms = b.calibrate('mixed', 120, DRAM, FLASH, REMOTE, args.rounds)
        rows = [compared(b, profile, *case, args.rounds) for case in CASES]
    finally:
        b.close()
    print(json.dumps({'bench': 'plan_replay', 'load': os.getloadavg()[0], 'block_bytes': BLOCK,
                      'flash_rate': args.flash_rate, 'array_rate': args.array_rate,
                      'rounds': args.rounds, 'room_blocks': b.full_room, 'arms': arms,
                      'rows': rows}))
    print(f'{"workload":>14}{"hits of tiers":>22}{"foretold":>22}{"load s":>9}{"foretold":>10}'
          f'{"":>8}{"all s":>9}{"foretold":>10}', file=sys.stderr)
    for r in rows:
        print(f'{r["workload"]:>14}{str(r["hits"]):>22}{str(r["hits_foretold"]):>22}'
              f'{r["load_s"]:9.2f}{r["load_s_foretold"]:10.2f}{100 * r["load_error"]:+7.1f} %'
              f'{r["all_s"]:8.2f}{r["all_s_foretold"]:10.2f}{100 * r["all_error"]:+7.1f} %',
              file=sys.stderr)


if __name__ == '__main__':
    main()
