#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every include of src/ to the table in LAYERS. Prints TAP; exits 1 on a forbidden edge."""
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent


def read_table():
    allowed, order = {}, []
    for line in (TOP / "LAYERS").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        folder, _, below = line.partition(":")
        folder, below = folder.strip(), below.split()
        for name in below:
            if name not in order:
                sys.exit(f"LAYERS: {folder} names {name}, which is not above it")
        allowed[folder] = set(below)
        order.append(folder)
    return allowed


def check(allowed):
    bad = []
    files = sorted((TOP / "src").rglob("*.[ch]"))
    for path in files:
        folder = path.relative_to(TOP / "src").parts[0]
        if folder == "tbl":
            continue
        for number, text in enumerate(path.read_text().splitlines(), 1):
            hit = re.match(r'\s*#\s*include\s+"([a-z_]+)/', text)
            if hit and hit[1] not in allowed.get(folder, set()) | {folder, "tbl", "kvof"}:
                bad.append(f"{path.relative_to(TOP)}:{number}: {folder}/ may not include {hit[1]}/")
    return files, bad


def main():
    files, bad = check(read_table())
    print("1..2")
    print(f"{'ok' if files else 'not ok'} 1 - {len(files)} files of src/ were read")
    print(f"{'not ok' if bad else 'ok'} 2 - every include follows LAYERS")
    for line in bad:
        print(f"# {line}")
    sys.exit(bool(bad) or not files)


main()
