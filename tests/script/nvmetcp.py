# SPDX-License-Identifier: Apache-2.0
"""NVMe/TCP by hand, for tests that break its rules: raw sockets, nothing checked but what is asked.

Layouts are those of docs/sources.md [TCP], [FABRICS], [BASE], [KV]; names follow the abuse set: L1
is a connection after ICResp, L2 an admin queue with CC.EN set, LK an I/O queue for KV commands.
"""
import atexit
import errno
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time

ICREQ, ICRESP, H2CTERM, C2HTERM, CMD, RESP, H2C, C2H, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
HDGST, DDGST, LAST, SUCCESS = 1, 2, 4, 8
NQN = 'nqn.2026-11.io.kvof:array'
HOSTNQN = 'nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-0000000000ab'
DISCOVERY = 'nqn.2014-08.org.nvmexpress.discovery'
CC_ON = 0x00460061


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Closed(Exception):
    """The peer ended the stream."""


class Pdu:
    def __init__(self, head, rest):
        self.type, self.flags, self.hlen, self.pdo, self.plen = struct.unpack('<BBBBI', head)
        self.raw = head + rest

    @property
    def data(self):
        end = self.plen - (4 if self.flags & DDGST else 0)
        return self.raw[self.pdo:end] if self.pdo else b''

    def u16(self, at):
        return struct.unpack_from('<H', self.raw, at)[0]

    def u32(self, at):
        return struct.unpack_from('<I', self.raw, at)[0]

    @property
    def status(self):
        """(SCT, SC) of a CapsuleResp."""
        field = self.u16(22) >> 1
        return field >> 8 & 7, field & 0xFF

    @property
    def dnr(self):
        return self.u16(22) >> 15

    @property
    def cid(self):
        return self.u16(20)

    @property
    def dw0(self):
        return self.u32(8)

    @property
    def dw1(self):
        return self.u32(12)

    @property
    def fes(self):
        return self.u16(8), self.u32(10)

    def __repr__(self):
        if self.type == RESP:
            return f'CapsuleResp cid={self.cid} status={self.status[0]}/{self.status[1]:02X}'
        if self.type == C2HTERM:
            return f'C2HTermReq {self.fes[0]:02X}/{self.fes[1]}'
        return f'PDU type {self.type:02X} flags {self.flags:02X} plen {self.plen}'


def sgl(kind, length, offset=0):
    return struct.pack('<QI3xB', offset, length, kind)


def sqe(opcode, cid, nsid=0, flags=0x40, dptr=b'', cdw2=0, cdw3=0, cdw10=0, cdw11=0, cdw12=0,
        cdw13=0, cdw14=0, cdw15=0):
    return struct.pack('<BBHIIIQ16s6I', opcode, flags, cid, nsid, cdw2, cdw3, 0,
                       dptr or b'', cdw10, cdw11, cdw12, cdw13, cdw14, cdw15)


def kv(opcode, cid, key, size=0, options=0, nsid=1, dptr=None, key_len=None, cdw12=0, cdw13=0,
       tail=None):
    """One KV command; key_len and tail (bytes past the key) may lie."""
    raw = (key + (tail or b'') + bytes(16))[:16]
    lo, hi = struct.unpack('<II', raw[:8]), struct.unpack('<II', raw[8:])
    length = len(key) if key_len is None else key_len
    return sqe(opcode, cid, nsid, dptr=dptr or b'', cdw2=lo[0], cdw3=lo[1], cdw10=size,
               cdw11=length | options << 8, cdw12=cdw12, cdw13=cdw13, cdw14=hi[0], cdw15=hi[1])


def connect_sqe(cid, qid=0, sqsize=31, kato=0, recfmt=0, cattr=0, dptr=None):
    return struct.pack('<BBHB19x16sHHHBxI12x', 0x7F, 0x40, cid, 1,
                       sgl(0x01, 1024) if dptr is None else dptr, recfmt, qid, sqsize, cattr, kato)


