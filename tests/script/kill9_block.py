#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kill -9` of a real array while blocks are written, trimmed and flushed, and a restart at once.

usage: kill9_block.py KVOF [ROUNDS [SEED]]

Nothing that was answered may be lost: each block is as the last answered command left it, or as the
one that was under way would leave it; never anything else.
"""
import os
import random
import signal
import sys
import tempfile
import threading

from abuse_block import *

SPAN = 4096                                    # blocks that are worked on


def stamp(block, version):
    return struct.pack('<QQ', block, version) * (BLOCK // 16) if version else bytes(BLOCK)


def command_of(c, rnd, first, count, version):
    """A capsule with its cid, and the version that it gives to its blocks."""
    what, cid = rnd.randrange(8), c.next_cid()
    if what == 0:
        raw = struct.pack('<IIQ', 0, count, first)
        return c.capsule(sqe(DSM, cid, NSID, dptr=sgl(1, 16), cdw11=4), raw), cid, 0
    if what == 1:
        return c.capsule(nvm(ZEROES, cid, first, count, bits=rnd.choice((0, DEAC)))), cid, 0
    data = b''.join(stamp(first + i, version) for i in range(count))
    return c.capsule(nvm(WRITE, cid, first, count, bits=FUA if what == 2 else 0,
                         dptr=sgl(1, len(data))), data), cid, version


def several(c, rnd, now, under_way, version):
    """Twelve commands at once, on blocks of their own; each is noted when its answer is here."""
    firsts = rnd.sample(range(0, SPAN, 64), 12)
    out = b''
    for first in firsts:
        version += 1
        count = rnd.choice((1, 2, 2))
        at = first + rnd.randrange(64 - count)
        capsule, cid, value = command_of(c, rnd, at, count, version)
        under_way[cid] = (at, count, value)
        out += capsule
    c.send(out)
    while under_way:
        answer, _ = c.answer()
        status_of(answer, (0, 0))
        first, count, value = under_way.pop(answer.cid)
        now[first:first + count] = [value] * count
    return version


def one_large(c, rnd, now, under_way, version):
    """A write that needs R2T, over several chunks."""
    version += 1
    count = rnd.randrange(3, 300)
    first = rnd.randrange(SPAN - count)
    under_way[0] = (first, count, version)
    status_of(put(c, first, b''.join(stamp(first + i, version) for i in range(count))), (0, 0))
    now[first:first + count] = [version] * count
    under_way.clear()
    return version


def work(port, rnd, now, under_way, stop):
    """Commands until the array is gone; now[] is what was answered."""
    version = max(now) + 1
    try:
        with Host(port) as h:
            while not stop.is_set():
                run = one_large if rnd.randrange(4) == 0 else several
                version = run(h.io, rnd, now, under_way, version)
    except (Closed, OSError, RuntimeError):
        pass


def judge(port, now, under_way):
    with Host(port) as h:
        for first in range(0, SPAN, 256):
            data = get(h.io, first, 256)
            for i in range(256):
                block, got = first + i, data[i * BLOCK:(i + 1) * BLOCK]
                may = [now[block]] + [v for f, n, v in under_way.values() if f <= block < f + n]
                right = [v for v in may if got == stamp(block, v)]
                assert right, f'block {block}: {got[:16].hex()}, not of versions {may}'
                now[block] = right[0]


def one_round(kvof, drives, rnd, now):
    array = Array(kvof, '--kv', '64MiB', '--block', '64MiB', drives=drives)
    under_way, stop = {}, threading.Event()
    worker = threading.Thread(target=work, args=(array.port, rnd, now, under_way, stop))
    worker.start()
    time.sleep(rnd.uniform(0.05, 0.5))         # waits-for: nothing; the moment is the test
    array.proc.send_signal(signal.SIGKILL)
    array.proc.wait()
    stop.set()
    worker.join()
    array = Array(kvof, '--kv', '64MiB', '--block', '64MiB', drives=drives)
    judge(array.port, now, under_way)
    code, _ = array.stop()
    assert code == 0, f'exit code {code}'


def rounds():
    kvof, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    tap, rnd, now = Tap(), random.Random(seed), [0] * SPAN
    with tempfile.TemporaryDirectory() as folder:
        drives = [f'{os.path.join(folder, name)},size=160MiB' for name in 'ab']
        for n in range(count):
            tap.tell(f'kill {n + 1} of {count} (seed {seed}), {sum(v > 0 for v in now)} blocks written',
                     attempt(lambda: one_round(kvof, drives, rnd, now)))
    return tap.end()


if __name__ == '__main__':
    sys.exit(rounds())
