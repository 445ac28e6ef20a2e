#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest's process 1: mounts, modules in the order that build.py found, the network of QEMU's
# user mode, then an agent that runs one script at a time for guest.py, over a virtio port:
#   host to guest  "RUN id seconds bytes\n" and the script
#   guest to host  "DONE id status bytes\n" and its output (both streams)
# A script that runs past its seconds is killed and ends with 137.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp /run
mount -t tmpfs tmp /tmp
while read -r module; do
	insmod "/modules/$module" || echo "init: insmod $module failed"
done </modules/order
mount -t configfs none /sys/kernel/config
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up || echo "init: no network card"
route add default gw 10.0.2.2

port=
for name in /sys/class/virtio-ports/*/name; do
	if [ "$(cat "$name")" = kvof.agent ]; then
		port=/dev/$(basename "$(dirname "$name")")
	fi
done
if [ -z "$port" ]; then
	echo "init: no virtio port named kvof.agent"
	poweroff -f
fi
exec 3<>"$port"
echo "READY $(uname -r)" >&3
while read -r verb id seconds bytes <&3; do
	[ "$verb" = RUN ] || continue
	head -c "$bytes" <&3 >/tmp/step.sh
	echo "agent: step $id"
	timeout -s KILL "$seconds" sh /tmp/step.sh </dev/null >/tmp/step.out 2>&1 3>&-
	status=$?
	echo "DONE $id $status $(stat -c %s /tmp/step.out)" >&3
	cat /tmp/step.out >&3
done
echo "agent: the host has gone"
poweroff -f
