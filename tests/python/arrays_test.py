# SPDX-License-Identifier: Apache-2.0
"""kvof.Cache over several real arrays and flash of this machine: killed, restarted, shared."""

import os
import shutil
import tempfile
import time
import unittest
from pathlib import Path

from kvof import Cache

from array_serve import Array, quiet

MODEL = {"model": "demo", "kv_dtype": "f16"}
BYTES = 200000                                  # four parts and a head


class Arrays(unittest.TestCase):
    def setUp(self):
        self.arrays = []
        for _ in range(3):
            self.arrays.append(Array(drives=1))
            self.addCleanup(self.arrays[-1].stop)
        self.folder = Path(tempfile.mkdtemp(prefix="kvof-arrays-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def cache(self, **kw) -> Cache:
        options = {"model": MODEL, "block_tokens": 4, "part_bytes": 65536, "deadline_s": 20.0,
                   "targets": [a.target for a in self.arrays], **kw}
        c = Cache(None, **options)
        self.addCleanup(c.close)
        return c

    def load(self, c: Cache, keys: list, values: list) -> list:
        """Reasons; what came is what was saved."""
        rooms = [bytearray(len(v)) for v in values]
        results = c.read(keys, rooms)
        for result, room, value in zip(results, rooms, values):
            if result.reason == "ok":
                self.assertEqual(bytes(room), value)
        return [r.reason for r in results]

    def until_all_there(self, c: Cache, keys: list, values: list) -> None:
        end = time.monotonic() + 30
        while set(self.load(c, keys, values)) != {"ok"}:
            self.assertLess(time.monotonic(), end)

    def test_s8_an_array_killed_is_misses_and_is_used_again_when_it_is_back(self):
        c = self.cache()
        keys = [c.key_of(b"%d" % n) for n in range(60)]
        values = [os.urandom(BYTES - n) for n in range(60)]
        self.assertEqual({r.reason for r in c.write(keys, values)}, {"ok"})
        held = [len(a.names()) for a in self.arrays]
        self.assertGreater(min(held), 5 * 5)    # each has its share of the blocks
        self.arrays[1].kill()
        reasons = self.load(c, keys, values)
        while "late" in reasons:                # of those that were under way
            reasons = self.load(c, keys, values)
        self.assertEqual(set(reasons), {"ok", "unreachable"})
        begin = time.monotonic()
        self.assertEqual(set(self.load(c, keys, values)), {"ok", "unreachable"})
        self.assertLess(time.monotonic() - begin, 5)
        self.arrays[1].restart()
        self.until_all_there(c, keys, values)

    def test_a_second_process_with_the_targets_in_another_order_finds_all(self):
        c = self.cache()
        keys = [c.key_of(b"%d" % n) for n in range(30)]
        values = [os.urandom(BYTES) for _ in keys]
        c.write(keys, values)
        other = self.cache(targets=[a.target for a in reversed(self.arrays)])
        self.assertEqual(set(self.load(other, keys, values)), {"ok"})
        self.assertEqual({r.reason for r in other.write(keys, values)}, {"exists"})

    def test_flash_serves_what_it_has_when_all_arrays_are_gone(self):
        flash = [f"{self.folder / 'f0'},size=256MiB", f"{self.folder / 'f1'},size=256MiB"]
        c = self.cache(flash=flash)
        keys = [c.key_of(b"%d" % n) for n in range(30)]
        values = [os.urandom(BYTES) for _ in keys]
        c.write(keys, values)
        c.close()
        for array in self.arrays:
            array.kill()
        c = quiet(self.cache, flash=flash, strict=False, deadline_s=1.0)
        results = c.read(keys, [bytearray(BYTES) for _ in keys])
        self.assertEqual({(r.reason, r.tier) for r in results}, {("ok", "flash")})
        self.assertEqual(set(self.load(c, keys, values)), {"ok"})
        for array in self.arrays:
            array.restart()
        self.until_all_there(c, keys, values)

    def test_strict_names_the_array_that_is_away(self):
        self.arrays[2].kill()
        with self.assertRaises(OSError) as e:
            self.cache(deadline_s=1.0)
        address = self.arrays[2].target.split("/")[2]
        self.assertIn(address, str(e.exception))


if __name__ == "__main__":
    unittest.main()
