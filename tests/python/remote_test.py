# SPDX-License-Identifier: Apache-2.0
"""kvof.Cache over a real array: `kvof serve` on loopback."""

import errno
import os
import threading
import time
import unittest

from kvof import Cache, Refused

from array_serve import Array, quiet

MODEL = {"model": "demo", "kv_dtype": "f16"}


class Remote(unittest.TestCase):
    def setUp(self):
        self.array = Array()
        self.addCleanup(self.array.stop)

    def cache(self, **kw) -> Cache:
        c = Cache(self.array.target, **{"model": MODEL, "block_tokens": 4, "part_bytes": 65536,
                                        "deadline_s": 20.0, **kw})
        self.addCleanup(c.close)
        return c

    def test_blocks_of_any_length_come_back_in_another_process_lifetime(self):
        sizes = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65471, 65472, 65473, 131071, (1 << 20) + 1]
        values = [os.urandom(n) for n in sizes]
        for digests in (0, 3):
            c = self.cache(digests=digests)
            keys = [c.key_of(f"{digests} {n}".encode()) for n in sizes]
            self.assertEqual({r.reason for r in c.write(keys, values)}, {"ok"})
            c.close()
            c = self.cache(digests=digests)
            self.assertEqual(c.match(keys), len(keys))
            rooms = [bytearray(n) for n in sizes]
            results = c.read(keys, rooms)
            self.assertEqual([r.bytes for r in results], sizes)
            self.assertEqual({(r.reason, r.tier) for r in results}, {("ok", "remote")})
            self.assertEqual([bytes(r) for r in rooms], values)

    def test_a_host_is_let_in_by_its_name_on_the_allow_list(self):
        name = "nqn.2026-11.io.kvof:engine"
        array = Array(options=("--allow-host", name))
        self.addCleanup(array.stop)
        self.array = array
        c = self.cache(host_nqn=name)
        keys = c.keys(range(4))
        self.assertEqual(c.write(keys, [b"mine"])[0].reason, "ok")
        for other, error in ((None, OSError), ("nqn.2026-11.io.kvof:other", OSError),
                             ("engine", ValueError), ("nqn." + "x" * 300, ValueError)):
            with self.assertRaises((error, Refused)) as e:
                self.cache(host_nqn=other, deadline_s=1.0)
            self.assertNotEqual(str(e.exception), "")

    def test_two_hosts_share_one_namespace_and_store_a_common_head_once(self):
        a, b = self.cache(), self.cache()
        keys = a.keys(range(8))
        self.assertEqual([r.reason for r in a.write(keys, [b"x" * 100, b"y" * 200000])],
                         ["ok", "ok"])
        self.assertEqual([r.reason for r in b.write(keys, [b"x" * 100, b"y" * 200000])],
                         ["exists", "exists"])
        self.assertEqual(b.match(keys), 2)
        self.assertEqual(a.delete(keys[:1])[0].reason, "ok")
        # b believes what it learned for a while, and no longer once a load has shown otherwise
        self.assertEqual([r.reason for r in b.read(keys, [bytearray(100), bytearray(200000)])],
                         ["absent", "ok"])
        self.assertEqual(b.match(keys), 0)
        self.assertEqual(b.stats()["presence_wrong"], 1)

    def test_another_identity_is_refused_and_the_field_is_named(self):
        c = self.cache()
        keys = c.keys(range(4))
        c.write(keys, [b"value"])
        other = {**MODEL, "kv_dtype": "q8_0"}
        with self.assertRaises(Refused) as e:
            self.cache(model=other)
        self.assertIn("kv_dtype", str(e.exception))
        self.assertIn("q8_0", str(e.exception))
        with self.assertRaises(Refused) as e:
            self.cache(block_tokens=8)
        self.assertIn("block_tokens", str(e.exception))
        d = quiet(self.cache, model=other, strict=False)
        self.assertEqual(d.match(d.keys(range(4))), 0)
        self.cache(model=other)        # in the list now

    def test_a_bit_flipped_on_a_drive_is_a_miss_that_says_corrupt(self):
        c = self.cache()
        keys = c.keys(range(12))
        values = [os.urandom(200000) for _ in keys]
        c.write(keys, values)
        c.close()
        self.array.shut_down()
        self.assertEqual(self.array.flip(values[1][70000:70100]), 1)
        self.array.restart()
        c = self.cache()
        rooms = [bytearray(200000) for _ in keys]
        self.assertEqual([r.reason for r in c.read(keys, rooms)], ["ok", "corrupt", "ok"])
        self.assertEqual(bytes(rooms[0]), values[0])
        self.assertEqual(bytes(rooms[2]), values[2])
        self.assertEqual(c.stats()["reasons"]["corrupt"], 1)
        self.assertEqual(c.write(keys, values)[1].reason, "ok")
        self.assertEqual(c.match(keys), 3)

    def test_a_bad_block_is_overwritten_also_when_it_was_asked_for_in_between(self):
        for size in (1000, 150000):             # one part, and several
            c = self.cache()
            key, value, room = c.key_of(b"bad %d" % size), os.urandom(size), bytearray(size)
            before = set(self.array.names())
            self.assertEqual(c.write([key], [value])[0].reason, "ok")
            for name in set(self.array.names()) - before:
                self.array.put(name, b"not a value of a cache" * 10)
            self.assertEqual(c.read([key], [room])[0].reason, "corrupt")
            for _ in range(2):                  # what lies there is there, but still bad
                c.match([key])
                c.exists([key])
            self.assertEqual(c.write([key], [value])[0].reason, "ok")
            self.assertEqual(c.read([key], [room])[0].reason, "ok")
            self.assertEqual(bytes(room), value)

    def test_an_array_lost_is_misses_and_it_is_used_again_when_back(self):
        c = self.cache(deadline_s=3.0)
        keys = c.keys(range(40))
        values = [os.urandom(100000) for _ in keys]
        c.write(keys, values)
        rooms = [bytearray(100000) for _ in keys]
        batch = c.read_async(keys, rooms, 1.0)
        self.array.kill()
        begin, got = time.monotonic(), []
        while len([r for r in got if not r.released]) < len(keys):
            got += c.drain(None)
        self.assertLess(time.monotonic() - begin, 2.0)
        for r in got:
            self.assertEqual(r.batch, batch)
            self.assertIn(r.reason, ("ok", "unreachable", "late", "released"))
            if r.ok:
                self.assertEqual(bytes(rooms[r.index]), values[r.index])
        begin = time.monotonic()
        self.assertFalse(c.read(keys[:1], rooms[:1], 1.0)[0].ok)
        self.assertEqual(c.match(keys, 1.0), 0)
        self.assertLess(time.monotonic() - begin, 3.0)
        self.array.restart()
        until = time.monotonic() + 20
        while c.match(keys) < len(keys) and time.monotonic() < until:
            c.drain(0.05)
        self.assertEqual({r.reason for r in c.read(keys, rooms)}, {"ok"})
        self.assertEqual([bytes(r) for r in rooms], values)
        self.assertGreaterEqual(c.stats()["remote_reconnects"], 1)

    def test_dram_answers_first_and_learns_from_the_array(self):
        c = self.cache(dram_bytes=1 << 20)
        keys = c.keys(range(4))
        c.write(keys, [b"v" * 1000])
        room = bytearray(1000)
        self.assertEqual(c.read(keys, [room])[0].tier, "dram")
        d = self.cache(dram_bytes=1 << 20)
        self.assertEqual([d.read(keys, [room])[0].tier for _ in range(2)], ["remote", "dram"])
        self.assertEqual(d.stats()["promoted_dram"], 1)

    def test_threads_share_an_array_and_a_forked_child_disturbs_nobody(self):
        c = self.cache()
        wrong = []

        def work(first):
            for i in range(25):
                key = c.key_of(f"{first}-{i}".encode())
                value = os.urandom(1 + i * 7919)
                room = bytearray(len(value))
                if not (c.write([key], [value])[0].ok and c.read([key], [room])[0].ok and
                        room == value and c.match([key]) == 1 and c.exists([key]) == [True]):
                    wrong.append((first, i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    c.match([b"x" * 32])
                except OSError as e:
                    c.close()
                    os._exit(0 if e.errno == errno.ESHUTDOWN else 1)
                os._exit(2)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_a_canceled_batch_is_over_soon_and_its_buffers_rest(self):
        c = self.cache()
        keys = c.keys(range(80))
        values = [os.urandom(300000) for _ in keys]
        c.write(keys, values)
        rooms = [bytearray(300000) for _ in keys]
        batch = c.read_async(keys, rooms)
        c.cancel(batch)
        results, busy = [], 0
        while len(results) < len(keys) or busy > 0:
            for r in c.drain(None):
                if not r.released:
                    results.append(r)
                busy += r.busy - r.released
        self.assertLessEqual({r.reason for r in results}, {"ok", "canceled"})
        before = [bytes(r) for r in rooms]
        c.drain(0.3)
        self.assertEqual(before, [bytes(r) for r in rooms])
        self.assertTrue(all(rooms[r.index] == values[r.index] for r in results if r.ok))
        self.assertEqual({r.reason for r in c.read(keys, rooms)}, {"ok"})

    def test_parts_larger_than_the_namespace_takes_are_refused(self):
        with self.assertRaises(Refused) as e:
            self.cache(part_bytes=64 << 20)
        self.assertIn("part_bytes", str(e.exception))
