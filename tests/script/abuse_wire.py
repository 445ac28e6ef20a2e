# SPDX-License-Identifier: Apache-2.0
"""Abuse of headers, the handshake and data transfer (groups T and D)."""
import struct
import time

from abuse_base import *

# --- T: headers and handshake ---------------------------------------------------------------------


@case('T01 a type that does not exist is 01/0')
def t01(a):
    c = l1(a.port)
    c.send(bytes.fromhex('0a00180018000000') + bytes(16))
    term(c, (1, 0))


@each('T02 a type of the other direction is 01/0', [1, 3, 5, 7, 9])
def t02(a, kind):
    c = l1(a.port)
    hlen = 128 if kind == 1 else 24
    c.send(struct.pack('<BBBBI', kind, 0, hlen, 0, hlen) + bytes(hlen - 8))
    term(c, (1, 0))


@each('T03 a reserved type is 01/0', [0x08, 0xFF])
def t03(a, kind):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', kind, 0, 24, 0, 24) + bytes(16))
    term(c, (1, 0))


@each('T04 ICReq with a wrong HLEN is 01/2', [0x7F, 0, 0xFF])
def t04(a, hlen):
    c = Conn(a.port)
    c.send(icreq(hlen=hlen))
    term(c, (1, 2))


@each('T05 ICReq with a wrong PLEN is 01/4', [0x7F, 0x81, 0, 0xFFFFFFFF])
def t05(a, plen):
    c = Conn(a.port)
    c.send(icreq(plen=plen))
    term(c, (1, 4))


@case('T07 ICReq with PFV 1 is refused')
def t07(a):
    c = Conn(a.port)
    c.send(icreq(pfv=1))
    term(c, (1, 8), (6, 8))


@case('T08 ICReq with HPDA 32 is 01/10')
def t08(a):
    c = Conn(a.port)
    c.send(icreq(hpda=32))
    term(c, (1, 10))


@case('T09 reserved digest bits are not echoed')
def t09(a):
    c = Conn(a.port)
    c.send(icreq(digests=0xFC))
    got = c.recv()
    if got.type == ICRESP:
        assert got.raw[11] & 0xFC == 0, got.raw[11]
    else:
        assert got.type == C2HTERM and got.fes == (1, 11), got


@each('T11 a second ICReq is a sequence error, digests', [0, 3])
def t11(a, digests):
    c = l1(a.port, digests)
    c.send(icreq(digests))
    term(c, (2, None), (1, 0))


@case('T12 a command before ICReq is a sequence error')
def t12(a):
    c = Conn(a.port)
    c.send(c.capsule(connect_sqe(1), connect_data()))
    term(c, (2, None))


@case('T15 ICReq one byte at a time is answered')
def t15(a):
    c = Conn(a.port)
    for byte in icreq():
        c.send(bytes([byte]))
    assert c.recv().type == ICRESP


@case('T16 data before any command is refused')
def t16(a):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHHII4x', H2C, LAST, 24, 24, 28, 1, 1, 0, 4) + b'abcd')
    term(c, (2, None), (1, 10))


@each('T17 a capsule with a wrong HLEN is 01/2', [0x47, 0, 0xFF])
def t17(a, hlen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, 0, hlen, 0, 72) + connect_sqe(1))
    term(c, (1, 2))


@each('T18 a capsule with a wrong PLEN is 01/4', [0, 8, 0x47])
def t18(a, plen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, 0, 72, 0, plen) + connect_sqe(1))
    term(c, (1, 4))


@each('T19 a capsule of gigabytes is refused at once and takes no memory', [0xFFFFFFFF, 0x7FFFFFFF])
def t19(a, plen):
    with Host(a.port) as h:
        before = a.rss_kib()
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, 72, plen) +
                  kv(1, 1, b'big', 4096, dptr=sgl(1, 4096)))
        term(h.io, (1, 4), (5, None))
        assert a.rss_kib() < before + 4096


@each('T20, T21 a wrong PDO is 01/3', [0, 4, 0x47, 0x49, 0x99, 0xC8, 0xFF])
def t21(a, pdo):
    with Host(a.port) as h:
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, pdo, 72 + 4096) +
                  kv(1, 1, b'pdo', 4096, dptr=sgl(1, 4096)) + bytes(4096))
        term(h.io, (1, 3))


@case('T21 a PDO past PLEN is 01/3')
def t21b(a):
    with Host(a.port) as h:
        h.io.send(struct.pack('<BBBBI', CMD, 0, 72, 0xF0, 80) +
                  kv(1, 1, b'pdo', 8, dptr=sgl(1, 8)) + bytes(8))
        term(h.io, (1, 3))


