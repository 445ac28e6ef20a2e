# SPDX-License-Identifier: Apache-2.0
"""The harness without a model and without an array: restore's order, the page, the options."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

from fake import Result
from kvof.llama import __main__ as program
from kvof.llama import report, sharing
from kvof.llama.blocks import Arena, restore, restore_from_memory, save
from kvof.llama.measure import Lengths, Proof, same_bytes
from kvof.llama.text import long_text

BLOCK, SIZE = 4, 8192


class NoteEngine:
    """An engine that notes what it is asked to do; its cache is a list."""

    block_tokens = BLOCK

    def __init__(self):
        self.calls = []

    def block_in(self, index, data):
        self.calls.append(("in", index, data[0]))

    def block_out(self, index, into):
        into[0] = index + 100
        return len(into)

    def prefill(self, tokens, pos):
        self.calls.append(("prefill", pos, len(tokens)))


class NoteCache:
    """Blocks arrive in the order given, with the reasons given; block i's first byte is i + 1."""

    def __init__(self, order, reasons=None, present=None, sizes=None):
        self.order, self.reasons, self.sizes = order, reasons or {}, sizes or {}
        self.present = len(order) if present is None else present
        self.stored = []

    def keys(self, tokens):
        return [bytes([i]) * 32 for i in range(len(tokens) // BLOCK)]

    def match(self, keys):
        return self.present

    def read_async(self, keys, buffers, deadline_s=None):
        self.buffers = buffers
        self.queue = [i for i in self.order if i < len(keys)]
        return 7

    def drain(self, _timeout_s):
        i = self.queue.pop(0)
        self.buffers[i][0] = i + 1
        stale = Result("error", 0, 6, 0)                       # of another batch: not ours
        return [stale, Result(self.reasons.get(i, "ok"), self.sizes.get(i, SIZE), 7, i)]

    def write(self, keys, buffers):
        self.stored += [(k[0], b[0]) for k, b in zip(keys, buffers)]
        return [Result(self.reasons.get(k[0], "ok"), SIZE) for k in keys]


def restored(cache, blocks=4):
    engine = NoteEngine()
    arena = Arena(blocks, SIZE)
    return restore(cache, engine, range(blocks * BLOCK), arena), engine.calls


class Restore(unittest.TestCase):
    def test_blocks_are_handed_over_in_order_whatever_order_they_arrive_in(self):
        out, calls = restored(NoteCache([2, 0, 3, 1]))
        self.assertEqual(calls, [("in", i, i + 1) for i in range(4)])
        self.assertEqual((out.restored_tokens, out.bytes, out.misses), (16, 4 * SIZE, {}))

    def test_a_bad_block_ends_the_prefix_and_the_rest_is_computed(self):
        for bad in range(4):
            out, calls = restored(NoteCache([3, 1, 2, 0], {bad: "corrupt"}))
            self.assertEqual(calls, [("in", i, i + 1) for i in range(bad)]
                             + [("prefill", bad * BLOCK, 16)])
            self.assertEqual((out.restored_tokens, out.misses), (bad * BLOCK, {"corrupt": 1}))

    def test_a_block_of_another_length_is_never_handed_over(self):
        out, calls = restored(NoteCache([0, 1, 2, 3], sizes={1: SIZE - 1}))
        self.assertEqual(calls, [("in", 0, 1), ("prefill", BLOCK, 16)])
        self.assertEqual(out.restored_tokens, BLOCK)

    def test_nothing_matched_is_nothing_asked_and_all_computed(self):
        out, calls = restored(NoteCache([0, 1, 2, 3], present=0))
        self.assertEqual(calls, [("prefill", 0, 16)])
        self.assertEqual(out.misses, {"absent": 4})

    def test_a_shorter_match_is_restored_and_the_rest_computed(self):
        out, calls = restored(NoteCache([0, 1, 2, 3], present=3))
        self.assertEqual(calls[-1], ("prefill", 12, 16))
        self.assertEqual((out.restored_tokens, out.misses), (12, {"absent": 1}))

    def test_memory_hands_over_every_copy_and_computes_nothing(self):
        engine, arena = NoteEngine(), Arena(2, SIZE)
        out = restore_from_memory(engine, range(8), arena.blocks)
        self.assertEqual([c[:2] for c in engine.calls], [("in", 0), ("in", 1)])
        self.assertEqual((out.restored_tokens, out.bytes), (8, 2 * SIZE))

    def test_save_stores_every_block_under_its_own_key(self):
        cache = NoteCache([])
        total, bad = save(cache, NoteEngine(), range(5 * BLOCK), Arena(2, SIZE), window=2)
        self.assertEqual(cache.stored, [(i, i + 100) for i in range(5)])
        self.assertEqual((total, bad), (5 * SIZE, []))

    def test_save_tells_which_blocks_were_not_stored(self):
        cache = NoteCache([], {1: "full"})
        _, bad = save(cache, NoteEngine(), range(3 * BLOCK), Arena(3, SIZE), window=3)
        self.assertEqual([r.reason for r in bad], ["full"])


class Proofs(unittest.TestCase):
    def test_one_bit_of_one_logit_is_a_difference(self):
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        b = a.copy()
        self.assertTrue(same_bytes(a, b))
        b.view(np.uint32)[2, 3] ^= 1
        self.assertFalse(same_bytes(a, b))

    def test_minus_zero_is_not_zero_and_nan_is_itself(self):
        zero, nan = np.zeros(1, np.float32), np.full(1, np.nan, np.float32)
        self.assertFalse(same_bytes(zero, -zero))
        self.assertTrue(same_bytes(nan, nan.copy()))

    def test_every_part_of_a_proof_counts(self):
        def proof():
            return Proof([1, 2], np.ones((2, 3), np.float32), np.ones((4, 3), np.float32))
        self.assertTrue(proof().equals(proof()))
        for spoil in (lambda p: p.tokens.append(3), lambda p: p.steps.__setitem__((1, 1), 2),
                      lambda p: p.rows.__setitem__((3, 2), 2)):
            other = proof()
            spoil(other)
            self.assertFalse(proof().equals(other))

    def test_a_proof_comes_back_from_disk(self):
        with tempfile.TemporaryDirectory() as d:
            p = Proof([5], np.ones((1, 3), np.float32), np.zeros((2, 3), np.float32))
            p.save(Path(d) / "p.npz")
            self.assertTrue(p.equals(Proof.load(Path(d) / "p.npz")))


def shared(ends, loaded, reasons=("exists", "ok"), exact=(True, True)):
    return sharing.rows("M", {"stored": [(e - 1, e) for e in ends], "reasons": list(reasons),
                              "document": {"exact": exact[1], "prefix_tokens": 512, "ttft_s": 1.0},
                              "grown_bytes": 10, "block_bytes": 10},
                        {"loaded": loaded, "tokens": 512, "ttft_s": 0.5}, exact[0])


class Sharing(unittest.TestCase):
    def test_blocks_loaded_before_the_next_was_stored_are_counted(self):
        self.assertEqual(shared([1, 2, 3], [1.5, 2.5, 3.5])[0]["early"], 2)
        self.assertEqual(shared([1, 2, 3], [1.5, 3.1, 3.5])[0]["early"], 1)

    def test_what_is_not_as_promised_is_a_problem(self):
        good = shared([1, 2], [1.5, 2.5])
        self.assertEqual(sharing.problems(good), [])
        for bad in (shared([1, 2], [2.5, 2.6]), shared([1, 2], [1.5, 2.5], ("ok", "ok")),
                    shared([1, 2], [1.5, 2.5], exact=(False, True)),
                    shared([1, 2], [1.5, 2.5], exact=(True, False))):
            self.assertEqual(len(sharing.problems(bad)), 1)
            self.assertEqual(len(sharing.lines(bad, report.seconds, report.mib)), 2)

    def test_the_two_documents_have_the_first_half_in_common_and_nothing_else(self):
        tokens = range(100000)
        (one, tail), (other, tail2) = sharing.documents(tokens, 1024, 64)
        self.assertEqual([len(one), len(tail), len(other), len(tail2)], [1024, 64, 1024, 64])
        self.assertEqual(list(one[:512]), list(other[:512]))
        self.assertFalse(set(one[512:]) & set(other[512:]))
        self.assertFalse(set(one) & set(tokens[:1024]))
        with self.assertRaises(ValueError):
            sharing.documents(range(3000), 1024, 64)


def run(arm, ttft, n=7936, exact=True, **more):
    row = {"arm": arm, "prefix_tokens": n, "ttft_s": ttft, "exact": exact, "match_s": 1e-3,
           "wait_s": 0.05, "verify_s": 0.01, "hand_over_s": 0.01, "recompute_s": 0.0,
           "suffix_s": 0.5, "kv_bytes": 1000, "restored_tokens": n, "misses": {},
           "device_read_bytes": 1000 if arm == "array" else None, "kernel_read_bytes": None}
    return {**row, **more}


def page(*runs):
    return report.rows([{"model": "M", "runs": list(runs)}])


class Page(unittest.TestCase):
    def setUp(self):
        self.runs = [run("recompute", 40.0), run("array", 1.0), run("array", 0.7),
                     run("array", 0.8), run("ram", 0.64)]

    def test_the_sentence_has_the_medians_ratios(self):
        s = report.sentence(page(*self.runs))
        self.assertIn("50.0 times sooner", s)
        self.assertIn("1.25 times what a copy in its own memory", s)
        self.assertIn("exactly the same logits", s)
        self.assertEqual(report.problems(page(*self.runs)), [])

    def test_one_repeat_that_differs_makes_the_page_say_not_exact(self):
        self.runs[2]["exact"] = False
        table = page(*self.runs)
        self.assertIn("not exact", report.sentence(table))
        self.assertIn("not exact", report.text_table(table))
        self.assertIn("not exact", report.markdown(table, []))
        self.assertIn("not exact", report.problems(table)[0])

    def test_an_exactness_that_was_not_taken_is_not_exact(self):
        self.runs[4]["exact"] = None
        self.assertIn("not exact", report.sentence(page(*self.runs)))

    def test_fewer_bytes_at_the_drives_than_the_kv_has_fail_the_run(self):
        self.runs[3]["device_read_bytes"] = 999
        self.assertIn("did not come from the drives", report.problems(page(*self.runs))[0])
        self.runs[3].update(device_read_bytes=1000, kernel_read_bytes=999)
        self.assertIn("did not come from the drives", report.problems(page(*self.runs))[0])
        self.runs[3].update(device_read_bytes=None)
        self.assertIn("did not tell", report.problems(page(*self.runs))[0])

    def test_a_partly_recomputed_restore_fails_the_run_and_names_the_reason(self):
        self.runs[1].update(restored_tokens=512, misses={"late": 3})
        self.assertIn("late", report.problems(page(*self.runs))[0])

    def test_run_json_keeps_its_contract(self):
        with tempfile.TemporaryDirectory() as d:
            path = Path(d) / "x" / "run.json"
            report.write_json(path, page(*self.runs))
            got = json.loads(path.read_text())
        self.assertEqual([(e["model"], e["prefix_tokens"], e["arm"], e["ttft_s"], e["exact"])
                          for e in got],
                         [("M", 7936, "recompute", [40.0], True),
                          ("M", 7936, "array", [1.0, 0.7, 0.8], True),
                          ("M", 7936, "ram", [0.64], True)])

    def test_the_section_is_replaced_not_repeated(self):
        with tempfile.TemporaryDirectory() as d:
            path = Path(d) / "benchmarks.md"
            path.write_text("# Benchmarks\n\nbefore\n")
            for about in ("one", "two"):
                report.put_section(path, report.markdown(page(*self.runs), [about]))
            path.write_text(path.read_text() + "\n## After\n")
            report.put_section(path, report.markdown(page(*self.runs), ["three"]))
            text = path.read_text()
        self.assertEqual(text.count(report.BEGIN), 1)
        self.assertEqual([w in text for w in ("before", "- one", "- two", "- three", "## After")],
                         [True, False, False, True, True])

    def test_times_have_units(self):
        self.assertEqual([report.seconds(s) for s in (0, 5e-6, 0.0123, 0.25, 37.06)],
                         ["0.00 us", "5.00 us", "12.3 ms", "250 ms", "37.1 s"])


class Text(unittest.TestCase):
    def test_the_text_is_long_and_the_same_again(self):
        self.assertGreater(len(long_text()), 100_000)
        self.assertEqual(long_text(), long_text())

    def test_no_texts_is_an_error_that_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as d, self.assertRaisesRegex(FileNotFoundError, "base-"):
            long_text(Path(d))

    def test_a_prompt_longer_than_the_text_is_refused(self):
        lengths = Lengths(list(range(600)), 64)
        self.assertEqual(lengths.prompt(512), (list(range(512)), list(range(512, 576))))
        with self.assertRaises(ValueError):
            lengths.prompt(768)


class Options(unittest.TestCase):
    def refused(self, *argv):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as e:
            program.arguments(list(argv))
        self.assertEqual(e.exception.code, 2)
        return err.getvalue()

    def test_wrong_options_are_refused_with_code_2(self):
        self.assertIn("multiple of 256", self.refused("--prefix", "500"))
        self.assertIn("multiple of 256", self.refused("--prefix", "0"))
        self.assertIn("--nonsense", self.refused("--nonsense"))
        self.assertIn("not allowed", self.refused("--short", "--full"))
        self.assertIn("1 to 512", self.refused("--suffix", "0"))

    def test_short_is_the_default_and_full_is_ten_repeats_of_two_models(self):
        short, full = program.arguments([]), program.arguments(["--full"])
        self.assertEqual((short.model, short.prefix), (["smollm2"], [512, 2048, 7936]))
        self.assertEqual((full.model, full.repeats), (["smollm2", "gemma3"], 10))

    def test_no_program_is_one_line_and_code_1(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertEqual(program.main(["--kvof", "/nonexistent/kvof"]), 1)
        self.assertEqual(err.getvalue().count("\n"), 1)
        self.assertIn("/nonexistent/kvof", err.getvalue())


if __name__ == "__main__":
    unittest.main()
