# SPDX-License-Identifier: Apache-2.0
"""`kvof serve` on this machine, and what the suites of the guest share."""
import os
import re
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
		[ $n -lt 300 ] || { echo "never true: $1"; return 1; }
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
        listen = [of for word, of in zip(self.words, self.words[1:]) if word == "--listen"]
        return self.ready == f"ready {','.join(listen)} {NQN}"

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


def cli_answer_of(output):
    """(status, DW0) from what `nvme io-passthru` printed; None where it printed neither form."""
    if done := re.search(r"is Success and result: 0x([0-9a-fA-F]+)", output):
        return 0, int(done[1], 16)
    if failed := re.search(r"NVMe status: .*\(0x([0-9a-fA-F]+)\)", output):
        return int(failed[1], 16) & 0x7FF, None  # above: do not retry, more, retry delay
    return None


class Steps:
    """Checks that are a script of the guest each."""

    def __init__(self, guest, tap):
        self.guest, self.tap = guest, tap

    def step(self, name, script, *patterns, seconds=30, status=0):
        """A check: a script of the guest ends with `status` and its output has every pattern."""
        got, output = self.guest.run(script, seconds)
        missing = [p for p in patterns if not re.search(p, output, re.M)]
        why = f"exit status {got}, wanted {status}; not in the output: {missing}\n{output}"
        self.tap.check(name, got == status and not missing, why)
        return output

    def refused(self, name, script, want):
        """A check: an nvme-cli command of the guest ends with this status."""
        _, output = self.guest.run(script)
        self.tap.check(name, cli_answer_of(output) == (want, None), f"wanted {want:#x}\n{output}")

    def dmesg(self):
        return self.guest.run("dmesg | tail -30")[1]

    def quiet(self, name):
        """The kernel had nothing to complain of since the connect."""
        output = self.guest.run("dmesg")[1]
        bad = [line for line in output.splitlines() if re.search(
            r"nvme.*(digest|timeout|fail|error|ignor|invalid|reset|reconnect|unsupported|warn)|"
            r"BUG|WARNING|Call Trace|Oops", line, re.I)]
        self.tap.check(f"{name}: the kernel host logged no complaint", not bad, "\n".join(bad))
