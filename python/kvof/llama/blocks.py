# SPDX-License-Identifier: Apache-2.0
"""A prompt's prefix as blocks of tokens: save them to a cache, restore them from it or from memory.

A block is the KV cache of ``block_tokens`` consecutive tokens; it is one object of
:class:`kvof.cache.Cache`, named by the tokens up to its end, and cut into parts by the cache.

Lifetime of a restore::

    match       identities of the blocks, and how many leading ones the cache has
    wait        all of them are asked for at once; block i is handed over as soon as it and all
    hand over   blocks before it have arrived whole and verified, while later ones are on their way
    (recompute) what did not come by the deadline, or came wrong, is computed: never wrong,
                and bounded in time
"""

import mmap
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

PAGE = mmap.PAGESIZE


class Arena:
    """Memory for ``count`` blocks of ``size`` bytes, touched before use and used again and again.

    Fresh pages cost more than the copy into them, and an engine would not take fresh ones either.
    """

    def __init__(self, count: int, size: int):
        stride = -(-size // PAGE) * PAGE
        self.map = mmap.mmap(-1, max(stride * count, PAGE))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:                       # a kernel without them: small pages do
                pass
        for at in range(0, len(self.map), PAGE):
            self.map[at] = 0
        whole = memoryview(self.map)
        self.whole = whole
        self.blocks = [whole[i * stride:i * stride + size] for i in range(count)]


@dataclass
class Restored:
    """What a restore did, and where its time went (seconds)."""

    prefix_tokens: int
    restored_tokens: int = 0
    bytes: int = 0
    match_s: float = 0.0
    wait_s: float = 0.0
    verify_s: float = 0.0          # on the cache's own threads, within wait_s
    hand_over_s: float = 0.0
    recompute_s: float = 0.0
    misses: Dict[str, int] = field(default_factory=dict)      # reason -> blocks


def verify_seconds(cache) -> float:
    """Seconds the cache has spent checking payloads since it was opened."""
    return cache.stats().get("verify_ns", 0) / 1e9


def arrivals(cache, keys: Sequence[bytes], buffers: Sequence, deadline_s: Optional[float]):
    """Ask for all blocks at once; yield (index, result) in the order in which they arrive.

    Ends when no buffer is owned by anybody else any more: a block given up while the kernel still
    had its buffer is followed by a release.
    """
    batch = cache.read_async(keys, buffers, deadline_s)
    left, busy = len(keys), 0
    while left or busy:
        for result in cache.drain(None):
            if result.batch != batch:
                continue
            if result.released:
                busy -= 1
                continue
            left -= 1
            busy += result.busy
            yield result.index, result


def restore(cache, engine, tokens: Sequence[int], arena: Arena, *,
            deadline_s: Optional[float] = None,
            matched: Optional[Callable[[int], None]] = None,
            verified: Optional[Callable[[int, memoryview], None]] = None) -> Restored:
    """Fill the engine's empty cache with the whole blocks of ``tokens``; compute what is missing.

    ``matched(n)`` is called between match and the reads, ``verified(i, buffer)`` between a block's
    verification and its hand-over: tests break things there.
    """
    out = Restored(len(tokens))
    size = engine.block_tokens
    t0 = time.perf_counter()
    keys = cache.keys(tokens)
    n = cache.match(keys)
    if n < len(keys):
        out.misses["absent"] = len(keys) - n
    t1 = time.perf_counter()
    out.match_s = t1 - t0
    if matched is not None:
        matched(n)
    done: Dict[int, object] = {}
    next_block = 0
    broken = False
    last = t1 if matched is None else time.perf_counter()
    for index, result in arrivals(cache, keys[:n], arena.blocks[:n], deadline_s) if n else ():
        done[index] = result
        now = time.perf_counter()
        out.wait_s += now - last
        if not result.ok:
            out.misses[result.reason] = out.misses.get(result.reason, 0) + 1
        while not broken and next_block in done:
            r, buf = done[next_block], arena.blocks[next_block]
            if not r.ok or r.bytes != len(buf):
                broken = True              # the prefix ends here; later blocks are of no use
                break
            if verified is not None:
                verified(next_block, buf)
            engine.block_in(next_block, buf)
            out.bytes += r.bytes
            next_block += 1
        last = time.perf_counter()
        out.hand_over_s += last - now
    out.restored_tokens = next_block * size
    if out.restored_tokens < len(tokens):
        t2 = time.perf_counter()
        engine.prefill(tokens, out.restored_tokens)
        out.recompute_s = time.perf_counter() - t2
    return out


def restore_from_memory(engine, tokens: Sequence[int], copies: Sequence[memoryview]) -> Restored:
    """The same from copies in this process's memory, ready and not verified again: the bound."""
    out = Restored(len(tokens))
    t0 = time.perf_counter()
    for i, copy in enumerate(copies):
        engine.block_in(i, copy)
        out.bytes += len(copy)
    out.hand_over_s = time.perf_counter() - t0
    out.restored_tokens = len(copies) * engine.block_tokens
    return out


def save(cache, engine, tokens: Sequence[int], arena: Arena, window: int = 8) -> Tuple[int, List]:
    """Store the whole blocks of ``tokens``, which the engine has just computed, where absent.

    Answers the bytes handed to the cache and the results that are not ok.
    """
    keys = cache.keys(tokens)
    total, bad = 0, []
    for first in range(0, len(keys), window):
        part = keys[first:first + window]
        buffers = arena.blocks[:len(part)]
        for i, buf in enumerate(buffers):
            total += engine.block_out(first + i, buf)
        bad += [r for r in cache.write(part, buffers) if not r.ok]
    return total, bad
