"""The proof that the XML matches its plan: facts that follow from the plan are compared with facts read back.

`planned_facts` uses only the plan and the rules in `implied`, never the template, so that an error in either shows.
`sameness` compares what libvirt later makes of the XML.
"""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain import implied
from hosttune.domain.compare import compare
from hosttune.domain.facts import (
    Controller,
    CpuTopology,
    Disk,
    DomainFacts,
    GuestCell,
    GuestCpu,
    HostDevice,
    Interface,
    Memnode,
    MemoryBacking,
    Numatune,
    Pages,
    Pin,
    VirtualIommu,
)
from hosttune.model.plan import Device, PciController, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus


def differences(guest: PlannedGuest, facts: DomainFacts) -> tuple[str, ...]:
    """Return the differences between a planned guest and the XML written for it, one text per fact; empty if none."""
    compared = compare(planned_facts(guest), facts, {})
    return tuple(f"{field}: planned {planned}, XML {read}" for field, planned, read in compared)


# --- the facts of a plan -------------------------------------------------------------------------------------


def planned_facts(guest: PlannedGuest) -> DomainFacts:
    """Return everything that the XML of a planned guest must contain. Raises ValueError for an invalid list of CPUs."""
    memory_bytes = sum(cell.memory_bytes for cell in guest.cells)
    boot = guest.boot
    kvm_features = implied.kvm_features(guest)
    return DomainFacts(
        type="kvm" if implied.with_kvm(guest) else "qemu",
        name=guest.name,
        uuid=guest.uuid.lower() if guest.uuid else None,
        arch="x86_64", machine=guest.machine, firmware=guest.firmware, secure_boot=implied.secure_boot(guest),
        kernel=boot.kernel if boot else None,
        initrd=boot.initrd if boot else None,
        cmdline=boot.cmdline if boot else None,
        vcpus=len(guest.vcpu_pins), vcpu_placement="static",
        vcpu_pins=tuple(sorted((_pin(pin.vcpu, pin.cpus) for pin in guest.vcpu_pins), key=lambda pin: pin.id)),
        emulator_cpus=_cpus(guest.emulator_cpus) or None,
        iothreads=len(guest.iothread_cpus),
        iothread_pins=tuple(_pin(number, cpus) for number, cpus in enumerate(guest.iothread_cpus, 1)),
        memory_bytes=memory_bytes, current_memory_bytes=memory_bytes,
        backing=_backing(guest), numatune=_numatune(guest), cpu=_cpu(guest), cells=_cells(guest),
        features=("acpi", "apic", *(("kvm",) if kvm_features else ()), *(("ioapic",) if guest.iommu_eim else ())),
        kvm_features=kvm_features,
        ioapic="qemu" if guest.iommu_eim else None,
        controllers=_controllers(guest),
        hostdevs=tuple(_hostdev(device) for device in guest.devices),
        disks=tuple(_disks(guest)), interfaces=_interfaces(guest), serial=True, channels=(implied.AGENT_CHANNEL,),
        random=implied.RANDOM_SOURCE, pit=implied.pit_policy(guest), balloon="none", iommu=_iommu(guest),
        qemu_arguments=implied.qemu_arguments(guest),
    )  # fmt: skip


def _cells(guest: PlannedGuest) -> tuple[GuestCell, ...]:
    return tuple(
        GuestCell(
            id=cell.id,
            vcpus=_cpus(cell.vcpus),
            memory_bytes=cell.memory_bytes,
            distances=tuple(enumerate(cell.distances)),
        )
        for cell in guest.cells
    )


def _cpus(cpus: str) -> str:
    return str(parse_cpus(cpus))


def _pin(number: int, cpus: str) -> Pin:
    return Pin(id=number, cpus=_cpus(cpus))


