#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kernel_host_test.py --guest FOLDER [--kvof PROGRAM]

The judge from outside: Debian's kernel host and nvme-cli in a QEMU guest against `kvof serve` on
this machine's loopback. First the guest judges itself against the kernel's own target, so that a
red line further down is about kvof. Prints TAP. Skips only where QEMU is not installed.
"""
import argparse
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import time

import build
import guest as driver
from array_host import (HOSTID, HOSTNQN, KIB, MIB, NQN, WAIT_FOR, Array, Steps, cli_answer_of,
                        free_port, program)
from guest import HOST, Guest, Lost, Tap

OTHER_HOSTNQN = "nqn.2014-08.org.nvmexpress:uuid:6b766f66-0000-4000-8000-000000000002"
OTHER_HOSTID = "6b766f66-0000-4000-8000-000000000002"
SELF_NQN = "nqn.2026-11.io.kvof:self"

OK, INVALID_OPCODE, INVALID_FIELD, BAD_SGL_LENGTH = 0, 0x01, 0x02, 0x0F
INVALID_NAMESPACE, INVALID_COMMAND_SET, INVALID_LOG_PAGE = 0x0B, 0x2C, 0x109
BAD_VALUE_SIZE, BAD_KEY_SIZE, NOT_FOUND, EXISTS = 0x85, 0x86, 0x87, 0x89
IF_PRESENT, IF_ABSENT = 0x01, 0x02
OPCODES = {"store": 0x01, "retrieve": 0x02, "list": 0x06, "delete": 0x10, "exist": 0x14}

SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, 5001, 100001, 131071, MIB + 1, 8 * MIB]
CLI_SIZES = [5001, 100001, MIB + 1]

SELF_TARGET = """
set -e
c=/sys/kernel/config
mkdir $c/nullb/nullb1
cd $c/nullb/nullb1
echo 64 >size; echo 1 >memory_backed; echo 512 >blocksize; echo 1 >power
mkdir $c/nvmet/subsystems/nqn.2026-11.io.kvof:self
cd $c/nvmet/subsystems/nqn.2026-11.io.kvof:self
echo 1 >attr_allow_any_host
mkdir namespaces/1
echo -n /dev/nullb1 >namespaces/1/device_path
echo 1 >namespaces/1/enable
mkdir $c/nvmet/ports/1
cd $c/nvmet/ports/1
echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 0.0.0.0 >addr_traddr; echo 4420 >addr_trsvcid
ln -s $c/nvmet/subsystems/nqn.2026-11.io.kvof:self subsystems/
"""

def key_dwords(key):
    return struct.unpack("<4I", key.ljust(16, b"\0"))


def answers_of(output):
    """[(status, result)] from what passthru printed."""
    found = re.findall(r"^status=0x([0-9a-f]+) result=(\d+)$", output, re.M)
    return [(int(status, 16), int(result)) for status, result in found]


class Namespace:
    """A KV namespace as the guest sees it: /dev/ngXnY and its NSID."""

    def __init__(self, guest, device, nsid):
        self.guest, self.device, self.nsid, self.output = guest, device, nsid, ""

    def kv(self, verb, key=b"", seconds=40, **options):
        """[(status, result)] of one command by the helper program; [] when it printed no answer."""
        words = ["passthru", self.device, str(self.nsid), verb, key.hex() or "-"]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        status, self.output = self.guest.run(" ".join(words), seconds)
        self.output = f"{' '.join(words)}: exit status {status}\n{self.output}"
        return answers_of(self.output) if status in (0, 1) else []

    def cli(self, verb, key, size=0, option=0, file=None, seconds=40):
        """(status, DW0) of one command by nvme-cli."""
        dw2, dw3, dw14, dw15 = key_dwords(key)
        words = ["nvme", "io-passthru", self.device, f"-o {OPCODES[verb]:#x}", f"-n {self.nsid}",
                 f"--cdw2={dw2:#x}", f"--cdw3={dw3:#x}", f"--cdw10={size}",
                 f"--cdw11={len(key) | option << 8:#x}", f"--cdw14={dw14:#x}", f"--cdw15={dw15:#x}"]
        if verb == "store":
            words += ["-w", f"-l {size}", f"-i {file}"]
        elif size:
            words += ["-r", "-b", f"-l {size}", f">{file}"]
        _, self.output = self.guest.run(" ".join(words), seconds)
        self.output = f"{' '.join(words)}\n{self.output}"
        return cli_answer_of(self.output)

    def noise(self, path, size):
        """Fresh random bytes in a file of the guest; their SHA-256."""
        status, output = self.guest.run(
            f"head -c {size} /dev/urandom >{path} && sha256sum {path}", 60)
        if status != 0:
            raise Lost(f"the guest could not make {size} bytes: {output}")
        return output.split()[0]

    def sum(self, path):
        return self.guest.run(f"sha256sum {path}")[1].split()[0]

    def same(self, one, other):
        status, text = self.guest.run(f"cmp {one} {other}; s=$?; rm -f {other}; exit $s", 40)
        self.output += text
        return status == 0

    def round_trip(self, key, size, copies=1, **options):
        """Store and Retrieve of new bytes, compared in the guest; "" or what went wrong."""
        self.noise("/tmp/in", size)
        if self.kv("store", key, size=size, file="/tmp/in", **options) != [(OK, 0)] * copies:
            return f"Store: {self.output}"
        got = self.kv("retrieve", key, size=size, file="/tmp/out", **options)
        if got != [(OK, size)] * copies:
            return f"Retrieve: {self.output}"
        return "" if self.same("/tmp/in", "/tmp/out") else f"other bytes: {self.output}"


class Judge(Steps):
    def __init__(self, guest, tap, kvof, folder, forwarded):
        super().__init__(guest, tap)
        self.kvof, self.folder = kvof, folder
        self.forwarded = forwarded  # port of the loopback that leads to the guest's own target

    # ---- the guest itself ----------------------------------------------------------------------

    def guest_itself(self):
        status, output = self.guest.run(SELF_TARGET, 30)
        at = "-t tcp -a 127.0.0.1 -s 4420"
        self.tap.check("guest itself: the kernel's own target listens", status == 0, output)
        self.step("guest itself: nvme discover lists that target", f"nvme discover {at}",
                  rf"subnqn: +{SELF_NQN}$")
        for name, flags in (("without digests", ""), ("with digests", "-g -G")):
            self.step(f"guest itself: connect {name}, write, read, disconnect", WAIT_FOR + f"""
                set -e
                nvme connect {at} -n {SELF_NQN} {flags}
                wait_for '[ -b /dev/nvme0n1 ] && [ -c /dev/ng0n1 ]'
                nvme id-ctrl /dev/nvme0
                head -c 102400 /dev/urandom >/tmp/a
                dd if=/tmp/a of=/dev/nvme0n1 bs=4k oflag=direct 2>/dev/null
                dd if=/dev/nvme0n1 of=/tmp/b bs=4k count=25 iflag=direct 2>/dev/null
                cmp /tmp/a /tmp/b
                nvme io-passthru /dev/ng0n1 -o 2 -n 1 -r -l 512 --cdw10=1 -b >/tmp/c
                dd if=/tmp/a of=/tmp/b bs=512 skip=1 count=1 2>/dev/null
                cmp /tmp/b /tmp/c
                nvme disconnect -n {SELF_NQN}
                """, r"^mn +: Linux", "disconnected 1 controller")
        # The block Write has the opcode of Store and Read that of Retrieve: CDW10 is then a block
        # number, and CDW11 its upper half, so the helper's own plumbing can be tried on it.
        self.step("guest itself: the helper's ioctl and io_uring reach the kernel", WAIT_FOR + f"""
            set -e
            nvme connect {at} -n {SELF_NQN}
            wait_for '[ -c /dev/ng0n1 ]'
            head -c 512 /dev/urandom >/tmp/a
            passthru /dev/ng0n1 1 store - --size 512 --cdw10 8 --file /tmp/a
            passthru /dev/ng0n1 1 exist 01 || true
            passthru /dev/ng0n1 1 exist - --key-bytes 1 --ring 5 || true
            dd if=/dev/nvme0n1 of=/tmp/b bs=512 skip=8 count=1 iflag=direct 2>/dev/null
            cmp /tmp/a /tmp/b
            nvme disconnect -n {SELF_NQN}
            """, r"\A(.*\n)*status=0x0 result=0\n(status=0x1 result=0\n){6}")

    def kernel_target(self):
        """Our host against the kernel's target: it knows no KV, but fabrics as well as any."""
        uri = f"tcp://127.0.0.1:{self.forwarded}"
        status, out, err = program([self.kvof, "discover", uri])
        self.tap.check("kernel target: kvof discover lists its subsystem",
                       status == 0 and SELF_NQN.encode() in out,
                       f"exit status {status}\n{out.decode(errors='replace')}\n{err}")
        # Only a host that got through Connect, enabling and Identify can know that.
        status, out, err = program([self.kvof, "exists", f"{uri}/{SELF_NQN}", "text:a"])
        self.tap.check("kernel target: kvof exists says in one line that nothing there is KV",
                       status == 3 and len(err.splitlines()) == 1 and not out and
                       re.search(r"key.?value|\bKV\b|namespace", err, re.I),
                       f"exit status {status}, 3 wanted\n{out.decode(errors='replace')}\n{err}")

    # ---- connecting ----------------------------------------------------------------------------

    def connect_line(self, array, flags="", hostnqn=HOSTNQN, hostid=HOSTID):
        return (f"nvme connect -t tcp -a {HOST} -s {array.port} -n {NQN} --hostnqn={hostnqn} "
                f"--hostid={hostid} --reconnect-delay=1 --ctrl-loss-tmo=60 "
                f"{flags or '--keep-alive-tmo=5'}")

    def connect(self, name, array, flags=""):
        """The KV namespace of a new connection, the only one; None after a failed check."""
        status, output = self.guest.run(WAIT_FOR + f"""
            nvme disconnect-all
            dmesg -c >/dev/null
            {self.connect_line(array, flags)} || exit 1
            wait_for 'ls /dev/ng* 2>/dev/null' || exit 2
            for d in /dev/ng*; do nvme get-ns-id $d; done
            """, 60)
        found = re.findall(r"^(ng\d+n\d+): namespace-id:(\d+)$", output, re.M)
        good = status == 0 and found == [(found[0][0], "1")] if found else False
        if not self.tap.check(f"{name}: nvme connect, and /dev/ngXnY with NSID 1 appears", good,
                              f"exit status {status}\n{output}\n{self.dmesg()}\n{array.why()}"):
            return None
        return Namespace(self.guest, "/dev/" + found[0][0], 1)

    def disconnect(self, name):
        self.step(f"{name}: nvme disconnect",
                  f"nvme disconnect -n {NQN} && ! ls /dev/ng* 2>/dev/null",
                  "disconnected 1 controller")

    # ---- what the array says of itself -----------------------------------------------------------

    def discovery(self, array):
        self.step("nvme discover lists the subsystem and its port",
                  f"nvme discover -t tcp -a {HOST} -s {array.port} --hostnqn={HOSTNQN}",
                  rf"^subnqn: +{re.escape(NQN)}$", rf"^trsvcid: +{array.port}$",
                  r"^traddr: +127.0.0.1$", r"^trtype: +tcp$", r"^subtype: +nvme subsystem$",
                  r"^adrfam: +ipv4$")

        self.step("a discovery controller that stays lists it again", f"""
            set -e
            nvme discover -t tcp -a {HOST} -s {array.port} --persistent -k 5 >/dev/null
            cat /sys/class/nvme/nvme*/cntrltype /sys/class/nvme/nvme*/state
            nvme discover -d nvme0 -t tcp -a {HOST} -s {array.port}
            nvme disconnect -d nvme0""", rf"^subnqn: +{re.escape(NQN)}$", "^discovery$", "^live$")

    def described(self, ns):
        ctrl = self.step("nvme id-ctrl names the subsystem", "nvme id-ctrl /dev/nvme0",
                         rf"^subnqn +: {re.escape(NQN)}$", r"^mdts +: \d+$", r"^cntrltype +: 1$",
                         r"^sqes +: 0x66$", r"^cqes +: 0x44$", r"^kas +: [1-9]")
        self.tap.check("id-ctrl: serial, model and firmware are plain text",
                       all(re.search(rf"^{field} +: [ -~]*[!-~][ -~]*$", ctrl, re.M)
                           for field in ("sn", "mn", "fr")), ctrl)
        self.step("the controller is live with one I/O queue a processor", """
            cat /sys/class/nvme/nvme0/state /sys/class/nvme/nvme0/queue_count
            cat /sys/class/nvme/nvme0/hostnqn""", r"^live$", r"^3$", re.escape(HOSTNQN))
        self.step("a KV namespace has no block device", "ls /dev/nvme0*", r"\A/dev/nvme0\n\Z")
        self.step("nvme list-ns lists NSID 1", "nvme list-ns /dev/nvme0", r"^\[ +0\]:0x1$")
        self.step("nvme list-ns --csi=1 lists NSID 1", "nvme list-ns /dev/nvme0 --csi=1",
                  r"^\[ +0\]:0x1$")
        output = self.guest.run("nvme list-ns /dev/nvme0 --csi=0")[1]
        self.tap.check("nvme list-ns --csi=0 lists no KV namespace", "0x1" not in output, output)
        self.step("nvme ns-descs gives CSI 1 and an identifier", "nvme ns-descs /dev/nvme0 -n 1",
                  r"^csi +: (0x)?0*1$", r"^(uuid|nguid) +: [0-9a-f-]*[1-9a-f]")
        self.step("nvme cmdset-ind-id-ns says that the namespace is ready",
                  "nvme cmdset-ind-id-ns /dev/nvme0 -n 1", r"^nstat *: (0x)?1$")
        # The structure of CNS 00h is the NVM command set's; Linux does not ask it for KV. A clean
        # refusal or an answer are both fine, and the controller lives on.
        status, output = self.guest.run(
            "nvme id-ns /dev/nvme0 -n 1; cat /sys/class/nvme/nvme0/state")
        refusal = cli_answer_of(output) or (None, None)
        clean = (re.search(r"^nsze +: ", output, re.M) or
                 refusal[0] in (INVALID_FIELD, INVALID_NAMESPACE, INVALID_COMMAND_SET))
        self.tap.check("nvme id-ns gets an answer or a clean refusal",
                       clean and output.endswith("live\n"), output)
        self.step("nvme id-iocs shows the Key Value command set",
                  "nvme id-iocs /dev/nvme0 -c 0xffff", r"\S")
        self.identify_kv("default", ns, 8 * MIB)
        self.combinations()
        self.effects()
        self.step("nvme smart-log", "nvme smart-log /dev/nvme0", r"^critical_warning\s+: 0$",
                  r"^temperature")
        self.step("nvme error-log", "nvme error-log /dev/nvme0 -e 4", "Error Log Entries")
        self.step("nvme fw-log", "nvme get-log /dev/nvme0 -i 3 -l 512", r"^0000:")
        self.refused("nvme get-log of an unknown page is refused",
                     "nvme get-log /dev/nvme0 -i 0xb7 -l 512", INVALID_LOG_PAGE)
        output = self.step("nvme get-property reads the controller's properties",
                           "for o in 0 8 0x14 0x1c; do nvme get-property /dev/nvme0 -o $o; done",
                           r"\(Version\), value: [12]0\d\d\d$", r"Status\), value: 1$")
        values = [int(v, 16) for v in re.findall(r"value: ([0-9a-f]+)$", output, re.M)] + [0] * 4
        self.tap.check("CAP offers all command sets, and the kernel host enabled them",
                       values[0] >> 43 & 1 and values[2] & 0x71 == 0x61, output)
        self.step("nvme get-feature of the number of queues", "nvme get-feature /dev/nvme0 -f 7",
                  r"Current value: ?(0x)?0*[0-9a-f]")
        self.refused("an unknown admin command is refused",
                     "nvme admin-passthru /dev/nvme0 -o 0xc5", INVALID_OPCODE)

    def raw(self, words, length, seconds=20):
        """The binary answer of an nvme-cli command, or b"" with the text kept in self.said."""
        status, self.said = self.guest.run(f"{words} >/tmp/raw && od -An -v -tx1 /tmp/raw", seconds)
        if status != 0:
            return b""
        data = bytes.fromhex("".join(re.findall(r"^(?: [0-9a-f]{2})+$", self.said, re.M)))
        return data if len(data) >= length else b""

    def identify_kv(self, name, ns, limit):
        """[KV] Identify Namespace, CNS 05h with CSI 01h: the first format's limits."""
        data = self.raw(f"nvme admin-passthru /dev/nvme0 -o 6 -n {ns.nsid} -r -b -l 4096 "
                        "--cdw10=5 --cdw11=0x1000000", 4096)
        good, why = False, self.said
        if data:
            nsze, nuse = struct.unpack_from("<Q8xQ", data)
            key_bytes, value_bytes = struct.unpack_from("<H2xI", data, 72)
            why = f"nsze {nsze} nuse {nuse} KVKML {key_bytes} KVVML {value_bytes}"
            good = key_bytes == 16 and value_bytes == limit and nsze > 0 and nuse <= nsze
        self.tap.check(f"{name}: Identify of the KV namespace, keys to 16 bytes, values to "
                       f"{limit >> 20} MiB", good, why)

    def combinations(self):
        data = self.raw("nvme admin-passthru /dev/nvme0 -o 6 -r -b -l 4096 --cdw10=0x1c", 4096)
        vectors = struct.unpack("<512Q", data) if data else ()
        self.tap.check("Identify of command set combinations has Key Value",
                       any(v & 2 for v in vectors),
                       self.said if not data else str([v for v in vectors if v]))

    def effects(self):
        data = self.raw("nvme get-log /dev/nvme0 -i 5 -l 4096 --csi=1 -b", 4096)
        effects = struct.unpack_from("<256I", data, 1024) if data else ()
        supported = {opcode for opcode, effect in enumerate(effects) if effect & 1}
        self.tap.check("the effects log of CSI 1 names the five KV commands",
                       set(OPCODES.values()) <= supported,
                       f"{sorted(supported)}\n{self.said[-500:]}")
        self.step("nvme effects-log --csi=1", "nvme effects-log /dev/nvme0 --csi=1", r"\S")

    # ---- the Key Value commands ----------------------------------------------------------------

    def values(self, name, ns):
        for size in SIZES:
            key = b"size" + struct.pack("<I", size)
            why = ns.round_trip(key, size)
            self.tap.check(f"{name}: a value of {size} bytes comes back", not why, why)
        for size in CLI_SIZES:
            key, why = b"cli %d" % size, ""
            ns.noise("/tmp/in", size)
            if ns.cli("store", key, size, file="/tmp/in") != (OK, 0):
                why = f"Store: {ns.output}"
            elif ns.cli("retrieve", key, size, file="/tmp/out") != (OK, size):
                why = f"Retrieve: {ns.output}"
            elif not ns.same("/tmp/in", "/tmp/out"):
                why = f"other bytes: {ns.output}"
            self.tap.check(f"{name}: nvme-cli stores and retrieves {size} bytes", not why, why)
        for shift, size in ((1, 4097), (511, 100001), (2, 131072)):
            why = ns.round_trip(b"shift %d" % shift, size, shift=shift)
            self.tap.check(f"{name}: a buffer {shift} bytes past a page, {size} bytes",
                           not why, why)
        for depth, size in ((64, 4096), (16, 100001)):
            why = ns.round_trip(b"ring%06d\0" % size, size, copies=depth, ring=depth)
            self.tap.check(f"{name}: io_uring, {depth} commands of {size} bytes in flight",
                           not why, why)

    def commands(self, name, ns):
        def check(what, got, want):
            self.tap.check(f"{name}: {what}", got == want,
                           f"wanted {want}, got {got}\n{ns.output}")

        key, full = b"\x00\xffkey of 16 byte", 8192
        ns.noise("/tmp/in", full)
        check("Store under a key of 16 bytes", ns.kv("store", key, size=full, file="/tmp/in"),
              [(OK, 0)])
        check("Retrieve into a smaller buffer succeeds, the result is the full length",
              ns.kv("retrieve", key, size=1000, file="/tmp/out"), [(OK, full)])
        check("... and it has the first bytes",
              self.guest.run("cmp -n 1000 /tmp/in /tmp/out")[0], 0)
        check("the same by nvme-cli", ns.cli("retrieve", key, 1000, file="/tmp/out"), (OK, full))
        check("Retrieve without a buffer gives the length", ns.kv("retrieve", key), [(OK, full)])
        check("Retrieve into a larger buffer writes nothing behind the value",
              ns.kv("retrieve", key, size=3 * full, file="/tmp/out"), [(OK, full)])
        check("... and the value is whole", ns.same("/tmp/in", "/tmp/out"), True)
        check("Exist of a key that is there", ns.kv("exist", key), [(OK, 0)])
        check("the same by nvme-cli", ns.cli("exist", key), (OK, 0))
        check("Exist of a key that is not", ns.kv("exist", b"absent"), [(NOT_FOUND, 0)])
        check("the same by nvme-cli", ns.cli("exist", b"absent"), (NOT_FOUND, None))
        check("a prefix of a key is another key", ns.kv("exist", key[:15]), [(NOT_FOUND, 0)])
        check("Retrieve of a key that is not there", ns.kv("retrieve", b"absent", size=512),
              [(NOT_FOUND, 0)])
        self.conditions(check, ns, key, full)
        self.refusals(check, ns)
        check("Delete of a key that is there", ns.kv("delete", key), [(OK, 0)])
        check("Delete again", ns.kv("delete", key), [(NOT_FOUND, 0)])
        check("the same by nvme-cli", ns.cli("delete", key), (NOT_FOUND, None))
        check("Retrieve after Delete", ns.kv("retrieve", key, size=full), [(NOT_FOUND, 0)])
        check("Exist after Delete", ns.kv("exist", key), [(NOT_FOUND, 0)])

    def conditions(self, check, ns, key, full):
        ns.noise("/tmp/other", 600)
        for old in (b"fresh", b"absent"):
            ns.kv("delete", old)
        check("Store if absent on a key that is there",
              ns.kv("store", key, size=600, file="/tmp/other", option=IF_ABSENT), [(EXISTS, 0)])
        check("the same by nvme-cli", ns.cli("store", key, 600, IF_ABSENT, "/tmp/other"),
              (EXISTS, None))
        large = 100001  # announced by R2T where the array takes the data at all
        ns.noise("/tmp/large", large)
        check("the same with a value that is not in the capsule",
              ns.kv("store", key, size=large, file="/tmp/large", option=IF_ABSENT), [(EXISTS, 0)])
        check("... and the old value stays", (ns.kv("retrieve", key, size=full, file="/tmp/out"),
                                              ns.same("/tmp/in", "/tmp/out")), ([(OK, full)], True))
        check("Store if absent on a new key",
              ns.kv("store", b"fresh", size=600, file="/tmp/other", option=IF_ABSENT), [(OK, 0)])
        check("Store if present on a key that is there",
              ns.kv("store", b"fresh", size=large, file="/tmp/large", option=IF_PRESENT), [(OK, 0)])
        check("... replaces the value", (ns.kv("retrieve", b"fresh", size=large, file="/tmp/out"),
                                         ns.same("/tmp/large", "/tmp/out")), ([(OK, large)], True))
        check("Store if present on a key that is not",
              ns.kv("store", b"absent", size=600, file="/tmp/other", option=IF_PRESENT),
              [(NOT_FOUND, 0)])
        check("... stores nothing", ns.kv("exist", b"absent"), [(NOT_FOUND, 0)])
        check("Store under both conditions is refused",
              ns.kv("store", b"absent", size=600, file="/tmp/other", option=IF_ABSENT | IF_PRESENT),
              [(INVALID_FIELD, 0)])
        check("Store over a longer value",
              ns.kv("store", b"fresh", size=600, file="/tmp/other"), [(OK, 0)])
        check("... leaves the shorter one",
              (ns.kv("retrieve", b"fresh", size=large, file="/tmp/out"),
               ns.same("/tmp/other", "/tmp/out")), ([(OK, 600)], True))

    def refusals(self, check, ns):
        small = {"size": 512, "file": "/tmp/small"}
        ns.noise("/tmp/small", 512)
        for length in (0, 17, 255):
            check(f"Store with a key of {length} bytes",
                  ns.kv("store", b"k", key_bytes=length, **small), [(BAD_KEY_SIZE, 0)])
            check(f"Exist with a key of {length} bytes",
                  ns.kv("exist", b"k", key_bytes=length), [(BAD_KEY_SIZE, 0)])
        check("Store of more bytes than its buffer has",
              ns.kv("store", b"absent", cdw10=513, **small), [(BAD_SGL_LENGTH, 0)])
        check("Store above KVVML",
              ns.kv("store", b"absent", cdw10=8 * MIB + 1, **small), [(BAD_VALUE_SIZE, 0)])
        check("... stores nothing", ns.kv("exist", b"absent"), [(NOT_FOUND, 0)])
        check("CDW12 and CDW13 are ignored",
              ns.kv("store", b"dwords", cdw12=0xFFFFFFFF, cdw13=0x1234567, **small), [(OK, 0)])
        check("key bytes past the key's length are ignored",
              ns.kv("exist", b"dwordsGARBAGE", key_bytes=6), [(OK, 0)])
        status, ns.output = self.guest.run(f"nvme io-passthru {ns.device} -o 0x7e -n {ns.nsid}")
        check("an unknown I/O command", cli_answer_of(ns.output), (INVALID_OPCODE, None))

    def listing(self, name, ns, array):
        """List by the kernel host; every key once, in one answer and page by page."""
        wanted = {b"list %02d" % n for n in range(40)} | {b"L", b"sixteen bytes ok"}
        bad = [key for key in sorted(wanted) if ns.kv("store", key) != [(OK, 0)]]
        self.tap.check(f"{name}: 42 values of 0 bytes to be listed", not bad, f"{bad}\n{ns.output}")

        def pages(size):
            """All keys in the order of the answers; or why not, as text."""
            keys, start = [], b""
            while len(keys) < 10000:
                if ns.kv("list", start, size=size, file="/tmp/list") == []:
                    return "List has no answer"
                page = parse_list(self.raw("cat /tmp/list", 4))
                if page is None:
                    return f"a broken answer: {self.said}"
                if page and page[0] == start:  # List starts from the key, so it is in both pages
                    page = page[1:]
                if not page:
                    return keys
                keys, start = keys + page, page[-1]
            return "List never ends"

        for size in (16 * KIB, 256):
            keys = pages(size)
            good = wanted <= set(keys) and len(keys) == len(set(keys))
            why = f"{keys}\nmissing: {sorted(wanted - set(keys))}\n{ns.output}"
            self.tap.check(f"{name}: List in pages of {size} bytes has every key once", good, why)
        status, out, err = program([self.kvof, "ls", array.uri(), "--json"])
        try:
            listed = {bytes.fromhex(row["key"]) for row in json.loads(out)}
        except (ValueError, KeyError, TypeError) as error:
            listed, err = set(), f"{err}{error}: {out[:500]}"
        self.tap.check(f"{name}: kvof ls has the keys that the kernel host stored",
                       status == 0 and wanted <= listed, f"exit status {status}; {err}")
        for key in wanted:
            ns.kv("delete", key)

    def exchange(self, name, ns, array):
        """A value put by kvof is read by the kernel host, and the other way round."""
        for size in (0, 5001, 100001, MIB + 1):
            data = random.Random(size).randbytes(size)
            key = b"host %d" % size
            path = os.path.join(self.folder, "value")
            with open(path, "wb") as file:
                file.write(data)
            status, _, err = program([self.kvof, "put", array.uri(), key.hex(), path])
            got = ns.kv("retrieve", key, size=size + 7, file="/tmp/out") if status == 0 else []
            good = got == [(OK, size)] and ns.sum("/tmp/out") == hashlib.sha256(data).hexdigest()
            self.tap.check(f"{name}: kvof put of {size} bytes, read by the kernel host", good,
                           f"kvof put: exit status {status}; {err}\n{ns.output}")
            key = b"guest %d" % size
            digest = ns.noise("/tmp/in", size)
            stored = ns.kv("store", key, size=size, file="/tmp/in")
            status, out, err = program([self.kvof, "get", array.uri(), key.hex()])
            good = stored == [(OK, 0)] and status == 0 and hashlib.sha256(out).hexdigest() == digest
            self.tap.check(f"{name}: stored by the kernel host, kvof get of {size} bytes", good,
                           f"kvof get: exit status {status}, {len(out)} bytes; {err}\n{ns.output}")
        ns.kv("delete", key)
        status, _, err = program([self.kvof, "exists", array.uri(), key.hex()])
        self.tap.check(f"{name}: deleted by the kernel host, absent for kvof exists", status == 1,
                       f"exit status {status}; {err}")

    def healthy(self, name, array, *options):
        status, out, err = program([self.kvof, "stat", array.uri(), "--json", *options])
        logged = array.logged()
        bad = [w for w in ("Sanitizer", "runtime error", "must(") if w in logged]
        self.tap.check(f"{name}: kvof serve is alive and answers kvof stat",
                       array.process.poll() is None and status == 0 and not bad,
                       f"kvof stat: exit status {status}; {err}\n{array.why()}")

    # ---- whole runs ----------------------------------------------------------------------------

    def round(self, name, array, flags, first):
        ns = self.connect(name, array, flags)
        if ns is None:
            return
        if first:
            self.described(ns)
        self.values(name, ns)
        self.commands(name, ns)
        self.listing(name, ns, array)
        self.exchange(name, ns, array)
        self.quiet(name)
        self.reset(name, ns)
        self.disconnect(name)
        self.healthy(name, array)

    def variants(self, array):
        """Connections of other shapes, and a burst of commands over each."""
        for name, flags in (("header digest", "-g"), ("data digest", "-G"),
                            ("one queue of 16", "--nr-io-queues=1 --queue-size=16")):
            ns = self.connect(name, array, flags)
            if ns is None:
                continue
            why = ns.round_trip(b"variant\0", 5001, copies=64, ring=64) or ns.round_trip(
                b"variant\0", 100001, copies=8, ring=8)
            self.tap.check(f"{name}: 64 values of 5001 bytes and 8 of 100001 at once", not why, why)
            self.quiet(name)
            self.disconnect(name)

    def reset(self, name, ns):
        ns.noise("/tmp/in", 5001)
        ns.kv("store", b"over reset", size=5001, file="/tmp/in")
        self.step(f"{name}: nvme reset, and the controller is live again", WAIT_FOR + """
            nvme reset /dev/nvme0 && wait_for '[ "$(cat /sys/class/nvme/nvme0/state)" = live ]'""")
        got = ns.kv("retrieve", b"over reset", size=5001, file="/tmp/out")
        self.tap.check(f"{name}: the value is there after the reset",
                       got == [(OK, 5001)] and ns.same("/tmp/in", "/tmp/out"), ns.output)

    def restart(self, array, options):
        """The array is killed and started again: the kernel host comes back by itself."""
        name = "restart"
        ns = self.connect(name, array)
        if ns is None:
            return array
        ns.noise("/tmp/in", 100001)
        ns.kv("store", b"over restart", size=100001, file="/tmp/in")
        array.stop(signal.SIGKILL)
        array = Array(self.kvof, self.folder, *options, port=array.port)
        if not self.tap.check("restart: kvof serve is ready again on its drives",
                              array.is_ready(), array.why()):
            return array
        self.step("restart: the kernel host reconnects by itself", WAIT_FOR + """
            wait_for 'dmesg | grep -q "Successfully reconnected"'
            wait_for '[ "$(cat /sys/class/nvme/nvme0/state)" = live ]'""", seconds=40)
        got = ns.kv("retrieve", b"over restart", size=100001, file="/tmp/out")
        self.tap.check("restart: what was acknowledged before the kill is there",
                       got == [(OK, 100001)] and ns.same("/tmp/in", "/tmp/out"), ns.output)
        self.disconnect(name)
        return array

    def silence(self, array):
        """A host that falls silent is dropped once its keep-alive time is over, and may return."""
        name = "keep alive"
        ns = self.connect(name, array, "--keep-alive-tmo=2")
        if ns is None:
            return
        ns.noise("/tmp/in", 5001)
        ns.kv("store", b"over silence", size=5001, file="/tmp/in")
        before, end = array.connections(), time.monotonic() + 10
        with self.guest.frozen():
            while array.connections() and time.monotonic() < end:
                select.select([array.process.stdout], [], [], 0.1)  # readable if it ends
            after = array.connections()
        self.tap.check("keep alive: a host that promised a sign every 2 s is dropped within 10 s",
                       before == 3 and after == 0,
                       f"{before} connections before, {after} after; 3 and 0 wanted\n{array.why()}")
        self.step("keep alive: the host connects again", WAIT_FOR + """
            wait_for 'dmesg | grep -q "Reconnecting"'
            wait_for '[ "$(cat /sys/class/nvme/nvme0/state)" = live ]'""", seconds=40)
        got = ns.kv("retrieve", b"over silence", size=5001, file="/tmp/out")
        self.tap.check("keep alive: the value is there", got == [(OK, 5001)] and
                       ns.same("/tmp/in", "/tmp/out"), ns.output)
        self.disconnect(name)
        self.healthy(name, array)

    def power_cut(self, array):
        """The guest vanishes while 16 large Stores are on their way; the last thing it does."""
        name = "power cut"
        ns = self.connect(name, array)
        if ns is None:
            return
        ns.noise("/tmp/in", MIB)
        self.guest.run(f"""
            (while passthru {ns.device} {ns.nsid} store {b'cut'.hex()}00 --size {MIB} \
                --file /tmp/in --ring 16; do :; done) >/tmp/load 2>&1 &
            n=0
            until [ -s /tmp/load ] || [ $n -ge 100 ]; do n=$((n + 1)); usleep 100000; done""", 30)
        self.guest.close()
        path = os.path.join(self.folder, "value")
        data = random.Random(7).randbytes(100001)
        with open(path, "wb") as file:
            file.write(data)
        put, _, err = program([self.kvof, "put", array.uri(), "text:after", path])
        get, out, more = program([self.kvof, "get", array.uri(), "text:after"])
        self.tap.check("power cut: another host stores and retrieves",
                       put == 0 and get == 0 and out == data,
                       f"kvof put: exit status {put}; {err}\nkvof get: {get}; {more}")
        sizes = set()
        for copy in range(16):
            status, out, err = program([self.kvof, "get", array.uri(), f"{b'cut'.hex()}{copy:02x}"])
            sizes.add(len(out) if status == 0 else f"status {status}: {err}" if status != 1 else 0)
        self.tap.check("power cut: every value is whole or absent", sizes <= {0, MIB}, sizes)
        self.healthy(name, array)

    def largest(self, folder):
        """Values up to the largest limit there is."""
        limit = 64 * MIB
        array = Array(self.kvof, folder, "--value-bytes-max", "64MiB", drive_size="512MiB")
        try:
            if not self.tap.check("64 MiB: kvof serve --value-bytes-max is ready",
                                  array.is_ready(), array.why()):
                return
            ns = self.connect("64 MiB", array)
            if ns is None:
                return
            self.identify_kv("64 MiB", ns, limit)
            why = ns.round_trip(b"largest", limit, seconds=100)
            self.tap.check(f"64 MiB: a value of {limit} bytes comes back", not why, why)
            got = ns.kv("store", b"absent", size=512, cdw10=limit + 1)
            self.tap.check("64 MiB: Store above KVVML", got == [(BAD_VALUE_SIZE, 0)], ns.output)
            self.quiet("64 MiB")
            self.disconnect("64 MiB")
            self.healthy("64 MiB", array)
        finally:
            array.stop()

    def allow_list(self, folder):
        array = Array(self.kvof, folder, "--allow-host", HOSTNQN)
        try:
            if not self.tap.check("allow-list: kvof serve --allow-host is ready",
                                  array.is_ready(), array.why()):
                return
            line = self.connect_line(array, hostnqn=OTHER_HOSTNQN, hostid=OTHER_HOSTID)
            status, output = self.guest.run(
                f"{line}; s=$?; ls /dev/nvme0 /dev/ng*; dmesg | tail -5; exit $s", 30)
            self.tap.check("allow-list: another host is refused",
                           status != 0 and "/dev/nvme0: No such file" in output,
                           f"exit status {status}\n{output}")
            ns = self.connect("allow-list", array)
            if ns is not None:
                why = ns.round_trip(b"allowed", 100001)
                self.tap.check("allow-list: the host on the list stores and retrieves",
                               not why, why)
                self.disconnect("allow-list")
            self.healthy("allow-list", array, "--host-nqn", HOSTNQN)
        finally:
            array.stop()

    def array_runs(self):
        options = []
        array = Array(self.kvof, self.folder, *options)
        try:
            if not self.tap.check("kvof serve prints its ready line",
                                  array.is_ready(), array.why()):
                return
            self.discovery(array)
            self.round("no digests", array, "", True)
            self.round("digests", array, "-g -G", False)
            self.variants(array)
            array = self.restart(array, options)
            self.silence(array)
        finally:
            status = array.stop()
        self.tap.check("kvof serve ends with 0 on SIGTERM", status == 0, array.why())
        for name, run in (("allow", self.allow_list), ("large", self.largest)):
            other = os.path.join(self.folder, name)
            os.mkdir(other)
            run(other)
            shutil.rmtree(other)
        array = Array(self.kvof, self.folder, *options)
        try:
            self.power_cut(array)
        finally:
            array.stop()


