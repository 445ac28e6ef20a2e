#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvof beside fs_native, Redis and Mooncake Store under LMCache's own bench (`lmcache bench l2`), in one run.

lmcache.py [BUILD] [--set SIZE_MIB | --turns N] [--keys N] [--in-flight 1,4,16] [--rounds N]
           [--arms a,b,...] [--fresh] [--folder DIR] [--tcp NAME] [--json FILE]

Objects of 4 MiB, verification on. N times, for each number in flight, all arms in turn; a run starts its
store anew and moves --set MiB (at least; whole rounds) into it and out of it. Stores that keep values in
the memory of a process of their own are then run once more as they are ("again": Redis under the same
names, so that it has memory at hand; Mooncake emptied first; kvof under new names, evicting), since memory
that is touched for the first time costs more than the copy. CPU is of LMCache's process and the store's
together, a GB of objects.

--fresh is a machine just started, whose memory the host has still to find: before a store starts, all free
memory that is fast to touch is held (fresh.py), until the store is ended; nothing is run "again". What first
touch costs just before a store starts, and how long the store takes to start, is printed either way.

arms: kvof          kvof serve on loopback, a mem drive
      kvof-files    kvof serve on loopback, two files, O_DIRECT
      kvof-tiers    the first with libkvof's DRAM before it, stores written behind (at most 512 MiB wait)
      kvof-dram     libkvof's DRAM alone, in LMCache's process
      fs_native     LMCache's files, use_odirect, four workers
      redis         LMCache's resp, Redis on loopback, no persistence
      mooncake      Mooncake Store over TCP: master, a node that holds the values (lmcache_mooncake.py)

Needs `tools/engines-env.sh --rivals`. Prints a table; --json writes everything. Never fails for a slow arm.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fresh

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
ENGINES = TOP / "tests/engines"
LMCACHE = TOP / "build/venv-lmcache"
MOONCAKE = TOP / "build/venv-mooncake"
OBJECT = 4 << 20
MIB = 1 << 20
LEAVE = 6 << 30               # --fresh leaves so much free, and the room with BESIDE for all other
BESIDE = 4 << 30
TAKES_AT_START = ("kvof", "kvof-tiers", "kvof-dram", "mooncake")


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Arm:
    """One store, started for one run: its processes, and what LMCache is told to reach it."""
    name = ""
    again = False                 # run once more, with its memory touched

    def __init__(self, o, folder: Path):
        self.o, self.folder, self.processes, self.runs = o, folder / self.name, [], 0
        self.folder.mkdir()
        begin = time.monotonic()
        self.start()
        self.start_s = time.monotonic() - begin

    def start(self) -> None:
        pass

    def begin(self) -> dict:
        """The adapter's JSON for the next run."""
        self.runs += 1
        return self.spec()

    def spec(self) -> dict:
        raise NotImplementedError

    def spawn(self, *args, ready: str, **kw):
        log = open(self.folder / "log", "ab")
        p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=log, text=True,
                             **kw)
        self.processes.append(p)
        while ready not in (line := p.stdout.readline()):
            if not line:
                raise RuntimeError(f"{self.name}: {args[0]} did not start: {self.folder / 'log'}")
        return line

    def stop(self) -> None:
        for p in reversed(self.processes):
            p.send_signal(signal.SIGTERM)
        for p in self.processes:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Kvof(Arm):
    name = "kvof"
    again = True

    def drives(self):
        return ["--drive", f"mem,size={self.o.room >> 20}MiB"]

    def start(self):
        self.target = self.spawn(self.o.build / "kvof", "serve", "--listen", "tcp://127.0.0.1:0",
                                 "--control", "none", *self.drives(), ready="ready").split()[1]

    def where(self):
        return {"target": self.target}

    def spec(self):
        return {"type": "native_plugin", "module_path": "kvof.lmcache", "class_name": "Connector",
                "adapter_params": {**self.where(), "model_id": f"{self.name} {self.runs}"}}


