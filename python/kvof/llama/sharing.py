# SPDX-License-Identifier: Apache-2.0
"""What two hosts have of one array: two processes at the same time, each with the model loaded.

``share`` (the first host) computes a session block by block and stores each block as soon as it is
computed; then a second document that begins like the session. ``follow`` (the second host) loads
the session's blocks as they appear, while the first is still at work on the next ones. Clocks are
the machine's monotonic one, so times of the two processes can be compared.
"""

import time
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from .blocks import arrivals, restore
from .measure import Proof, first_token, recompute

SESSION_TOKENS = 2048       # at most; a shorter longest prefix makes the session shorter
LOOK_AGAIN_S = 0.005        # how often the second host asks what is there
FOLLOW_S = 300.0            # after which it gives the first host up


def session_tokens(prefixes: Sequence[int]) -> int:
    return min(SESSION_TOKENS, max(prefixes))


def documents(tokens: Sequence[int], n: int, suffix: int) -> Tuple[Tuple, Tuple]:
    """((prefix, suffix) of the session, the same of a document with the same first half).

    Both lie behind what the other arms read, so that none of their blocks is there already.
    """
    half = n // 512 * 256
    at = len(tokens) - 2 * (n + suffix)
    if at < n:
        raise ValueError(f"the text has {len(tokens)} tokens; {3 * n + 2 * suffix} are needed")
    one = tokens[at:at + n + suffix]
    other = [*one[:half], *tokens[at + n + suffix:at + 2 * n + 2 * suffix - half]]
    return (one[:n], one[n:]), (other[:n], other[n:])


def store_as_computed(worker, prefix: Sequence[int]) -> List[Tuple[float, float]]:
    """Compute and store block after block. Answers (begin, end) of each block's store."""
    engine, times = worker.engine, []
    keys = worker.cache.keys(prefix)
    engine.clear()
    for i, key in enumerate(keys):
        engine.prefill(prefix[:(i + 1) * engine.block_tokens], i * engine.block_tokens)
        begin = time.monotonic()
        engine.block_out(i, worker.arena.blocks[0])
        result = worker.cache.write([key], worker.arena.blocks[:1])[0]
        if not result.ok:
            raise RuntimeError(f"block {i} was not stored: {result.reason}")
        times.append((begin, time.monotonic()))
    return times


def share(worker) -> Dict:
    """The first host: a session stored as it is computed, then a document with the same head."""
    n = session_tokens(worker.spec["prefixes"])
    suffix = worker.spec["suffix_tokens"]
    session, document = documents(worker.tokens, n, suffix)
    stored = store_as_computed(worker, session[0])
    run = first_token(worker.engine, "recompute", *session, lambda: recompute(
        worker.engine, session[0], n), all_rows=True, fresh=False)
    run.proof.save(worker.proof_path(f"session-{n}"))
    before = worker.used_bytes()
    run = first_token(worker.engine, "recompute", *document,
                      lambda: recompute(worker.engine, document[0]), all_rows=True)
    proof = run.proof
    worker.engine.truncate(n)
    reasons, blocks = [], worker.arena.blocks
    for i, key in enumerate(worker.cache.keys(document[0])):
        worker.engine.block_out(i, blocks[0])
        reasons.append(worker.cache.write([key], blocks[:1])[0].reason)
    after = worker.used_bytes()
    back = first_token(worker.engine, "array", *document, lambda: restore(
        worker.cache, worker.engine, document[0], worker.arena,
        deadline_s=worker.spec["deadline_s"]), all_rows=True)
    back.exact = back.proof.equals(proof)
    return {"stored": stored, "reasons": reasons, "document": back.row(), "block_bytes": worker.size,
            "grown_bytes": None if None in (before, after) else after - before}


