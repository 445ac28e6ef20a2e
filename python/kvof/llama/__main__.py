# SPDX-License-Identifier: Apache-2.0
"""``python -m kvof.llama``: save with one process, restart the array, restore with another; then
two at once, one loading what the other is storing.

The processes and the array are children of this one, which only gives orders, adds up and
reports. Exit code 0: all arms exact and the bytes came from the drives; 1: not so, or something
failed (one line says what); 2: wrong usage.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List

from . import report, sharing
from .array import Array, ArrayError, end_with_parent
from .engine import find_model

ROOT = Path(__file__).resolve().parents[3]
PREFIXES = (512, 2048, 7936)


def arguments(argv: List[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m kvof.llama", description=__doc__.split("\n")[0],
                                allow_abbrev=False)
    kind = p.add_mutually_exclusive_group()
    kind.add_argument("--short", action="store_true",
                      help="one model, one recompute a length, three repeats of the others (default)")
    kind.add_argument("--full", action="store_true",
                      help="ten alternating repeats of all arms, both models, docs/benchmarks.md")
    p.add_argument("--model", action="append", metavar="M",
                   help="smollm2, gemma3 or a .gguf file; may be repeated")
    p.add_argument("--prefix", action="append", type=int, metavar="N",
                   help="tokens of prefix, a multiple of 256; may be repeated")
    p.add_argument("--suffix", type=int, default=64, metavar="N", help="tokens behind it")
    p.add_argument("--repeats", type=int, metavar="N")
    p.add_argument("--threads", type=int, default=2, metavar="N", help="of llama.cpp")
    p.add_argument("--flash-attn", choices=("on", "off"), default="on")
    p.add_argument("--deadline", type=float, default=10.0, metavar="SECONDS",
                   help="after which a restore gives up waiting and recomputes the rest")
    p.add_argument("--kvof", type=Path, default=ROOT / "build" / "kvof", metavar="PROGRAM")
    p.add_argument("--folder", type=Path, default=ROOT / "build" / "llama", metavar="DIR",
                   help="drives, logits and logs of the run")
    p.add_argument("--json", type=Path, default=ROOT / "build" / "run.json", metavar="FILE")
    p.add_argument("--docs", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE")
    a = p.parse_args(argv)
    a.prefix = sorted(set(a.prefix or PREFIXES))
    a.model = a.model or (["smollm2", "gemma3"] if a.full else ["smollm2"])
    a.repeats = a.repeats or (10 if a.full else 3)
    for n in a.prefix:
        if n < 256 or n % 256:
            p.error(f"--prefix {n}: a multiple of 256, at least 256")
    if not 1 <= a.suffix <= 512:
        p.error(f"--suffix {a.suffix}: 1 to 512")
    return a


def say(text: str) -> None:
    print(f"kvof.llama: {text}", file=sys.stderr, flush=True)


class Session:
    """One model's run: an array, a saving process, a restart, a restoring process."""

    def __init__(self, args: argparse.Namespace, model: str, worker: List[str]):
        self.args, self.worker = args, worker
        self.folder = args.folder / Path(model).stem
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model_path = find_model(model, args.folder.parent / "models")
        self.array = Array(args.kvof, self.folder)
        self.coldness = ""

    def spec(self, **more) -> Dict:
        a = self.args
        n_ctx = -(-(max(a.prefix) + a.suffix + 32) // 256) * 256
        return {"model_path": str(self.model_path), "threads": a.threads, "n_ctx": n_ctx,
                "flash_attn": a.flash_attn == "on", "prefixes": a.prefix,
                "suffix_tokens": a.suffix, "repeats": a.repeats, "deadline_s": a.deadline,
                "target": self.array.target, "kvof": str(a.kvof), "folder": str(self.folder),
                "array_pid": self.array.pid, **more}

    def begin(self, what: str, **more) -> subprocess.Popen:
        """Start one worker."""
        outcome = self.folder / f"{what}.json"
        outcome.unlink(missing_ok=True)
        spec = self.folder / f"{what}-spec.json"
        spec.write_text(json.dumps(self.spec(outcome=str(outcome), **more), indent=1))
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        # llama.cpp's threads wait for each other asleep rather than spinning: the same bytes, as
        # fast on a quiet machine, and not many times slower on one that does other work too.
        env.setdefault("OMP_WAIT_POLICY", "passive")
        return subprocess.Popen(self.worker + [what, str(spec)], stdin=subprocess.DEVNULL, env=env,
                                preexec_fn=end_with_parent)

    def end(self, what: str, child: subprocess.Popen) -> Dict:
        """Wait for a worker and take its outcome."""
        outcome = self.folder / f"{what}.json"
        code = child.wait()
        if code != 0 or not outcome.exists():
            raise ArrayError(f"the {what} process failed with exit code {code}; "
                             f"the array's last words: {self.array.last_words()}")
        return json.loads(outcome.read_text())

    def process(self, what: str, **more) -> Dict:
        """Run one worker to its end and take its outcome."""
        return self.end(what, self.begin(what, **more))

    def two_hosts(self) -> List[Dict]:
        """Two workers at the same time on one session; answers the rows of sharing."""
        ready = self.folder / "follow-ready"
        ready.unlink(missing_ok=True)
        second = self.begin("follow", ready=str(ready))
        try:
            while not ready.exists() and second.poll() is None:
                time.sleep(0.02)
            shared = self.process("share")
            followed = self.end("follow", second)
        finally:
            if second.poll() is None:
                second.kill()
                second.wait()
        exact = sharing.proofs_equal(self.folder, followed["tokens"])
        return sharing.rows(self.model_path.stem, shared, followed, exact)

    def run(self) -> Dict:
        """Answers {"model", "runs", ...} with the rows of both processes."""
        a = self.args
        self.array.fresh()
        try:
            self.array.start()
            say(f"{self.model_path.name}: one process computes {max(a.prefix):,} tokens and saves")
            saved = self.process("save")
            self.array.stop()
            self.coldness = self.array.cold()
            self.array.start()
            say(f"{self.model_path.name}: another restores; {self.coldness}")
            arms = ["recompute", "array", "ram"] if a.full else ["array", "ram"]
            restored = self.process("restore", arms=arms)
            say(f"{self.model_path.name}: two hosts at once")
            shared = self.two_hosts()
        finally:
            self.array.stop()
            self.array.fresh()             # gigabytes that nobody reads again
            for proof in self.folder.glob("proof-*.npz"):
                proof.unlink()
        runs = restored["runs"] if a.full else saved["runs"] + restored["runs"]
        return {**restored, "runs": runs, "saved": saved["stored"], "sharing": shared}


def about(args: argparse.Namespace, outcomes: List[Dict], coldness: str) -> List[str]:
    """What a reader must know to judge the table."""
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), os.uname().machine)
    o = outcomes[0]
    return [
        f"Machine: {cpu}, {os.cpu_count()} cores, Linux {os.uname().release}; engine: "
        f"{o['identity']['engine'].split(' sha256')[0]}, {args.threads} threads, "
        f"{o['identity']['flags']}; {args.repeats} repeats of each arm, alternating.",
        f"Array: `kvof serve` on loopback TCP, four drives that are files; {coldness}. Bytes read "
        "at the drives are the array's own count; the kernel's (`/proc/PID/io`) must reach the "
        "KV's bytes as well.",
        "Clock: from token ids in hand to the first token; model loaded and connection open in all "
        "arms; nothing is hinted at or fetched before. First token: the median; behind it the "
        "least, the most and the number of repeats; parts of the time are medians too.",
        f"Prefix: that many tokens of licence texts, then {args.suffix} more (the suffix). "
        "Recompute has llama.cpp's fastest exact settings found: batches of 256 and 1,024 tokens "
        "were as fast within 5 %, flash attention off was slower. The arm `ram` hands over copies "
        "in the process's own memory without checking them again.",
        "`wait` is time in which the engine had no block to hand over; checking (`of it verify`) "
        "goes on beside it on the cache's own threads.",
    ]


