"""The proof that XML says what the plan says: planned facts against facts read back, field by field."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.facts import CpuTopology, DomainFacts, HostDevice
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus

Comparison = tuple[str, object, object]


def differences(guest: PlannedGuest, facts: DomainFacts) -> tuple[str, ...]:
    """What differs between a planned guest and the XML read back, one text a field; empty when they agree.

    Judges what the plan decides: vCPUs, pins, memory, pages, cells, topology, controllers, devices, disk, networks,
    boot, firmware, windows. Devices and controllers that libvirt adds by itself do not count.
    """
    compared = (*_compute(guest, facts), *_memory(guest, facts), *_machine(guest, facts), *_pci(guest, facts))
    return tuple(f"{field}: planned {planned}, XML {read}" for field, planned, read in compared if planned != read)


def _compute(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    yield "vcpus", len(guest.vcpu_pins), facts.vcpus
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
    if guest.topology:
        planned = guest.topology
        topology = CpuTopology(
            sockets=planned.sockets, dies=planned.dies, clusters=1, cores=planned.cores, threads=planned.threads
        )
        yield "topology", topology, facts.cpu.topology


def _memory(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    yield "memory_bytes", sum(cell.memory_bytes for cell in guest.cells), facts.memory_bytes
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
    huge = guest.page_bytes is not None and guest.page_bytes > 4096
    pages = facts.backing.pages
    yield (
        "page_bytes",
        {cell.id: guest.page_bytes for cell in guest.cells} if huge else {},
        {cell: page.size_bytes for page in pages or () for cell in parse_cpus(page.cells)},
    )
    yield "locked", False, facts.backing.locked
    yield "memballoon", "none", facts.balloon


def _machine(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    yield "name", guest.name, facts.name
    if guest.uuid:
        yield "uuid", guest.uuid.lower(), facts.uuid
    yield "accelerator", "kvm" if guest.accelerator == "kvm" else "qemu", facts.type
    # libvirt resolves the alias to the newest version it has ("pc-q35-7.2").
    yield "machine", True, guest.machine in (facts.machine or "").split("-")
    yield "firmware", guest.firmware, facts.firmware
    boot = guest.boot
    yield (
        "boot",
        (boot.kernel, boot.initrd, boot.cmdline) if boot else (None, None, None),
        (facts.kernel, facts.initrd, facts.cmdline),
    )
    window = guest.ovmf_window_mib
    argument = f"name=opt/ovmf/X-PciMmio64Mb,string={window}"
    yield "ovmf_window_mib", ("-fw_cfg", argument) if window is not None else (), facts.qemu_arguments
    yield "iommu_eim", guest.iommu_eim, bool(facts.iommu and facts.iommu.eim)
    yield "disk", [guest.disk] if guest.disk else [], [disk.source for disk in facts.disks]
    yield (
        "networks",
        [("bridge", net.bridge) if net.bridge else ("network", net.network) for net in guest.networks],
        [(interface.type, interface.source) for interface in facts.interfaces],
    )


def _pci(guest: PlannedGuest, facts: DomainFacts) -> Iterator[Comparison]:
    planned = sorted(_planned_device(device) for device in guest.devices)
    yield "devices", planned, sorted(_read_device(device) for device in facts.hostdevs)
    by_index = {controller.index: controller for controller in facts.controllers}
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


def _planned_device(device: Device) -> tuple[str, str, bool, bool]:
    managed = device.managed and device.kind != "mdev"
    return device.address, device.guest_address, managed, device.rom_bar or device.kind == "mdev"


def _read_device(device: HostDevice) -> tuple[str, str, bool, bool]:
    return device.source or "", device.guest_address or "", bool(device.managed), device.rom_bar is not False
