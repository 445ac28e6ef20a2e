# SPDX-License-Identifier: Apache-2.0
"""One process of the run: ``save`` computes and stores, ``restore`` brings back and measures;
``share`` and ``follow`` are two hosts at once (:mod:`kvof.llama.sharing`).

    python -m kvof.llama.worker save|restore|share|follow SPEC.json

SPEC.json is written by :mod:`kvof.llama.__main__`; the outcome goes to the file that it names. The
two processes share nothing but the array, and the saver's logits on disk to compare with.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

from . import sharing
from .array import kernel_read_bytes, stat
from .blocks import Arena, Restored, restore, restore_from_memory, save, verify_seconds
from .engine import Engine
from .measure import Lengths, Proof, Run, first_token, recompute
from .text import long_text


def say(text: str) -> None:
    """Progress: on a terminal only."""
    if sys.stderr.isatty():
        print(f"  {text}", file=sys.stderr, flush=True)


class Worker:
    """Model, prompts, memory and connection, all ready before any clock starts."""

    def __init__(self, spec: Dict, cache_class: Callable):
        self.spec = spec
        self.engine = Engine(spec["model_path"], threads=spec["threads"],
                             flash_attn=spec["flash_attn"], n_ctx=spec["n_ctx"])
        self.size = self.engine.block_bytes()
        self.tokens = tokens = self.engine.tokenize(long_text())
        self.lengths = Lengths(tokens, spec["suffix_tokens"], spec["prefixes"])
        self.longest = max(spec["prefixes"])
        self.arena = Arena(self.longest // self.engine.block_tokens, self.size)
        self.identity = self.engine.identity()
        self.warning: Optional[str] = None
        self.cache = self._open(cache_class)

    def _open(self, cache_class: Callable):
        kw = dict(model=self.identity, block_tokens=self.engine.block_tokens, dram_bytes=0,
                  deadline_s=self.spec["deadline_s"])
        try:
            return cache_class(self.spec["target"], strict=True, **kw)
        except ValueError as differs:        # another engine's or model's blocks lie there
            self.warning = str(differs)
            return cache_class(self.spec["target"], strict=False, **kw)

    def proof_path(self, n) -> Path:
        return Path(self.spec["folder"]) / f"proof-{n}.npz"

    def close(self) -> None:
        self.cache.close()
        self.engine.close()

    # -- save -----------------------------------------------------------------------------------

    def save(self) -> Dict:
        """Compute the longest prefix once, with the clock on; store it; leave the proofs on disk.

        The pass stops at each shorter length to take its first token and proof, with the clock of
        the prefix standing still, so a length's time is that of its own batches and its suffix.
        """
        runs: List[Dict] = []
        stored: Dict = {}
        done, spent = 0, 0.0
        for n in self.spec["prefixes"]:
            say(f"computing {n:,} tokens")
            run = self.timed_recompute(n, all_rows=True, done=done)
            run.ttft_s += spent
            run.restored.recompute_s += spent
            done, spent = n, run.restored.recompute_s
            run.proof.save(self.proof_path(n))
            run.exact = True                 # it is what the others are compared with
            runs.append(run.row())
            self.engine.truncate(n)
            if n == self.longest:
                stored = self.store(n)
        return {"runs": runs, "stored": stored, **self.about()}

    def store(self, n: int) -> Dict:
        prefix, _ = self.lengths.prompt(n)
        t0 = time.perf_counter()
        total, bad = save(self.cache, self.engine, prefix, self.arena)
        if bad:
            raise RuntimeError(f"{len(bad)} blocks were not stored: {bad[0].reason}")
        return {"bytes": total, "seconds": time.perf_counter() - t0}

    # -- restore --------------------------------------------------------------------------------

    def restore(self) -> Dict:
        """All arms of all lengths; their order alternates from repeat to repeat."""
        runs: List[Dict] = []
        for n in self.spec["prefixes"]:
            copies: List[memoryview] = []
            for repeat in range(self.spec["repeats"]):
                say(f"{n:,} tokens, repeat {repeat + 1} of {self.spec['repeats']}")
                arms = list(self.spec["arms"])
                if repeat % 2:
                    arms.reverse()
                for arm in arms:
                    runs.append(self.one(arm, n, copies, first=repeat == 0).row())
        return {"runs": runs, **self.about()}

    def one(self, arm: str, n: int, copies: List[memoryview], first: bool) -> Run:
        """One repeat of one arm, compared with the saver's proof."""
        if arm == "ram" and not copies:
            copies += self.copy_to_memory(n)
        run = {"recompute": self.timed_recompute, "array": self.timed_array,
               "ram": lambda n, all_rows: self.timed_memory(n, copies, all_rows)}[arm](n, first)
        run.exact = run.proof.equals(Proof.load(self.proof_path(n)))
        return run

    def timed_recompute(self, n: int, all_rows: bool, done: int = 0) -> Run:
        prefix, suffix = self.lengths.prompt(n)
        return first_token(self.engine, "recompute", prefix, suffix,
                           lambda: recompute(self.engine, prefix, done), all_rows, done == 0)

    def timed_array(self, n: int, all_rows: bool, **hooks) -> Run:
        """Restore from the array, with what its devices read meanwhile."""
        prefix, suffix = self.lengths.prompt(n)
        device, kernel = self.device_bytes()
        verify = verify_seconds(self.cache)
        run = first_token(self.engine, "array", prefix, suffix,
                          lambda: restore(self.cache, self.engine, prefix, self.arena,
                                          deadline_s=self.spec["deadline_s"], **hooks), all_rows)
        run.restored.verify_s = verify_seconds(self.cache) - verify
        device2, kernel2 = self.device_bytes()
        if device is not None and device2 is not None:
            run.device_read_bytes = device2 - device
        if kernel is not None and kernel2 is not None:
            run.kernel_read_bytes = kernel2 - kernel
        return run

    def timed_memory(self, n: int, copies: List[memoryview], all_rows: bool) -> Run:
        prefix, suffix = self.lengths.prompt(n)
        return first_token(self.engine, "ram", prefix, suffix,
                           lambda: restore_from_memory(self.engine, prefix, copies), all_rows)

    def copy_to_memory(self, n: int) -> List[memoryview]:
        """The blocks as the array gave them in the run before, copied aside: not on any clock."""
        count = n // self.engine.block_tokens
        aside = Arena(count, self.size)
        keys = self.cache.keys(self.lengths.prompt(n)[0])
        for r in self.cache.read(keys, aside.blocks, self.spec["deadline_s"]):
            if not r.ok:
                raise RuntimeError(f"no copy for the arm in memory: {r.reason}")
        return aside.blocks

    def device_bytes(self):
        """(the array's own count, the kernel's count) of bytes read at devices; None if untold."""
        if self.spec.get("array_pid") is None:
            return None, None
        try:
            own = stat(self.spec["kvof"], self.spec["target"])["device_read_bytes"]
        except (OSError, RuntimeError, KeyError):
            own = None                      # killed meanwhile, as some tests do
        return own, kernel_read_bytes(self.spec["array_pid"])

    def used_bytes(self) -> Optional[int]:
        """What the array's namespace holds, by its own account; None if untold."""
        try:
            return stat(self.spec["kvof"], self.spec["target"])["value_bytes"]
        except (OSError, RuntimeError, KeyError):
            return None

    def about(self) -> Dict:
        return {"model": Path(self.spec["model_path"]).stem, "identity": self.identity,
                "block_bytes": self.size, "warning": self.warning, "pid": os.getpid(),
                "stats": self.cache.stats()}


def main(argv: List[str], cache_class: Optional[Callable] = None) -> int:
    """``save SPEC`` and so on; 0 when the outcome was written."""
    what, spec_path = argv
    spec = json.loads(Path(spec_path).read_text())
    if cache_class is None:
        from kvof.cache import Cache as cache_class
    worker = None
    try:
        worker = Worker(spec, cache_class)
        outcome = {"save": worker.save, "restore": worker.restore,
                   "share": lambda: sharing.share(worker),
                   "follow": lambda: sharing.follow(worker)}[what]()
    except (OSError, RuntimeError, ValueError) as e:
        print(f"kvof.llama: {what}: {e}", file=sys.stderr)
        return 1
    finally:
        if worker is not None:
            worker.close()
    Path(spec["outcome"]).write_text(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
