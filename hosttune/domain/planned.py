"""What libvirt will have of a planned guest. All that the plan itself does not name is decided here, and nowhere else.

The template prints this value, and the writer compares it with what it reads back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Literal

from hosttune.domain import elements
from hosttune.domain.guest import (
    PORTS,
    AddressWidth,
    Controller,
    CpuTopology,
    Disk,
    Guest,
    GuestCell,
    GuestCpu,
    GuestInterface,
    HostDevice,
    Memnode,
    MemoryBacking,
    Pages,
    Pin,
    VirtualIommu,
)
from hosttune.model.plan import Cell, Device, PciController, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus

AGENT_CHANNEL = "org.qemu.guest_agent.0"  # the QEMU guest agent's channel to the host (formatdomain, channel)
RANDOM_SOURCE = "/dev/urandom"  # libvirt's own default (formatdomain, rng)
# A choice of hosttune, not a limit: a tap device takes 256 (Linux include/linux/if_tap.h, MAX_TAP_QUEUES), and
# KubeVirt gives one per vCPU. Each pair costs a vhost thread's work and 64 KiB on the host, and interrupts in guests.
MOST_QUEUES = 8
NO_DMA_TRANSLATION = ("-global", "intel-iommu.dma-translation=off")  # QEMU 7.2: -device intel-iommu,help
_KVM_HINTS = (elements.HINT_DEDICATED, elements.POLL_CONTROL)
_AMD = ("AuthenticAMD", "HygonGenuine")


def guest_of(planned: PlannedGuest) -> Guest:
    """Return a planned guest as libvirt will have it. Raises ValueError for an invalid list of CPUs."""
    kvm = planned.accelerator == "kvm"
    memory_bytes = sum(cell.memory_bytes for cell in planned.cells)
    boot, eim = planned.boot, planned.iommu_eim
    hints = tuple(hint for hint in _KVM_HINTS if kvm and hint in planned.elements)
    efi = planned.firmware == "efi"
    iommu = _iommu(planned) if eim else None
    nodes = CpuSet(node for cell in planned.cells for node in parse_cpus(cell.host_nodes))
    return Guest(
        type="kvm" if kvm else "qemu",
        name=planned.name,
        uuid=planned.uuid.lower() if planned.uuid else None,
        arch="x86_64",
        machine=planned.machine,
        firmware=planned.firmware,
        secure_boot=planned.secure_boot if efi and elements.FIRMWARE_FEATURES in planned.elements else None,
        kernel=boot.kernel if boot else None,
        initrd=boot.initrd if boot else None,
        cmdline=boot.cmdline if boot else None,
        vcpus=len(planned.vcpu_pins),
        vcpu_placement="static",
        vcpu_pins=tuple(sorted((_pin(pin.vcpu, pin.cpus) for pin in planned.vcpu_pins), key=lambda pin: pin.id)),
        emulator_cpus=_cpus(planned.emulator_cpus) or None,
        iothreads=len(planned.iothread_cpus),
        iothread_pins=tuple(_pin(number, cpus) for number, cpus in enumerate(planned.iothread_cpus, 1)),
        memory_bytes=memory_bytes,
        current_memory_bytes=memory_bytes,
        backing=_backing(planned),
        numatune=Memnode(mode="strict", nodes=str(nodes)) if nodes else None,
        memnodes=tuple(
            Memnode(cell=cell.id, mode="strict", nodes=_cpus(cell.host_nodes))
            for cell in planned.cells
            if cell.host_nodes
        ),
        cpu=_cpu(planned, kvm=kvm),
        cells=tuple(map(_cell, planned.cells)),
        features=(
            *("acpi", "apic"),
            *(("kvm",) if hints else ()),
            *(("ioapic",) if eim else ()),
            *(("vmcoreinfo",) if elements.VMCOREINFO in planned.elements else ()),
        ),
        kvm_features=hints,
        ioapic="qemu" if eim else None,
        controllers=_controllers(planned),
        hostdevs=tuple(
            sorted((_hostdev(planned, device) for device in planned.devices), key=lambda device: device.interface)
        ),
        disks=tuple(_disks(planned)),
        interfaces=_interfaces(planned),
        serial=True,
        channels=(AGENT_CHANNEL,),
        random=RANDOM_SOURCE,
        # A kernel that panics waits for ever by default (Linux admin-guide/sysctl/kernel, panic), and keeps its GPUs.
        tpm="2.0" if planned.tpm else None,
        watchdog=_watchdog(planned),
        panic="isa" if elements.PANIC in planned.elements else None,
        on_crash="restart" if elements.PANIC in planned.elements else "destroy",
        # KVM disables AMD's interrupt virtualisation (AVIC) in a guest whose in-kernel PIT reinjects missed ticks,
        # which is what "delay" asks for (Linux arch/x86/kvm/i8254.c, kvm_pit_set_reinject). Current guests do not use
        # PIT ticks.
        pit="discard" if kvm and planned.cpu_vendor in _AMD else "delay",
        balloon="none",
        iommu=iommu,
        qemu_arguments=_arguments(planned, iommu),
    )


def _watchdog(planned: PlannedGuest) -> str | None:
    """Return the model of the watchdog: q35's own, from libvirt 9.1 on (formatdomain, watchdog)."""
    if not planned.watchdog:
        return None
    return "itco" if elements.CHIPSET_WATCHDOG in planned.elements else "i6300esb"


