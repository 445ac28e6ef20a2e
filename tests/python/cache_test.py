# SPDX-License-Identifier: Apache-2.0
"""kvof.Cache without an array: keys, buffers, threads, forks, errors."""

import array
import doctest
import errno
import gc
import mmap
import os
import select
import signal
import sys
import threading
import time
import unittest

import kvof
import kvof.cache
from kvof import Cache, Refused, Result

MODEL = {"model": "demo", "kv_dtype": "f16"}


def dram(**kw) -> Cache:
    kw = {"model": MODEL, "block_tokens": 4, "dram_bytes": 16 << 20, **kw}
    return Cache(None, **kw)


class Keys(unittest.TestCase):
    def test_keys_are_chained_and_a_tail_has_none(self):
        with dram() as c:
            keys = c.keys(range(11))
            self.assertEqual([len(k) for k in keys], [32, 32])
            self.assertEqual(c.keys(range(4, 8), keys[0]), keys[1:])
            self.assertNotEqual(c.keys(range(4, 8)), keys[1:])
            self.assertEqual(c.keys([]), [])

    def test_names_of_an_engine_become_keys_in_one_call(self):
        with dram() as c:
            names = ["a", b"b", "\u00e9", bytearray(b"b")]
            self.assertEqual(c.keys_of(names), [c.key_of(b"a"), c.key_of(b"b"),
                                                c.key_of("\u00e9".encode()), c.key_of(b"b")])
            self.assertEqual(c.keys_of([]), [])
            with self.assertRaises(TypeError):
                c.keys_of([1])

    def test_tokens_in_any_form_give_the_same_keys(self):
        tokens = [5, -1, 2 ** 31 - 1, 0]
        with dram() as c:
            want = c.keys(tokens)
            self.assertEqual(c.keys(tuple(tokens)), want)
            self.assertEqual(c.keys(array.array("i", tokens)), want)
            self.assertEqual(c.keys(array.array("q", tokens)), want)
            self.assertEqual(c.keys(memoryview(array.array("i", tokens))), want)

    def test_a_key_depends_on_every_field_of_the_model(self):
        seen = set()
        for model in (MODEL, {**MODEL, "kv_dtype": "q8"}, {**MODEL, "layout": "x"},
                      {"model": "demo2", "kv_dtype": "f16"}):
            with dram(model=model) as c:
                seen.add(c.keys(range(4))[0])
        with dram(block_tokens=2) as c:
            seen.add(c.keys(range(2))[0])
        self.assertEqual(len(seen), 5)

    def test_the_same_model_in_another_order_gives_the_same_keys(self):
        with dram() as a, dram(model=dict(reversed(MODEL.items()))) as b:
            self.assertEqual(a.keys(range(8)), b.keys(range(8)))

    def test_key_of_takes_any_bytes(self):
        with dram() as c:
            names = [b"", b"a", b"a" * 300, bytearray(b"ab"), memoryview(b"abc")]
            self.assertEqual(len({c.key_of(n) for n in names}), 5)
            self.assertEqual(c.key_of(b"a"), c.key_of(bytearray(b"a")))


