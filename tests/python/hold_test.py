# SPDX-License-Identifier: Apache-2.0
"""kvof.Cache: groups, pins, hints, flush, events, flags, restores; in DRAM alone."""

import errno
import gc
import os
import sys
import time
import unittest
import warnings

from kvof import Cache

MODEL = {"model": "demo", "kv_dtype": "f16"}
BYTES = 4000


def dram(**kw) -> Cache:
    kw = {"model": MODEL, "block_tokens": 4, "dram_bytes": 64 << 10, **kw}
    return Cache(None, **kw)


class Hold(unittest.TestCase):
    def test_a_pinned_block_outlives_what_would_evict_it(self):
        with dram() as c:
            keys = c.keys_of([f"{n}" for n in range(60)])
            c.pin(keys[:2])
            for key in keys:
                c.write([key], [bytes(BYTES)])
            self.assertEqual(c.match(keys[:3]), 2)
            self.assertEqual(c.stats()["pinned_blocks"], 2)
            c.unpin(keys[:2])
            with self.assertRaises(ValueError):
                c.unpin(keys[:1])
            with self.assertRaises(ValueError):
                c.pin([b"short"])

    def test_a_block_with_an_end_is_not_served_after_it(self):
        with dram() as c:
            keys = c.keys_of(["a", "b"])
            c.write(keys, [b"1", b"2"])
            c.hint(keys, priority=10)
            c.hint(keys[1:], ttl_s=1e-9)
            until = time.monotonic() + 10
            while c.match(keys) != 1 and time.monotonic() < until:
                pass
            self.assertEqual(c.match(keys), 1)
            self.assertEqual(c.read(keys, [bytearray(1), bytearray(1)])[1].reason, "absent")
            for wrong in (101, -101):
                with self.assertRaises(ValueError):
                    c.hint(keys, priority=wrong)

    def test_groups_agree_on_one_prefix(self):
        with dram() as c:
            full = c.keys_of([f"f{n}" for n in range(6)])
            window = c.keys_of([f"w{n}" for n in range(6)])
            c.write(full, [b"x"] * 6)
            c.write(window[2:5], [b"y"] * 3)
            self.assertEqual(c.match_groups([(full, 0), (window, 2)]), 5)
            self.assertEqual(c.match_groups([(full, 0), (window, 0)]), 0)
            self.assertEqual(c.match_groups([(full, 0)]), 6)
            for wrong in ([], [(full, 0)] * 17, [(full, 0), (window[:2], 0)]):
                with self.assertRaises(ValueError):
                    c.match_groups(wrong)
            with self.assertRaises(OverflowError):
                c.match_groups([(full, -1)])

    def test_events_tell_what_came_and_went(self):
        with dram(events=10) as c:
            keys = c.keys_of(["a", "b"])
            self.assertEqual(c.events(), ([], 0))
            c.write(keys, [b"1", b"2"])
            c.delete(keys[:1])
            events, lost = c.events()
            self.assertEqual((sorted(events[:2]), lost),
                             (sorted((k, "dram", True) for k in keys), 0))
            self.assertEqual(events[2:], [(keys[0], "dram", False)])
            c.write(c.keys_of([f"{n}" for n in range(12)]), [b"x"] * 12)
            self.assertEqual((len(c.events()[0]), c.events()[1]), (10, 0))
            self.assertEqual(c.stats()["events_lost"], 2)
        with dram() as c:
            with self.assertRaises(ValueError):
                c.events()

    def test_flush_and_flags(self):
        with dram() as c:
            keys = c.keys_of(["a"])
            c.write_async(keys, [b"1"], unordered=True)
            c.flush(5.0)
            while not c.drain(1.0):
                pass
            c.read_async(keys, [bytearray(1)], skip_read=True)
            got = []
            while not got:
                got = c.drain(1.0)
            self.assertEqual(got[0].reason, "absent")
            with self.assertRaises(ValueError):
                c.write_async(keys, [b"1"], skip_write=True, wait_all=True)