def _cpus(cpus: str) -> str:
    return str(parse_cpus(cpus))


def _pin(number: int, cpus: str) -> Pin:
    return Pin(id=number, cpus=_cpus(cpus))


def _cell(cell: Cell) -> GuestCell:
    distances = tuple(enumerate(cell.distances))
    return GuestCell(id=cell.id, vcpus=_cpus(cell.vcpus), memory_bytes=cell.memory_bytes, distances=distances)


def _backing(planned: PlannedGuest) -> MemoryBacking:
    pages = Pages(size_bytes=planned.huge_page_bytes, cells=str(CpuSet(cell.id for cell in planned.cells)))
    return MemoryBacking(
        pages=(pages,) if planned.huge_page_bytes else None,
        nosharepages=True,
        allocation="immediate",
        allocation_threads=planned.allocation_threads if elements.ALLOCATION_THREADS in planned.elements else None,
    )


def _cpu(planned: PlannedGuest, *, kvm: bool) -> GuestCpu:
    """Return the host's own CPU with KVM, otherwise the maximum that QEMU can emulate.

    Without topoext, AMD's CPUID does not describe threads, and QEMU's emulated maximum CPU is an AMD CPU.
    """
    levels = planned.topology
    return GuestCpu(
        mode="host-passthrough" if kvm else "maximum",
        check="none",
        migratable=False,
        topology=None
        if levels is None
        else CpuTopology(
            sockets=levels.sockets, dies=levels.dies, clusters=1, cores=levels.cores, threads=levels.threads
        ),
        cache=planned.cache,
        address_width=_address_width(planned, kvm=kvm),
        features=(("topoext", "require"),) if not kvm or planned.cpu_vendor == "AuthenticAMD" else (),
    )


def _address_width(planned: PlannedGuest, *, kvm: bool) -> AddressWidth | None:
    """Return the host's width, limited to what the IOMMU maps; a plain number without KVM."""
    if elements.MAXPHYSADDR not in planned.elements:
        return None
    if not kvm:
        bits = planned.physical_address_bits
        return AddressWidth(mode="emulate", bits=bits) if bits else None
    limit = planned.physical_address_limit_bits if elements.MAXPHYSADDR_LIMIT in planned.elements else None
    return AddressWidth(mode="passthrough", limit=limit)


def _controllers(planned: PlannedGuest) -> tuple[Controller, ...]:
    fixed = _fixed_ports(planned)
    return tuple(
        Controller(
            index=pci_controller.index,
            model=pci_controller.model,
            address=_place(pci_controller),
            chassis=pci_controller.chassis,
            port=pci_controller.port,
            bus_nr=pci_controller.bus_nr,
            node=pci_controller.node,
            pcihole64_bytes=(planned.pci_hole64_bytes or None) if pci_controller.model == "pcie-root" else None,
            hotplug=False if pci_controller.index in fixed else None,
        )
        for pci_controller in sorted(planned.controllers, key=lambda controller: controller.index)
    )


def _place(controller: PciController) -> str | None:
    if controller.bus is None or controller.slot is None:
        return None
    return f"0000:{controller.bus:02x}:{controller.slot:02x}.{controller.function}"


