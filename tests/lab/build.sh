#!/usr/bin/env bash
# Build what the emulated GPU host boots: a root file system of the machine's own Debian release (or of
# $HOSTTUNE_LAB_SUITE) with libvirt, QEMU and hosttune's dependencies inside, its kernel, and two small initramfs (the
# host's, and one for a guest within it).
# The one disk boots in two ways: QEMU loads the kernel itself (fast), or BIOS → GRUB → the distribution's initramfs.
#
#   tests/lab/build.sh          builds when needed, prints the directory as its last line
#
# Everything lies in $HOSTTUNE_LAB (default: .lab beside the Makefile) under a hash of what went into it, so that a
# second run finds it and a changed recipe builds anew. Needs root, mmdebstrap, e2fsprogs and a Python with pip
# ($PYTHON). Packages come from the machine's own apt sources.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
cache=${HOSTTUNE_LAB:-$tree/.lab}
python=${PYTHON:-python3}
requirements=$tree/requirements/host.txt # what a host needs, as its wheelhouse has it

# Inside the image: what discovery reads with, what the tests check it against, and a stack that starts guests.
PACKAGES=(
  systemd-sysv dbus udev kmod iproute2 openssh-server procps cpio zstd busybox-static
  python3 python3-libvirt pci.ids
  pciutils numactl ethtool nvme-cli e2fsprogs util-linux
  libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils ovmf
  apparmor # as on every Debian server; two tests have it confine guests
  linux-image-amd64 initramfs-tools grub-pc fdisk
  irqbalance psmisc strace
  iputils-ping # whether the path between two hosts carries packets of full size
  perftest # RDMA between two hosts, over the kernel's software device (rdma_rxe)
  python3-apt # Ansible asks it what is installed
)
# The root file system is the disk's first partition; GRUB lies in the gap before it, as grub-install leaves it.
GAP_MIB=1
GRUB_MODULES=(biosdisk part_msdos ext2)
# Nothing about virtual functions or an IOMMU: to stage such arguments is the tests' matter. Some nodes have few whole
# aligned gigabytes; nokaslr keeps the kernel out of them. An emulated CPU that gets no time while the kernel looks for its
# timer has none, says the kernel, and panics: it need not look.
GRUB_ARGUMENTS="console=ttyS0 mitigations=off random.trust_cpu=on nokaslr no_timer_check cryptomgr.notests tsc=reliable watchdog_thresh=60"

say() { echo "lab: $*" >&2; }
fail() { say "$*"; exit 1; }

# shellcheck source=/dev/null
. /etc/os-release
case "${ID:-}" in debian) ;; *) fail "the emulated host is built from Debian's packages; this machine runs ${ID:-?}" ;; esac
[ "$(uname -m)" = x86_64 ] || fail "the emulated host is an x86-64 machine; this one is $(uname -m)"
own=${VERSION_CODENAME:?}
suite=${HOSTTUNE_LAB_SUITE:-$own}
key=$({ cat "$here/build.sh" "$requirements"; echo "$suite"; } | sha256sum | cut -c1-16)
image=$cache/image-$suite-$key
if [ -d "$image" ]; then echo "$image"; exit 0; fi

[ "$(id -u)" = 0 ] || fail "building the emulated host needs root (mmdebstrap)"
for tool in mmdebstrap mke2fs ssh-keygen; do command -v $tool >/dev/null || fail "$tool is not installed"; done
"$python" -m pip --version >/dev/null || fail "$python has no pip; name another with PYTHON="
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w 1500 9 || fail "another build holds $cache/lock"
if [ -d "$image" ]; then echo "$image"; exit 0; fi

for stale in "$cache"/building-*; do # of a build that was killed
  ! mountpoint -q "$stale/root/proc" || umount "$stale/root/proc"
  rm -rf --one-file-system "$stale"
done
work=$(mktemp -d "$cache/building-XXXXXX")
root=$work/root
uuid=$(cat /proc/sys/kernel/random/uuid)
clean_up() {
  ! mountpoint -q "$root/proc" || umount "$root/proc"
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

step() {
  local started=$SECONDS name=$1
  say "$name…"
  "$name" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "$name failed"; }
  say "$name took $((SECONDS - started)) s"
}

# --- steps ----------------------------------------------------------------------------------------------------

