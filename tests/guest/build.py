#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""build.py FOLDER - makes the guest's kernel, initramfs and root in FOLDER, from Debian packages.

Leaves FOLDER/vmlinux (unpacked, so that QEMU starts it at once), FOLDER/initramfs (not compressed,
for the same reason), FOLDER/root.img (an ext4 image with the tools of a whole system: bash, fio,
xfsprogs) and FOLDER/stamp. Nothing is done when the stamp says that the sources of the guest are
the same; packages are downloaded only where FOLDER/debs and FOLDER/debs-root lack them, so a cached
guest needs no network. Remove FOLDER to take newer packages.
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
# The root image: these packages with all that they depend on, and these modules beside those above.
ROOT_TOOLS = ["bash", "bsdextrautils", "coreutils", "diffutils", "findutils", "fio", "gawk", "grep",
              "gzip", "hostname", "kmod", "libc-bin", "mount", "nvme-cli", "procps", "sed", "tar",
              "udev", "util-linux", "uuid-runtime", "xfsprogs", "e2fsprogs",
              "libcurl4", "libinih1", "libisal2", "libjansson4", "libmicrohttpd12", "libssl3",
              "liburing2", "libxxhash0"]
ROOT_MODULES = ["virtio_blk", "ext4", "overlay", "xfs", "loop", "nvme", "brd"]
ROOT_SKIPPED = re.compile(r"^\./(usr/share/|usr/lib/(python|x86_64-linux-gnu/perl)|"
                          r"usr/lib/udev/hwdb|lib/udev/hwdb)")
KERNEL_WANTED = re.compile(r"\./boot/(vmlinuz|config)|\./lib/modules/.*(\.ko|/modules\.[a-z.]+)$")
ROOT_MIB_FREE = 64


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


def modules_in_order(folder, names):
    """[(name, path)] of modules and all they depend on, the depended-on first."""
    paths = {}
    for path in glob.glob(f"{folder}/**/*.ko", recursive=True):
        paths[os.path.basename(path)[:-3].replace("-", "_")] = path
    order, waiting = [], [(name.replace("-", "_"), False) for name in reversed(names)]
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
    small = modules_in_order(f"{root}/lib/modules", MODULES)
    rest = [m for m in modules_in_order(f"{root}/lib/modules", ROOT_MODULES) if m not in small]
    for name, file in small + rest:
        out.add(f"modules/{name}.ko", read(file), 0o100644)
    for order, modules in (("order", small), ("order-root", rest)):
        text = "".join(f"{name}.ko\n" for name, _ in modules)
        out.add(f"modules/{order}", text.encode(), 0o100644)
    out.close()


def root_packages(folder):
    """Files of ROOT_TOOLS and all they depend on; apt works it out as for an empty system."""
    debs = f"{folder}/debs-root"
    listed = f"{debs}/packages"
    if os.path.exists(listed):
        names = read(listed).decode().split("\n")
        paths = [f"{debs}/{name}" for name in names[1:]]
        if names[0] == " ".join(ROOT_TOOLS) and all(map(os.path.exists, paths)):
            return paths
    os.makedirs(f"{debs}/partial", exist_ok=True)
    open(f"{debs}/status", "w").close()
    words = ["apt-get", "-qq", "-o", f"Dir::State::status={debs}/status",
             "-o", f"Dir::Cache::archives={debs}", "-o", "APT::Sandbox::User=root",
             "-o", "Debug::NoLocking=true", "--no-install-recommends", "-y"]
    print("# guest: downloading the packages of its root, 80 MB", flush=True)
    try:
        command(*words, "--download-only", "install", *ROOT_TOOLS)
    except Failed:
        command("apt-get", "-q", "update")
        command(*words, "--download-only", "install", *ROOT_TOOLS)
    uris = command(*words, "--print-uris", "--reinstall", "install", *ROOT_TOOLS)
    names = sorted(os.path.basename(path) for path in glob.glob(f"{glob.escape(debs)}/*.deb"))
    if not names:
        raise Failed(f"`{' '.join(words)} install` left no packages in {debs}: {uris[:200]}")
    with open(listed, "w") as out:
        out.write("\n".join([" ".join(ROOT_TOOLS)] + names))
    return [f"{debs}/{name}" for name in names]


def merge_usr(root):
    """/bin, /sbin and /lib* become links into /usr, as on an installed Debian."""
    for name in ("bin", "sbin", "lib", "lib64"):
        os.makedirs(f"{root}/usr/{name}", exist_ok=True)
        if os.path.isdir(f"{root}/{name}") and not os.path.islink(f"{root}/{name}"):
            command("cp", "-a", f"{root}/{name}/.", f"{root}/usr/{name}/")
            shutil.rmtree(f"{root}/{name}")
        os.symlink(f"usr/{name}", f"{root}/{name}")


def root_image_make(path, folder, kernel_root, passthru):
    """An ext4 image; the guest mounts it read-only below a folder in memory."""
    root = f"{folder}/root-big"
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    try:
        for deb in root_packages(folder):
            unpack(deb, root, lambda p: not ROOT_SKIPPED.match(p))
        merge_usr(root)
        for name in ("dev", "proc", "sys", "tmp", "run", "root", "mnt", "opt", "etc/nvme"):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        for name in ("bin/sh", "usr/bin/awk"):
            if os.path.lexists(f"{root}/{name}"):
                os.unlink(f"{root}/{name}")
        os.symlink("bash", f"{root}/bin/sh")
        os.symlink("gawk", f"{root}/usr/bin/awk")
        shutil.copy(passthru, f"{root}/usr/bin/passthru")
        for name, text in (("passwd", "root:x:0:0:root:/root:/bin/bash\n"),
                           ("group", "root:x:0:\n"), ("hosts", "127.0.0.1 localhost\n")):
            with open(f"{root}/etc/{name}", "w") as out:
                out.write(text)
        release = os.path.basename(glob.glob(f"{kernel_root}/lib/modules/*")[0])
        modules = f"{root}/lib/modules/{release}"
        os.makedirs(modules, exist_ok=True)
        for name, file in modules_in_order(f"{kernel_root}/lib/modules", MODULES + ROOT_MODULES):
            shutil.copy(file, f"{modules}/{name}.ko")
        for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
            for file in glob.glob(f"{kernel_root}/lib/modules/*/{name}"):
                shutil.copy(file, modules)
        command("depmod", "-b", root, release)
        for file in glob.glob(f"{kernel_root}/boot/config-*"):
            os.makedirs(f"{root}/boot", exist_ok=True)
            shutil.copy(file, f"{root}/boot")
        used = int(command("du", "-sm", root).split()[0])
        if os.path.exists(path):
            os.unlink(path)
        command("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-d", root, path,
                f"{used + used // 8 + ROOT_MIB_FREE}M")
    finally:
        shutil.rmtree(root, ignore_errors=True)


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
                    unpack(deb, root, KERNEL_WANTED.match)
                else:
                    unpack(deb, root, lambda p: "/share/" not in p)
            passthru = f"{folder}/passthru"
            command("gcc", "-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE",
                    "-static", "-o", passthru, f"{HERE}/passthru.c")
            with open(f"{folder}/vmlinux", "wb") as out:
                out.write(vmlinux_of(glob.glob(f"{root}/boot/vmlinuz-*")[0]))
            initramfs_make(f"{folder}/initramfs", root, passthru)
            root_image_make(f"{folder}/root.img", folder, root, passthru)
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
