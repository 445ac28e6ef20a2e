# SPDX-License-Identifier: Apache-2.0
"""LMCache's door to kvof: a connector for its ``native_plugin`` (docs/lmcache.md).

    lmcache server --l2-adapter '{"type": "native_plugin", "module_path": "kvof.lmcache",
        "class_name": "Connector", "adapter_params": {"target": "tcp://10.0.0.5:4420",
        "model": {"kv_dtype": "bfloat16", "chunk_tokens": "256"}}}'

LMCache hands over batches of named buffers, polls one descriptor and drains what is over. Nothing of
LMCache is imported here, so this file is tested without it.

A buffer is LMCache's again only when its batch is drained: a batch is told when each of its blocks has
a result *and* no buffer of it is busy. Nothing is registered or copied on the way.

Threads: any may call. ``_lock`` holds what is in flight together with the calls that change it, none of
which waits; a batch is known before its first result can be drained.
"""

import difflib
import errno
import logging
import os
import select
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _kvof
from .cache import Cache, Refused

__all__ = ["Connector"]

log = logging.getLogger("kvof.lmcache")

PIECE_KEYS = 1024             # of one batch of libkvof, which takes 4096 blocks at a time
SAY_EVERY_S = 10.0

# LMCache's batches are objects of many requests and layers, no prefix of anything.
FLAGS = {_kvof.LOAD: _kvof.UNORDERED, _kvof.SAVE: _kvof.UNORDERED, _kvof.EXISTS: _kvof.UNORDERED,
         _kvof.DELETE: _kvof.UNORDERED}

Answer = Tuple[int, bool, str, List[bool]]

BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class Quantity(NamedTuple):
    """A text with a unit, as kvof's own options have it."""
    default: str
    units: Dict[str, float]
    what: str                 # a good one, for the error

    def read(self, name: str, value: Any):
        text = value.strip() if isinstance(value, str) else ""
        number = text.rstrip("BKMGTiumsh")
        unit = text[len(number):].strip()
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        if amount < 0 or amount != amount or unit not in self.units:
            raise ValueError(f"{name}={value!r}: not {self.what}; units: {', '.join(self.units)}")
        return amount * self.units[unit]


SIZE = "a size such as \"8MiB\""
TIME = "a time such as \"500ms\""

# name -> default, or Quantity. What is not here is refused; None and () are "not given".
PARAMS: Dict[str, Any] = {
    "target": None,                                  # tcp://ADDR:PORT[/NQN][?nsid=N]
    "targets": (),                                   # more arrays: each object lies on one of them
    "model": {},                                     # what the bytes depend on and names don't say
    "model_id": "lmcache",                           # names the list of domains on the array
    "dram": Quantity("0B", BYTES, SIZE),             # of this process, exact
    "flash": (),                                     # drives or files here: PATH[,size=S][,rate=S]
    "flash_format": False,
    "second_touch": (),                              # of "flash", "remote"
    "behind": Quantity("0B", BYTES, SIZE),           # may wait in DRAM for the slower tiers
    "policy": None,
    "part": Quantity("8MiB", BYTES, SIZE),           # largest value stored; an object of 4 MiB is one
    "load": Quantity("5s", SECONDS, TIME),           # deadlines of a batch
    "store": Quantity("30s", SECONDS, TIME),
    "lookup": Quantity("1s", SECONDS, TIME),
    "queues": 0,                                     # 0: 4 of them
    "depth": 0,                                      # 0: 32
    "digests": 0,
    "strict": True,
    "host_nqn": None,
}
KINDS = {"target": str, "targets": list, "model": dict, "model_id": str, "flash": list,
         "flash_format": bool, "second_touch": list, "policy": str, "queues": int, "depth": int,
         "digests": int, "strict": bool, "host_nqn": str}


PASSED = ("targets", "flash", "flash_format", "second_touch", "policy", "queues", "depth", "strict",
          "digests", "host_nqn")


def params_read(given: Dict[str, Any]) -> Dict[str, Any]:
    """adapter_params with defaults; the first that is unknown or wrong is named."""
    for name in given:
        if name not in PARAMS:
            near = difflib.get_close_matches(name, PARAMS, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PARAMS)}"
            raise ValueError(f"kvof: adapter_params has no {name!r}; {hint}")
    out = {}
    for name, default in PARAMS.items():
        value = given.get(name)
        if isinstance(default, Quantity):
            out[name] = default.read(f"kvof: adapter_params: {name}",
                                     default.default if value is None else value)
        elif value is None:
            out[name] = default
        elif not isinstance(value, KINDS[name]) or (KINDS[name] is int and isinstance(value, bool)):
            raise ValueError(f"kvof: adapter_params: {name}={value!r}: "
                             f"{KINDS[name].__name__} is needed")
        else:
            out[name] = value
    if not (out["target"] or out["targets"] or out["flash"] or out["dram"]):
        raise ValueError("kvof: adapter_params names no target (\"tcp://ADDR:PORT\"), flash "
                         "([\"/path,size=100GiB\"]) or dram (\"4GiB\"): nothing could be kept")
    return out


