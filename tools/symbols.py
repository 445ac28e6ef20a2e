#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the functions of include/kvof/ with what libkvof exports, what the tests call, what
docs/api.md lists and what the Python package binds. Prints TAP; exits 1 on a difference.

usage: symbols.py LIBKVOF.SO
"""
import ast
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"/\*.*?\*/", re.S)
CALL = r"\b{}\s*\("


def declared():
    """name -> the paragraph of the header that declares it, comment and all."""
    found = {}
    for path in sorted((TOP / "include").rglob("*.h")):
        for paragraph in path.read_text().split("\n\n"):
            for hit in re.finditer(r"\b(kvof_\w+)\s*\(", COMMENT.sub("", paragraph)):
                found[hit[1]] = paragraph
    return found


def exported(library):
    run = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                         check=True)
    rows = [line.split() for line in run.stdout.splitlines()]
    return {row[2].split("@")[0] for row in rows if row[1] != "A"}


def commented(name, paragraph):
    """Nothing but the declaration's own type stands between the comment and the name."""
    above = paragraph[:list(re.finditer(CALL.format(name), paragraph))[-1].start()]
    return "*/" in above and not re.search(r"[;}]", above.rsplit("*/", 1)[1])


def sources(folder, pattern):
    return "\n".join(COMMENT.sub("", p.read_text()) for p in sorted((TOP / folder).rglob(pattern)))


def manual():
    """name -> the Python column of its row in docs/api.md."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]+\|([^|]+)\|$", (TOP / "docs/api.md").read_text(), re.M)
    return {name: column.strip() for name, column in rows}


def attributes(path):
    """Class.name of every public attribute that a Python file, or a stub, declares."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        yield node.name
        for part in node.body:
            name = part.target.id if isinstance(part, ast.AnnAssign) else getattr(part, "name", "_")
            if not name.startswith("_"):
                yield f"{node.name}.{name}"


def difference(left, left_name, right, right_name):
    return [f"{n}: in {left_name}, not in {right_name}" for n in sorted(left - right)] + \
        [f"{n}: in {right_name}, not in {left_name}" for n in sorted(right - left)]


def stub_check(extension):
    """The stub names the methods and attributes of the extension, no more and no less."""
    tables = re.findall(r"PyMethodDef \w+\[\] = \{(.*?)^\};|PyGetSetDef \w+\[\] = \{(.*?)^\};",
                        extension, re.M | re.S)
    table = set(re.findall(r'^\t\{"(\w+)",', "".join(a + b for a, b in tables), re.M))
    body = next(n for n in ast.parse((TOP / "python/kvof/_kvof.pyi").read_text()).body
                if isinstance(n, ast.ClassDef) and n.name == "Cache").body
    stub = {n.target.id if isinstance(n, ast.AnnAssign) else n.name for n in body} - {"__init__"}
    return difference(table, "_kvof.c", stub, "_kvof.pyi")


def main():
    public, pages = declared(), manual()
    tests, extension = sources("tests", "*.[ch]"), sources("python/kvof", "_*.c")
    python_tests = sources("tests/python", "*.py")
    package = set(attributes(TOP / "python/kvof/_kvof.pyi")) | set(
        attributes(TOP / "python/kvof/cache.py"))
    bound = {n: re.findall(r"`([\w.]+)`", c) for n, c in pages.items() if not c.startswith("no: ")}
    names = sorted({name for group in bound.values() for name in group})
    rows = [
        ("libkvof exports what the headers declare, and nothing else",
         difference(set(public), "include/kvof", exported(sys.argv[1]), "libkvof")),
        ("every function has a comment above it",
         [n for n, text in public.items() if not commented(n, text)]),
        ("every function is called by a test",
         [n for n in public if not re.search(CALL.format(n), tests)]),
        ("every function has a row in docs/api.md",
         difference(set(public), "include/kvof", set(pages), "docs/api.md")),
        ("every function is bound, or its row says why not",
         [n for n in public if n not in pages or pages[n] == "no:" or not pages[n]
          or (n in bound) != bool(re.search(CALL.format(n), extension))]),
        ("what a row names is in the Python package and in its tests",
         [n for n in names if n not in package
          or not re.search(rf"\b{n.split('.')[-1]}\b", python_tests)]
         + [f"{n}: names nothing" for n, group in bound.items() if not group]),
        ("the stub lists what the extension has", stub_check(extension)),
    ]
    print(f"1..{len(rows)}")
    for number, (what, bad) in enumerate(rows, 1):
        print(f"{'not ok' if bad else 'ok'} {number} - {what}")
        for line in bad[:20]:
            print(f"# {line}")
    sys.exit(any(bad for _, bad in rows) or not public)


main()
