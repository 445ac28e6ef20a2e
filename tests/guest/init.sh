#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest's process 1: mounts, modules in the order that build.py found, the network of QEMU's
# user mode, then an agent that runs one script at a time for guest.py, over a virtio port:
#   host to guest  "RUN id seconds bytes\n" and the script
#   guest to host  "DONE id status bytes\n" and its output (both streams)
# A script that runs past its seconds is killed and ends with 137.
#
# With "kvof.root" on the command line the first disk is the root image of build.py: it is mounted
# below a folder in memory and this script runs once more, there, with Debian's own tools.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
off() {
	echo o >/proc/sysrq-trigger
	sleep 60
}

modules() {
	while read -r module; do
		insmod "/modules/$module" || echo "init: insmod $module failed"
	done <"/modules/$1"
}

root_enter() {
	modules order-root
	mkdir -p /lower /upper /root.d
	mount -t tmpfs -o size=80% upper /upper
	mkdir /upper/data /upper/work
	mount -t ext4 -o ro /dev/vda /lower || off
	mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work root /root.d ||
		off
	cp /init /root.d/init
	for folder in proc sys dev tmp; do
		mount --move "/$folder" "/root.d/$folder"
	done
	exec switch_root /root.d /init in-root
}

if [ "$1" != in-root ]; then
	mount -t proc proc /proc
	mount -t sysfs sys /sys
	mount -t devtmpfs dev /dev
	mkdir -p /dev/shm /tmp /run
	mount -t tmpfs tmp /tmp
	modules order
	mount -t configfs none /sys/kernel/config
	ifconfig lo 127.0.0.1 up
	ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up || echo "init: no network card"
	route add default gw 10.0.2.2
	if grep -q kvof.root /proc/cmdline; then
		root_enter
	fi
else
	mkdir -p /dev/shm /run
	mount -t tmpfs run /run
	mount -t debugfs none /sys/kernel/debug
	ln -s /proc/self/fd /dev/fd 2>/dev/null
	if grep -q kvof.payload /proc/cmdline; then
		tar xf /dev/vdb -C /opt
	fi
	hostname guest
fi

port=
for name in /sys/class/virtio-ports/*/name; do
	if [ "$(cat "$name")" = kvof.agent ]; then
		port=/dev/$(basename "$(dirname "$name")")
	fi
done
if [ -z "$port" ]; then
	echo "init: no virtio port named kvof.agent"
	off
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
off
