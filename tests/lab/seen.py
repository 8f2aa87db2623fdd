"""Guests that a private libvirtd starts on this machine, in which a kernel says by lspci and lstopo what it sees.

What is not the plan's: this machine has neither the devices nor the CPUs of the host that was planned for. In place of
each passed device stands a virtio NIC at its address in the guest; pins, and on which node of the host memory is, are
taken out; the firmware's window is not asked for, since these NICs have no large BARs. All else is as it was written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from guest_tree_oracle import _by_chains
from libvirtd import Libvirtd
from lxml import etree

UNPACK = Path(__file__).with_name("unpack.sh")
PACKAGES = (
    "busybox-static", "pciutils", "hwloc-nox", "linux-image-amd64", "shim-signed", "grub-efi-amd64-signed",
    "dosfstools", "mtools",
)  # fmt: skip
BOOT_SECONDS = 900
CMDLINE = "console=ttyS0 quiet mitigations=off tsc=reliable nokaslr no_timer_check panic=-1"
INIT = """#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t securityfs security /sys/kernel/security
echo GUEST-BEGIN
dmesg | grep -o 'secureboot: .*'
echo "lockdown: $(cat /sys/kernel/security/lockdown)"
for t in /sys/class/tpm/tpm*; do [ ! -e $t ] || echo "${t##*/}: $(cat $t/tpm_version_major)"; done
echo GUEST-LSPCI
lspci -D -PP -n -v
echo GUEST-LSTOPO
lstopo-no-graphics --of xml --whole-io -
echo GUEST-DONE
poweroff -f
"""
UPSTREAM = "104c:8232"  # QEMU's x3130-upstream


def unpacked(suite: str, *packages: str) -> Path:
    """The directory with a release's packages, made if it is not there yet."""
    done = subprocess.run((str(UNPACK), suite, *packages), stdout=subprocess.PIPE, check=True, text=True, timeout=1500)
    return Path(done.stdout.split()[-1])


class Files(NamedTuple):
    """What guests boot: a kernel with an initramfs, and a disk with both behind the distribution's signed loaders."""

    kernel: Path
    initrd: Path
    signed: Path


