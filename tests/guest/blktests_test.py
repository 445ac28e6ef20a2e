#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""blktests_test.py --guest FOLDER [--kvof PROGRAM] [--blktests PLACE] [--cases "NNN NNN"]

The nvme cases of blktests (GPL, not part of this project, and no Debian package has it) against
`kvof serve`, both inside the guest: blktests sets up a target that is not the kernel's through a
script of ours. PLACE is a working copy or a git repository of it; without the option the
environment's KVOF_BLKTESTS. Without either the suite is skipped. A case counts only if it had the
array set up: some go on with the kernel's own target and would prove nothing.
"""
import os
import re
import subprocess
import sys

import suite
from array_host import Steps

# Cases that ask nothing of the kernel's target. What the others want: docs/interop.md.
CASES = ("003 004 005 006 008 010 012 014 018 019 021 022 023 025 026 027 028 029 040 047 "
         "061").split()
SECONDS = 150
CONFIG = """
NVME_IMG_SIZE={mib}M
NVME_NUM_ITER=10
TIMEOUT=20
"""
# fio writes the whole of the size that is told; only the case that makes a file system needs much.
SIZES = {"012": 352}


class Judge(Steps):
    def itself(self):
        """A case against the kernel's own target: whether blktests works in this guest."""
        status, output = self.case("004", "NVMET_TRTYPES=tcp")
        self.tap.check("guest itself: nvme/004 passes against the kernel's own target",
                       status == "passed", output)

    def case(self, number, more):
        config = CONFIG.format(mib=SIZES.get(number, 24)) + more
        _, output = self.guest.run(f"""
            cd /opt/blktests || exit 1
            cat >config <<'END'\n{config}\nEND
            rm -rf results
            ./check nvme/{number} 2>&1
            for f in results/*/nvme/{number}.out.bad results/*/nvme/{number}.full; do
                [ -s $f ] && echo "== $f" && tail -20 $f
            done""", SECONDS)
        found = re.findall(rf"^nvme/{number} .*\[(passed|failed|not run)\]", output, re.M)
        return found[-1] if found else "no verdict", output

    def array(self, cases):
        self.step("the array is made, and its namespace has a UUID", "bash /opt/control prepare",
                  r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        for number in cases:
            self.guest.run("rm -f /var/tmp/kvof-blktests/calls")
            status, output = self.case(number, "NVME_TARGET_CONTROL=/opt/control")
            _, calls = self.guest.run("cat /var/tmp/kvof-blktests/calls")
            about = re.search(rf"^nvme/{number} (.*?) *\[", output, re.M)
            name = f"nvme/{number} {about[1] if about else ''}".strip()
            if status == "passed" and not calls.startswith("setup"):
                status = "passed without the array"
            if status == "not run":
                self.tap.skip(name, " ".join(re.findall(r"^    (\S.*)$", output, re.M)))
                continue
            log = "" if status == "passed" else self.guest.run(
                "tail -5 /var/tmp/kvof-blktests/log; dmesg | tail -10")[1]
            self.tap.check(name, status == "passed", f"{status}\n{output[-3000:]}\n{calls}\n{log}")


def options(parser):
    parser.add_argument("--blktests", default=os.environ.get("KVOF_BLKTESTS"))
    parser.add_argument("--cases")


def payload(args, work):
    folder = os.path.join(work, "blktests")
    os.mkdir(folder)
    if os.path.exists(os.path.join(args.blktests, "check")):
        subprocess.run(["cp", "-a", args.blktests + "/.", folder], check=True)
    else:
        archive = subprocess.run(["git", "--git-dir", args.blktests, "archive", "HEAD"],
                                 stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    parts = [(work, "blktests"), (work, "control")]
    os.symlink(os.path.join(os.path.dirname(os.path.abspath(__file__)), "blktests_control.sh"),
               os.path.join(work, "control"))
    if args.kvof:
        os.symlink(args.kvof, os.path.join(work, "kvof"))
        parts.append((work, "kvof"))
    Judge.cases = args.cases.split() if args.cases else CASES
    return parts


def run(guest, tap, kvof, work):
    judge = Judge(guest, tap)
    judge.itself()
    if kvof:
        judge.array(Judge.cases)


def skip(args):
    if not args.blktests:
        return "no blktests: name a copy with KVOF_BLKTESTS=PLACE or --blktests"
    if not os.path.exists(args.blktests):
        return f"no blktests at {args.blktests}"
    return None


def main():
    return suite.main(__doc__, run, payload=payload, options=options, skip=skip)


if __name__ == "__main__":
    sys.exit(main())
