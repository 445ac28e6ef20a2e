# SPDX-License-Identifier: Apache-2.0
"""A stand-in for :mod:`kvof.cache` and ``kvof serve``, so that the harness is tested without them.

Values are files of one folder. It keeps the promises that the harness leans on (identity, parts,
checksum, deadline, reasons, the list of domains) in the simplest way, and nothing else.

As a program it plays ``kvof serve`` and ``kvof stat``:  fake.py serve --listen URL --drive F,size=S
"""

import hashlib
import json
import os
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))


def framed(*parts) -> bytes:
    return b"".join(len(p).to_bytes(8, "little") + p for p in parts)


class Result:
    def __init__(self, reason, size=0, batch=0, index=0):
        self.ok = reason in ("ok", "exists")
        self.reason, self.bytes, self.batch, self.index = reason, size, batch, index
        self.busy = self.released = False


class FakeCache:
    """``target`` is ``tcp://...``; the folder is the file of that port's number in FOLDERS."""

    root = Path("/tmp/llama-fake")

    def __init__(self, target, *, model, block_tokens=256, part_bytes=4 << 20, dram_bytes=0,
                 deadline_s=2.0, queues=4, strict=True):
        self.folder = self.root / target.rsplit(":", 1)[1].split("/")[0]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.block_tokens, self.part = block_tokens, part_bytes - 64
        self.domain = framed(*(framed(k.encode(), v.encode()) for k, v in sorted(model.items())))
        self.tickets, self.results, self.verify_ns = 0, [], 0
        known = self.folder / ("domains-" + hashlib.sha256(model["model"].encode()).hexdigest())
        if known.exists():
            other = json.loads(known.read_text())
            for name in sorted(model):
                if strict and other.get(name) != model[name]:
                    raise ValueError(f"field '{name}' differs: there {other.get(name)!r}, "
                                     f"here {model[name]!r}")
        else:
            known.write_text(json.dumps(model))

    def keys(self, tokens):
        out, parent = [], b""
        for i in range(len(tokens) // self.block_tokens):
            ids = b"".join(int(t).to_bytes(4, "little") for t in
                           tokens[i * self.block_tokens:(i + 1) * self.block_tokens])
            parent = hashlib.sha256(framed(self.domain) + parent + framed(ids)).digest()
            out.append(parent)
        return out

    def away(self):
        return (self.folder / "away").exists()

    def parts_of(self, key):
        return sorted(self.folder.glob(f"{key[:16].hex()}.*"))

    def match(self, keys):
        n = 0
        while not self.away() and n < len(keys) and self.parts_of(keys[n]):
            n += 1
        return n

    def write(self, keys, buffers):
        out = []
        for key, buf in zip(keys, buffers):
            if self.away():
                out.append(Result("unreachable"))
                continue
            if self.parts_of(key):
                out.append(Result("exists", len(buf)))
                continue
            for i, at in enumerate(range(0, len(buf), self.part)):
                piece = bytes(buf[at:at + self.part])
                (self.folder / f"{key[:16].hex()}.{i:04}").write_bytes(
                    key + zlib.crc32(piece).to_bytes(4, "little") + piece)
            out.append(Result("ok", len(buf)))
        return out

    def one(self, key, buf):
        at = 0
        if self.away():
            return Result("unreachable")
        for path in self.parts_of(key):
            raw = path.read_bytes()
            total = self.folder / "device"
            total.write_text(str(int(total.read_text()) + len(raw) if total.exists() else len(raw)))
            t0 = time.perf_counter_ns()
            fine = raw[:32] == key and zlib.crc32(raw[36:]) == int.from_bytes(raw[32:36], "little")
            self.verify_ns += time.perf_counter_ns() - t0
            if not fine:
                return Result("corrupt")
            buf[at:at + len(raw) - 36] = raw[36:]
            at += len(raw) - 36
        return Result("ok", at) if at else Result("absent")

    def read(self, keys, buffers, deadline_s=None):
        return [self.one(k, b) for k, b in zip(keys, buffers)]

    def read_async(self, keys, buffers, deadline_s=None):
        self.tickets += 1
        order = list(range(len(keys)))
        order[:2] = reversed(order[:2])               # arrivals are not in request order
        for i in order:
            r = self.one(keys[i], buffers[i])
            r.batch, r.index = self.tickets, i
            self.results.append(r)
        return self.tickets

    def drain(self, timeout_s=0.0):
        out, self.results = self.results[:2], self.results[2:]
        return out

    def delete(self, keys):
        out = []
        for key in keys:
            parts = self.parts_of(key)
            for path in parts:
                path.unlink()
            out.append(Result("ok" if parts else "absent"))
        return out

    def stats(self):
        return {"verify_ns": self.verify_ns}

    def close(self):
        pass


def serve(argv):
    import signal
    target = argv[argv.index("--listen") + 1]
    print(f"ready {target} nqn.2026-11.io.kvof:fake", flush=True)
    signal.sigwait({signal.SIGTERM})
    return 0


def main(argv):
    if argv[:1] == ["serve"]:
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        return serve(argv)
    if argv[:1] == ["stat"]:
        device = FakeCache.root / argv[1].rsplit(":", 1)[1] / "device"
        print(json.dumps({"device_read_bytes": int(device.read_text()) if device.exists() else 0}))
        return 0
    from kvof.llama import worker                     # save|restore SPEC
    return worker.main(argv, cache_class=FakeCache)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
