#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the model harness in the environment that tools/llama-env.sh makes; prints TAP.
# Needs a built tree for the tests over a real array; without one they are skips that say so.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=build/venv/bin/python
if ! [ -x "$python" ]; then
	echo "1..0 # SKIP build/venv is missing: run tools/llama-env.sh"
	exit 77
fi
exec "$python" tests/llama/run.py "$@"
