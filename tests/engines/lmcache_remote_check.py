# SPDX-License-Identifier: Apache-2.0
"""kvof.lmcache_remote inside LMCache 0.5.6, without an engine. Run by lmcache_test.py in LMCache's venv.

lmcache_remote_check.py [TARGET]   prints TAP; without a target over DRAM alone
"""

import asyncio
import os
import sys
import threading
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))

import torch  # noqa: E402
from lmcache.v1.check.utils import _get_default_metadata, create_test_key  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.storage_backend.connector import CreateConnector  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402

from kvof import Refused  # noqa: E402
from run import Tap, flat  # noqa: E402

TARGET = sys.argv[1] if len(sys.argv) > 1 else None
TOKENS = 256


class Remote(unittest.TestCase):
    number = 0

    def setUp(self):
        Remote.number += 1
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.addCleanup(self.end)
        self.open = []

    def end(self):
        for r in self.open:
            self.do(r.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def make(self, number=None, obj_size=2 * TOKENS * 64, **more):
        given = {"model_id": f"remote {os.getpid()} {number or Remote.number}",
                 **({"target": TARGET} if TARGET else {"dram": "200MiB"}), **more}
        head = "remote_storage_plugin.kvof."
        extra = {head + "module_path": "kvof.lmcache_remote", head + "class_name": "Adapter",
                 **{head + k: v for k, v in given.items() if v is not None}}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS, local_cpu=True, max_local_cpu_size=0.2,
            remote_storage_plugins=["kvof"], extra_config=extra,
            use_layerwise=bool(more.get("layerwise")))
        extra.pop(head + "layerwise", None)
        metadata = _get_default_metadata("model", obj_size=obj_size)
        # obj_size elements as (1 layer, K and V, TOKENS tokens, heads * size)
        metadata.kv_shape = (1, 2, TOKENS, 1, obj_size // 2 // TOKENS)
        metadata.chunk_size = TOKENS
        self.memory = LocalCPUBackend(config=config, metadata=metadata, dst_device="cpu")
        wrapped = CreateConnector("plugin://kvof", self.loop, self.memory, config, metadata, "kvof")
        r = wrapped.getWrappedConnector()
        self.open.append(r)
        return r

    def chunk(self, r, fill, tokens=TOKENS):
        shape = list(r.meta_shapes[0])
        shape[2] = tokens
        m = self.memory.allocate(torch.Size(shape), r.meta_dtypes[0], r.meta_fmt)
        m.tensor.fill_(fill)
        return m

    def keys(self, n, first=0):
        return [create_test_key("model", f"{i}") for i in range(first, first + n)]

    def test_what_was_put_is_got_and_exists(self):
        r = self.make()
        key, other = self.keys(2)
        self.assertFalse(self.do(r.exists(key)))
        self.assertIsNone(self.do(r.get(key)))
        m = self.chunk(r, 3)
        self.do(r.put(key, m))
        self.assertTrue(self.do(r.exists(key)))
        self.assertTrue(r.exists_sync(key))
        self.assertFalse(r.exists_sync(other))
        got = self.do(r.get(key))
        self.assertTrue(torch.equal(got.tensor, m.tensor))
        self.assertTrue(r.remove_sync(key))
        self.assertFalse(r.exists_sync(key))

    def test_a_partial_chunk_comes_back_with_its_own_shape(self):
        r = self.make()
        for tokens, key in zip((1, 100, 255, 256), self.keys(4)):
            m = self.chunk(r, tokens % 100, tokens)
            self.do(r.put(key, m))
            got = self.do(r.get(key))
            self.assertEqual((got.tensor.shape, got.get_size()), (m.tensor.shape, m.get_size()))
            self.assertTrue(torch.equal(got.tensor, m.tensor))

    def test_batches_answer_the_leading_chunks_that_are_there(self):
        r = self.make()
        keys = self.keys(6)
        have = [0, 1, 2, 4]
        self.do(r.batched_put([keys[i] for i in have], [self.chunk(r, i) for i in have]))
        self.assertEqual(self.do(r.batched_async_contains("x", keys, True)), 3)
        self.assertEqual(r.batched_contains(keys), 3)
        got = self.do(r.batched_get_non_blocking("x", keys))
        self.assertEqual([int(m.tensor.flatten()[0]) for m in got], [0, 1, 2])
        every = self.do(r.batched_get(keys))
        self.assertEqual([m is not None for m in every], [i in have for i in range(6)])

    def test_memory_of_chunks_that_were_not_there_is_given_back(self):
        r = self.make()
        for _ in range(50):       # 50 times more than there is
            self.assertEqual(self.do(r.batched_get_non_blocking("x", self.keys(100))), [])

    def test_many_coroutines_at_once(self):
        r = self.make()

        async def all_of_them():
            keys = self.keys(300)
            await asyncio.gather(*(r.exists(k) for k in keys * 3))
            await asyncio.gather(*(r.put(k, self.chunk(r, i)) for i, k in enumerate(keys[:60])))
            return await asyncio.gather(*(r.get(k) for k in keys[:60]))
        got = self.do(all_of_them())
        self.assertEqual([int(m.tensor.flatten()[0]) for m in got], list(range(60)))

    def test_another_geometry_is_refused_by_name(self):
        if TARGET is None:
            self.skipTest("over an array")
        self.make(number="g")
        with self.assertRaises(Refused) as e:
            self.make(number="g", obj_size=4 * TOKENS * 64)
        self.assertIn("shapes", str(e.exception))

    def test_what_does_not_fit_is_refused_at_the_start(self):
        with self.assertRaisesRegex(ValueError, "use_layerwise"):
            self.make(layerwise=True)
        with self.assertRaisesRegex(ValueError, "did you mean 'dram'"):
            self.make(drm="1MiB")

    def test_close_ends_what_waits(self):
        r = self.make()
        self.do(r.put(self.keys(1)[0], self.chunk(r, 1)))
        self.do(r.close())
        with self.assertRaises(OSError):
            self.do(r.exists(self.keys(1)[0]))


if __name__ == "__main__":
    result = Tap()
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Remote)
    unittest.TestSuite(flat(tests)).run(result)
    sys.exit(1 if result.problems else 0)
