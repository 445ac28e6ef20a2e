# SPDX-License-Identifier: Apache-2.0
"""`kvof serve` on this machine, and what the suites of the guest share."""
import os
import select
import signal
import socket
import subprocess
import time

import guest as driver

HOSTNQN = "nqn.2014-08.org.nvmexpress:uuid:6b766f66-0000-4000-8000-000000000001"
HOSTID = "6b766f66-0000-4000-8000-000000000001"
NQN = "nqn.2026-11.io.kvof:guest"
READY_SECONDS = 30
KIB, MIB = 1 << 10, 1 << 20

# The files of a namespace appear after `nvme connect` returned: the kernel scans on its own.
WAIT_FOR = """
wait_for() {
	n=0
	until eval "$1"; do
		n=$((n + 1))
		[ $n -lt 100 ] || { echo "never true: $1"; return 1; }
		sleep 0.1
	done
}
"""


def program(words, seconds=30, data=None, env=None):
    """(exit status, standard output as bytes, standard error as text) of a program of the host."""
    try:
        done = subprocess.run(words, input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=seconds, env=env)
    except subprocess.TimeoutExpired:
        return 124, b"", f"`{' '.join(words)}` did not end in {seconds} s"
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


class Array:
    """One `kvof serve` on a port of the loopback, with drives in a folder of its own."""

    def __init__(self, kvof, folder, *options, port=None, drive_size="256MiB"):
        self.port = port or free_port()
        self.log_path = os.path.join(folder, f"serve-{self.port}.log")
        words = [kvof, "serve", "--listen", f"tcp://127.0.0.1:{self.port}", "--subsystem", NQN]
        for name in ("a", "b"):
            words += ["--drive", f"{os.path.join(folder, name)}.drive,size={drive_size}"]
        self.words = words + list(options)
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
            preexec_fn=driver.die_with_parent)
        self.ready = self._line(READY_SECONDS)

    def _line(self, seconds):
        end, text = time.monotonic() + seconds, b""
        while b"\n" not in text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                break
            got = os.read(self.process.stdout.fileno(), 4096)
            if not got:
                break
            text += got
        return text.decode(errors="replace").strip()

    def is_ready(self):
        return self.ready == f"ready tcp://127.0.0.1:{self.port} {NQN}"

    def uri(self):
        return f"tcp://127.0.0.1:{self.port}/{NQN}"

    def connections(self):
        """How many TCP connections the array holds open, as the machine's kernel tells."""
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        return sum(row[1] == f"0100007F:{self.port:04X}" and row[3] == "01" for row in rows)

    def logged(self):
        with open(self.log_path, "rb") as file:
            return file.read().decode(errors="replace")

    def why(self):
        state = self.process.poll()
        said = f"exit status {state}" if state is not None else "still running"
        return "\n".join([f"`{' '.join(self.words)}` is {said}", f"its first line: {self.ready}",
                          f"its log: {self.logged()[-3000:]}"])

    def stop(self, sig=signal.SIGTERM, seconds=15):
        """Exit status; None if it had to be killed."""
        status = None
        try:
            if self.process.poll() is None:
                self.process.send_signal(sig)
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        return status


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
