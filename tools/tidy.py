#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House style that a machine can see: line and file and function length, licence line, purpose line,
assertion floor, cited sources, no sleeps in tests. Prints TAP."""
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, FILE_LINES, FUNCTION_LINES, MUST_PER_THOUSAND = 100, 1500, 70, 30
MUST_LAYERS = ("store", "target", "wire", "loop")
# Functions that may be longer, with the reason.
LONG_FUNCTIONS = {}
# Functions that may call themselves: bounded by the depth given.
RECURSIVE = {}


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP,
                         capture_output=True, text=True)
    if out.returncode == 0:
        names = out.stdout.splitlines()
    else:
        names = [str(p.relative_to(TOP)) for p in TOP.rglob("*") if p.is_file()]
    return [n for n in names if (TOP / n).is_file() and not n.startswith("build")]


def width(line):
    return len(line.expandtabs(8))


def lines_check(path, text):
    rows = text.split("\n")
    for number, line in enumerate(rows, 1):
        if width(line) > COLUMNS:
            yield f"{path}:{number}: {width(line)} columns, {COLUMNS} allowed"
        if line.rstrip() != line:
            yield f"{path}:{number}: white space at the end of the line"
        if line.startswith(" *") and line[2:3] not in ("", " ", "\t", "/", "*"):
            yield f"{path}:{number}: a diagram in a comment that a formatter has broken"
    if len(rows) > FILE_LINES + 1:
        yield f"{path}: {len(rows)} lines, {FILE_LINES} allowed"


def function_name(rows, brace):
    """The name in the lines above rows[brace], back to whatever is not part of the head."""
    head = []
    for line in reversed(rows[max(0, brace - 8):brace]):
        if not line.strip() or line.startswith(("#", "}", "/*", " *")) or line.rstrip().endswith((";", "\\")):
            break
        head.insert(0, line)
    hit = re.match(r"[^()]*?(\w+)\s*\(", " ".join(head))
    return hit[1] if hit else "?"


def functions(text):
    """Yields (name, first line, line count, body). A function opens with `{` in column 0."""
    start, name = None, None
    rows = text.split("\n")
    for number, line in enumerate(rows, 1):
        if line == "{" and start is None:
            start, name = number, function_name(rows, number - 1)
        elif line.startswith("}") and start is not None:
            yield name, start, number - start + 1, "\n".join(rows[start:number - 1])
            start = None


def functions_check(path, text):
    for name, line, count, body in functions(text):
        if count > FUNCTION_LINES and name not in LONG_FUNCTIONS:
            yield f"{path}:{line}: {name}() has {count} lines, {FUNCTION_LINES} allowed"
        bare = re.sub(r'"(?:\\.|[^"\\])*"|/\*.*?\*/', "", body, flags=re.S)
        if name != "?" and re.search(rf"(?<![\w.>]){name}\s*\(", bare) and name not in RECURSIVE:
            yield f"{path}:{line}: {name}() calls itself"


def head_check(path, text):
    first = text.split("\n")[0:2]
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in first):
        yield f"{path}:1: no SPDX line"
    if path.startswith("src/") and path.endswith(".c") and not text.split("\n")[1].startswith("/*"):
        yield f"{path}:2: a file opens with its purpose"


def floor_check():
    for layer in MUST_LAYERS:
        lines = musts = 0
        for path in (TOP / "src" / layer).glob("*.c"):
            text = path.read_text()
            lines += text.count("\n")
            musts += len(re.findall(r"\b(?:must|must_slow|OBJ_CHECK|OBJ_TAKE|loop_must_own"
                                    r"|_Static_assert)\s*\(", text))
        if lines and musts * 1000 < lines * MUST_PER_THOUSAND:
            yield f"src/{layer}: {musts} assertions in {lines} lines, {MUST_PER_THOUSAND} a thousand is the floor"


def words_check(path, text):
    if path.startswith("tests/") and path.endswith((".c", ".py")):
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(r"(?<![\w.])(?:usleep|nanosleep|sleep)\s*\(|time\.sleep\(", line) and \
                    "waits-for:" not in line:
                yield f"{path}:{number}: a test waits for an event, it does not sleep"
    if path.startswith(("src/", "include/")):
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(r"\b(?:TODO|FIXME|XXX|HACK)\b", line):
                yield f"{path}:{number}: finish it or say in docs/ what is missing"
            if re.search(r"\bassert\s*\(", line):
                yield f"{path}:{number}: must(), not assert()"


SOURCES = {}


def sources_check(path, text):
    """A key such as [TCP 1.1] beside a fact is listed in docs/sources.md; all of these are cited."""
    if not SOURCES:
        rows = re.findall(r"^\| \[([A-Z]+)\]", (TOP / "docs/sources.md").read_text(), re.M)
        SOURCES.update((key, 0) for key in rows)
    for comment in re.findall(r"/\*.*?\*/", text, re.S):
        for key, edition in re.findall(r"\[([A-Z]{2,})( [\d.]+[a-z]?)?\]", comment):
            if key in SOURCES:
                SOURCES[key] += 1
            elif edition:
                yield f"{path}: [{key}{edition}] is not in docs/sources.md"


def main():
    checks = {name: [] for name in ("lines", "functions", "heads", "words", "sources",
                                    "assertion floor")}
    for name in tracked():
        if not name.endswith((".c", ".h", ".py", ".sh", ".def")):
            continue
        text = (TOP / name).read_text(errors="replace")
        checks["heads"] += head_check(name, text)
        if name.endswith((".c", ".h", ".def")):
            checks["lines"] += lines_check(name, text)
            checks["functions"] += functions_check(name, text)
            checks["sources"] += sources_check(name, text)
        checks["words"] += words_check(name, text)
    checks["sources"] += [f"docs/sources.md: nothing cites [{k}]" for k, n in SOURCES.items() if not n]
    checks["assertion floor"] += floor_check()
    print(f"1..{len(checks)}")
    for number, (name, bad) in enumerate(checks.items(), 1):
        print(f"{'not ok' if bad else 'ok'} {number} - style: {name}")
        for line in bad[:20]:
            print(f"# {line}")
        if len(bad) > 20:
            print(f"# and {len(bad) - 20} more")
    sys.exit(any(checks.values()))


main()
