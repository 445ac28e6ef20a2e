# SPDX-License-Identifier: Apache-2.0
"""Abuse of Connect, queues, properties and admin commands (groups C, Q, P and A)."""
import struct
import time

from abuse_base import *

KNOWN_IO = {0x00, 0x01, 0x02, 0x06, 0x10, 0x14, 0x7F}
KNOWN_ADMIN = {0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F}


# --- C: Connect -----------------------------------------------------------------------------------


@each('C01 a command before Connect is 0/0C',
      ['identify', 'property get', 'retrieve', 'disconnect'])
def c01(a, what):
    with l1(a.port) as c:
        command = {'identify': sqe(6, 1, cdw10=1, dptr=sgl(0x5A, 4096)),
                   'property get': prop_get(1, 0, 1),
                   'retrieve': kv(2, 1, b'x', 64, dptr=sgl(0x5A, 64)),
                   'disconnect': struct.pack('<BBHB59x', 0x7F, 0x40, 1, 8)}[what]
        answer, _ = c.command(command)
        status_of(answer, (0, 0x0C))
        assert answer.dnr
        status_of(c.connect(), (0, 0))


@each('C02 an unknown FCTYPE is 0/01', [2, 3, 0x7F, 0xC0])
def c02(a, fctype):
    with l1(a.port) as c:
        status_of(c.command(struct.pack('<BBHB59x', 0x7F, 0x40, 1, fctype))[0], (0, 1))


def refused(a, *wanted, dw0=None, command=None, data=None):
    with l1(a.port) as c:
        answer, _ = c.command(command or connect_sqe(1), connect_data() if data is None else data)
        status_of(answer, *wanted)
        assert answer.dnr
        assert dw0 is None or answer.dw0 == dw0, hex(answer.dw0)


@case('C03 a record format that does not exist is 1/80')
def c03(a):
    refused(a, (1, 0x80), command=connect_sqe(1, recfmt=1))


@case('C04 an unknown subsystem is 1/82 and names SUBNQN')
def c04(a):
    refused(a, (1, 0x82), dw0=256 | 1 << 16, data=connect_data(subnqn='nqn.2026-11.io.kvof:other'))


@each('C05 a host name that is none is refused', ['', 'kvof', 'x' * 223])
def c05(a, name):
    with l1(a.port) as c:
        answer = c.connect(hostnqn=name)
        status_of(answer, (1, 0x82), (1, 0x84))
        assert answer.status != (1, 0x82) or answer.dw0 == (512 | 1 << 16), hex(answer.dw0)


@case('C07 a host identifier of zero is 1/82 and names HOSTID')
def c07(a):
    refused(a, (1, 0x82), dw0=0 | 1 << 16, data=connect_data(hostid=bytes(16)))


@each('C09 a name without its end is refused', ['subnqn', 'hostnqn'])
def c09(a, field):
    refused(a, (1, 0x82), dw0=(256 if field == 'subnqn' else 512) | 1 << 16,
            data=connect_data(**{field: b'nqn.2026-11.io.kvof:' + b'a' * 236}))


@case('C10 a controller of the host\'s choice is 1/82 and names CNTLID')
def c10(a):
    refused(a, (1, 0x82), dw0=16 | 1 << 16, data=connect_data(1))


@each('C12 Connect data of another length is refused', [1023, 1025, 0])
def c12(a, length):
    with l1(a.port) as c:
        data = (connect_data() + b'x')[:length]
        status_of(c.command(connect_sqe(1, dptr=sgl(1, length)), data)[0], (1, 0x82), (0, 2))


@case('C13 Connect data by R2T is served')
def c13(a):
    with l1(a.port) as c:
        c.send(c.capsule(connect_sqe(3, dptr=sgl(0x5A, 1024))))
        status_of(c.feed(3, connect_data()), (0, 0))


