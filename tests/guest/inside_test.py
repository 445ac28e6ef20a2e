#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inside_test.py --guest FOLDER [--kvof PROGRAM]

`kvof serve` inside the guest, on QEMU's emulated NVMe drives, with the guest's own kernel as host
over its loopback: stopped, killed, opened twice, a drive pulled out under load in each way there
is, put back, and TRIM as the drives' own files show it. First the guest's drives are judged without
the array. Prints TAP. Skips only where QEMU is not installed.
"""
import os
import re
import sys

import suite
from array_host import HOSTID, HOSTNQN, MIB, NQN, Steps
from block_device import VERIFY
from block_host_test import FIND

DRIVE_MIB = 192
NAMES = "abcd"
# d has sectors of 4096 bytes; the array takes them side by side with those of 512.
DRIVES = [(name, DRIVE_MIB, {"logical_block_size": 4096, "physical_block_size": 4096}
           if name == "d" else {}) for name in NAMES]
VALUE, COPIES, NOT_FOUND, MEDIA = 20000, 96, 0x87, 0x88

# drive_of SERIAL: the kernel may number the drives in any order.
INSIDE = FIND + """
drive_of() {
	for d in /sys/class/nvme/nvme*; do
		[ "$(cat $d/serial | tr -d ' ')" = "$1" ] && echo /dev/$(basename $d)n1 && return 0
	done
	return 1
}
pci_of() { readlink -f /sys/class/nvme/$(basename $1 | sed 's/n1$//')/device; }
# serve "DRIVES" [OPTIONS]: starts the array and waits until it is ready or has ended.
serve() {
	drives=""
	for n in $1; do drives="$drives --drive $n"; done
	shift
	rm -f /tmp/ready
	setsid /opt/kvof serve --listen tcp://127.0.0.1:4420 --subsystem @NQN $drives "$@" \\
		--log info >/tmp/ready 2>>/tmp/serve.log </dev/null &
	echo $! >/tmp/serve.pid
	wait_for '[ -s /tmp/ready ] || ! kill -0 $(cat /tmp/serve.pid)'
	grep -q ^ready /tmp/ready || { tail -5 /tmp/serve.log; return 1; }
}
serve_ends() {
	kill -$1 $(cat /tmp/serve.pid)
	wait_for '! kill -0 $(cat /tmp/serve.pid) 2>/dev/null'
}
attach() {
	nvme connect -t tcp -a 127.0.0.1 -s 4420 -n @NQN --hostnqn=@HOSTNQN --hostid=@HOSTID \\
		--reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5 >/dev/null || return 1
	wait_for 'generic_of @NQN 1 >/dev/null' || return 1
	generic_of @NQN 1
}
detach() { nvme disconnect -n @NQN; }
""".replace("@HOSTNQN", HOSTNQN).replace("@HOSTID", HOSTID).replace("@NQN", NQN)


class Judge(Steps):
    def __init__(self, guest, tap, kvof, work):
        super().__init__(guest, tap)
        self.kvof, self.work = kvof, work
        self.paths = {}      # serial number: /dev/nvmeXn1
        self.device = None   # /dev/ngXnY of the KV namespace

    def sh(self, script, seconds=60):
        return self.guest.run(INSIDE + script, seconds)

    def inside(self, name, script, *patterns, seconds=60, status=0):
        return self.step(name, INSIDE + script, *patterns, seconds=seconds, status=status)

    def allocated(self, name):
        """Bytes that the file behind an emulated drive takes on this machine."""
        return os.stat(os.path.join(self.work, f"{name}.nvme")).st_blocks * 512

    def fails(self, name, script, *patterns):
        """A check: the script ends with another status than 0, within its time."""
        status, output = self.sh(script, 30)
        missing = [p for p in patterns if not re.search(p, output, re.M)]
        self.tap.check(name, status not in (0, 137) and not missing,
                       f"exit status {status}; not in the output: {missing}\n{output}")

    # ---- the guest itself ----------------------------------------------------------------------

    def itself(self):
        _, output = self.sh("for n in a b c d; do drive_of $n; done")
        found = re.findall(r"^/dev/nvme\d+n1$", output, re.M)
        self.tap.check("guest itself: four NVMe drives", len(found) == 4, output)
        self.paths = dict(zip(NAMES, found))
        self.inside("guest itself: their sectors", """
            for n in a b c d; do blockdev --getss $(drive_of $n); done""",
                    r"\A512\n512\n512\n4096\n\Z")
        full = []
        for flag in ("", "-z"):
            self.sh(f"dd if=/dev/urandom of={self.paths['a']} bs=1M count=32 oflag=direct; sync")
            full.append(self.allocated("a"))
            self.sh(f"blkdiscard {flag} {self.paths['a']}")
            full.append(self.allocated("a"))
        self.tap.check("guest itself: what is discarded leaves the drive's file",
                       full[0] >= 32 * MIB > 4 * MIB >= full[1], full)

    # ---- values --------------------------------------------------------------------------------

    def store(self, name, prefix, seconds=60):
        """COPIES values under prefix and a counter, their bytes in /tmp/PREFIX."""
        self.inside(name, f"""
            head -c {VALUE} /dev/urandom >/tmp/{prefix}
            passthru {self.device} 1 store {prefix.encode().hex()}00 --size {VALUE} \
                --file /tmp/{prefix} --ring {COPIES} >/tmp/answers; s=$?
            sort /tmp/answers | uniq -c; exit $s""",
                    rf"^ +{COPIES} status=0x0 result=0$", seconds=seconds)

    def whole(self, prefix, seconds=60):
        """(values there, missed, other statuses, why): every value that is there is right."""
        status, output = self.sh(f"""
            passthru {self.device} 1 retrieve {prefix.encode().hex()}00 --size {VALUE} \
                --expect /tmp/{prefix} --ring {COPIES}""", seconds)
        answers = [int(s, 16) for s in re.findall(r"^status=0x([0-9a-f]+) ", output, re.M)]
        if status not in (0, 1) or "other bytes" in output or len(answers) != COPIES:
            return None, None, None, f"exit status {status}\n{output[-2000:]}"
        there, missed = answers.count(0), answers.count(NOT_FOUND) + answers.count(MEDIA)
        return there, missed, COPIES - there - missed, sorted(map(hex, set(answers)))

    def all_there(self, name, *prefixes):
        told = {p: self.whole(p) for p in prefixes}
        return self.tap.check(name, all(t[0] == COPIES for t in told.values()), self.why(told))

    def why(self, told):
        return f"{told}\n{self.sh('tail -8 /tmp/serve.log; dmesg | tail -8')[1]}"

    def attach(self, name):
        status, output = self.sh("attach")
        found = re.search(r"^/dev/ng\d+n\d+$", output, re.M)
        self.device = found and found[0]
        return self.tap.check(f"{name}: the kernel host attaches", status == 0 and found,
                              f"{output}\n{self.why({})}")

    def start(self, name, names=NAMES, *options):
        drives = " ".join(self.paths[n] for n in names)
        return self.inside(f"{name}: kvof serve is ready on its drives",
                           f"serve '{drives}' {' '.join(options)} && cat /tmp/ready", "^ready ")

    def stop(self, name, signal):
        self.inside(f"{name}: the array ends on {signal}", f"detach; serve_ends {signal}")

    # ---- runs ----------------------------------------------------------------------------------

    def restarts(self):
        self.start("first start", NAMES, "--format")
        if not self.attach("first start"):
            return False
        self.store("96 values at once", "one")
        self.all_there("... come back", "one")
        self.stop("restart", "TERM")
        self.start("restart")
        self.attach("restart")
        self.all_there("restart: the values are there", "one")
        self.store("restart: 96 more", "two")
        self.sh("serve_ends KILL")
        self.start("kill -9")
        self.inside("kill -9: the host comes back by itself",
                    f"wait_for '[ \"$(state {NQN})\" = live ]'")
        self.all_there("kill -9: all that was acknowledged is there", "one", "two")
        self.stop("kill -9", "TERM")
        return True

    def exclusive(self):
        self.start("exclusive")
        if not self.attach("exclusive"):
            return
        drives = " --drive ".join(self.paths[n] for n in NAMES)
        self.fails("a second kvof serve on the same drives is refused", f"""
            timeout 10 /opt/kvof serve --listen tcp://127.0.0.1:4421 --drive {drives}""",
                   r"^kvof serve: .*/dev/nvme\dn1")
        self.fails("... also with --format", f"""
            timeout 10 /opt/kvof serve --listen tcp://127.0.0.1:4421 --drive {drives} --format""",
                   r"^kvof serve: .*/dev/nvme\dn1")
        for n in "ad":
            self.fails(f"mkfs.xfs of a drive in use ({n}) is refused",
                       f"mkfs.xfs -q -f {self.paths[n]}", "in use|busy|exclusively|Cannot|cannot")
        self.all_there("... and the values are there", "one", "two")
        self.stop("exclusive", "TERM")
        self.inside("a drive that is mounted is refused", f"""
            head -c 400M /dev/zero >/tmp/img && truncate -s 400M /tmp/img
            l=$(losetup -f --show /tmp/img) && mkfs.xfs -q -f $l && mount $l /mnt
            timeout 10 /opt/kvof serve --listen tcp://127.0.0.1:4421 --drive $l --format && exit 1
            umount /mnt
            timeout 10 /opt/kvof serve --listen tcp://127.0.0.1:4421 --drive $l && exit 1
            losetup -d $l; rm /tmp/img""",
                    r"(?s)^kvof serve: .*/dev/loop.*^kvof serve: .*/dev/loop")

    def trim(self):
        """Values until segments are evicted; the file of one drive must have shrunk on the way."""
        self.start("TRIM", NAMES, "--format")
        if not self.attach("TRIM"):
            return
        most = dict.fromkeys(NAMES, 0)
        back = dict.fromkeys(NAMES, 0)
        self.sh("head -c 1000000 /dev/urandom >/tmp/big")
        for turn in range(24):
            status, output = self.sh(f"""
                passthru {self.device} 1 store {turn:02x}00 --size 1000000 --file /tmp/big \
                    --ring 40""", 90)
            if status != 0:
                self.tap.check("TRIM: Stores past the cap evict", False, self.why(output))
                return
            for n in NAMES:
                now = self.allocated(n)
                most[n] = max(most[n], now)
                back[n] = max(back[n], most[n] - now)
        status, output = self.sh(f"/opt/kvof stat tcp://127.0.0.1:4420/{NQN} --json")
        self.tap.check("TRIM: Stores past the cap evict",
                       re.search(r'"evicted_keys": ?[1-9]', output), output)
        self.tap.check("TRIM: room that eviction frees is given back to every drive",
                       all(b >= 2 * MIB for b in back.values()), f"{back} of {most}")
        self.stop("TRIM", "TERM")

    # ---- a drive is pulled out -------------------------------------------------------------------

    LOAD = """
        (n=0; while [ ! -f /tmp/enough ]; do
            n=$((n + 1)); k=$(printf '%08x' $n)
            begin=$(date +%s%N)
            passthru DEVICE 1 store ff$k --size 100001 --file /tmp/load.in --ring 4 \\
                >/tmp/load.out 2>&1; s=$?
            passthru DEVICE 1 retrieve ff$k --size 100001 --expect /tmp/load.in --ring 4 \\
                >>/tmp/load.out 2>&1; r=$?
            took=$((($(date +%s%N) - begin) / 1000000))
            echo "$n $s $r $took $(grep -c 'other bytes' /tmp/load.out)" \\
                "$(sort /tmp/load.out | uniq -c | tr -s ' \\n' ' ')"
        done) >/tmp/load.log 2>&1 &
        wait_for '[ -f /tmp/load.log ] && [ $(wc -l </tmp/load.log) -ge 10 ]'"""

    def load_begin(self):
        return self.sh("rm -f /tmp/enough /tmp/load.log\nhead -c 100001 /dev/urandom >/tmp/load.in"
                       + self.LOAD.replace("DEVICE", self.device))

    def load_ends(self, name, pulled_at):
        """The load went on after the drive went: no wrong bytes, nothing slow, all good at last."""
        status, output = self.sh("""
            a=$(wc -l </tmp/load.log)
            n=0; until [ $(wc -l </tmp/load.log) -ge $((a + 20)) ] || [ $n -gt 300 ]; do
                n=$((n + 1)); sleep 0.1; done
            touch /tmp/enough; sleep 1; cat /tmp/load.log""", 60)
        rows = [line.split(None, 5) for line in output.splitlines()
                if re.match(r"\d+ \d+ \d+ \d+ \d+ ", line)]
        rows = [[int(x) for x in r[:5]] + [r[5]] for r in rows]
        wrong = [r for r in rows if r[4]]
        slow = [r for r in rows if r[3] > 10000]
        last = rows[-10:]
        good = (len(rows) >= 25 and not wrong and not slow and
                all(r[1] == 0 and r[2] == 0 for r in last))
        self.tap.check(f"{name}: Stores and Retrieves go on, none hangs, none has wrong bytes",
                       good, f"{len(rows)} rows; wrong {wrong[:3]}; slow {slow[:3]}; last {last}\n"
                       f"{self.why(pulled_at)}")

    def pulled(self, name, number, pull):
        """Pulls one of four drives under load; values of the others stay, and so does the array."""
        self.start(name, NAMES, "--format")
        if not self.attach(name):
            return False
        for prefix in ("one", "two", "three"):
            self.store(f"{name}: 96 values", prefix)
        self.load_begin()
        pull()
        gone = f"[ ! -e {self.paths[number]} ] || ! blockdev --getss {self.paths[number]}"
        self.inside(f"{name}: the drive has gone", f"wait_for '{gone}' || wait_for '{gone}'")
        self.load_ends(name, number)
        self.share_lost(name)
        self.inside(f"{name}: the array is alive and says which drive failed", f"""
            kill -0 $(cat /tmp/serve.pid)
            /opt/kvof stat tcp://127.0.0.1:4420/{NQN} && grep -i {self.paths[number]} /tmp/serve.log
            """, self.paths[number])
        self.store(f"{name}: 96 values are stored without it", "four")
        return self.all_there(f"{name}: ... and come back", "four")

    def share_lost(self, name):
        told = {p: self.whole(p) for p in ("one", "two", "three")}
        there = [t[0] for t in told.values()]
        total = 3 * COPIES
        good = None not in there and total * 65 // 100 <= sum(there) < total and not any(
            t[2] for t in told.values())
        self.tap.check(f"{name}: the values of one drive of four are lost, the others are right",
                       good, self.why(told))
        self.kept = {p: t[0] for p, t in told.items()}
        self.tap.say(f"{sum(x or 0 for x in there)} of {total} values are left")

    def restart_without(self, name, number):
        """What a restart says while the drive is away."""
        self.stop(name, "TERM")
        drives = " --drive ".join(self.paths[n] for n in NAMES)
        self.fails(f"{name}: a restart is refused and names the drive that is missing", f"""
            timeout 20 /opt/kvof serve --listen tcp://127.0.0.1:4420 --drive {drives}""",
                   rf"^kvof serve: .*{self.paths[number]}")
        rest = " --drive ".join(self.paths[n] for n in NAMES if n != number)
        self.fails(f"{name}: ... also where it is not named", f"""
            timeout 20 /opt/kvof serve --listen tcp://127.0.0.1:4420 --drive {rest}""",
                   r"^kvof serve: .*\S")
        self.start(f"{name}, degraded", NAMES, "--degraded")
        if not self.attach(f"{name}, degraded"):
            return
        told = {p: self.whole(p) for p in self.kept}
        self.tap.check(f"{name}, degraded: what there was before is there",
                       {p: t[0] for p, t in told.items()} == self.kept, self.why((told, self.kept)))
        self.all_there(f"{name}, degraded: what was stored without the drive is there", "four")

    def put_back(self, name, number):
        """The old drive returns: nothing deleted or replaced meanwhile comes back."""
        self.sh("cp /tmp/one /tmp/one.old")
        self.store(f"{name}: 96 values are replaced while it is away", "one")
        self.inside(f"{name}: 96 are deleted", f"""
            passthru {self.device} 1 delete {b'two'.hex()}00 --ring {COPIES} >/tmp/answers
            sort /tmp/answers | uniq -c; ! grep -v 'status=0x\\(0\\|87\\) ' /tmp/answers""")
        self.stop(name, "TERM")
        self.guest.ask_qemu("device_add", driver="nvme", id=number, serial=number,
                            drive=f"file-{number}", bus=f"port-{number}")
        self.inside(f"{name}: the drive is there again", f"""
            wait_for 'drive_of {number}' && drive_of {number}""", "/dev/nvme")
        self.paths[number] = self.sh(f"drive_of {number}")[1].strip()
        self.start(f"{name}, all drives", NAMES)
        if not self.attach(f"{name}, all drives"):
            return
        self.all_there(f"{name}: what replaced the old values is there", "one", "four")
        there, missed, other, why = self.whole("two")
        self.tap.check(f"{name}: nothing that was deleted came back",
                       (there, missed, other) == (0, COPIES, 0), self.why((there, missed, why)))
        self.stop(f"{name}, all drives", "TERM")

    # ---- blocks --------------------------------------------------------------------------------

    BLOCKS = ["--format", "--kv", "128MiB", "--block", "64MiB"]

    def flushes(self):
        """What the host asks to be durable is flushed at the drives, as their kernel counts it."""
        name = "flush"
        self.start(name, NAMES, *self.BLOCKS)
        if not self.attach(name):
            return
        drives = " ".join(self.paths.values())
        count = f"""
            flushed() {{
                for d in {drives}; do awk '{{print $16}}' /sys/block/$(basename $d)/stat; done |
                    awk '{{s += $1}} END {{print s}}'
            }}
            wait_for 'block_of {NQN} 2 >/dev/null'
            b=$(block_of {NQN} 2)
            head -c 8388608 /dev/urandom >/tmp/in
            dd if=/tmp/in of=$b bs=1M oflag=direct 2>/dev/null
            nvme flush $b >/dev/null
            a=$(flushed)"""
        self.inside(f"{name}: writes alone flush no drive", count + """
            dd if=/tmp/in of=$b bs=1M oflag=direct 2>/dev/null
            echo more $(($(flushed) - a))""", r"^more [0-4]$")
        self.inside(f"{name}: nvme flush reaches all four drives", count + """
            dd if=/tmp/in of=$b bs=1M oflag=direct 2>/dev/null
            nvme flush $b
            echo more $(($(flushed) - a))""", r"^more ([4-9]|\d\d+)$")
        self.inside(f"{name}: fsync of a file reaches a drive", count + """
            dd if=/tmp/in of=$b bs=4k count=1 conv=fsync,notrunc 2>/dev/null
            echo more $(($(flushed) - a))""", r"^more [1-9]\d*$")
        self.inside(f"{name}: a write with FUA reaches a drive", count + """
            nvme write $b -f -s 64 -c 0 -z 4096 -d /tmp/in
            echo more $(($(flushed) - a))""", r"^more [1-9]\d*$")
        self.inside(f"{name}: fio --verify with fsync and digests over the guest's loopback", f"""
            {VERIFY} --filename=$(block_of {NQN} 2) --rw=randwrite --bs=16k --size=16M \
                --iodepth=8 --ioengine=libaio --fsync=16""", "err= 0", seconds=120)
        self.stop(name, "TERM")

    def block_pull(self):
        """A drive goes under a block namespace: its chunks fail, all others are right."""
        name = "blocks, a drive unplugged"
        self.start(name, NAMES, *self.BLOCKS)
        if not self.attach(name):
            return
        self.inside(f"{name}: 64 MiB written", f"""
            wait_for 'block_of {NQN} 2 >/dev/null'
            head -c 67108864 /dev/urandom >/tmp/in
            dd if=/tmp/in of=$(block_of {NQN} 2) bs=1M oflag=direct 2>/dev/null""")
        self.sh(f"""
            trap '' PIPE; rm -f /tmp/fio.end
            (fio --name=r --filename=$(block_of {NQN} 2) --rw=randread --bs=64k --iodepth=8 \
                --ioengine=libaio --direct=1 --thread --time_based --runtime=10 \
                --continue_on_error=io --ignore_error=EIO:EREMOTEIO >/tmp/fio 2>&1
            echo $? >/tmp/fio.end) &""")
        self.sh(f"echo 1 >$(pci_of {self.paths['c']})/remove", 30)
        output = self.inside(f"{name}: every chunk is right or fails, at once", f"""
            timeout 100 dd if=$(block_of {NQN} 2) of=/tmp/out bs=256k count=256 iflag=direct \\
                conv=noerror,sync 2>/tmp/err
            [ $? = 124 ] && echo hangs
            head -c 262144 /dev/zero >/tmp/zero; good=0; bad=0; wrong=0; n=0
            while [ $n -lt 256 ]; do
                if cmp -s -i $((n * 262144)) -n 262144 /tmp/in /tmp/out; then
                    good=$((good + 1))
                elif cmp -s -i $((n * 262144)):0 -n 262144 /tmp/out /tmp/zero; then
                    bad=$((bad + 1))
                else
                    wrong=$((wrong + 1))
                fi
                n=$((n + 1))
            done
            echo good $good bad $bad wrong $wrong errors $(grep -c 'error reading' /tmp/err)""",
                              r"^good \d+ bad \d+ wrong 0 errors [1-9]", seconds=200)
        told = re.search(r"^good (\d+) bad (\d+)", output, re.M)
        good, bad = map(int, told.groups()) if told else (0, 0)
        self.tap.check(f"{name}: a quarter of the chunks is lost, and no more",
                       good + bad == 256 and 1 <= bad <= 77 and "hangs" not in output,
                       f"{output}\n{self.why({})}")
        self.tap.say(f"{good} of 256 chunks are right, {bad} fail")
        self.inside(f"{name}: blocks on the other drives can be written", f"""
            b=$(block_of {NQN} 2); n=0; good=0
            while [ $n -lt 16 ]; do
                dd if=/tmp/in of=$b bs=256k seek=$n skip=9 count=1 oflag=direct conv=notrunc \
                    2>/dev/null && good=$((good + 1))
                n=$((n + 1))
            done
            echo good $good""", r"^good ([8-9]|1\d)$")
        self.stop(name, "KILL")

    def pulls(self):
        name = "unplugged"
        if self.pulled(name, "b", lambda: self.guest.ask_qemu("device_del", id="b")):
            self.restart_without(name, "b")
            self.put_back(name, "b")
        name = "removed by the kernel"
        self.pulled(name, "d", lambda: self.sh(f"echo 1 >$(pci_of {self.paths['d']})/remove", 30))
        self.stop(name, "KILL")

    def rescanned(self):
        """The drive that the kernel removed is found again."""
        self.inside("a removed drive is found again", """
            echo 1 >/sys/bus/pci/rescan
            wait_for 'drive_of d'""")
        self.paths["d"] = self.sh("drive_of d")[1].strip()


def run(guest, tap, kvof, work):
    judge = Judge(guest, tap, kvof, work)
    judge.itself()
    if not kvof or not judge.restarts():
        return
    for part in suite.parts(judge.exclusive, judge.trim, judge.flushes, judge.pulls,
                            judge.rescanned, judge.block_pull):
        part()


def payload(args, work):
    if not args.kvof:
        return []
    os.symlink(args.kvof, os.path.join(work, "kvof"))
    return [(work, "kvof")]


def main():
    return suite.main(__doc__, run, drives=DRIVES, payload=payload)


if __name__ == "__main__":
    sys.exit(main())
