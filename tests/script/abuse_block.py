#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts that break the rules of block commands, against a real `kvof serve`: one TAP line a case.

usage: abuse_block.py KVOF [WORDS]     runs the cases whose name contains WORDS

Group N of the abuse set, and S, D, Q, T and L where blocks answer differently from values. After
each case a canary on connections of its own writes, reads and compares.
"""
import os
import sys
import tempfile

from abuse_base import *

NSID, BLOCK, BLOCKS, MDTS = 2, 4096, 16384, 8 << 20
READ, WRITE, FLUSH, COMPARE, ZEROES, DSM, VERIFY, COPY = 2, 1, 0, 5, 8, 9, 0x0C, 0x19
FUA, DEAC, PRINFO, DTYPE = 1 << 30, 1 << 25, 1 << 29, 1 << 20
KNOWN = {READ, WRITE, FLUSH, COMPARE, ZEROES, DSM, VERIFY}


def nvm(opcode, cid, first=0, count=1, nsid=NSID, bits=0, dptr=None, block=BLOCK):
    """One block command; count is what CDW12 says, 0's based there."""
    if dptr is None and opcode in (READ, WRITE, COMPARE):
        dptr = sgl(0x5A, count * block)
    return sqe(opcode, cid, nsid, dptr=dptr or b'', cdw10=first & 0xFFFFFFFF, cdw11=first >> 32,
               cdw12=(count - 1) | bits)


def ask(h, *args, data=b'', **more):
    return h.io.command(nvm(*args, **more), data)


def put(c, first, data, opcode=WRITE, inline=None, bits=0, block=BLOCK):
    inline = len(data) <= 8192 if inline is None else inline
    cid, count = c.next_cid(), len(data) // block
    if inline:
        return c.command(nvm(opcode, cid, first, count, bits=bits, dptr=sgl(1, len(data))),
                         data)[0]
    c.send(c.capsule(nvm(opcode, cid, first, count, bits=bits, block=block)))
    return c.feed(cid, data)


def get(c, first, count, bits=0, block=BLOCK):
    answer, data = c.command(nvm(READ, c.next_cid(), first, count, bits=bits, block=block))
    status_of(answer, (0, 0))
    assert len(data) == count * block
    return data


def dsm(c, ranges, attributes=4, length=None, nr=None):
    raw = b''.join(struct.pack('<IIQ', 0, blocks, first) for first, blocks in ranges)
    return c.command(sqe(DSM, c.next_cid(), NSID, dptr=sgl(1, len(raw) if length is None else length),
                         cdw10=len(ranges) - 1 if nr is None else nr, cdw11=attributes), raw)[0]


# --- N: block commands ----------------------------------------------------------------------------


@each('N01 blocks past the end are 0/80',
      [(BLOCKS, 1), (BLOCKS - 1, 2), (2**64 - 1, 1), (2**64 - 4, 8), (2**63, 1)])
def n01(a, where):
    with Host(a.port) as h:
        for opcode in (READ, WRITE, COMPARE, ZEROES, VERIFY):
            answer, data = ask(h, opcode, h.io.next_cid(), *where)
            status_of(answer, (0, 0x80))
            assert answer.dnr and not data
        status_of(dsm(h.io, [(0, 1), where]), (0, 0x80))


@each('N02 a namespace that is not there is 0/0B', [0, 3, 64, 65, 0xFFFFFFFF])
def n02(a, nsid):
    with Host(a.port) as h:
        for opcode in sorted(KNOWN - {DSM}):
            answer, _ = ask(h, opcode, h.io.next_cid(), nsid=nsid)
            status_of(answer, (0, 0x0B))
            assert answer.dnr