class KvofFiles(Kvof):
    name = "kvof-files"
    again = False

    def drives(self):
        each = f"size={self.o.room >> 21}MiB"
        return [a for i in range(2) for a in ("--drive", f"{self.folder}/d{i},{each}")]


class KvofTiers(Kvof):
    name = "kvof-tiers"
    again = False

    def where(self):
        return {"target": self.target, "dram": f"{self.o.room >> 20}MiB", "behind": "512MiB"}


class KvofDram(Kvof):
    name = "kvof-dram"
    again = False

    def start(self):
        pass

    def where(self):
        return {"dram": f"{self.o.room >> 20}MiB"}


class FsNative(Arm):
    name = "fs_native"

    def spec(self):
        return {"type": "fs_native", "base_path": str(self.folder), "num_workers": 4,
                "use_odirect": True}


class Redis(Arm):
    name = "redis"
    again = True

    def start(self):
        self.port = port()
        self.spawn("redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--dir", self.folder, ready="Ready to accept")

    def spec(self):
        return {"type": "resp", "host": "127.0.0.1", "port": self.port}


class Mooncake(Arm):
    name = "mooncake"
    again = True

    def start(self):
        self.port = port()
        log = open(self.folder / "master", "ab")
        self.processes.append(subprocess.Popen(
            [MOONCAKE / "bin/mooncake_master", "-rpc_address", "127.0.0.1", "-rpc_port",
             str(self.port), "-metrics_port", str(port()), "-eviction_high_watermark_ratio", "1"],
            stdout=log, stderr=log))
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
        self.spawn(MOONCAKE / "bin/python", ENGINES / "lmcache_mooncake.py", "node",
                   f"127.0.0.1:{self.port}", self.o.room, ready="ready 0", stdin=subprocess.PIPE)

    def spec(self):
        node = self.processes[-1]
        node.stdin.write("forget\n")
        node.stdin.flush()
        while "ready" not in node.stdout.readline():
            pass
        return {"type": "native_plugin", "module_path": "lmcache_mooncake",
                "class_name": "MooncakeConnector",
                "adapter_params": {"master": f"127.0.0.1:{self.port}"}}

    def stop(self):
        if len(self.processes) > 1:
            self.processes[-1].stdin.close()
        super().stop()


ARMS = {a.name: a for a in (Kvof, KvofFiles, KvofTiers, KvofDram, FsNative, Redis, Mooncake)}


