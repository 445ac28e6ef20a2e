# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that is a bad network: it delays, cuts into pieces, throttles, stalls and breaks off.

Everything comes from a seed. Bytes keep their order, as TCP promises; when they come, in which
pieces, and whether, is up to `Weather`.
"""
import asyncio
import random
import threading


class Weather:
    def __init__(self, seed=1, delay_s=(0, 0), piece=65536, rate=None, cut=None):
        self.seed = seed
        self.delay_s = delay_s                 # each piece waits for a time between these
        self.piece = piece                     # largest piece
        self.rate = rate                       # bytes a second and direction
        self.cut = cut                         # (least, most) bytes of a connection until it is reset


class Proxy:
    def __init__(self, port, weather=None):
        self.to, self.weather = port, weather or Weather()
        self.stalled = threading.Event()       # set: nothing moves any more, nothing is closed
        self.connections = self.cuts = self.moved = 0
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.ready.wait()

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self._accept, '127.0.0.1', 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _accept(self, reader, writer):
        w = self.weather
        rng = random.Random(w.seed * 1000003 + self.connections)
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection('127.0.0.1', self.to)
        except OSError:
            writer.transport.abort()
            return
        budget = [rng.randint(*w.cut) if w.cut else None]
        ends = (writer, far_writer)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, random.Random(rng.random()), budget, ends),
                self._pump(far_reader, writer, random.Random(rng.random()), budget, ends))
        except asyncio.CancelledError:
            pass                               # the proxy is being closed

    async def _pump(self, reader, writer, rng, budget, ends):
        w = self.weather
        try:
            while True:
                data = await reader.read(rng.randint(1, w.piece))
                while self.stalled.is_set():
                    await asyncio.sleep(0.01)
                if not data:
                    break
                if w.delay_s[1]:
                    await asyncio.sleep(rng.uniform(*w.delay_s))
                if w.rate:
                    await asyncio.sleep(len(data) / w.rate)
                if budget[0] is not None:
                    if budget[0] < len(data):
                        writer.write(data[:budget[0]])
                        self.cuts += 1
                        break
                    budget[0] -= len(data)
                writer.write(data)
                self.moved += len(data)
                await writer.drain()
        except OSError:
            pass
        if budget[0] is not None or not reader.at_eof():
            for end in ends:                   # a reset, with what was written before
                end.transport.abort()
        else:
            try:
                writer.write_eof()
            except (OSError, RuntimeError):
                pass

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
