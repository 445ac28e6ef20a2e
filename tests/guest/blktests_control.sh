#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How blktests sets up a target that is not the kernel's (NVME_TARGET_CONTROL): an array of its own
# for each case, one block namespace, on two files. Runs in the guest; see blktests_test.py.
#
#   prepare            makes the drives and learns the namespace's UUID
#   config --show-X    what the cases connect to
#   setup, cleanup     before and after a case; each setup is noted in calls
set -u
state=/var/tmp/kvof-blktests
nqn=nqn.2026-11.io.kvof:blktests
mkdir -p "$state"

serve_start() {
	rm -f "$state/ready"
	setsid /opt/kvof serve --listen tcp://127.0.0.1:4420 --subsystem "$nqn" --kv 0 \
		--block 352MiB --block-bytes 512 --drive "$state/a,size=256MiB" \
		--drive "$state/b,size=256MiB" \
		>"$state/ready" 2>>"$state/log" </dev/null &
	echo $! >"$state/pid"
	for _ in {1..100}; do
		grep -q ^ready "$state/ready" && return 0
		kill -0 "$(cat "$state/pid")" 2>/dev/null || break
		sleep 0.1
	done
	return 1
}

serve_stop() {
	[ -f "$state/pid" ] || return 0
	kill -TERM "$(cat "$state/pid")" 2>/dev/null
	for _ in {1..100}; do
		kill -0 "$(cat "$state/pid")" 2>/dev/null || break
		sleep 0.1
	done
	rm -f "$state/pid"
}

case $1 in
prepare)
	rm -f "$state"/*
	serve_start || { cat "$state/log"; exit 1; }
	nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" || exit 1
	for _ in {1..50}; do
		for ns in /sys/block/nvme*n*; do
			[ "$(cat "$ns/device/subsysnqn" 2>/dev/null)" = "$nqn" ] &&
				cat "$ns/uuid" >"$state/uuid" 2>/dev/null && break 2
		done
		sleep 0.1
	done
	nvme disconnect -n "$nqn"
	serve_stop
	cat "$state/uuid"
	;;
config)
	case $2 in
	--show-blkdev-type) echo device ;;
	--show-trtype) echo tcp ;;
	--show-hostnqn) echo nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 ;;
	--show-hostid) echo 0f01fb42-9f7f-4856-b0b3-51e60b8de349 ;;
	--show-host-traddr | --show-traddr) echo 127.0.0.1 ;;
	--show-trsvid) echo 4420 ;;
	--show-subsysnqn) echo "$nqn" ;;
	--show-subsys-uuid) cat "$state/uuid" ;;
	esac
	;;
setup)
	shift
	echo "setup $*" >>"$state/calls"
	serve_start
	;;
cleanup)
	serve_stop
	;;
*)
	echo "stub: $*" >>"$state/calls"
	;;
esac