# What to do, by a word of what libkvof says.
HINTS = {
    "differs": "; adapter_params: model and model_id say what the bytes are, \"strict\": false opens "
               "all the same, and finds nothing of the others",
    "part_bytes": "; give adapter_params \"part\" that size",
}


def cache_open(p: Dict[str, Any]) -> Cache:
    """The cache, or an error that says what to do."""
    model = {"engine": "lmcache", "object": "1", **{str(k): str(v) for k, v in p["model"].items()}}
    try:
        return Cache(p["target"], model=model, model_id=p["model_id"], part_bytes=int(p["part"]),
                     dram_bytes=int(p["dram"]), deadline_s=p["load"], behind_bytes=int(p["behind"]),
                     **{name: p[name] for name in PASSED})
    except Refused as e:
        hint = next((text for word, text in HINTS.items() if word in str(e)), "")
        raise Refused(e.errno, f"kvof: {e.strerror}{hint}") from e
    except OSError as e:
        raise type(e)(e.errno, f"kvof: cannot begin: {e.strerror}; start the array (kvof serve), or "
                      "give \"strict\": false to begin without it") from e


def counted(why: Dict[str, int]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in why.items())


class Task:
    """One batch of LMCache's, until it is drained."""

    __slots__ = ("future", "op", "bools", "sizes", "pieces", "why")

    def __init__(self, future: int, op: int, count: int):
        self.future, self.op = future, op
        self.bools = [False] * count
        self.sizes: List[int] = []           # of the buffers, loads only
        self.pieces = 0                      # that are not over
        self.why: Dict[str, int] = {}        # reasons of what is False, and how many each

    def miss(self, reason: str, count: int = 1) -> None:
        self.why[reason] = self.why.get(reason, 0) + count

    def answer(self) -> Answer:
        """ok of a store: all of it is there. The others say all in their bools."""
        ok = self.op != _kvof.SAVE or all(self.bools)
        return self.future, ok, counted(self.why), self.bools


class Piece:
    """What of a task is one batch of libkvof: its keys from ``at`` on."""

    __slots__ = ("task", "at", "left", "busy", "end_ns", "keys", "buffers")

    def __init__(self, task: Task, at: int, end_ns: int, keys: List[bytes], buffers):
        self.task, self.at, self.end_ns, self.keys, self.buffers = task, at, end_ns, keys, buffers
        self.left = len(keys)                # without a result
        self.busy = 0                        # whose buffer is not free though the result is here
        task.pieces += 1

    def take(self, r) -> bool:
        """One result of libkvof. True: the piece is over, its buffers are the caller's."""
        if r.released:
            self.busy -= 1
        else:
            self.left -= 1
            self.busy += r.busy
            self.judge(r, self.at + r.index)
        return self.left == 0 and self.busy == 0

    def judge(self, r, index: int) -> None:
        task = self.task
        if not r.ok:
            task.miss(r.reason)
        elif task.op == _kvof.LOAD and r.bytes != task.sizes[index]:
            task.miss("of another length")   # not what was asked for, and noise behind it
        else:
            task.bools[index] = True