def boot_files(suite: str, folder: Path) -> Files:
    """The files, made in `folder`."""
    root = unpacked(suite, *PACKAGES)
    tree = folder / "tree"
    for name in ("bin", "proc", "sys", "dev"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    for name in ("lspci", "lstopo-no-graphics"):
        shutil.copy(root / "usr/bin" / name, tree / "bin" / name)
        listed = _inside(root, "/lib64/ld-linux-x86-64.so.2", "--list", f"/usr/bin/{name}")
        for library in re.findall(r"(/\S+) \(", listed):
            (tree / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / library[1:], tree / library[1:])
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "\0".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
    packed = subprocess.run(("cpio", "-o", "-H", "newc", "--quiet", "-0"), cwd=tree, input=names.encode(),
                            capture_output=True, check=True)  # fmt: skip
    files = Files(folder / "vmlinuz", folder / "initramfs.cpio", folder / "signed.qcow2")
    files.initrd.write_bytes(packed.stdout)
    shutil.copy(next(root.glob("boot/vmlinuz-*")), files.kernel)
    _signed(root, files)
    for path in (folder, *files):
        path.chmod(0o777)  # QEMU runs as another user
    return files


def _inside(root: Path, *argv: str) -> str:
    return subprocess.run(("chroot", root, *argv), capture_output=True, check=True, text=True).stdout


def _signed(root: Path, files: Files) -> None:
    """The distribution's shim starts its GRUB, which reads this place of the disk that it was started from."""
    (root / "tmp/grub.cfg").write_text(f"linux /vmlinuz {CMDLINE}\ninitrd /init.cpio\nboot\n")
    shutil.copy(files.initrd, root / "tmp/init.cpio")
    disk = "/tmp/guest.raw"
    with (root / disk[1:]).open("wb") as file:
        file.truncate(64 << 20)
    _inside(root, "/sbin/mkfs.vfat", "-F", "32", disk)
    _inside(root, "/usr/bin/mmd", "-i", disk, "::EFI", "::EFI/BOOT", "::EFI/debian")
    copies = {
        "/usr/lib/shim/shimx64.efi.signed": "EFI/BOOT/BOOTX64.EFI",
        "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": "EFI/BOOT/grubx64.efi",
        "/tmp/grub.cfg": "EFI/debian/grub.cfg",
        f"/boot/{next(root.glob('boot/vmlinuz-*')).name}": "vmlinuz",
        "/tmp/init.cpio": "init.cpio",
    }
    for source, target in copies.items():
        _inside(root, "/usr/bin/mcopy", "-o", "-i", disk, source, f"::{target}")
    subprocess.run(("qemu-img", "convert", "-O", "qcow2", root / disk[1:], files.signed), check=True)


def standing_in(xml: str, log: Path) -> str:
    """The XML with what this machine lacks replaced, and with its serial line in a file."""
    root: Any = etree.fromstring(xml)
    for gone in [*root.iterfind("cputune"), *root.iterfind("{http://libvirt.org/schemas/domain/qemu/1.0}*")]:
        root.remove(gone)
    for memory in root.iterfind("numatune/*"):
        memory.set("nodeset", "0")
    devices = root.find("devices")
    for gone in (*devices.findall("serial"), *devices.findall("console")):
        devices.remove(gone)
    etree.SubElement(etree.SubElement(devices, "serial", type="file"), "source", path=str(log))
    for passed in [*devices.iterfind("hostdev"), *devices.iterfind("interface[@type='hostdev']")]:
        nic = etree.SubElement(devices, "interface", type="user")
        etree.SubElement(nic, "model", type="virtio-non-transitional")
        etree.SubElement(nic, "rom", enabled="no")
        nic.append(passed.find("address"))
        devices.remove(passed)
    return etree.tostring(root, encoding="unicode")


def said_by(libvirtd: Libvirtd, xml: str) -> str:
    """Start a guest, and return what it says on its serial line until it switches itself off."""
    name = str(etree.fromstring(xml).findtext("name"))
    log = libvirtd.directory / f"{name}.log"
    log.unlink(missing_ok=True)
    libvirtd.virsh("create", libvirtd.file(f"{name}.xml", standing_in(xml, log)))
    deadline = time.monotonic() + BOOT_SECONDS
    try:
        while "GUEST-DONE" not in (said := log.read_text(errors="replace") if os.access(log, os.R_OK) else ""):
            assert time.monotonic() < deadline, said[-3000:]
            time.sleep(1)
    finally:
        libvirtd.refusal("destroy", name)
    return said.replace("\r", "")


class Function(NamedTuple):
    """A PCI function as a program in the guest shows it.

    `root`: its host bridge; `switches`: above it, nearest first; `node`: "" for unknown.
    """

    root: str
    switches: tuple[str, ...]
    node: str


def grade(functions: dict[str, Function], a: str, b: str) -> str:
    """PIX, PXB, PHB, NODE or SYS."""
    one, other = functions[a], functions[b]
    if a.rpartition(".")[0] == b.rpartition(".")[0]:
        return "PIX"
    if shared := _by_chains(one.switches, other.switches):
        return shared
    if one.root == other.root:
        return "PHB"
    return "NODE" if one.node == other.node else "SYS"


def by_lspci(said: str) -> dict[str, Function]:
    """Functions by address: each with its path of bridges ("-PP"), the kind of port, and its node."""
    text = said.partition("GUEST-LSPCI\n")[2].partition("GUEST-LSTOPO")[0]
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    paths = {(path := block.split()[0].split("/"))[-1]: path for block in blocks}
    full = {address: [_with_domain(one) for one in path] for address, path in paths.items()}
    upstream = {_with_domain(block.split()[0].split("/")[-1]) for block in blocks if "Express Upstream Port" in block}
    found = {}
    for block, path in zip(blocks, full.values(), strict=True):
        node = re.search(r"NUMA node:? (\d+)", block)
        switches = tuple(bridge for bridge in path[-2::-1] if bridge in upstream)
        found[path[-1]] = Function(path[0].rpartition(":")[0], switches, node[1] if node else "")
    return found


def _with_domain(address: str) -> str:
    return address if address.count(":") == 2 else f"0000:{address}"


def by_lstopo(said: str) -> dict[str, Function]:
    """Functions by address: hwloc nests them below bridges, and these below what they are near to."""
    text = said.partition("GUEST-LSTOPO\n")[2].partition("GUEST-DONE")[0]
    return dict(_of_lstopo(etree.fromstring(text[text.index("<topology") :])))


def _of_lstopo(topology: Any) -> Iterator[tuple[str, Function]]:
    for device in topology.iter("object"):
        if device.get("pci_busid") is None:
            continue
        above = list(device.iterancestors("object"))
        bridges = [one for one in above if one.get("type") == "Bridge"]
        near = next(one for one in above if one.get("nodeset"))
        switches = tuple(one.get("pci_busid") for one in bridges if UPSTREAM in (one.get("pci_type") or ""))
        root = bridges[-1].get("bridge_pci") if bridges else ""
        yield device.get("pci_busid"), Function(root, switches, near.get("nodeset"))
