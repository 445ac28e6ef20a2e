# SPDX-License-Identifier: Apache-2.0
"""The three arms, their clocks, and the proof that they continue identically.

The clock of every arm runs from token ids in hand to the first token's id. Model, context, memory
and connection are ready before it starts; nothing is hinted at or fetched before it starts; the
cache of the context is empty.

============  ==============================================================================
recompute     decode the prefix, then the suffix
array         match, read and verify the blocks, hand them over, then the suffix
ram           hand over blocks that lie ready in this process (not verified again: the bound
              that no store can beat), then the suffix
============  ==============================================================================

Proof, after the clock has stopped: the logits of the suffix's last token and of 16 greedy steps,
the 16 tokens, and (``all_rows``) the logits of every suffix token, compared byte for byte with what
the saving process computed.
"""

import ctypes
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np

from .blocks import Restored

GREEDY = 16

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """memcmp of two arrays of one shape and type: NaN equals NaN, 0 does not equal -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return _libc.memcmp(a.ctypes.data, b.ctypes.data, a.nbytes) == 0


@dataclass
class Proof:
    """What a model said after a prefix: the thing that must not change."""

    tokens: List[int]                      # greedy continuation
    steps: np.ndarray                      # float32 [GREEDY, n_vocab]
    rows: Optional[np.ndarray] = None      # float32 [suffix tokens, n_vocab]

    def equals(self, other: "Proof") -> bool:
        """Byte for byte, in everything that both of them have."""
        if self.tokens != other.tokens or not same_bytes(self.steps, other.steps):
            return False
        if self.rows is None or other.rows is None:
            return True
        return same_bytes(self.rows, other.rows)

    def digest(self) -> str:
        """Short name of the logits, so that two runs can be compared by eye."""
        h = hashlib.sha256(np.ascontiguousarray(self.steps))
        return h.hexdigest()[:16]

    def save(self, path: Path) -> None:
        np.savez(path, tokens=np.array(self.tokens, np.int32), steps=self.steps, rows=self.rows)

    @classmethod
    def load(cls, path: Path) -> "Proof":
        with np.load(path) as f:
            return cls([int(t) for t in f["tokens"]], f["steps"], f["rows"])


@dataclass
class Run:
    """One repeat of one arm."""

    arm: str
    prefix_tokens: int
    ttft_s: float
    restored: Restored
    suffix_s: float
    proof: Proof
    exact: Optional[bool] = None           # None: nothing to compare with
    device_read_bytes: Optional[int] = None
    kernel_read_bytes: Optional[int] = None

    def row(self) -> Dict:
        """Plain values for JSON: figures, not logits."""
        r = self.restored
        return {"arm": self.arm, "prefix_tokens": self.prefix_tokens, "ttft_s": self.ttft_s,
                "exact": self.exact, "match_s": r.match_s, "wait_s": r.wait_s,
                "verify_s": r.verify_s, "hand_over_s": r.hand_over_s,
                "recompute_s": r.recompute_s, "suffix_s": self.suffix_s, "kv_bytes": r.bytes,
                "restored_tokens": r.restored_tokens, "misses": r.misses,
                "device_read_bytes": self.device_read_bytes,
                "kernel_read_bytes": self.kernel_read_bytes,
                "logits": self.proof.digest(), "text_tokens": self.proof.tokens}


def first_token(engine, arm: str, prefix: Sequence[int], suffix: Sequence[int],
                fill: Callable[[], Restored], all_rows: bool = False, fresh: bool = True) -> Run:
    """Time one arm (``fill`` brings the prefix's cache), then take the proof.

    ``fresh``: forget everything first; False where ``fill`` continues what is there.
    """
    pos = len(prefix)
    if fresh:
        engine.clear()
    t0 = time.perf_counter()
    restored = fill()
    t1 = time.perf_counter()
    logits = engine.decode(suffix, pos)
    int(logits[-1].argmax())                          # the first token is known here
    t2 = time.perf_counter()
    greedy = engine.greedy(logits, pos + len(suffix), GREEDY)
    rows = None
    if all_rows:
        engine.truncate(pos)
        rows = engine.decode(suffix, pos, rows=len(suffix)).copy()
    return Run(arm, pos, t2 - t0, restored, t2 - t1, Proof(greedy.tokens, greedy.logits, rows))


def recompute(engine, prefix: Sequence[int], done: int = 0) -> Restored:
    """The arm without a store; ``done`` tokens of the prefix are in the engine already."""
    out = Restored(len(prefix))
    t0 = time.perf_counter()
    engine.prefill(prefix, done)
    out.recompute_s = time.perf_counter() - t0
    return out


@dataclass
class Lengths:
    """The prompts of a run: for each length, the head of the text and the tokens behind it."""

    tokens: Sequence[int]
    suffix_tokens: int
    prefixes: List[int] = field(default_factory=list)

    def prompt(self, n: int):
        """(prefix, suffix) of one length."""
        if n + self.suffix_tokens > len(self.tokens):
            raise ValueError(f"the text has {len(self.tokens)} tokens; "
                             f"{n + self.suffix_tokens} are needed")
        return self.tokens[:n], self.tokens[n:n + self.suffix_tokens]
