#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The driver: boots the guest that build.py made, runs shell scripts in it, counts checks as TAP.

    with Guest(folder) as guest:
        status, output = guest.run("nvme list", seconds=10)

The guest's console goes to FOLDER/serial.log (with the process id in its name until the guest
ends); scripts and answers go over a virtio port, so the kernel's messages never mix with them. The
host's loopback is 10.0.2.2 in the guest. Every wait has an end: past it the guest is killed, and
Lost carries the end of the console. Only the own QEMU is killed, and it dies with this process too.
"""
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

QEMU = "qemu-system-x86_64"
BOOT_SECONDS = 120      # 4 s alone; a machine that is busy with a build may need far more
GRACE_SECONDS = 20      # on top of a step's own limit, which the guest enforces itself
OUTPUT_BYTES_MAX = 16 << 20
HOST = "10.0.2.2"
PR_SET_PDEATHSIG = 1


class Lost(Exception):
    """The guest is gone or silent; nothing more can be asked of it."""


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def root_options(folder, payload, drives):
    """QEMU's options for the root image, a tar file as a disk, and emulated NVMe drives.

    drives: [(name, file, {property: value})]; each is a controller of its own, with that id.
    """
    options = []
    for file in [os.path.join(folder, "root.img")] + ([payload] if payload else []):
        options += ["-drive", f"file={file},format=raw,if=virtio,readonly=on"]
    for number, (name, file, properties) in enumerate(drives):
        more = "".join(f",{key}={value}" for key, value in properties.items())
        slot = f"chassis={number + 1},slot={number + 1}"
        options += ["-device", f"pcie-root-port,id=port-{name},{slot}",
                    "-drive", f"file={file},format=raw,if=none,id=file-{name},discard=unmap",
                    "-device", f"nvme,id={name},serial={name},drive=file-{name},"
                               f"bus=port-{name}{more}"]
    return options


class Guest:
    def __init__(self, folder, processors=2, forward=None, root=False, payload=None, drives=()):
        """forward=(port, guest_port): a port of the host's loopback leads to one of the guest.

        root: boot into the root image; payload: a tar file that is unpacked into /opt there;
        drives: emulated NVMe drives, see root_options().
        """
        rule = f",hostfwd=tcp:127.0.0.1:{forward[0]}-:{forward[1]}" if forward else ""
        self.serial_kept = os.path.join(folder, "serial.log")
        self.serial = os.path.join(folder, f"serial-{os.getpid()}.log")
        self.steps, self.inbox = 0, b""
        self.port, far = socket.socketpair()
        self.monitor, far_monitor = socket.socketpair()
        more, memory, command_line = [], "512M", ""
        if root:
            more, memory = root_options(folder, payload, drives), "1536M"
            # Over the guest's own loopback a receiver reads the sender's pages in place; Linux 6.1
            # takes a piece that spans two huge pages for an overrun and ends the reader.
            command_line = " hardened_usercopy=off kvof.root" + (" kvof.payload" if payload else "")
        self.started = time.monotonic()
        self.qemu = subprocess.Popen(
            [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
             "-machine", "q35" if root else "pc",
             "-accel", "tcg,thread=multi", "-cpu", "max", "-m", memory, "-smp", str(processors),
             "-kernel", os.path.join(folder, "vmlinux"),
             "-initrd", os.path.join(folder, "initramfs"),
             "-append", "console=ttyS0 panic=-1 loglevel=6 mitigations=off" + command_line,
             "-serial", f"file:{self.serial}",
             "-netdev", f"user,id=net0{rule}", "-device", "virtio-net-pci,netdev=net0,romfile=",
             "-chardev", f"socket,id=agent,fd={far.fileno()}",
             "-device", "virtio-serial-pci",
             "-device", "virtserialport,chardev=agent,name=kvof.agent",
             "-chardev", f"socket,id=qmp,fd={far_monitor.fileno()}",
             "-mon", "chardev=qmp,mode=control", *more],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[far.fileno(), far_monitor.fileno()], preexec_fn=die_with_parent)
        far.close()
        far_monitor.close()
        try:
            words = self._line(BOOT_SECONDS, "it booted").split()
            if len(words) != 2 or words[0] != "READY":
                raise Lost(f"the agent said {words}")
        except BaseException:
            self.close()
            raise
        self.release = words[1]
        self.boot_seconds = time.monotonic() - self.started

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.port.close()
        self.monitor.close()
        if self.qemu.poll() is None:
            self.qemu.kill()
        self.qemu.wait()
        self.qemu.stdout.close()
        if self.serial != self.serial_kept:
            os.replace(self.serial, self.serial_kept)
            self.serial = self.serial_kept

    @contextlib.contextmanager
    def frozen(self):
        """Nothing of the guest runs meanwhile, while its connections stay open."""
        self.qemu.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.qemu.send_signal(signal.SIGCONT)

    def ask_qemu(self, command, seconds=10, **arguments):
        """One command of QEMU's own protocol; its answer, or Lost."""
        self.monitor.settimeout(seconds)
        words = [] if getattr(self, "monitor_open", False) else [{"execute": "qmp_capabilities"}]
        self.monitor_open = True
        words.append({"execute": command, "arguments": arguments})
        answer = None
        for word in words:
            self.monitor.sendall(json.dumps(word).encode() + b"\n")
            answer = self._answer_of_qemu(command)
        return answer

    def _answer_of_qemu(self, command):
        text = b""
        while True:
            try:
                byte = self.monitor.recv(1)
            except TimeoutError:
                byte = b""
            if not byte:
                self._lost(f"QEMU did not answer {command}")
            text += byte
            if byte != b"\n":
                continue
            said, text = json.loads(text), b""
            if "error" in said:
                self._lost(f"QEMU refused {command}: {said['error']}")
            if "return" in said:
                return said["return"]

    def console(self, lines=25):
        """The last lines of the guest's console, as TAP comments."""
        try:
            with open(self.serial, "rb") as file:
                text = file.read().decode(errors="replace")
        except OSError as error:
            text = str(error)
        return text.splitlines()[-lines:]

    def _lost(self, why):
        said = b""
        if self.qemu.poll() is not None:
            said = self.qemu.stdout.read()[-2000:]
        raise Lost("\n".join([why, said.decode(errors="replace"), "console:"] + self.console()))

    def _more(self, end, wish):
        left = end - time.monotonic()
        if left <= 0 or not select.select([self.port], [], [], left)[0]:
            self._lost(f"the guest said nothing in time; waiting until {wish}")
        got = self.port.recv(1 << 16)
        if not got:
            self._lost(f"the guest ended before {wish}")
        self.inbox += got

    def _line(self, seconds, wish):
        end = time.monotonic() + seconds
        while b"\n" not in self.inbox:
            self._more(end, wish)
        line, self.inbox = self.inbox.split(b"\n", 1)
        return line.decode(errors="replace")

    def run(self, script, seconds=20):
        """(exit status, output of both streams) of a shell script; 137 when it ran out of time."""
        self.steps += 1
        data = script.encode()
        self.port.sendall(b"RUN %d %d %d\n" % (self.steps, seconds, len(data)) + data)
        words = self._line(seconds + GRACE_SECONDS, f"step {self.steps} was done").split()
        if len(words) != 4 or words[0] != "DONE" or int(words[1]) != self.steps:
            self._lost(f"the agent said {words} to step {self.steps}")
        length = int(words[3])
        if length > OUTPUT_BYTES_MAX:
            self._lost(f"step {self.steps} printed {length} bytes")
        end = time.monotonic() + GRACE_SECONDS
        while len(self.inbox) < length:
            self._more(end, f"the output of step {self.steps} was here")
        output, self.inbox = self.inbox[:length], self.inbox[length:]
        return int(words[2]), output.decode(errors="replace")


