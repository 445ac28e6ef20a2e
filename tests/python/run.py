#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package and prints TAP. Usage: run.py [--build DIR] [NAME...]

NAME picks tests whose id contains it. The build folder (default: build beside the sources) has the
compiled part and the program.
"""

import os
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]


class Tap(unittest.TestResult):
    """One line a test, the reason of a failure as comments below it."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.problems = []

    def line(self, ok: bool, test, note: str = "") -> None:
        self.count += 1
        name = test.id().rsplit(".", 1)[-1].removeprefix("test_")
        print(f"{'ok' if ok else 'not ok'} {self.count} - {name}{note}", flush=True)

    def addSuccess(self, test):
        self.line(True, test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(True, test, f" # SKIP {reason}")

    def problem(self, test, err):
        self.problems.append(test)
        self.line(False, test)
        for row in self._exc_info_to_string(err, test).rstrip().split("\n"):
            print(f"# {row}", flush=True)

    def addFailure(self, test, err):
        self.problem(test, err)

    def addError(self, test, err):
        self.problem(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.problem(subtest, err)


def main(argv) -> int:
    build = TOP / "build"
    if argv[:1] == ["--build"]:
        build = Path(argv[1]).resolve()
        argv = argv[2:]
    os.environ["KVOF_BUILD"] = str(build)
    sys.path[:0] = [str(TOP / "python"), str(HERE)]
    import kvof
    kvof.__path__.insert(1, str(build / "python" / "kvof"))  # before the tree's own build
    suite = unittest.defaultTestLoader.discover(str(HERE), pattern="*_test.py")
    tests = [t for t in flat(suite) if not argv or any(a in t.id() for a in argv)]
    result = Tap()
    print(f"1..{len(tests)}", flush=True)
    begin = time.monotonic()
    unittest.TestSuite(tests).run(result)
    print(f"# {time.monotonic() - begin:.1f} s")
    return 1 if result.problems or not tests else 0


def flat(suite):
    """Every test of a suite, in order."""
    todo = [suite]
    while todo:
        item = todo.pop(0)
        if isinstance(item, unittest.TestSuite):
            todo[:0] = list(item)
        else:
            yield item


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