def connect_data(cntlid=0xFFFF, subnqn=NQN, hostnqn=HOSTNQN, hostid=b'\x01' * 16):
    subnqn = subnqn.encode() if isinstance(subnqn, str) else subnqn
    hostnqn = hostnqn.encode() if isinstance(hostnqn, str) else hostnqn
    return struct.pack('<16sH238x256s256s256x', hostid, cntlid, subnqn, hostnqn)


def prop_get(cid, offset, wide=0):
    return struct.pack('<BBHB19x16xB3xI16x', 0x7F, 0x40, cid, 4, wide, offset)


def prop_set(cid, offset, value, wide=0):
    return struct.pack('<BBHB19x16xB3xIQ8x', 0x7F, 0x40, cid, 0, wide, offset, value)


class Conn:
    """One TCP connection and what was agreed on it."""

    def __init__(self, port, timeout=2.0):
        self.sock = socket.create_connection(('127.0.0.1', port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.hdgst = self.ddgst = False
        self.cid = 0
        self.maxh2c = 0

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass                               # what was received before tells why

    def _exactly(self, n):
        out = b''
        while len(out) < n:
            try:
                part = self.sock.recv(n - len(out))
            except ConnectionResetError:
                part = b''
            except socket.timeout:
                raise AssertionError('no answer in time') from None
            if not part:
                raise Closed
            out += part
        return out

    def recv(self):
        head = self._exactly(8)
        plen = struct.unpack_from('<I', head, 4)[0]
        assert 8 <= plen <= 1 << 27, f'a PDU of {plen} bytes'
        pdu = Pdu(head, self._exactly(plen - 8))
        if pdu.flags & HDGST and pdu.type in (RESP, C2H, R2T):
            want = struct.unpack_from('<I', pdu.raw, pdu.hlen)[0]
            assert crc32c(pdu.raw[:pdu.hlen]) == want, 'header digest of the target is wrong'
        if pdu.flags & DDGST and pdu.type == C2H:
            want = struct.unpack_from('<I', pdu.raw, pdu.plen - 4)[0]
            assert crc32c(pdu.data) == want, 'data digest of the target is wrong'
        return pdu

    def icreq(self, digests=0, hpda=0, maxr2t=0, pfv=0, hlen=128, plen=128):
        self.send(icreq(digests, hpda, maxr2t, pfv, hlen, plen))
        got = self.recv()
        assert got.type == ICRESP, got
        self.hdgst, self.ddgst = bool(got.raw[11] & 1), bool(got.raw[11] & 2)
        self.maxh2c = got.u32(12)
        assert self.maxh2c >= 4096 and self.maxh2c % 4 == 0
        return got

    def pdu(self, kind, specific, data=b'', flags=0, bad_header=False, bad_data=False):
        """A PDU with the digests that were agreed; bad_* flips one bit of the digest."""
        hlen = 8 + len(specific)
        flags |= (HDGST if self.hdgst else 0) | (DDGST if self.ddgst and data else 0)
        pdo = hlen + (4 if self.hdgst else 0) if data else 0
        plen = hlen + (4 if self.hdgst else 0) + len(data) + (4 if flags & DDGST else 0)
        out = struct.pack('<BBBBI', kind, flags, hlen, pdo, plen) + specific
        if self.hdgst:
            out += struct.pack('<I', crc32c(out) ^ bad_header)
        if data:
            out += data
            if flags & DDGST:
                out += struct.pack('<I', crc32c(data) ^ bad_data)
        return out

    def capsule(self, command, data=b'', **more):
        return self.pdu(CMD, command, data, **more)

    def h2c(self, cid, ttag, offset, data, last=True, **more):
        return self.pdu(H2C, struct.pack('<HHII4x', cid, ttag, offset, len(data)), data,
                        flags=LAST if last else 0, **more)

    def next_cid(self):
        self.cid = self.cid % 60000 + 1
        return self.cid

    def command(self, command, data=b'', **more):
        """Sends and returns (response, data that came). Answers no R2T."""
        self.send(self.capsule(command, data, **more))
        return self.answer()

    def answer(self):
        got = {}
        while True:
            pdu = self.recv()
            if pdu.type == C2H:
                got[pdu.u32(12)] = pdu.data
                assert not pdu.flags & SUCCESS, 'SUCCESS was not asked for'
                continue
            assert pdu.type == RESP, pdu
            data = b''
            for offset in sorted(got):
                assert offset == len(data), 'a hole in the data'
                data += got[offset]
            return pdu, data

    def r2t(self):
        pdu = self.recv()
        assert pdu.type == R2T, pdu
        return pdu.u16(8), pdu.u16(10), pdu.u32(12), pdu.u32(16)

    def connect(self, qid=0, cntlid=0xFFFF, sqsize=31, kato=0, **more):
        answer, _ = self.command(connect_sqe(self.next_cid(), qid, sqsize, kato),
                                 connect_data(cntlid, **more))
        return answer

    def prop(self, offset, wide=0):
        answer, _ = self.command(prop_get(self.next_cid(), offset, wide))
        return answer

    def set_cc(self, value):
        answer, _ = self.command(prop_set(self.next_cid(), 0x14, value))
        return answer

    def feature(self, fid, cdw11, nsid=0, save=0):
        answer, _ = self.command(sqe(0x09, self.next_cid(), nsid, cdw10=fid | save << 31,
                                     cdw11=cdw11))
        return answer

    def identify(self, cns, nsid=0, csi=0, dptr=None):
        return self.command(sqe(0x06, self.next_cid(), nsid, cdw10=cns, cdw11=csi << 24,
                                dptr=sgl(0x5A, 4096) if dptr is None else dptr))

    def log(self, lid, size=512, offset=0, nsid=0, csi=0):
        dwords = size // 4 - 1
        return self.command(sqe(0x02, self.next_cid(), nsid, dptr=sgl(0x5A, size),
                                cdw10=lid | (dwords & 0xFFFF) << 16, cdw11=dwords >> 16,
                                cdw12=offset & 0xFFFFFFFF, cdw13=offset >> 32, cdw14=csi << 24))

    def store(self, key, value, options=0, inline=None, chunk=None):
        cid = self.next_cid()
        inline = len(value) <= 8192 if inline is None else inline
        if inline:
            return self.command(kv(1, cid, key, len(value), options,
                                   dptr=sgl(0x01, len(value))), value)[0]
        self.send(self.capsule(kv(1, cid, key, len(value), options, dptr=sgl(0x5A, len(value)))))
        return self.feed(cid, value, chunk)

    def feed(self, cid, value, chunk=None):
        """Answers R2Ts for one Store until its completion."""
        chunk = min(chunk or self.maxh2c, self.maxh2c)
        while True:
            pdu = self.recv()
            if pdu.type == RESP:
                assert pdu.cid == cid
                return pdu
            assert pdu.type == R2T and pdu.u16(8) == cid, pdu
            ttag, offset, length = pdu.u16(10), pdu.u32(12), pdu.u32(16)
            assert offset + length <= len(value)
            at = offset
            while at < offset + length:
                end = min(at + chunk, offset + length)
                self.send(self.h2c(cid, ttag, at, value[at:end], last=end == offset + length))
                at = end

    def retrieve(self, key, room):
        return self.command(kv(2, self.next_cid(), key, room, dptr=sgl(0x5A, room)))

    def exist(self, key):
        return self.command(kv(0x14, self.next_cid(), key))[0]

    def delete(self, key):
        return self.command(kv(0x10, self.next_cid(), key))[0]

    def list(self, key, room):
        return self.command(kv(6, self.next_cid(), key, room, dptr=sgl(0x5A, room)))

    def eof(self, within=1.5):
        """True when the target closes in time; what it still sends is ignored."""
        self.sock.settimeout(0.2)
        end = time.monotonic() + within
        while time.monotonic() < end:
            try:
                if not self.sock.recv(65536):
                    return True
            except ConnectionResetError:
                return True
            except socket.timeout:
                continue
        return False

    def silent(self, for_s=0.15):
        """True when nothing arrives for a while."""
        return not select.select([self.sock], [], [], for_s)[0]

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


def icreq(digests=0, hpda=0, maxr2t=0, pfv=0, hlen=128, plen=128):
    return struct.pack('<BBBBIHBBI112x', ICREQ, 0, hlen, 0, plen, pfv, hpda, digests, maxr2t)


def l1(port, digests=0, **more):
    c = Conn(port)
    c.icreq(digests, **more)
    return c


def l2(port, digests=0, kato=0, cc=CC_ON, **more):
    c = l1(port, digests)
    answer = c.connect(kato=kato, **more)
    assert answer.status == (0, 0), answer
    c.cntlid = answer.dw0 & 0xFFFF
    if cc is not None:
        assert c.set_cc(cc).status == (0, 0)
        assert c.prop(0x1C).dw0 & 1, 'CSTS.RDY does not follow CC.EN'
    return c


class Host:
    """An association: admin queue and one I/O queue (LK)."""

    def __init__(self, port, digests=0, qid=1, sqsize=31, kato=0, **more):
        self.port, self.digests, self.more = port, digests, more
        self.admin = l2(port, digests, kato=kato, **more)
        self.io = self.queue(qid, sqsize)

    def queue(self, qid, sqsize=31, digests=None):
        c = l1(self.port, self.digests if digests is None else digests)
        for _ in range(100):                   # the queue's last owner may still be going
            answer = c.connect(qid, self.admin.cntlid, sqsize, **self.more)
            if answer.status != (1, 1):
                break
            time.sleep(0.01)                   # waits-for: the array to see the reset
        assert answer.status == (0, 0), answer
        return c

    def close(self):
        self.io.close()
        self.admin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Array:
    """A `kvof serve` of our own on a free port."""

    def __init__(self, kvof, *args, drives=('mem,size=256MiB',), log=None, port=0,
                 env=None):
        command = [kvof, 'serve', '--listen', f'tcp://127.0.0.1:{port}']
        for drive in drives:
            command += ['--drive', drive]
        self.err = open(log, 'wb+') if log else subprocess.DEVNULL
        self.proc = subprocess.Popen(command + list(args), stdout=subprocess.PIPE,
                                     stderr=self.err, text=True, env=env)
        atexit.register(self.proc.kill)      # a case that fails leaves none behind
        line = self.proc.stdout.readline()
        match = re.match(r'ready tcp://127\.0\.0\.1:(\d+) (\S+)$', line)
        if not match:
            self.proc.kill()
            raise RuntimeError(f'kvof serve is not ready: {line!r}')
        self.port, self.nqn = int(match[1]), match[2]

    def fds(self):
        return len(os.listdir(f'/proc/{self.proc.pid}/fd'))

    def rss_kib(self):
        """0 under a sanitizer, whose own memory says nothing about ours."""
        with open(f'/proc/{self.proc.pid}/maps') as f:
            if re.search('lib[at]san', f.read()):
                return 0
        with open(f'/proc/{self.proc.pid}/status') as f:
            return int(re.search(r'VmRSS:\s+(\d+)', f.read())[1])

    def stop(self):
        """SIGTERM; returns (exit code, seconds)."""
        begin = time.monotonic()
        self.proc.send_signal(signal.SIGTERM)
        try:
            code = self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            code = self.proc.wait()
        return code, time.monotonic() - begin



def status_ok(answer):
    assert answer.type == RESP and answer.status == (0, 0), answer


__all__ = [n for n in dir() if not n.startswith('_')] + ['errno']
