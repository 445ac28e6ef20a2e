# SPDX-License-Identifier: Apache-2.0
"""What a block namespace must do, asked through the kernel by commands of its own.

A mixin of checks for one device of the guest, whoever serves it: QEMU's emulated drive is asked
first, so that a red line for the array is about the array.
"""
from array_host import Steps, cli_answer_of

COMPARE_FAILURE, LBA_OUT_OF_RANGE, INVALID_OPCODE = 0x285, 0x80, 0x01

# A tree of files of many sizes, deep and wide, with holes, links and names that are not ASCII.
TREE = """
tree_make() {
	mkdir -p $1/a/b/c/d $1/many $1/wide
	for n in 0 1 511 512 4095 4096 4097 65536 1000001; do
		head -c $n /dev/urandom >$1/a/size-$n || return 1
	done
	for n in $(seq 300); do echo "file $n" >$1/many/$n; done
	head -c 6000000 /dev/urandom >$1/a/b/c/d/large || return 1
	dd if=/dev/urandom of=$1/a/hole bs=4k count=1 seek=2000 2>/dev/null || return 1
	ln -s a/size-1 $1/link; ln $1/a/size-512 $1/hard
	echo x >$1/wide/$(printf '\\303\\244\\303\\266')
	rm $1/many/1?
}
tree_sum() { (cd $1 && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
"""

VERIFY = ("fio --name=v --direct=1 --thread --verify=crc32c --verify_fatal=1 --verify_state_save=0 "
          "--do_verify=1 --verify_dump=0 --group_reporting --random_generator=tausworthe64 ")


