# SPDX-License-Identifier: Apache-2.0
"""The frame of a suite that runs in the guest's root: builds it, boots it, and ends in TAP."""
import argparse
import os
import shutil
import subprocess
import tempfile
import time

import build
import guest as driver
from array_host import MIB
from guest import Guest, Lost, Tap


def payload_make(work, folders):
    """A tar file of (folder, name) pairs, which the guest unpacks into /opt; None of nothing."""
    if not folders:
        return None
    path = os.path.join(work, "payload.tar")
    words = ["tar", "chf", path]
    for folder, name in folders:
        words += ["-C", folder, name]
    subprocess.run(words, check=True)
    return path


def drives_make(work, drives):
    """Sparse files for (name, MiB, properties)."""
    made = []
    for name, mib, properties in drives:
        path = os.path.join(work, f"{name}.nvme")
        with open(path, "wb") as file:
            file.truncate(mib * MIB)
        made.append((name, path, properties))
    return made


CHOSEN = []  # --parts


def parts(*methods):
    """Those of a suite's parts that were asked for, or all."""
    return [m for m in methods if not CHOSEN or m.__name__ in CHOSEN]


def main(about, run, drives=(), payload=None, options=lambda parser: None,
         skip=lambda args: None):
    """run(guest, tap, kvof, work) makes the checks; payload(args, work) names what the guest gets;
    skip(args) gives a reason why not."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--guest", required=True, help="folder of the cached guest")
    parser.add_argument("--kvof", help="the program; without it only the guest itself is judged")
    parser.add_argument("--parts", help="names of the methods to run, for work on one of them")
    options(parser)
    args = parser.parse_args()
    CHOSEN.extend((args.parts or "").split())
    if shutil.which(driver.QEMU) is None:
        print(f"1..0 # SKIP {driver.QEMU} is not installed (Debian: qemu-system-x86)")
        return 0
    if skip(args):
        print(f"1..0 # SKIP {skip(args)}")
        return 0
    tap, folder = Tap(), os.path.abspath(args.guest)
    args.kvof = args.kvof and os.path.abspath(args.kvof)
    try:
        build.build(folder)
    except build.Failed as failed:
        tap.check("the guest is built from Debian's packages", False, failed)
        return tap.done()
    work = tempfile.mkdtemp(prefix="kvof-guest-")
    started = time.monotonic()
    try:
        parts = payload(args, work) if payload else []
        with Guest(folder, root=True, payload=payload_make(work, parts),
                   drives=drives_make(work, drives)) as guest:
            tap.check("the guest boots into its root", True)
            tap.say(f"Linux {guest.release}, {guest.boot_seconds:.1f} s to boot")
            tap.say(f"console: {guest.serial_kept}")
            run(guest, tap, args.kvof, work)
    except Lost as lost:
        tap.check("the guest answers to the end", False, lost)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    tap.say(f"{time.monotonic() - started:.0f} s in all")
    return tap.done()