@each('C14 an I/O queue without its controller is 1/82 and names CNTLID', [0xFFFF, 0x7FFF, 0])
def c14(a, cntlid):
    refused(a, (1, 0x82), dw0=16 | 1 << 16, command=connect_sqe(1, qid=1),
            data=connect_data(cntlid))


@case('C14 an I/O queue of another host\'s controller is 1/82')
def c14b(a):
    with l2(a.port) as admin, l1(a.port) as c:
        answer = c.connect(1, admin.cntlid, hostid=b'\2' * 16)
        status_of(answer, (1, 0x82))


@each('C15 a queue that was not granted is refused', [65535, 65])
def c15(a, qid):
    with l2(a.port) as admin, l1(a.port) as c:
        status_of(c.connect(qid, admin.cntlid), (1, 1), (1, 0x82))


@case('C15 a queue above the number granted is refused')
def c15b(a):
    with l2(a.port) as admin, l1(a.port) as c:
        answer = admin.feature(7, 1 | 1 << 16)
        status_of(answer, (0, 0))
        assert answer.dw0 == 1 | 1 << 16, hex(answer.dw0)
        status_of(c.connect(3, admin.cntlid), (1, 1), (1, 0x82))
        status_of(c.connect(2, admin.cntlid), (0, 0))


@case('C15 a queue in use is refused and its user goes on')
def c15c(a):
    with Host(a.port) as h, l1(a.port) as c:
        status_of(c.connect(1, h.admin.cntlid), (1, 1), (1, 0x82))
        status_of(h.io.exist(b'c15'), (0, 0x87))


@case('C16 an I/O queue before CC.EN is refused')
def c16(a):
    with l2(a.port, cc=None) as admin, l1(a.port) as c:
        status_of(c.connect(1, admin.cntlid), (1, 0x82), (0, 0x0C))


@case('C18 a queue without SQ flow control has SQHD FFFFh')
def c18(a):
    with l1(a.port) as c:
        answer, _ = c.command(connect_sqe(1, cattr=4), connect_data())
        status_of(answer, (0, 0))
        assert answer.u16(16) == 0xFFFF


@case('C18 reserved attribute bits do no harm')
def c18b(a):
    with l1(a.port) as c:
        answer, _ = c.command(connect_sqe(1, cattr=0xF0), connect_data())
        status_of(answer, (0, 0), (1, 0x82), (0, 2))


@case('C19 SQSIZE 0 and one above MQES are refused')
def c19(a):
    for sqsize in (0, 128, 65535):
        refused(a, (1, 0x82), dw0=44, command=connect_sqe(1, sqsize=sqsize))


@case('C20 Connect twice is 0/0C')
def c20(a):
    with l2(a.port) as c:
        status_of(c.connect(), (0, 0x0C))


@case('C21 Discovery has no I/O queues')
def c21(a):
    with l2(a.port, subnqn=DISCOVERY) as admin, l1(a.port) as c:
        status_of(c.connect(1, admin.cntlid, subnqn=DISCOVERY), (1, 0x85), (1, 0x82))


def disconnect(cid, recfmt=0):
    return struct.pack('<BBHB19x16xH22x', 0x7F, 0x40, cid, 8, recfmt)


@case('C22 Disconnect of an I/O queue is answered, then it closes')
def c22(a):
    with Host(a.port) as h:
        c = h.queue(2)
        status_of(c.command(disconnect(1))[0], (0, 0))
        closed(c, 2.0)
        c.close()
        h.queue(2).close()


@case('C22 Disconnect of the admin queue is 1/85, a wrong format 1/80')
def c22b(a):
    with Host(a.port) as h:
        status_of(h.admin.command(disconnect(1))[0], (1, 0x85))
        status_of(h.io.command(disconnect(1, recfmt=1))[0], (1, 0x80))
        status_of(h.io.exist(b'c22'), (0, 0x87))


# --- Q: queues ------------------------------------------------------------------------------------