class BlockDevice(Steps):
    """dev: /dev/nvmeXnY; generic: /dev/ngXnY; nsid; bs: bytes of a block; mib: its size."""

    def fio(self, name, dev, options, seconds=90):
        self.step(f"{name}: fio --verify {options}", f"{VERIFY} --filename={dev} {options}",
                  r"err= 0", seconds=seconds)

    def cli(self, name, dev, words, want=0):
        """A check: an nvme-cli command of its own ends with this status."""
        status, output = self.guest.run(f"nvme {words.replace('DEV', dev)}")
        if want == 0:
            good = status == 0
        else:
            good = status != 0 and cli_answer_of(output) == (want, None)
        self.tap.check(f"{name}: nvme {words.replace(' DEV', '')}"
                       f"{f' is refused with {want:#x}' if want else ''}", good,
                       f"exit status {status}, wanted {want:#x}\n{output}")

    def identified(self, name, dev, nsid, bs, mib):
        self.step(f"{name}: nvme id-ns tells {mib} MiB in blocks of {bs} bytes",
                  f"nvme id-ns {dev}", rf"^nsze +: 0x{(mib << 20) // bs:x}$",
                  rf"lbads:{bs.bit_length() - 1} .*\(in use\)", r"^dps +: 0$")
        self.step(f"{name}: the kernel's queue agrees", f"""
            q=/sys/block/$(basename {dev})
            echo nsid $(cat $q/nsid) size $(cat $q/size) block $(cat $q/queue/logical_block_size) \
                cache $(cat $q/queue/write_cache) fua $(cat $q/queue/fua) ro $(cat $q/ro)
            """, rf"^nsid {nsid} size {mib << 11} block {bs} cache write back fua 1 ro 0$")

    def read_and_write(self, name, dev, bs):
        """Ranges of odd length at odd blocks, against a file of the same bytes."""
        ranges = [(0, 1), (1, 1), (7, 3), (255, 2), (8191, 130), (100, (1 << 20) // bs + 1),
                  (3000, (3 << 20) // bs + 5)]
        script = "set -e\nhead -c 4194304 /dev/urandom >/tmp/in\n"
        for at, count in ranges:
            script += (f"dd if=/tmp/in of={dev} bs={bs} seek={at} count={count} oflag=direct "
                       "conv=notrunc 2>/dev/null\n"
                       f"dd if={dev} of=/tmp/out bs={bs} skip={at} count={count} iflag=direct "
                       f"2>/dev/null\ncmp -n {count * bs} /tmp/in /tmp/out\n"
                       f"[ $(stat -c %s /tmp/out) = {count * bs} ]\n")
        self.step(f"{name}: ranges of 1 block to 3 MiB at odd blocks", script, seconds=60)
        self.step(f"{name}: neighbours of a written block keep their bytes", f"""
            set -e
            head -c {9 * bs} /dev/urandom >/tmp/in
            dd if=/tmp/in of={dev} bs={bs} seek=5000 oflag=direct 2>/dev/null
            head -c {bs} /dev/urandom >/tmp/one
            dd if=/tmp/one of={dev} bs={bs} seek=5004 oflag=direct 2>/dev/null
            dd if=/tmp/one of=/tmp/in bs={bs} seek=4 conv=notrunc 2>/dev/null
            dd if={dev} of=/tmp/out bs={bs} skip=5000 count=9 iflag=direct 2>/dev/null
            cmp /tmp/in /tmp/out""")
        self.step(f"{name}: the last block is there, and none behind it", f"""
            n=$(($(blockdev --getsize64 {dev}) / {bs}))
            head -c {bs} /dev/urandom >/tmp/in
            dd if=/tmp/in of={dev} bs={bs} seek=$((n - 1)) oflag=direct 2>/dev/null
            dd if={dev} of=/tmp/out bs={bs} skip=$((n - 1)) iflag=direct 2>/dev/null
            cmp /tmp/in /tmp/out && [ $(stat -c %s /tmp/out) = {bs} ]""")

    def zeroes(self, name, dev, bs):
        at, length = 1 << 20, 8 << 20
        fill = (f"head -c {length + (2 << 20)} /dev/urandom >/tmp/in\n"
                f"dd if=/tmp/in of={dev} bs=1M oflag=direct 2>/dev/null\n")
        compare = (f"dd if={dev} of=/tmp/out bs=1M count={(length >> 20) + 2} iflag=direct "
                   "2>/dev/null\n"
                   f"dd if=/dev/zero of=/tmp/in bs=1M seek=1 count={length >> 20} conv=notrunc "
                   "2>/dev/null\ncmp /tmp/in /tmp/out")
        for what, flag in (("Write Zeroes (blkdiscard -z)", "-z"), ("discard (blkdiscard)", "")):
            self.step(f"{name}: {what} of 8 MiB reads as zeros, around it nothing changed",
                      f"set -e\n{fill}blkdiscard {flag} -o {at} -l {length} {dev}\n{compare}",
                      seconds=60)
        odd, count = 3 * bs, 5 * bs
        self.step(f"{name}: Write Zeroes and discard of a few blocks at odd places", f"""
            set -e
            head -c {64 * bs} /dev/urandom >/tmp/in
            dd if=/tmp/in of={dev} bs={bs} oflag=direct 2>/dev/null
            blkdiscard -z -o {odd} -l {count} {dev}
            blkdiscard -o {odd + 20 * bs} -l {count} {dev}
            dd if=/dev/zero of=/tmp/in bs={bs} seek=3 count=5 conv=notrunc 2>/dev/null
            dd if={dev} of=/tmp/out bs={bs} count=64 iflag=direct 2>/dev/null
            cmp -n {20 * bs} /tmp/in /tmp/out
            cmp -i {28 * bs} -n {36 * bs} /tmp/in /tmp/out
            # a drive may leave what is too small to be given back: zeros or the old bytes
            dd if=/tmp/out of=/tmp/a bs={bs} skip=23 count=5 2>/dev/null
            dd if=/tmp/in of=/tmp/b bs={bs} skip=23 count=5 2>/dev/null
            cmp /tmp/a /tmp/b || cmp -n {count} /tmp/a /dev/zero""", seconds=40)
        self.step(f"{name}: one Dataset Management command of four ranges", f"""
            set -e
            head -c {4096 * 300} /dev/urandom >/tmp/in
            dd if=/tmp/in of={dev} bs=4096 oflag=direct 2>/dev/null
            nvme dsm {dev} -d -s 0,{2 * (65536 // bs)},{4 * (65536 // bs)},{6 * (65536 // bs)} \
                -b {65536 // bs},{65536 // bs},{65536 // bs},{65536 // bs}
            dd if={dev} of=/tmp/out bs=65536 count=8 iflag=direct 2>/dev/null
            for n in 1 3 5 7; do cmp -i $((n * 65536)) -n 65536 /tmp/in /tmp/out; done""")

    def passthrough(self, name, dev, bs, blocks):
        """Commands of the NVM command set that the block layer itself does not send."""
        for size in (bs, 64 << 10):
            count = size // bs - 1
            self.step(f"{name}: nvme compare of {size} bytes that are the same", f"""
                set -e
                head -c {size} /dev/urandom >/tmp/in
                nvme write {dev} -s 64 -c {count} -z {size} -d /tmp/in
                nvme compare {dev} -s 64 -c {count} -z {size} -d /tmp/in
                nvme read {dev} -s 64 -c {count} -z {size} -d /tmp/out
                cmp -n {size} /tmp/in /tmp/out""", "compare: Success")
            self.step(f"{name}: ... and is refused with 0x285 where the last byte differs", f"""
                printf '\\377' | dd of=/tmp/in bs=1 seek={size - 1} conv=notrunc 2>/dev/null
                dd if=/dev/zero of=/tmp/in bs=1 seek={size - 2} count=1 conv=notrunc 2>/dev/null
                ! nvme compare {dev} -s 64 -c {count} -z {size} -d /tmp/in""", "0x[04]?285")
        self.cli(name, dev, f"write DEV -f -s 64 -c 0 -z {bs} -d /tmp/in")
        self.step(f"{name}: ... and the block written with FUA is there", f"""
            nvme read {dev} -s 64 -c 0 -z {bs} -d /tmp/out && cmp -n {bs} /tmp/in /tmp/out""")
        self.cli(name, dev, "verify DEV -s 64 -c 15")
        self.cli(name, dev, "flush DEV")
        self.cli(name, dev, "write-zeroes DEV -s 64 -c 0")
        self.step(f"{name}: ... and the block is zeros", f"""
            nvme read {dev} -s 64 -c 0 -z {bs} -d /tmp/out && cmp -n {bs} /tmp/out /dev/zero""")
        for words in (f"read DEV -s {blocks} -c 0 -z {bs} -d /tmp/out",
                      f"read DEV -s {blocks - 1} -c 1 -z {2 * bs} -d /tmp/out",
                      f"write DEV -s {blocks} -c 0 -z {bs} -d /tmp/in",
                      f"compare DEV -s {blocks} -c 0 -z {bs} -d /tmp/in",
                      f"write-zeroes DEV -s {blocks - 1} -c 1",
                      f"verify DEV -s {blocks} -c 0",
                      f"read DEV -s 0xffffffffffffffff -c 0 -z {bs} -d /tmp/out"):
            self.cli(name, dev, words, LBA_OUT_OF_RANGE)
        self.cli(name, dev, f"io-passthru DEV -o 0x7e -n $(cat /sys/block/{dev[5:]}/nsid)",
                 INVALID_OPCODE)

    def file_system(self, name, dev, trim=True):
        """XFS made, filled, unmounted, checked and mounted again."""
        self.step(f"{name}: mkfs.xfs, mount, a tree of 300 files, unmount", TREE + f"""
            set -e
            umount /mnt 2>/dev/null || true
            mkfs.xfs -q -f {dev}
            mount {dev} /mnt
            tree_make /mnt/tree
            tree_sum /mnt/tree >/tmp/sums
            umount /mnt
            wc -l </tmp/sums""", r"^\d{3}$", seconds=90)
        self.files_same(name, dev)
        if trim:
            self.step(f"{name}: fstrim of the mounted file system", f"""
                set -e
                mount {dev} /mnt
                fstrim -v /mnt
                umount /mnt""", r"/mnt: .* trimmed", seconds=60)
            self.files_same(f"{name} after fstrim", dev)

    def files_same(self, name, dev):
        self.step(f"{name}: mounted again, every file has the same bytes", TREE + f"""
            set -e
            echo 3 >/proc/sys/vm/drop_caches
            mount {dev} /mnt
            tree_sum /mnt/tree >/tmp/sums2
            umount /mnt
            cmp /tmp/sums /tmp/sums2
            [ -s /tmp/sums ]""", seconds=60)
        self.step(f"{name}: xfs_repair -n finds nothing", f"xfs_repair -n {dev} 2>&1", seconds=90)