# "URI suite components" of each configured Debian source, as apt itself understands its files, for the wanted suite.
sources() {
  apt-get indextargets --no-release-info --format '$(REPO_URI) $(SUITE) $(CODENAME) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | awk -v own="$own" -v suite="$suite" '$4 ~ "^" own { sub(own, suite, $4); print $1, $4, $5 }' |
    sort -u
}

# One run of apt, with the machine's own sources, for the base and all packages.
bootstrap() {
  sources >"$work/sources"
  # Without package lists (as in a container image) apt names no targets.
  [ -s "$work/sources" ] || { apt-get update; sources >"$work/sources"; }
  grep -q " $suite main$" "$work/sources" || { echo "no apt source has $suite main"; return 1; }
  sed -i 's/^/deb /' "$work/sources"
  # How this machine reaches its mirrors: proxies, certificates, date checks.
  apt-config dump | grep '^Acquire' | grep -v IndexTargets >"$work/acquire"
  cat >"$work/before-packages" <<'X'
set -e
# The distribution's initramfs holds what finds the disk, and is packed to unpack fast.
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESSLEVEL=1\n' >"$1/etc/initramfs-tools/conf.d/small"
printf '%s\n' virtio_pci virtio_blk ext4 >"$1/etc/initramfs-tools/modules"
# GRUB is written to the disk below: there is no device that its package could install to.
echo 'grub-pc grub-pc/install_devices_empty boolean true' | chroot "$1" debconf-set-selections
X
  mmdebstrap --quiet --mode=root --variant=minbase --include="ca-certificates,$(IFS=,; echo "${PACKAGES[*]}")" \
    --aptopt="$work/acquire" --dpkgopt=force-unsafe-io \
    --dpkgopt=path-exclude=/usr/share/doc/* --dpkgopt=path-exclude=/usr/share/man/* \
    --dpkgopt=path-exclude=/usr/share/locale/* \
    --essential-hook="sh $work/before-packages \"\$1\"" --skip=cleanup/tmp \
    "$suite" "$root" "$work/sources"
  rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
}

# hosttune itself is not in the image: it runs from the working tree. Its command and its dependencies are.
dependencies() {
  local version
  version=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -m pip install --quiet --no-deps --requirement "$requirements" --only-binary=:all: \
    --implementation cp --python-version "$version" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --target "$root/usr/local/lib/python$version/dist-packages"
  rm -rf "$root/usr/local/lib/python$version/dist-packages"/{pip,pip-*} # hosts have none, and bootstrap brings its own
  # As pip installs it, a Python script that is called by its path: that path is what the boot unit names. Garbage is
  # collected less often: emulated, that is a tenth of each start.
  install -D -m 755 /dev/stdin "$root/usr/local/bin/hosttune" <<'X'
#!/usr/bin/python3
import gc, sys
gc.set_threshold(100_000)
sys.dont_write_bytecode = True
sys.path.insert(0, "/mnt/tree")
from hosttune.cli import main
main()
X
  # Its files may be mounted late.
  install -D -m 644 /dev/stdin "$root/usr/lib/systemd/system/hosttune-boot.service.d/lab.conf" \
    <<<$'[Unit]\nRequiresMountsFor=/mnt/tree/hosttune'
  chroot "$root" python3 -m compileall -q "/usr/local/lib/python$version/dist-packages"
}

settings() {
  echo lab-host >"$root/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 lab-host\n' >"$root/etc/hosts"
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$work/key"
  install -D -m 600 "$work/key.pub" "$root/root/.ssh/authorized_keys"
  # Without PAM there is no session of logind's, which would start root's own systemd at every boot.
  printf 'PermitRootLogin yes\nUseDNS no\nUsePAM no\nLoginGraceTime 0\n' >"$root/etc/ssh/sshd_config.d/lab.conf"
  cat >"$root/etc/fstab" <<'X'
/dev/vda1 / ext4 defaults,noatime 0 0
tree /mnt/tree 9p trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro,nofail,x-systemd.mount-timeout=5min 0 0
/dev/vdb /mnt/tree/hosttune ext4 ro,nofail,x-systemd.mount-timeout=5min 0 0
X
  mkdir -p "$root/mnt/tree"
  # The management NIC is configured as it appears, by a rule that comes after the one that names it: emulated, a service
  # that manages networks takes ten seconds to start.
  cat >"$root/etc/udev/rules.d/85-management.rules" <<'X'
SUBSYSTEM=="net", ACTION=="add", DRIVERS=="virtio_net", \
  RUN+="/bin/ip link set $name up", RUN+="/bin/ip address add 10.0.2.15/24 dev $name", \
  RUN+="/bin/ip route add default via 10.0.2.2 dev $name"
X
  # The journal of one boot is enough, and kept in memory it costs no disk.
  install -D -m 644 /dev/stdin "$root/etc/systemd/journald.conf.d/lab.conf" <<<$'[Journal]\nStorage=volatile'
  # Stand-ins for GPUs must start unbound, as a GPU without its maker's driver does. The other drivers are of what no test
  # looks at: emulated, the boot waits for them.
  printf 'blacklist %s\n' bochs virtio_gpu ahci lpc_ich iTCO_wdt i2c_i801 pcspkr psmouse serio_raw evdev button nfit \
    kvm_intel kvm_amd rapl intel_rapl_msr intel_powerclamp skx_edac aesni_intel ghash_clmulni_intel crc32_pclmul \
    sha1_ssse3 sha256_ssse3 sha512_ssse3 >"$root/etc/modprobe.d/lab.conf"
  # libvirtd stays up instead of leaving after two idle minutes: every test finds the same host. It confines no guest: to
  # have a guest's profile compiled four times takes, emulated, twice as long as all else in its start. qemu.conf is the
  # distribution's but for that, and so are AppArmor's profiles and the mounts; `LabMachine.confining` is as on a server.
  install -d "$root/usr/local/share/hosttune-lab"
  cp -a "$root/etc/default/libvirtd" "$root/etc/libvirt/qemu.conf" "$root/usr/local/share/hosttune-lab/"
  printf 'LIBVIRTD_ARGS=""\n' >"$root/etc/default/libvirtd"
  echo 'security_driver = "none"' >>"$root/etc/libvirt/qemu.conf"
  # systemd runs them at each boot and at each reload. What they look for is not here.
  install -d "$root/etc/systemd/system-generators"
  local generator
  for generator in cryptsetup debug getty gpt-auto hibernate-resume integritysetup rc-local run system-update sysv veritysetup; do
    ln -s /dev/null "$root/etc/systemd/system-generators/systemd-$generator-generator"
  done
  chroot "$root" systemctl disable apparmor.service libvirt-guests.service nvmefc-boot-connections.service uuidd.socket \
    apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    irqbalance.service # installed, started by the test that wants interrupts to move by themselves
  # Nothing here needs them, and emulated they delay the boot.
  chroot "$root" systemctl mask systemd-hwdb-update.service systemd-journal-flush.service ldconfig.service \
    nvmf-autoconnect.service systemd-binfmt.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-sysusers.service systemd-random-seed.service systemd-pstore.service \
    modprobe@loop.service modprobe@dm_mod.service modprobe@efi_pstore.service modprobe@drm.service modprobe@fuse.service \
    getty@tty1.service serial-getty@ttyS0.service dpkg-db-backup.timer logrotate.timer
}

# Under emulation a distribution's initramfs takes longer to unpack than everything else in it.
host_initramfs() {
  local kernel tree=$work/initramfs file name
  kernel=$(basename "$root"/lib/modules/*)
  unpack_kernel "$root/boot/vmlinuz-$kernel" >"$work/vmlinux"
  mkdir -p "$tree"/{bin,proc,sys,dev,newroot,mods}
  cp "$root/bin/busybox" "$tree/bin/busybox"
  for name in sh mount insmod switch_root sleep cat; do ln -s busybox "$tree/bin/$name"; done
  for name in virtio_pci virtio_blk ext4; do chroot "$root" modprobe -S "$kernel" --show-depends $name; done |
    awk '/^insmod/ && !seen[$2]++ { print $2 }' | while read -r file; do
    name=$(basename "$file")
    case $name in
    *.xz) name=${name%.xz} && xz -dc "$root$file" >"$tree/mods/$name" ;;
    *) cp "$root$file" "$tree/mods/$name" ;;
    esac
    echo "$name" >>"$tree/mods/order"
  done
  cat >"$tree/init" <<'X'
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read m; do insmod /mods/$m; done </mods/order
n=0; while [ ! -b /dev/vda1 ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done
mount -t ext4 -o rw,noatime /dev/vda1 /newroot || exec sh
for d in dev proc sys; do mount -o move /$d /newroot/$d; done
exec switch_root /newroot /sbin/init
X
  pack "$tree" "$work/initramfs.cpio"
}

# A guest within the emulated host: says what it sees on its serial line, then waits.
guest_initramfs() {
  local tree=$work/guest-initramfs
  mkdir -p "$tree"/{bin,proc,sys,dev}
  cp "$root/bin/busybox" "$tree/bin/busybox"
  ln -s busybox "$tree/bin/sh"
  cat >"$tree/init" <<'X'
#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for d in /sys/bus/pci/devices/*; do echo "GUEST-PCI $(basename $d) $(cat $d/vendor) $(cat $d/device) $(cat $d/class)"; done
echo "GUEST-CPUS $(cat /sys/devices/system/cpu/online) SIBLINGS $(cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list)"
echo GUEST-DONE
while :; do sleep 3600; done
X
  mkdir -p "$root/var/lib/hosttune-lab"
  pack "$tree" "$root/var/lib/hosttune-lab/initramfs.cpio"
  cp "$work/vmlinux" "$root/var/lib/hosttune-lab/vmlinux"
}

# unpack_kernel FILE: to unpack itself takes a kernel ten seconds of emulation, and more than half of a guest's start,
# emulated twice; QEMU starts an unpacked one, too (PVH). One that is not packed by xz stays as it is.
unpack_kernel() {
  "$python" - "$1" <<'X'
import lzma, sys
with open(sys.argv[1], "rb") as file:
    packed = file.read()
at = packed.find(b"\xfd7zXZ\0")
sys.stdout.buffer.write(packed if at < 0 else lzma.LZMADecompressor().decompress(packed[at:]))
X
}

# pack TREE FILE: uncompressed, since emulated CPUs are slow. cpio is the image's own.
pack() {
  chmod +x "$1/init"
  mkdir "$root/pack" && cp -a "$1/." "$root/pack/"
  chroot "$root" sh -c 'cd /pack && find . | cpio -o -H newc --quiet' >"$2"
  rm -rf "$root/pack"
}

# What grub-install would leave, without a device to install to (loop devices are not everywhere).
boot_loader() {
  local kernel modules=$root/boot/grub/i386-pc
  kernel=$(basename "$root"/lib/modules/*)
  mkdir -p "$root/etc/default/grub.d" "$modules"
  cat >"$root/etc/default/grub.d/lab.cfg" <<X
GRUB_TIMEOUT=0
GRUB_TERMINAL=serial
GRUB_DISABLE_OS_PROBER=true
GRUB_CMDLINE_LINUX="$GRUB_ARGUMENTS"
X
  cp "$root"/usr/lib/grub/i386-pc/*.{mod,lst,img} "$modules/"
  chroot "$root" grub-mkimage -O i386-pc -o /boot/grub/i386-pc/core.img -p '(,msdos1)/boot/grub' "${GRUB_MODULES[@]}"
  chroot "$root" grub-editenv /boot/grub/grubenv create
  cat >"$root/boot/grub/grub.cfg" <<X
linux /boot/vmlinuz-$kernel root=UUID=$uuid ro $GRUB_ARGUMENTS quiet
initrd /boot/initrd.img-$kernel
boot
X
}

disk() {
  local size gap=$((GAP_MIB << 20)) raw=$work/root.raw grub=$root/boot/grub/i386-pc
  size=$(($(du -smx "$root" | cut -f1) + 1536))
  truncate -s "$((size + GAP_MIB))M" "$raw" "$root/table"
  chroot "$root" sfdisk -q /table <<<"start=${GAP_MIB}MiB, type=83, bootable"
  dd if="$root/table" of="$raw" bs=512 count=1 conv=notrunc
  rm "$root/table"
  # boot.img up to the partition table's place; it expects core.img in the sectors that follow, which it is made for.
  dd if="$grub/boot.img" of="$raw" bs=1 count=440 conv=notrunc
  [ "$(stat -c %s "$grub/core.img")" -lt $((gap - 512)) ] || { echo "core.img does not fit"; return 1; }
  dd if="$grub/core.img" of="$raw" bs=512 seek=1 conv=notrunc
  mke2fs -q -t ext4 -O ^metadata_csum,^metadata_csum_seed,^orphan_file -L labroot -U "$uuid" -E offset="$gap" -d "$root" "$raw" "${size}M"
}

# --- build ----------------------------------------------------------------------------------------------------

for name in bootstrap dependencies settings host_initramfs guest_initramfs boot_loader disk; do step $name; done
mkdir "$work/image"
mv "$work"/{root.raw,vmlinux,initramfs.cpio,key} "$work/image/"
rm -rf "$cache"/image-$suite-* # older recipes: gigabytes that nothing asks for any more
mv "$work/image" "$image"
echo "$image"
