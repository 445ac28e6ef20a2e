# SPDX-License-Identifier: Apache-2.0
"""A real model (SmolLM2-135M, 512 tokens of prefix): exactness and the negative controls.

The tests run over the real array with kvof.cache; where that is not built, over the stand-in of
fake.py, which proves the harness alone, and the real ones are skips that name what is missing.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import fake
from kvof.llama import __main__ as program
from kvof.llama import report
from kvof.llama.array import Array, stat
from kvof.llama.blocks import Arena, restore, restore_from_memory, save
from kvof.llama.engine import BATCH, Engine, EngineError, find_model
from kvof.llama.measure import Lengths, first_token, recompute
from kvof.llama.text import long_text

ROOT = Path(__file__).resolve().parents[2]
KVOF = ROOT / "build" / "kvof"
PREFIX, SUFFIX, DEADLINE_S = 512, 64, 2.0

try:
    import llama_cpp  # noqa: F401
    find_model("smollm2", ROOT / "build" / "models")
    NO_MODEL = None
except (ImportError, FileNotFoundError) as e:
    NO_MODEL = f"no model: {e} (tools/llama-env.sh)"
try:
    from kvof.cache import Cache
    NO_KVOF = None if KVOF.exists() else f"no {KVOF.relative_to(ROOT)}"
except ImportError as e:
    NO_KVOF = f"no kvof.cache: {e}"


class Loaded:
    """The model, once for the whole module, and what it says without any store."""

    one = None

    def __init__(self, name="smollm2", prefix=PREFIX):
        self.engine = Engine(find_model(name, ROOT / "build" / "models"), n_ctx=1280)
        self.size = self.engine.block_bytes()
        tokens = self.engine.tokenize(long_text())
        self.prefix, self.suffix = Lengths(tokens, SUFFIX).prompt(prefix)
        self.blocks = prefix // self.engine.block_tokens
        self.identity = self.engine.identity()
        self.arena = Arena(self.blocks, self.size)
        self.computed = self.run("recompute", lambda: recompute(self.engine, self.prefix))
        self.copies = Arena(self.blocks, self.size).blocks
        for i, copy in enumerate(self.copies):
            self.engine.block_out(i, copy)

    def run(self, arm, fill):
        run = first_token(self.engine, arm, self.prefix, self.suffix, fill, all_rows=True)
        if arm == "recompute" and not hasattr(self, "computed"):
            run.exact = True
        else:
            run.exact = run.proof.equals(self.computed.proof)
        return run

    def restore(self, cache, **hooks):
        return self.run("array", lambda: restore(cache, self.engine, self.prefix, self.arena,
                                                 deadline_s=DEADLINE_S, **hooks))


def loaded():
    if Loaded.one is None:
        Loaded.one = Loaded()
    return Loaded.one


class FakeBackend:
    """fake.py: values are files."""

    cache_class = fake.FakeCache
    worker = [sys.executable, str(ROOT / "tests" / "llama" / "fake.py")]

    def __init__(self, folder):
        self.folder = folder
        self.target = f"tcp://127.0.0.1:{os.getpid()}"
        self.values = fake.FakeCache.root / str(os.getpid())
        shutil.rmtree(self.values, ignore_errors=True)
        self.kvof = folder / "kvof"
        self.kvof.write_text(f"#!/bin/sh\nexec {sys.executable} {ROOT}/tests/llama/fake.py \"$@\"\n")
        self.kvof.chmod(0o755)

    def start(self):
        (self.values / "away").unlink(missing_ok=True)

    def stop(self):
        self.values.mkdir(parents=True, exist_ok=True)
        (self.values / "away").touch()

    def die_soon(self):
        self.stop()

    def files(self):
        return [p for p in self.values.glob("*.*")]

    def close(self):
        shutil.rmtree(self.values, ignore_errors=True)


class RealBackend:
    """kvof serve on loopback, four drives, kvof.cache."""

    cache_class = None if NO_KVOF else Cache
    worker = [sys.executable, "-m", "kvof.llama.worker"]
    kvof = KVOF

    def __init__(self, folder):
        self.array = Array(KVOF, folder, drive_bytes=256 << 20)
        self.target = self.array.target

    def start(self):
        self.array.start()

    def stop(self):
        self.array.stop()

    def die_soon(self):
        """Stand still at once, so that reads are on their way for good; die a moment later."""
        self.array.signal(signal.SIGSTOP)
        self.killer = threading.Timer(0.2, self.array.kill)
        self.killer.start()

    def files(self):
        return self.array.drives

    def close(self):
        if hasattr(self, "killer"):
            self.killer.join()
        self.array.stop()


def flip_one_bit(files, near):
    """Flip one bit of the first place that holds the bytes ``near``."""
    for path in files:
        data = path.read_bytes()
        at = data.find(near)
        if at >= 0:
            with open(path, "r+b") as f:
                f.seek(at + len(near) // 2)
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte ^ 4]))
                os.fsync(f.fileno())
            return
    raise AssertionError("the block's bytes are on no drive")


class Controls:
    """The tests; ``backend_class`` says over what."""

    def setUp(self):
        self.model = loaded()
        self.folder = Path(tempfile.mkdtemp(prefix="llama-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.backend = self.backend_class(self.folder)
        self.addCleanup(self.backend.close)
        self.backend.start()

    def open(self, strict=True, **other):
        cache = self.backend.cache_class(self.backend.target, model={**self.model.identity, **other},
                                         deadline_s=DEADLINE_S, strict=strict)
        self.addCleanup(cache.close)
        return cache

    def saved(self):
        """A cache that has the prefix's blocks."""
        cache = self.open()
        self.model.engine.clear()
        restore_from_memory(self.model.engine, self.model.prefix, self.model.copies)
        total, bad = save(cache, self.model.engine, self.model.prefix, self.model.arena)
        self.assertEqual((total, bad), (self.model.size * self.model.blocks, []))
        for block in self.model.arena.blocks:          # noise: nothing of it may be left to find
            block[:] = bytes([0xA5]) * len(block)
        return cache

    def restarted(self):
        self.backend.stop()
        self.backend.start()
        return self.open()

    def assert_run(self, run, restored_tokens, **misses):
        self.assertEqual((run.restored.restored_tokens, run.restored.misses, run.exact),
                         (restored_tokens, misses, True))

    def test_a_restored_prefix_continues_exactly_as_a_recomputed_one(self):
        self.saved().close()
        run = self.model.restore(self.restarted())
        self.assert_run(run, PREFIX)
        self.assertEqual(run.restored.bytes, self.model.size * self.model.blocks)
        self.assertLess(run.ttft_s, self.model.computed.ttft_s)

    def test_saving_again_stores_nothing_new_and_is_fine(self):
        self.saved()
        self.assert_run(self.model.restore(self.saved()), PREFIX)

    def test_one_bit_flipped_on_a_drive_is_refused_and_recomputed(self):
        self.saved().close()
        self.backend.stop()
        middle = self.model.size // 3
        flip_one_bit(self.backend.files(), bytes(self.model.copies[1][middle:middle + 64]))
        self.backend.start()
        run = self.model.restore(self.open())
        self.assert_run(run, PREFIX // 2, corrupt=1)

    def test_one_byte_changed_after_verification_makes_the_page_say_not_exact(self):
        cache = self.saved()

        def change(index, buffer):
            if index == 1:
                buffer[len(buffer) // 2 | 1] ^= 0x40
        run = self.model.restore(cache, verified=change)
        run.device_read_bytes = run.restored.bytes
        self.assertEqual(run.restored.restored_tokens, PREFIX)
        rows = [r.row() for r in (self.model.computed, run)]
        rows.append({**rows[1], "arm": "ram", "exact": True})
        table = report.rows([{"model": "M", "runs": rows}])
        for text in (report.sentence(table), report.text_table(table), report.problems(table)[0]):
            self.assertIn("not exact", text)

    def differing(self, **other):
        """Blocks of another domain: a miss, refused when strict with the field named."""
        self.saved()
        (name, _), = other.items()
        with self.assertRaisesRegex((ValueError, OSError), name):
            self.open(strict=True, **other)
        cache = self.open(strict=False, **other)
        self.assertEqual(cache.match(cache.keys(self.model.prefix)), 0)
        return cache

    def test_other_weights_of_the_model_are_a_miss_and_named(self):
        self.differing(weights="sha256:" + "0" * 64)

    def test_another_engine_build_is_a_miss_and_named(self):
        build = self.model.identity["engine"].replace("sha256:", "sha256:0")
        run = self.model.restore(self.differing(engine=build))
        self.assert_run(run, 0, absent=self.model.blocks)

    def test_another_flag_is_a_miss_and_named(self):
        self.differing(flags=self.model.identity["flags"].replace("batch=512", "batch=256"))

    def test_another_kv_type_is_a_miss_and_named(self):
        self.differing(kv_dtype="k=q8_0 v=f16")

    def test_another_model_is_a_miss_and_disturbs_nothing(self):
        cache = self.saved()
        other = self.open(strict=True, model="another model")
        self.assertEqual(other.match(other.keys(self.model.prefix)), 0)
        self.assertEqual(cache.match(cache.keys(self.model.prefix)), self.model.blocks)

    def test_a_deleted_block_leaves_a_shorter_prefix_that_is_exact(self):
        cache = self.saved()
        keys = cache.keys(self.model.prefix)
        self.assertEqual([r.ok for r in cache.delete(keys[1:])], [True])
        self.assert_run(self.model.restore(cache), PREFIX // 2, absent=1)
        self.assertEqual([r.ok for r in cache.delete(keys[:1])], [True])
        self.assertEqual(cache.match(keys), 0)

    def test_two_prompts_with_a_common_head_share_its_blocks(self):
        cache = self.saved()
        other = list(self.model.prefix[:300]) + list(reversed(self.model.prefix[300:]))
        keys = cache.keys(self.model.prefix)
        self.assertEqual(cache.keys(other)[0], keys[0])
        self.assertNotEqual(cache.keys(other)[1], keys[1])
        self.assertEqual(cache.match(cache.keys(other)), 1)

    def test_an_array_killed_mid_restore_is_recomputed_in_time_and_used_when_back(self):
        cache = self.saved()
        began = time.monotonic()
        run = self.model.restore(cache, matched=lambda n: self.backend.die_soon())
        took = time.monotonic() - began
        self.assertEqual((run.exact, run.restored.restored_tokens), (True, 0))
        self.assertLessEqual(set(run.restored.misses), {"unreachable", "late", "error"})
        self.assertLess(run.restored.wait_s, DEADLINE_S + 0.5)
        self.assertLess(took, DEADLINE_S + 5 * self.model.computed.ttft_s + 5)
        self.backend_is_back(cache)
        self.assert_run(self.model.restore(cache), PREFIX)

    def backend_is_back(self, cache):
        """The same open cache finds the array again by itself, within ten seconds."""
        if hasattr(self.backend, "killer"):
            self.backend.killer.join()
        self.backend.start()
        until = time.monotonic() + 10
        while cache.match(cache.keys(self.model.prefix)) < self.model.blocks:
            self.assertLess(time.monotonic(), until, "the array is back but not used")

    def test_the_whole_program_saves_restarts_restores_and_reports(self):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            rc = program.main(["--kvof", str(self.backend.kvof), "--prefix", "512", "--prefix", "256",
                               "--repeats", "2", "--folder", str(self.folder / "run"),
                               "--json", str(self.folder / "run.json")], self.backend.worker)
        self.assertEqual((rc, "exactly the same logits" in out.getvalue()), (0, True),
                         out.getvalue() + err.getvalue())
        got = json.loads((self.folder / "run.json").read_text())
        self.assertEqual([(e["prefix_tokens"], e["arm"], len(e["ttft_s"]), e["exact"]) for e in got],
                         [(n, arm, times, True) for n in (256, 512)
                          for arm, times in (("recompute", 1), ("array", 2), ("ram", 2))])
        self.assertLess(got[0]["ttft_s"][0], got[3]["ttft_s"][0])
        kv = self.model.size * self.model.blocks
        self.assertEqual(got[4]["kv_bytes"], [kv, kv])
        self.assertTrue(all(n >= kv for n in got[4]["device_read_bytes"]))

    def test_a_worker_that_fails_is_one_line_and_code_1(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            rc = program.main(["--kvof", str(self.backend.kvof), "--prefix", "512", "--model",
                               __file__, "--folder", str(self.folder / "run"),
                               "--json", str(self.folder / "run.json")], self.backend.worker)
        self.assertEqual(rc, 1)
        self.assertNotIn("Traceback", err.getvalue())
        self.assertFalse((self.folder / "run.json").exists())


if NO_KVOF:
    @unittest.skipIf(NO_MODEL, NO_MODEL)
    class WithStandIn(Controls, unittest.TestCase):
        backend_class = FakeBackend


@unittest.skipIf(NO_MODEL or NO_KVOF, NO_MODEL or NO_KVOF)
class WithArray(Controls, unittest.TestCase):
    backend_class = RealBackend

    def test_an_array_that_stands_still_mid_restore_is_given_up_at_the_deadline(self):
        cache = self.saved()
        array = self.backend.array
        run = self.model.restore(cache, matched=lambda n: array.signal(signal.SIGSTOP))
        self.assert_run(run, 0, late=self.model.blocks)
        self.assertGreater(run.restored.wait_s, DEADLINE_S - 0.1)
        self.assertLess(run.restored.wait_s, DEADLINE_S + 0.5)
        array.signal(signal.SIGCONT)
        until = time.monotonic() + 10
        while cache.match(cache.keys(self.model.prefix)) < self.model.blocks:
            self.assertLess(time.monotonic(), until, "the array goes on but is not used")
        self.assert_run(self.model.restore(cache), PREFIX)

    def test_an_array_killed_between_two_blocks_leaves_an_exact_continuation(self):
        cache = self.saved()

        def kill(index, _buffer):
            if index == 0:
                self.backend.array.kill()
        run = self.model.restore(cache, verified=kill)
        self.assertTrue(run.exact)
        self.assertIn(run.restored.restored_tokens, (PREFIX // 2, PREFIX))
        self.backend_is_back(cache)
        self.assert_run(self.model.restore(cache), PREFIX)

    def test_the_bytes_come_from_the_drives(self):
        self.saved().close()
        cache = self.restarted()
        before = stat(KVOF, self.backend.target)["device_read_bytes"]
        self.assert_run(self.model.restore(cache), PREFIX)
        after = stat(KVOF, self.backend.target)["device_read_bytes"]
        self.assertGreaterEqual(after - before, self.model.size * self.model.blocks)


@unittest.skipIf(NO_MODEL, NO_MODEL)
class Blocks(unittest.TestCase):
    """What the engine must be for all this to hold; no store in it."""

    def setUp(self):
        self.model = loaded()

    def bytes_of(self, tokens):
        engine, out = self.model.engine, []
        engine.clear()
        engine.prefill(tokens, 0)
        for i in range(len(tokens) // engine.block_tokens):
            block = bytearray(self.model.size)
            self.assertEqual(engine.block_out(i, block), len(block))
            out.append(bytes(block))
        return out

    def test_a_block_has_the_same_bytes_whichever_prompt_it_came_from(self):
        tokens = self.model.engine.tokenize(long_text())[:768]
        other = tokens[:512] + tokens[:256]
        short, long, turned = (self.bytes_of(t) for t in (tokens[:256], tokens, other))
        self.assertEqual(short[0], long[0])
        self.assertEqual(long[:2], turned[:2])
        self.assertNotEqual(long[2], turned[2])

    def test_a_block_of_wrong_length_is_refused_by_the_engine(self):
        engine = self.model.engine
        engine.clear()
        with self.assertRaises(EngineError):
            engine.block_in(0, bytearray(self.model.copies[0][:-1]))
        restore_from_memory(engine, self.model.prefix, self.model.copies)
        with self.assertRaises(EngineError):
            engine.block_out(0, bytearray(self.model.size - 1))

    def test_a_batch_too_long_or_empty_is_refused(self):
        for n in (0, BATCH + 1):
            with self.assertRaises(ValueError):
                self.model.engine.decode([1] * n, 0)

    def test_the_identity_names_everything_that_changes_bytes(self):
        self.assertEqual(sorted(self.model.identity),
                         ["engine", "flags", "kv_dtype", "layout", "model", "weights"])


@unittest.skipIf(NO_MODEL, NO_MODEL)
class SlidingWindow(unittest.TestCase):
    def test_a_sliding_window_model_restored_past_its_window_is_exact(self):
        try:
            model = Loaded("gemma3", 768)
        except FileNotFoundError as e:
            self.skipTest(str(e))
        self.addCleanup(model.engine.close)
        run = model.run("ram", lambda: restore_from_memory(model.engine, model.prefix, model.copies))
        self.assertTrue(run.exact)


if __name__ == "__main__":
    unittest.main()
