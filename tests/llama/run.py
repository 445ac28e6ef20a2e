# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the model harness:  build/venv/bin/python tests/llama/run.py [PATTERN]

Ends with "N passed, N failed, N skipped"; exit code 1 if any failed, 77 if none could run.
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


def main(argv):
    loader = unittest.TestLoader()
    if argv:
        loader.testNamePatterns = [f"*{p}*" for p in argv]
    suite = loader.discover(str(HERE), pattern="*_test.py", top_level_dir=str(HERE))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len({test.id() for test, _ in result.failures + result.errors})
    skipped = len(result.skipped)
    passed = result.testsRun - failed - skipped
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0 if passed else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
