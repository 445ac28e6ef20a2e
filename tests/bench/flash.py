#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The flash tier beside fio on the same files, in turns: blocks restored and verified against raw reads.

usage: flash.py BUILD [--dir D] [--drives N] [--drive-gib N] [--block-bytes N] [--part-bytes N,N,...]
                [--flying N] [--rounds R] [--seconds S]

The tier saves blocks over most of the files; then each round loads all of them in a random order and
lets fio read the same files at random in pieces of the part's size, at its best depth of those tried
first. Reads beside what is delivered are counted at the drives. Prints one JSON object; judges nothing.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

DEPTHS = (1, 2, 4, 8, 16)


def fio(files, part_bytes, depth, seconds):
    command = ["fio", "--ioengine=io_uring", "--direct=1", "--rw=randread", "--fixedbufs",
               f"--bs={part_bytes}", f"--iodepth={depth}", "--time_based", f"--runtime={seconds}",
               "--readonly", "--group_reporting", "--output-format=json", "--norandommap"]
    for i, file in enumerate(files):
        command += [f"--name=j{i}", f"--filename={file}"]
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return sum(j["read"]["bw_bytes"] for j in out["jobs"])


def tier(build, drives, block_bytes, part_bytes, blocks, flying, rounds):
    command = [f"{build}/tests/bench/flash", *drives, f"block={block_bytes}", f"part={part_bytes}",
               f"blocks={blocks}", f"flying={flying}", f"rounds={rounds}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--dir", default="build/bench-flash")
    p.add_argument("--drives", type=int, default=2)
    p.add_argument("--drive-gib", type=int, default=4)
    p.add_argument("--block-bytes", type=int, default=32 << 20)
    p.add_argument("--part-bytes", default=str(4 << 20))
    p.add_argument("--flying", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=int, default=4)
    o = p.parse_args()
    folder = pathlib.Path(o.dir)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"drive{i}" for i in range(o.drives)]
    drives = [f"{file},size={o.drive_gib}GiB" for file in files]
    blocks = int(o.drives * o.drive_gib * (1 << 30) * 0.7) // o.block_bytes
    result = []
    try:
        for part in (int(n) for n in o.part_bytes.split(",")):
            tier(o.build, drives, o.block_bytes, part, blocks, o.flying, 1)  # the files are written
            depths = {d: fio(files, part, d, 2) for d in DEPTHS}
            best = max(depths, key=depths.get)
            row = {"part_bytes": part, "fio_depth_per_file": best, "fio_depths": depths, "fio": [],
                   "kvof": [], "cpu_s_per_gb": [], "read_per_delivered": []}
            for _ in range(o.rounds):
                row["fio"].append(fio(files, part, best, o.seconds))
                out = tier(o.build, drives, o.block_bytes, part, blocks, o.flying, 1)
                row["kvof"].append(out["load_bytes_per_s"][0])
                row["cpu_s_per_gb"].append(out["cpu_s_per_gb"])
                row["read_per_delivered"].append(out["read_per_delivered"])
            row["ratio"] = statistics.median(k / f for k, f in zip(row["kvof"], row["fio"]))
            result.append(row)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    print(json.dumps({"block_bytes": o.block_bytes, "drives": o.drives, "blocks": blocks,
                      "flying": o.flying, "rows": result}, indent=1))


main()