def turns(o, in_flight: int) -> int:
    """Rounds of LMCache's bench in one run, its warm-up apart."""
    return o.turns or max(1, -(-o.set // (in_flight * o.keys * OBJECT)))


def room(o) -> int:
    """What a run stores, its warm-up too, and what a log-structured store must keep free; twice: the run before."""
    largest = max((turns(o, n) + 1) * n * o.keys * OBJECT for n in o.in_flight)
    return largest * 5 // 4 + 512 * MIB if o.fresh else 2 * largest + 512 * MIB


def bench(arm: Arm, in_flight: int):
    """One run of the bench. What lmcache_arm.py wrote, or what went wrong."""
    o = arm.o
    rounds = turns(o, in_flight)
    with tempfile.TemporaryDirectory(prefix="kvof-lmcache-") as folder:
        out = Path(folder, "out.json")
        args = [LMCACHE / "bin/python", ENGINES / "lmcache_arm.py", out,
                ",".join(str(p.pid) for p in arm.processes), "bench", "l2", "--l2-adapter",
                json.dumps(arm.begin()), "--num-keys", o.keys, "--in-flight", in_flight,
                "--data-size-kb", OBJECT >> 10, "--rounds", rounds, "--warmup-rounds", 1,
                "--l1-align-bytes", 4096, "--no-skip-verify", "--lookup-max-hit-rate", 1,
                "--format", "json", "--output", Path(folder, "summary.json")]
        done = subprocess.run([str(a) for a in args], env=o.env, capture_output=True, text=True,
                              check=False)
        notes = json.loads(out.read_text()) if out.exists() else {}
    good = done.returncode == 0 and notes and "data verified OK" in done.stdout
    for note in notes.values():
        good = good and all(n == note["keys"] for n in note["succeeded"][1:])
    if not good:
        lost = {k: sum(n["keys"] - s for s in n["succeeded"]) for k, n in notes.items()}
        print(f"{arm.name}, {in_flight} in flight: not all objects were there ({lost}) or the bench "
              f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
    return notes, bool(good)


def run(kind, in_flight: int, number: int, results: dict, o, folder: Path) -> None:
    """Starts a store, benches it once or twice, ends it."""
    hold = fresh.Hold(max(LEAVE, o.room + BESIDE) if o.fresh else None)
    arm = None
    try:
        arm = kind(o, folder)
        for turn in ("", " again")[:1 + (arm.again and not o.fresh)]:
            notes, good = bench(arm, in_flight)
            notes["begin"] = {"held_bytes": hold.held, "touch_bytes_per_s": hold.first_touch,
                              "start_s": arm.start_s}
            if good:
                results.setdefault((arm.name + turn, in_flight), []).append(notes)
            said = "".join(f", {op} {r['bytes_per_s'] / 1e9:.2f} GB/s" for op in ("store", "load")
                           for r in ([row_make(arm.name, in_flight, op, [notes], o)] if good else ()))
            print(f"run {number + 1}, {in_flight} in flight, {arm.name}{turn}{said}"
                  f"{'' if good else ': does not count'}; first touch {hold.first_touch / 1e9:.2f} GB/s, "
                  f"started in {arm.start_s:.2f} s", file=sys.stderr, flush=True)
    finally:
        if arm:
            arm.stop()
        hold.release()


def row_make(arm: str, in_flight: int, op: str, runs: list, o) -> dict:
    """All rounds of all runs of one arm."""
    per_round = in_flight * o.keys * OBJECT
    rates = [per_round * len(r[op]["seconds"][1:]) / sum(r[op]["seconds"][1:]) for r in runs]
    seconds = sorted(s for r in runs for s in r[op]["seconds"][1:])
    cpu = [r[op]["cpu_s"] / (per_round * r[op]["rounds"] / 1e9) for r in runs]
    return {"arm": arm, "in_flight": in_flight, "op": op, "runs": len(runs), "rounds": len(seconds),
            "bytes_per_s": statistics.median(rates), "least": min(rates), "most": max(rates),
            "round_bytes": per_round, "round_p50_s": statistics.median(seconds),
            "round_p99_s": seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))],
            "cpu_s_per_gb": statistics.median(cpu), "begin": [r["begin"] for r in runs]}