@case('Q01 a CID in use is 0/03 and its first user is unharmed')
def q01(a):
    value = noise(65536, 3)
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'q01', 65536, dptr=sgl(0x5A, 65536))))
        first = h.io.r2t()
        answer, _ = h.io.command(kv(0x14, 5, b'q01'))
        status_of(answer, (0, 3))
        h.io.send(h.io.h2c(5, first[1], first[2], value[first[2]:first[2] + first[3]]))
        status_of(h.io.feed(5, value), (0, 0))
        assert h.io.retrieve(b'q01', 65536)[1] == value


@case('Q01 a Fabrics command, and no other, may take the CID of a waiting event request')
def q01_event(a):
    event = struct.pack('<BBH60x', 0x0C, 0x40, 7)
    with l2(a.port) as c:                              # SPDK's host does so when it leaves
        c.send(c.capsule(event))
        assert c.silent()
        status_of(c.command(struct.pack('<BBH60x', 0x18, 0x40, 7))[0], (0, 3))
        for _ in range(2):
            answer, _ = c.command(prop_get(7, 0x14))
            status_of(answer, (0, 0))
            assert answer.dw0 == CC_ON, hex(answer.dw0)
        status_of(c.command(struct.pack('<BBH60x', 0x18, 0x40, 7))[0], (0, 0))
        c.send(c.capsule(event))                       # and may be used for one again
        assert c.silent()
        assert c.command(prop_set(7, 0x14, CC_ON | 1 << 14))[0].status == (0, 0)
        assert c.silent()                              # nothing comes for the one forgotten
        assert c.prop(0x1C).dw0 & 0xC == 8, 'no shutdown'
    with l2(a.port) as c:
        status_of(c.command(prop_get(1, 0x14))[0], (0, 0))


@each('Q04 fused commands are 0/02', [1, 2])
def q04(a, fuse):
    with Host(a.port) as h:
        command = bytearray(kv(0x14, 1, b'q04'))
        command[1] |= fuse
        status_of(h.io.command(bytes(command))[0], (0, 2))


@case('Q06 every unknown admin opcode is 0/01')
def q06(a):
    with l2(a.port) as c:
        for opcode in sorted(set(range(256)) - KNOWN_ADMIN):
            status_of(c.command(sqe(opcode, 7))[0], (0, 1))


@case('Q06 every unknown I/O opcode is 0/01')
def q06b(a):
    with Host(a.port) as h:
        for opcode in sorted(set(range(256)) - KNOWN_IO):
            status_of(h.io.command(sqe(opcode, 7, 1))[0], (0, 1))


@each('Q07 queue commands do not exist over fabrics', [0, 1, 4, 5])
def q07(a, opcode):
    with l2(a.port) as c:
        status_of(c.command(sqe(opcode, 1, cdw10=1))[0], (0, 1))


@case('Q08 commands on the wrong kind of queue are 0/01')
def q08(a):
    with Host(a.port) as h:
        status_of(h.admin.command(kv(0x14, 1, b'q08'))[0], (0, 1))
        status_of(h.io.command(sqe(0x0A, 1, 1, cdw10=7))[0], (0, 1))
        status_of(h.io.command(sqe(0x18, 2, 1))[0], (0, 1))


@case('Q10 CC.EN cleared with 31 Stores in flight: all stops, then RDY is 0')
def q10(a):
    with Host(a.port) as h:
        h.io.send(b''.join(h.io.capsule(kv(1, i + 1, b'q10' + bytes([i]), 65536,
                                           dptr=sgl(0x5A, 65536))) for i in range(31)))
        h.io.r2t()
        status_of(h.admin.set_cc(CC_ON & ~1), (0, 0))
        end = time.monotonic() + 1
        while h.admin.prop(0x1C).dw0 & 1:
            assert time.monotonic() < end, 'RDY stays'
        closed(h.io)
        status_of(h.admin.set_cc(CC_ON), (0, 0))
        assert h.admin.prop(0x1C).dw0 & 1
        again = h.queue(1)
        for i in range(31):
            status_of(again.exist(b'q10' + bytes([i])), (0, 0x87))
        again.close()


