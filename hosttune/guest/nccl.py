"""The guest's NCCL topology file: which of its GPUs and NICs share a switch or a node of the host, and at what speed.

Pure. NCCL reads it from /var/run/nvidia-topologyd/virtualTopology.xml unless NCCL_TOPO_FILE names another (NVIDIA/nccl,
src/graph/topo.cc, ncclTopoGetSystem); so does RCCL, its fork for AMD, which wants another version number. Only
<system>, <cpu> and <pci>: NCCL finds GPUs, NICs and NVLinks itself, below the <pci> of their bus id (nccl-tests #86,
nccl #1843), and takes the attributes that a file leaves out from the machine. A virtual port's link says nothing of the
real one: so speed and width stand here as the host has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hosttune.gpu import inside
from hosttune.gpu.inside import NCCL_FOLDER
from hosttune.guest.places import ids_of
from hosttune.model.pcitree import telling_switches
from hosttune.model.plan import Cell, Device, PciController, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus, slot_of

if TYPE_CHECKING:
    from lxml.etree import _Element

FILE = "virtualTopology.xml"
PLACE = f"{NCCL_FOLDER}/{FILE}"
NOWHERE = "-1"  # the kernel's word, and NCCL's, for a device of no node
_BRIDGE = "060400"
_CLASSES = {"gpu": "030200", "nic": "020000"}  # where the host did not tell
_GPU_CLASSES = ("03", "12")
_NIC_CLASSES = ("02",)
_GROUP_BITS = 32
_ABSENT = "ffff:ff"  # a bus that no guest has: q35 has one PCI domain


def topology(guest: PlannedGuest) -> str | None:
    """The file's text; None for a guest that has no GPU whose library reads it, or GPUs of two such makers."""
    from lxml import etree

    shown = [device for device in guest.devices if is_gpu(device) or is_nic(device)]
    known = (inside(ids_of(device).partition(":")[0]).nccl for device in shown if is_gpu(device))
    versions = {version for version in known if version is not None}
    if len(versions) != 1:  # of two makers, each would refuse the other's file
        return None
    system = etree.Element("system", version=versions.pop())
    bridges = {**_absent_bridges(guest), **_shown_bridges(guest)}
    for numaid, (affinity, members) in _cpus(guest).items():
        inner = [device for device in members if device in shown]
        if inner:
            cpu = etree.SubElement(system, "cpu", numaid=numaid, affinity=mask(affinity, _vcpus(guest)), arch="x86_64")
            if guest.accelerator == "kvm" and guest.cpu_vendor:  # as the host's; family and model NCCL asks of the CPU
                cpu.set("vendor", guest.cpu_vendor)
            _fill(cpu, inner, _shown_above(guest, members), bridges)
    etree.indent(system)
    return etree.tostring(system, encoding="unicode") + "\n"