class Blocks(unittest.TestCase):
    def test_what_was_written_is_read_into_the_callers_memory(self):
        with dram() as c:
            keys = c.keys(range(16))
            values = [os.urandom(n) for n in (0, 1, 4097, 70000)]
            self.assertEqual([r.reason for r in c.write(keys, values)], ["ok"] * 4)
            rooms = [bytearray(len(v)) for v in values]
            results = c.read(keys, rooms)
            self.assertEqual([r.index for r in results], [0, 1, 2, 3])
            self.assertEqual([r.bytes for r in results], [len(v) for v in values])
            self.assertTrue(all(r.ok and r.tier == "dram" for r in results))
            self.assertEqual([bytes(r) for r in rooms], values)

    def test_any_writable_buffer_will_do(self):
        value = os.urandom(4096)
        with dram() as c:
            keys = c.keys(range(4))
            c.write(keys, [value])
            room = mmap.mmap(-1, 8192)
            view = memoryview(room)[100:4196]
            self.assertTrue(c.read(keys, [view])[0].ok)
            self.assertEqual(room[100:4196], value)
            view.release()
            room.close()               # nothing holds it any more
            floats = array.array("d", bytes(4096))
            self.assertTrue(c.read(keys, [floats])[0].ok)
            self.assertEqual(floats.tobytes(), value)

    def test_a_block_may_lie_in_several_pieces(self):
        with dram() as c:
            keys = c.keys(range(4))
            self.assertTrue(c.write(keys, [[b"abc", b"", b"defg"]])[0].ok)
            a, b = bytearray(2), bytearray(5)
            self.assertTrue(c.read(keys, [(a, b)])[0].ok)
            self.assertEqual(bytes(a + b), b"abcdefg")

    def test_a_second_write_is_ok_and_says_exists(self):
        with dram() as c:
            keys = c.keys(range(4))
            c.write(keys, [b"one"])
            r = c.write(keys, [b"two"])[0]
            self.assertEqual((r.ok, r.reason), (True, "exists"))
            room = bytearray(3)
            c.read(keys, [room])
            self.assertEqual(room, b"one")

    def test_a_small_room_is_short_with_the_true_length(self):
        with dram() as c:
            keys = c.keys(range(4))
            c.write(keys, [b"x" * 100])
            room = bytearray(99)
            r = c.read(keys, [room])[0]
            self.assertEqual((r.ok, r.reason, r.bytes), (False, "short", 100))

    def test_match_exists_and_delete(self):
        with dram() as c:
            keys = c.keys(range(16))
            c.write(keys[:3], [b"a", b"b", b"c"])
            self.assertEqual(c.match(keys), 3)
            self.assertEqual(c.match([]), 0)
            self.assertEqual([r.reason for r in c.delete([keys[1], keys[3]])], ["ok", "absent"])
            self.assertEqual(c.match(keys), 1)
            self.assertEqual(c.exists(keys), [True, False, True, False])
            c.unlease(keys)

    def test_async_results_come_through_fd_and_drain(self):
        with dram() as c:
            keys = c.keys(range(400))
            values = [os.urandom(500) for _ in keys]
            w = c.write_async(keys, values)
            self.assertEqual(len(self.all_of(c, w, 100)), 100)
            rooms = [bytearray(500) for _ in keys]
            r = c.read_async(keys, rooms)
            self.assertNotEqual(r, w)
            got = self.all_of(c, r, 100)
            self.assertEqual(sorted(x.index for x in got), list(range(100)))
            self.assertEqual([x.last for x in got].count(True), 1)
            self.assertEqual([bytes(x) for x in rooms], values)
            self.assertEqual(c.drain(), [])

    def all_of(self, c, batch, n):
        out = []
        poll = select.poll()
        poll.register(c.fd, select.POLLIN)
        while len(out) < n:
            self.assertTrue(poll.poll(10000))
            out += [x for x in c.drain() if x.batch == batch and not x.released]
        return out

    def test_drain_waits_as_long_as_asked(self):
        with dram() as c:
            t = time.monotonic()
            self.assertEqual(c.drain(0.05), [])
            self.assertGreaterEqual(time.monotonic() - t, 0.05)
            c.read_async(c.keys(range(4)), [bytearray(1)])
            self.assertEqual([r.reason for r in c.drain(None)], ["absent"])

    def test_buffers_are_held_until_their_results_are_drained(self):
        with dram() as c:
            keys = c.keys(range(4))
            room = bytearray(10)
            c.read_async(keys, [room])
            with self.assertRaises(BufferError):
                room.append(1)
            c.drain(None)
            room.append(1)

    def test_nothing_is_left_behind_by_many_batches(self):
        with dram() as c:
            keys = c.keys(range(40))
            rooms = [bytearray(1000) for _ in keys]
            c.write(keys, rooms)
            before = [sys.getrefcount(r) for r in rooms]
            for _ in range(300):
                c.read(keys, rooms)
                c.read_async(keys, rooms)
                got = 0
                while got < 10:
                    got += len(c.drain(None))
            gc.collect()
            self.assertEqual([sys.getrefcount(r) for r in rooms], before)