class Tap:
    """Counts checks and prints them; a check is told by name, and why it failed as comments."""

    def __init__(self):
        self.count = self.failed = 0

    def say(self, text):
        for line in str(text).splitlines():
            print(f"# {line}", flush=True)

    def check(self, name, good, why=""):
        self.count += 1
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}", flush=True)
        if not good:
            self.failed += 1
            self.say(why)
        return bool(good)

    def skip(self, name, why):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {why}", flush=True)

    def done(self):
        print(f"1..{self.count}", flush=True)
        return 1 if self.failed else 0


def main():
    """guest.py FOLDER SCRIPT [SECONDS]: runs a script ("-": standard input) in a new guest."""
    if len(sys.argv) not in (3, 4):
        sys.exit(main.__doc__)
    script = sys.stdin.read() if sys.argv[2] == "-" else open(sys.argv[2]).read()
    import build
    try:
        build.build(os.path.abspath(sys.argv[1]))
        with Guest(os.path.abspath(sys.argv[1])) as guest:
            print(f"# Linux {guest.release}, {guest.boot_seconds:.1f} s to boot", file=sys.stderr)
            status, output = guest.run(script, int(sys.argv[3]) if len(sys.argv) == 4 else 60)
    except (build.Failed, Lost) as failed:
        sys.exit(f"guest.py: {failed}")
    sys.stdout.write(output)
    sys.exit(status)


if __name__ == "__main__":
    main()
