# SPDX-License-Identifier: Apache-2.0
"""LMCache inside the engine's process: a remote connector over libkvof (docs/lmcache.md).

    remote_storage_plugins: ["kvof"]
    extra_config:
      remote_storage_plugin.kvof.module_path: kvof.lmcache_remote
      remote_storage_plugin.kvof.class_name: Adapter
      remote_storage_plugin.kvof.target: tcp://10.0.0.5:4420

Other ``remote_storage_plugin.kvof.NAME`` are those of ``adapter_params`` (kvof.lmcache.PARAMS). A chunk is
stored as its bytes alone: libkvof tells the true length, from which a partial chunk gets its shape.
LMCache's shapes, types and format are part of the identity, so another geometry is refused by name.

Threads: coroutines run on LMCache's loop, which owns ``_waits``; the blocking calls may come from any.
"""

import asyncio
import errno
from typing import Any, Dict, List, Optional, Sequence

from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector import extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from . import _kvof
from .lmcache import cache_open, params_read

__all__ = ["Adapter", "Remote"]

TYPE = "kvof"
OURS = ("module_path", "class_name")         # of the plugin's keys, not ours to read
CHUNKS_AT_ONCE = 1024


def params_of(config, plugin_name: str) -> Dict[str, Any]:
    """What extra_config says of this plugin."""
    head = f"remote_storage_plugin.{plugin_name}."
    return {name[len(head):]: value for name, value in (config.extra_config or {}).items()
            if name.startswith(head) and name[len(head):] not in OURS}


class Adapter(ConnectorAdapter):
    """What LMCache makes of ``class_name``."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{TYPE}")

    def can_parse(self, url: str) -> bool:
        head = "plugin://"
        return url.startswith(head) and extract_plugin_type(url[len(head):]) == TYPE

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        if context.config.use_layerwise:
            raise ValueError("kvof: use_layerwise is not supported by the in-process connector; use "
                             "lmcache server with native_plugin (kvof.lmcache)")
        if context.config.remote_serde not in (None, "naive"):
            raise ValueError(f"kvof: remote_serde {context.config.remote_serde!r} is not supported; "
                             "use naive")
        return Remote(context)


class Wait:
    """One batch, for the coroutine that started it."""

    __slots__ = ("future", "results", "left", "busy")

    def __init__(self, future: asyncio.Future, count: int):
        self.future = future
        self.results: List[Any] = [None] * count
        self.left = count
        self.busy = 0

    def take(self, r) -> bool:
        """True: all is told, and every buffer is free."""
        if r.released:
            self.busy -= 1
        else:
            self.left -= 1
            self.busy += r.busy
            self.results[r.index] = r
        return self.left == 0 and self.busy == 0


class Remote(RemoteConnector):
    def __init__(self, context: ConnectorContext):
        super().__init__(context.config, context.metadata)
        p = params_read(params_of(context.config, context.plugin_name or TYPE))
        p["model"] = {"shapes": str([list(s) for s in self.meta_shapes]),
                      "dtypes": str([str(d) for d in self.meta_dtypes]),
                      "format": self.meta_fmt.name, "chunk": str(context.metadata.chunk_size),
                      **p["model"]}
        self._ns = {_kvof.LOAD: int(p["load"] * 1e9), _kvof.SAVE: int(p["store"] * 1e9),
                    _kvof.EXISTS: int(p["lookup"] * 1e9)}
        self._lookup_s = p["lookup"]
        self._memory = context.local_cpu_backend
        self._loop = context.loop
        self._cache = cache_open(p)
        self._fd = self._cache.fd
        self._waits: Dict[int, Wait] = {}            # by libkvof's batch number
        self._room = asyncio.Event()                 # set when results were drained
        self._watched = False

    def names(self, keys) -> List[bytes]:
        return self._cache.keys_of([k.to_string() for k in keys])

    # --- on LMCache's loop ------------------------------------------------------------------------

    async def _batch(self, op: int, keys: Sequence, buffers: Optional[Sequence]) -> List[Any]:
        """Results in the order of the keys; the buffers are ours again."""
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._fd, self._drain)
        while True:
            try:
                batch = self._cache._submit(op, self.names(keys), buffers, self._ns[op])
                break
            except OSError as e:
                if e.errno != errno.EBUSY or not self._waits:
                    raise
                self._room.clear()                   # as much in flight as libkvof takes
                await self._room.wait()
        wait = self._waits[batch] = Wait(self._loop.create_future(), len(keys))
        await asyncio.shield(wait.future)            # the buffers must live until it is over
        return wait.results

    def _drain(self) -> None:
        for r in self._cache.drain():
            wait = self._waits.get(r.batch)
            if wait is not None and wait.take(r):
                del self._waits[r.batch]
                wait.future.set_result(None)
        self._room.set()

    async def exists(self, key) -> bool:
        return (await self._batch(_kvof.EXISTS, [key], None))[0].ok

    async def get(self, key):
        return (await self.batched_get([key]))[0]

    async def put(self, key, memory_obj) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys, memory_objs) -> None:
        for at in range(0, len(keys), CHUNKS_AT_ONCE):
            some = slice(at, at + CHUNKS_AT_ONCE)
            await self._batch(_kvof.SAVE, keys[some], [m.byte_array for m in memory_objs[some]])

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys) -> List[Any]:
        """None for each that is not there, or for which there is no memory."""
        rooms = [self._memory.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
                 for _ in keys]
        out: List[Any] = [None] * len(keys)
        index = [i for i, room in enumerate(rooms) if room is not None]
        try:
            while index:
                some = index[:CHUNKS_AT_ONCE]
                results = await self._batch(_kvof.LOAD, [keys[i] for i in some],
                                            [rooms[i].byte_array for i in some])
                del index[:CHUNKS_AT_ONCE]
                for i, r in zip(some, results):
                    out[i] = self._chunk(rooms[i], r)
        except OSError:
            for i in index:
                rooms[i].ref_count_down()
            raise
        return out

    def _chunk(self, room, r):
        """The chunk with the shape that its length says, or None and its memory given back."""
        try:
            if r.ok:
                return self.reshape_partial_chunk(room, r.bytes)
        except ValueError:
            pass                                     # not a whole number of tokens: not ours
        room.ref_count_down()
        return None

    async def batched_get_non_blocking(self, lookup_id: str, keys) -> List[Any]:
        """The leading ones that are there."""
        got = await self.batched_get(keys)
        first = got.index(None) if None in got else len(got)
        for chunk in got[first:]:
            if chunk is not None:
                chunk.ref_count_down()
        return got[:first]

    async def batched_async_contains(self, lookup_id: str, keys, pin: bool = False) -> int:
        return await self._loop.run_in_executor(None, self.batched_contains, keys)

    async def list(self) -> List[str]:
        return []                                    # names are digested: they can't be given back

    async def close(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._fd)
        await self._loop.run_in_executor(None, self._cache.close)
        for wait in self._waits.values():
            if not wait.future.done():
                wait.future.set_exception(ConnectionAbortedError("kvof: closed"))
        self._waits.clear()

    # --- any thread ---------------------------------------------------------------------------------

    def exists_sync(self, key) -> bool:
        return self._cache.exists(self.names([key]), self._lookup_s)[0]

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys) -> int:
        """How many leading ones are there; those in DRAM stay for a while."""
        return self._cache.match(self.names(keys), self._lookup_s)

    def remove_sync(self, key) -> bool:
        return self._cache.delete(self.names([key]))[0].ok
