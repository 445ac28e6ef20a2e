# SPDX-License-Identifier: Apache-2.0
"""kvof.lmcache.Connector without LMCache: what its adapter relies on, called as it calls."""

import ctypes
import gc
import logging
import os
import random
import select
import signal
import socket
import threading
import time
import types
import unittest
import weakref
from pathlib import Path

from kvof import Refused, _kvof
from kvof.lmcache import PARAMS, Connector, Piece, Task

from array_serve import Array, quiet

KEY = "org/model-7b@03000201@0@"          # as LMCache makes them: model, ranks, group, hash


def keys(n, first=0, salt=""):
    return [f"{KEY}{i:064x}{'@' + salt if salt else ''}" for i in range(first, first + n)]


def finish(c, *futures, timeout_s=20.0):
    """Polls and drains as LMCache's thread does. The answers, by future."""
    poller, got, end = select.poll(), {}, time.monotonic() + timeout_s
    poller.register(c.event_fd(), select.POLLIN)
    while not set(futures) <= set(got):
        if not poller.poll(max(0, int((end - time.monotonic()) * 1000))):
            raise TimeoutError(f"{set(futures) - set(got)} not answered")
        for future, ok, why, bools in c.drain_completions():
            assert future not in got, "told twice"
            got[future] = (ok, why, bools)
    return [got[f] for f in futures] if len(futures) > 1 else got[futures[0]]


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.text = []

    def emit(self, record):
        self.text.append(record.getMessage())