@each('N03 a length above MDTS is 0/02 before a buffer is taken', [65536, MDTS // BLOCK + 1])
def n03(a, count):
    with Host(a.port) as h:
        rss = a.rss_kib()
        for opcode in (READ, WRITE, COMPARE):
            answer, _ = ask(h, opcode, h.io.next_cid(), 0, count)
            status_of(answer, (0, 2))
            assert answer.dnr
        assert a.rss_kib() < rss + 4096


@case('N04 Compare that finds a difference is 2/85, one that finds none is success')
def n04(a):
    data = noise(64 * BLOCK)
    with Host(a.port) as h:
        status_of(put(h.io, 100, data), (0, 0))
        status_of(put(h.io, 100, data, COMPARE), (0, 0))
        for at in (0, len(data) // 2, len(data) - 1):
            wrong = bytearray(data)
            wrong[at] ^= 1
            answer = put(h.io, 100, bytes(wrong), COMPARE)
            status_of(answer, (2, 0x85))
        status_of(put(h.io, 8000, bytes(BLOCK), COMPARE), (0, 0))
        status_of(put(h.io, 8000, noise(BLOCK), COMPARE), (2, 0x85))
        assert get(h.io, 100, 64) == data


@case('N06 Write Zeroes of the longest length, with and without DEAC')
def n06(a):
    with Host(a.port) as h:
        for bits in (0, DEAC, FUA, DEAC | FUA):
            status_of(put(h.io, 200, noise(16 * BLOCK)), (0, 0))
            status_of(ask(h, ZEROES, h.io.next_cid(), 0, BLOCKS, bits=bits)[0], (0, 0))
            assert get(h.io, 190, 40) == bytes(40 * BLOCK)


@each('N07 Copy and other commands of the set that are not offered are 0/01',
      [COPY, 0x04, 0x0D, 0x0E, 0x11, 0x15, 0x79, 0x7D])
def n07(a, opcode):
    with Host(a.port) as h:
        answer, _ = ask(h, opcode, h.io.next_cid())
        status_of(answer, (0, 1))
        assert answer.dnr


@each('N09 no namespace is write protected, and none can be made so: Set Features 84h is 0/02', [1, 2, 3])
def n09(a, state):
    with Host(a.port) as h:
        status_of(h.admin.command(sqe(9, 7, NSID, cdw10=0x84, cdw11=state))[0], (0, 2))
        _, data = h.admin.identify(0, NSID)
        assert data[99] & 1 == 0, 'NSATTR says write protected'
        data = noise(BLOCK, state)
        status_of(put(h.io, 300, data), (0, 0))
        assert get(h.io, 300, 1) == data


@case('Q05 Compare as first of a fused pair without its Write: not run, and what follows is unharmed')
def q05(a):
    with Host(a.port) as h:
        status_of(put(h.io, 310, noise(BLOCK)), (0, 0))
        for fuse in (1, 2):
            command = bytearray(nvm(COMPARE, 20 + fuse, 310, 1, dptr=sgl(1, BLOCK)))
            command[1] |= fuse
            # No fused commands here (FUSES 0): 0/02 as of Q04 comes before the 0/0A of a lone one.
            status_of(h.io.command(bytes(command), noise(BLOCK))[0], (0, 2), (0, 0x0A))
            assert get(h.io, 310, 1) == noise(BLOCK)
        status_of(h.io.command(nvm(WRITE, 30, 310, 1, dptr=sgl(1, BLOCK)), bytes(BLOCK))[0], (0, 0))
        assert get(h.io, 310, 1) == bytes(BLOCK)


@each('N08 protection information where there is none is 0/02', [1, 2, 4, 8, 15])
def n08(a, bits):
    with Host(a.port) as h:
        for opcode in (READ, WRITE, COMPARE, ZEROES, VERIFY):
            status_of(ask(h, opcode, h.io.next_cid(), bits=bits << 26)[0], (0, 2))
        status_of(ask(h, WRITE, h.io.next_cid(), bits=DTYPE)[0], (0, 2))


@each('N14 Dataset Management', ['hints', 'nothing', '256 ranges', 'short', 'long', 'room for 256',
                                'empty'])
def n14(a, what):
    data = noise(256 * BLOCK)
    with Host(a.port) as h:
        status_of(put(h.io, 0, data), (0, 0))
        if what == 'hints':
            status_of(dsm(h.io, [(0, 64)], attributes=3), (0, 0))
            status_of(dsm(h.io, [(BLOCKS, 1)], attributes=3), (0, 0x80))
        elif what == 'nothing':
            status_of(dsm(h.io, [(7, 0), (2**64 - 1, 0)]), (0, 0))
        elif what == '256 ranges':
            status_of(dsm(h.io, [(i, 1) for i in range(256)]), (0, 0))
            data = bytes(256 * BLOCK)
        elif what == 'short':
            status_of(dsm(h.io, [(0, 64), (64, 64)], nr=255), (0, 0x0F))
        elif what == 'long':
            status_of(dsm(h.io, [(0, 1)] * 257, nr=0), (0, 0x0F))
        elif what == 'room for 256':     # what Linux sends, however few ranges there are
            status_of(dsm(h.io, [(64, 64)] + [(0, 64)] * 255, nr=0), (0, 0))
            data = data[:64 * BLOCK] + bytes(64 * BLOCK) + data[128 * BLOCK:]
        else:
            status_of(h.io.command(sqe(DSM, 1, NSID, dptr=sgl(0x5A, 0), cdw11=4))[0], (0, 0x0F))
        assert get(h.io, 0, 256) == data


@case('N15 what was deallocated reads as zeros, neighbours stay, and room is given back')
def n15(a):
    data = noise(512 * BLOCK)
    with Host(a.port) as h:
        status_of(dsm(h.io, [(0, BLOCKS)]), (0, 0))
        status_of(put(h.io, 3, data), (0, 0))
        page = h.admin.identify(0, NSID)[1]
        before = struct.unpack_from('<Q', page, 16)[0]
        status_of(dsm(h.io, [(70, 130), (300, 1)]), (0, 0))
        want = bytearray(data)
        want[67 * BLOCK:197 * BLOCK] = bytes(130 * BLOCK)
        want[297 * BLOCK:298 * BLOCK] = bytes(BLOCK)
        assert get(h.io, 3, 512) == want
        page = h.admin.identify(0, NSID)[1]
        assert struct.unpack_from('<Q', page, 16)[0] == before - 64, 'one whole chunk of 256 KiB'


@case('N16 Format NVM, Sanitize and the like are 0/01')
def n16(a):
    with Host(a.port) as h:
        status_of(put(h.io, 5, noise(BLOCK)), (0, 0))
        for opcode in (0x80, 0x84, 0x0D, 0x15, 0x10, 0x11, 0x81, 0x82):
            answer, _ = h.admin.command(sqe(opcode, h.admin.next_cid(), NSID))
            status_of(answer, (0, 1))
        assert get(h.io, 5, 1) == noise(BLOCK)


@case('N17 Read, Write and Flush with FUA; Flush of all namespaces is 0/0B, as VWC says')
def n17(a):
    with Host(a.port) as h:
        status_of(put(h.io, 9, noise(2 * BLOCK), bits=FUA), (0, 0))
        assert get(h.io, 9, 2, bits=FUA) == noise(2 * BLOCK)
        status_of(ask(h, FLUSH, h.io.next_cid())[0], (0, 0))
        status_of(ask(h, FLUSH, h.io.next_cid(), nsid=0xFFFFFFFF)[0], (0, 0x0B))


# --- S, D, T, Q, L for blocks ---------------------------------------------------------------------


@each('S01 PSDT other than SGL is 0/02', [0x00, 0xC0])
def s01(a, flags):
    with Host(a.port) as h:
        command = bytearray(nvm(READ, 1))
        command[1] = flags
        status_of(h.io.command(bytes(command))[0], (0, 2))


@each('S02..S07 a descriptor type that TCP has not is refused',
      [0x40, 0x20, 0x30, 0x10, 0x5B, 0x5F, 0xF0, 0xFF])
def s02(a, kind):
    with Host(a.port) as h:
        for opcode in (READ, WRITE, COMPARE):
            status_of(ask(h, opcode, 1, dptr=sgl(kind, BLOCK))[0], (0, 0x11), (0, 0x0E), (0, 0x0D))


@each('S08, S09 a descriptor length other than the blocks\' is 0/0F',
      [0, 512, 4095, 4097, 8192, 0xFFFFFFFF])
def s08(a, length):
    with Host(a.port) as h:
        for opcode in (READ, WRITE, COMPARE):
            status_of(ask(h, opcode, 1, dptr=sgl(0x5A, length))[0], (0, 0x0F))
        if length in (512, 8192):
            status_of(ask(h, WRITE, 1, dptr=sgl(1, length), data=bytes(length))[0], (0, 0x0F))


@each('S11 a descriptor on a command without data is ignored', [FLUSH, ZEROES, VERIFY])
def s11(a, opcode):
    with Host(a.port) as h:
        status_of(ask(h, opcode, 1, 12000, 1, dptr=sgl(0x5A, 4096))[0], (0, 0))


@each('T29, T31 a wrong data digest of a write', ['in-capsule', 'and of a bad command'])
def t29(a, what):
    with Host(a.port, digests=3) as h:
        status_of(put(h.io, 50, noise(BLOCK)), (0, 0))
        first = 50 if what == 'in-capsule' else BLOCKS
        h.io.send(h.io.capsule(nvm(WRITE, 9, first, 1, dptr=sgl(1, BLOCK)), noise(BLOCK, 2),
                               bad_data=True))
        status_of(h.io.answer()[0], (0, 0x22), *([(0, 0x80)] if first == BLOCKS else []))
        assert get(h.io, 50, 1) == noise(BLOCK)
        assert h.io.silent()


@case('Q06 every opcode on a block namespace is answered, and the unknown are 0/01')
def q06(a):
    with Host(a.port) as h:
        for opcode in range(256):
            if opcode in KNOWN or opcode == 0x7F:
                continue
            answer, _ = h.io.command(sqe(opcode, h.io.next_cid(), NSID))
            status_of(answer, (0, 1))


@case('K25 a KV command on a block namespace is judged as a block command')
def k25(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(2, 1, b'\xff' * 16, 4096, nsid=NSID, dptr=sgl(0x5A, 4096)))
        status_of(answer, (0, 0x80), (0, 0), (0, 2))
        status_of(h.io.command(kv(0x10, 1, b'key', nsid=NSID))[0], (0, 1))
        status_of(h.io.command(nvm(READ, 1, nsid=1))[0], (0, 0x86))


@each('D20 a connection that ends inside a write leaves whole blocks', [1, 2, 5])
def d20(a, pieces):
    with Host(a.port) as h:
        old, new = noise(64 * BLOCK, 1), noise(64 * BLOCK, 2)
        status_of(put(h.io, 0, old), (0, 0))
        c = h.queue(2)
        c.send(c.capsule(nvm(WRITE, 7, 0, 64)))
        _, ttag, offset, length = c.r2t()
        step = length // 8 // 4 * 4
        for i in range(pieces):
            c.send(c.h2c(7, ttag, offset + i * step, new[offset + i * step:][:step], last=False))
        c.reset()
        time.sleep(0.05)                       # waits-for: nothing; the reset may come first
        got = get(h.io, 0, 64)
        for i in range(0, len(got), BLOCK):
            assert got[i:i + BLOCK] in (old[i:i + BLOCK], new[i:i + BLOCK]), f'block {i // BLOCK}'


@each('L06 closed in the middle of 100 commands', ['reads', 'open R2Ts', 'trims'])
def l06(a, what):
    with Host(a.port) as h:
        for r in range(5):
            c = h.queue(2 + r, sqsize=127)
            for i in range(100):
                if what == 'trims':
                    raw = struct.pack('<IIQ', 0, 64, 8192 + i * 64)
                    c.send(c.capsule(sqe(DSM, i + 1, NSID, dptr=sgl(1, 16), cdw11=4), raw))
                else:
                    c.send(c.capsule(nvm(READ if what == 'reads' else WRITE, i + 1,
                                         8192 + i * 16, 16)))
            c.reset() if r % 2 else c.close()
        assert get(h.io, 8192, 1) in (bytes(BLOCK), get(h.io, 8192, 1))


class Canary:
    """Blocks of its own at the end of the namespace, with a host that breaks no rule."""

    def __init__(self, array):
        self.host = Host(array.port, hostid=b'\x02' * 16)
        self.n = 0

    def sing(self):
        self.n += 1
        data = noise(8 * BLOCK, 1000 + self.n)
        begin = time.monotonic()
        status_of(put(self.host.io, BLOCKS - 8, data), (0, 0))
        assert get(self.host.io, BLOCKS - 8, 8) == data, 'the canary\'s blocks changed'
        assert time.monotonic() - begin < 1, 'the canary waited'


def one(array, canary, run):
    fds = array.fds()
    run(array)
    canary.sing()
    end = time.monotonic() + 1.5
    while array.fds() > fds:
        assert time.monotonic() < end, f'{array.fds() - fds} connections stay open in the array'
        time.sleep(0.005)                      # waits-for: files to be closed in the array
    assert array.proc.poll() is None, 'the array has ended'


def small_blocks(kvof):
    """512-byte blocks: each write keeps its neighbours, in any order and overlap of pages."""
    array = Array(kvof, '--kv', '64MiB', '--block', '32MiB', '--block-bytes', '512')
    try:
        with Host(array.port) as h:
            want = bytearray(200 * 512)
            rnd = random.Random(5)
            for i in range(300):
                at, n = rnd.randrange(190), rnd.randrange(1, 10)
                data = noise(n * 512, i)
                want[at * 512:(at + n) * 512] = data
                status_of(put(h.io, 1003 + at, data, block=512), (0, 0))
            assert get(h.io, 1003, 200, block=512) == want
            status_of(h.io.command(nvm(ZEROES, 1, 1006, 21))[0], (0, 0))
            want[3 * 512:24 * 512] = bytes(21 * 512)
            assert get(h.io, 1003, 200, block=512) == want
            status_of(h.io.command(nvm(READ, 1, 65535, 2, block=512))[0], (0, 0x80))
    finally:
        array.stop()


def main():
    kvof, words = sys.argv[1], ' '.join(sys.argv[2:])
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        array = Array(kvof, '--kv', '64MiB', '--block', '64MiB', log=os.path.join(folder, 'err'))
        canary = Canary(array)
        for name, run in chosen(words):
            tap.tell(name, attempt(lambda: one(array, canary, run)))
            if array.proc.poll() is not None:
                array.err.seek(0)
                tap.tell('the array lives', array.err.read().decode()[-2000:])
                break
        array.stop()
        if not words:
            tap.tell('N18 blocks of 512 bytes keep their neighbours',
                     attempt(lambda: small_blocks(kvof)))
    return tap.end()


if __name__ == '__main__':
    sys.exit(main())
