"""A disk that stands for an operator's image: GRUB, Debian's kernel and a busybox that answers like hosttune inside.

It is built on the emulated host, which has all that it needs. It does not have hosttune: emulated twice, a Python takes
too long. What it says of the device is what its kernel shows; that it measured something, it only claims.
"""

from __future__ import annotations

from lab.machine import LabMachine

IMAGE = "/var/lib/libvirt/images/operator.qcow2"
MODULES = "virtio_pci virtio_console ahci sr_mod isofs"
# Reads the order from the seed as a text: the order is the only JSON with a space after its colons there.
INIT = r"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /seed; /bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read m; do insmod /mods/$m; done </mods/order
while [ ! -b /dev/sr0 ]; do sleep 1; done
mount -t iso9660 -o ro /dev/sr0 /seed
sed -n '/order.json/,/refusal.json/p' /seed/user-data >/order
field() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" /order | head -n 1; }
nonce=$(field nonce) at=$(field address) d=/sys/bus/pci/devices/$(field address)
ids=$(sed s/0x// $d/vendor):$(sed s/0x// $d/device)
row() { printf '{"check":"%s","subject":"%s","outcome":"pass","actual":"%s","source":"sysfs"}' $1 $at $ids; }
answer() {
  printf '{"schema":"hosttune.test-answer/v1","nonce":"%s","version":"stand-in",' $nonce
  printf '"firmware":{"%s":{"vbios":"1"}},' $at
  printf '"validation":{"schema":"hosttune.validation/v1","level":1,"verdict":"pass",'
  printf '"machine":{"gpus":[{"address":"%s","id":"%s"}]},"results":[' $at $ids
  row device-present; printf ,; row bench-device-copy; printf ']}}\n'
}
echo GUEST-ANSWERS; answer
for port in /sys/class/virtio-ports/*; do
  [ "$(cat $port/name)" != org.hosttune.handover.0 ] || answer >/dev/${port##*/}
done
while :; do sleep 60; done
"""
BUILD = f"""set -e
d=/run/operator; rm -rf $d; mkdir -p $d/tree/bin $d/tree/mods $d/files; cd $d/tree; cat >init; chmod 755 init
cp /bin/busybox bin/busybox
for m in {MODULES}; do modprobe --show-depends $m; done | awk '/^insmod/ && !seen[$2]++ {{ print $2 }}' |
  while read -r file; do
    name=$(basename $file .xz)
    case $file in *.xz) xz -dc $file >mods/$name;; *) cp $file mods/$name;; esac
    echo $name >>mods/order
  done
find . | cpio -o -H newc --quiet >$d/files/init.cpio
cp /boot/vmlinuz-$(uname -r) $d/files/vmlinuz
cat >$d/grub.cfg <<X
set root=(hd0,msdos1)
linux /vmlinuz console=ttyS0 quiet mitigations=off nokaslr no_timer_check tsc=reliable panic=-1
initrd /init.cpio
boot
X
g=/usr/lib/grub/i386-pc
grub-mkimage -O i386-pc -c $d/grub.cfg -p / -o $d/core.img biosdisk part_msdos ext2 linux boot
truncate -s 49M $d/disk
echo 'start=1MiB, type=83, bootable' | sfdisk -q $d/disk
dd if=$g/boot.img of=$d/disk bs=1 count=440 conv=notrunc status=none
dd if=$d/core.img of=$d/disk bs=512 seek=1 conv=notrunc status=none
mke2fs -q -t ext2 -E offset=1048576 -d $d/files $d/disk 48M
qemu-img convert -f raw -O qcow2 $d/disk {IMAGE}; chmod 644 {IMAGE}; rm -rf $d
"""


def build(host: LabMachine, init: str = INIT) -> None:
    """Put the image on the host. `init`: what runs in it, with the modules of /mods."""
    host.shell(BUILD, stdin=init, timeout=300)
