# SPDX-License-Identifier: Apache-2.0
"""Abuse of data descriptors and the Key Value command set (groups S and K)."""
import os
import random
import struct
import tempfile
import threading
import time

from abuse_base import *

# --- S: data descriptors --------------------------------------------------------------------------


@each('S01 PSDT other than SGL is 0/02', [0x00, 0xC0])
def s01(a, flags):
    with Host(a.port) as h:
        command = bytearray(kv(2, 1, b's01', 64, dptr=sgl(0x5A, 64)))
        command[1] = flags
        status_of(h.io.command(bytes(command))[0], (0, 2))


@each('S02, S03, S04, S07 a descriptor type that TCP has not is refused',
      [0x40, 0x20, 0x30, 0x10, 0x5B, 0x5F, 0xF0, 0xFF])
def s02(a, kind):
    with Host(a.port) as h:
        for opcode in (2, 1):
            status_of(h.io.command(kv(opcode, 1, b's02', 64, dptr=sgl(kind, 64)))[0],
                      (0, 0x11), (0, 0x0E), (0, 0x0D))
        status_of(h.io.exist(b's02'), (0, 0x87))


@case('S06 an in-capsule descriptor for data to the host is refused')
def s06(a):
    with Host(a.port) as h:
        status_of(h.io.store(b's06', bytes(64)), (0, 0))
        status_of(h.io.command(kv(2, 1, b's06', 64, dptr=sgl(1, 64)))[0], (0, 2), (0, 0x11))


@each('S08, S09, K07 a descriptor length other than the value\'s is 0/0F',
      [0, 4095, 4097, 8192])
def s08(a, length):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b's08', 4096, dptr=sgl(0x5A, length)))[0], (0, 0x0F))
        status_of(h.io.command(kv(2, 1, b's08', 4096, dptr=sgl(0x5A, length)))[0], (0, 0x0F))
        if 0 < length <= 8192:
            status_of(h.io.command(kv(1, 1, b's08', 4096, dptr=sgl(1, length)),
                                   bytes(length))[0], (0, 0x0F))
        status_of(h.io.exist(b's08'), (0, 0x87))


@case('S09 in-capsule data that lies outside the capsule is refused')
def s09(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096, 4096)), bytes(4096))
        status_of(answer, (0, 0x0F), (0, 0x16))
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096, 1 << 40)), bytes(4096))
        status_of(answer, (0, 0x0F), (0, 0x16))
        answer, _ = h.io.command(kv(1, 1, b's09', 4096, dptr=sgl(1, 4096)), bytes(512))
        status_of(answer, (0, 0x0F), (0, 0x16))
        status_of(h.io.exist(b's09'), (0, 0x87))


@case('S10 lengths beyond MDTS are refused before a buffer is taken')
def s10(a):
    with Host(a.port) as h:
        for size in (8 << 20 | 4, 0xFFFFFFFF):
            status_of(h.io.command(kv(1, 1, b's10', size, dptr=sgl(0x5A, size)))[0],
                      (0, 0x85), (0, 2))
            status_of(h.io.command(kv(2, 1, b's10', size, dptr=sgl(0x5A, size)))[0],
                      (0, 2), (0, 0x0F))


@case('S11 a descriptor on a command without data is ignored or refused')
def s11(a):
    with Host(a.port) as h:
        status_of(h.io.store(b's11', b'x'), (0, 0))
        answer, _ = h.io.command(kv(0x10, 1, b's11', 0, dptr=sgl(0x5A, 4096)))
        status_of(answer, (0, 0), (0, 0x0F))


# --- K: Key Value ---------------------------------------------------------------------------------


@each('K01, K02, K03 a key length that is none is 0/86', [0, 17, 32, 255])
def k01(a, length):
    with Host(a.port) as h:
        for opcode in (1, 2, 0x10, 0x14):
            size, dptr, data = (8, sgl(1, 8), bytes(8)) if opcode == 1 else \
                (8, sgl(0x5A, 8), b'') if opcode == 2 else (0, b'', b'')
            status_of(h.io.command(kv(opcode, 1, b'k' * 16, size, dptr=dptr, key_len=length),
                                   data)[0], (0, 0x86))
        assert h.io.silent(0.02)


@case('K04 List takes a key of length 0 and not of 17')
def k04(a):
    with Host(a.port) as h:
        status_of(h.io.list(b'', 4096)[0], (0, 0))
        status_of(h.io.command(kv(6, 1, b'k' * 16, 4096, dptr=sgl(0x5A, 4096), key_len=17))[0],
                  (0, 0x86), (0, 2))


@each('K05 a value above KVVML is 0/85', [(8 << 20) + 1, 0xFFFFFFFF])
def k05(a, size):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b'k05', size, dptr=sgl(0x5A, size)))[0], (0, 0x85))


@case('K06 an empty value is a value')
def k06(a):
    with Host(a.port) as h:
        status_of(h.io.command(kv(1, 1, b'k06', 0))[0], (0, 0))
        answer, data = h.io.retrieve(b'k06', 100)
        status_of(answer, (0, 0))
        assert answer.dw0 == 0 and data == b''
        status_of(h.io.exist(b'k06'), (0, 0))