def mask(cpus: CpuSet, width: int) -> str:
    """CPUs as NCCL reads them: hexadecimal groups of 32, most significant first (src/include/cpuset.h)."""
    bits = sum(1 << cpu for cpu in cpus)
    groups = range((max(width, 1) - 1) // _GROUP_BITS, -1, -1)
    return ",".join(f"{bits >> _GROUP_BITS * n & 0xFFFFFFFF:08x}" for n in groups)


def is_gpu(device: Device) -> bool:
    """Whether a passed function is a GPU, whole or a virtual function of one."""
    return device.kind == "gpu" or (device.kind == "vf" and (device.class_code or "")[:2] in _GPU_CLASSES)


def is_nic(device: Device) -> bool:
    """Whether a passed function is a NIC, whole or a virtual function of one."""
    return device.kind == "nic" or (device.kind == "vf" and (device.class_code or "")[:2] in _NIC_CLASSES)


def _vcpus(guest: PlannedGuest) -> int:
    return 1 + max((pin.vcpu for pin in guest.vcpu_pins), default=0)


def _cpus(guest: PlannedGuest) -> Mapping[str, tuple[CpuSet, list[Device]]]:
    """The <cpu> elements by numaid: the vCPUs near the devices, and the devices.

    One for each cell. A device of a host node that the guest has no cell on is as far from each cell as that node is:
    it stands in an element of its own, numbered on from the cells, with the vCPUs of the cell that is nearest. A device
    of unknown node stands with those that it shares a slot or a switch with; else it is near no vCPU in particular,
    save in a guest of one cell.
    """
    found = {str(cell.id): (parse_cpus(cell.vcpus), list[Device]()) for cell in guest.cells}
    cells = {cell.id: cell for cell in guest.cells}
    only = guest.cells[0] if len(guest.cells) == 1 else None
    strangers: dict[int, str] = {}
    ids: dict[str, str] = {}  # numaid by slot and switch
    # Those of known node first: what shares a switch with one of them stands where it does.
    for device in sorted(guest.devices, key=lambda device: device.host_node is None):
        cell = cells.get(device.guest_cell) if device.guest_cell is not None else only
        numaid = NOWHERE if cell is None else str(cell.id)
        if cell is not None and _is_off(device, cell):
            numaid = strangers.setdefault(device.host_node or 0, str(max(cells) + 1 + len(strangers)))
        places = (_slot(device), *device.switches)
        if device.host_node is None:
            numaid = next((ids[place] for place in places if place in ids), numaid)
        else:
            for place in places:
                ids.setdefault(place, numaid)
        vcpus = parse_cpus(cell.vcpus) if cell else CpuSet(range(_vcpus(guest)))
        found.setdefault(numaid, (vcpus, []))[1].append(device)
    return found


def _is_off(device: Device, cell: Cell) -> bool:
    nodes = parse_cpus(cell.host_nodes)
    return device.host_node is not None and bool(nodes) and device.host_node not in nodes


def _shown_above(guest: PlannedGuest, members: Iterable[Device]) -> Mapping[str, tuple[str, ...]]:
    """By guest address, the host's switches above a device that tell something, outermost first."""
    chains = {_slot(device): device.switches for device in members}
    telling = telling_switches(chains)
    return {
        device.guest_address: tuple(switch for switch in device.switches[::-1] if switch in telling)
        for device in members
    }


def _slot(device: Device) -> str:
    return device.address if device.kind in ("vf", "mdev") else slot_of(device.address)


def _shown_bridges(guest: PlannedGuest) -> dict[str, tuple[str, PciController]]:
    """The host's switches that the guest's tree shows: bus id and controller of each."""
    return {
        port.host: (f"0000:{port.bus:02x}:{port.slot or 0:02x}.{port.function}", port)
        for port in guest.controllers
        if port.host is not None and port.bus is not None
    }


def _absent_bridges(guest: PlannedGuest) -> dict[str, tuple[str, PciController]]:
    """A bus id that the guest does not have for each of the host's switches, and what is known of the link: nothing."""
    switches = sorted({switch for device in guest.devices for switch in device.switches})
    return {
        switch: (f"{_ABSENT}:{n >> 3 & 0x1F:02x}.{n & 7}", PciController(index=0, model="", host=switch))
        for n, switch in enumerate(switches)
    }


def _fill(
    cpu: _Element,
    devices: Iterable[Device],
    above: Mapping[str, tuple[str, ...]],
    bridges: Mapping[str, tuple[str, PciController]],
) -> None:
    """Write the devices of one <cpu>, each below its switches."""
    written: dict[str, _Element] = {}
    for device in sorted(devices, key=lambda device: device.guest_address):
        parent = cpu
        for switch in above[device.guest_address]:
            if switch not in written:
                bus_id, port = bridges[switch]
                written[switch] = _pci(parent, bus_id, _BRIDGE, port.link_speed_gts, port.link_width)
            parent = written[switch]
        class_code = device.class_code or _CLASSES.get(device.kind, _CLASSES["gpu"])
        _pci(parent, device.guest_address, class_code, device.link_speed_gts, device.link_width)


def _pci(parent: _Element, bus_id: str, class_code: str, speed_gts: float | None, width: int | None) -> _Element:
    """One <pci>. What is unknown stays empty, which NCCL takes for its own default; left out, it would ask the guest's
    virtual port."""
    from lxml import etree

    return etree.SubElement(
        parent,
        "pci",
        {
            "busid": bus_id,
            "class": f"0x{class_code}",
            "link_speed": "" if speed_gts is None else f"{speed_gts:.1f} GT/s PCIe",
            "link_width": "" if width is None else str(width),
        },
    )
