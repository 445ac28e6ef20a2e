#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""block_host_test.py --guest FOLDER [--kvof PROGRAM]

Debian's kernel as host of a block namespace of `kvof serve` on this machine's loopback: file
system, fio --verify, every command, and the array killed under load. The checks of a device are
first made on QEMU's emulated NVMe drive, so that a red line further down is about kvof. Prints TAP.
Skips only where QEMU is not installed.
"""
import os
import re
import shutil
import signal
import sys

import suite
from array_host import (HOSTID, HOSTNQN, NQN, WAIT_FOR, Array, cli_answer_of, free_port,
                        program)
from block_device import VERIFY, BlockDevice
from guest import HOST

DRIVE_SIZE = "384MiB"   # two of them
SIZE_MIB = 384          # mkfs.xfs wants 300 MiB; thin, so few of them are ever written

# The device of a namespace, by subsystem and NSID: the Y of /dev/nvmeXnY is not the NSID.
FIND = WAIT_FOR + """
block_of() {
	for d in /sys/block/nvme*n*; do
		case ${d##*/} in *c*) continue ;; esac
		[ "$(cat $d/device/subsysnqn 2>/dev/null)" = "$1" ] && [ "$(cat $d/nsid)" = "$2" ] &&
			echo /dev/$(basename $d) && return 0
	done
	return 1
}
generic_of() {
	for d in /sys/class/nvme-generic/ng*; do
		[ "$(cat $d/device/subsysnqn 2>/dev/null)" = "$1" ] &&
			nvme get-ns-id /dev/$(basename $d) | grep -q ":$2\\$" &&
			echo /dev/$(basename $d) && return 0
	done
	return 1
}
ctrl_of() {
	for d in /sys/class/nvme/nvme*; do
		[ "$(cat $d/subsysnqn 2>/dev/null)" = "$1" ] && basename $d && return 0
	done
	return 1
}
state() { cat /sys/class/nvme/$(ctrl_of $1)/state; }
# Requests of one kind or more ("$1 + $5": reads and writes) that a device has ended. One of several
# paths counts none itself: they do.
ended() {
	d=${1##*/}
	cat /sys/block/$d/stat /sys/block/${d%n*}c*n${d##*n}/stat 2>/dev/null |
		awk "{ n += $2 } END { print n }"
}
"""


class Judge(BlockDevice):
    def __init__(self, guest, tap, kvof, folder):
        super().__init__(guest, tap)
        self.kvof, self.folder = kvof, folder

    # ---- the guest itself ----------------------------------------------------------------------

    def itself(self):
        """All checks of a device on QEMU's own NVMe drive."""
        name, dev, bs = "guest itself", "/dev/nvme0n1", 4096
        self.identified(name, dev, 1, bs, SIZE_MIB)
        self.read_and_write(name, dev, bs)
        self.zeroes(name, dev, bs)
        self.passthrough(name, dev, bs, (SIZE_MIB << 20) // bs)
        self.file_system(name, dev)
        self.fio(name, dev, "--rw=randwrite --bs=4k --size=4M --iodepth=16 --ioengine=io_uring")

    # ---- connecting ----------------------------------------------------------------------------

    def connect_line(self, array, flags="", port=None):
        return (f"nvme connect -t tcp -a {HOST} -s {port or array.port} -n {NQN} "
                f"--hostnqn={HOSTNQN} "
                f"--hostid={HOSTID} --reconnect-delay=1 --ctrl-loss-tmo=60 "
                f"{'' if '--keep-alive' in flags else '--keep-alive-tmo=5'} {flags}")

    def connect(self, name, array, flags="", nsid=2):
        """/dev/nvmeXnY of the block namespace; None after a failed check."""
        status, output = self.guest.run(FIND + f"""
            nvme disconnect-all
            dmesg -C
            {self.connect_line(array, flags)} || exit 1
            wait_for 'block_of {NQN} {nsid} >/dev/null' || exit 2
            echo found $(block_of {NQN} {nsid})""", 40)
        found = re.search(r"^found (/dev/nvme\d+n\d+)$", output, re.M)
        if not self.tap.check(f"{name}: nvme connect, and a block device with NSID {nsid} appears",
                              status == 0 and found,
                              f"exit status {status}\n{output}\n{self.dmesg()}\n{array.why()}"):
            return None
        return found[1]

    def disconnect(self, name):
        self.step(f"{name}: nvme disconnect",
                  FIND + f"nvme disconnect -n {NQN} && ! block_of {NQN} 2",
                  "disconnected 1 controller")

    def healthy(self, name, array):
        status, out, err = program([self.kvof, "stat", array.uri(), "--json"])
        logged = array.logged()
        bad = [w for w in ("Sanitizer", "runtime error", "must(") if w in logged]
        self.tap.check(f"{name}: kvof serve is alive and answers kvof stat",
                       array.process.poll() is None and status == 0 and not bad,
                       f"kvof stat: exit status {status}; {err}\n{array.why()}")

    # ---- one namespace -------------------------------------------------------------------------

    def described(self, name, dev):
        self.step(f"{name}: Key Value and block stand side by side", FIND + f"""
            echo kv $(generic_of {NQN} 1)
            echo block $(generic_of {NQN} 2)
            ls /dev/nvme*n*
            nvme list-ns /dev/$(ctrl_of {NQN})
            echo csi0; nvme list-ns /dev/$(ctrl_of {NQN}) --csi=0
            echo csi1; nvme list-ns /dev/$(ctrl_of {NQN}) --csi=1""",
                  r"^kv /dev/ng\d", r"^block /dev/ng\d", r"^\[ +0\]:0x1\n\[ +1\]:0x2$",
                  r"^csi0\n\[ +0\]:0x2\ncsi1\n\[ +0\]:0x1$")
        output = self.step(f"{name}: the block namespace has UUID, NGUID and EUI-64", f"""
            q=/sys/block/{dev[5:]}
            for f in uuid nguid eui wwid; do echo $f $(cat $q/$f); done""",
                           r"^uuid [0-9a-f-]{36}$", r"^nguid [0-9a-f-]{32,}$",
                           r"^eui ([0-9a-f]{2} ?){8}$", r"^wwid \S")
        block = dict(re.findall(r"^(uuid|nguid|eui) (.*\S)$", output, re.M))
        output = self.guest.run(FIND + f"""
            c=/dev/$(ctrl_of {NQN}); nvme ns-descs $c -n 1; echo two; nvme ns-descs $c -n 2""")[1]
        kv, _, other = output.partition("two\n")
        plain = {k: re.sub(r"[^0-9a-f]", "", v) for k, v in block.items()}
        same = [k for k, v in plain.items() if v and v in re.sub(r"[^0-9a-f\n]", "", kv)]
        self.tap.check(f"{name}: ... none of which is the Key Value namespace's",
                       not same and any(set(v) - {"0"} for v in plain.values()),
                       f"the same: {same}\n{output}")
        self.tap.check(f"{name}: nvme ns-descs gives CSI 0 for it",
                       re.search(r"^csi +: (0x)?0+$", other, re.M), output)
        self.step(f"{name}: Identify tells of a thin namespace whose discarded blocks are zeros",
                  f"nvme id-ns {dev}", r"^dlfeat +: [19]$", r"^nsfeat +: 0x[0-9a-f]*[13579bdf]$")
        self.step(f"{name}: nvme list shows it", "nvme list", rf"^{dev}\s")
        ctrl = self.step(f"{name}: id-ctrl tells of a volatile write cache", FIND +
                         f"nvme id-ctrl /dev/$(ctrl_of {NQN})", r"^vwc +: 0x[0-9a-f]*[13579bdf]$")
        oncs = re.search(r"^oncs +: (0x[0-9a-f]+)$", ctrl, re.M)
        self.tap.check(f"{name}: ... of Compare, Dataset Management, Write Zeroes and Verify",
                       oncs and int(oncs[1], 16) & 0x8D == 0x8D, ctrl)

    def unwritten(self, name, dev):
        self.step(f"{name}: blocks that hold nothing are zeros", f"""
            dd if={dev} bs=1M count=16 iflag=direct 2>/dev/null | cmp -n 16777216 - /dev/zero""")

    def format_refused(self, name, dev):
        """Format NVM is refused, or does what it says; the bytes tell which."""
        status, output = self.guest.run(f"""
            head -c 65536 /dev/urandom >/tmp/in
            dd if=/tmp/in of={dev} bs=64k oflag=direct 2>/dev/null
            nvme format {dev} --force -l 0; s=$?
            dd if={dev} of=/tmp/out bs=64k count=1 iflag=direct 2>/dev/null
            cmp /tmp/in /tmp/out && echo kept; cmp -n 65536 /tmp/out /dev/zero && echo zeros
            exit $s""", 40)
        refused = status != 0 and "kept" in output and cli_answer_of(output)
        self.tap.check(f"{name}: nvme format is refused and nothing is lost, or it clears all",
                       refused or (status == 0 and "zeros" in output), output)

    def used(self, array):
        """Bytes that the array has on its drives for this subsystem's namespaces, or None."""
        status, out, _ = program([self.kvof, "stat", f"{array.uri()}?nsid=2", "--json"])
        found = re.search(rb'"used_bytes": ?(\d+)', out)
        return int(found[1]) if status == 0 and found else None

    def namespace(self, name, array, bs, first):
        dev = self.connect(name, array)
        if dev is None:
            return
        if first:
            self.described(name, dev)
        self.identified(name, dev, 2, bs, SIZE_MIB)
        self.unwritten(name, dev)
        self.read_and_write(name, dev, bs)
        self.zeroes(name, dev, bs)
        self.passthrough(name, dev, bs, (SIZE_MIB << 20) // bs)
        self.format_refused(name, dev)
        self.file_system(name, dev)
        self.space_given_back(name, dev, array)
        self.quiet(name)
        self.reconnect_file_system(name, array)
        self.disconnect(name)
        self.healthy(name, array)

    def space_given_back(self, name, dev, array):
        before = self.used(array)
        self.step(f"{name}: blkdiscard of the whole device", f"blkdiscard -f {dev}", seconds=60)
        after = self.used(array)
        self.tap.check(f"{name}: ... gives its room on the drives back",
                       before is not None and after is not None and after < before / 2,
                       f"{before} bytes before, {after} after")
        self.unwritten(f"{name} after blkdiscard", dev)

    def reconnect_file_system(self, name, array):
        dev = self.connect(f"{name} again", array)
        if dev is not None:
            self.file_system(f"{name} again", dev, trim=False)
            dev = self.connect(f"{name} once more", array, "-g -G")
        if dev is not None:
            self.files_same(f"{name} once more, with digests", dev)

    # ---- load ----------------------------------------------------------------------------------

    def loads(self, array, _):
        """fio --verify over connections of several shapes."""
        for name, flags, queues, jobs in (
                ("1 queue", "--nr-io-queues=1", 2, [
                    "--rw=randwrite --bs=4k --size=4M --iodepth=1 --ioengine=psync",
                    "--rw=write --bs=1M --size=32M --iodepth=4 --ioengine=libaio"]),
                ("4 queues", "--nr-io-queues=2 --nr-write-queues=2", 5, [
                    "--rw=randwrite --bs=4k --size=8M --iodepth=64 --ioengine=io_uring",
                    "--rw=randrw --bssplit=4k/40:12k/20:64k/20:100k/20 --size=16M --iodepth=16 "
                    "--ioengine=libaio --serialize_overlap=1"]),
                ("header and data digest, 2 queues", "-g -G --nr-io-queues=2", 3, [
                    "--rw=randwrite --bsrange=4k-128k --size=16M --iodepth=32 --ioengine=io_uring "
                    "--serialize_overlap=1",
                    "--rw=write --bs=256k --size=32M --iodepth=8 --ioengine=libaio"]),
                ("queues of 16", "--queue-size=16 -G", 3, [
                    "--rw=randwrite --bs=8k --size=8M --iodepth=64 --ioengine=libaio",
                    "--rw=write --bs=4k --size=4M --iodepth=1 --ioengine=psync --fsync=32"])):
            dev = self.connect(f"fio, {name}", array, flags)
            if dev is None:
                continue
            self.step(f"fio, {name}: the host has that many queues", FIND +
                      f"cat /sys/class/nvme/$(ctrl_of {NQN})/queue_count", rf"^{queues}$")
            for job in jobs:
                self.fio(f"fio, {name}", dev, job)
            self.quiet(f"fio, {name}")
        self.step("fio: two jobs write their own halves at once, with trims", f"""
            d=$(echo {dev})
            {VERIFY} --filename=$d --rw=randtrimwrite --bs=64k --size=16M --iodepth=8 \
                --ioengine=libaio --numjobs=2 --offset_increment=64M --verify=0 >/tmp/t 2>&1
            s=$?; tail -5 /tmp/t; exit $s""", seconds=90)
        self.healthy("fio", array)

    def side_by_side(self, array, _):
        """Values go in and out while the block namespace is written and verified."""
        name = "KV beside block"
        dev = self.connect(name, array)
        if dev is None:
            return
        self.step(f"{name}: 40 values come back while fio verifies", FIND + f"""
            kv=$(generic_of {NQN} 1)
            {VERIFY} --filename={dev} --rw=randwrite --bs=16k --size=24M --iodepth=16 \
                --ioengine=libaio >/tmp/fio 2>&1 & fio=$!
            head -c 100001 /dev/urandom >/tmp/in
            n=0; bad=0
            while [ $n -lt 40 ]; do
                k=$(printf '%04x' $n)
                passthru $kv 1 store $k --size 100001 --file /tmp/in >/dev/null || bad=1
                passthru $kv 1 retrieve $k --size 100001 --file /tmp/out >/dev/null || bad=2
                cmp /tmp/in /tmp/out || bad=3
                n=$((n + 1))
            done
            wait $fio || bad=4
            tail -3 /tmp/fio; echo bad $bad""", r"^bad 0$", seconds=90)
        self.quiet(name)

    FIO_LONG = (VERIFY + "--rw=randwrite --bsrange=4k-64k --size=64M --iodepth=16 "
                "--ioengine=libaio --verify_backlog=128 --serialize_overlap=1 ")

    def fio_begin(self, dev, more=""):
        """fio in the background; returns once it has written something.

        Linux 6.1 raises SIGPIPE in whoever submits I/O just when the array's socket has died.
        """
        return self.guest.run(FIND + f"""
            rm -f /tmp/fio.end
            trap '' PIPE
            ({self.FIO_LONG} {more} --filename={dev} >/tmp/fio 2>&1; echo $? >/tmp/fio.end) &
            a=$(ended {dev} '$5')
            wait_for '[ $(ended {dev} "\\$5") -gt '$((a + 50))' ]'""", 30)

    def fio_ends(self, name, want_zero=True, seconds=90):
        status, output = self.guest.run("""
            n=0
            until [ -f /tmp/fio.end ]; do
                n=$((n + 1)); [ $n -lt 800 ] || { echo hangs; exit 9; }
                sleep 0.1
            done
            cat /tmp/fio; echo fio ended with $(cat /tmp/fio.end)""", seconds)
        good = status == 0 and "verify: bad" not in output and (
            ("fio ended with 0" in output and "err= 0" in output) if want_zero
            else "fio ended with 0" not in output)
        self.tap.check(name, good, f"exit status {status}\n{output[-3000:]}\n{self.dmesg()}")

    def reset_under_load(self, array, _):
        name = "reset under load"
        dev = self.connect(name, array)
        if dev is None:
            return
        self.fio_begin(dev)
        self.step(f"{name}: three resets, each time the controller is live again", FIND + f"""
            set -e
            for n in 1 2 3; do
                nvme reset /dev/$(ctrl_of {NQN})
                wait_for '[ "$(state {NQN})" = live ]'
            done""", seconds=60)
        self.fio_ends(f"{name}: fio --verify goes on and finds no error")

    def disconnect_under_load(self, array, _):
        name = "disconnect under load"
        dev = self.connect(name, array)
        if dev is None:
            return
        self.step(f"{name}: 16 MiB written and kept", f"""
            set -e
            head -c 16777216 /dev/urandom >/tmp/kept
            dd if=/tmp/kept of={dev} bs=1M seek=300 oflag=direct 2>/dev/null""", seconds=40)
        # no verify: a read of a device that is going ends as at its end of file, with no bytes, and
        # fio then judges what its buffer held before
        self.fio_begin(dev, "--size=250M --verify=0")
        self.step(f"{name}: nvme disconnect", f"nvme disconnect -n {NQN}", "disconnected 1")
        self.fio_ends(f"{name}: fio ends at once with an error", want_zero=False, seconds=60)
        dev = self.connect(f"{name}, and back", array)
        if dev is not None:
            self.step(f"{name}: what was written before is there", f"""
                dd if={dev} of=/tmp/out bs=1M skip=300 count=16 iflag=direct 2>/dev/null
                cmp /tmp/kept /tmp/out""", seconds=40)
            self.fio(name, dev, "--rw=randwrite --bs=4k --size=4M --iodepth=16 --ioengine=libaio")
        self.healthy(name, array)

    def kill_under_load(self, array, options):
        """kill -9 of the array while fio writes and verifies; twice.

        With --multipath alone: a send on a socket that has just died is a try, and a host with one
        path makes as many of these as it has (five by default) before its error recovery begins.
        """
        name = "kill under load"
        dev = self.connect(name, array)
        if dev is None:
            return array
        self.fio_begin(dev)
        for turn in (1, 2):
            array.stop(signal.SIGKILL)
            if turn == 2:
                self.step(f"{name} {turn}: while it is away the host is refused", WAIT_FOR + """
                    dmesg -C
                    wait_for 'dmesg | grep -q "Failed reconnect attempt"'""")
            array = self.again(array, options)
            if not self.tap.check(f"{name} {turn}: kvof serve is ready again on its drives",
                                  array.is_ready(), array.why()):
                return array
            self.step(f"{name} {turn}: the host comes back by itself", FIND + f"""
                wait_for '[ "$(state {NQN})" = live ]'
                a=$(ended {dev} '$1 + $5')
                wait_for '[ -f /tmp/fio.end ] ||
                    [ $(ended {dev} "\\$1 + \\$5") -gt '$((a + 10))' ]'""", seconds=60)
        self.fio_ends(f"{name}: fio --verify goes on and finds no error")
        self.file_system(f"{name}, afterwards", dev, trim=False)
        self.disconnect(name)
        self.healthy(name, array)
        return array

    def kill_mounted(self, array, options):
        """kill -9 of the array under a mounted file system that is being written."""
        name = "kill under XFS"
        dev = self.connect(name, array)
        if dev is None:
            return array
        self.step(f"{name}: a file system in use", f"""
            set -e
            mkfs.xfs -q -f {dev}
            mount {dev} /mnt
            trap '' PIPE
            (n=0; while [ $n -lt 60 ]; do
                n=$((n + 1)); head -c 500001 /dev/urandom >/mnt/f$n && sync /mnt/f$n &&
                sha256sum /mnt/f$n; done) >/tmp/synced 2>/tmp/err &
            n=0; until [ $(wc -l </tmp/synced) -ge 5 ]; do
                n=$((n + 1)); [ $n -lt 200 ]; sleep 0.1; done""", seconds=60)
        array.stop(signal.SIGKILL)
        array = self.again(array, options)
        self.tap.check(f"{name}: kvof serve is ready again", array.is_ready(), array.why())
        self.step(f"{name}: writing goes on, and every file that was synced is there", """
            n=0; until [ $(wc -l </tmp/synced) -ge 60 ]; do
                n=$((n + 1)); [ $n -lt 500 ] || { cat /tmp/err; wc -l /tmp/synced; exit 1; }
                sleep 0.1; done
            umount /mnt && echo 3 >/proc/sys/vm/drop_caches
            cat /tmp/err""", seconds=90)
        self.step(f"{name}: ... also after it was mounted again", f"""
            mount {dev} /mnt && sha256sum -c --quiet /tmp/synced; s=$?
            umount /mnt; exit $s""", seconds=60)
        self.step(f"{name}: xfs_repair -n finds nothing", f"xfs_repair -n {dev} 2>&1", seconds=90)
        return array

    # ---- namespaces that come and go -------------------------------------------------------------

    def control(self, array, *words):
        """(exit status, standard output, what it said) of `kvof ns ...` at this array."""
        status, out, err = program([self.kvof, "ns", *words, "--port", str(array.port)])
        return status, out.decode(errors="replace"), f"kvof ns {words}: {status}\n{err}"

    def made(self, name, array, *words):
        status, _, said = self.control(array, "create", *words)
        return self.tap.check(f"{name}: kvof ns create {' '.join(words)}", status == 0,
                              f"{said}\n{array.why()}")

    def come_and_go(self, array, _):
        """Namespaces made and removed on line: the host hears of it by itself."""
        name = "on line"
        dev = self.connect(name, array)
        if dev is None:
            return
        self.made(name, array, "--kind", "block", "--size", "32MiB", "--nsid", "7",
                  "--block-bytes", "512")
        output = self.step(f"{name}: a new block device appears by itself", FIND + f"""
            wait_for 'block_of {NQN} 7 >/dev/null' && echo found $(block_of {NQN} 7)""",
                           r"^found /dev/nvme\d+n\d+$", seconds=60)
        found = re.search(r"^found (/dev/nvme\d+n\d+)$", output, re.M)
        if found:
            self.identified(f"{name}, new", found[1], 7, 512, 32)
            self.read_and_write(f"{name}, new", found[1], 512)
            self.fio(f"{name}, new", found[1],
                     "--rw=randwrite --bs=512 --size=1M --iodepth=16 --ioengine=libaio")
        self.made(name, array, "--kind", "kv", "--size", "64MiB", "--nsid", "9")
        self.step(f"{name}: a new Key Value namespace appears and takes values", FIND + f"""
            set -e
            wait_for 'generic_of {NQN} 9 >/dev/null'
            d=$(generic_of {NQN} 9)
            head -c 100001 /dev/urandom >/tmp/in
            passthru $d 9 store 01 --size 100001 --file /tmp/in
            passthru $d 9 retrieve 01 --size 100001 --expect /tmp/in
            passthru $(generic_of {NQN} 1) 1 exist 01 && exit 1 || true""", "status=0x87",
                  seconds=60)
        if found:
            self.removed_under_load(name, array, dev, found[1])
        status, _, said = self.control(array, "rm", "9")
        self.tap.check(f"{name}: kvof ns rm 9", status == 0, said)
        self.step(f"{name}: ... and the host has none of them any more", FIND + f"""
            wait_for '! generic_of {NQN} 9' && ! block_of {NQN} 7""", seconds=60)
        self.made(f"{name}, again", array, "--kind", "block", "--size", "32MiB", "--nsid", "7",
                  "--block-bytes", "512")
        self.step(f"{name}, again: nothing of what it held before is there", FIND + f"""
            wait_for 'block_of {NQN} 7 >/dev/null'
            dd if=$(block_of {NQN} 7) bs=1M count=32 iflag=direct 2>/dev/null |
                cmp -n 33554432 - /dev/zero""", seconds=60)
        status, _, said = self.control(array, "rm", "7")
        self.tap.check(f"{name}, again: kvof ns rm 7", status == 0, said)
        self.fio(f"{name}: the first block namespace is as before", dev,
                 "--rw=randwrite --bs=4k --size=2M --iodepth=16 --ioengine=libaio")
        self.disconnect(name)
        self.healthy(name, array)

    def removed_under_load(self, name, array, dev, new):
        self.fio_begin(new, "--size=32M --loops=20")
        status, _, said = self.control(array, "rm", "7")
        self.tap.check(f"{name}: kvof ns rm 7 while fio writes to it", status == 0, said)
        self.fio_ends(f"{name}: ... fio ends with an error, at once", want_zero=False, seconds=60)
        self.step(f"{name}: ... the device goes, the others stay", FIND + f"""
            wait_for '! block_of {NQN} 7' && block_of {NQN} 2 && generic_of {NQN} 1
            dd if={dev} of=/dev/null bs=1M count=4 iflag=direct""", rf"^{dev}$", seconds=60)
        _, out, said = self.control(array, "ls", "--json")
        self.tap.check(f"{name}: ... and kvof ns ls no longer lists it",
                       '"nsid":2' in out.replace(" ", "") and '"nsid":7' not in
                       out.replace(" ", ""), f"{said}\n{out}")

    def blocks_4096(self, array, _):
        self.namespace("4096", array, 4096, True)

    def blocks_512(self, *_):
        """All checks of a namespace once more, on one with blocks of 512 bytes."""
        folder = os.path.join(self.folder, "512")
        os.mkdir(folder)
        array = Array(self.kvof, folder, "--kv", "64MiB", "--block", f"{SIZE_MIB}MiB",
                      "--block-bytes", "512", drive_size=DRIVE_SIZE)
        try:
            if self.tap.check("512: kvof serve --block-bytes 512 prints its ready line",
                              array.is_ready(), array.why()):
                self.namespace("512", array, 512, False)
                dev = self.connect("512, fio", array, "-g -G")
                if dev:
                    self.fio("512", dev, "--rw=randwrite --bsrange=512-16k --size=4M --iodepth=32 "
                             "--ioengine=io_uring --serialize_overlap=1")
        finally:
            self.guest.run("umount -l /mnt; nvme disconnect-all", 30)
            array.stop()
            shutil.rmtree(folder)

    def two_paths(self, array, _):
        """Two controllers of one subsystem are one device, which lives on with either of them."""
        name = "two paths"
        dev = self.connect(name, array)
        if dev is None:
            return
        self.step(f"{name}: a connection to another port is a path to the same device", FIND + f"""
            set -e
            {self.connect_line(array, port=self.other_port)}
            wait_for '[ $(ls -d /sys/block/{dev[5:-2]}c*n2 | wc -l) = 2 ]'
            nvme list-subsys {dev}
            ls {dev[:-2]}n*""", *[f"trsvcid={port},.* live" for port in
                                  (array.port, self.other_port)], rf"\A(?s:.*)^{dev}\n\Z")
        self.step(f"{name}: ... and so are the Key Value namespace's", FIND + f"""
            set -e
            d=$(generic_of {NQN} 1)
            head -c 100001 /dev/urandom >/tmp/in
            passthru $d 1 store 02 --size 100001 --file /tmp/in
            passthru $d 1 retrieve 02 --size 100001 --expect /tmp/in
            ls -d /sys/class/nvme-subsystem/*/ng*""", r"\A(?:.*\n){2}/.*n1\n/.*n2\n\Z")
        self.fio_begin(dev, "--size=192M")         # goes on for long after the last cut
        for turn in range(1, 4):
            self.step(f"{name} {turn}: the path in use is cut while fio writes", FIND + f"""
                in_use() {{
                    for d in /sys/block/{dev[5:-2]}c*n2; do
                        grep -qv '^ *0 *0$' $d/inflight && basename $(readlink $d/device) &&
                            return 0
                    done
                    return 1
                }}
                wait_for in_use >/tmp/c && c=$(head -1 /tmp/c) || exit 1
                port=$(sed 's/.*trsvcid=//; s/,.*//' /sys/class/nvme/$c/address)
                nvme disconnect -d $c || exit 2
                [ ! -e /sys/class/nvme/$c ] || exit 3
                {self.connect_line(array, port="$port")}""", seconds=60)
        self.fio_ends(f"{name}: fio --verify goes on and finds no error")
        self.step(f"{name}: nvme disconnect", FIND + f"""
            nvme disconnect -n {NQN} && ! block_of {NQN} 2""", "disconnected 2 controller")
        self.healthy(name, array)

    def again(self, array, options):
        return Array(self.kvof, self.folder, *options, port=array.port, drive_size=DRIVE_SIZE)

    def serves(self, array, options, methods):
        """All these parts at an array that was just started; it is stopped behind them."""
        try:
            if not self.tap.check(f"kvof serve {' '.join(options)} prints its ready line",
                                  array.is_ready(), array.why()):
                return
            for part in methods:
                array = part(array, options) or array
        finally:
            self.guest.run("umount -l /mnt; nvme disconnect-all", 30)
            status = array.stop()
        self.tap.check("kvof serve ends with 0 on SIGTERM", status == 0, array.why())

    def runs(self):
        options = ["--kv", "64MiB", "--block", f"{SIZE_MIB}MiB"]
        array = Array(self.kvof, self.folder, *options, drive_size=DRIVE_SIZE)
        self.serves(array, options, suite.parts(
            self.blocks_4096, self.loads, self.side_by_side, self.reset_under_load,
            self.disconnect_under_load, self.come_and_go, self.blocks_512))
        self.other_port = free_port()
        options += ["--multipath", "--listen", f"tcp://127.0.0.1:{self.other_port}"]
        self.serves(self.again(array, options), options, suite.parts(
            self.two_paths, self.kill_under_load, self.kill_mounted))


def main():
    return suite.main(__doc__, run, drives=[("q", SIZE_MIB, {"logical_block_size": 4096,
                                                             "physical_block_size": 4096})])


def run(guest, tap, kvof, work):
    judge = Judge(guest, tap, kvof, work)
    for part in suite.parts(judge.itself):
        part()
    if kvof:
        judge.runs()


if __name__ == "__main__":
    sys.exit(main())