class Memory(unittest.TestCase):
    """Over DRAM alone."""

    def setUp(self):
        self.lines = Lines()
        log = logging.getLogger("kvof.lmcache")
        log.addHandler(self.lines)
        log.propagate = False
        self.addCleanup(log.removeHandler, self.lines)
        self.c = Connector(dram="60MiB")
        self.addCleanup(self.c.close)

    def test_what_was_set_is_got_and_each_key_has_its_own_answer(self):
        names = keys(4)
        values = [os.urandom(n) for n in (1, 4096, 70000)]
        self.assertEqual(finish(self.c, self.c.submit_batch_set(names[:3], values)),
                         (True, "", [True] * 3))
        self.assertEqual(finish(self.c, self.c.submit_batch_exists(names[::-1]))[2],
                         [False, True, True, True])
        rooms = [bytearray(len(v)) for v in values] + [bytearray(9)]
        ok, why, bools = finish(self.c, self.c.submit_batch_get(names, rooms))
        self.assertEqual((ok, why, bools), (True, "absent (1)", [True, True, True, False]))
        self.assertEqual([bytes(r) for r in rooms[:3]], values)
        self.assertEqual(finish(self.c, self.c.submit_batch_delete(names))[2],
                         [True, True, True, False])
        self.assertEqual(finish(self.c, self.c.submit_batch_exists(names))[2], [False] * 4)

    def test_a_value_of_another_length_is_never_handed_over(self):
        name = keys(1)
        finish(self.c, self.c.submit_batch_set(name, [b"x" * 1000]))
        for room in (999, 1001, 4096):
            self.assertEqual(finish(self.c, self.c.submit_batch_get(name, [bytearray(room)]))[1:],
                             ("short (1)" if room < 1000 else "of another length (1)", [False]))
        self.assertEqual(finish(self.c, self.c.submit_batch_get(name, [bytearray(1000)]))[2], [True])

    def test_names_of_any_length_and_alphabet_are_kept_apart(self):
        names = ["", "a", "a" * 5000, "a" * 5001, "模型@0@0@ff", keys(1)[0], keys(1, salt="alice")[0],
                 keys(1, salt="bob")[0]]
        values = [bytes([65 + i]) * 10 for i in range(len(names))]
        self.assertTrue(finish(self.c, self.c.submit_batch_set(names, values))[0])
        rooms = [bytearray(10) for _ in names]
        self.assertEqual(finish(self.c, self.c.submit_batch_get(names, rooms))[2],
                         [True] * len(names))
        self.assertEqual([bytes(r) for r in rooms], values)

    def test_a_second_set_of_a_key_is_fine_and_the_first_value_stays(self):
        name, room = keys(1), bytearray(5)
        for value in (b"first", b"other"):
            self.assertEqual(finish(self.c, self.c.submit_batch_set(name, [value])),
                             (True, "", [True]))
        finish(self.c, self.c.submit_batch_get(name, [room]))
        self.assertEqual(room, b"first")

    def test_operations_on_one_key_keep_the_order_of_their_submits(self):
        name = keys(1)
        rooms = [bytearray(1 << 20) for _ in range(3)]
        a = [self.c.submit_batch_set(name, [b"1" * (1 << 20)]), self.c.submit_batch_get(name, rooms[:1]),
             self.c.submit_batch_delete(name), self.c.submit_batch_get(name, rooms[1:2]),
             self.c.submit_batch_set(name, [b"2" * (1 << 20)]), self.c.submit_batch_get(name, rooms[2:])]
        self.assertEqual([r[2][0] for r in finish(self.c, *a)], [True, True, True, False, True, True])
        self.assertEqual((rooms[0][:1], rooms[2][:1]), (b"1", b"2"))

    def test_a_batch_larger_than_what_may_be_in_flight_is_answered_whole(self):
        names = keys(20000)
        f = self.c.submit_batch_set(names[::2], [n.encode() for n in names[::2]])
        g = self.c.submit_batch_exists(names)
        rooms = [bytearray(len(n)) for n in names]
        h = self.c.submit_batch_get(names, rooms)
        stored, there, got = finish(self.c, f, g, h)
        self.assertTrue(stored == (True, "", [True] * 10000), stored[:2])
        self.assertTrue(there[2] == [i % 2 == 0 for i in range(20000)], there[:2])
        self.assertTrue(got[2] == there[2], got[:2])
        self.assertTrue(all(r == n.encode() for r, n in list(zip(rooms, names))[::2]))

    def test_more_batches_than_may_be_in_flight_are_all_answered(self):
        names = keys(1000)
        futures = [self.c.submit_batch_set([n], [n.encode()]) for n in names]
        self.assertEqual(len(set(futures)), 1000)
        self.assertTrue(all(r == (True, "", [True]) for r in finish(self.c, *futures)))

    def test_what_is_wrong_with_a_batch_is_answered_and_never_raised(self):
        names, room = keys(2), bytearray(4)
        get, put = self.c.submit_batch_get, self.c.submit_batch_set
        for call, some, buffers, text in ((get, names, [room], "1 buffers"),
                                          (get, names, [room, b"xxxx"], "not writable"),
                                          (put, [1, 2], [room, room], "int"),
                                          (put, names, [room, None], "NoneType")):
            ok, why, bools = finish(self.c, call(some, buffers))
            self.assertIn(text, why)
            self.assertEqual(bools, [False, False])
        self.assertEqual(finish(self.c, self.c.submit_batch_exists([]))[2], [])
        self.assertEqual(finish(self.c, self.c.submit_batch_set(names, [b"a", b"b"]))[0], True)
        self.assertTrue(any("1 buffers" in line for line in self.lines.text), self.lines.text)

    def test_absent_keys_are_no_trouble_for_the_log(self):
        finish(self.c, self.c.submit_batch_exists(keys(10)))
        finish(self.c, self.c.submit_batch_get(keys(10), [bytearray(1)] * 10))
        self.assertEqual(self.lines.text, [])

    def test_the_descriptor_is_quiet_when_nothing_is_to_be_drained(self):
        poller = select.poll()
        poller.register(self.c.event_fd(), select.POLLIN)
        for start in (lambda: self.c.submit_batch_exists([]),
                      lambda: self.c.submit_batch_exists(keys(3)),
                      lambda: self.c.submit_batch_get(keys(1), [])):
            finish(self.c, start())
            end = time.monotonic() + 10
            while poller.poll(0) and time.monotonic() < end:
                self.assertEqual(self.c.drain_completions(), [])
            self.assertEqual(poller.poll(0), [])

    def test_a_buffer_lives_as_long_as_its_batch(self):
        class Page(bytearray):
            pass
        freed = []
        room = Page(b"v" * 100000)
        ref = weakref.finalize(room, freed.append, 1)
        future = self.c.submit_batch_set(keys(1), [memoryview(room)])
        del room
        gc.collect()
        self.assertEqual(freed, [])
        finish(self.c, future)
        gc.collect()
        self.assertEqual(freed, [1])
        self.assertFalse(ref.alive)

    def test_views_as_lmcache_makes_them_are_taken(self):
        raw = (ctypes.c_ubyte * 5000)(*([7] * 5000))
        room = (ctypes.c_ubyte * 5000)()
        finish(self.c, self.c.submit_batch_set(keys(1), [memoryview(raw)]))
        self.assertEqual(finish(self.c, self.c.submit_batch_get(keys(1), [memoryview(room)]))[2], [True])
        self.assertEqual(bytes(room), bytes(raw))

    def test_several_threads_submit_while_one_drains(self):
        seed = int(os.environ.get("KVOF_SEED", "7"))
        wrong, want = [], {}
        held = threading.Condition()

        def drain():
            poller = select.poll()
            poller.register(self.c.event_fd(), select.POLLIN)
            while not over:
                poller.poll(50)
                for future, ok, why, bools in self.c.drain_completions():
                    with held:
                        want[future] = bools
                        held.notify_all()

        def work(number):
            rng = random.Random(seed + number)
            for turn in range(60):
                names = keys(rng.randrange(1, 20), number * 100000 + turn * 100)
                data = [os.urandom(rng.randrange(1, 3000)) for _ in names]
                rooms = [bytearray(len(d)) for d in data]
                f = self.c.submit_batch_set(names, data)
                g = self.c.submit_batch_get(names, rooms)
                with held:
                    if not held.wait_for(lambda: f in want and g in want, 30):
                        wrong.append("not answered")
                        return
                if not all(want[f]) or not all(want[g]) or [bytes(r) for r in rooms] != data:
                    wrong.append((number, turn))
        over = []
        drainer = threading.Thread(target=drain)
        workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in (drainer, *workers):
            t.start()
        for t in workers:
            t.join()
        over.append(1)
        drainer.join()
        self.assertEqual(wrong, [])

    def test_descriptors_are_given_back_by_close_and_afterwards_nothing_happens(self):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            c = Connector(dram="1MiB")
            finish(c, c.submit_batch_set(keys(1), [b"x"]))
            c.close()
            c.close()
            self.assertIsInstance(c.submit_batch_get(keys(1), [bytearray(1)]), int)
            self.assertEqual(c.drain_completions(), [])
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)


