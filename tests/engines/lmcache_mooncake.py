# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store under LMCache's bench: a connector for `native_plugin` over its Python package.

Its own adapter in LMCache needs its C++ headers to be built; this one calls the same client: batches into
and out of registered buffers, on four threads. `lmcache_mooncake.py node MASTER BYTES` is the process that
holds the values.
"""

import ctypes
import os
import queue
import sys
import threading


class MooncakeConnector:
    def __init__(self, master: str, threads: int = 4):
        from mooncake.store import MooncakeDistributedStore
        self.store = MooncakeDistributedStore()
        if self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master) != 0:
            raise RuntimeError(f"Mooncake's master at {master} did not take us")
        self.lock = threading.Lock()
        self.known, self.done, self.next = set(), [], 1
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self.jobs = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        for t in self.threads:
            t.start()

    def event_fd(self):
        return self.event

    def start(self, job, *args):
        with self.lock:
            future, self.next = self.next, self.next + 1
        self.jobs.put((future, job, args))
        return future

    def work(self):
        while True:
            future, job, args = self.jobs.get()
            if job is None:
                return
            try:
                bools = job(*args)
                answer = (future, all(bools) or job != self.put, "", bools)
            except Exception as e:
                answer = (future, False, repr(e), None)
            with self.lock:
                self.done.append(answer)
            os.eventfd_write(self.event, 1)

    def places(self, views):
        """Addresses of the buffers, each registered the first time."""
        out = []
        for view in views:
            at = ctypes.addressof(ctypes.c_char.from_buffer(view))
            with self.lock:
                new = at not in self.known
                self.known.add(at)
            if new:
                self.store.register_buffer(at, view.nbytes)
            out.append(at)
        return out

    def put(self, keys, views):
        return [rc == 0 for rc in self.store.batch_put_from(keys, self.places(views),
                                                            [v.nbytes for v in views])]

    def get(self, keys, views):
        sizes = [v.nbytes for v in views]
        return [rc == n for rc, n in zip(self.store.batch_get_into(keys, self.places(views), sizes),
                                         sizes)]

    def there(self, keys):
        return [rc == 1 for rc in self.store.batch_is_exist(keys)]

    def submit_batch_set(self, keys, views):
        return self.start(self.put, keys, views)

    def submit_batch_get(self, keys, views):
        return self.start(self.get, keys, views)

    def submit_batch_exists(self, keys):
        return self.start(self.there, keys)

    def drain_completions(self):
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            pass
        with self.lock:
            out, self.done = self.done, []
        return out

    def close(self):
        for _ in self.threads:
            self.jobs.put((0, None, ()))
        for t in self.threads:
            t.join()
        self.store.close()
        os.close(self.event)


def node(master: str, size: int) -> None:
    """Holds values in memory; a line on standard input: forget them all; its end: the end."""
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "P2PHANDSHAKE", size, 64 << 20, "tcp", "", master)
    print(f"ready {rc}", flush=True)
    for _ in sys.stdin:
        print(f"ready {store.remove_all(True)}", flush=True)
    store.close()


if __name__ == "__main__" and sys.argv[1:2] == ["node"]:
    node(sys.argv[2], int(sys.argv[3]))
