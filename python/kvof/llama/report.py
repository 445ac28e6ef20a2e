# SPDX-License-Identifier: Apache-2.0
"""What a run says: the table, one sentence, ``run.json``, the section of ``docs/benchmarks.md``.

All of it is made from the rows that the workers wrote; nothing is rounded before it is compared.
"""

import json
import statistics
from pathlib import Path
from typing import Dict, Iterable, List, Optional

ARMS = ("recompute", "array", "ram")
BEGIN = "<!-- kvof.llama: begin (written by ./run --full) -->"
END = "<!-- kvof.llama: end -->"

GOAL_SOONER = 40.0        # recompute / array, at the longest prefix
GOAL_OF_RAM = 1.3         # array / ram, at the longest prefix


def seconds(s: float) -> str:
    """A time with three significant digits and its unit."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if s < limit:
            v = s * factor
            digits = 2 if v < 10 else 1 if v < 100 else 0
            return f"{v:.{digits}f} {unit}"
    raise AssertionError(s)


def mib(n: Optional[int]) -> str:
    return "-" if n is None else f"{n / (1 << 20):.1f} MiB"


class Row:
    """All repeats of one arm at one length of one model."""

    def __init__(self, model: str, runs: List[Dict]):
        self.model, self.runs = model, runs
        self.arm, self.prefix_tokens = runs[0]["arm"], runs[0]["prefix_tokens"]
        self.ttft_s = [r["ttft_s"] for r in runs]
        self.exact = all(r["exact"] is True for r in runs)
        self.whole = all(r["restored_tokens"] == r["prefix_tokens"] for r in runs)

    def median(self, name: str) -> Optional[float]:
        values = [r[name] for r in self.runs]
        return None if any(v is None for v in values) else statistics.median(values)

    def least(self, name: str) -> Optional[int]:
        values = [r[name] for r in self.runs]
        return None if any(v is None for v in values) else min(values)

    @property
    def ttft(self) -> float:
        return statistics.median(self.ttft_s)


def rows(models: Iterable[Dict]) -> List[Row]:
    """Rows in the order of model, length, arm. A model: {"model": name, "runs": [...]}."""
    out = []
    for m in models:
        groups: Dict = {}
        for r in m["runs"]:
            groups.setdefault((r["prefix_tokens"], ARMS.index(r["arm"])), []).append(r)
        out += [Row(m["model"], groups[key]) for key in sorted(groups)]
    return out


def find(table: List[Row], model: str, n: int, arm: str) -> Optional[Row]:
    return next((r for r in table if (r.model, r.prefix_tokens, r.arm) == (model, n, arm)), None)


def problems(table: List[Row]) -> List[str]:
    """What makes a run worthless: it is printed, and the run fails."""
    out = []
    for r in table:
        where = f"{r.model}, {r.prefix_tokens:,} tokens, arm {r.arm}"
        if not r.exact:
            out.append(f"{where}: not exact: what follows the prefix differs from recomputing it")
        if r.arm != "array":
            continue
        if not r.whole:
            why = sorted({reason for run in r.runs for reason in run["misses"]})
            out.append(f"{where}: a part was recomputed ({', '.join(why)}), so its time is not a "
                       "restore's")
        for run in r.runs:
            read, kernel, kv = (run[k] for k in ("device_read_bytes", "kernel_read_bytes",
                                                 "kv_bytes"))
            if read is None:
                out.append(f"{where}: the array did not tell what its drives read")
            elif min(read, read if kernel is None else kernel) < kv:
                out.append(f"{where}: drives read {read:,} bytes (by the kernel's account "
                           f"{kernel}), the KV has {kv:,}: some of it did not come from the drives")
    return list(dict.fromkeys(out))


COLUMNS = ("prefix", "arm", "first token", "least..most", "sooner", "match", "wait", "of it verify",
           "hand over", "suffix", "KV", "read at drives", "exact")


def cells(table: List[Row], r: Row) -> List[str]:
    base = find(table, r.model, r.prefix_tokens, "recompute")
    sooner = f"{base.ttft / r.ttft:.1f} x" if base and r.arm != "recompute" else ""
    def part(name):
        return seconds(r.median(name))
    array, restored = r.arm == "array", r.arm != "recompute"
    return [f"{r.prefix_tokens:,}", r.arm, seconds(r.ttft),
            f"{seconds(min(r.ttft_s))}..{seconds(max(r.ttft_s))} ({len(r.ttft_s)})", sooner,
            part("match_s") if array else "", part("wait_s") if array else "",
            part("verify_s") if array else "", part("hand_over_s") if restored else "",
            part("suffix_s"), mib(r.least("kv_bytes")) if restored else "",
            mib(r.least("device_read_bytes")) if array else "", "yes" if r.exact else "not exact"]


LEGEND = """\
recompute: all of the prefix is decoded; array: restored over NVMe/TCP; ram: from a copy in the
process. first token: median time from token ids in hand, with the parts match (asking what is
there), wait (no block to hand over yet; verify goes on beside it), hand over (into llama.cpp) and
suffix (decoding the last tokens); least..most (repeats). exact: logits and tokens are equal.
"""


def text_table(table: List[Row]) -> str:
    """The table for a terminal; one block a model."""
    out = []
    for model in dict.fromkeys(r.model for r in table):
        lines = [list(COLUMNS)] + [cells(table, r) for r in table if r.model == model]
        width = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        out.append(model)
        for line in lines:
            out.append("  " + "  ".join(c.ljust(w) if i == 1 else c.rjust(w)
                                        for i, (c, w) in enumerate(zip(line, width))).rstrip())
        out.append("")
    return "\n".join(out)


def sentence(table: List[Row]) -> str:
    """What it means, from the longest prefix of the first model; says "not exact" if it is not."""
    model = table[0].model
    n = max(r.prefix_tokens for r in table if r.model == model)
    got = {arm: find(table, model, n, arm) for arm in ARMS}
    if any(r is None for r in got.values()):
        return f"{model}: not every arm was run at {n:,} tokens, so nothing is compared."
    re, ar, ra = (got[arm] for arm in ARMS)
    if all(r.exact for r in table):
        same = "and every arm continues with exactly the same logits and tokens"
    else:
        same = "but the result is not exact: an arm continues differently, so it must not be used"
    return (f"With {n:,} tokens of prefix restored from the array over NVMe/TCP, {model} gives its "
            f"first token after {seconds(ar.ttft)} instead of {seconds(re.ttft)}: "
            f"{re.ttft / ar.ttft:.1f} times sooner, {ar.ttft / ra.ttft:.2f} times what a copy in "
            f"its own memory takes, {same}.")


def run_json(table: List[Row]) -> List[Dict]:
    """The contract of ``build/run.json``: model, prefix_tokens, arm, ttft_s, exact; and more."""
    out = []
    for r in table:
        entry = {"model": r.model, "prefix_tokens": r.prefix_tokens, "arm": r.arm,
                 "ttft_s": r.ttft_s, "exact": r.exact}
        for name in ("match_s", "wait_s", "verify_s", "hand_over_s", "suffix_s", "kv_bytes",
                     "device_read_bytes", "kernel_read_bytes"):
            entry[name] = [run[name] for run in r.runs]
        out.append(entry)
    return out


def markdown(table: List[Row], about: List[str]) -> str:
    """The section of docs/benchmarks.md, between its markers."""
    out = [BEGIN, ""] + [f"- {line}" for line in about]
    for model in dict.fromkeys(r.model for r in table):
        out += ["", f"**{model}**", "", "| " + " | ".join(COLUMNS) + " |",
                "|" + " --- |" * len(COLUMNS)]
        out += ["| " + " | ".join(cells(table, r)) + " |" for r in table if r.model == model]
    out += ["", sentence(table), "", END, ""]
    return "\n".join(out)


def put_section(path: Path, section: str) -> None:
    """Replace what stands between the markers of a page; append the section where none stands."""
    old = path.read_text("utf-8") if path.exists() else "# Benchmarks\n\n"
    if BEGIN in old and END in old:
        head, rest = old.split(BEGIN, 1)
        tail = rest.split(END, 1)[1].lstrip("\n")
        new = head + section + ("\n" + tail if tail else "")
    else:
        new = old.rstrip("\n") + "\n\n## A model's first token, recomputed and restored\n\n" + section
    path.write_text(new, "utf-8")


def write_json(path: Path, table: List[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run_json(table), indent=1) + "\n")