def _fixed_ports(planned: PlannedGuest) -> frozenset[int]:
    """Return the indexes of ports that lead to a passed device: nothing is ever plugged into or out of them.

    Firmware and kernel reserve memory and 4 KiB of the 64 KiB of I/O behind each port that supports hot plug (QEMU
    docs/pcie.txt, 3; Linux admin-guide/kernel-parameters, pci=hpiosize); below an expander no port can support it.
    """
    if elements.PORT_HOTPLUG not in planned.elements:
        return frozenset()
    by_index = {controller.index: controller for controller in planned.controllers}
    above: set[int] = set()
    for device in planned.devices:
        index: int | None = int(device.guest_address.split(":")[1], 16)
        while index is not None and index not in above and index in by_index:
            above.add(index)
            index = by_index[index].bus
    return frozenset(index for index in above if by_index[index].model in PORTS)


def _hostdev(planned: PlannedGuest, device: Device) -> HostDevice:
    mediated, network = device.kind == "mdev", device.network
    with_mac = network is not None and network.mac is not None
    return HostDevice(
        kind="mdev" if mediated else "pci",
        source=device.address,
        managed=device.managed and not mediated,
        guest_address=device.guest_address,
        rom_bar=None if device.rom_bar or mediated else False,
        clique=device.clique if elements.CLIQUE in planned.elements else None,
        driver=None if mediated else "vfio",
        model="vfio-pci" if mediated else None,
        interface=with_mac,
        mac=network.mac if network else None,
        vlan=network.vlan if network and with_mac else None,
    )


def _disks(planned: PlannedGuest) -> Iterator[Disk]:
    for n, path in enumerate(planned.disks):
        yield Disk(
            source=path, target=f"vd{chr(ord('a') + n)}", bus="virtio", type="block" if is_node(path) else "file",
            format=disk_format(path), cache="none", io="native", iothread=1 if planned.iothread_cpus else None,
            boot_order=None if n else 1, device="disk",
            discard="unmap" if elements.DISCARD in planned.elements else None,
        )  # fmt: skip
    if planned.seed:
        yield Disk(
            source=planned.seed, target="sda", bus="sata", type="file", format="raw", device="cdrom", readonly=True
        )


def disk_format(path: str) -> Literal["qcow2", "raw"]:
    """Return the format of a disk, which its path says."""
    return "qcow2" if path.endswith(".qcow2") and not is_node(path) else "raw"


def is_node(path: str) -> bool:
    """Return whether the path of a disk is that of a device node, and not of a file."""
    return path.startswith("/dev/")


def _interfaces(planned: PlannedGuest) -> tuple[GuestInterface, ...]:
    """Return virtio NICs with a queue pair per vCPU, at most `MOST_QUEUES`; libvirt's default is one."""
    queues = min(len(planned.vcpu_pins), MOST_QUEUES)
    return tuple(
        GuestInterface(
            type="bridge" if network.bridge else "network",
            source=network.bridge or network.network,
            model="virtio",
            mac=mac_of(planned.uuid, n) if planned.uuid and elements.MAC in planned.elements else None,
            queues=queues if queues > 1 else None,
        )
        for n, network in enumerate(planned.networks)
        if network.vf_of is None
    )


def mac_of(guest: str, number: int) -> str:
    """Return a MAC that a guest's network always has; 52:54:00 is the prefix of KVM's guests (formatdomain, mac)."""
    digest = uuid.uuid5(uuid.UUID(guest), f"network {number}").bytes
    return ":".join(("52:54:00", *(f"{byte:02x}" for byte in digest[:3])))


def _iommu(planned: PlannedGuest) -> VirtualIommu:
    """Return the IOMMU device, which remaps interrupts only.

    Extended interrupt mode needs interrupt remapping, which needs QEMU's own IOAPIC; VFIO needs caching mode.
    """
    translation = False if elements.DMA_TRANSLATION in planned.elements else None
    return VirtualIommu(
        model="intel", intremap=True, caching_mode=True, eim=True, iotlb=True, dma_translation=translation
    )


def _arguments(planned: PlannedGuest, iommu: VirtualIommu | None) -> tuple[str, ...]:
    """Return the arguments to QEMU that libvirt has no element for."""
    window = planned.ovmf_window_mib
    return (
        *(("-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={window}") if window is not None else ()),
        *(
            NO_DMA_TRANSLATION
            if iommu and iommu.dma_translation is None and elements.DMA_TRANSLATION_GLOBAL in planned.elements
            else ()
        ),
    )
