#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header alone, so that none leans on what its users happened to include first, and
holds its guard to its path. The public ones must also do as strict C11 and as C++. Prints TAP.

usage: headers.py [CC]      (CXX is CC with ++ at its end: g++, clang++; without one it is a skip)
"""
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
WARN = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
OURS = ["-std=gnu17", "-D_GNU_SOURCE", "-Wno-unused-parameter", "-Wno-unused-function",
        "-Iinclude", "-Isrc", "-Itests/unit"]
CXX = {"gcc": "g++", "cc": "c++", "clang": "clang++"}


def compile_all(command, files):
    """One run of the compiler, which goes on with the next file after an error."""
    run = subprocess.run(command + [str(f.relative_to(TOP)) for f in files], cwd=TOP,
                         capture_output=True, text=True)
    return [line for line in run.stderr.splitlines() if ": error:" in line] or \
        ([f"exit status {run.returncode}"] if run.returncode else [])


def guards(files):
    for path in files:
        parts = path.relative_to(TOP).parts
        parts = parts if parts[0] == "tests" else parts[1:]
        want = "_".join(parts if parts[0] == "kvof" else ("kvof",) + parts)
        want = want.upper().replace(".", "_")
        text = path.read_text()
        if f"#ifndef {want}\n#define {want}\n" not in text:
            yield f"{path.relative_to(TOP)}: its guard is {want}"


def main():
    cc = sys.argv[1] if len(sys.argv) > 1 else "gcc"
    name = pathlib.Path(cc).name.rstrip("0123456789-.")
    cxx = shutil.which(CXX.get(name, "c++"))
    public = sorted((TOP / "include").rglob("*.h"))
    source = sorted((TOP / "src").rglob("*.h"))
    tests = sorted((TOP / "tests").rglob("*.h"))
    rows = [
        ("headers of src/ and tests/ compile alone",
         compile_all([cc] + WARN + OURS, source + tests)),
        ("public headers compile alone as strict C11",
         compile_all([cc] + WARN + ["-std=c11", "-pedantic", "-Iinclude"], public)),
        ("public headers compile alone as C++",
         compile_all([cxx, "-x", "c++"] + WARN + ["-std=c++11", "-Iinclude"], public)
         if cxx else None),
        ("guards are named after the path", list(guards(public + source + tests))),
    ]
    print(f"1..{len(rows)}")
    for number, (what, bad) in enumerate(rows, 1):
        if bad is None:
            print(f"ok {number} - {what} # SKIP no C++ compiler beside {cc}")
            continue
        print(f"{'not ok' if bad else 'ok'} {number} - {what}")
        for line in bad[:20]:
            print(f"# {line}")
    sys.exit(any(bad for _, bad in rows))


main()
