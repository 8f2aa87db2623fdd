"""The guest's NCCL topology file: which GPUs and NICs share a switch or a node of the host, and their link speeds.

Pure. NCCL reads the file from /var/run/nvidia-topologyd/virtualTopology.xml unless NCCL_TOPO_FILE names another
(NVIDIA/nccl, src/graph/topo.cc, ncclTopoGetSystem). So does RCCL, its fork for AMD, which expects another version
number. The file has only <system>, <cpu> and <pci>: NCCL finds GPUs, NICs and NVLinks itself, below the <pci> with
their bus id (nccl-tests #86, nccl #1843), and reads attributes that a file omits from the machine. The link of a
virtual port says nothing about the real link, so the file has the speed and width of the host's links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hosttune.errors import BadInput
from hosttune.gpu import inside
from hosttune.gpu.inside import NCCL_FOLDER, Inside
from hosttune.gpu.mig_tables import is_profile_name
from hosttune.model import pciclass
from hosttune.model.pcitree import locality_switches
from hosttune.model.plan import Cell, Device, PciController, PlannedGuest
from hosttune.model.values import CpuSet, Value, parse_address, parse_cpus, slot_of

if TYPE_CHECKING:
    from lxml.etree import _Element


FILE = "virtualTopology.xml"
PLACE = f"{NCCL_FOLDER}/{FILE}"
NOWHERE = "-1"  # the word of the kernel and of NCCL for a device without a node
_BRIDGE = f"{pciclass.PCI_BRIDGE}00"
_CLASSES = {"gpu": f"{pciclass.DISPLAY_3D}00", "nic": f"{pciclass.ETHERNET}00"}  # if the host does not report the class
_GROUP_BITS = 32
_ABSENT = "ffff:ff"  # a bus that no guest has, because q35 has one PCI domain


def topology(guest: PlannedGuest) -> str | None:
    """Return the file's text.

    None if no GPU of the guest has a library that reads the file, or if its GPUs are of two makers with such libraries.
    """
    from lxml import etree

    shown = [device for device in guest.devices if is_gpu(device) or is_nic(device)]
    known = (inside(ids_of(device).partition(":")[0]).nccl for device in shown if is_gpu(device))
    versions = {version for version in known if version is not None}
    if len(versions) != 1:  # with two makers, each library would refuse the other's file
        return None
    system = etree.Element("system", version=versions.pop())
    bridges = {**_absent_bridges(guest), **_shown_bridges(guest)}
    for numaid, (affinity, members) in _cpus(guest).items():
        inner = [device for device in members if device in shown]
        if inner:
            cpu = etree.SubElement(system, "cpu", numaid=numaid, affinity=mask(affinity, _vcpus(guest)), arch="x86_64")
            if guest.accelerator == "kvm" and guest.cpu_vendor:  # as the host's; NCCL asks the CPU for family and model
                cpu.set("vendor", guest.cpu_vendor)
            _fill(cpu, inner, _shown_above(members), bridges)
    etree.indent(system)
    return etree.tostring(system, encoding="unicode") + "\n"


def mask(cpus: CpuSet, width: int) -> str:
    """Return CPUs in NCCL's form: hexadecimal groups of 32 bits, most significant first (src/include/cpuset.h)."""
    bits = sum(1 << cpu for cpu in cpus)
    groups = range((max(width, 1) - 1) // _GROUP_BITS, -1, -1)
    return ",".join(f"{bits >> _GROUP_BITS * n & 0xFFFFFFFF:08x}" for n in groups)


def is_gpu(device: Device) -> bool:
    """Whether a passed function is a GPU: a whole one or a virtual function of one."""
    return device.kind == "gpu" or (device.kind == "vf" and (device.class_code or "").startswith(pciclass.GPUS))


def is_nic(device: Device) -> bool:
    """Whether a passed function is a NIC: a whole one or a virtual function of one."""
    return device.kind == "nic" or (device.kind == "vf" and (device.class_code or "").startswith(pciclass.NETWORK))


def _vcpus(guest: PlannedGuest) -> int:
    return 1 + max((pin.vcpu for pin in guest.vcpu_pins), default=0)


def _cpus(guest: PlannedGuest) -> Mapping[str, tuple[CpuSet, list[Device]]]:
    """Return the <cpu> elements by numaid: the vCPUs near the devices, and the devices.

    There is one element for each cell. A device may be on a host node on which the guest has no cell. It then gets an
    element of its own, numbered after the cells, with the vCPUs of the nearest cell: it is as far from each cell as its
    node is. A device of unknown node is put with the devices that share a slot or a switch with it. Otherwise it is
    near no particular vCPU, except in a guest with one cell.
    """
    of_cell = {str(cell.id): (parse_cpus(cell.vcpus), list[Device]()) for cell in guest.cells}
    cells = {cell.id: cell for cell in guest.cells}
    only = guest.cells[0] if len(guest.cells) == 1 else None
    nodes_outside_guest: dict[int, str] = {}
    ids: dict[str, str] = {}  # numaid by slot and switch
    # Devices of known node first: a device that shares a switch with one of them gets the same element.
    for device in sorted(guest.devices, key=lambda device: device.host_node is None):
        cell = cells.get(device.guest_cell) if device.guest_cell is not None else only
        numaid = NOWHERE if cell is None else str(cell.id)
        if cell is not None and _is_off(device, cell):
            numaid = nodes_outside_guest.setdefault(
                device.host_node or 0, str(max(cells) + 1 + len(nodes_outside_guest))
            )
        places = (_slot(device), *device.switches)
        if device.host_node is None:
            numaid = next((ids[place] for place in places if place in ids), numaid)
        else:
            for place in places:
                ids.setdefault(place, numaid)
        vcpus = parse_cpus(cell.vcpus) if cell else CpuSet(range(_vcpus(guest)))
        of_cell.setdefault(numaid, (vcpus, []))[1].append(device)
    return of_cell


def _is_off(device: Device, cell: Cell) -> bool:
    nodes = parse_cpus(cell.host_nodes)
    return device.host_node is not None and bool(nodes) and device.host_node not in nodes


def _shown_above(members: Iterable[Device]) -> Mapping[str, tuple[str, ...]]:
    """Return, by guest address, the host's switches above a device that show how near it is to others.

    The outermost switch is first.
    """
    chains = {_slot(device): device.switches for device in members}
    telling = locality_switches(chains)
    return {
        device.guest_address: tuple(switch for switch in device.switches[::-1] if switch in telling)
        for device in members
    }


def _slot(device: Device) -> str:
    return device.address if device.kind in ("vf", "mdev") else slot_of(device.address)


def _shown_bridges(guest: PlannedGuest) -> dict[str, tuple[str, PciController]]:
    """Return the host's switches that the guest's PCI tree has: bus id and controller of each."""
    return {
        port.host: (f"0000:{port.bus:02x}:{port.slot or 0:02x}.{port.function}", port)
        for port in guest.controllers
        if port.host is not None and port.bus is not None
    }


def _absent_bridges(guest: PlannedGuest) -> dict[str, tuple[str, PciController]]:
    """Return a bus id that the guest does not have for each host switch. Its link is unknown."""
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
    """Return one <pci> element.

    An unknown attribute is written as empty, and NCCL uses its own default. If it were omitted, NCCL would read the
    link of the guest's virtual port.
    """
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


# --- where the guest finds devices -----------------------------------------------------------------------------
# Where the guest finds each passed device: below which ports, and at which bus address according to the plan.
# The bus number in the XML is libvirt's controller index; the guest's firmware may choose other numbers
# (formatdomain, "Device addresses"). The XML does fix the position of a root port on a root bus, and of each switch
# port below it. So the guest looks below these ports, and checks the device's ids before it changes anything.

# The kinds whose link and device control the guest may set: endpoints. A virtual function has no link of its own and
# shares device control with its physical function (PCIe 5.0, 9.3.5); a mediated device is not a PCIe device at all.
_ENDPOINTS = ("gpu", "nic", "nvme")
_SWITCH_PORTS = ("pcie-switch-upstream-port", "pcie-switch-downstream-port")
_IDS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_LAST_START = 15  # far above the eight memory slices that GPUs have


class PassedDevice(Value, frozen=True, kw_only=True):
    """A passed device as its guest sees it.

    - `address`: the plan's guest address.
    - `port`: the sysfs path of the root port above it, followed by device and function numbers of the switch ports
      below that port ("pci0000:04/0000:04:00.0/00.0/01.0"); "-" if the plan has no such port.
    - `function`: its device and function number there ("00.0").
    - `ids`: vendor and device id; "-" if unknown.
    - `tool`: the tool for its maker's driver settings; "-" if none is known.
    - `endpoint`: its PCIe control bits may be set.
    - `gpu`: it is a whole GPU.
    - `mig`: the MIG instances to create on it, "PROFILE@START,…"; "" for none.
    """

    address: str
    port: str
    function: str
    ids: str
    tool: str
    endpoint: bool
    gpu: bool
    maker: Inside
    mig: str = ""


def places(guest: PlannedGuest) -> tuple[PassedDevice, ...]:
    """Return the passed devices in the plan's order.

    Raises BadInput for a malformed address, or for two devices at one address.
    """
    devices: dict[str, PassedDevice] = {}
    for n, device in enumerate(guest.devices):
        where = f"plan: guests[{guest.name!r}].devices[{n}].guest_address"
        address = parse_address(device.guest_address, where=where)
        if address in devices:
            raise BadInput(f"{address} is there twice", where=where, hint="each device has an address of its own")
        ids = ids_of(device)
        maker = inside(ids.partition(":")[0])
        own = (assignment for assignment in guest.mig if device.kind == "gpu" and assignment.gpu == device.address)
        devices[address] = PassedDevice(
            address=address,
            port=_port(guest, address),
            function=address.rpartition(":")[2],
            ids=ids,
            # The host's driver sets the power limit and persistence of a vGPU or MIG vGPU.
            tool=maker.tool or "-" if device.kind == "gpu" else "-",
            endpoint=device.kind in _ENDPOINTS,
            gpu=device.kind == "gpu",
            maker=maker,
            mig=",".join(f"{assignment.profile}@{assignment.start}" for assignment in own),
        )
    for n, assignment in enumerate(guest.mig):
        where = f"plan: guests[{guest.name!r}].mig[{n}]"
        if not is_profile_name(assignment.profile):
            raise BadInput(f"{assignment.profile!r} is not a MIG profile", where=f"{where}.profile", hint="plan again")
        if not 0 <= assignment.start <= _LAST_START:
            raise BadInput(f"{assignment.start} is not a memory slice", where=f"{where}.start", hint="plan again")
    return tuple(devices.values())


def ids_of(device: Device) -> str:
    """Return vendor and device id from a plan's `identity` ("ADDRESS 10de:2335 …"); "-" if they are unknown."""
    return next((part for part in device.identity.split()[1:2] if _IDS.fullmatch(part)), "-")


def _port(guest: PlannedGuest, address: str) -> str:
    """Return the sysfs path of the root port above the device and of the switch ports between; "-" if there is none."""
    by_index = {controller.index: controller for controller in guest.controllers}
    hops: list[str] = []
    port = by_index.get(int(address.split(":")[1], 16))
    while port is not None and port.model in _SWITCH_PORTS and len(hops) < len(by_index):
        hops.insert(0, f"{port.slot or 0:02x}.{port.function}")
        if not _on_bus(port):
            return "-"
        port = by_index.get(port.bus) if port.bus is not None else None
    above = by_index.get(port.bus) if port and port.bus is not None else None
    if port is None or above is None or port.slot is None or port.model != "pcie-root-port" or not _on_bus(port):
        return "-"
    bus = 0 if above.model == "pcie-root" else above.bus_nr if above.model == "pcie-expander-bus" else None
    if bus is None or not 0 <= bus <= 0xFF:
        return "-"
    return "/".join((f"pci0000:{bus:02x}", f"0000:{bus:02x}:{port.slot:02x}.{port.function}", *hops))


def _on_bus(port: PciController) -> bool:
    return 0 <= (port.slot or 0) <= 0x1F and 0 <= port.function <= 7
