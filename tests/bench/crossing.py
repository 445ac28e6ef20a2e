#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Local flash against an array, at scale: sessions restored cold at concurrency 1 to 32.

usage: crossing.py BUILD [--dir D] [--rounds R] [--session-mib N] [--svg FILE]

One drive of this machine as libkvof's local flash, against an array of four such drives behind a link
that carries 1.5 times what one drive does: the shape of the published comparison of a local NVMe
drive with an NVMe-oF array (6.9 GB/s, 10.5 GB/s). Every drive is slowed to a quarter of what it can
do by the store's own limiter; the link is a veth pair into a network namespace, shaped by a token
bucket (so: root, iproute2). A session's engine takes at most a sixth of a drive's rate, as a
rank of an engine has a ceiling of its own. What saturates is told from the sums: bytes a second of all
sessions, and bytes read at the drives beside the bytes delivered.

Prints one JSON object and a table, draws a picture with --svg; judges nothing. Needs Python's
package built in BUILD (PYTHONPATH=python is set here). Files, namespace and link are removed at
the end.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
GEARS = (1, 2, 4, 8, 16, 32)
BLOCK = 1 << 20
WINDOW = 4                              # blocks a session asks for at once
SPACE, HOST, GUEST = f"kvofx{os.getpid()}", f"kxh{os.getpid() % 10000}", f"kxg{os.getpid() % 10000}"
NET = "10.231.77"


