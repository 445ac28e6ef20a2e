# SPDX-License-Identifier: Apache-2.0
"""Cases of a script test: how they are named, run, and told as TAP."""
import sys
import traceback

CASES = []


def case(name):
    def add(run):
        CASES.append((name, run))
        return run
    return add


def each(name, rows):
    """The same case for several rows; the row is in the name."""
    def add(run):
        for row in rows:
            label = row if isinstance(row, str) else repr(row)
            CASES.append((f'{name}: {label}', lambda what, row=row: run(what, row)))
        return run
    return add


def chosen(words):
    return [c for c in CASES if words in c[0]]


def attempt(run):
    """None, or the traceback of what went wrong."""
    try:
        run()
        return None
    except Exception:
        return traceback.format_exc()


class Tap:
    def __init__(self):
        self.n = self.bad = 0

    def tell(self, name, error, skip=None):
        self.n += 1
        self.bad += error is not None
        print(f'{"not ok" if error else "ok"} {self.n} - {name}' + (f' # SKIP {skip}' if skip else ''))
        if error:
            for line in error.strip().splitlines()[-6:]:
                print(f'# {line}')
        sys.stdout.flush()

    def end(self):
        """The plan; gives the exit status."""
        print(f'1..{self.n}')
        return 1 if self.bad else 0


def run_all(words, call):
    """Runs the chosen cases by call(run); what a case returns is the reason why it was skipped."""
    tap = Tap()
    for name, run in chosen(words):
        skip = []
        error = attempt(lambda: skip.append(call(run)))
        tap.tell(name, error, skip[0] if skip else None)
    return tap.end()
