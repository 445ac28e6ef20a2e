#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6 judges kvof's connector; prints TAP. Usage: lmcache_test.py [BUILD]

Judges of LMCache's own, unchanged: its check of an adapter and of a remote (basic_check), its test
of the adapter that drives native connectors, with its mock replaced by ours, and its bench with
verification; and our own test of the in-process connector. Each over an array on loopback and over
DRAM alone. `tools/engines-env.sh` sets LMCache up.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "build").resolve()
os.environ["KVOF_BUILD"] = str(BUILD)
sys.path[:0] = [str(TOP / "python"), str(TOP / "tests" / "python")]
from array_serve import Array  # noqa: E402

LMCACHE = TOP / "build" / "venv-lmcache"
THEIRS = "test_native_connector_l2_adapter.py"
ENV = {**os.environ, "LMCACHE_DISABLE_BANNER": "1", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore",
       "PYTHONPATH": f"{TOP / 'python'}:{BUILD / 'python'}:{HERE}"}
count = failed = 0


def say(ok: bool, text: str, why: str = "") -> None:
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {text}", flush=True)
    for row in why.rstrip().split("\n")[-15:] if not ok else ():
        print(f"# {row}", flush=True)


def run(args, timeout_s=300, **env):
    """The program's exit status and all it printed."""
    try:
        done = subprocess.run([str(a) for a in args], env={**ENV, **env}, capture_output=True,
                              text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as e:
        return -1, f"not over after {timeout_s} s\n{e.stdout}\n{e.stderr}"
    return done.returncode, done.stdout + done.stderr


def spec(where: dict, **more) -> str:
    return json.dumps({"type": "native_plugin", "module_path": "kvof.lmcache",
                       "class_name": "Connector", "adapter_params": {**where, **more}})


def basic_check(name: str, where: dict) -> None:
    rc, text = run([LMCACHE / "bin/python", "-m", "lmcache.v1.basic_check", "--mode",
                    "test_l2_adapter", "--l2-adapter", spec(where, model_id=f"check {name}")])
    say(rc == 0 and "(content): 5/5" in text and "5/5 correctly absent" in text,
        f"basic_check test_l2_adapter, {name}", text)


def their_test(name: str, where: dict) -> None:
    """Their test file with the class of the mock taken out and ours imported in its place."""
    found = list((TOP / "build/lmcache-src").glob(f"lmcache-*/tests/v1/distributed/{THEIRS}"))
    if not found:
        say(False, f"{THEIRS}, {name}", "build/lmcache-src is missing: run tools/engines-env.sh")
        return
    text, n = re.subn(r"^class MockNativeConnector:\n(?:(?:[ \t].*)?\n)+",
                      "from lmcache_swap import MockNativeConnector\n\n\n", found[0].read_text(),
                      flags=re.M)
    if n != 1:
        say(False, f"{THEIRS}, {name}", "the mock is not where it was: another version?")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy, report = Path(folder, THEIRS), Path(folder, "report.xml")
        copy.write_text(text)
        rc, text = run([LMCACHE / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                        f"--junitxml={report}", copy], KVOF_TARGET=where.get("target", ""))
        cases = list(tree.parse(report).iter("testcase")) if report.exists() else []
    for case in cases:
        bad = [e for e in case if e.tag in ("failure", "error")]
        say(not bad, f"{case.get('classname', '').rsplit('.', 1)[-1]} {case.get('name')}, {name}",
            "".join(e.text or "" for e in bad))
    say(rc == 0 and len(cases) >= 60, f"their adapter test as a whole, {name}", text)


def in_process(name: str, where: dict) -> None:
    """The connector of LMCache's in-process mode, by our own test and by their check of a remote."""
    rc, text = run([LMCACHE / "bin/python", HERE / "lmcache_remote_check.py",
                    *([where["target"]] if "target" in where else [])])
    rows = re.findall(r"^(ok|not ok) \d+ - (.*)\n((?:#.*\n)*)", text, flags=re.M)
    for ok, what, why in rows:
        say(ok == "ok", f"in process: {what}, {name}", why)
    say(rc == 0 and len(rows) >= 8, f"in process as a whole, {name}", text)
    extra = {f"remote_storage_plugin.kvof.{k}": v for k, v in
             {**where, "module_path": "kvof.lmcache_remote", "class_name": "Adapter",
              "model_id": f"check {name} remote"}.items()}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "lmcache.yaml")
        config.write_text(json.dumps({       # JSON is YAML
            "chunk_size": 256, "max_local_cpu_size": 0.2, "remote_url": "plugin://kvof",
            "remote_serde": "naive", "remote_storage_plugins": ["kvof"], "extra_config": extra}))
        # Not test_storage_manager: it unmaps its memory while puts of it are still in flight.
        rc, text = run([LMCACHE / "bin/python", "-m", "lmcache.v1.basic_check", "--mode",
                        "test_remote", "--model", "check"], LMCACHE_CONFIG_FILE=str(config))
    say(rc == 0 and "(content correct): 5/5" in text, f"basic_check test_remote, {name}", text)


def wheel() -> None:
    """`pip install .[lmcache]`, but for LMCache itself, which is there: the package stands alone."""
    with tempfile.TemporaryDirectory() as folder:
        rc, text = run(["/usr/bin/python3", "-m", "pip", "install", "-q", "--no-deps", "--target",
                        folder, TOP], 600)
        meta = "".join(p.read_text() for p in Path(folder).glob("kvof-*.dist-info/METADATA"))
        say(rc == 0 and 'extra == "lmcache"' in meta, "pip builds the package, with its extra", text)
        rc, text = run([LMCACHE / "bin/python", "-m", "lmcache.v1.basic_check", "--mode",
                        "test_l2_adapter", "--l2-adapter", spec({"dram": "64MiB"})], PYTHONPATH=folder)
        say(rc == 0 and "(content): 5/5" in text, "basic_check test_l2_adapter, installed by pip", text)


def bench(name: str, where: dict, in_flight: int, size_kb: int) -> None:
    keys, rounds = 3, 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        rc, text = run([LMCACHE / "bin/lmcache", "bench", "l2", "--l2-adapter",
                        spec(where, model_id=f"bench {name} {in_flight} {size_kb}"),
                        "--num-keys", keys, "--in-flight", in_flight, "--data-size-kb", size_kb,
                        "--rounds", rounds, "--l1-align-bytes", 4096, "--no-skip-verify",
                        "--lookup-max-hit-rate", 1, "--format", "json", "--output", out])
        ops = json.loads(out.read_text())["metrics"] if out.exists() else {}
    done = {op["operation"]: op["total_success"] for k, op in ops.items() if k.startswith("op_")}
    all_keys = keys * in_flight * rounds
    good = done == {"Store": all_keys, "Lookup": all_keys, "Load": all_keys}
    say(rc == 0 and good and "data verified OK" in text,
        f"bench l2, verified: {size_kb} KiB, {in_flight} in flight, {name}", f"{done}\n{text}")


def main() -> int:
    if not (LMCACHE / "bin/lmcache").exists():
        print("1..0 # SKIP LMCache is not set up: tools/engines-env.sh")
        return 0
    array = Array(drives=2)
    try:
        for name, where in (("array", {"target": array.target}), ("dram", {"dram": "512MiB"})):
            basic_check(name, where)
            their_test(name, where)
            in_process(name, where)
        for in_flight in (1, 4, 16):
            bench("array", {"target": array.target, "dram": "0B"}, in_flight, 1024)
        bench("array", {"target": array.target}, 4, 4096)
        bench("dram", {"dram": "512MiB"}, 4, 4096)
        wheel()
    finally:
        array.stop()
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
