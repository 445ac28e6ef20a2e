#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""build.py FOLDER - makes the guest's kernel and initramfs in FOLDER, from Debian packages by name.

Leaves FOLDER/vmlinux (unpacked, so that QEMU starts it at once), FOLDER/initramfs (not compressed,
for the same reason) and FOLDER/stamp. Nothing is done when the stamp says that the sources of the
guest are the same; a package is downloaded only when FOLDER/debs has none of that name, so a
cached guest needs no network. Remove FOLDER to take newer packages.
"""
import fcntl
import glob
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
KERNEL = "linux-image-amd64"  # depends on the package that carries the kernel
TOOLS = ["busybox-static", "nvme-cli"]
LIBRARIES = ["libc6", "libcap2", "libdbus-1-3", "libgcrypt20", "libgpg-error0", "libjson-c5",
             "liblz4-1", "liblzma5", "libnvme1", "libssl3", "libsystemd0", "libuuid1", "libzstd1",
             "zlib1g"]
# What the guest loads, each after what it depends on. crc32c is asked for by name at run time, so
# no dependency names it.
MODULES = ["virtio_pci", "virtio_console", "virtio_net", "crc32c_generic", "crc32c-intel",
           "nvme-core", "nvme-fabrics", "nvme-tcp", "configfs", "nvmet", "nvmet-tcp", "null_blk"]
PROGRAMS = ["/usr/sbin/nvme"]


class Failed(Exception):
    """One line for the person who reads the test's output."""


def read(path):
    with open(path, "rb") as file:
        return file.read()


def command(*words, cwd=None):
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failed(f"`{' '.join(words)}` failed with {done.returncode}: {last}")
    return done.stdout


def kernel_package():
    """The package that linux-image-amd64 stands for, say linux-image-6.1.0-57-amd64."""
    found = re.findall(r"Depends: (linux-image-\S+)", command("apt-cache", "depends", KERNEL))
    if not found:
        raise Failed(f"`apt-cache depends {KERNEL}` names no kernel; try `apt-get update`")
    return found[0]


def packages_there(debs):
    """{name: file} of the packages that are in `debs` already."""
    patterns = {name: f"{name}_*.deb" for name in TOOLS + LIBRARIES}
    patterns[KERNEL] = "linux-image-[0-9]*.deb"
    found = {name: glob.glob(f"{glob.escape(debs)}/{p}") for name, p in patterns.items()}
    return {name: paths[0] for name, paths in found.items() if paths}


def packages_get(debs):
    """{name: file} of all packages, downloading what is not there yet."""
    os.makedirs(debs, exist_ok=True)
    wanted = [KERNEL] + TOOLS + LIBRARIES
    missing = [name for name in wanted if name not in packages_there(debs)]

    def download():
        names = [kernel_package() if name == KERNEL else name for name in missing]
        command("apt-get", "-q", "download", *names, cwd=debs)

    if missing:
        print(f"# guest: downloading {' '.join(missing)}", flush=True)
        try:
            download()
        except Failed:  # old or no package lists: what apt itself would tell the reader to do
            command("apt-get", "-q", "update")
            download()
    found = packages_there(debs)
    for name in wanted:
        if name not in found:
            raise Failed(f"`apt-get download {name}` left no file in {debs}")
    return found


def unpack(deb, root, wanted):
    """Unpacks those files of a package whose path `wanted` accepts."""
    pipe = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=pipe.stdout, mode="r|") as tar:
        for entry in tar:
            if wanted(entry.name):
                tar.extract(entry, root)
    pipe.stdout.close()
    if pipe.wait() != 0:
        raise Failed(f"`dpkg-deb --fsys-tarfile {deb}` failed")


