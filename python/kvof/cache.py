# SPDX-License-Identifier: Apache-2.0
"""The cache of blocks of KV cache: one class, thin over libkvof (``include/kvof/cache.h``).

A block is named by a key of 32 bytes made from the model's identity and the tokens up to its end,
and is moved straight between the caller's memory and the array.

>>> from kvof import Cache
>>> with Cache(None, model={"model": "demo", "kv_dtype": "f16"}, block_tokens=4,
...            dram_bytes=1 << 20) as cache:
...     keys = cache.keys([1, 2, 3, 4, 5, 6, 7, 8, 9])
...     [r.reason for r in cache.write(keys, [b"first block", b"second"])]
...     room = bytearray(11)
...     cache.match(keys), cache.read(keys[:1], [room])[0].ok, bytes(room)
['ok', 'ok']
(2, True, b'first block')
"""

import math
import operator
import re
import warnings
from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _kvof
from ._kvof import Refused, Result

__all__ = ["Cache", "Refused", "Restore", "Result"]

Buffers = Sequence[Union[bytes, bytearray, memoryview, Sequence]]


def _ns(seconds: Optional[float]) -> int:
    """0 is "the default" below; a time of 0 s becomes the shortest there is."""
    if seconds is None:
        return 0
    if not 0 <= seconds < 1 << 34:
        raise ValueError(f"{seconds} s: a time is not negative, and less than 500 years")
    return max(1, int(seconds * 1e9))


def _list(texts: Union[str, Sequence[str]]) -> List[str]:
    """One text is a list of one, not of its letters."""
    return [texts] if isinstance(texts, str) else list(texts)


# struct kvof_cache_opts' name -> the keyword's, where they differ
_KEYWORDS = {"deadline_ns": "deadline_s", "lease_ns": "lease_s", "presence_ns": "presence_s",
             "layer_count": "layers", "layer_bytes": "layers", "admission": "second_touch",
             "behind_full": "behind_drop", "event_count": "events"}
_KEYWORD = re.compile(r"\b(" + "|".join(_KEYWORDS) + r")\b")


def _said(text: str) -> str:
    """The same refusal in the caller's words."""
    return _KEYWORD.sub(lambda found: _KEYWORDS[found.group()], text)


