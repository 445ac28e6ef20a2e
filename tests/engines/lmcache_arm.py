# SPDX-License-Identifier: Apache-2.0
"""Runs `lmcache bench l2` as it is and writes down what its summary leaves out.

lmcache_arm.py OUT PIDS LMCACHE-ARGUMENTS...   PIDS: processes of the store under test, "1,2" or ""

OUT gets one JSON object: of Store, Lookup and Load each round's duration, and CPU seconds of this process
and of the store's during them (the bench's own clearing of its buffers before a load is taken off).
"""

import json
import os
import resource
import sys
import time

TICK = os.sysconf("SC_CLK_TCK")


def own_cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_s(pids):
    total = own_cpu_s()
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            row = f.read().rsplit(")", 1)[1].split()
        total += (int(row[11]) + int(row[12])) / TICK
    return total


class Clearing:
    """CPU that the bench spends on clearing its own buffers, on its main thread."""

    def __init__(self):
        import torch
        self.seconds, zero = 0.0, torch.Tensor.zero_

        def zero_(tensor):
            begin = time.thread_time()
            out = zero(tensor)
            self.seconds += time.thread_time() - begin
            return out
        torch.Tensor.zero_ = zero_


def measured(run, name, pids, clearing, notes):
    def call(adapter, **kw):
        if name != "lookup":
            kw["objs_for_round"](0)       # made, filled and kept at the first call: not the store's work
        begin = cpu_s(pids) - clearing.seconds
        result = run(adapter, **kw)
        notes[name] = {"seconds": list(result.round_durations), "timed_out": result.timed_out_rounds,
                       "succeeded": list(result.success_counts), "keys": result.keys_per_round,
                       "cpu_s": cpu_s(pids) - clearing.seconds - begin, "rounds": kw["rounds"]}
        return result
    return call


def main():
    out, pids, sys.argv = sys.argv[1], [int(p) for p in sys.argv[2].split(",") if p], sys.argv[2:]
    sys.argv[0] = "lmcache"
    from lmcache.cli.commands.bench.l2_adapter_bench import runner
    notes, clearing = {}, Clearing()
    for name in ("store", "lookup", "load"):
        whole = f"bench_{name}"
        setattr(runner, whole, measured(getattr(runner, whole), name, pids, clearing, notes))
    from lmcache.cli.main import main as lmcache
    try:
        code = lmcache()
    except SystemExit as e:
        code = e.code
    with open(out, "w", encoding="utf-8") as f:
        json.dump(notes, f)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
