#!/bin/bash
# The first process of a machine: an overlay over this one's root file system, then systemd in its place.
# By `Machine.start` alone, in new namespaces. $1: a folder of the machine, which ends with it; $2: packages of Python;
# $3: its name.
set -euo pipefail
folder=$1 packages=$2 name=$3

mount --make-rprivate /
mount -t tmpfs tmpfs "$folder"
mkdir "$folder"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
cd "$folder/root"
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=0755 tmpfs dev
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys # of the kernel, which is not this machine's alone
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup

for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
    mknod -m 666 "dev/${device% *}" c 1 "${device#* }"
done
mknod -m 666 dev/tty c 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

# of this machine's services none; not its kernel's modules, no login
rm -rf etc/systemd/system/*.wants etc/rc?.d
for unit in console-getty getty@tty1 systemd-modules-load systemd-binfmt systemd-logind; do
    ln -sf /dev/null "etc/systemd/system/$unit.service"
done
: > etc/fstab
systemd-id128 new > etc/machine-id
mkdir usr/local/lib/packages old
mkdir "$folder"/{packages,packages-work}
mount -t overlay -o "lowerdir=$packages,upperdir=$folder/packages,workdir=$folder/packages-work" \
    overlay usr/local/lib/packages
rm -rf usr/local/lib/packages/*chorale* # which the page installs

ip link set lo up
hostname "$name"
pivot_root . old
umount --lazy old
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