class Errors(unittest.TestCase):
    def test_wrong_options_are_refused_by_name(self):
        for name, value in (("part_bytes", 100), ("block_tokens", 1 << 30), ("depth", 1),
                            ("queues", 999), ("digests", 4), ("dram_bytes", 5)):
            with self.assertRaises(Refused) as e:
                dram(**{name: value})
            self.assertIn(name, str(e.exception))
            self.assertIsInstance(e.exception, OSError)
            self.assertIsInstance(e.exception, ValueError)
        with self.assertRaises(TypeError):
            dram(nonsense=1)
        with self.assertRaises(Refused):
            Cache(None, model=MODEL)
        with self.assertRaises(Refused) as e:
            Cache("tcp:/x", model=MODEL)
        self.assertIn("tcp:", str(e.exception))
        with self.assertRaises(ValueError):
            Cache(None, model={"a": "b"}, dram_bytes=1 << 20)
        with self.assertRaises(Refused):
            dram(model={**MODEL, "block_tokens": "5"})

    def test_s13_an_option_that_is_wrong_or_has_no_effect_is_refused_with_its_name(self):
        for name, given in (("policy", {"policy": "no-such"}), ("index_blocks", {"index_blocks": 5}),
                            ("behind_bytes", {"behind_bytes": 1 << 20}),
                            ("behind_drop", {"behind_drop": True}),
                            ("flash_bytes", {"flash_bytes": 1 << 30}),
                            ("flash_format", {"flash_format": True}),
                            ("second_touch", {"second_touch": ["flash"]}),
                            ("presence_s", {"presence_s": 1.0}), ("queues", {"queues": 2}),
                            ("layers[1]", {"layers": [4096, 0]}),
                            ("layers", {"layers": 5000}), ("events", {"events": 1 << 30}),
                            ("deadline_s", {"deadline_s": 1e-7}), ("lease_s", {"lease_s": 1e-7}),
                            ("targets[0]", {"targets": [""]}), ("flash[1]", {"flash": ["/x", ""]})):
            with self.assertRaises(Refused) as e:
                dram(**given)
            self.assertIn(name, str(e.exception))
        for given in ({"second_touch": ["dram"]}, {"targets": ["tcp://a:1"] * 17},
                      {"flash": ["a\0b"]}):
            with self.assertRaises(ValueError):
                dram(**given)

    def test_one_text_is_a_list_of_one(self):
        for name in ("flash", "targets"):
            with self.assertRaises((OSError, ValueError)) as e:
                dram(**{name: "tcp:/one"})
            self.assertIn("tcp:/one", str(e.exception))
        with self.assertRaises(Refused) as e:
            dram(second_touch="flash")
        self.assertIn("second_touch", str(e.exception))

    def test_an_error_names_the_option_as_it_was_given(self):
        for error, given in ((TypeError, {"dram_bytes": "8GiB"}), (TypeError, {"depth": 2.5}),
                             (OverflowError, {"events": -1}), (OverflowError, {"depth": -1})):
            with self.assertRaises(error) as e:
                dram(**given)
            self.assertIn(next(iter(given)), str(e.exception))
        with dram() as c, self.assertRaises(ValueError) as e:
            c.restore(c.keys(range(4)), [bytearray(1)], priority=1000)
        self.assertIn("priority", str(e.exception))
        for name in ("prefill_tokens_per_s", "prefill_slope"):
            for value in (float("nan"), float("inf"), -1.0):
                with dram() as c, self.assertRaises(ValueError) as e:
                    c.restore(c.keys(range(4)), [bytearray(1)], **{name: value})
                self.assertIn(name, str(e.exception))

    def test_a_number_too_large_is_refused_not_cut(self):
        for name in ("block_tokens", "part_bytes", "queues", "depth", "digests"):
            for value in ((1 << 32) + 64, -1):
                with self.assertRaises(OverflowError):
                    dram(**{name: value})
        for value in ((1 << 64) + (1 << 20), -1):
            with self.assertRaises(OverflowError):
                dram(dram_bytes=value)
        for name in ("deadline_s", "lease_s"):
            for value in (2.0 ** 64 / 1e9 + 1, float("inf"), float("nan"), -1):
                with self.assertRaises(ValueError):
                    dram(**{name: value})
        with dram() as c:
            keys, rooms = c.keys(range(4)), [bytearray(1)]
            for value in (2.0 ** 64 / 1e9 + 1, float("inf"), float("nan"), -1):
                for call in (lambda: c.read(keys, rooms, value), lambda: c.match(keys, value)):
                    with self.assertRaises(ValueError):
                        call()
            for value in (-1, float("nan")):
                with self.assertRaises(ValueError):
                    c.drain(value)
            with self.assertRaises(OverflowError):
                c.cancel(-1)
            self.assertEqual(c.read(keys, rooms, 1e9)[0].reason, "absent")

    def test_bytes_are_no_tokens(self):
        with dram() as c:
            for tokens in (bytes(16), bytearray(16)):
                with self.assertRaises(TypeError):
                    c.keys(tokens)
            self.assertEqual(c.keys(memoryview(bytes(16)).cast("i")), c.keys([0] * 4))

    def test_a_sequence_that_changes_while_it_is_read_is_refused(self):
        class Growing:
            reads = 0

            def __len__(self):
                return 1

            def __getitem__(self, i):
                self.reads += 1
                return [bytearray(1)] * (1 if self.reads == 1 else 4000)

        with dram() as c:
            keys = c.keys(range(4))
            for call in (c.write, c.read, c.write_async, c.read_async):
                with self.assertRaises(ValueError):
                    call(keys, Growing())
            self.assertEqual(c.match(keys), 0)

    def test_wrong_arguments_are_refused_and_change_nothing(self):
        with dram() as c:
            keys = c.keys(range(8))
            for call in (lambda: c.read(keys, [bytearray(1)]), lambda: c.read([b"short"], [b""]),
                         lambda: c.write_async([], []), lambda: c.match([b"x" * 31]),
                         lambda: c.read(keys, [bytearray(1)] * 2, deadline_s=-1)):
                with self.assertRaises(ValueError):
                    call()
            for call in (lambda: c.read(keys, [b"const", b"const"]), lambda: c.write(keys, [1, 2]),
                         lambda: c.keys("text"), lambda: c.match(5), lambda: c.write(keys, None)):
                with self.assertRaises((TypeError, BufferError)):
                    call()
            with self.assertRaises(OverflowError):
                c.keys([2 ** 31, 0, 0, 0])
            self.assertEqual(c.match(keys), 0)

    def test_too_much_in_flight_is_ebusy(self):
        with dram() as c:
            keys = c.keys(range(4)) * 4096
            c._submit(2, keys, None, 0)
            with self.assertRaises(OSError) as e:
                c._submit(2, keys[:1], None, 0)
            self.assertEqual(e.exception.errno, errno.EBUSY)
            got = 0
            while got < 4096:
                got += len(c.drain(None))
            self.assertEqual(c.exists(keys[:1]), [False])

    def test_a_closed_cache_answers_eshutdown(self):
        c = dram()
        keys = c.keys(range(4))
        c.close()
        c.close()
        self.assertTrue(c.closed)
        for call in (lambda: c.keys(range(4)), lambda: c.match(keys), lambda: c.drain(),
                     lambda: c.read(keys, [bytearray(1)]), lambda: c.fd, lambda: c.stats(),
                     lambda: c.cancel(1), lambda: c.key_of(b"")):
            with self.assertRaises(OSError) as e:
                call()
            self.assertEqual(e.exception.errno, errno.ESHUTDOWN)

    def test_an_array_out_of_reach_is_an_error_when_strict_else_a_warning(self):
        with self.assertRaises(OSError) as e:
            Cache("tcp://127.0.0.1:1", model=MODEL, deadline_s=0.2)
        self.assertIn("out of reach", str(e.exception))
        with self.assertWarnsRegex(RuntimeWarning, "out of reach"):
            c = Cache("tcp://127.0.0.1:1", model=MODEL, deadline_s=0.2, strict=False)
        keys = c.keys(range(256))
        self.assertEqual(c.read(keys, [bytearray(1)])[0].reason, "unreachable")
        self.assertEqual(c.match(keys), 0)
        c.close()