def parse_list(data):
    """Keys of a List answer: le32 count, then le16 length and key, padded to 4; None if broken."""
    if len(data) < 4:
        return None
    keys, at = [], 4
    for _ in range(struct.unpack_from("<I", data)[0]):
        if at + 2 > len(data):
            return None
        length = struct.unpack_from("<H", data, at)[0]
        if not 1 <= length <= 16 or at + 2 + length > len(data):
            return None
        keys.append(data[at + 2:at + 2 + length])
        at += (2 + length + 3) // 4 * 4
    return keys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guest", required=True, help="folder of the cached guest")
    parser.add_argument("--kvof", help="the program; without it only the guest itself is judged")
    args = parser.parse_args()
    if shutil.which(driver.QEMU) is None:
        print(f"1..0 # SKIP {driver.QEMU} is not installed (Debian: qemu-system-x86)")
        return 0
    tap, folder = Tap(), os.path.abspath(args.guest)
    try:
        build.build(folder)
    except build.Failed as failed:
        tap.check("the guest is built from Debian's packages", False, failed)
        return tap.done()
    work = tempfile.mkdtemp(prefix="kvof-guest-")
    started = time.monotonic()
    try:
        forwarded = free_port()
        with Guest(folder, forward=(forwarded, 4420)) as guest:
            tap.check("the guest boots", True)
            tap.say(f"Linux {guest.release}, {guest.boot_seconds:.1f} s to boot")
            tap.say(f"console: {guest.serial_kept}")
            kvof = args.kvof and os.path.abspath(args.kvof)
            judge = Judge(guest, tap, kvof, work, forwarded)
            judge.guest_itself()
            if args.kvof:
                judge.kernel_target()
                judge.array_runs()
    except Lost as lost:
        tap.check("the guest answers to the end", False, lost)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    tap.say(f"{time.monotonic() - started:.0f} s in all")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