def sh(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Link:
    """A network namespace behind a link with a token bucket in the direction of what is restored."""

    def __init__(self, bytes_per_s):
        sh("ip", "netns", "add", SPACE)
        sh("ip", "link", "add", HOST, "type", "veth", "peer", "name", GUEST, "netns", SPACE)
        sh("ip", "addr", "add", f"{NET}.1/24", "dev", HOST)
        sh("ip", "link", "set", HOST, "up")
        inside = ("ip", "netns", "exec", SPACE)
        sh(*inside, "ip", "addr", "add", f"{NET}.2/24", "dev", GUEST)
        sh(*inside, "ip", "link", "set", GUEST, "up")
        sh(*inside, "ip", "link", "set", "lo", "up")
        sh(*inside, "tc", "qdisc", "add", "dev", GUEST, "root", "tbf", "rate",
           f"{int(bytes_per_s * 8)}bit", "burst", "2mb", "latency", "20ms")

    def close(self):
        subprocess.run(["ip", "link", "del", HOST], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", SPACE], stderr=subprocess.DEVNULL)


class Array:
    def __init__(self, build, files, drive_bytes, rate):
        command = ["ip", "netns", "exec", SPACE, f"{build}/kvof", "serve", "--scrub", "0B",
                   "--listen", f"tcp://{NET}.2:4420", "--allow-host", "nqn.2026-11.io.kvof:crossing",
                   "--drive-rate", f"{rate}B"]
        for file in files:
            command += ["--drive", f"{file},size={drive_bytes}B"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                        stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            raise SystemExit(f"error: the array did not get ready: {line.strip()}")
        self.target = f"tcp://{NET}.2:4420"

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


class Arm:
    """One cache, and its sessions: keys and how they are stored and restored."""

    def __init__(self, name, blocks, pace, **options):
        from kvof import Cache
        self.name, self.blocks, self.pace = name, blocks, pace
        self.never = threading.Event()
        self.cache = Cache(options.pop("target", None), model={"model": f"crossing-{name}"},
                           block_tokens=1, part_bytes=BLOCK + 64, deadline_s=600.0, **options)
        self.keys = [self.cache.keys([session * blocks + b for b in range(blocks)])
                     for session in range(max(GEARS))]

    def store(self):
        data = memoryview(bytearray(os.urandom(BLOCK * self.blocks)))
        for session, keys in enumerate(self.keys):
            data[:8] = session.to_bytes(8, "little")
            for at in range(0, self.blocks, 16):
                part = range(at, min(at + 16, self.blocks))
                bad = [r for r in self.cache.write([keys[i] for i in part],
                                                   [data[i * BLOCK:(i + 1) * BLOCK] for i in part])
                       if not r.ok]
                if bad:
                    raise SystemExit(f"error: {self.name}: not stored: {bad[0].reason}")

    def session(self, number, out):
        """Restore one session; the engine takes WINDOW blocks in no less than its own time."""
        keys, room = self.keys[number], [bytearray(BLOCK) for _ in range(WINDOW)]
        begin = time.monotonic()
        for at in range(0, self.blocks, WINDOW):
            part = keys[at:at + WINDOW]
            bad = [r for r in self.cache.read(part, room[:len(part)]) if not r.ok]
            if bad:
                raise SystemExit(f"error: {self.name}: not restored: {bad[0].reason}")
            due = begin + min(at + WINDOW, self.blocks) * BLOCK / self.pace
            self.never.wait(max(0.0, due - time.monotonic()))
        out[number] = time.monotonic() - begin

    def gear(self, concurrency):
        out, read = {}, self.device_bytes()
        threads = [threading.Thread(target=self.session, args=(i, out)) for i in range(concurrency)]
        begin = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seconds = time.monotonic() - begin
        delivered = concurrency * self.blocks * BLOCK
        if len(out) != concurrency:
            raise SystemExit(f"error: {self.name}: a session failed")
        return {"ttft_p50_s": statistics.median(out.values()), "ttft_last_s": max(out.values()),
                "bytes_per_s": delivered / seconds, "delivered_bytes": delivered,
                "device_read_bytes": self.device_bytes() - read}


class Local(Arm):
    def device_bytes(self):
        with open("/proc/self/io") as f:
            return int(next(line for line in f if line.startswith("read_bytes")).split()[1])


class Remote(Arm):
    process = None

    def device_bytes(self):
        with open(f"/proc/{self.process}/io") as f:
            return int(next(line for line in f if line.startswith("read_bytes")).split()[1])


def serve_pid(process):
    """The pid of serve itself: ip netns exec becomes the program it runs."""
    return process.pid


def drive_rate(build, file, gib):
    """What one drive gives: 1 MiB reads, many in flight."""
    out = subprocess.run([f"{build}/kvof", "bench", "store", "--json", "--op", "retrieve", "--format",
                          "--value-bytes", "1MiB", "--depth", "16", "--keys", str(gib * 700),
                          "--seconds", "3", "--drive", f"{file},size={gib}GiB"],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)["bytes_per_s"]


PICTURE = (640, 400, 70, 30, 30, 50)    # width, height, and the borders left, top, right, bottom


def picture(result, path):
    """TTFT of the last session against concurrency, both arms, with the points of saturation."""
    width, height, left, top, right, bottom = PICTURE
    arms = ("local", "array")
    most = max(r["ttft_last_s"] for a in arms for r in result[a].values())
    color = {"local": "#c0392b", "array": "#2471a3"}

    def x(i):
        return left + i * (width - left - right) / (len(GEARS) - 1)

    def y(v):
        return height - bottom - v / most * (height - top - bottom)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="18">Last session restored (s) against sessions at once; figures: MB/s of '
           'all sessions</text>']
    for i, gear in enumerate(GEARS):
        out.append(f'<line x1="{x(i):.0f}" y1="{top}" x2="{x(i):.0f}" y2="{height - bottom}" '
                   'stroke="#eee"/>')
        out.append(f'<text x="{x(i):.0f}" y="{height - bottom + 18}" text-anchor="middle">{gear}</text>')
    for k in range(5):
        v = most * k / 4
        out.append(f'<text x="{left - 8}" y="{y(v) + 4:.0f}" text-anchor="end">{v:.1f}</text>')
        out.append(f'<line x1="{left}" y1="{y(v):.0f}" x2="{width - right}" y2="{y(v):.0f}" '
                   'stroke="#eee"/>')
    for a, dy in (("local", -8), ("array", 18)):
        points = [(x(i), y(result[a][g]["ttft_last_s"])) for i, g in enumerate(GEARS)]
        out.append(f'<polyline fill="none" stroke="{color[a]}" stroke-width="2" points="' +
                   " ".join(f"{px:.0f},{py:.0f}" for px, py in points) + '"/>')
        for (px, py), g in zip(points, GEARS):
            out.append(f'<circle cx="{px:.0f}" cy="{py:.0f}" r="3" fill="{color[a]}"/>')
            out.append(f'<text x="{px:.0f}" y="{py + dy:.0f}" text-anchor="middle" fill="{color[a]}" '
                       f'font-size="10">{result[a][g]["bytes_per_s"] / 1e6:.0f}</text>')
    name = {"local": "local: one drive", "array": "array: four drives behind a link"}
    for i, a in enumerate(arms):
        out.append(f'<text x="{left + 20}" y="{top + 20 + 16 * i}" fill="{color[a]}">{name[a]}</text>')
    out.append(f'<text x="{width / 2:.0f}" y="{height - 10}" text-anchor="middle">sessions at once</text>')
    pathlib.Path(path).write_text("\n".join(out + ["</svg>"]) + "\n")


def table(result):
    lines = [f"one drive {result['drive_bytes_per_s'] / 1e6:.0f} MB/s, held to "
             f"{result['rate_bytes_per_s'] / 1e6:.0f}; link {result['link_bytes_per_s'] / 1e6:.0f} MB/s; "
             f"session {result['session_bytes'] >> 20} MiB, its engine takes "
             f"{result['pace_bytes_per_s'] / 1e6:.0f} MB/s",
             "sessions   local last, all    array last, all    read at drives / delivered"]
    for g in GEARS:
        lo, ar = result["local"][g], result["array"][g]
        lines.append(f"{g:8}   {lo['ttft_last_s']:6.2f} s {lo['bytes_per_s'] / 1e6:5.0f} MB/s   "
                     f"{ar['ttft_last_s']:6.2f} s {ar['bytes_per_s'] / 1e6:5.0f} MB/s   "
                     f"{lo['device_read_bytes'] / lo['delivered_bytes']:.3f} "
                     f"{ar['device_read_bytes'] / ar['delivered_bytes']:.3f}")
    return "\n".join(lines)


def run(o, folder, files):
    build, gib = o.build, 2
    own = o.drive_rate or drive_rate(build, files[0], gib)
    rate = int(own / 4)
    link, pace = 1.5 * rate, rate / 6
    blocks = o.session_mib
    size = (max(GEARS) * blocks * BLOCK * 5 // 4 + (256 << 20)) >> 20 << 20
    for file in files:
        file.unlink(missing_ok=True)
    result = {"drive_bytes_per_s": own, "rate_bytes_per_s": rate, "link_bytes_per_s": link,
              "pace_bytes_per_s": pace, "session_bytes": blocks * BLOCK}
    local = Local("local", blocks, pace, flash=[f"{files[4]},size={size}B,rate={rate}B"])
    wire = array = None
    try:
        wire = Link(link)
        array = Array(build, files[:4], max(size // 4, 256 << 20), rate)
        remote = Remote("array", blocks, pace, target=array.target, queues=4, depth=64,
                        host_nqn="nqn.2026-11.io.kvof:crossing")
        remote.process = serve_pid(array.process)
        for arm in (local, remote):
            arm.store()
        rounds = []
        for _ in range(o.rounds):
            rounds.append({a.name: {g: a.gear(g) for g in GEARS} for a in (local, remote)})
        for name in ("local", "array"):
            result[name] = {g: {k: statistics.median(r[name][g][k] for r in rounds)
                                for k in rounds[0][name][g]} for g in GEARS}
        remote.cache.close()
    finally:
        local.cache.close()
        if array is not None:
            array.close()
        if wire is not None:
            wire.close()
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--dir", default="build/bench-crossing")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--session-mib", type=int, default=48)
    p.add_argument("--drive-rate", type=int, help="bytes a second of one drive; else it is measured")
    p.add_argument("--svg")
    o = p.parse_args()
    import kvof
    kvof.__path__.insert(0, str(pathlib.Path(o.build).resolve() / "python" / "kvof"))
    folder = pathlib.Path(o.dir)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"drive{i}" for i in range(5)]
    try:
        result = run(o, folder, files)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    if o.svg:
        picture(result, o.svg)
    print(table(result), file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