def vmlinux_of(image):
    """The ELF kernel inside a bzImage; unpacking it in the emulated machine would take seconds."""
    data = read(image)
    if data[0x202:0x206] != b"HdrS":
        raise Failed(f"{image}: no Linux kernel image")
    setup_bytes = (data[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[setup_bytes + offset:setup_bytes + offset + length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise Failed(f"{image}: the kernel is not packed with xz")
    elf = lzma.LZMADecompressor().decompress(payload)
    if not elf.startswith(b"\x7fELF"):
        raise Failed(f"{image}: no ELF kernel inside")
    return elf


def modules_in_order(folder):
    """[(name, path)] of MODULES and all they depend on, the depended-on first."""
    paths = {}
    for path in glob.glob(f"{folder}/**/*.ko", recursive=True):
        paths[os.path.basename(path)[:-3].replace("-", "_")] = path
    order, waiting = [], [(name.replace("-", "_"), False) for name in reversed(MODULES)]
    while waiting:
        name, depends_done = waiting.pop()
        if name in order:
            continue
        if name not in paths:
            raise Failed(f"the kernel package has no module {name}")
        if depends_done:
            order.append(name)
            continue
        waiting.append((name, True))
        depends = re.search(rb"\0depends=([^\0]*)\0", read(paths[name]))
        for other in (depends[1].decode().split(",") if depends and depends[1] else []):
            waiting.append((other.replace("-", "_"), False))
    return [(name, paths[name]) for name in order]


def libraries_of(root, program):
    """{soname: path} that the dynamic linker of the unpacked packages finds for a program."""
    folders = [f"{root}/lib/x86_64-linux-gnu", f"{root}/usr/lib/x86_64-linux-gnu"]
    text = command(f"{root}/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "--library-path",
                   ":".join(folders), "--list", root + program)
    found = dict(re.findall(r"(\S+) => (/\S+)", text))
    for name, path in found.items():
        if not path.startswith(root):
            raise Failed(f"{program} needs {name}, which none of the packages of build.py has")
    if "not found" in text:
        raise Failed(f"{program}: a library is missing:\n{text}")
    return found


class Archive:
    """A cpio archive ("newc"), which is what an initramfs is."""

    def __init__(self, path):
        self.file, self.count, self.folders = open(path, "wb"), 0, set()

    def _entry(self, name, mode, data):
        self.count += 1
        header = [self.count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in header) + name.encode() + b"\0"
        self.file.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    def folder(self, name):
        if name and name not in self.folders:
            self.folder(os.path.dirname(name))
            self.folders.add(name)
            self._entry(name, 0o040755, b"")

    def add(self, name, data, mode=0o100755):
        self.folder(os.path.dirname(name))
        self._entry(name, mode, data)

    def link(self, name, to):
        self.add(name, to.encode(), 0o120777)

    def close(self):
        self._entry("TRAILER!!!", 0, b"")
        self.file.close()


def initramfs_make(path, root, passthru):
    out = Archive(path)
    for name in ["dev", "proc", "sys", "tmp", "root", "etc/nvme", "run"]:
        out.folder(name)
    out.add("init", read(f"{HERE}/init.sh"))
    out.add("bin/passthru", read(passthru))
    busybox = f"{root}/bin/busybox"
    out.add("bin/busybox", read(busybox))
    for applet in command(busybox, "--list").split():
        if applet != "busybox":
            out.link(f"bin/{applet}", "busybox")
    out.add("lib64/ld-linux-x86-64.so.2", read(f"{root}/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"))
    libraries = {}
    for program in PROGRAMS:
        out.add(program.lstrip("/"), read(root + program))
        libraries.update(libraries_of(root, program))
    for soname, file in sorted(libraries.items()):
        out.add(f"lib/x86_64-linux-gnu/{soname}", read(file))
    modules = modules_in_order(f"{root}/lib/modules")
    for name, file in modules:
        out.add(f"modules/{name}.ko", read(file), 0o100644)
    out.add("modules/order", "".join(f"{name}.ko\n" for name, _ in modules).encode(), 0o100644)
    out.close()


def sources_digest():
    parts = [read(f"{HERE}/{name}") for name in ("build.py", "init.sh", "passthru.c")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def build(folder):
    """Makes the guest in `folder` if it is not there; raises Failed with one line."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/lock", "w") as lock:  # two suites may share the folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = f"{folder}/stamp"
        if os.path.exists(stamp) and read(stamp).decode() == sources_digest():
            return
        root = f"{folder}/root"
        shutil.rmtree(root, ignore_errors=True)
        try:
            for name, deb in packages_get(f"{folder}/debs").items():
                if name == KERNEL:
                    unpack(deb, root, lambda p: p.startswith("./boot/vmlinuz") or p.endswith(".ko"))
                else:
                    unpack(deb, root, lambda p: "/share/" not in p)
            passthru = f"{folder}/passthru"
            command("gcc", "-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE",
                    "-static", "-o", passthru, f"{HERE}/passthru.c")
            with open(f"{folder}/vmlinux", "wb") as out:
                out.write(vmlinux_of(glob.glob(f"{root}/boot/vmlinuz-*")[0]))
            initramfs_make(f"{folder}/initramfs", root, passthru)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        with open(stamp, "w") as out:
            out.write(sources_digest())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build.py FOLDER")
    try:
        build(os.path.abspath(sys.argv[1]))
    except Failed as failed:
        sys.exit(f"build.py: {failed}")
