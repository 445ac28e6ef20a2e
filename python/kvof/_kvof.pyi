# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled part. Use kvof.Cache."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

LOAD: int
SAVE: int
EXISTS: int
DELETE: int
UNORDERED: int
SKIP_READ: int
SKIP_WRITE: int
WAIT_ALL: int

class Refused(OSError, ValueError): ...

class Result(NamedTuple):
    ok: bool
    bytes: int
    reason: str
    index: int
    batch: int
    busy: bool
    released: bool
    last: bool
    wait_s: float
    verify_s: float
    tier: str
    layer: bool
    request: bool
    step: bool

class Cache:
    fd: int
    closed: bool
    def __init__(self, fields: List[Tuple[str, str]], options: Dict[str, Any]) -> None: ...
    def _keys(self, tokens: Any, parent: Optional[bytes]) -> List[bytes]: ...
    def _match(self, keys: Sequence[bytes], deadline_ns: int) -> int: ...
    def _submit(self, op: int, keys: Sequence[bytes], buffers: Any, deadline_ns: int,
                flags: int = 0) -> int: ...
    def _wait(self, op: int, keys: Sequence[bytes], buffers: Any,
              deadline_ns: int) -> List[Result]: ...
    def _drain(self, timeout_ms: int) -> List[Result]: ...
    def key_of(self, hash: Any) -> bytes: ...
    def keys_of(self, names: Sequence[Any]) -> List[bytes]: ...
    def unlease(self, keys: Sequence[bytes]) -> None: ...
    def cancel(self, batch: int) -> None: ...
    def stats(self) -> Dict[str, Any]: ...
    def close(self) -> None: ...