class Restores(unittest.TestCase):
    def saved(self, c, count, size=BYTES):
        keys = c.keys(range(4 * count))
        values = [os.urandom(size) for _ in keys]
        self.assertEqual({r.reason for r in c.write(keys, values)}, {"ok"})
        return keys, values

    def test_a_prefix_comes_back_layer_by_layer(self):
        with dram(dram_bytes=1 << 20, layers=4) as c:
            keys, values = self.saved(c, 10)
            rooms = [bytearray(BYTES) for _ in keys]
            with c.restore(keys, rooms, load_all=True, deadline_s=5.0) as r:
                seen = []
                while not any(e.request for e in seen):
                    seen += c.drain(1.0)
                trace = r.end()
            self.assertEqual([e.index for e in seen if e.layer], [0, 1, 2, 3])
            self.assertTrue(all(e.batch == r.request and e.bytes == 10 for e in seen
                                if e.layer or e.request))
            self.assertEqual([bytes(b) for b in rooms], values)
            self.assertEqual((trace["usable"], trace["loaded"], trace["reason"]), (10, 10, "ok"))
            self.assertEqual(trace["bytes"]["dram"], 10 * BYTES)
            self.assertEqual(r.end(), trace)

    def test_layers_of_different_size_are_told_in_their_order(self):
        with dram(dram_bytes=1 << 20, layers=[100, 3000, 1, 899]) as c:
            keys, values = self.saved(c, 5)
            k, v = bytearray(1500), bytearray(2500)      # K and V apart, across layers
            rooms = [[k, v]] + [bytearray(BYTES) for _ in keys[1:]]
            with c.restore(keys, rooms, load_all=True) as r:
                seen = []
                while not any(e.request for e in seen):
                    seen += c.drain(1.0)
            self.assertEqual([(e.index, e.bytes) for e in seen if e.layer],
                             [(n, 5) for n in range(4)])
            self.assertEqual([bytes(k + v)] + [bytes(b) for b in rooms[1:]], values)

    def test_a_hole_ends_the_usable_prefix(self):
        with dram(dram_bytes=1 << 20) as c:
            keys, values = self.saved(c, 6)
            c.delete(keys[4:5])
            rooms = [bytearray(BYTES) for _ in keys]
            with c.restore(keys, rooms, load_all=True) as r:
                while r.next(1.0)[0] != "done":
                    pass
                trace = r.end()
            self.assertEqual((trace["usable"], trace["loaded"]), (4, 4))
            self.assertEqual([bytes(b) for b in rooms[:4]], values[:4])
            while c.drain(0.0):
                pass

    def test_from_both_ends_the_engine_gets_steps_until_done(self):
        with dram(dram_bytes=1 << 20) as c:
            keys, values = self.saved(c, 8)
            rooms = [bytearray(BYTES) for _ in keys]
            with c.restore(keys, rooms, ends=True, prefill_tokens_per_s=1e5) as r:
                computed = 0
                while True:
                    act, first, count, usable = r.next(1.0)
                    if act == "done":
                        break
                    if act == "compute":
                        self.assertEqual(first, computed)
                        computed += count
                        r.computed(first, count, 1e-4)
                self.assertEqual(usable, 8)
                self.assertEqual([bytes(b) for b in rooms[computed:]], values[computed:])
                self.assertEqual(r.end()["computed"], computed)

    def test_its_buffers_are_held_until_its_end_and_numbers_are_checked(self):
        with dram(dram_bytes=1 << 20) as c:
            keys, _ = self.saved(c, 2)
            rooms = [bytearray(BYTES) for _ in keys]
            before = [sys.getrefcount(b) for b in rooms]
            r = c.restore(keys, rooms, load_all=True)
            with self.assertRaises(BufferError):
                rooms[0].clear()
            r.end()
            gc.collect()
            self.assertEqual([sys.getrefcount(b) for b in rooms], before)
            rooms[0].clear()
            for call in (lambda: c._restore_next(12345, 0), lambda: c._restore_end(12345),
                         lambda: c._restore_computed(12345, 0, 1, 1),
                         lambda: c.restore([], []), lambda: c.restore(keys, [bytearray(1)] * 2,
                                                                      priority=1000)):
                with self.assertRaises(ValueError):
                    call()

    def test_a_restore_dropped_without_its_end_gives_its_place_back(self):
        with dram() as c:
            keys = c.keys_of(["a", "b"])
            c.write(keys, [b"1", b"2"])
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for _ in range(300):         # 256 may be begun and not ended
                    c.restore(keys, [bytearray(1), bytearray(1)], load_all=True, deadline_s=5.0)
                    c.drain()
                gc.collect()
            self.assertEqual(len(said), 300)
            self.assertIn("dropped without end()", str(said[0].message))
            rooms = [bytearray(1), bytearray(1)]
            dropped = c.restore(keys, rooms, deadline_s=5.0)
            with self.assertRaises(BufferError):
                rooms[0].append(1)           # the cache may write there
            with self.assertWarns(ResourceWarning):
                del dropped
            rooms[0].append(1)
            late = c.restore(keys, [bytearray(1), bytearray(1)], deadline_s=5.0)
        del late                             # the cache has closed: nothing to end, nothing said

    def test_a_prefetch_is_a_hint_without_a_result(self):
        with dram(dram_bytes=1 << 20) as c:
            keys, _ = self.saved(c, 2)
            c.cancel(c.prefetch(keys, 1.0))
            self.assertEqual(c.drain(0.0), [])
        with self.assertRaises(BrokenPipeError) as e:
            c.prefetch(keys)
        self.assertEqual(e.exception.errno, errno.ESHUTDOWN)


if __name__ == "__main__":
    unittest.main()
