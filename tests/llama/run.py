# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the model harness and prints TAP:  run.py [PATTERN...]

PATTERN picks tests whose id contains it. Exit code 1 if any failed, 77 if none could run.
"""

import os
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
# llama.cpp's threads wait for each other spinning, which on a machine that also builds takes several
# times as long; sleeping waits give the same bytes. Read when the library is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]


class Tap(unittest.TestResult):
    """One line a test; why it failed as comments below it."""

    def __init__(self):
        super().__init__()
        self.count = self.passed = self.failed = 0

    def line(self, ok, test, note=""):
        self.count += 1
        kind, name = test.id().split(".")[-2:]
        print(f"{'ok' if ok else 'not ok'} {self.count} - {kind}: {name.removeprefix('test_')}{note}",
              flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.line(True, test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(True, test, f" # SKIP {reason}")

    def problem(self, test, err):
        self.failed += 1
        self.line(False, test)
        for row in self._exc_info_to_string(err, test).rstrip().split("\n"):
            print(f"# {row}", flush=True)

    addFailure = addError = problem

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.problem(subtest, err)


def main(argv):
    loader = unittest.TestLoader()
    if argv:
        loader.testNamePatterns = [f"*{p}*" for p in argv]
    result = Tap()
    loader.discover(str(HERE), pattern="*_test.py", top_level_dir=str(HERE)).run(result)
    print(f"1..{result.count}")
    return 1 if result.failed or loader.errors else 0 if result.passed else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