@each('T23 a digest flag that was not agreed is 01/1', [HDGST, DDGST])
def t23(a, flag):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, flag, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T23 no digest flag where a header digest was agreed is 01/1')
def t23b(a):
    c = l1(a.port, 3)
    c.send(struct.pack('<BBBBI', CMD, 0, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T24 a data digest flag without data is refused')
def t24(a):
    c = l1(a.port, 3)
    head = struct.pack('<BBBBI', CMD, HDGST | DDGST, 72, 0, 76) + connect_sqe(1)
    c.send(head + struct.pack('<I', crc32c(head)))
    term(c, (1, 1), (1, 4))


@each('T26 a flag of data PDUs on a capsule is 01/1', [LAST, SUCCESS])
def t26(a, flag):
    c = l1(a.port)
    c.send(struct.pack('<BBBBI', CMD, flag, 72, 0, 72) + connect_sqe(1))
    term(c, (1, 1))


@case('T27 a wrong header digest is 03 with the digest received')
def t27(a):
    with Host(a.port, 3) as h:
        bad = h.io.capsule(kv(1, 1, b'hdgst', 0), bad_header=True)
        h.io.send(bad)
        term(h.io, (3, struct.unpack('<I', bad[72:76])[0]))
        again = h.queue(2)
        status_of(again.exist(b'hdgst'), (0, 0x87))
        again.close()


@case('T29 a wrong digest of in-capsule data is 0/22 and nothing changes')
def t29(a):
    with Host(a.port, 3) as h:
        status_of(h.io.store(b't29', b'old' * 100), (0, 0))
        answer, _ = h.io.command(kv(1, 77, b't29', 300, dptr=sgl(1, 300)), b'new' * 100,
                                 bad_data=True)
        status_of(answer, (0, 0x22))
        assert not answer.dnr, '0/22 may be sent again'
        assert h.io.retrieve(b't29', 300)[1] == b'old' * 100


@case('T30 a wrong digest in the second of four H2CData is one 0/22')
def t30(a):
    value = noise(65536)
    with Host(a.port, 3) as h:
        h.io.send(h.io.capsule(kv(1, 5, b't30', 65536, dptr=sgl(0x5A, 65536))))
        sent = 0
        while sent < 65536:
            cid, ttag, offset, length = h.io.r2t()
            assert (cid, offset) == (5, sent)
            while length:
                part = min(16384, length)
                length -= part
                h.io.send(h.io.h2c(5, ttag, sent, value[sent:sent + part], last=length == 0,
                                   bad_data=sent == 16384))
                sent += part
        answer, _ = h.io.answer()
        status_of(answer, (0, 0x22))
        assert h.io.silent()
        status_of(h.io.exist(b't30'), (0, 0x87))


@each('T31 a bad command with a bad digest is completed once',
      ['opcode', 'namespace'])
def t31(a, what):
    with Host(a.port, 3) as h:
        command = kv(0x55 if what == 'opcode' else 1, 9, b't31', 64,
                     nsid=1 if what == 'opcode' else 0xFFFF, dptr=sgl(1, 64))
        answer, _ = h.io.command(command, bytes(64), bad_data=True)
        assert answer.status != (0, 0) and answer.cid == 9
        assert h.io.silent()
        status_of(h.io.exist(b't31'), (0, 0x87))


@each('T32 H2CTermReq closes at once and without an answer', [1, 2, 3, 4, 5, 6, 7, 0xFFFF])
def t32(a, fes):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, 24, fes, 0))
    closed_without_answer(c)


@each('T33 a malformed H2CTermReq closes silently', [8, 23, 153, 1000])
def t33(a, plen):
    c = l1(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, plen, 1, 0) + bytes(max(0, plen - 24)))
    closed_without_answer(c)


@case('T33 H2CTermReq before ICReq closes silently')
def t33b(a):
    c = Conn(a.port)
    c.send(struct.pack('<BBBBIHI10x', H2CTERM, 0, 24, 0, 24, 1, 0))
    closed_without_answer(c)


@case('T35 a capsule cut after each byte leaves nothing behind')
def t35(a):
    with Host(a.port) as h:
        capsule = h.io.capsule(kv(0x14, 1, b't35'))
        for cut in range(1, 72):
            c = h.queue(2 + cut % 60)
            c.send(capsule[:cut])
            c.sock.shutdown(1)
            closed_without_answer(c)
            c.close()


@case('T36 a Store cut at every 16th byte stores nothing')
def t36(a):
    with Host(a.port) as h:
        capsule = h.io.capsule(kv(1, 1, b't36', 4096, dptr=sgl(1, 4096)), noise(4096))
        for n, cut in enumerate(range(16, len(capsule), 16)):
            c = h.queue(2 + n % 60)
            c.send(capsule[:cut])
            c.reset()
        status_of(h.io.exist(b't36'), (0, 0x87))


