#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test results: meson's testlog.json files and plain TAP files, one count a test.

usage: tally.py FILE...     (testlog.json or TAP text)
Prints the failures, the skips with their reasons, and last `N passed, N failed, N skipped`.
"""
import json
import re
import sys

SANITIZER = re.compile(r"==ERROR: |WARNING: ThreadSanitizer|runtime error:")
TAP = re.compile(r"^(ok|not ok)\b\s*\d*\s*(?:-\s*)?(.*)$")


def tap(text, origin, counts):
    seen = 0
    for line in text.splitlines():
        hit = TAP.match(line.strip())
        if not hit:
            continue
        seen += 1
        words = hit[2]
        if hit[1] == "ok" and re.search(r"#\s*skip", words, re.I):
            counts["skipped"].append(f"{origin}: {words}")
        elif hit[1] == "ok":
            counts["passed"] += 1
        else:
            counts["failed"].append(f"{origin}: {words}")
    return seen


def telling(lines):
    """The lines that say what broke: a sanitizer's head and first frames, and the end."""
    start = next((i for i, text in enumerate(lines) if SANITIZER.search(text)), None)
    head = [] if start is None else lines[start:start + 14]
    return head + lines[max((start or 0) + len(head), len(lines) - 12):]


def meson_log(path, counts):
    for line in open(path):
        row = json.loads(line)
        name = row["name"]
        before = len(counts["failed"])
        seen = tap(row.get("stdout", ""), name, counts)
        good = row["result"] in ("OK", "EXPECTEDFAIL")
        if row["result"] == "SKIP" and not seen:
            counts["skipped"].append(name)
        elif not seen and good:
            counts["passed"] += 1
        elif not good and row["result"] != "SKIP" and len(counts["failed"]) == before:
            counts["failed"].append(f"{name}: {row['result']}, exit {row.get('returncode')}")
            for text in telling((row.get("stdout", "") + row.get("stderr", "")).splitlines()):
                counts["failed"].append(f"   | {text}")


def main():
    counts = {"passed": 0, "failed": [], "skipped": []}
    for path in sys.argv[1:]:
        if path.endswith(".json"):
            meson_log(path, counts)
        else:
            if not tap(open(path).read(), path.rsplit("/", 1)[-1], counts):
                counts["failed"].append(f"{path}: no test line in it")
    for line in counts["failed"]:
        print(f"failed   {line}")
    for line in counts["skipped"]:
        print(f"skipped  {line}")
    failed = sum(not line.startswith("   |") for line in counts["failed"])
    print(f"{counts['passed']} passed, {failed} failed, {len(counts['skipped'])} skipped")
    sys.exit(failed > 0 or counts["passed"] == 0)


main()