# --- P: properties --------------------------------------------------------------------------------


@case('P01 a property read with the wrong size is refused')
def p01(a):
    with l2(a.port, cc=None) as c:
        status_of(c.prop(0, 1), (0, 0))
        status_of(c.prop(0, 0), (1, 0x82), (0, 2))
        status_of(c.prop(4, 0), (1, 0x82), (0, 2))
        status_of(c.prop(0x14, 1), (1, 0x82), (0, 2))
        cap = c.prop(0, 1)
        assert cap.dw1 >> 11 & 1, 'CAP.CSS bit 6: all I/O command sets'
        assert c.prop(8).dw0 >= 0x10400


@each('P03 a property that can only be read is refused', [0x00, 0x08, 0x1C])
def p03(a, offset):
    with l2(a.port, cc=None) as c:
        answer, _ = c.command(prop_set(1, offset, 1, wide=offset == 0))
        status_of(answer, (1, 0x82), (0, 2))


@each('P04 CC with a bad field never becomes ready',
      ['MPS', 'AMS', 'CSS', 'IOSQES 0', 'IOSQES 15', 'reserved'])
def p04(a, what):
    cc = {'MPS': CC_ON | 0xF << 7, 'AMS': CC_ON | 7 << 11, 'CSS': CC_ON & ~0x70 | 5 << 4,
          'IOSQES 0': CC_ON & ~(0xF << 16), 'IOSQES 15': CC_ON | 0xF << 16,
          'reserved': CC_ON | 1 << 30}[what]
    with l2(a.port, cc=None) as c:
        answer = c.set_cc(cc)
        csts = c.prop(0x1C).dw0
        assert answer.status in ((1, 0x82), (0, 2)) or csts & 2, answer
        assert not csts & 1


@case('P05 CC.EN on and off 1,000 times without waiting')
def p05(a):
    with l2(a.port, cc=None) as c:
        before = a.rss_kib()
        for _ in range(40):
            out = b''.join(c.capsule(prop_set(i + 1, 0x14, CC_ON if i % 2 else CC_ON & ~1))
                           for i in range(25))
            c.send(out)
            for _ in range(25):
                status_of(c.answer()[0], (0, 0))
        status_of(c.set_cc(CC_ON), (0, 0))
        assert c.prop(0x1C).dw0 & 1
        assert a.rss_kib() < before + 2048


@case('P06 CC.SHN with Stores in flight: done only when they are')
def p06(a):
    value = noise(65536, 6)
    with Host(a.port) as h:
        h.io.send(h.io.capsule(kv(1, 5, b'p06', 65536, dptr=sgl(0x5A, 65536))))
        r2t = h.io.r2t()
        status_of(h.admin.set_cc(CC_ON | 1 << 14), (0, 0))
        assert h.admin.prop(0x1C).dw0 >> 2 & 3 == 1, 'shutdown is going on'
        status_of(h.io.command(kv(0x14, 9, b'p06'))[0], (0, 0x0C))
        h.io.send(h.io.h2c(5, r2t[1], r2t[2], value[r2t[2]:r2t[2] + r2t[3]]))
        status_of(h.io.feed(5, value), (0, 0))
        end = time.monotonic() + 1
        while h.admin.prop(0x1C).dw0 >> 2 & 3 != 2:
            assert time.monotonic() < end, 'shutdown does not end'
    with Host(a.port) as h:
        assert h.io.retrieve(b'p06', 65536)[1] == value


@case('P07 a property on an I/O queue is refused')
def p07(a):
    with Host(a.port) as h:
        status_of(h.io.set_cc(CC_ON & ~1), (0, 0x0C), (0, 1))
        status_of(h.io.prop(0x1C), (0, 0x0C), (0, 1))
        status_of(h.io.exist(b'p07'), (0, 0x87))


