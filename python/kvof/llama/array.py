# SPDX-License-Identifier: Apache-2.0
"""``kvof serve`` as a child process on loopback with file-backed drives.

The clock of a restore must not be helped by memory: :meth:`Array.cold` leaves the drives as cold as
this machine allows and says in words what that was. What was read at the devices is told by the
array's own counter and, independently, by the kernel (``/proc/PID/io``).
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Dict, List, Optional

READY_S = 20.0
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class ArrayError(RuntimeError):
    """The array did not do as asked; the message has its own last words."""


def end_with_parent() -> None:
    """In the child: whatever ends this process, even SIGKILL, ends the array too."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Array:
    """Starts and stops one array; the drives outlive it. Use as a context manager."""

    def __init__(self, kvof: os.PathLike, folder: os.PathLike, *, drives: int = 4,
                 drive_bytes: int = 512 << 20):
        self.kvof = Path(kvof)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.drives = [self.folder / f"drive{i}" for i in range(drives)]
        self.drive_bytes = drive_bytes
        self.port = free_port()
        self.target = f"tcp://127.0.0.1:{self.port}"
        self.process: Optional[subprocess.Popen] = None

    def __enter__(self) -> "Array":
        return self

    def __exit__(self, *_exc) -> None:
        self.stop()

    def fresh(self) -> None:
        """Begin with no drives: whatever an earlier run left is removed."""
        for drive in self.drives:
            drive.unlink(missing_ok=True)

    def command(self) -> List[str]:
        # no scrub: what the drives read is to be what was asked for
        out = [str(self.kvof), "serve", "--listen", self.target, "--scrub", "0B"]
        for drive in self.drives:
            out += ["--drive", f"{drive},size={self.drive_bytes >> 20}MiB"]
        return out

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=log,
                                            preexec_fn=end_with_parent)
        line = self._first_line()
        if not line.startswith("ready "):
            self.stop()
            raise ArrayError(f"kvof serve did not get ready: {line.strip() or self.last_words()}")

    @property
    def log(self) -> Path:
        return self.folder / "serve.log"

    def last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"

    def _first_line(self) -> str:
        out = self.process.stdout
        if not select.select([out], [], [], READY_S)[0]:
            return f"no answer within {READY_S:.0f} s"
        return out.readline().decode("utf-8", "replace")

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut of the process would: no farewell."""
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Ask it to end; insist after ten seconds. Harmless when it does not run."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        self.process.stdout.close()
        self.process = None

    def cold(self) -> str:
        """With the array stopped: leave nothing of the drives in this kernel's memory.

        Answers what could be done. What lies below the kernel (the cache of a disk, or of the host
        of a virtual machine) is out of reach, and the answer says so.
        """
        for drive in self.drives:
            if drive.exists():
                fd = os.open(drive, os.O_RDONLY)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
        try:
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("1\n")
            dropped = "this kernel's page cache dropped"
        except OSError:
            dropped = "the drives' pages dropped by advice (not root)"
        return f"array restarted, {dropped}; a cache below this kernel is out of reach"


def stat(kvof: os.PathLike, target: str) -> Dict:
    """``kvof stat TARGET --json`` as a dictionary."""
    done = subprocess.run([str(kvof), "stat", target, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise ArrayError(f"kvof stat {target}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def kernel_read_bytes(pid: int) -> Optional[int]:
    """Bytes a process has had read from block devices, by the kernel's account; None if untold."""
    try:
        with open(f"/proc/{pid}/io") as f:
            for line in f:
                if line.startswith("read_bytes:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None