@each('T37 64 commands are answered however they are cut', ['one send', 'single bytes'])
def t37(a, how):
    with Host(a.port) as h:
        c = h.queue(2, sqsize=127)
        out = b''.join(c.capsule(kv(1, 100 + i, bytes([1 + i]) + b't37', 8, dptr=sgl(1, 8)),
                                 struct.pack('<Q', i)) for i in range(64))
        if how == 'one send':
            c.send(out)
        else:
            for at in range(0, len(out), 1):
                c.sock.send(out[at:at + 1])
        answers = [c.answer()[0] for _ in range(64)]
        assert sorted(x.cid for x in answers) == list(range(100, 164))
        assert all(x.status == (0, 0) for x in answers)
        assert [x.u16(16) for x in answers] == list(range(2, 66)), 'SQHD goes up by one each'
        for i in range(64):
            assert c.retrieve(bytes([1 + i]) + b't37', 8)[1] == struct.pack('<Q', i)
        c.close()


@case('T39 in-capsule data above IOCCSZ is refused')
def t39(a):
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 1, b't39', 8704, dptr=sgl(1, 8704)), bytes(8704)))
        pdu = h.io.recv()
        ok = pdu.type == RESP and pdu.status in ((0, 0x0F), (0, 0x16)) or \
            pdu.type == C2HTERM and pdu.fes[0] in (5, 1)
        assert ok, pdu


@case('T40 an admin capsule may carry 8192 bytes and not 8196')
def t40(a):
    with l2(a.port) as c:
        answer, _ = c.command(sqe(0x18, 500, dptr=sgl(1, 8192)), bytes(8192))
        assert answer.cid == 500
        status_of(c.prop(0x1C), (0, 0))
        c.send(c.capsule(sqe(0x18, 501, dptr=sgl(1, 8196)), bytes(8196)))
        pdu = c.recv()
        assert pdu.type == C2HTERM or pdu.status != (0, 0), pdu


@each('T41 what is not NVMe/TCP is dropped within a second',
      ['http', 'tls', 'ssh', 'noise'])
def t41(a, what):
    c = Conn(a.port)
    c.send({'http': b'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
            'tls': bytes.fromhex('16030100c8010000c40303') + noise(200),
            'ssh': b'SSH-2.0-OpenSSH_9.2\r\n',
            'noise': noise(1 << 20, 7)}[what])
    closed(c, 1.0)


# --- D: data towards the array --------------------------------------------------------------------


class Data:
    """A Store of 64 KiB whose first R2T is here; cid 5."""

    def __init__(self, a, key):
        self.host = Host(a.port)
        self.c = self.host.io
        self.c.send(self.c.capsule(kv(1, 5, key, 65536, dptr=sgl(0x5A, 65536))))
        _, self.ttag, self.offset, self.length = self.c.r2t()

    def raw(self, cid=5, ttag=None, offset=None, length=None, plen=None, flags=LAST, data=None):
        ttag = self.ttag if ttag is None else ttag
        offset = self.offset if offset is None else offset
        length = self.length if length is None else length
        data = bytes(length) if data is None else data
        self.c.send(struct.pack('<BBBBIHHII4x', H2C, flags, 24, 24,
                                24 + length if plen is None else plen, cid, ttag & 0xFFFF, offset,
                                length) + data)

    def finish(self, key, stored=False):
        self.c.close()
        again = self.host.queue(2)
        status_of(again.exist(key), (0, 0) if stored else (0, 0x87))
        again.close()
        self.host.close()


@each('D01 a TTAG that was not given is 01/10', ['0', 'T+1', '80h', 'FFFFh'])
def d01(a, which):
    d = Data(a, b'd01')
    ttag = {'0': 0 if d.ttag else 7, 'T+1': d.ttag + 1, '80h': 0x80 ^ d.ttag, 'FFFFh': 0xFFFF}
    d.raw(ttag=ttag[which])
    term(d.c, (1, 10))
    d.finish(b'd01')


@case('D02 the CID of another command is refused')
def d02(a):
    d = Data(a, b'd02')
    d.raw(cid=6)
    term(d.c, (1, 8), (1, 10), (2, None))
    d.finish(b'd02')


@case('D03 an offset past what was asked is 04')
def d03(a):
    d = Data(a, b'd03')
    d.raw(offset=d.offset + d.length, length=4)
    term(d.c, (4, None))
    d.finish(b'd03')


@each('D05 more data than was asked is refused', ['R2TL', 'MAXH2CDATA'])
def d05(a, which):
    d = Data(a, b'd05')
    d.raw(length=d.length + 4 if which == 'R2TL' else d.c.maxh2c + 4)
    term(d.c, (4, None), (5, None))
    d.finish(b'd05')


@case('D07 data that overlaps is refused')
def d07(a):
    d = Data(a, b'd07')
    d.raw(length=8192, flags=0)
    d.raw(offset=4096, length=8192, flags=0)
    term(d.c, (2, None), (4, None))
    d.finish(b'd07')