@case('P09 a subsystem reset that is not offered has no effect')
def p09(a):
    with l2(a.port) as c:
        c.command(prop_set(1, 0x20, 0x4E564D65))
        assert c.prop(0x1C).dw0 & 1


# --- A: admin -------------------------------------------------------------------------------------


@each('A01 an unknown CNS is 0/02', [0x04, 0x1F, 0x7F, 0xFF])
def a01(a, cns):
    with l2(a.port) as c:
        status_of(c.identify(cns, nsid=1)[0], (0, 2))


@each('A02 Identify of a namespace that is not there', [0, 2, 65, 0xFFFFFFFF])
def a02(a, nsid):
    with l2(a.port) as c:
        answer, data = c.identify(0, nsid)
        if nsid == 2:
            status_of(answer, (0, 0))
            assert data == bytes(4096)
        else:
            status_of(answer, (0, 0x0B))


@each('A04 a command set that is not there is 0/02', [2, 0x30, 0xFF])
def a04(a, csi):
    with l2(a.port) as c:
        for cns in (5, 6, 7):
            status_of(c.identify(cns, 1 if cns == 5 else 0, csi)[0], (0, 2))


@case('A05 what Linux asks about a KV namespace is answered')
def a05(a):
    with l2(a.port) as c:
        answer, data = c.identify(2)
        assert struct.unpack_from('<II', data) == (1, 0)
        _, data = c.identify(3, 1)
        types, at = {}, 0
        while data[at + 1]:
            types[data[at]] = data[at + 4:at + 4 + data[at + 1]]
            at += 4 + data[at + 1]
        assert types[4] == b'\1' and len(types[2]) == 16 and len(types[3]) == 16, types
        _, data = c.identify(8, 1)
        assert data[14] & 1, 'NSTAT: ready'
        answer, data = c.log(5, 4096, csi=1)
        status_of(answer, (0, 0))
        for opcode in (1, 2, 6, 0x10, 0x14):
            assert data[1024 + 4 * opcode] & 1, hex(opcode)
        _, data = c.identify(5, 1, 1)
        assert struct.unpack_from('<HxxI', data, 72) == (16, 8 << 20), 'KVKML and KVVML'
        _, data = c.identify(1)
        assert data[77] == 11 and data[111] == 1 and struct.unpack_from('<I', data, 536)[0] & 3
        assert data[76] == 0, 'CMIC: one controller'
        assert struct.unpack_from('<I', data, 1792)[0] == 516, 'IOCCSZ'
        for cns, csi in ((6, 0), (6, 1), (0x1C, 0), (7, 1)):
            status_of(c.identify(cns, 0, csi)[0], (0, 0))
        assert c.identify(7, 0, 0)[1] == bytes(4096), 'no block namespace'


@each('A06 a log page that is not there is 1/09', [0x7F, 0xC1, 0x70])
def a06(a, lid):
    with l2(a.port) as c:
        status_of(c.log(lid)[0], (1, 9))


@each('A07 an offset that is no dword is 0/02', [1, 2, 3])
def a07(a, offset):
    with l2(a.port) as c:
        status_of(c.log(1, 512, offset)[0], (0, 2))


@each('A08 an offset past the log is 0/02', [1 << 20, 0xFFFFFFFFFFFFFFFC])
def a08(a, offset):
    for nqn, lid in ((NQN, 1), (DISCOVERY, 0x70)):
        with l2(a.port, subnqn=nqn) as c:
            status_of(c.log(lid, 512, offset)[0], (0, 2))


@case('A10 bytes past the end of a log are zeros')
def a10(a):
    with l2(a.port) as c:
        status_of(c.identify(0x7F)[0], (0, 2))
        answer, data = c.log(1, 64 * 17)
        status_of(answer, (0, 0))
        assert struct.unpack_from('<Q', data)[0] == 1 and data[14:16] == b'\x28\0'
        assert data[64:] == bytes(64 * 16)
        answer, data = c.log(2, 262144)
        status_of(answer, (0, 0))
        assert len(data) == 262144 and data[512:] == bytes(262144 - 512)


