"""Planned guests in the shapes that the XML must carry, built by hand: no planner, no host."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from hosttune.domain.elements import known_elements
from hosttune.model.intent import Boot, GuestIntent, Intent, Network
from hosttune.model.plan import Cell, Device, MigAssignment, PciController, Plan, PlannedGuest, PlannedPin, Topology
from hosttune.model.values import CpuSet, Value

T = TypeVar("T", bound=Value)

GIB = 1 << 30
ELEMENTS, _ = known_elements("9.0.0", "7.2.0")
MAC = "52:54:00:0a:0b:0c"


def plan_of(*guests: PlannedGuest) -> Plan:
    intent = Intent(version=1, guests=tuple(GuestIntent(name=guest.name) for guest in guests))
    return Plan(intent=intent, guests=guests)


def changed(value: T, **fields: object) -> T:
    """A copy of a guest, or a part of one, with some fields changed."""
    copy: T = msgspec.structs.replace(value, **fields)
    return copy


def cells_of(count: int, vcpus: int, memory_bytes: int = 64 * GIB) -> tuple[Cell, ...]:
    """`count` cells of `vcpus` each, on host nodes 0, 1, …"""
    return tuple(
        Cell(
            id=n,
            vcpus=str(CpuSet(range(n * vcpus, (n + 1) * vcpus))),
            memory_bytes=memory_bytes,
            host_nodes=str(n),
            distances=tuple(10 if n == other else 21 for other in range(count)) if count > 1 else (),
        )
        for n in range(count)
    )


def pins_of(count: int, vcpus: int, threads: int = 2, first_core: int = 1) -> tuple[PlannedPin, ...]:
    """Pins of `count` cells: node n has CPUs from n * 512, siblings adjacent, and its first core is the host's."""
    return tuple(
        PlannedPin(vcpu=n * vcpus + i, cpus=str(n * 512 + first_core * threads + i))
        for n in range(count)
        for i in range(vcpus)
    )


def flat_bus(ports: int) -> tuple[PciController, ...]:
    """A PCIe root with root ports 1, 2, … on its bus, eight to a slot from slot 2 on."""
    roots = (PciController(index=0, model="pcie-root"),)
    return roots + tuple(
        PciController(
            index=n, model="pcie-root-port", bus=0, slot=2 + (n - 1) // 8, function=(n - 1) % 8, chassis=n, port=n
        )
        for n in range(1, ports + 1)
    )


def split_bus(cells: int, ports: int, spare: int) -> tuple[PciController, ...]:
    """An expander for each cell with `ports` root ports below it, and `spare` root ports on the root bus.

    Indexes: root 0, expanders 1…cells, their ports cell by cell, then the spare ones.
    """
    controllers = [PciController(index=0, model="pcie-root")]
    controllers += [
        PciController(index=1 + n, model="pcie-expander-bus", bus=0, slot=3 + n, bus_nr=64 + 64 * n, node=n)
        for n in range(cells)
    ]
    index = cells
    for n in range(cells):
        for slot in range(ports):
            index += 1
            controllers.append(
                PciController(
                    index=index, model="pcie-root-port", bus=1 + n, slot=slot, chassis=index, port=16 * n + slot
                )
            )
    for n in range(spare):
        index += 1
        controllers.append(
            PciController(index=index, model="pcie-root-port", bus=0, slot=16 + n, chassis=index, port=index)
        )
    return tuple(controllers)


def switched_bus(cells: int, switches: int, ports: int, spare: int) -> tuple[PciController, ...]:
    """An expander for each cell, with `switches` switches of `ports` ports, numbered as firmware numbers buses.

    Indexes: root 0, spare ports 1…, then for each cell the expander and depth first root port, switch, its ports.
    """
    controllers = [PciController(index=0, model="pcie-root")]
    controllers += (
        PciController(index=n, model="pcie-root-port", bus=0, slot=n, chassis=n, port=8 * n)
        for n in range(1, spare + 1)
    )
    for cell in range(cells):
        expander = len(controllers)
        controllers.append(
            PciController(
                index=expander, model="pcie-expander-bus", bus=0, slot=0x1D - cell, bus_nr=expander, node=cell
            )
        )
        for n in range(switches):
            at = len(controllers)
            controllers += (
                PciController(index=at, model="pcie-root-port", bus=expander, slot=n, chassis=at, port=8 * n),
                PciController(
                    index=at + 1, model="pcie-switch-upstream-port", bus=at, slot=0, host=f"0000:{at:02x}:00.0"
                ),
            )
            controllers += (
                PciController(
                    index=at + 2 + k,
                    model="pcie-switch-downstream-port",
                    bus=at + 1,
                    slot=k,
                    chassis=at + 2 + k,
                    port=8 * k,
                )
                for k in range(ports)
            )
    return tuple(controllers)


