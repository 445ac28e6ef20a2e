# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled part. Use kvof.Cache."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

LOAD: int
SAVE: int
EXISTS: int
DELETE: int

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

class Cache:
    fd: int
    closed: bool
    def __init__(self, target: Optional[str], fields: List[Tuple[str, str]], model_id: str,
                 block_tokens: int, part_bytes: int, dram_bytes: int, deadline_ns: int,
                 lease_ns: int, queues: int, depth: int, strict: bool, digests: int,
                 host_nqn: Optional[str]) -> None: ...
    def _keys(self, tokens: Any, parent: Optional[bytes]) -> List[bytes]: ...
    def _match(self, keys: Sequence[bytes], deadline_ns: int) -> int: ...
    def _submit(self, op: int, keys: Sequence[bytes], buffers: Any, deadline_ns: int) -> int: ...
    def _wait(self, op: int, keys: Sequence[bytes], buffers: Any,
              deadline_ns: int) -> List[Result]: ...
    def _drain(self, timeout_ms: int) -> List[Result]: ...
    def key_of(self, hash: Any) -> bytes: ...
    def unlease(self, keys: Sequence[bytes]) -> None: ...
    def cancel(self, batch: int) -> None: ...
    def stats(self) -> Dict[str, Any]: ...
    def close(self) -> None: ...
