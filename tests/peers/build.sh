#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the peers that judge us from source trees that you have: nothing is fetched, nothing of them
# comes into this tree. `./test peers` finds them by KVOF_PEERS=DIR (default /tmp/kvof-peers).
#
# usage: build.sh DIR SPDK_SRC [XNVME_SRC]
#
#	DIR        what is built goes here (2 GB); trees are copied there first, yours stay as they are
#	SPDK_SRC   a tree of SPDK (26.05 or near), without its submodules
#	XNVME_SRC  a tree of xNVMe (0.7.5 or near); it uses the SPDK built here
#
# Debian 12: DPDK 22.11 and ISA-L 2.30 are older than what SPDK asks for, so the copy is changed:
#	- libraries of DPDK that 22.11 has not yet split off are not linked
#	- any stable release of 22.11 is accepted (only PCI devices depend on it; none is used here)
#	- CRC64 comes from SPDK's own table, ISA-L 2.30 has none
# and in xNVMe: its fabrics are opened without digests unless XNVME_DIGESTS is set (docs/interop.md
# says why), and SPDK is found in DIR instead of being fetched.
set -eu

PACKAGES="build-essential pkg-config libdpdk-dev libisal-dev libnuma-dev libaio-dev uuid-dev libssl-dev
 libkeyutils-dev libarchive-dev libpcap-dev libncurses-dev libcunit1-dev python3-jinja2 python3-yaml
 python3-tabulate meson ninja-build liburing-dev"
export PATH=/usr/bin:/bin:/usr/sbin:$PATH

die() { echo "error: $*" >&2; exit 1; }
say() { echo "== $*"; }

[ $# -ge 2 ] || { sed -n '3,17s/^# \{0,1\}//p' "$0"; exit 2; }
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
SPDK_SRC=$2
XNVME_SRC=${3:-}
JOBS=${JOBS:-2}

missing=()
for name in $PACKAGES; do
	dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
done
[ ${#missing[@]} = 0 ] || die "packages are missing: apt-get install ${missing[*]}"

# replace FILE OLD NEW: a whole text, once, and it must be there.
replace() {
	python3 - "$@" <<'END'
import sys
path, old, new = sys.argv[1:]
text = open(path).read()
if new not in text:
    if old not in text:
        sys.exit(f"error: {path} is not as expected; another version?")
    open(path, "w").write(text.replace(old, new, 1))
END
}

spdk() {
	[ -f "$SPDK_SRC/configure" ] || die "$SPDK_SRC is no tree of SPDK"
	[ -d "$DIR/spdk" ] || cp -r "$SPDK_SRC" "$DIR/spdk"
	cd "$DIR/spdk"
	replace lib/env_dpdk/env.mk 'DPDK_LIB_LIST_SORTED = $(sort $(DPDK_LIB_LIST))' \
		'DPDK_LIB_LIST_SORTED = $(sort $(foreach l,$(DPDK_LIB_LIST),$(if $(wildcard $(DPDK_LIB_DIR)/lib$(l).*),$(l))))'
	replace lib/env_dpdk/pci_dpdk.c 'if (minor > 4) {' 'if (minor > 99) {'
	replace lib/util/crc64.c '#ifdef SPDK_CONFIG_ISAL
' '#if 0 /* ISA-L 2.30 has no crc64_rocksoft */
'
	[ -f mk/config.mk ] || ./configure --with-dpdk --with-isal=/usr --without-isal-crypto \
		--without-crypto --without-vhost --without-virtio --without-vfio-user --without-rdma \
		--without-uring --without-xnvme --disable-unit-tests --without-golang \
		--without-nvme-cuse --without-ublk --without-idxd --without-raid5f \
		--without-iscsi-initiator --without-aio-fsdev >"$DIR/spdk.configure.log" 2>&1 ||
		die "SPDK's configure failed: $DIR/spdk.configure.log"
	say "building SPDK (some minutes)"
	{
		make build_dir include/spdk/config.h include/spdk/version.h
		make -C include jsonrpc
		make -C python
		for part in lib module shared_lib app/spdk_nvme_perf app/spdk_nvme_identify \
			app/nvmf_tgt test/app/fuzz/nvme_fuzz examples/bdev/bdevperf \
			examples/nvme/reconnect examples/nvme/abort; do
			make -j"$JOBS" -C "$part" all
		done
	} >"$DIR/spdk.make.log" 2>&1 || die "SPDK's build failed: $DIR/spdk.make.log"
	say "building spdk_kv"
	gcc -Wall -Wextra -Werror -O2 -o "$DIR/spdk_kv" "$HERE/spdk_kv.c" -Iinclude \
		$(pkg-config --cflags libdpdk) -Lbuild/lib -Wl,--no-as-needed \
		-lspdk_nvme -lspdk_env_dpdk -lspdk_sock_posix -lspdk_util -lspdk_log \
		-lrte_eal -lrte_bus_pci -lrte_pci -lrte_mempool -lrte_ring -lrte_kvargs \
		-Wl,--as-needed -Wl,--allow-shlib-undefined
}

xnvme() {
	[ -f "$XNVME_SRC/lib/xnvme_be_spdk_dev.c" ] || die "$XNVME_SRC is no tree of xNVMe"
	[ -d "$DIR/xnvme" ] || cp -r "$XNVME_SRC" "$DIR/xnvme"
	cd "$DIR/xnvme"
	rm -rf subprojects/spdk.wrap
	mkdir -p subprojects/spdk
	cat >subprojects/spdk/meson.build <<END
project('spdk', 'c', version: '26.05')
lib = '$DIR/spdk/build/lib'
# Programs link libxnvme only: the linker finds what that needs by the rpath in it, and so does the loader.
args = ['-L' + lib, '-Wl,-rpath,' + lib]
foreach n : ['nvme', 'env_dpdk', 'sock', 'sock_posix', 'rpc', 'trace', 'jsonrpc', 'json', 'util', 'log', 'dma',
	'keyring', 'thread']
  args += '-lspdk_' + n
endforeach
foreach n : ['rte_eal', 'rte_bus_pci', 'rte_pci', 'rte_mempool', 'rte_ring', 'rte_kvargs', 'ssl', 'crypto',
	'uuid', 'numa', 'm']
  args += '-l' + n
endforeach
spdk_dep = declare_dependency(link_args: args, compile_args: ['-I$DIR/spdk/include'],
  dependencies: dependency('libdpdk').partial_dependency(compile_args: true))
END
	replace lib/xnvme_be_spdk_dev.c 'ctrlr_opts->header_digest = 1;
		ctrlr_opts->data_digest = 1;' 'ctrlr_opts->header_digest = getenv("XNVME_DIGESTS") != NULL;
		ctrlr_opts->data_digest = getenv("XNVME_DIGESTS") != NULL;'
	say "building xNVMe"
	{
		[ -f build/build.ninja ] || /usr/bin/meson setup build -Dwith-spdk=enabled \
			-Dwith-libvfn=disabled -Dwith-cuda=disabled -Dwith-hip=disabled \
			-Dbe_upcie=false --buildtype=release
		/usr/bin/ninja -C build -j"$JOBS" tests/xnvme_tests_kvs tools/kvs
	} >"$DIR/xnvme.make.log" 2>&1 || die "xNVMe's build failed: $DIR/xnvme.make.log"
}

spdk
[ -z "$XNVME_SRC" ] || xnvme
say "done: KVOF_PEERS=$DIR ./test peers"