@case('A12 log pages before CC.EN are 0/0C')
def a12(a):
    for nqn, lid in ((NQN, 2), (DISCOVERY, 0x70)):
        with l2(a.port, cc=None, subnqn=nqn) as c:
            status_of(c.log(lid, 4096, 4096)[0], (0, 0x0C))


@case('A14 a queue count of FFFFh is 0/02, a second count 0/0C')
def a14(a):
    with Host(a.port) as h:
        status_of(h.admin.feature(7, 0xFFFFFFFF), (0, 2), (0, 0x0C))
        status_of(h.admin.feature(7, 3 | 3 << 16), (0, 0x0C))
    with l2(a.port) as c:
        status_of(c.feature(7, 0xFFFFFFFF), (0, 2))


@each('A15 any keep alive time is taken or refused', [0, 1, 0xFFFFFFFF])
def a15(a, kato):
    with l2(a.port) as c:
        answer = c.feature(0x0F, kato)
        status_of(answer, (0, 0), (0, 0x1A))
        status_of(c.command(sqe(0x18, 9))[0], (0, 0))


@case('A16 reserved event bits are 0/02')
def a16(a):
    with l2(a.port) as c:
        status_of(c.feature(0x0B, 0x0F000000), (0, 2))
        status_of(c.feature(0x0B, 0x100), (0, 0))


@case('A17 saving a feature is 1/0D')
def a17(a):
    with l2(a.port) as c:
        status_of(c.feature(0x0B, 0, save=1), (1, 0x0D))


@case('A18 Get Features with a wrong SEL or FID is 0/02')
def a18(a):
    with l2(a.port) as c:
        for sel in range(4, 8):
            status_of(c.command(sqe(0x0A, 1, cdw10=0x0B | sel << 8))[0], (0, 2))
        for fid in (0, 0x7F):
            status_of(c.command(sqe(0x0A, 1, cdw10=fid))[0], (0, 2))


@case('A19 one event request too many is 1/05, the others stay open')
def a19(a):
    with l2(a.port) as c:
        c.send(b''.join(c.capsule(sqe(0x0C, 200 + i)) for i in range(5)))
        answer, _ = c.answer()
        status_of(answer, (1, 5))
        assert answer.cid == 204
        assert c.silent()
        status_of(c.command(sqe(0x18, 9))[0], (0, 0))


@case('A21 Abort of what is not there says so')
def a21(a):
    with l2(a.port) as c:
        for what in (0x1234 << 16, 0x1234 << 16 | 0x77, 0xFFFFFFFF, 5 << 16):
            answer, _ = c.command(sqe(8, 5, cdw10=what))
            status_of(answer, (0, 0))
            assert answer.dw0 & 1


@case('A21 Abort of an event request ends it')
def a21b(a):
    with l2(a.port) as c:
        c.send(c.capsule(sqe(0x0C, 300)) + c.capsule(sqe(8, 301, cdw10=300 << 16)))
        answers = {x.cid: x for x in (c.answer()[0], c.answer()[0])}
        status_of(answers[300], (0, 7))
        assert answers[301].dw0 & 1 == 0


@case('A22 many Aborts at once are all answered')
def a22(a):
    with l2(a.port) as c:
        c.send(b''.join(c.capsule(sqe(8, 400 + i, cdw10=9 << 16)) for i in range(20)))
        for _ in range(20):
            status_of(c.answer()[0], (0, 0), (1, 3))


@case('A24 Keep Alive: before CC.EN 0/0C, with KATO 0 success')
def a24(a):
    with l2(a.port, cc=None) as c:
        status_of(c.command(sqe(0x18, 1))[0], (0, 0x0C))
        status_of(c.set_cc(CC_ON), (0, 0))
        status_of(c.command(sqe(0x18, 1))[0], (0, 0))


