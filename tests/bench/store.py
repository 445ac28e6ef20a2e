#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store on four drive files beside fio on the same files, in turns, O_DIRECT and io_uring both.

usage: store.py BUILD [--dir D] [--drive-gib N] [--value-bytes N] [--depth D] [--seconds S] [--rounds R]

The files are much larger than any cache below (16 GiB in all by default), fio writes them first so that
their blocks exist, and each round runs write and read of both. fio's depth is the best of those
tried in the first round. Prints one JSON object with medians and ratios; judges nothing. The files are
removed at the end.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

DEPTHS = (1, 2, 4, 8, 16)


def fio(files, kind, value_bytes, depth, seconds):
    """Bytes per second, CPU seconds and p99 of one run; one job a file, depth each."""
    command = ["fio", "--ioengine=io_uring", "--direct=1", f"--rw={kind}",
               f"--bs={value_bytes}", f"--iodepth={depth}", "--time_based", f"--runtime={seconds}",
               "--group_reporting", "--output-format=json", "--randrepeat=0", "--norandommap"]
    for i, file in enumerate(files):
        command += [f"--name=j{i}", f"--filename={file}"]
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    job = out["jobs"]
    side = "write" if "write" in kind else "read"
    rate = sum(j[side]["bw_bytes"] for j in job)
    cpu = sum((j["usr_cpu"] + j["sys_cpu"]) / 100 * j["job_runtime"] / 1000 for j in job)
    return {"bytes_per_s": rate, "cpu_s_per_gb": cpu / max(rate * seconds / 1e9, 1e-9),
            "p99_us": max(j[side]["clat_ns"].get("percentile", {}).get("99.000000", 0)
                          for j in job) / 1e3}


def kvof(build, files, gib, op, value_bytes, depth, keys, seconds):
    command = [f"{build}/kvof", "bench", "store", "--format", "--json", "--op", op, "--value-bytes",
               str(value_bytes), "--depth", str(depth), "--keys", str(keys), "--seconds",
               str(seconds)]
    for file in files:
        command += ["--drive", f"{file},size={gib}GiB"]
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"bytes_per_s": out["bytes_per_s"], "p99_us": out["p99_us"],
            "cpu_s_per_gb": out["cpu_s"] / max(out["bytes_per_s"] * out["seconds"] / 1e9, 1e-9)}


def best_depth(files, kind, value_bytes, seconds):
    rates = {d: fio(files, kind, value_bytes, d, seconds)["bytes_per_s"] for d in DEPTHS}
    return max(rates, key=rates.get), rates


def say(text):
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--dir", default="build/bench-store")
    p.add_argument("--drive-gib", type=int, default=4)
    p.add_argument("--value-bytes", type=int, default=1 << 20)
    p.add_argument("--depth", type=int, default=32)
    p.add_argument("--seconds", type=int, default=5)
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    folder = pathlib.Path(o.dir)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"drive{i}" for i in range(4)]
    keys = int(o.drive_gib * 4 * (1 << 30) * 0.8) // o.value_bytes
    result = {"fio": {"write": [], "read": []}, "kvof": {"write": [], "read": []}}
    try:
        for file in files:
            subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=16M", f"count={o.drive_gib * 64}",
                            "oflag=direct"], stderr=subprocess.DEVNULL, check=True)
        depth = {}
        for side, kind in (("write", "randwrite"), ("read", "randread")):
            depth[side], rates = best_depth(files, kind, o.value_bytes, 2)
            result[f"fio_{side}_depths"] = rates
        for n in range(o.rounds):
            for side, kind, op in (("write", "randwrite", "store"), ("read", "randread", "retrieve")):
                say(f"round {n + 1}: {side}")
                result["fio"][side].append(fio(files, kind, o.value_bytes, depth[side], o.seconds))
                result["kvof"][side].append(kvof(o.build, files, o.drive_gib, op, o.value_bytes,
                                                 o.depth, keys, o.seconds))
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    def median(who, side, what):
        return statistics.median(r[what] for r in result[who][side])
    out = {"value_bytes": o.value_bytes, "depth": o.depth, "rounds": o.rounds,
           "set_bytes": keys * o.value_bytes, "fio_depth_per_file": depth}
    for side in ("write", "read"):
        for who in ("fio", "kvof"):
            out[f"{who}_{side}"] = {w: median(who, side, w)
                                    for w in ("bytes_per_s", "cpu_s_per_gb", "p99_us")}
        out[f"{side}_ratio"] = statistics.median(
            k["bytes_per_s"] / f["bytes_per_s"]
            for k, f in zip(result["kvof"][side], result["fio"][side]))
        out[f"{side}_ratios"] = [k["bytes_per_s"] / f["bytes_per_s"]
                                 for k, f in zip(result["kvof"][side], result["fio"][side])]
    print(json.dumps(out, indent=1))


main()