def main(argv: List[str], worker: List[str] = ()) -> int:
    args = arguments(argv)
    worker = list(worker) or [sys.executable, "-m", "kvof.llama.worker"]
    if not args.kvof.is_file():
        say(f"{args.kvof}: no such program; build it first (./run does)")
        return 1
    began = time.monotonic()
    outcomes, coldness = [], ""
    try:
        for model in args.model:
            session = Session(args, model, worker)
            outcomes.append(session.run())
            coldness = session.coldness
            if outcomes[-1]["warning"]:
                say(outcomes[-1]["warning"])
    except (ArrayError, OSError) as e:
        say(str(e))
        return 1
    table = report.rows(outcomes)
    print()
    print(report.text_table(table))
    shared = [row for o in outcomes for row in o["sharing"]]
    print("\n".join(sharing.lines(shared, report.seconds, report.mib)) + "\n")
    print(report.LEGEND)
    print(report.sentence(table))
    report.write_json(args.json, table)
    args.json.with_name(args.json.stem + "-sharing.json").write_text(
        json.dumps(shared, indent=1) + "\n")
    if args.full:
        report.put_section(args.docs, report.markdown(table, about(args, outcomes, coldness)))
    wrong = report.problems(table) + sharing.problems(shared)
    for line in wrong:
        say(line)
    say(f"{time.monotonic() - began:.0f} s; figures in {os.path.relpath(args.json)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