class Connector:
    """Six methods of LMCache's native connectors, and deletes. ``adapter_params``: PARAMS above."""

    def __init__(self, **adapter_params: Any):
        p = params_read(adapter_params)
        self._ns = {_kvof.LOAD: int(p["load"] * 1e9), _kvof.SAVE: int(p["store"] * 1e9),
                    _kvof.EXISTS: int(p["lookup"] * 1e9), _kvof.DELETE: int(p["store"] * 1e9)}
        self._cache = cache_open(p)
        self._lock = threading.Lock()
        self._flying: Dict[int, Piece] = {}          # by libkvof's batch number
        self._waiting: Deque[Piece] = deque()        # what did not fit yet, in order
        self._done: List[Answer] = []                # over without a result of libkvof
        self._rung = False
        self._next = 1
        self._closed = False
        self._trouble: Dict[str, int] = {}           # not logged yet
        self._said_at = -SAY_EVERY_S
        # One descriptor for two: libkvof's, and ours for answers that it knows nothing of.
        self._own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._cache.fd, select.EPOLLIN)
        self._poll.register(self._own, select.EPOLLIN)
        self._fd = self._poll.fileno()

    def event_fd(self) -> int:
        """Readable while there is something to drain. Polled, never read."""
        return self._fd

    def submit_batch_get(self, keys: List[str], buffers: Sequence) -> int:
        """Fills the buffers. A value of another length than its buffer counts as absent."""
        return self._submit(_kvof.LOAD, keys, buffers)

    def submit_batch_set(self, keys: List[str], buffers: Sequence) -> int:
        """Stores what is not there yet; a value is seen by nobody before it is complete."""
        return self._submit(_kvof.SAVE, keys, buffers)

    def submit_batch_exists(self, keys: List[str]) -> int:
        return self._submit(_kvof.EXISTS, keys, None)

    def submit_batch_delete(self, keys: List[str]) -> int:
        """True for each that was there."""
        return self._submit(_kvof.DELETE, keys, None)

    def drain_completions(self) -> List[Answer]:
        """(future, ok, what was wrong, a bool for each key) of each batch that is over."""
        try:
            return self._drain()
        except Exception:         # LMCache's thread would end, and every batch with it
            log.exception("kvof: draining failed")
            return []

    def stats(self) -> Dict[str, Any]:
        """libkvof's counters since open."""
        return self._cache.stats()

    def close(self) -> None:
        """Cancels what is in flight. When it returns, no byte of any buffer is touched any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.clear()
        self._cache.close()       # waits for what the kernel still owns
        with self._lock:
            self._flying.clear()
            self._done.clear()
            self._poll.close()
            os.close(self._own)

    def _submit(self, op: int, keys: List[str], buffers: Optional[Sequence]) -> int:
        with self._lock:
            task = Task(self._next, op, len(keys))
            self._next += 1
            if not self._closed:
                self._start(task, keys, buffers)
                self._pump(self._done)
                if self._done and not self._rung:
                    self._rung = True
                    os.eventfd_write(self._own, 1)
            return task.future

    # --- below: under _lock, and not closed -------------------------------------------------------

    def _start(self, task: Task, keys: List[str], buffers: Optional[Sequence]) -> None:
        """Cuts a task into pieces, or ends it with what is wrong with it."""
        try:
            if buffers is not None and len(buffers) != len(keys):
                raise ValueError(f"{len(keys)} keys, {len(buffers)} buffers")
            if task.op == _kvof.LOAD:
                task.sizes = [memoryview(b).nbytes for b in buffers]
            ids = self._cache.keys_of(keys)
        except Exception as e:
            task.miss(str(e), len(keys))
            self._tell(task, self._done)
            return
        end_ns = time.monotonic_ns() + self._ns[task.op]
        for at in range(0, len(ids), PIECE_KEYS):
            some = slice(at, at + PIECE_KEYS)
            self._waiting.append(Piece(task, at, end_ns, ids[some],
                                       buffers[some] if buffers is not None else None))
        if not ids:
            self._tell(task, self._done)

    def _pump(self, out: List[Answer]) -> None:
        """Submits what waits, in order, until libkvof is full: results make room again."""
        while self._waiting:
            piece = self._waiting[0]
            left_ns = piece.end_ns - time.monotonic_ns()
            try:
                if left_ns <= 0:
                    raise TimeoutError("late")
                batch = self._cache._submit(piece.task.op, piece.keys, piece.buffers, left_ns,
                                            FLAGS[piece.task.op])
                self._flying[batch] = piece
            except Exception as e:
                if getattr(e, "errno", 0) == errno.EBUSY and self._flying:
                    return
                piece.task.miss(getattr(e, "strerror", None) or str(e), piece.left)
                self._over(piece, out)
            self._waiting.popleft()
            piece.keys, piece.buffers = (), None     # libkvof holds them until they are free

    def _drain(self) -> List[Answer]:
        with self._lock:
            if self._closed:
                return []
            out, self._done = self._done, []
            if self._rung:
                self._rung = False
                os.eventfd_read(self._own)
            while True:
                results = self._cache._drain(0)
                for r in results:
                    piece = self._flying.get(r.batch)
                    if piece is not None and piece.take(r):
                        del self._flying[r.batch]
                        self._over(piece, out)
                if self._waiting:
                    self._pump(out)
                if len(results) < 256:
                    return out

    def _over(self, piece: Piece, out: List[Answer]) -> None:
        piece.task.pieces -= 1
        if piece.task.pieces == 0:
            self._tell(piece.task, out)

    def _tell(self, task: Task, out: List[Answer]) -> None:
        out.append(task.answer())
        for reason, count in task.why.items():
            if reason != "absent":
                self._trouble[reason] = self._trouble.get(reason, 0) + count
        if self._trouble and time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._said_at = time.monotonic()
            log.warning("kvof: objects that were not moved: %s", counted(self._trouble))
            self._trouble.clear()