def follow(worker) -> Dict:
    """The second host: each block as soon as it is there, then the first token."""
    n = session_tokens(worker.spec["prefixes"])
    (prefix, suffix), _ = documents(worker.tokens, n, worker.spec["suffix_tokens"])
    cache, engine, buffers = worker.cache, worker.engine, worker.arena.blocks
    keys = cache.keys(prefix)
    Path(worker.spec["ready"]).touch()
    give_up = time.monotonic() + FOLLOW_S
    loaded: List[float] = []
    engine.clear()
    while len(loaded) < len(keys):
        at = len(loaded)
        found = cache.match(keys[at:])
        for _, result in arrivals(cache, keys[at:at + found], buffers[at:at + found],
                                  worker.spec["deadline_s"]) if found else ():
            if not result.ok:
                raise RuntimeError(f"a block that is there was not loaded: {result.reason}")
        for i in range(at, at + found):
            engine.block_in(i, buffers[i])
            loaded.append(time.monotonic())
        if not found:
            if time.monotonic() > give_up:
                raise RuntimeError(f"{at} of {len(keys)} blocks after {FOLLOW_S:.0f} s")
            time.sleep(LOOK_AGAIN_S)
    run = first_token(engine, "array", prefix, suffix,
                      lambda: recompute(engine, prefix, n), all_rows=True, fresh=False)
    run.proof.save(worker.proof_path(f"follow-{n}"))
    return {"loaded": loaded, "ttft_s": run.ttft_s, "tokens": n}


def rows(model: str, shared: Dict, followed: Dict, exact: bool) -> List[Dict]:
    """The two rows of the table, from what the two processes wrote.

    ``early``: blocks that the second host had loaded before the first had stored the next one.
    """
    ends = [end for _, end in shared["stored"]]
    loaded = followed["loaded"]
    early = sum(loaded[i] < ends[i + 1] for i in range(len(ends) - 1))
    reasons, document = shared["reasons"], shared["document"]
    once = sum(r == "exists" for r in reasons)
    return [
        {"model": model, "what": "a second host loads while the first stores", "exact": exact,
         "prefix_tokens": followed["tokens"], "blocks": len(ends), "early": early,
         "ttft_s": followed["ttft_s"]},
        {"model": model, "what": "two documents, one head", "exact": document["exact"],
         "prefix_tokens": document["prefix_tokens"], "blocks": len(reasons), "once": once,
         "ttft_s": document["ttft_s"], "grown_bytes": shared["grown_bytes"],
         "new_bytes": (len(reasons) - once) * shared["block_bytes"]},
    ]


def problems(table: List[Dict]) -> List[str]:
    """What is not as promised."""
    out = []
    for r in table:
        if not r["exact"]:
            out.append(f"{r['model']}: {r['what']}: not exact")
        if r.get("early") == 0 and r["blocks"] > 1:
            out.append(f"{r['model']}: {r['what']}: the second host had no block before the next "
                       "one was stored")
        if "once" in r and r["once"] != r["blocks"] // 2:
            out.append(f"{r['model']}: {r['what']}: {r['once']} of {r['blocks'] // 2} blocks of the "
                       "head were there already")
    return out


def lines(table: List[Dict], seconds, mib) -> List[str]:
    """The rows as lines of text."""
    out = []
    for r in table:
        if "early" in r:
            told = (f"{r['early']} of {r['blocks'] - 1} blocks loaded before the next one was stored; "
                    f"first token {seconds(r['ttft_s'])} after the last")
        else:
            told = (f"{r['once']} of {r['blocks']} blocks were there already; the array grew by "
                    f"{mib(r['grown_bytes'])} for {mib(r['new_bytes'])} new; restored in "
                    f"{seconds(r['ttft_s'])}")
        out.append(f"  {r['what']}, {r['prefix_tokens']:,} tokens: {told}; "
                   f"{'exact' if r['exact'] else 'NOT EXACT'}")
    return out


def proofs_equal(folder: Path, n: int) -> bool:
    """Did the second host continue as the first did?"""
    return Proof.load(folder / f"proof-session-{n}.npz").equals(
        Proof.load(folder / f"proof-follow-{n}.npz"))