def _backing(guest: PlannedGuest) -> MemoryBacking:
    page_bytes = implied.huge_page_bytes(guest)
    pages = Pages(size_bytes=page_bytes, cells=str(CpuSet(cell.id for cell in guest.cells)))
    return MemoryBacking(
        pages=(pages,) if page_bytes else None,
        nosharepages=True,
        allocation="immediate",
        allocation_threads=implied.allocation_threads(guest),
    )


def _numatune(guest: PlannedGuest) -> Numatune:
    placed = (cell for cell in guest.cells if cell.host_nodes)
    bound = tuple(Memnode(cell=cell.id, mode="strict", nodes=_cpus(cell.host_nodes)) for cell in placed)
    if not bound:
        return Numatune()
    nodes = CpuSet(node for memnode in bound for node in parse_cpus(memnode.nodes))
    return Numatune(mode="strict", nodes=str(nodes), memnodes=bound)


def _cpu(guest: PlannedGuest) -> GuestCpu:
    planned = guest.topology
    return GuestCpu(
        mode=implied.cpu_mode(guest),
        check="none",
        migratable=False,
        topology=None
        if planned is None
        else CpuTopology(
            sockets=planned.sockets, dies=planned.dies, clusters=1, cores=planned.cores, threads=planned.threads
        ),
        cache="passthrough",
        address_width=implied.address_width(guest),
        features=implied.cpu_features(guest),
    )


def _controllers(guest: PlannedGuest) -> tuple[Controller, ...]:
    fixed = implied.fixed_ports(guest)
    found = (_controller(guest, controller, fixed) for controller in guest.controllers)
    return tuple(sorted(found, key=lambda controller: controller.index))


def _controller(guest: PlannedGuest, planned: PciController, fixed: frozenset[int]) -> Controller:
    at = None
    if planned.bus is not None and planned.slot is not None:
        at = f"0000:{planned.bus:02x}:{planned.slot:02x}.{planned.function}"
    return Controller(
        index=planned.index,
        model=planned.model,
        address=at,
        chassis=planned.chassis,
        port=planned.port,
        bus_nr=planned.bus_nr,
        node=planned.node,
        pcihole64_bytes=(guest.pci_hole64_bytes or None) if planned.model == "pcie-root" else None,
        hotplug=False if planned.index in fixed else None,
    )


def _hostdev(device: Device) -> HostDevice:
    if device.kind == "mdev":
        return HostDevice(
            kind="mdev", source=device.address, managed=False, guest_address=device.guest_address, model="vfio-pci"
        )
    return HostDevice(
        kind="pci",
        source=device.address,
        managed=device.managed,
        guest_address=device.guest_address,
        rom_bar=None if device.rom_bar else False,
        driver="vfio",
    )


def _disks(guest: PlannedGuest) -> Iterator[Disk]:
    if guest.disk:
        kind, image = implied.disk_form(guest.disk)
        yield Disk(
            source=guest.disk, target="vda", bus="virtio", type=kind, format=image, cache="none", io="native",
            iothread=1 if guest.iothread_cpus else None, boot_order=1, device="disk",
        )  # fmt: skip
    if guest.seed:
        yield Disk(
            source=guest.seed, target="sda", bus="sata", type="file", format="raw", device="cdrom", readonly=True
        )


def _interfaces(guest: PlannedGuest) -> tuple[Interface, ...]:
    queues = implied.network_queues(guest)
    return tuple(
        Interface(
            type="bridge" if network.bridge else "network",
            source=network.bridge or network.network,
            model="virtio",
            queues=queues,
        )
        for network in guest.networks
    )


def _iommu(guest: PlannedGuest) -> VirtualIommu | None:
    """Return the IOMMU device.

    Extended interrupt mode needs interrupt remapping, which needs QEMU's own IOAPIC; VFIO needs caching mode.
    """
    if not guest.iommu_eim:
        return None
    translation = implied.dma_translation(guest)
    return VirtualIommu(
        model="intel", intremap=True, caching_mode=True, eim=True, iotlb=True, dma_translation=translation
    )