def table(rows: list) -> None:
    rate = {(r["arm"], r["in_flight"], r["op"]): r["bytes_per_s"] for r in rows}
    print("\n| op | in flight | arm | GB/s, median run (least..most) | of redis | of mooncake | round p50, p99 "
          "| CPU s/GB |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for r in sorted(rows, key=lambda r: (r["op"] == "load", r["in_flight"])):
        turn = " again" if r["arm"].endswith(" again") else ""
        beside = [rate.get((rival + turn, r["in_flight"], r["op"])) for rival in ("redis", "mooncake")]
        ratio = [f"{r['bytes_per_s'] / other:.2f}" if other else "–" for other in beside]
        print(f"| {r['op']} | {r['in_flight']} | {r['arm']} | {r['bytes_per_s'] / 1e9:.2f} "
              f"({r['least'] / 1e9:.2f}..{r['most'] / 1e9:.2f}) | {ratio[0]} | {ratio[1]} "
              f"| {r['round_p50_s'] * 1e3:.1f}, {r['round_p99_s'] * 1e3:.1f} ms "
              f"| {r['cpu_s_per_gb']:.2f} |")


def begins(rows: list, o) -> None:
    """What each run found when it began."""
    print(f"\n| arm | in flight | first touch before its start, GB/s a run | held, GiB a run | "
          f"started in, s a run | s/GiB of its {o.room / 2**30:.2f} |\n| --- | --- | --- | --- | --- | --- |")
    for r in rows:
        if r["op"] != "store" or r["arm"].endswith(" again"):
            continue
        cell = [" ".join(f"{b[key] / unit:.2f}" for b in r["begin"]) for key, unit in
                (("touch_bytes_per_s", 1e9), ("held_bytes", 2**30), ("start_s", 1))]
        per = statistics.median(b["start_s"] for b in r["begin"]) / (o.room / 2**30)
        takes = r["arm"] in TAKES_AT_START
        print(f"| {r['arm']} | {r['in_flight']} | " + " | ".join(cell)
              + f" | {f'{per:.2f}' if takes else '–'} |")


TCP = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def options(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build", nargs="?", default=TOP / "build", type=Path)
    p.add_argument("--set", type=int, default=2048, help="MiB that each run moves (2048)")
    p.add_argument("--turns", type=int, help="rounds a run moves, instead of --set")
    p.add_argument("--fresh", action="store_true", help="as on a machine just started: memory to be found")
    p.add_argument("--keys", type=int, default=4, help="objects a batch (4)")
    p.add_argument("--in-flight", default="1,4,16", help="batches in flight (1,4,16)")
    p.add_argument("--rounds", type=int, default=3, help="runs of each arm (3)")
    p.add_argument("--arms", default=",".join(ARMS), help=f"of {', '.join(ARMS)}")
    p.add_argument("--folder", default=None, help="where files lie (the build folder)")
    p.add_argument("--tcp", help="congestion control of all arms during the run (root; the system's)")
    p.add_argument("--json", type=Path, help="everything, as JSON")
    o = p.parse_args(argv)
    o.build = o.build.resolve()
    o.set <<= 20
    o.in_flight = [int(n) for n in o.in_flight.split(",")]
    o.room = room(o)
    path = [TOP / "python", o.build / "python", ENGINES,
            *(MOONCAKE / "lib").glob("python3.*/site-packages")]
    o.env = {**os.environ, "LMCACHE_DISABLE_BANNER": "1", "PYTHONHASHSEED": "0",
             "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": ":".join(str(p) for p in path)}
    return o


def main(argv) -> int:
    o = options(argv)
    folder = Path(tempfile.mkdtemp(prefix="bench-lmcache-", dir=o.folder or TOP / "build"))
    results, names = {}, o.arms.split(",")
    before = TCP.read_text().strip()
    if o.tcp:
        TCP.write_text(o.tcp)
    moves = f"{o.turns} rounds" if o.turns else f"{o.set >> 20} MiB"
    print(f"load at the start {os.getloadavg()[0]:.2f} of {os.cpu_count()} cores; {moves} a "
          f"run, batches of {o.keys} objects of 4 MiB, room {o.room >> 20} MiB, congestion control "
          f"{o.tcp or before}{', memory the host has still to find' if o.fresh else ''}", flush=True)
    try:
        for number in range(o.rounds):
            for in_flight in o.in_flight:
                for name in names:
                    run(ARMS[name], in_flight, number, results, o, folder)
    finally:
        if o.tcp:
            TCP.write_text(before)
        shutil.rmtree(folder, ignore_errors=True)
    rows = [row_make(arm, n, op, runs, o) for (arm, n), runs in results.items()
            for op in ("store", "lookup", "load")]
    table([r for r in rows if r["op"] != "lookup"])
    begins(rows, o)
    print("\n| lookup of present objects, a batch | " + " | ".join(f"{n} in flight" for n in o.in_flight)
          + " |\n| --- |" + " --- |" * len(o.in_flight))
    for name in names:
        cell = {r["in_flight"]: r["round_p50_s"] / r["in_flight"] for r in rows
                if r["op"] == "lookup" and r["arm"] == name}
        print(f"| {name} | " + " | ".join(f"{cell[n] * 1e6:.0f} us" if n in cell else "–"
                                              for n in o.in_flight) + " |")
    if o.json:
        o.json.write_text(json.dumps({"set_bytes": o.set, "object_bytes": OBJECT, "keys": o.keys,
                                      "fresh": o.fresh,
                                      "turns": o.turns, "congestion_control": o.tcp or before,
                                      "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
