# SPDX-License-Identifier: Apache-2.0
"""An array for a test: `kvof serve` on a free port of loopback, over files of its own."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path

PROGRAM = Path(os.environ["KVOF_BUILD"]) / "kvof"


class Array:
    def __init__(self, drives: int = 2, options: tuple = ()):
        self.options = list(options)
        self.folder = Path(tempfile.mkdtemp(prefix="kvof-python-"))
        self.drives = [self.folder / f"d{i}" for i in range(drives)]
        self.process = None
        self.target = None
        self.start("tcp://127.0.0.1:0")

    def start(self, listen: str) -> None:
        args = [str(PROGRAM), "serve", "--listen", listen, *self.options]
        for drive in self.drives:
            args += ["--drive", f"{drive},size=256MiB"]
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        line = self.process.stdout.readline().split()
        if line[:1] != ["ready"]:
            raise RuntimeError(f"kvof serve did not start: {' '.join(line)}")
        self.target = line[1]

    def kill(self) -> None:
        """The power button: no chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def shut_down(self) -> None:
        """As an operator does it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdout.close()

    def restart(self) -> None:
        """At the same address, over the same drives."""
        self.start(self.target)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def names(self) -> list:
        """Keys of all raw values, in hex."""
        done = subprocess.run([PROGRAM, "ls", self.target, "--json"], capture_output=True, check=True)
        return [row["key"] for row in json.loads(done.stdout)]

    def put(self, name: str, value: bytes) -> None:
        """A raw value, behind the back of every cache."""
        subprocess.run([PROGRAM, "put", self.target, name], input=value, check=True)

    def flip(self, needle: bytes) -> int:
        """Flips a bit in every copy of needle on the drives; the array must be down."""
        hits = 0
        for drive in self.drives:
            raw = bytearray(drive.read_bytes())
            at = raw.find(needle)
            while at >= 0:
                raw[at + len(needle) // 2] ^= 1
                hits += 1
                at = raw.find(needle, at + 1)
            drive.write_bytes(raw)
        return hits


def quiet(call, *args, **kw):
    """A call whose RuntimeWarning is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return call(*args, **kw)