class Pieces(unittest.TestCase):
    """What a result of libkvof does to a batch, without libkvof."""

    def result(self, index, reason="ok", busy=False, released=False, size=10):
        return types.SimpleNamespace(index=index, ok=reason == "ok" and not released, reason=reason,
                                     busy=busy, released=released, bytes=size)

    def test_a_batch_is_not_over_while_a_buffer_of_it_is_busy(self):
        task = Task(7, _kvof.LOAD, 3)
        task.sizes = [10, 10, 10]
        piece = Piece(task, 1, 0, [b"a", b"b"], None)
        self.assertFalse(piece.take(self.result(0, "late", busy=True)))
        self.assertFalse(piece.take(self.result(1)))
        self.assertTrue(piece.take(self.result(0, "released", released=True)))
        self.assertEqual(task.answer(), (7, True, "late (1)", [False, False, True]))

    def test_a_release_may_come_before_the_last_result(self):
        task = Task(7, _kvof.SAVE, 2)
        piece = Piece(task, 0, 0, [b"a", b"b"], None)
        self.assertFalse(piece.take(self.result(0, "late", busy=True)))
        self.assertFalse(piece.take(self.result(0, "released", released=True)))
        self.assertTrue(piece.take(self.result(1)))
        self.assertEqual(task.answer(), (7, False, "late (1)", [False, True]))


