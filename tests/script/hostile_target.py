#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Targets that break every rule, against the real program as host: one TAP line a case.

usage: hostile_target.py KVOF [WORDS]     runs the cases whose name contains WORDS

A scripted controller in this process answers an attach as it should, up to the step that a case
spoils. Judged are: the exit code and the line of the program, the H2CTermReq (FES and FEI exactly),
each byte the program sent (no value leaves that was not asked for properly), and that all is over
within a second of the abuse. Case numbers are those of the abuse set, group I.
"""
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from nvmetcp import (C2H, CMD, DDGST, H2C, H2CTERM, HDGST, ICREQ, ICRESP, LAST, R2T, RESP, SUCCESS,
                     crc32c)

NQN = 'nqn.2026-11.io.kvof:hostile'
DISCOVERY = 'nqn.2014-08.org.nvmexpress.discovery'
STORE, RETRIEVE, EXIST, DELETE = 1, 2, 0x14, 0x10
LIMIT_S = 1.0
VALUE_MAX = 1 << 20
CASES = []


def case(name, **how):
    """how: argv (words after TARGET), stdin, code, line (regex), term ((fes, fei) or None)"""
    def add(hook):
        CASES.append((name, hook, how))
        return hook
    return add


class Gone(Exception):
    pass


class Peer:
    """One connection of the program: what it sent, and how to answer it."""

    def __init__(self, target, sock):
        self.target, self.sock = target, sock
        self.hdgst = self.ddgst = False
        self.qid = None
        self.pdus = []                 # (type, header, data) of all that came
        self.writes = {}               # cid: (sqe, bytes wanted, bytes got)
        self.values = b''              # bytes of values that left the program

    def exactly(self, n):
        out = b''
        while len(out) < n:
            got = self.sock.recv(n - len(out))
            if not got:
                raise Gone()
            out += got
        return out

    def read(self):
        head = self.exactly(8)
        kind, flags, hlen, pdo, plen = struct.unpack('<BBBBI', head)
        if kind == ICREQ:
            head += self.exactly(120)
            self.pdus.append((kind, head, b''))
            return kind, head, b''
        head += self.exactly(hlen - 8)
        at = hlen
        if flags & HDGST:
            assert struct.pack('<I', crc32c(head)) == self.exactly(4), 'header digest of the program'
            at += 4
        data = b''
        if plen > at:
            at += len(self.exactly(max(0, pdo - at))) if pdo else 0
            rest = self.exactly(plen - at)
            data = rest[:-4] if flags & DDGST else rest
            assert not flags & DDGST or struct.pack('<I', crc32c(data)) == rest[-4:]
        self.pdus.append((kind, head, data))
        return kind, head, data

    def send(self, raw):
        self.sock.sendall(raw)

    def pdu(self, kind, specific, data=b'', flags=0, bad_header=False, bad_data=False, hlen=None,
            plen=None, pdo=None):
        n = 8 + len(specific)
        flags |= (HDGST if self.hdgst else 0) | (DDGST if self.ddgst and data else 0)
        digest = 4 if self.hdgst else 0
        start = n + digest if data else 0
        total = n + digest + len(data) + (4 if flags & DDGST else 0)
        head = struct.pack('<BBBBI', kind, flags, n if hlen is None else hlen,
                           start if pdo is None else pdo, total if plen is None else plen)
        head += specific
        raw = head
        if self.hdgst:
            raw += struct.pack('<I', crc32c(head) ^ (1 if bad_header else 0))
        raw += data
        if flags & DDGST:
            raw += struct.pack('<I', crc32c(data) ^ (1 if bad_data else 0))
        self.send(raw)

    def resp(self, cid, status=0, dw0=0, dw1=0, sqhd=0, **more):
        self.pdu(RESP, struct.pack('<IIHHHH', dw0, dw1, sqhd, 0, cid, status << 1), **more)

    def c2h(self, cid, data, offset=0, flags=LAST, length=None, **more):
        length = len(data) if length is None else length
        self.pdu(C2H, struct.pack('<HHII4x', cid, 0, offset, length), data, flags, **more)

    def r2t(self, cid, offset, length, ttag=7, **more):
        self.pdu(R2T, struct.pack('<HHII4x', cid, ttag, offset, length), **more)

    # --- as it should be ---

    def greet(self, head):
        digest = head[11]
        self.icresp(dgst=digest)
        self.hdgst, self.ddgst = bool(digest & 1), bool(digest & 2)

    def icresp(self, hlen=128, plen=128, pfv=0, cpda=0, dgst=0, maxh2c=131072, kind=ICRESP):
        self.send(struct.pack('<BBBBIHBBI', kind, 0, hlen, 0, plen, pfv, cpda, dgst, maxh2c) +
                  bytes(112))

    def admin(self, sqe, data):
        opcode, cid = sqe[0], struct.unpack_from('<H', sqe, 2)[0]
        if opcode == 0x7F and sqe[4] == 1:
            self.qid = struct.unpack_from('<H', sqe, 42)[0]
            self.resp(cid, dw0=5)
        elif opcode == 0x7F and sqe[4] == 4:
            offset = struct.unpack_from('<I', sqe, 44)[0]
            cap = 127 | 1 << 16 | 20 << 24 | 1 << 37 | 1 << 43
            value = {0: cap, 0x1C: 1}.get(offset, 0)
            self.resp(cid, dw0=value & 0xFFFFFFFF, dw1=value >> 32)
        elif opcode == 0x06:
            self.c2h(cid, self.identify(sqe[40]))
            self.resp(cid)
        elif opcode == 0x09:
            self.resp(cid, dw0=struct.unpack_from('<I', sqe, 44)[0])
        else:
            self.resp(cid)

    def identify(self, cns):
        page = bytearray(4096)
        if cns == 1:
            page[77] = 8                                   # MDTS: 1 MiB
            struct.pack_into('<H', page, 78, 5)
            page[111] = 1
            struct.pack_into('<H', page, 320, 1)
            page[512], page[513] = 0x66, 0x44
            struct.pack_into('<I', page, 516, 1)           # NN
            struct.pack_into('<I', page, 536, 1 | 1 << 20 | 1 << 21)
            page[768:768 + len(NQN)] = NQN.encode()
            struct.pack_into('<II', page, 1792, 4 + 8192 // 16, 1)
        elif cns == 2:
            struct.pack_into('<I', page, 0, 1)
        elif cns == 3:
            page[0:5] = bytes([4, 1, 0, 0, 1])             # CSI descriptor: KV
            page[5:5 + 20] = bytes([2, 16, 0, 0]) + bytes(range(1, 17))
        elif cns == 5:
            struct.pack_into('<Q', page, 0, 1 << 30)
            struct.pack_into('<H', page, 72, 16)
            struct.pack_into('<I', page, 76, VALUE_MAX)
        if self.target.identify_patch:
            self.target.identify_patch(cns, page)
        return bytes(page)

    def run(self):
        hooks = self.target
        while True:
            kind, head, data = self.read()
            if kind == ICREQ:
                (hooks.icreq or Peer.greet)(self, head)
            elif kind == CMD:
                sqe = head[8:72]
                cid = struct.unpack_from('<H', sqe, 2)[0]
                if sqe[0] == 0x7F or self.qid == 0:
                    if hooks.admin_hook is None or not hooks.admin_hook(self, sqe, cid, data):
                        self.admin(sqe, data)
                else:
                    self.values += data
                    hooks.commands.append(sqe)
                    hooks.abused = time.monotonic()
                    hooks.io(self, sqe, cid, data)
            elif kind == H2C:
                self.values += data
                cccid, ttag, offset, length = struct.unpack_from('<HHII', head, 8)
                hooks.h2c.append((cccid, ttag, offset, length))
                if hooks.h2c_hook is not None:
                    hooks.h2c_hook(self, cccid, data, head)
            elif kind == H2CTERM:
                fes = struct.unpack_from('<H', head, 8)[0]
                fei = struct.unpack_from('<I', head, 10)[0]
                hooks.term.append((fes, fei))
                if not hooks.stays:
                    return             # a target closes when it is told so


class Target:
    """Listens, serves each connection on a thread of its own, remembers."""

    def __init__(self):
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=16)
        self.port = self.listener.getsockname()[1]
        self.peers, self.threads = [], []
        self.icreq = self.identify_patch = self.h2c_hook = self.admin_hook = None
        self.io = lambda peer, sqe, cid, data: peer.resp(cid)
        self.commands, self.h2c, self.term, self.errors = [], [], [], []
        self.stays = False
        self.abused = time.monotonic()
        self.over = threading.Event()
        thread = threading.Thread(target=self.accept, daemon=True)
        thread.start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(self, sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self.serve, args=(peer,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def serve(self, peer):
        try:
            peer.run()
        except (Gone, OSError):
            pass
        except Exception:
            self.errors.append(traceback.format_exc())
        peer.sock.close()

    def values(self):
        return b''.join(p.values for p in self.peers)

    def close(self):
        self.over.set()
        self.listener.close()
        for peer in self.peers:
            try:
                peer.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join(2)


# --- I01: ICResp ---------------------------------------------------------------------------------

def icresp_case(words, term, **fields):
    @case(f'I01 ICResp with {words}', argv=['exists', 'text:a'], code=3, term=term)
    def hook(t):
        t.icreq = lambda peer, head: peer.icresp(**fields)


icresp_case('PLEN 127', (1, 4), plen=127)
icresp_case('PLEN 129', (1, 4), plen=129)
icresp_case('PLEN FFFFFFFFh', (1, 4), plen=0xFFFFFFFF)
icresp_case('HLEN 127', (1, 2), hlen=127)
icresp_case('HLEN 255', (1, 2), hlen=255)
icresp_case('PFV 1', (1, 8), pfv=1)
icresp_case('CPDA 32', (1, 10), cpda=32)
icresp_case('a digest that was not asked for', (1, 11), dgst=1)
icresp_case('MAXH2CDATA 0', (1, 12), maxh2c=0)
icresp_case('MAXH2CDATA 4095', (1, 12), maxh2c=4095)
icresp_case('MAXH2CDATA 4097', (1, 12), maxh2c=4097)
icresp_case('the type of ICReq', (1, 0), kind=ICREQ)
icresp_case('type 0Bh: closed without a word', None, kind=11)


@case('I01 bytes that are no NVMe/TCP at all: closed without a word', argv=['exists', 'text:a'],
      code=3, term=None)
def hook(t):
    t.icreq = lambda peer, head: peer.send(b'HTTP/1.1 400 Bad Request\r\n\r\n' + bytes(128))


@case('I01 CapsuleResp before ICResp', argv=['exists', 'text:a'], code=3, term=(2, 0))
def hook(t):
    t.icreq = lambda peer, head: peer.resp(0)


@case('I01 no ICResp at all', argv=['exists', 'text:a', '--connect-timeout', '500ms'], code=3,
      term=None, line='no answer')
def hook(t):
    t.icreq = lambda peer, head: None


@case('I01 C2HTermReq instead of ICResp', argv=['exists', 'text:a'], code=3, term=None)
def hook(t):
    t.icreq = lambda peer, head: peer.send(struct.pack('<BBBBIHI10x', 3, 0, 24, 0, 24, 1, 8))


# --- I02: R2T ------------------------------------------------------------------------------------

@case('I02 R2T for a Retrieve', argv=['get', 'text:a'], code=3, term=(1, 8), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 4096)


@case('I02 R2T for an Exist', argv=['exists', 'text:a'], code=3, term=(1, 8), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 4)


@case('I02 R2T for a Store whose data was in the capsule', argv=['put', 'text:a'], stdin=b'x' * 100,
      code=3, term=(1, 8), leaves=b'x' * 100)
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 100)


@case('I02 R2T for a CID that is not in flight', argv=['put', 'text:a'], stdin=b'x' * 100000,
      code=3, term=(1, 8), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid + 1, 0, 100000)


@case('I02 R2T for CID FFFFh', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3, term=(1, 8),
      leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(0xFFFF, 0, 100000)


@case('I02 R2T past the end of the value', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3,
      term=(4, 0), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 100001)


@case('I02 R2T that starts past the end', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3,
      term=(4, 0), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0xFFFFFFFF, 1)


@case('I02 R2T that leaves a gap', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3,
      term=(2, 0), leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 4096, 4096)


@case('I02 R2T for no bytes', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3, term=(1, 16),
      leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 0)


@case('I02 R2T with PLEN 25', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3, term=(1, 4),
      leaves=b'')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.r2t(cid, 0, 4096, plen=25)


@case('I02 the same R2T twice: the value leaves once at most', argv=['put', 'text:a'],
      stdin=b'y' * 300000, code=3, term='some', leaves_at_most=300000)
def hook(t):
    def io(peer, sqe, cid, data):
        raw = struct.pack('<BBBBIHHII4x', R2T, 0, 24, 0, 24, cid, 7, 0, 300000)
        peer.send(raw + raw)
    t.io = io


@case('I02 R2T after the answer', argv=['put', 'text:a'], stdin=b'y' * 100000, term='any',
      code=None, leaves=b'')
def hook(t):
    def io(peer, sqe, cid, data):
        resp = struct.pack('<BBBBIIIHHHH', RESP, 0, 24, 0, 24, 0, 0, 0, 0, cid, 0x81 << 1)
        peer.send(resp + struct.pack('<BBBBIHHII4x', R2T, 0, 24, 0, 24, cid, 7, 0, 100000))
    t.io = io


@case('I02 proper R2Ts in pieces are served, in order and once', argv=['put', 'text:a'],
      stdin=bytes(range(256)) * 1000, code=0, term=None, leaves=bytes(range(256)) * 1000)
def hook(t):
    def io(peer, sqe, cid, data):
        peer.left = 256000
        peer.r2t(cid, 0, 5000)

    def h2c(peer, cid, data, head):
        peer.left -= len(data)
        done = 256000 - peer.left
        if not head[1] & LAST:
            return
        if peer.left:
            peer.r2t(cid, done, min(100000, peer.left), ttag=done & 0xFFFF)
        else:
            peer.resp(cid)
    t.io, t.h2c_hook = io, h2c


# --- I04, I05: C2HData ---------------------------------------------------------------------------

@case('I04 C2HData for a Store', argv=['put', 'text:a'], stdin=b'x' * 100000, code=3, term=(1, 8))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.c2h(cid, b'z' * 512)


@case('I04 C2HData for an Exist', argv=['exists', 'text:a'], code=3, term=(1, 8))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.c2h(cid, b'z' * 512)


@case('I04 C2HData for a Delete', argv=['rm', 'text:a'], code=3, term=(1, 8))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.c2h(cid, b'z')


@case('I04 C2HData for Set Features', argv=['exists', 'text:a'], code=3, term=(1, 8))
def hook(t):
    def admin(peer, sqe, cid, data):
        if sqe[0] != 9:
            return False
        peer.c2h(cid, b'z' * 64)
        return True
    t.admin_hook = admin


def c2h_case(words, term, send, code=3):
    @case(f'I05 C2HData {words}', argv=['get', 'text:a'], code=code, term=term)
    def hook(t):
        t.io = lambda peer, sqe, cid, data: send(peer, cid)


c2h_case('for a CID that is not in flight', (1, 8), lambda p, cid: p.c2h(cid + 1, b'z' * 512))
c2h_case('past the end of the room', (4, 0), lambda p, cid: p.c2h(cid, b'z' * 512, VALUE_MAX))
c2h_case('over the end of the room', (4, 0), lambda p, cid: p.c2h(cid, b'z' * 512, VALUE_MAX - 511))
c2h_case('at FFFFFF00h', (4, 0), lambda p, cid: p.c2h(cid, b'z' * 512, 0xFFFFFF00))
c2h_case('with a gap', (2, 0), lambda p, cid: p.c2h(cid, b'z' * 512, 4096))
c2h_case('that overlaps', (2, 0), lambda p, cid: (p.c2h(cid, b'z' * 8192, 0, 0),
                                                  p.c2h(cid, b'z' * 4096, 4096)))
c2h_case('of no bytes', (1, 4), lambda p, cid: p.c2h(cid, b''))
c2h_case('whose DATAL is more than PLEN', (1, 16), lambda p, cid: p.c2h(cid, b'z' * 512, length=516))
c2h_case('whose DATAL is less than PLEN', (1, 16), lambda p, cid: p.c2h(cid, b'z' * 512, length=508))
c2h_case('with HLEN 255', (1, 2), lambda p, cid: p.c2h(cid, b'z' * 512, hlen=255))
c2h_case('with HLEN 0', (1, 2), lambda p, cid: p.c2h(cid, b'z' * 512, hlen=0))
c2h_case('with PDO 255', (1, 3), lambda p, cid: p.c2h(cid, b'z' * 512, pdo=255))
c2h_case('with PDO 4', (1, 3), lambda p, cid: p.c2h(cid, b'z' * 512, pdo=4))
c2h_case('with PLEN 7', (1, 4), lambda p, cid: p.c2h(cid, b'z' * 512, plen=7))
c2h_case('with PLEN FFFFFFFFh', 'some', lambda p, cid: p.c2h(cid, b'z' * 512, plen=0xFFFFFFFF))
c2h_case('after the last of it', (2, 0), lambda p, cid: (p.c2h(cid, b'z' * 512),
                                                         p.c2h(cid, b'z' * 512, 512)))


@case('I05 a proper value in many pieces comes back whole', argv=['get', 'text:a'], code=0,
      term=None, stdout=bytes(range(256)) * 300)
def hook(t):
    value = bytes(range(256)) * 300

    def io(peer, sqe, cid, data):
        for at in range(0, len(value), 777):
            piece = value[at:at + 777]
            peer.c2h(cid, piece, at, LAST if at + 777 >= len(value) else 0)
        peer.resp(cid, dw0=len(value))
    t.io = io


@case('I05 a longer value than the answer says is refused', argv=['get', 'text:a'], code=3,
      term='any')
def hook(t):
    def io(peer, sqe, cid, data):
        peer.c2h(cid, b'z' * 512)
        peer.resp(cid, dw0=100)
    t.io = io


@case('I05 a shorter value than the answer says is refused', argv=['get', 'text:a'], code=3,
      term='any')
def hook(t):
    def io(peer, sqe, cid, data):
        peer.c2h(cid, b'z' * 512)
        peer.resp(cid, dw0=513)
    t.io = io


@case('I05 no data although the answer names some', argv=['get', 'text:a'], code=3, term='any')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid, dw0=512)


# --- I06, I08: answers ---------------------------------------------------------------------------

@case('I06 SUCCESS on a transfer that is short of the room', argv=['get', 'text:a'], code=3,
      term=(1, 1))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.c2h(cid, b'z' * 512, flags=LAST | SUCCESS)


@case('I06 SUCCESS, then an answer too', argv=['get', 'text:a'], code=3, term='any')
def hook(t):
    def io(peer, sqe, cid, data):
        peer.c2h(cid, b'z' * VALUE_MAX, flags=LAST | SUCCESS)
        peer.resp(cid, dw0=VALUE_MAX)
    t.io = io


@case('I08 an answer for a CID that is not in flight', argv=['exists', 'text:a'], code=3,
      term=(2, 0))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid + 1)


@case('I08 an answer for CID FFFFh', argv=['exists', 'text:a'], code=3, term=(2, 0))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(0xFFFF)


@case('I08 an answer twice', argv=['exists', 'text:a', '--json'], code=None, term='any')
def hook(t):
    def io(peer, sqe, cid, data):
        raw = struct.pack('<BBBBIIIHHHH', RESP, 0, 24, 0, 24, 0, 0, 0, 0, cid, 0)
        peer.send(raw + raw)
    t.io = io


@case('I08 an answer on the wrong queue', argv=['exists', 'text:a'], code=3, term=(2, 0))
def hook(t):
    def io(peer, sqe, cid, data):
        admin = next(p for p in t.peers if p.qid == 0)
        admin.resp(cid)
    t.io = io


@case('I08 an answer with PLEN 20', argv=['exists', 'text:a'], code=3, term=(1, 4))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid, plen=20)


@case('I08 an answer that carries data', argv=['exists', 'text:a'], code=3, term='some')
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid, data=b'z' * 16)


# --- I09, I10: digests ---------------------------------------------------------------------------

@case('I09 a wrong data digest, then right ones', code=0, term=None, stdout=b'v' * 5000,
      argv=['get', 'text:a', '--header-digest', '--data-digest'], commands=3)
def hook(t):
    def io(peer, sqe, cid, data):
        peer.c2h(cid, b'v' * 5000, bad_data=len(t.commands) < 3)
        peer.resp(cid, dw0=5000)
    t.io = io


@case('I09 a wrong data digest each time', argv=['get', 'text:a', '--data-digest'], code=3,
      term=None, stdout=b'', commands=17, line='damaged')
def hook(t):
    def io(peer, sqe, cid, data):
        peer.c2h(cid, b'v' * 5000, bad_data=True)
        peer.resp(cid, dw0=5000)
    t.io = io


@case('I09 a Store answered with 00h/22h is sent again', argv=['put', 'text:a', '--data-digest'],
      stdin=b'v' * 5000, code=0, term=None, leaves=b'v' * 15000, commands=3)
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid, status=0x22 if len(t.commands) < 3 else 0)


@case('I10 a wrong header digest', argv=['get', 'text:a', '--header-digest'], code=3, term='digest')
def hook(t):
    def io(peer, sqe, cid, data):
        head = struct.pack('<BBBBIIIHHHH', RESP, HDGST, 24, 0, 28, 0, 0, 0, 0, cid, 0)
        t.digest = crc32c(head) ^ 0x80
        peer.send(head + struct.pack('<I', t.digest))
    t.io = io


@case('I10 no header digest although it was agreed', argv=['get', 'text:a', '--header-digest'],
      code=3, term=(1, 1))
def hook(t):
    def io(peer, sqe, cid, data):
        peer.hdgst = False
        peer.resp(cid)
    t.io = io


# --- I12: Identify -------------------------------------------------------------------------------

def identify_case(words, cns, at, raw, line='makes no sense', code=3):
    @case(f'I12 Identify with {words}', argv=['exists', 'text:a'], code=code, term=None, line=line)
    def hook(t):
        def patch(got, page):
            if got == cns:
                page[at:at + len(raw)] = raw
        t.identify_patch = patch


identify_case('MDTS 255', 1, 77, b'\xff')
identify_case('MDTS 0, which is no limit', 1, 77, b'\x00', None, 0)
identify_case('SQES 0', 1, 512, b'\x00')
identify_case('CQES 0', 1, 513, b'\x00')
identify_case('NN 0', 1, 516, bytes(4))
identify_case('IOCCSZ 0', 1, 1792, bytes(4))
identify_case('IOCCSZ FFFFFFFFh', 1, 1792, b'\xff' * 4)
identify_case('ICDOFF 1', 1, 1800, b'\x01\x00')
identify_case('no SGLs', 1, 536, bytes(4))
identify_case('KVVML 0', 5, 76, bytes(4))
identify_case('KVKML 0', 5, 72, bytes(2))
identify_case('KVKML 17', 5, 72, b'\x11\x00')
identify_case('a capacity of 0', 5, 0, bytes(8))
identify_case('a descriptor longer than the page', 3, 1, b'\xff')
identify_case('no KV namespace', 3, 4, b'\x00', 'no KV namespace')
identify_case('an empty list of namespaces', 2, 0, bytes(4), 'no KV namespace')
identify_case('namespace FFFFFFFFh', 2, 0, b'\xff' * 4, 'does not ascend')


@case('I12 Identify answered with half a page', argv=['exists', 'text:a'], code=3, term=None,
      line='bytes instead of')
def hook(t):
    def admin(peer, sqe, cid, data):
        if sqe[0] != 6:
            return False
        peer.c2h(cid, peer.identify(sqe[40])[:2048])
        peer.resp(cid)
        return True
    t.admin_hook = admin


@case('I12 a controller that is never ready', code=3, term=None, line='ready',
      argv=['exists', 'text:a', '--connect-timeout', '600ms'])
def hook(t):
    def admin(peer, sqe, cid, data):
        if sqe[0] != 0x7F or sqe[4] != 4 or sqe[44] != 0x1C:
            return False
        peer.resp(cid, dw0=0)
        return True
    t.admin_hook = admin


@case('I12 a controller without the KV command set', argv=['exists', 'text:a'], code=3, term=None,
      line='no KV command set')
def hook(t):
    def admin(peer, sqe, cid, data):
        if sqe[0] != 0x7F or sqe[4] != 4 or sqe[44] != 0:
            return False
        peer.resp(cid, dw0=127 | 1 << 16 | 20 << 24, dw1=1 << 5)
        return True
    t.admin_hook = admin


@case('I12 Connect refused for this host', argv=['exists', 'text:a'], code=3, term=None,
      line='not allowed')
def hook(t):
    def admin(peer, sqe, cid, data):
        peer.resp(cid, status=0x4184)
        return True
    t.admin_hook = admin


# --- I14, I15 and the rest -----------------------------------------------------------------------

@case('I14 SQHD out of range is ignored', argv=['exists', 'text:a'], code=0, term=None)
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.resp(cid, sqhd=0xFFFF)


def store_dies(words, after):
    @case(f'I15 the target dies {words} of a Store', argv=['put', 'text:a'],
          stdin=b'w' * VALUE_MAX, code=3, term=None, leaves_at_most=VALUE_MAX)
    def hook(t):
        def end(peer):
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            peer.sock.close()
            raise Gone()

        def io(peer, sqe, cid, data):
            if after == 0:
                end(peer)
            peer.r2t(cid, 0, VALUE_MAX)
            if after > 0:
                peer.exactly(after)
                t.abused = time.monotonic()
                end(peer)
        t.io = io


store_dies('before the data', 0)
store_dies('after the first header', 24)
store_dies('in the middle', VALUE_MAX // 2)


@case('I15 the target stops reading in the middle of a Store', term=None, code=3,
      argv=['put', 'text:a', '--timeout', '300ms'], stdin=b'w' * VALUE_MAX, limit=2.0)
def hook(t):
    def io(peer, sqe, cid, data):
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.r2t(cid, 0, VALUE_MAX)
        peer.exactly(1000)
        t.over.wait(3)
        raise Gone()
    t.io = io


@case('I15 the target stops in the middle of a value', term=None, code=3, stdout=b'',
      argv=['get', 'text:a', '--timeout', '300ms'], limit=2.0)
def hook(t):
    def io(peer, sqe, cid, data):
        peer.send(struct.pack('<BBBBIHHII4x', C2H, LAST, 24, 24, 24 + 100000, cid, 0, 0, 100000))
        peer.send(b'z' * 50000)
        t.over.wait(3)
        raise Gone()
    t.io = io


@case('I15 the target dies in the middle of a value', argv=['get', 'text:a'], term=None, code=3,
      stdout=b'')
def hook(t):
    def io(peer, sqe, cid, data):
        peer.send(struct.pack('<BBBBIHHII4x', C2H, LAST, 24, 24, 24 + 100000, cid, 0, 0, 100000))
        peer.send(b'z' * 50000)
        peer.sock.close()
        raise Gone()
    t.io = io


@case('no answer to a command', argv=['exists', 'text:a', '--timeout', '300ms'], code=3, term=None,
      line='in time')
def hook(t):
    t.io = lambda peer, sqe, cid, data: None


@case('H2CTermReq, and the target does not close', argv=['exists', 'text:a'], code=3, term=(1, 0))
def hook(t):
    t.stays = True
    t.io = lambda peer, sqe, cid, data: peer.pdu(CMD, bytes(64))


@case('no answer to the statistics log', argv=['stat', '--timeout', '300ms'], code=3, term=None,
      line='no answer to an admin command')
def hook(t):
    t.admin_hook = lambda peer, sqe, cid, data: sqe[0] == 2


@case('a PDU that only a controller takes', argv=['exists', 'text:a'], code=3, term=(1, 0))
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.pdu(CMD, bytes(64))


@case('C2HTermReq in the middle', argv=['exists', 'text:a'], code=3, term=None)
def hook(t):
    t.io = lambda peer, sqe, cid, data: peer.send(
        struct.pack('<BBBBIHI10x', 3, 0, 24, 0, 24, 2, 0))


def discovery_case(words, head, entries, line, code=3):
    @case(f'Discovery {words}', argv=['discover'], code=code, term=None, line=line, bare=True)
    def hook(t):
        def admin(peer, sqe, cid, data):
            if sqe[0] != 2:
                return False
            size = (struct.unpack_from('<H', sqe, 42)[0] + 1) * 4
            at = struct.unpack_from('<I', sqe, 48)[0]
            log = (head + bytes(1024))[:1024] + entries
            peer.c2h(cid, (log[at:at + size] + bytes(size))[:size])
            peer.resp(cid)
            return True
        t.admin_hook = admin


ENTRY = (bytes([3, 1, 2, 0]) + struct.pack('<HHHH', 1, 0xFFFF, 32, 0) + bytes(20) +
         b'4420'.ljust(32, b'\0') + bytes(192) + NQN.encode().ljust(256, b'\0') +
         b'127.0.0.1'.ljust(256, b'\0') + bytes(256))
discovery_case('as it should be', struct.pack('<QQH', 1, 1, 0), ENTRY, None, 0)
discovery_case('with an unknown format', struct.pack('<QQH', 1, 1, 9), ENTRY, 'unknown format')
discovery_case('of 2^64 - 1 entries', struct.pack('<QQH', 1, 2**64 - 1, 0), ENTRY * 64,
               'could not be used', 0)
discovery_case('with an entry whose name does not end', struct.pack('<QQH', 1, 1, 0),
               ENTRY[:256] + b'n' * 256 + ENTRY[512:], 'could not be used', 0)


# --- running -------------------------------------------------------------------------------------

def leaves_only(t, how, problems):
    if 'leaves' in how and t.values() != how['leaves']:
        problems.append(f'{len(t.values())} bytes of values left the program, '
                        f'{len(how["leaves"])} were to')
    if len(t.values()) > how.get('leaves_at_most', 1 << 60):
        problems.append(f'{len(t.values())} bytes left the program')


def term_right(t, how, problems):
    want = how['term']
    if want == 'digest':
        want = (3, t.digest)
    if want == 'any' or (want == 'some' and len(t.term) == 1):
        return
    if t.term != ([] if want is None else [want]):
        problems.append(f'H2CTermReq {t.term}, wanted {want}')


def run(kvof, hook, how):
    t = Target()
    hook(t)
    target = f'tcp://127.0.0.1:{t.port}' + ('' if how.get('bare') else f'/{NQN}')
    argv = [kvof, how['argv'][0], target] + how['argv'][1:]
    began = time.monotonic()
    problems = []
    try:
        done = subprocess.run(argv, input=how.get('stdin', b''), capture_output=True, timeout=10)
    except subprocess.TimeoutExpired:
        t.close()
        return ['it did not end within 10 s']
    ended = time.monotonic()
    t.over.set()
    for thread in list(t.threads):
        thread.join(0.5)
    line = done.stderr.decode(errors='replace')
    if how['code'] is not None and done.returncode != how['code']:
        problems.append(f'exit code {done.returncode}, wanted {how["code"]}')
    if done.returncode not in (0, 1, 2, 3, 4):
        problems.append(f'the program died: {done.returncode}')
    if done.returncode != 0 and len(line.splitlines()) != 1:
        problems.append('not one line of explanation')
    if how.get('line') and not re.search(how['line'], line):
        problems.append(f'no "{how["line"]}" in its line')
    if 'stdout' in how and done.stdout != how['stdout']:
        problems.append(f'{len(done.stdout)} bytes on standard output, {len(how["stdout"])} wanted')
    if how['code'] == 3 and done.stdout:
        problems.append('output although it failed')
    if 'commands' in how and len(t.commands) != how['commands']:
        problems.append(f'{len(t.commands)} commands, wanted {how["commands"]}')
    if ended - max(began, t.abused) > how.get('limit', LIMIT_S):
        problems.append(f'over after {ended - max(began, t.abused):.2f} s')
    leaves_only(t, how, problems)
    term_right(t, how, problems)
    problems += t.errors
    t.close()
    return [f'{p} [{line.strip()}]' for p in problems]


def main():
    kvof, words = sys.argv[1], ' '.join(sys.argv[2:])
    chosen = [c for c in CASES if words in c[0]]
    print(f'1..{len(chosen)}')
    bad = 0
    for number, (name, hook, how) in enumerate(chosen, 1):
        problems = run(kvof, hook, how)
        print(f'{"not " if problems else ""}ok {number} - {name}', flush=True)
        for problem in problems:
            print(f'# {problem}', flush=True)
        bad += bool(problems)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