@case('K08 Retrieve into a smaller buffer moves what fits and tells the whole length')
def k08(a):
    value = noise(8192, 8)
    with Host(a.port) as h:
        status_of(h.io.store(b'k08', value), (0, 0))
        answer, data = h.io.retrieve(b'k08', 1000)
        status_of(answer, (0, 0))
        assert data == value[:1000] and answer.dw0 == 8192 and answer.dw1 == 0
        answer, data = h.io.retrieve(b'k08', 65536)
        assert data == value and answer.dw0 == 8192


@case('K09 Retrieve into no buffer tells the length')
def k09(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k09', bytes(777)), (0, 0))
        answer, data = h.io.command(kv(2, 1, b'k09', 0))
        status_of(answer, (0, 0))
        assert answer.dw0 == 777 and data == b''


@case('K12 store-if-absent: new succeeds, old is 0/89 and stays')
def k12(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k12', b'first', options=2), (0, 0))
        status_of(h.io.store(b'k12', b'second', options=2), (0, 0x89))
        assert h.io.retrieve(b'k12', 64)[1] == b'first'


@case('K13 store-if-present: missing is 0/87, old is replaced')
def k13(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k13', b'x', options=1), (0, 0x87))
        status_of(h.io.exist(b'k13'), (0, 0x87))
        status_of(h.io.store(b'k13', b'x'), (0, 0))
        status_of(h.io.store(b'k13', b'yy', options=1), (0, 0))
        assert h.io.retrieve(b'k13', 64)[1] == b'yy'


@case('K14 both conditions at once are 0/02 and store nothing')
def k14(a):
    with Host(a.port) as h:
        status_of(h.io.store(b'k14', b'x', options=3), (0, 2))
        status_of(h.io.exist(b'k14'), (0, 0x87))


@case('K23 a value that is damaged on its drive is 0/88, and never bytes')
def k23(a):
    with tempfile.TemporaryDirectory(prefix='kvof-k23-') as d:
        path = os.path.join(d, 'drive')
        array = Array(a.proc.args[0], drives=[path + ',size=64MiB'])
        value = noise(50000, 23)
        with Host(array.port) as h:
            status_of(h.io.store(b'k23', value), (0, 0))
            status_of(h.io.store(b'whole', value[::-1]), (0, 0))
            with open(path, 'r+b') as f:
                at = f.read().find(value[1000:1064])
                assert at > 0
                f.seek(at)
                f.write(bytes([value[1000] ^ 1]))
                os.fsync(f.fileno())
            answer, data = h.io.retrieve(b'k23', 50000)
            status_of(answer, (0, 0x88))
            assert data == b''
            status_of(h.io.retrieve(b'k23', 50000)[0], (0, 0x87))
            assert h.io.retrieve(b'whole', 50000)[1] == value[::-1]
        assert array.stop()[0] == 0


def linearisable(ops):
    """Wing and Gong's search over (begin, end, kind, result) of one key: kind is what was written, or
    None for a read; a state is the set of operations done and the value there is."""
    ops = sorted(ops)
    seen, todo = set(), [(0, None)]
    while todo:
        done, value = todo.pop()
        if done == (1 << len(ops)) - 1:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        left = [i for i in range(len(ops)) if not done >> i & 1]
        bound = min(ops[i][1] for i in left)
        for i in left:
            begin, _, kind, result = ops[i]
            if begin > bound:
                break
            if kind == 'store':
                todo.append((done | 1 << i, result))
            elif kind == 'delete' and (result == 'gone') == (value is not None):
                todo.append((done | 1 << i, None))
            elif kind == 'read' and result == value:
                todo.append((done | 1 << i, value))
    return False


@case('K17 Store, Delete and Retrieve that race have an order that explains all answers')
def k17(a):
    assert linearisable([(0, 1, 'store', 'a'), (2, 3, 'read', 'a')])
    assert not linearisable([(0, 1, 'store', 'a'), (2, 3, 'delete', 'gone'), (4, 5, 'read', 'a')])

    def actor(n, key, ops, errors):
        try:
            with Host(a.port, hostid=bytes([n + 20]) * 16) as h:
                rng = random.Random(n)
                for i in range(12):
                    what = rng.choice(('store', 'delete', 'read', 'read'))
                    begin = time.monotonic()
                    if what == 'store':
                        result = f'{n}:{i}'
                        status_of(h.io.store(key, result.encode()), (0, 0))
                    elif what == 'delete':
                        result = 'gone' if h.io.delete(key).status == (0, 0) else 'none'
                    else:
                        answer, data = h.io.retrieve(key, 64)
                        result = data.decode() if answer.status == (0, 0) else None
                    ops.append((begin, time.monotonic(), what, result))
        except Exception as e:
            errors.append(e)

    for r in range(6):
        ops, errors = [], []
        threads = [threading.Thread(target=actor, args=(n, b'k17%d' % r, ops, errors))
                   for n in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors, errors
        assert linearisable(ops), sorted(ops)


@case('K15 store-if-absent of one key from 8 connections has one winner a round')
def k15(a):
    with Host(a.port) as h:
        queues = [h.queue(2 + i) for i in range(8)]
        for r in range(100):
            key = b'k15' + struct.pack('<H', r)
            for i, q in enumerate(queues):
                q.send(q.capsule(kv(1, 1 + r % 9, key, 64, 2, dptr=sgl(1, 64)), bytes([i] * 64)))
            answers = [q.answer()[0].status for q in queues]
            assert answers.count((0, 0)) == 1 and answers.count((0, 0x89)) == 7, answers
            assert queues[0].retrieve(key, 64)[1] == bytes([answers.index((0, 0))] * 64)
        for q in queues:
            q.close()


@case('K18 Delete of an absent key follows EDNEK, for this host alone')
def k18(a):
    with Host(a.port) as h, Host(a.port, hostid=b'\7' * 16) as other:
        status_of(h.io.delete(b'k18'), (0, 0x87))
        status_of(h.admin.feature(0x20, 0, nsid=1), (0, 0))
        status_of(h.io.delete(b'k18'), (0, 0))
        status_of(other.io.delete(b'k18'), (0, 0x87))


@case('K20 key bytes past the length are ignored')
def k20(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b'k20', 4, dptr=sgl(1, 4), tail=b'\xff' * 13), b'abcd')
        status_of(answer, (0, 0))
        assert h.io.retrieve(b'k20', 4)[1] == b'abcd'
        status_of(h.io.exist(b'k20\xff'), (0, 0x87))


@case('K21 CDW12 and CDW13 are ignored')
def k21(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(1, 1, b'k21', 4, dptr=sgl(1, 4), cdw12=527,
                                    cdw13=0xFFFFFFFF), b'abcd')
        status_of(answer, (0, 0))
        assert h.io.retrieve(b'k21', 4)[1] == b'abcd'


def list_keys(data):
    count, at, out = struct.unpack_from('<I', data)[0], 4, []
    for _ in range(count):
        length = struct.unpack_from('<H', data, at)[0]
        assert 1 <= length <= 16
        out.append(data[at + 2:at + 2 + length])
        at += (2 + length + 3) // 4 * 4
    assert at <= len(data)
    return out


@each('K22 List into 3, 0 and 4 bytes', [3, 0, 4, 5])
def k22(a, room):
    with Host(a.port) as h:
        status_of(h.io.store(b'k22', b'x'), (0, 0))
        answer, data = h.io.list(b'', room)
        if room < 4:
            status_of(answer, (0, 2), (0, 0x85))
        else:
            status_of(answer, (0, 0))
            assert list_keys(data) == []


@case('K22 keys that live through a paged List are seen exactly once')
def k22b(a):
    with Host(a.port) as h:
        mine = {b'k22:%04d' % i for i in range(300)}
        for key in mine:
            status_of(h.io.store(key, b'x'), (0, 0))
        seen, start, n = [], b'', 0
        while True:
            answer, data = h.io.list(start, 600)
            status_of(answer, (0, 0))
            keys = [k for k in list_keys(data) if k != start]
            if not keys:
                break
            seen += keys
            start = keys[-1]
            n += 1
            status_of(h.io.store(b'k23:%04d' % n, b'y'), (0, 0))
        assert seen == sorted(seen)
        assert sorted(k for k in seen if k in mine) == sorted(mine)


@case('K25 opcodes of the block command set are those of KV here')
def k25(a):
    with Host(a.port) as h:
        answer, _ = h.io.command(sqe(1, 1, 1, dptr=sgl(1, 512), cdw10=0, cdw12=0), bytes(512))
        status_of(answer, (0, 0x86), (0, 0x0F))


@case('K26 KV commands without CC.CSS 110b are refused')
def k26(a):
    h = Host.__new__(Host)
    h.port, h.digests, h.more = a.port, 0, {}
    h.admin = l2(a.port, cc=0x00460001)
    h.io = h.queue(1)
    status_of(h.io.exist(b'k26'), (0, 0x0B), (1, 0x29), (1, 0x2A))
    h.close()


@case('K30 values of every odd size come back, in the capsule and by R2T')
def k30(a):
    for digests in (0, 3):
        with Host(a.port, digests) as h:
            for size in (1, 2, 3, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 131071,
                         131073):
                value = noise(size, size)
                if size <= 8192:
                    status_of(h.io.store(b'k30', value, inline=True), (0, 0))
                    assert h.io.retrieve(b'k30', size)[1] == value
                status_of(h.io.store(b'k30', value[::-1], inline=False), (0, 0))
                answer, data = h.io.retrieve(b'k30', size + 9)
                assert data == value[::-1] and answer.dw0 == size, size


@each('K31 a namespace that is not there is 0/0B', [0, 2, 65, 0xFFFFFFFF])
def k31(a, nsid):
    with Host(a.port) as h:
        answer, _ = h.io.command(kv(0x14, 1, b'k31', nsid=nsid))
        status_of(answer, (0, 0x0B))
        assert answer.dnr
