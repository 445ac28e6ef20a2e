# SPDX-License-Identifier: Apache-2.0
"""Memory as a virtual machine has it just after its start: the host has still to find it.

Memory that was used before is backed by the host, and touching it anew costs the guest's kernel alone. Memory
never used, or given back to the host (free page reporting does that, some seconds after large pages are
free), is found by the host at the first touch, which is several times slower. `Hold` takes what is
fast, so that whoever starts next gets the other kind. Where there is more of it than may be held, it
rests, so that the guest gives some back, and tries again once: touching it keeps it from being given.
"""

import mmap
import time

PAGE = 4096
CHUNK = 32 << 20
PROBE = 64 << 20
SLOW = 0.9e9                  # bytes a second: below it the host has still to find the memory
SLOW_CHUNKS = 4               # so many in a row: nothing fast is left, but for crumbs
REST_S = 30
RESTS = 1


def free_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as f:
        return next(int(row.split()[1]) << 10 for row in f if row.startswith("MemFree:"))


def touch(memory: mmap.mmap, at: int, size: int) -> float:
    """Writes a byte into each page. Bytes a second of this thread's CPU: other work does not count, the host's does."""
    begin = time.thread_time()
    memory[at:at + size:PAGE] = bytes(size // PAGE)
    return size / (time.thread_time() - begin)


class Hold:
    """Holds fast free memory of this machine, in this process: its end, whatever ends it, gives all back.

    leave: so many bytes stay free; None: nothing is held. Afterwards `first_touch` is what memory costs the
    next who asks (bytes a second, measured on memory that is then held if any is), `held` what was taken.
    """

    def __init__(self, leave: int | None):
        self.rests = -1
        while self.take(leave) and self.rests < RESTS:
            self.release()
            time.sleep(REST_S)    # waits-for: the guest giving memory back, which nothing announces
        self.first_touch = touch(self.memory, self.held, PROBE)
        if leave is None:
            self.release()

    def take(self, leave: int | None) -> bool:
        """Whether all that may be held was fast."""
        most = 0 if leave is None else max(0, free_bytes() - leave - PROBE) // CHUNK * CHUNK
        self.held = slow = 0
        self.rests += 1
        self.memory = mmap.mmap(-1, most + PROBE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        while self.held < most and slow < SLOW_CHUNKS:
            slow = slow + 1 if touch(self.memory, self.held, CHUNK) < SLOW else 0
            self.held += CHUNK
        return leave is not None and slow < SLOW_CHUNKS

    def release(self) -> None:
        self.memory.close()