class Options(unittest.TestCase):
    def test_an_unknown_option_is_refused_and_the_nearest_is_named(self):
        for name, near in (("targt", "'target'"), ("dram_bytes", "'dram'"), ("xyzzy", "known are")):
            with self.assertRaises(ValueError) as e:
                Connector(**{name: "1GiB", "dram": "1MiB"})
            self.assertIn(repr(name), str(e.exception))
            self.assertIn(near, str(e.exception))

    def test_a_wrong_value_is_refused_and_named(self):
        for name, value in (("dram", 5), ("dram", "5"), ("dram", "-1MiB"), ("dram", "1MB"),
                            ("load", "5"), ("load", 5), ("load", "soon"), ("queues", "4"),
                            ("queues", True), ("strict", 1), ("model", "x"), ("target", 4420),
                            ("part", "1KiB"), ("part", "1TiB"), ("depth", 1 << 40),
                            ("flash", "/x"), ("second_touch", ["dram"]), ("policy", "best")):
            with self.assertRaises((ValueError, OverflowError)) as e:
                Connector(**{"dram": "1MiB", "target": "tcp://127.0.0.1:1", "strict": False,
                             name: value})
            self.assertNotEqual(str(e.exception), "")
        with self.assertRaises(ValueError) as e:
            Connector()
        self.assertIn("names no target", str(e.exception))

    def test_an_array_that_is_not_there_is_told_with_what_to_do(self):
        with self.assertRaises(OSError) as e:
            Connector(target="tcp://127.0.0.1:1", load="1s")
        self.assertIn("kvof serve", str(e.exception))
        c = quiet(Connector, target="tcp://127.0.0.1:1", load="1s", strict=False)
        self.addCleanup(c.close)
        self.assertEqual(finish(c, c.submit_batch_exists(keys(2)))[2], [False, False])

    def test_every_option_is_described(self):
        text = (Path(__file__).resolve().parents[2] / "docs" / "lmcache.md").read_text()
        for name in PARAMS:
            self.assertIn(f"| `{name}` |", text)


