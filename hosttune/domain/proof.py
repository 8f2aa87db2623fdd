"""The proof that XML says what the plan says: planned facts against facts read back, field by field."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain import implied
from hosttune.domain.facts import CpuTopology, DomainFacts, HostDevice
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus

Comparison = tuple[str, object, object]


def differences(guest: PlannedGuest, facts: DomainFacts) -> tuple[str, ...]:
    """What differs between a planned guest and the XML read back, one text a field; empty when they agree.

    Judges what the plan decides and what that implies: vCPUs, pins, the CPU and its hints, memory, pages, cells,
    topology, controllers, devices, disk, networks, boot, firmware, windows. Devices and controllers that libvirt adds
    by itself do not count.
    """
    compared = (
        *_compute(guest, facts),
        *_cpu(guest, facts),
        *_memory(guest, facts),
        *_backing(guest, facts),
        *_machine(guest, facts),
        *_io(guest, facts),
        *_pci(guest, facts),
    )
    return tuple(f"{field}: planned {planned}, XML {read}" for field, planned, read in compared if planned != read)


def _compute(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    yield "vcpus", len(guest.vcpu_pins), facts.vcpus
    yield "vcpus_current", len(guest.vcpu_pins), facts.vcpus if facts.vcpus_current is None else facts.vcpus_current
    yield (
        "vcpu_pins",
        {pin.vcpu: parse_cpus(pin.cpus) for pin in guest.vcpu_pins},
        {pin.id: parse_cpus(pin.cpus) for pin in facts.vcpu_pins},
    )
    yield "emulator_cpus", parse_cpus(guest.emulator_cpus), parse_cpus(facts.emulator_cpus)
    yield (
        "iothread_cpus",
        {n: parse_cpus(cpus) for n, cpus in enumerate(guest.iothread_cpus, 1)},
        {pin.id: parse_cpus(pin.cpus) for pin in facts.iothread_pins},
    )
    yield "iothreads", len(guest.iothread_cpus), facts.iothreads


def _cpu(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    cpu = facts.cpu
    yield "cpu_mode", implied.cpu_mode(guest), cpu.mode
    yield "cpu_check", "none", cpu.check
    yield "migratable", False, cpu.migratable
    yield "cpu_cache", "passthrough", cpu.cache
    yield "cpu_features", implied.cpu_features(guest), cpu.features
    yield "maxphysaddr", implied.address_width(guest), cpu.address_width
    yield "kvm_features", sorted(implied.kvm_features(guest)), sorted(facts.kvm_features)
    if guest.topology:
        planned = guest.topology
        topology = CpuTopology(
            sockets=planned.sockets, dies=planned.dies, clusters=1, cores=planned.cores, threads=planned.threads
        )
        yield "topology", topology, facts.cpu.topology


def _memory(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    memory_bytes = sum(cell.memory_bytes for cell in guest.cells)
    yield "memory_bytes", memory_bytes, facts.memory_bytes
    yield "current_memory_bytes", memory_bytes, facts.current_memory_bytes
    yield (
        "cells",
        [(cell.id, parse_cpus(cell.vcpus), cell.memory_bytes, cell.distances) for cell in guest.cells],
        [
            (cell.id, parse_cpus(cell.vcpus), cell.memory_bytes, tuple(value for _, value in cell.distances))
            for cell in facts.cells
        ],
    )
    planned_nodes = {cell.id: parse_cpus(cell.host_nodes) for cell in guest.cells if cell.host_nodes}
    yield (
        "memnodes",
        {cell: ("strict", nodes) for cell, nodes in planned_nodes.items()},
        {memnode.cell: (memnode.mode, parse_cpus(memnode.nodes)) for memnode in facts.numatune.memnodes},
    )
    yield (
        "numatune",
        ("strict" if planned_nodes else None, CpuSet(node for nodes in planned_nodes.values() for node in nodes)),
        (facts.numatune.mode, parse_cpus(facts.numatune.nodes)),
    )


def _backing(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    page_bytes = implied.huge_page_bytes(guest)
    backing = facts.backing
    yield (
        "page_bytes",
        {cell.id: page_bytes for cell in guest.cells} if page_bytes else {},
        {cell: page.size_bytes for page in backing.pages or () for cell in parse_cpus(page.cells)},
    )
    yield "locked", False, backing.locked
    yield "nosharepages", True, backing.nosharepages
    yield (
        "allocation",
        ("immediate", implied.allocation_threads(guest)),
        (backing.allocation, backing.allocation_threads),
    )
    yield "hard_limit_bytes", None, facts.hard_limit_bytes
    yield "memballoon", "none", facts.balloon


def _machine(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    yield "name", guest.name, facts.name
    if guest.uuid:
        yield "uuid", guest.uuid.lower(), facts.uuid
    yield "accelerator", "kvm" if implied.with_kvm(guest) else "qemu", facts.type
    yield "arch", "x86_64", facts.arch
    # libvirt resolves the alias to the newest version it has ("pc-q35-7.2").
    yield "machine", True, guest.machine in (facts.machine or "").split("-")
    yield "firmware", guest.firmware, facts.firmware
    yield "secure_boot", implied.secure_boot(guest), facts.secure_boot
    yield "features", {"acpi", "apic"}, {"acpi", "apic"}.intersection(facts.features)
    boot = guest.boot
    yield (
        "boot",
        (boot.kernel, boot.initrd, boot.cmdline) if boot else (None, None, None),
        (facts.kernel, facts.initrd, facts.cmdline),
    )
    yield "qemu_arguments", implied.qemu_arguments(guest), facts.qemu_arguments
    yield "pit", implied.pit_policy(guest), facts.pit
    yield "channels", (implied.AGENT_CHANNEL,), facts.channels
    yield "random", implied.RANDOM_SOURCE, facts.random


def _io(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    iommu = facts.iommu
    # Extended interrupt mode needs interrupt remapping, which needs QEMU's own IOAPIC; VFIO needs caching mode.
    yield (
        "iommu",
        ("intel", True, True, True, True, implied.dma_translation(guest)) if guest.iommu_eim else None,
        iommu and (iommu.model, iommu.intremap, iommu.caching_mode, iommu.eim, iommu.iotlb, iommu.dma_translation),
    )
    yield "ioapic", "qemu" if guest.iommu_eim else None, facts.ioapic
    iothread = 1 if guest.iothread_cpus else None
    drives = [disk for disk in facts.disks if disk.device == "cdrom"]
    yield (
        "disk",
        [(guest.disk, *implied.disk_form(guest.disk), "virtio", "none", "native", iothread)] if guest.disk else [],
        [
            (disk.source, disk.type, disk.format, disk.bus, disk.cache, disk.io, disk.iothread)
            for disk in facts.disks
            if disk not in drives
        ],
    )
    yield (
        "seed",
        [(guest.seed, "file", "raw", "sata", True, None)] if guest.seed else [],
        [(drive.source, drive.type, drive.format, drive.bus, drive.readonly, drive.boot_order) for drive in drives],
    )
    queues = implied.network_queues(guest)
    yield (
        "networks",
        [
            ("bridge" if net.bridge else "network", net.bridge or net.network, "virtio", queues)
            for net in guest.networks
        ],
        [(interface.type, interface.source, interface.model, interface.queues) for interface in facts.interfaces],
    )


def _pci(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    planned = sorted((_planned_device(device) for device in guest.devices), key=repr)
    yield "devices", planned, sorted((_read_device(device) for device in facts.hostdevs), key=repr)
    by_index = {controller.index: controller for controller in facts.controllers}
    fixed = {index for index, controller in by_index.items() if controller.hotplug is False}
    yield "fixed_ports", implied.fixed_ports(guest), frozenset(fixed)
    for wanted in guest.controllers:
        found = by_index.get(wanted.index)
        at = None
        if wanted.bus is not None and wanted.slot is not None:
            at = f"0000:{wanted.bus:02x}:{wanted.slot:02x}.{wanted.function}"
        yield (
            f"controllers[{wanted.index}]",
            (wanted.model, at, wanted.chassis, wanted.port, wanted.bus_nr, wanted.node),
            found and (found.model, found.address, found.chassis, found.port, found.bus_nr, found.node),
        )
    if guest.pci_hole64_bytes and any(controller.model == "pcie-root" for controller in guest.controllers):
        root = by_index.get(0)
        yield "pci_hole64_bytes", guest.pci_hole64_bytes, root and root.pcihole64_bytes


def _planned_device(device: Device) -> tuple[object, ...]:
    if device.kind == "mdev":
        return device.address, device.guest_address, "mdev", "", "vfio-pci", False, True
    return device.address, device.guest_address, "pci", "vfio", "", device.managed, device.rom_bar


def _read_device(device: HostDevice) -> tuple[object, ...]:
    return (
        device.source or "",
        device.guest_address or "",
        device.kind,
        device.driver or "",
        device.model or "",
        bool(device.managed),
        device.rom_bar is not False,
    )
