#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What ./run and ./test share: says what is missing, installs it (Debian 12, root or sudo), builds.
# Sourced, not run. Safe to repeat: what is there is left alone.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=${KVOF_BUILD:-$TOP/build}
MESON=/usr/bin/meson
NINJA=/usr/bin/ninja
PACKAGES_BUILD="build-essential git meson ninja-build pkg-config liburing-dev libisal-dev libxxhash-dev
 libssl-dev libjansson-dev libinih-dev libcmocka-dev libmicrohttpd-dev libcurl4-openssl-dev
 python3 python3-dev python3-venv"
PACKAGES_CLANG="clang"
PACKAGES_GUEST="qemu-system-x86 kmod e2fsprogs"

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"
	elif command -v sudo >/dev/null; then sudo "$@"
	else die "packages are missing and this is neither root nor is sudo there; run as root: $*"
	fi
}

# need_packages NAME...: installs those that are missing, in one go.
need_packages() {
	local missing=()
	for name in "$@"; do
		dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' ||
			missing+=("$name")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "installing ${#missing[@]} Debian packages: ${missing[*]}"
	as_root apt-get update -qq || die "apt-get update failed; is a Debian mirror reachable?"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		"${missing[@]}" >"$BUILD.apt.log" 2>&1 || {
		tail -5 "$BUILD.apt.log" >&2
		die "apt-get could not install: ${missing[*]} (log: $BUILD.apt.log)"
	}
	rm -f "$BUILD.apt.log"
}

# build_in DIR [meson options]: configures once, then builds what changed (TARGETS: only these).
build_in() {
	local dir=$1
	shift
	if [ ! -f "$dir/build.ninja" ]; then
		"$MESON" setup "$dir" "$TOP" "$@" >"$dir.setup.log" 2>&1 || {
			tail -20 "$dir.setup.log" >&2
			die "meson could not configure $dir"
		}
		rm -f "$dir.setup.log"
	fi
	"$NINJA" -C "$dir" ${TARGETS:-} >"$dir/build.log" 2>&1 || {
		grep -A12 -E 'error|FAILED' "$dir/build.log" | head -60 >&2
		die "the build in $dir failed (log: $dir/build.log)"
	}
}