def _number(name: str, value: Any) -> int:
    """A whole number that is not negative, or an error that names the option."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, it is a whole number") from None
    if not 0 <= number < 1 << 64:
        raise OverflowError(f"{name} is {number}, it can be 0 to 2^64 - 1")
    return number


def _bits(names: Sequence[str], known: Sequence[str], what: str) -> int:
    """A bit for each name: bit 0 is known[0]."""
    bits = 0
    for name in names:
        if name not in known:
            raise ValueError(f"{what} has {name!r}, it can have {', '.join(known)}")
        bits |= 1 << known.index(name)
    return bits


def _int32(tokens):
    """Tokens as a buffer of 32-bit numbers; no copy where they are one already."""
    if isinstance(tokens, (bytes, bytearray)):
        raise TypeError("bytes may be tokens or 32-bit numbers; say which: list() or memoryview.cast('i')")
    try:
        view = memoryview(tokens)
    except TypeError:
        return array("i", tokens)
    if view.itemsize == 4 and view.contiguous and view.format in ("i", "I", "l", "<i", "=i", "@i"):
        return view.cast("B")
    return array("i", tokens)


class Cache(_kvof.Cache):
    """Blocks of one model's KV cache: DRAM of this process, drives of this machine, arrays.

    ``target``       ``tcp://ADDR:PORT[/NQN][?nsid=N]``, or None: no array, or those of ``targets``
    ``model``        what the bytes depend on, name -> text: weights, KV type, layout, engine build.
                     Another value of any field is another name for every block
    ``model_id``     names the list of domains of this model; default: ``model["model_id"]``, else
                     ``model["model"]``
    ``part_bytes``   largest value stored, footer included
    ``dram_bytes``   exact cap of the DRAM tier; 0: none
    ``deadline_s``   for operations that do not bring their own
    ``queues``       to each array, of ``depth`` commands; 0: the default, 4 of 32
    ``lease_s``      how long DRAM keeps what :meth:`match` found; None: 5 s
    ``strict``       refuse (:class:`Refused`, a ValueError, names the field) when the array knows
                     this model only with another identity, or is out of reach. Otherwise a
                     RuntimeWarning says so
    ``digests``      bit 0 header, bit 1 data digests on the wire
    ``host_nqn``     name of this host for the array's allow-list; default: made from the machine's id
    ``targets``      more arrays: each block lies on one of them
    ``flash``        ``PATH[,size=S][,rate=S]`` of drives or files of this machine: one tier over all
    ``flash_bytes``  its cap; 0: all there is. ``flash_format``: take drives that hold something else
    ``second_touch`` tiers that take a block at its second touch only: of 'flash', 'remote'
    ``behind_bytes`` saves are answered when they are in DRAM; so much may wait to be written to flash
                     and arrays. 0: answered by the slowest tier. ``behind_drop``: full, a save is not
                     written there (counted) rather than waited for
    ``staging_bytes`` of restores in flight; 0: 256 MiB
    ``presence_s``   how long an answer of a tier is believed; None: 30 s
    ``index_blocks`` that the prefix tree remembers; 0: the default
    ``layers``       of a block: how many of equal size, or a list of their sizes in bytes
    ``policy``       which block DRAM gives up: 'lru', 's3fifo', ...; None: the default
    ``events``       how many of :meth:`events` are kept; 0: none
    ``plain``        use the plain loop though io_uring would work

    An option that is wrong or can have no effect is :class:`Refused` with its name.

    Any thread may call. Errors are OSError with errno: ``EBUSY`` too much in flight, ``ESHUTDOWN``
    (BrokenPipeError) closed, or in a forked child. A block that is not delivered is no error but a
    :class:`Result` with its reason.
    """

    def __init__(self, target: Optional[str], *, model: Dict[str, str],
                 model_id: Optional[str] = None, block_tokens: int = 256,
                 part_bytes: int = 4 << 20, dram_bytes: int = 0, deadline_s: float = 2.0,
                 queues: int = 0, depth: int = 0, strict: bool = True, digests: int = 0,
                 lease_s: Optional[float] = None, host_nqn: Optional[str] = None,
                 targets: Union[str, Sequence[str]] = (), flash: Union[str, Sequence[str]] = (),
                 flash_bytes: int = 0, flash_format: bool = False,
                 second_touch: Union[str, Sequence[str]] = (),
                 behind_bytes: int = 0, behind_drop: bool = False, staging_bytes: int = 0,
                 presence_s: Optional[float] = None, index_blocks: int = 0,
                 layers: Union[int, Sequence[int]] = 0, policy: Optional[str] = None,
                 events: int = 0, plain: bool = False):
        if model_id is None:
            model_id = model.get("model_id") or model.get("model")
        if not model_id:
            raise ValueError("model_id is missing, and model has no field 'model_id' or 'model'")
        numbers = {
            "block_tokens": block_tokens, "part_bytes": part_bytes, "dram_bytes": dram_bytes,
            "queues": queues, "depth": depth, "digests": digests, "flash_bytes": flash_bytes,
            "behind_bytes": behind_bytes, "staging_bytes": staging_bytes,
            "index_blocks": index_blocks, "event_count": events,
        }
        options = {
            "model_id": model_id, "deadline_ns": _ns(deadline_s), "strict": bool(strict),
            "lease_ns": _ns(lease_s), "flash_format": bool(flash_format),
            "admission": _bits(_list(second_touch), ("flash", "remote"), "second_touch"),
            "behind_full": bool(behind_drop), "presence_ns": _ns(presence_s), "plain": bool(plain),
        }
        options.update((name, _number(_KEYWORDS.get(name, name), value))
                       for name, value in numbers.items())
        given = {"target": target, "host_nqn": host_nqn, "policy": policy,
                 "targets": _list(targets) or None, "flash": _list(flash) or None,
                 "layer_count" if isinstance(layers, int) else "layer_bytes":
                     _number("layers", layers) if isinstance(layers, int) else
                     [_number("layers", value) for value in layers]}
        options.update((name, value) for name, value in given.items() if value is not None)
        try:
            super().__init__([(str(k), str(v)) for k, v in model.items()], options)
        except Refused as e:
            raise Refused(e.errno, _said(e.strerror)) from None

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def keys(self, tokens, parent: Optional[bytes] = None) -> List[bytes]:
        """Keys of the whole blocks of a token sequence (int32 buffer or sequence of int).

        ``parent``: key of the block that the first one continues; None: the sequence starts here.
        """
        return self._keys(_int32(tokens), parent)

    def match(self, keys: Sequence[bytes], deadline_s: Optional[float] = None) -> int:
        """How many leading blocks are present whole. Those in DRAM stay there for ``lease_s``.

        From memory where what is known is not older than ``presence_s``; the rest is asked at once.
        """
        return self._match(keys, _ns(deadline_s))

    def match_groups(self, groups: Sequence[Tuple[Sequence[bytes], int]],
                     deadline_s: Optional[float] = None) -> int:
        """The longest prefix, in blocks, that every group has. A group: (keys, window).

        ``window``: only so many last blocks of a prefix are needed (the window of sliding
        attention; 1: side data of the last block); 0: all. Ranks are groups that need all.
        """
        return self._match_groups([(keys, window) for keys, window in groups], _ns(deadline_s))

    def pin(self, keys: Sequence[bytes]) -> None:
        """DRAM never evicts these, there already or coming later, until :meth:`unpin`. Counted."""
        self._pin(keys, True)

    def unpin(self, keys: Sequence[bytes]) -> None:
        """Take one :meth:`pin` of each back."""
        self._pin(keys, False)

    def hint(self, keys: Sequence[bytes], priority: int = 0, ttl_s: Optional[float] = None) -> None:
        """Set for each: ``priority`` (-100 goes first, 100 stays longest) and, with ``ttl_s``, the
        end of its life: then it is served no more and deleted from every tier."""
        self._hint(keys, priority, _ns(ttl_s))

    def flush(self, deadline_s: Optional[float] = None) -> None:
        """Wait until what was written is on every tier that is to have it (TimeoutError: not yet)."""
        self._flush(_ns(deadline_s))

    def events(self) -> Tuple[List[Tuple[bytes, str, bool]], int]:
        """What tiers took and gave up: [(key, tier, stored)], at most 256, and how many were lost
        since the last call for want of room (then ask anew what is where). Needs ``events=N``."""
        return self._events()

    def restore(self, keys: Sequence[bytes], buffers: Buffers, *, ends: bool = False,
                load_all: bool = False, suffix_tokens: int = 0,
                deadline_s: Optional[float] = None, prefill_tokens_per_s: float = 0.0,
                prefill_slope: float = 0.0, priority: int = 0, step_blocks: int = 0) -> "Restore":
        """Start restoring the prefix of one request into its buffers (``docs/restore.md``).

        Layer after layer of blocks [0, k) is loaded while the engine computes the rest; with
        ``ends`` blocks are loaded from the last one while the engine computes from the first.
        ``load_all``: no splitting. ``prefill_tokens_per_s``: what the engine computes; 0: what
        :meth:`Restore.computed` has taught.
        """
        if not -100 <= priority <= 100:
            raise ValueError(f"priority is {priority}, it can be -100 to 100")
        for name, x in (("prefill_tokens_per_s", prefill_tokens_per_s), ("prefill_slope", prefill_slope)):
            if not (math.isfinite(x) and x >= 0):
                raise ValueError(f"{name} is {x}, it is 0 or more")
        mode = _kvof.RESTORE_ENDS if ends else _kvof.RESTORE_PREFIX
        request = self._restore_begin(keys, buffers, mode, load_all * _kvof.RESTORE_LOAD_ALL,
                                      suffix_tokens, _ns(deadline_s), prefill_tokens_per_s,
                                      prefill_slope, priority, step_blocks)
        return Restore(self, request)

    def prefetch(self, keys: Sequence[bytes], by_s: Optional[float] = None) -> int:
        """Hint: these will be wanted in DRAM in ``by_s`` seconds. :meth:`cancel` takes its number."""
        return self._prefetch(keys, _ns(by_s))

    def write(self, keys: Sequence[bytes], buffers: Buffers,
              deadline_s: Optional[float] = None) -> List[Result]:
        """Store each block if absent; wait. A block there already is ok with reason 'exists'."""
        return self._wait(_kvof.SAVE, keys, buffers, _ns(deadline_s))

    def read(self, keys: Sequence[bytes], buffers: Buffers,
             deadline_s: Optional[float] = None) -> List[Result]:
        """Fill each buffer with its block; wait. ``buffers[i]``: one writable buffer, or a list.

        Results in the order of the keys. Where ``.ok`` is false the buffer holds noise; where
        ``.busy`` is true it must not be used before :meth:`drain` gave its ``.released``.
        """
        return self._wait(_kvof.LOAD, keys, buffers, _ns(deadline_s))

    def read_async(self, keys: Sequence[bytes], buffers: Buffers,
                   deadline_s: Optional[float] = None, *, unordered: bool = False,
                   skip_read: bool = False) -> int:
        """Start :meth:`read`; return the batch number that results of :meth:`drain` carry.

        ``unordered``: the keys are not consecutive blocks of one sequence. ``skip_read``: no tier is
        asked, every block is absent.
        """
        flags = unordered * _kvof.UNORDERED | skip_read * _kvof.SKIP_READ
        return self._submit(_kvof.LOAD, keys, buffers, _ns(deadline_s), flags)

    def write_async(self, keys: Sequence[bytes], buffers: Buffers,
                    deadline_s: Optional[float] = None, *, unordered: bool = False,
                    skip_write: bool = False, wait_all: bool = False) -> int:
        """Start :meth:`write`. The buffers must not change before their results.

        ``skip_write``: to DRAM only. ``wait_all``: answered by the slowest tier, whatever
        ``behind_bytes`` is.
        """
        flags = (unordered * _kvof.UNORDERED | skip_write * _kvof.SKIP_WRITE |
                 wait_all * _kvof.WAIT_ALL)
        return self._submit(_kvof.SAVE, keys, buffers, _ns(deadline_s), flags)

    def drain(self, timeout_s: Optional[float] = 0.0) -> List[Result]:
        """Results that have come, at most 256; waits up to ``timeout_s`` (None: for ever) for one.

        A result with ``.released`` is not of a block: it says that a busy buffer is free.
        """
        if timeout_s is None:
            return self._drain(-1)
        if not timeout_s >= 0:
            raise ValueError(f"{timeout_s} s: a time is not negative; None waits for ever")
        return self._drain(min(int(timeout_s * 1000 + 0.999), 1 << 30))

    def exists(self, keys: Sequence[bytes], deadline_s: Optional[float] = None) -> List[bool]:
        """Is each block present whole? Not answered in time, or array away: False."""
        return [r.ok for r in self._wait(_kvof.EXISTS, keys, None, _ns(deadline_s))]

    def delete(self, keys: Sequence[bytes], deadline_s: Optional[float] = None) -> List[Result]:
        """Remove each block from all tiers; reason 'absent' where there was none."""
        return self._wait(_kvof.DELETE, keys, None, _ns(deadline_s))


class Restore:
    """One request of :meth:`Cache.restore`; a context manager that ends it. Dropped without its end it
    is ended then (ResourceWarning), which may wait a quarter of a second for a busy buffer.

    Its events come through :meth:`Cache.drain` with ``.batch`` equal to :attr:`request`: ``.layer``
    (layer ``.index`` of ``.bytes`` blocks is there), ``.step`` (ask :meth:`next` again),
    ``.request`` (over: ``.bytes`` blocks are usable).
    """

    def __init__(self, cache: Cache, request: int):
        self.cache = cache
        self.request = request
        self.trace: Optional[Dict[str, Any]] = None

    def __enter__(self) -> "Restore":
        return self

    def __exit__(self, *_) -> None:
        if self.trace is None and not self.cache.closed:
            self.end()

    def __del__(self) -> None:
        if self.trace is not None or self.cache.closed:
            return
        try:
            self.end()
        except (OSError, ValueError):
            return                # closed meanwhile, or a forked child: nothing is held
        warnings.warn(f"restore {self.request} was dropped without end()", ResourceWarning, 2,
                      source=self)

    def next(self, wait_s: float = 0.0) -> Tuple[str, int, int, int]:
        """What the engine has to do: ('wait' | 'compute' | 'done', first, count, usable).

        'compute': blocks [first, first + count) are the engine's. Waits up to ``wait_s`` for
        something other than 'wait'.
        """
        return self.cache._restore_next(self.request, _ns(wait_s) if wait_s else 0)

    def computed(self, first: int, count: int, seconds: float) -> None:
        """Blocks [first, first + count) took the engine so long: teaches its rate."""
        self.cache._restore_computed(self.request, first, count, _ns(seconds))

    def end(self) -> Dict[str, Any]:
        """Ends it (cancels what is not over), waits until its buffers are free; what it did."""
        if self.trace is None:
            self.trace = self.cache._restore_end(self.request)
        return self.trace