@each('D09 PLEN that does not fit DATAL is refused', [-4, 4])
def d09(a, off):
    d = Data(a, b'd09')
    d.raw(length=4096, plen=24 + 4096 + off, flags=0)
    term(d.c, (1, 16), (1, 4))
    d.finish(b'd09')


@case('D10 LAST before the last is a sequence error')
def d10(a):
    d = Data(a, b'd10')
    d.raw(length=4096, flags=LAST)
    term(d.c, (2, None))
    d.finish(b'd10')


@case('D10 no LAST on the last is a sequence error')
def d10b(a):
    d = Data(a, b'd10b')
    d.raw(flags=0)
    term(d.c, (2, None))
    d.finish(b'd10b')


@each('D11, D12 data after all data is refused', ['after the answer', 'twice'])
def d11(a, how):
    d = Data(a, b'd11')
    value = bytes(65536)
    if how == 'twice' and d.length == 65536:
        d.raw()
        d.raw()
    else:
        d.raw()
        answer = d.c.feed(5, value)
        status_of(answer, (0, 0))
        d.raw()
    term(d.c, (1, 10), (2, None))
    d.c.close()
    d.host.close()


@case('D13 data for a Retrieve is refused')
def d13(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'd13', noise(65536)), (0, 0))
        h.io.send(h.io.capsule(kv(2, 5, b'd13', 65536, dptr=sgl(0x5A, 65536))) +
                  h.io.h2c(5, 0, 0, bytes(4096)))
        term(h.io, (1, 10), (1, 8), (2, None))


@case('D14 data for a Store with its data in the capsule is refused')
def d14(a):
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'd14', 64, dptr=sgl(1, 64)), bytes(64)) +
                  h.io.h2c(5, 0, 0, bytes(64)))
        term(h.io, (1, 10), (1, 8), (2, None))


@case('D16 SUCCESS in H2CData is 01/1')
def d16(a):
    d = Data(a, b'd16')
    d.raw(flags=LAST | SUCCESS)
    term(d.c, (1, 1))
    d.finish(b'd16')


@case('D18 hosts that hoard R2T and move nothing leave others their rate')
def d18(a):
    with Host(a.port) as other:
        value = noise(262144)

        def rate(seconds=0.7):
            n, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                status_of(other.io.store(b'd18', value), (0, 0))
                assert other.io.retrieve(b'd18', len(value))[1] == value
                n += 1
            return n / seconds

        rate(0.2)
        alone = rate()
        hoards = []
        for i in range(32):
            h = Host(a.port, sqsize=127, hostid=bytes([i + 1] * 16))
            h.io.send(b''.join(h.io.capsule(kv(1, n + 1, b'hoard', 1 << 20,
                                               dptr=sgl(0x5A, 1 << 20))) for n in range(120)))
            hoards.append(h)
        beside = max(rate() for _ in range(3)) # a busy machine slows one of them, starvation all
        for h in hoards:
            h.close()
        print(f'# D18: {alone:.0f} rounds/s alone, {beside:.0f} beside 32 hoarding hosts')
        assert beside >= 0.5 * alone


@case('D20, K27 a host that goes after half the data leaves nothing')
def d20(a):
    d = Data(a, b'd20')
    d.raw(length=d.length // 2 // 4 * 4, flags=0)
    d.c.reset()
    d.finish(b'd20')


@case('D20 a host that goes after half the data leaves the old value whole')
def d20b(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'd20b', b'old' * 1000), (0, 0))
        c = h.queue(2)
        c.send(c.capsule(kv(1, 5, b'd20b', 65536, dptr=sgl(0x5A, 65536))))
        _, ttag, offset, length = c.r2t()
        c.send(c.h2c(5, ttag, offset, bytes(4096), last=length == 4096))
        c.reset()
        assert h.io.retrieve(b'd20b', 4000)[1] == b'old' * 1000


@case('D21 there is never a second R2T while one is open')
def d21(a):
    with Host(a.port) as h:
        value = noise(1 << 20)
        h.io.send(h.io.capsule(kv(1, 5, b'd21', 1 << 20, dptr=sgl(0x5A, 1 << 20))))
        done = 0
        while done < 1 << 20:
            cid, ttag, offset, length = h.io.r2t()
            assert (cid, offset) == (5, done)
            assert h.io.silent(0.02), 'something came while an R2T was open'
            while length:
                part = min(h.io.maxh2c, length)
                length -= part
                h.io.send(h.io.h2c(5, ttag, done, value[done:done + part], last=length == 0))
                done += part
        status_of(h.io.answer()[0], (0, 0))
        assert h.io.retrieve(b'd21', 1 << 20)[1] == value
