#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets up the engines that kvof's connectors are judged with, and their rivals, under build/:
# LMCache 0.5.6 without a GPU (compiled here: its own extensions, 80 s), Redis from Debian, Mooncake
# Store from PyPI.
#
#   tools/engines-env.sh [--rivals]     --rivals adds Redis and Mooncake Store, for the bench
#
# Safe to run again: a step whose outcome is already there is skipped. Prints one line a step; the
# details go to build/engines-env.log. Answers 0, or 1 after one line that says which step failed.

set -u
cd "$(dirname "$0")/.." || exit 1

TORCH=2.13.0
LMCACHE=0.5.6
MOONCAKE=0.3.13

rivals=0
for arg in "$@"; do
	case $arg in
	--rivals) rivals=1 ;;
	*) echo "engines-env: unknown option '$arg'; the only one is --rivals" >&2; exit 2 ;;
	esac
done

root=$PWD
venv=$root/build/venv-lmcache
log=$root/build/engines-env.log
mkdir -p "$root/build"
: > "$log"

say() { printf 'engines-env: %s\n' "$*"; }
fail()
{
	printf 'engines-env: %s failed; see build/engines-env.log, which ends:\n' "$1" >&2
	tail -n 5 "$log" | sed 's/^/  /' >&2
	exit 1
}
pip() { "$1/bin/python" -m pip --no-input --disable-pip-version-check -q "${@:2}" >> "$log" 2>&1; }
have() { "$1/bin/python" - "${@:2}" >> "$log" 2>&1 <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version
name, want = sys.argv[1], sys.argv[2]
try:
    got = version(name)
except PackageNotFoundError:
    sys.exit(1)
sys.exit(got.split("+")[0] != want and not got.startswith(want + "."))
PY
}

# A half-made environment (interrupted run, interpreter gone) is made anew.
new_venv()
{
	"$1/bin/python" -c 'import pip' >> "$log" 2>&1 && return 0
	say "virtual environment build/$(basename "$1")"
	rm -rf "$1"
	# Debian's own interpreter: the extension kvof._kvof is built for it as well
	/usr/bin/python3 -m venv "$1" >> "$log" 2>&1 ||
		fail "making build/$(basename "$1") (apt-get install python3-venv)"
}

new_venv "$venv"
have "$venv" torch "$TORCH" || {
	say "torch $TORCH"
	pip "$venv" install "torch==$TORCH" || fail "installing torch"
}
have "$venv" lmcache "$LMCACHE" || {
	say "lmcache $LMCACHE: compiling, about a minute and a half on two cores"
	pip "$venv" install ninja grpcio-tools 'setuptools<81' wheel setuptools_scm packaging pybind11 ||
		fail "installing what builds lmcache"
	# its build asks for other versions of grpcio-tools' needs afterwards: harmless
	NO_GPU_EXT=1 MAX_JOBS=$(nproc) pip "$venv" install --no-build-isolation --no-binary lmcache \
		"lmcache==$LMCACHE" || fail "building lmcache (needs g++ and a network)"
}
have "$venv" pytest 8 || {
	say "pytest"
	pip "$venv" install 'pytest==8.*' 'pytest-asyncio' || fail "installing pytest"
}
# Its own tests come with its source package alone.
source=$root/build/lmcache-src
[ -d "$source/lmcache-$LMCACHE/tests" ] || {
	say "lmcache $LMCACHE: its tests"
	mkdir -p "$source"
	[ -f "$source/lmcache-$LMCACHE.tar.gz" ] || NO_GPU_EXT=1 pip "$venv" download --no-deps \
		--no-build-isolation --no-binary lmcache -d "$source" "lmcache==$LMCACHE" ||
		fail "downloading lmcache's source"
	tar -C "$source" -xzf "$source/lmcache-$LMCACHE.tar.gz" >> "$log" 2>&1 ||
		fail "unpacking lmcache's source"
}
LMCACHE_DISABLE_BANNER=1 "$venv/bin/python" -c 'import lmcache.lmcache_native, lmcache.lmcache_fs, \
lmcache.lmcache_redis' >> "$log" 2>&1 || fail "loading lmcache"

if [ "$rivals" = 1 ]; then
	command -v redis-server > /dev/null || {
		say "Redis (Debian's redis-server, started by the bench alone)"
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
			apt-get install -y -qq --no-install-recommends redis-server; } >> "$log" 2>&1 ||
			fail "installing redis-server"
	}
	mooncake=$root/build/venv-mooncake
	new_venv "$mooncake"
	have "$mooncake" mooncake-transfer-engine-non-cuda "$MOONCAKE" || {
		say "Mooncake Store (mooncake-transfer-engine-non-cuda $MOONCAKE)"
		pip "$mooncake" install "mooncake-transfer-engine-non-cuda~=$MOONCAKE.0" ||
			pip "$mooncake" install "mooncake-transfer-engine-non-cuda==$MOONCAKE" ||
			fail "installing Mooncake Store"
	}
fi
say "ready: build/venv-lmcache"