def device(address: str, kind: str, bus: int, cell: int | None = 0, **fields: object) -> Device:
    return Device(
        address=address,
        kind=kind,
        guest_cell=cell,
        guest_address=f"0000:{bus:02x}:00.0",
        identity=f"{address} 10de:2335",
        host_node=cell,
        **fields,  # type: ignore[arg-type]
    )


ONE_GPU = PlannedGuest(
    name="one-gpu",
    vcpu_pins=pins_of(1, 16),
    emulator_cpus="0-1",
    iothread_cpus=("0-1",),
    cells=cells_of(1, 16),
    page_bytes=GIB,
    devices=(device("0000:41:00.0", "gpu", 1, name="GH100 [H200 SXM 141GB]"),),
    why=("GPU 0000:41:00.0 is on node 0 (/sys/bus/pci/devices/0000:41:00.0/numa_node)",),
    cpu_vendor="GenuineIntel",
    topology=Topology(sockets=1, dies=1, cores=8, threads=2),
    controllers=flat_bus(6),
    physical_address_bits=46,
    mmio64_bytes=512 * GIB,
    pci_hole64_bytes=512 * GIB,
    disk="/var/lib/libvirt/images/one-gpu.qcow2",
    networks=(Network(network="default"),),
    elements=ELEMENTS,
    allocation_threads=8,
)

TWO_CELLS = changed(
    ONE_GPU,
    name="two-cells",
    vcpu_pins=pins_of(2, 8),
    cells=cells_of(2, 8),
    topology=Topology(sockets=2, dies=1, cores=4, threads=2),
    controllers=split_bus(2, 2, spare=3),
    devices=(
        device("0000:41:00.0", "gpu", 3, 0),
        device("0000:43:00.0", "nic", 4, 0, managed=True),
        device("0000:c1:00.0", "gpu", 5, 1),
    ),
    ovmf_window_mib=1048576,
)

