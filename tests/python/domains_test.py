# SPDX-License-Identifier: Apache-2.0
"""One model's share of an array: kvof stat --domains and kvof rm --domain; S5 and S14 over a real array."""

import hashlib
import json
import os
import struct
import subprocess
import unittest

from array_serve import PROGRAM, Array
from kvof import Cache, Refused

MODEL = {"model": "demo", "kv_dtype": "f16", "layout": "NHD", "weights": "sha256:1", "shard_count": "2",
         "shard_index": "0", "tenant_salt": "a"}


def kvof(*args):
    done = subprocess.run([PROGRAM, *args], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


class Domains(unittest.TestCase):
    def setUp(self):
        self.array = Array()
        self.addCleanup(self.array.stop)

    def cache(self, strict=False, **fields):
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            c = Cache(self.array.target, model={**MODEL, **fields}, block_tokens=4, strict=strict,
                      part_bytes=65536)
        self.addCleanup(c.close)
        return c

    def stat(self):
        code, out, err = kvof("stat", self.array.target, "--domains", "--json")
        self.assertEqual((code, err), (0, ""))
        return json.loads(out)

    def test_the_share_of_each_domain_is_shown_and_one_is_removed(self):
        f16, q8 = self.cache(), self.cache(kv_dtype="q8_0")
        a, b = f16.keys(range(40)), q8.keys(range(12))
        f16.write(a, [os.urandom(1000)] * 9 + [os.urandom(150000)])
        q8.write(b, [os.urandom(2000)] * 3)
        subprocess.run([PROGRAM, "put", self.array.target, "text:raw"], input=b"raw", check=True)
        stat = self.stat()
        self.assertTrue(stat["exact"])
        self.assertEqual(stat["keys"], stat["read"])
        self.assertEqual((stat["other_values"], stat["other_bytes"]), (1, 3))
        shares = {("q8_0" if "q8_0" in d["fields"][0] else "f16"): d for d in stat["domains"]}
        # ten blocks, of which one is three parts and a head
        self.assertEqual((shares["f16"]["values"], shares["f16"]["bytes"]),
                         (9 + 3 + 1, 9 * 1064 + 150000 + 4 * 64))
        self.assertEqual((shares["q8_0"]["values"], shares["q8_0"]["bytes"]), (3, 3 * 2064))
        self.assertNotIn("tenant_salt", shares["f16"]["fields"][0])
        code, out, _ = kvof("stat", self.array.target, "--domains")
        self.assertEqual(code, 0)
        self.assertIn("kv_dtype=q8_0", out)
        tag = shares["f16"]["domain"]
        code, out, _ = kvof("rm", self.array.target, "--domain", tag, "--json")
        self.assertEqual((code, json.loads(out)["deleted"]), (0, 13))
        self.assertEqual([r.reason for r in f16.read(a[:2], [bytearray(1000)] * 2)], ["absent"] * 2)
        self.assertEqual({r.reason for r in q8.read(b, [bytearray(2000) for _ in b])}, {"ok"})
        self.assertEqual(kvof("rm", self.array.target, "--domain", tag)[0], 1)
        self.assertEqual(kvof("get", self.array.target, "text:raw")[0], 0)

    def test_what_is_no_domain_is_refused_and_nothing_is_deleted(self):
        c = self.cache()
        c.write(c.keys(range(4)), [b"x"])
        before = self.array.names()
        for wrong in ("", "0000", "12", "12345", "zzzz", "text:raw"):
            code, _, err = kvof("rm", self.array.target, "--domain", wrong)
            self.assertEqual(code, 2)
            self.assertIn("four hex digits", err)
        self.assertEqual(kvof("rm", self.array.target, "--domain", "fffe")[0], 1)
        self.assertEqual(kvof("rm", self.array.target, "--domain")[0], 2)
        self.assertEqual(self.array.names(), before)
        self.assertEqual(kvof("stat", self.array.target, "--domains")[0], 0)

    @staticmethod
    def tag(fields):
        """As docs/formats.md says it."""
        own = ("shard_index", "tenant", "salt")
        entry = b"".join(struct.pack("<HH", len(n), len(v)) + n.encode() + v.encode()
                         for n, v in sorted(fields.items()) if not n.startswith(own))
        return int.from_bytes(hashlib.sha256(entry).digest()[:2], "little") or 1

    def test_a_tag_that_two_domains_share_is_refused_and_nothing_is_deleted(self):
        seen, n = {}, 0
        while True:
            fields = {**MODEL, "kv_dtype": f"x{n}", "model_id": "demo", "block_tokens": "4"}
            tag = self.tag(fields)
            if tag in seen:
                break
            seen[tag] = f"x{n}"
            n += 1
        for dtype in (seen[tag], f"x{n}"):
            c = self.cache(kv_dtype=dtype)
            c.write(c.keys(range(4)), [b"value"])
        before = self.array.names()
        code, _, err = kvof("rm", self.array.target, "--domain", f"{tag:04x}")
        self.assertEqual(code, 4)
        self.assertIn("two domains with the same tag", err)
        self.assertEqual(self.array.names(), before)
        share = [d for d in self.stat()["domains"] if d["domain"] == f"{tag:04x}"][0]
        self.assertEqual((len(share["fields"]), share["values"]), (2, 2))
        self.assertIn("the same tag", kvof("stat", self.array.target, "--domains")[1])

    def test_many_values_are_sampled_and_it_says_so(self):
        c = self.cache()
        keys = c.keys_of([f"{n}" for n in range(5000)])
        for at in range(0, len(keys), 1000):
            c.write(keys[at:at + 1000], [b"0123456789"] * 1000, 30.0)
        stat = self.stat()
        self.assertFalse(stat["exact"])
        self.assertEqual((stat["keys"], stat["read"]), (5001, 4096))
        share = max(stat["domains"], key=lambda d: d["values"])
        self.assertAlmostEqual(share["values"], 5000, delta=10)
        self.assertIn("sample", kvof("stat", self.array.target, "--domains")[1])
        code, out, _ = kvof("rm", self.array.target, "--domain", share["domain"], "--json")
        self.assertEqual((code, json.loads(out)["deleted"]), (0, 5000))

    def test_s5_another_value_of_any_field_never_hits(self):
        c = self.cache()
        keys = c.keys(range(8))
        c.write(keys, [b"of the first", b"of the first"])
        others = [{"tenant_salt": "b"}, {"shard_index": "1"}, {"shard_count": "1"},
                  {"weights": "sha256:2"}, {"layout": "HND"}, {"kv_dtype": "q8_0"},
                  # framing: the same bytes when names and values are strung together
                  {"layout": "NHDs", "weights": "ha256:1"}, {"kv_dtyp": "ef16"}]
        for fields in others:
            other = self.cache(**fields)
            theirs = other.keys(range(8))
            self.assertEqual(other.match(theirs), 0, fields)
            self.assertFalse(set(theirs) & set(keys))
            rooms = [bytearray(12) for _ in keys]
            self.assertEqual({r.reason for r in other.read(theirs, rooms)}, {"absent"})
            # and each key is only its own: nothing of the first under it
            self.assertEqual([r.reason for r in other.write(theirs[:1], [b"of the other"])], ["ok"])
            self.assertEqual([r.ok for r in c.read(keys[:1], rooms[:1])], [True])
            self.assertEqual(bytes(rooms[0]), b"of the first")

    def test_s5_engine_hashes_are_framed_too(self):
        c = self.cache()
        self.assertNotEqual(c.key_of(b""), c.key_of(b"\0"))
        self.assertNotEqual(c.keys([1, 2, 3, 4])[0],
                            c.key_of(b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"))
        self.assertNotEqual(c.key_of(b"a"), self.cache(tenant_salt="b").key_of(b"a"))

    def test_s14_a_second_host_with_another_geometry_is_refused_and_the_difference_named(self):
        c = self.cache(strict=True)
        c.write(c.keys(range(4)), [b"x"])
        for name, value in (("layout", "HND"), ("kv_dtype", "q8_0"), ("weights", "sha256:2"),
                            ("shard_count", "4")):
            with self.assertRaises(Refused) as e:
                self.cache(strict=True, **{name: value})
            for part in (name, MODEL[name], value):
                self.assertIn(part, str(e.exception))
        with self.assertRaises(Refused) as e:
            Cache(self.array.target, model=MODEL, block_tokens=8)
        self.assertIn("block_tokens", str(e.exception))
        # what differs by design between hosts of one model does not
        self.cache(strict=True, shard_index="1")
        self.cache(strict=True, tenant_salt="b")


if __name__ == "__main__":
    unittest.main()