@case('A25 a host that goes silent is dropped at 1.0 to 1.5 times KATO, others are not')
def a25(a):
    with Host(a.port) as other, Host(a.port, kato=1000) as h:
        begin = time.monotonic()
        h.io.sock.settimeout(3)
        try:
            h.io.recv()
        except Closed:
            pass
        took = time.monotonic() - begin
        assert 0.9 <= took <= 1.5, f'{took:.2f} s'
        closed(h.admin)
        status_of(other.io.exist(b'a25'), (0, 0x87))


@case('A26 traffic counts as keep alive')
def a26(a):
    with Host(a.port, kato=1000) as h:
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            status_of(h.io.exist(b'a26'), (0, 0x87))
            time.sleep(0.1)                    # waits-for: time to pass, it is what is tested
        status_of(h.admin.command(sqe(0x18, 1))[0], (0, 0))


@each('A27 a command that is not offered is 0/01',
      [0x80, 0x84, 0x10, 0x11, 0x0D, 0x81, 0x82, 0x19, 0x1C])
def a27(a, opcode):
    with l2(a.port) as c:
        status_of(c.command(sqe(opcode, 1, 1))[0], (0, 1))


@case('A28 a namespace where none is meant is refused')
def a28(a):
    with l2(a.port) as c:
        status_of(c.command(sqe(0x18, 1, 5))[0], (0, 2), (0, 0x0B))
        status_of(c.identify(1, nsid=5)[0], (0, 2), (0, 0x0B))
        status_of(c.feature(0x0B, 0, nsid=1), (1, 0x0F), (0, 2), (0, 0x0B))


@case('A30 the statistics log tells keys and bytes')
def a30(a):
    with Host(a.port) as h:
        answer, before = h.admin.log(0xC0, 512, nsid=1)
        status_of(answer, (0, 0))
        assert before[:8] == b'kvofSTAT' and struct.unpack_from('<II', before, 8) == (1, 512)
        status_of(h.io.store(b'a30', bytes(70000)), (0, 0))
        _, after = h.admin.log(0xC0, 512, nsid=1)
        (keys0, used0), (keys1, used1) = (struct.unpack_from('<QQ', x, 40) for x in (before, after))
        assert keys1 == keys0 + 1 and used1 >= used0 + 70000
        wrote = [struct.unpack_from('<Q', x, 96)[0] for x in (before, after)]
        assert wrote[1] >= wrote[0] + 70000


@case('A31 Discovery lists the subsystem once, at this address')
def a31(a):
    with l2(a.port, subnqn=DISCOVERY) as c:
        _, head = c.log(0x70, 1024)
        assert struct.unpack_from('<Q', head, 8)[0] == 1
        _, both = c.log(0x70, 2048)
        entry = both[1024:]
        assert entry[0] == 3 and entry[1] == 1 and entry[2] == 2
        assert entry[32:64].rstrip(b'\0 ') == str(a.port).encode()
        assert entry[256:512].rstrip(b'\0') == NQN.encode()
        assert entry[512:768].rstrip(b'\0 ') == b'127.0.0.1'
        assert c.log(0x70, 1024, 1024)[1] == entry
        status_of(c.identify(2)[0], (0, 2), (0, 0x0B))


@case('A32 CNS 00h of a KV namespace has a size for those who know command sets alone')
def a32(a):
    with l2(a.port) as c:
        _, kv_page = c.identify(5, 1, 1)
        _, page = c.identify(0, 1)
        nsze, ncap = struct.unpack_from('<QQ', page)
        assert nsze == ncap == struct.unpack_from('<Q', kv_page)[0] > 0
        assert page[25] == 0 and page[128:384] == bytes(256), 'no block format'
        assert page[104:128] == kv_page[48:72], 'NGUID and EUI64'
    with l2(a.port, cc=0x00460001) as c:
        _, page = c.identify(0, 1)
        assert page[:24] == bytes(24), 'a host that knows blocks alone sees a size'