class Threads(unittest.TestCase):
    def test_several_threads_share_a_cache(self):
        wrong = []

        def work(first):
            for i in range(60):
                key = c.key_of(f"{first}-{i}".encode())
                value = os.urandom(100 + i)
                room = bytearray(len(value))
                if not (c.write([key], [value])[0].ok and c.read([key], [room])[0].ok and
                        room == value and c.match([key]) == 1):
                    wrong.append((first, i))

        with dram() as c:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(wrong, [])
            self.assertEqual(c.stats()["hits_dram"], 240)

    def test_close_wakes_a_thread_that_waits_in_drain(self):
        c = dram()
        seen = []

        def wait():
            try:
                c.drain(None)
            except OSError as e:
                seen.append(e.errno)

        t = threading.Thread(target=wait)
        t.start()
        c.close()
        t.join(10)
        self.assertFalse(t.is_alive())
        self.assertEqual(seen, [errno.ESHUTDOWN])

    def test_a_waiting_call_lets_other_threads_run(self):
        with dram() as c:
            count = [0]
            stop = threading.Event()

            def spin():
                while not stop.is_set():
                    count[0] += 1

            t = threading.Thread(target=spin)
            t.start()
            before = count[0]
            c.drain(0.2)
            after = count[0]
            stop.set()
            t.join()
            self.assertGreater(after, before + 100)

    def test_ctrl_c_interrupts_drain(self):
        def raise_it(*_):
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGALRM, raise_it)
        try:
            with dram() as c:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with self.assertRaises(KeyboardInterrupt):
                    c.drain(None)
        finally:
            signal.signal(signal.SIGALRM, old)

    def test_in_a_forked_child_every_call_answers_eshutdown(self):
        with dram() as c:
            keys = c.keys(range(4))
            c.write(keys, [b"value"])
            pid = os.fork()
            if pid == 0:
                os._exit(self.child(c, keys))
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(c.match(keys), 1)

    @staticmethod
    def child(c, keys):
        signal.alarm(10)               # a hang is a failure
        calls = [lambda: c.match(keys), lambda: c.read(keys, [bytearray(5)]), lambda: c.drain(),
                 lambda: c.keys(range(4)), lambda: c.fd, lambda: c.stats(), lambda: c.cancel(1),
                 lambda: c.read_async(keys, [bytearray(5)]), lambda: c.drain(None)]
        for n, call in enumerate(calls, 1):
            try:
                call()
                return n
            except OSError as e:
                if e.errno != errno.ESHUTDOWN:
                    return n
        c.close()
        with dram() as own:
            return 0 if own.write(keys, [b"x"])[0].ok else 100


class Package(unittest.TestCase):
    def test_the_examples_of_the_documentation_run(self):
        result = doctest.testmod(kvof.cache)
        self.assertGreater(result.attempted, 0)
        self.assertEqual(result.failed, 0)

    def test_names_and_fields_are_what_the_manual_says(self):
        self.assertEqual(kvof.Cache, Cache)
        fields = ("ok bytes reason index batch busy released last wait_s verify_s tier layer "
                  "request step").split()
        self.assertEqual(Result.n_sequence_fields, len(fields))
        for name in fields:
            self.assertTrue(hasattr(Result, name))
        with self.assertRaises(AttributeError):
            kvof.nonsense

    def test_dropping_a_cache_closes_it(self):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            c = dram()
            c.read_async(c.keys(range(4)), [bytearray(10)])
            del c
            gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