EIGHT_GPUS = changed(
    ONE_GPU,
    name="eight-gpus",
    vcpu_pins=pins_of(2, 96),
    cells=cells_of(2, 96, 900 * GIB),
    topology=Topology(sockets=2, dies=1, cores=48, threads=2),
    controllers=split_bus(2, 4, spare=3),
    devices=tuple(
        device(f"0000:{bus}:00.0", "gpu", 3 + n, n // 4)
        for n, bus in enumerate(("19", "3b", "4c", "5d", "9b", "bb", "cb", "db"))
    ),
    pci_hole64_bytes=8192 * GIB,
    ovmf_window_mib=4194304,
)

NO_GPU = changed(ONE_GPU, name="no-gpu", devices=(), page_bytes=2 << 20, pci_hole64_bytes=None, iothread_cpus=())

BIOS = changed(ONE_GPU, name="bios", firmware="bios", disk="/dev/vg0/bios")

AMD = changed(
    ONE_GPU,
    name="amd",
    cpu_vendor="AuthenticAMD",
    physical_address_bits=48,
    topology=Topology(sockets=1, dies=2, cores=4, threads=2),
    cache="disable",
)

MANY_VCPUS = changed(
    ONE_GPU,
    name="many-vcpus",
    vcpu_pins=pins_of(2, 144),
    cells=cells_of(2, 144, 900 * GIB),
    topology=Topology(sockets=2, dies=1, cores=72, threads=2),
    controllers=split_bus(2, 1, spare=3),
    devices=(device("0000:41:00.0", "gpu", 3, 0), device("0000:c1:00.0", "gpu", 4, 1)),
    iommu_eim=True,
)

KERNEL_BOOT = changed(
    ONE_GPU,
    name="kernel-boot",
    boot=Boot(kernel="/boot/vmlinuz", initrd="/boot/initrd.img", cmdline='root=/dev/vda1 "quoted" <&> console=ttyS0'),
    networks=(),
)

BRIDGE = changed(
    ONE_GPU,
    name="bridge",
    networks=(Network(bridge="br0"), Network(network="default")),
    disk="/img/a b&c",
    further_disks=("/img/d.qcow2", "/dev/vg0/e"),
)

ODD = changed(
    ONE_GPU,
    name="odd",
    vcpu_pins=pins_of(1, 7),
    cells=cells_of(1, 7, 8 * GIB),
    topology=Topology(sockets=1, dies=1, cores=7, threads=1),
    page_bytes=None,
    controllers=(
        PciController(index=0, model="pcie-root"),
        PciController(index=1, model="pcie-root-port", bus=0, slot=2, chassis=1, port=1),
    ),
    devices=(
        device("10000:01:00.0", "gpu", 1, None, rom_bar=True),
        Device(
            address="10000:01:00.1",
            kind="other",
            guest_cell=None,
            guest_address="0000:01:00.1",
            identity="",
        ),
    ),
)

SECURE = changed(ONE_GPU, name="secure", secure_boot=True)

SEEDED = changed(ONE_GPU, name="seeded", seed="/var/lib/hosttune/guests/seeded/seed.iso")

SWITCHED = changed(
    TWO_CELLS,
    name="switched",
    controllers=switched_bus(2, 2, 2, spare=3),
    devices=(
        device("0000:18:00.0", "gpu", 7, 0, clique=0),
        device("0000:19:00.0", "nic", 8, 0),
        device("0000:29:00.0", "gpu", 11, 0, clique=1),
        device("0000:2a:00.0", "nic", 12, 0),
        device("0000:9a:00.0", "gpu", 16, 1),
        device("0000:9b:00.0", "nic", 17, 1),
    ),
)

# vGPUs: functions that stay with their maker's driver, and mediated devices.
VGPU_FUNCTIONS = changed(
    ONE_GPU,
    name="vgpu-functions",
    devices=tuple(
        device(f"0000:41:00.{n}", "vf", bus, name="NVIDIA H200X-1-18C", vgpu_type="NVIDIA H200X-1-18C")
        for bus, n in ((1, 4), (2, 5))
    ),
    mig=tuple(MigAssignment(gpu="0000:41:00.0", profile="1g.18gb", start=start) for start in (5, 6)),
)
VGPU_MEDIATED = changed(
    ONE_GPU,
    name="vgpu-mediated",
    devices=(
        changed(
            device("aa618089-8b16-5d01-a136-25a0f3c73123", "mdev", 1),
            identity="aa618089-8b16-5d01-a136-25a0f3c73123 on 0000:41:00.4",
            rom_bar=True,
            vgpu_type="NVIDIA A100X-1-5C",
        ),
    ),
    mig=(MigAssignment(gpu="0000:41:00.0", profile="1g.5gb", start=6),),
)
VIRTUAL_FUNCTIONS = changed(
    ONE_GPU,
    name="virtual-functions",
    networks=(Network(vf_of="0000:31:00.0", vlan=7), Network(vf_of="0000:32:00.0")),
    devices=(
        device("0000:31:00.2", "vf", 1, managed=True, network=Network(vf_of="0000:31:00.0", mac=MAC, vlan=7)),
        device("0000:32:00.1", "vf", 2, managed=True, network=Network(vf_of="0000:32:00.0")),
        device("0000:41:00.0", "gpu", 3),
    ),
)
WATCHED = changed(ONE_GPU, name="watched", watchdog=True, controllers=flat_bus(7))
SHAPES = {
    guest.name: guest
    for guest in (
        ONE_GPU,
        TWO_CELLS,
        EIGHT_GPUS,
        NO_GPU,
        BIOS,
        AMD,
        MANY_VCPUS,
        KERNEL_BOOT,
        BRIDGE,
        ODD,
        SEEDED,
        SECURE,
        SWITCHED,
        VGPU_FUNCTIONS,
        VGPU_MEDIATED,
        VIRTUAL_FUNCTIONS,
        WATCHED,
    )
}


def emulated(guest: PlannedGuest) -> PlannedGuest:
    """The same guest under software emulation."""
    return changed(guest, accelerator="tcg")
