"""What a planned guest should find in itself, computed from its plan. Pure."""

from __future__ import annotations

import msgspec

from hosttune.guest.libraries import library
from hosttune.guest.nccl import is_gpu, is_nic
from hosttune.guest.places import ids_of
from hosttune.model import pciclass
from hosttune.model.guestplan import ExpectedCell, ExpectedDevice, ExpectedPair, GuestPlan
from hosttune.model.host import PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.networkintent import Roce
from hosttune.model.pcitree import grade
from hosttune.model.plan import PciController, PlannedGuest

_PORTS = {
    "pcie-root-port": "root-port",
    "pcie-switch-upstream-port": "upstream-port",
    "pcie-switch-downstream-port": "downstream-port",
}


def expected(guest: PlannedGuest, roce: Roce | None = None) -> GuestPlan:
    """Return the document for this guest. Grades that cannot be derived from the guest's own PCI tree are left out.

    `roce`: what the intent declares of the host's RoCE ports.
    """
    tree = guest_tree(guest)
    index = DeviceIndex(tuple(tree.values()))
    gpus = [device.guest_address for device in guest.devices if is_gpu(device)]
    nics = [device.guest_address for device in guest.devices if is_nic(device)]
    pairs = ((gpu, nic, grade(index, gpu, nic)) for gpu in gpus for nic in nics)
    return GuestPlan(
        name=guest.name,
        cells=tuple(ExpectedCell(id=cell.id, cpus=cell.vcpus, memory_bytes=cell.memory_bytes) for cell in guest.cells),
        devices=tuple(
            ExpectedDevice(
                address=device.guest_address,
                kind=device.kind,
                ids=None if ids_of(device) == "-" else ids_of(device),
                node=tree[device.guest_address].numa_node,
            )
            for device in guest.devices
            if device.kind != "mdev"  # it has no configuration space of the host's device
        ),
        library=library(guest, roce),
        roce=_roce(guest, roce),
        pairs=tuple(ExpectedPair(gpu=gpu, nic=nic, grade=found) for gpu, nic, found in pairs if found is not None),
    )


def _roce(guest: PlannedGuest, declared: Roce | None) -> Roce | None:
    """Return the declaration for the NICs of this guest, by their guest addresses; None if it is about none of them.

    A virtual function has no port of its own: its settings are those of the physical one, which the host checks.
    """
    own = [device for device in guest.devices if device.kind == "nic"]
    if declared is None or not own:
        return None
    if declared.nics is None:
        return declared
    named = tuple(device.guest_address for device in own if device.address in (declared.addresses or ()))
    return msgspec.structs.replace(declared, nics=named) if named else None


def guest_tree(guest: PlannedGuest) -> dict[str, PciDevice]:
    """Return ports and passed functions of a planned guest by guest address, as the guest's kernel should show them.

    A controller's index is its bus number in the guest (`planning.pcie` makes sure of that).
    """
    by_index = {controller.index: controller for controller in guest.controllers}
    ports = [port for port in guest.controllers if port.model in _PORTS]
    functions = {
        _address(port): PciDevice(
            address=_address(port),
            class_code=f"{pciclass.PCI_BRIDGE}00",
            port_type=_PORTS[port.model],
            parent=_parent(by_index, port.bus),
            numa_node=_node(by_index, port.bus),
        )
        for port in ports
    }
    for device in guest.devices:
        bus = int(device.guest_address.split(":")[1], 16)
        functions[device.guest_address] = PciDevice(
            address=device.guest_address,
            class_code=device.class_code,
            parent=_parent(by_index, bus),
            numa_node=_node(by_index, bus),
        )
    return functions


def _address(port: PciController) -> str:
    return f"0000:{port.bus or 0:02x}:{port.slot or 0:02x}.{port.function}"


def _parent(by_index: dict[int, PciController], bus: int | None) -> str | None:
    """Return the bridge above this bus; None for a root bus."""
    above = by_index.get(bus) if bus is not None else None
    return _address(above) if above is not None and above.model in _PORTS else None


def _node(by_index: dict[int, PciController], bus: int | None) -> int | None:
    """Return the guest node of devices on this bus: that of the expander above it."""
    seen: set[int] = set()
    while bus is not None and bus not in seen and (above := by_index.get(bus)) is not None:
        if above.node is not None:
            return above.node
        seen.add(bus)
        bus = above.bus
    return None