class Arrays(unittest.TestCase):
    """Over an array on loopback."""

    def setUp(self):
        self.array = Array()
        self.addCleanup(self.array.stop)
        log = logging.getLogger("kvof.lmcache")
        self.lines = Lines()
        log.addHandler(self.lines)
        log.propagate = False
        self.addCleanup(log.removeHandler, self.lines)

    def connector(self, **kw):
        c = Connector(**{"target": self.array.target, "load": "20s", **kw})
        self.addCleanup(c.close)
        return c

    def test_another_process_lifetime_finds_the_objects(self):
        values = [os.urandom(n) for n in (1, 4095, 4 << 20, (9 << 20) + 5)]
        c = self.connector()
        self.assertTrue(finish(c, c.submit_batch_set(keys(4), values))[0])
        c.close()
        c = self.connector()
        self.assertEqual(finish(c, c.submit_batch_exists(keys(5)))[2], [True] * 4 + [False])
        rooms = [bytearray(len(v)) for v in values]
        self.assertEqual(finish(c, c.submit_batch_get(keys(4), rooms))[2], [True] * 4)
        self.assertEqual([bytes(r) for r in rooms], values)

    def test_an_object_of_4_mib_is_one_value_on_the_array(self):
        c = self.connector()
        before = len(self.array.names())
        finish(c, c.submit_batch_set(keys(3), [b"x" * (4 << 20)] * 3))
        self.assertEqual(len(self.array.names()) - before, 3)

    def test_making_dram_is_not_taken_from_the_time_to_reach_the_array(self):
        for left in range(20, 0, -1):       # each: a quarter of a second for 1 GiB, 40 ms to connect
            try:
                self.connector(dram="1GiB", load="40ms").close()
                return
            except OSError:
                if left == 1:
                    raise

    def test_connections_over_loopback_are_not_paced(self):
        c = self.connector()
        finish(c, c.submit_batch_set(keys(1), [b"x"]))
        port, seen = int(self.array.target.split(":")[2].split("/")[0]), []
        for fd in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(fd))) as s:
                    if s.family == socket.AF_INET and s.getpeername()[1] == port:
                        seen.append(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                                    .rstrip(b"\0"))
            except OSError:
                continue                    # no socket, or not connected
        self.assertEqual(set(seen), {b"reno"})

    def test_an_array_of_smaller_values_is_told_with_what_to_do(self):
        small = Array(drives=1, options=("--value-bytes-max", "1MiB"))
        self.addCleanup(small.stop)
        with self.assertRaises(Refused) as e:
            self.connector(target=small.target)
        self.assertIn('"part"', str(e.exception))
        c = self.connector(target=small.target, part="1MiB")
        value, room = os.urandom(4 << 20), bytearray(4 << 20)
        finish(c, c.submit_batch_set(keys(1), [value]))
        finish(c, c.submit_batch_get(keys(1), [room]))
        self.assertTrue(room == value)

    def test_another_model_is_refused_and_the_field_is_named(self):
        c = self.connector(model={"kv_dtype": "bfloat16"})
        finish(c, c.submit_batch_set(keys(1), [b"x" * 100]))
        with self.assertRaises(Refused) as e:
            self.connector(model={"kv_dtype": "fp8"})
        self.assertIn("kv_dtype", str(e.exception))
        self.assertIn("strict", str(e.exception))
        other = quiet(self.connector, model={"kv_dtype": "fp8"}, strict=False)
        self.assertEqual(finish(other, other.submit_batch_exists(keys(1)))[2], [False])

    def test_a_flipped_bit_is_a_miss_of_that_key_alone(self):
        values = [os.urandom(100000) for _ in range(3)]
        c = self.connector()
        finish(c, c.submit_batch_set(keys(3), values))
        c.close()
        self.array.shut_down()
        self.assertEqual(self.array.flip(values[1][50000:50100]), 1)
        self.array.restart()
        c = self.connector()
        rooms = [bytearray(100000) for _ in values]
        ok, why, bools = finish(c, c.submit_batch_get(keys(3), rooms))
        self.assertEqual((why, bools), ("corrupt (1)", [True, False, True]))
        self.assertIn("corrupt (1)", self.lines.text[0])

    def test_after_close_no_byte_of_a_buffer_moves(self):
        values = [os.urandom(1 << 20) for _ in range(64)]
        c = self.connector()
        finish(c, c.submit_batch_set(keys(64), values))
        rooms = [bytearray(1 << 20) for _ in values]
        c.submit_batch_get(keys(64), rooms)
        c.close()
        seen = [bytes(r) for r in rooms]
        d = self.connector()                # as long as another load of the same takes
        again = [bytearray(1 << 20) for _ in values]
        self.assertEqual(finish(d, d.submit_batch_get(keys(64), again))[2], [True] * 64)
        self.assertEqual([bytes(r) for r in rooms], seen)

    def test_an_array_that_hangs_costs_the_deadline_and_the_buffers_are_free_then(self):
        c = self.connector(load="400ms", lookup="400ms")
        finish(c, c.submit_batch_set(keys(4), [bytes([i]) * (1 << 20) for i in range(4)]))
        rooms = [bytearray(1 << 20) for _ in range(4)]
        self.array.process.send_signal(signal.SIGSTOP)
        try:
            got, there = finish(c, c.submit_batch_get(keys(4), rooms), c.submit_batch_exists(keys(4)))
        finally:
            self.array.process.send_signal(signal.SIGCONT)
        self.assertEqual((got[1:], there[2]), (("late (4)", [False] * 4), [False] * 4))
        seen = [bytes(r) for r in rooms]
        self.assertEqual(c._flying, {})
        end = time.monotonic() + 20
        again = [bytearray(1 << 20) for _ in range(4)]
        while finish(c, c.submit_batch_get(keys(4), again))[2] != [True] * 4:
            self.assertLess(time.monotonic(), end)
        self.assertEqual([bytes(r) for r in rooms], seen)

    def test_an_array_lost_is_misses_and_it_is_used_again_when_back(self):
        c = self.connector(load="2s", store="2s")
        finish(c, c.submit_batch_set(keys(2), [b"x" * 5000, b"y" * 5000]))
        self.array.kill()
        rooms = [bytearray(5000), bytearray(5000)]
        begin = time.monotonic()
        self.assertEqual(finish(c, c.submit_batch_get(keys(2), rooms))[2], [False, False])
        self.assertEqual(finish(c, c.submit_batch_set(keys(1, 9), [b"z"]))[0], False)
        self.assertLess(time.monotonic() - begin, 10)
        self.array.restart()
        end = time.monotonic() + 20
        while finish(c, c.submit_batch_get(keys(2), rooms))[2] != [True, True]:
            self.assertLess(time.monotonic(), end)
        self.assertEqual(bytes(rooms[1]), b"y" * 5000)


if __name__ == "__main__":
    unittest.main()
