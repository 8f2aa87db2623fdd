"""The hardware of an emulated GPU host: QEMU's command line.

Two NUMA nodes with two SMT cores each, a virtual IOMMU, and PCIe as on a GPU server, on expander buses so that
every function has the node its bus stands for:

    bus 00  node unknown  the machine's own devices (disk, management NIC, the working tree's share)
    bus 40  node 0        41:00.0, 42:00.0 stand-in GPUs behind root ports; 43/44 a switch with the stand-in 45:00.0
                          and the NIC 46:00.0 below; 47:00.0 an NVMe drive with SR-IOV
    bus c0  node 1        c1:00.0, c2:00.0 stand-in GPUs; c3:00.0 a NIC; c4:00.0 an NVMe drive

Stand-ins are display functions that no driver holds: to the kernel they are what a GPU bound to nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
NODE_MIB = 4096
CORES = 2  # of each node, where a test asks for no others
# Without what costs much to emulate and what no test looks at: a fifth level of page tables, protection of user pages
# from the kernel, and erms, with which the kernel clears and copies byte by byte. With xsave off, aesni_intel of Linux
# 6.1 fails its self-test and holds each boot up for 170 s.
CPU = (
    "max,vendor=GenuineIntel,family=6,model=143,stepping=8,model-id=Emulated,pdpe1gb=on,"
    "la57=off,smap=off,smep=off,pku=off,erms=off"
)
DRIVES = ("nvme0", "nvme1")
HOSTTUNE = "hosttune.raw"  # the package, as a disk
MONITOR = "qmp"  # QEMU's socket in the machine's folder


def qemu_command(
    port: int, boot: list[str], cores: int = CORES, node_mib: int = NODE_MIB, more: Sequence[str] = ()
) -> list[str]:
    """The whole command line, to be run in the machine's folder. Without boot options the disk is booted.

    `more`: of further devices.
    """
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        # One thread for all CPUs: several machines share two cores here, and a CPU that waits for another one, in a
        # thread of its own, spins until the host lets that one run (a boot beside others: 74 s of CPU instead of 98).
        "-machine", "q35", "-accel", "tcg,thread=single,tb-size=512", "-cpu", CPU,
        *_nodes(cores, node_mib), *_own_devices(port), *_node0_devices(), *_node1_devices(), *more, *boot,
        "-chardev", "file,id=console,path=serial.log,append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{MONITOR},server=on,wait=off",
    ]  # fmt: skip


def small_command(port: int, boot: list[str], side: int, links: Sequence[str]) -> list[str]:
    """The command line of a machine with one CPU, 1 GiB, and a NIC for each of `links`: QEMU's options of -netdev.

    These NICs are e1000e at 00:10.0, 00:11.0 and so on; a virtio NIC would get the management's address. `side` makes
    their MAC addresses this machine's own: rdma_rxe keeps to itself what goes to its own one.
    """
    nics: list[str] = []
    for number, link in enumerate(links):
        nic = f"e1000e,netdev=link{number},addr={16 + number:#x},mac=52:54:00:00:{side:02x}:{number:02x}"
        nics += ["-netdev", f"{link},id=link{number}", "-device", nic]
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", "q35", "-accel", "tcg,thread=single,tb-size=256", "-cpu", CPU, "-smp", "1", "-m", "1024",
        *_own_devices(port), *nics, *boot,
        "-chardev", "file,id=console,path=serial.log,append=on", "-serial", "chardev:console",
    ]  # fmt: skip


def kernel_loaded(kernel_arguments: str) -> list[str]:
    """Boot options: QEMU loads kernel and initramfs, with these arguments."""
    arguments = (
        "root=/dev/vda1 rw console=ttyS0 quiet mitigations=off random.trust_cpu=on no_timer_check cryptomgr.notests",
        # Without its true frequency the emulated clock can run several times too fast.
        f"tsc=reliable tsc_early_khz={_tsc_khz()}",
        kernel_arguments,
    )
    return ["-kernel", "vmlinux", "-initrd", "initramfs.cpio", "-append", " ".join(arguments)]


def _tsc_khz() -> int:
    found = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert found, "this machine's CPU frequency is not in /proc/cpuinfo"
    return int(float(found[1]) * 1000)


def _nodes(cores: int, node_mib: int) -> list[str]:
    """Two packages of so many cores with two threads each, a node each, with so much memory."""
    cpus = 2 * cores
    return [
        "-smp", f"{2 * cpus},sockets=2,cores={cores},threads=2", "-m", str(2 * node_mib),
        "-object", f"memory-backend-ram,id=memory0,size={node_mib}M",
        "-object", f"memory-backend-ram,id=memory1,size={node_mib}M",
        "-numa", f"node,nodeid=0,cpus=0-{cpus - 1},memdev=memory0",
        "-numa", f"node,nodeid=1,cpus={cpus}-{2 * cpus - 1},memdev=memory1",
        "-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21",
        "-device", "intel-iommu,intremap=on,device-iotlb=on",
    ]  # fmt: skip


def _own_devices(port: int) -> list[str]:
    """On bus 00, whose node the firmware does not tell. The network leads nowhere but to our ssh port."""
    # cache=unsafe: a flush of the machine reaches this machine's page cache, which outlives QEMU, and no platter.
    return [
        "-drive", "if=none,id=root,file=root.qcow2,format=qcow2,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=root,addr=3,bootindex=1",
        "-drive", f"if=none,id=hosttune,file={HOSTTUNE},format=raw,readonly=on",
        "-device", "virtio-blk-pci,drive=hosttune,addr=6,num-queues=1",
        "-netdev", f"user,id=management,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=management,addr=4",
        "-fsdev", f"local,id=tree,path={TREE},security_model=none,readonly=on",
        "-device", "virtio-9p-pci,fsdev=tree,mount_tag=tree,addr=5",
        "-device", "virtio-rng-pci,addr=7",
    ]  # fmt: skip


def _root_port(name: str, bus: str, slot: int, chassis: int) -> list[str]:
    where = f"bus={bus},chassis={chassis},slot={chassis},addr={slot}.0"
    return ["-device", f"pcie-root-port,id={name},{where},x-speed=16,x-width=16"]


def _node0_devices() -> list[str]:
    return [
        "-device", "pxb-pcie,id=bus40,bus=pcie.0,bus_nr=0x40,numa_node=0,addr=8",
        *_root_port("port41", "bus40", 0, 41), "-device", "bochs-display,bus=port41",
        *_root_port("port42", "bus40", 1, 42), "-device", "bochs-display,bus=port42",
        *_root_port("port43", "bus40", 2, 43), "-device", "x3130-upstream,id=switch,bus=port43",
        "-device", "xio3130-downstream,id=down0,bus=switch,chassis=44,slot=44,addr=0.0",
        "-device", "xio3130-downstream,id=down1,bus=switch,chassis=45,slot=45,addr=1.0",
        "-device", "bochs-display,bus=down0",
        "-netdev", "user,id=nic0,restrict=on", "-device", "e1000e,netdev=nic0,bus=down1,mac=52:54:00:00:46:01",
        *_root_port("port47", "bus40", 3, 47), "-device", "nvme-subsys,id=subsystem0",
        "-drive", "if=none,id=nvme0,file=nvme0.raw,format=raw,cache=unsafe",
        "-device", "nvme,id=drive0,serial=LAB0,subsys=subsystem0,bus=port47,sriov_max_vfs=4,max_ioqpairs=26,"
        "msix_qsize=27,sriov_vq_flexible=8,sriov_vi_flexible=8,sriov_max_vi_per_vf=2,sriov_max_vq_per_vf=2",
        "-device", "nvme-ns,drive=nvme0,bus=drive0,nsid=1,shared=off",
    ]  # fmt: skip


def _node1_devices() -> list[str]:
    return [
        "-device", "pxb-pcie,id=busc0,bus=pcie.0,bus_nr=0xc0,numa_node=1,addr=9",
        *_root_port("portc1", "busc0", 0, 91), "-device", "bochs-display,bus=portc1",
        *_root_port("portc2", "busc0", 1, 92), "-device", "secondary-vga,bus=portc2",
        *_root_port("portc3", "busc0", 2, 93),
        "-netdev", "user,id=nic1,restrict=on", "-device", "e1000e,netdev=nic1,bus=portc3,mac=52:54:00:00:c3:01",
        *_root_port("portc4", "busc0", 3, 94),
        "-drive", "if=none,id=nvme1,file=nvme1.raw,format=raw,cache=unsafe",
        "-device", "nvme,serial=LAB1,drive=nvme1,bus=portc4",
    ]  # fmt: skip


def further_port(place: int) -> list[str]:
    """A port on node 1 with nothing behind it: `place` 8 leads to c8:00.0."""
    return _root_port(f"portc{place}", "busc0", place - 1, 90 + place)


def further_drive(serial: str, place: int, backing: str, kind: str = "") -> list[str]:
    """An NVMe drive behind a port of its own on node 1: `place` 5 is c5:00.0. `backing`: options of -blockdev.

    Its serial number is its name in QEMU's monitor. `kind`: further properties, beginning with a comma.
    """
    return [
        *further_port(place),
        "-blockdev", f"node-name={serial},{backing}",
        "-device", drive_behind(serial, place) + kind,
    ]  # fmt: skip


def drive_behind(serial: str, place: int) -> str:
    """The device of a further drive, as QEMU's command line has it."""
    return f"nvme,id=drive-{serial},serial={serial},drive={serial},bus=portc{place}"
