"""The guest's own PCIe tree.

Pure. Every passed slot is behind its own port (a GPU directly on pcie.0 is an integrated endpoint: CUDA initialisation
fails with error 3 on SXM parts), on an expander bus of its cell, so that the guest's kernel and NCCL see which node it
is near. Each host bridge of the host has an expander of its own: what is below one there is below one here. If the host
has a slot below a switch together with another passed slot, it is below a switch in the guest, too.

Bus numbers (QEMU, docs/pcie.txt, "Bus numbers issues"; SeaBIOS and OVMF number buses depth first, in the order of slots
and functions): each port and each switch takes one, and the bus numbers below an expander lie between its own and the
next one's. Controllers are numbered in the same order, and expanders begin where the numbers before them end. So
libvirt's index of a controller is the number of its bus in the guest, and the guest shows `guest_address`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from hosttune.inventory.devices import Catalogue
from hosttune.inventory.pcielink import limits
from hosttune.model.pcitree import host_bridge, locality_switches, switches_above
from hosttune.model.plan import Device, PciController, PlanFinding, PlannedGuest
from hosttune.model.values import address_key, grouped, slot_of


class Slot(msgspec.Struct, frozen=True):
    """The passed functions that share a slot of the guest, in address order."""

    members: tuple[str, ...]


class Switch(msgspec.Struct, frozen=True):
    """A switch of the host, named by its upstream port, and what is passed below it."""

    host: str
    below: tuple[Slot | Switch, ...]


Node = Slot | Switch


def slots_of(catalogue: Catalogue, devices: Iterable[str]) -> list[Slot]:
    """Return the slots of the guest: functions of one host slot share one; a virtual function has its own."""
    slots: dict[str, list[str]] = {}
    for address in sorted(devices, key=address_key):
        device = catalogue.pci.get(address)
        slots.setdefault(address if device and device.physfn else slot_of(address), []).append(address)
    return [Slot(tuple(members)) for members in slots.values()]


def cells_of_all(catalogue: Catalogue, cell_of: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the guest cell of each device, also of devices whose own node is unknown; None only if nothing shows it.

    Functions of one slot are in one place, and a switch has one uplink. So a device that shares a slot or a switch with
    a device of known cell is in the same cell. The nearest switch counts, and below it the lowest address.
    """
    known = sorted((address for address, cell in cell_of.items() if cell is not None), key=address_key)
    cells: dict[str, int] = {}
    for address in known:
        for place in (*_slot(catalogue, address), *switches_above(catalogue.index, address)):
            cells.setdefault(place, cell_of[address] or 0)

    def cell(address: str) -> int | None:
        places = (*_slot(catalogue, address), *switches_above(catalogue.index, address))
        return next((cells[place] for place in places if place in cells), None)

    return {address: cell(address) if own is None else own for address, own in cell_of.items()}


def _slot(catalogue: Catalogue, address: str) -> tuple[str, ...]:
    """Return the slot that a function shares with others; empty for anything else, such as a mediated device."""
    device = catalogue.pci.get(address)
    return (slot_of(address),) if device is not None and device.physfn is None else ()


def nested(catalogue: Catalogue, slots: Sequence[Slot]) -> tuple[Node, ...]:
    """Return the slots below the switches that show which slots are nearer to each other (`locality_switches`)."""
    chains = {slot.members[0]: switches_above(catalogue.index, slot.members[0]) for slot in slots}
    shown = locality_switches(chains)
    return _grow([(slot, [s for s in chains[slot.members[0]][::-1] if s in shown]) for slot in slots])


def _grow(placed: Sequence[tuple[Slot, list[str]]]) -> tuple[Node, ...]:
    """Return a tree of slots and the switches above them, outermost first, in the order of the slots."""
    below = grouped((chain[0] if chain else slot.members[0], (slot, chain[1:])) for slot, chain in placed)
    first = {(chain[0] if chain else slot.members[0]): slot for slot, chain in placed}
    switches = {chain[0] for _, chain in placed if chain}
    return tuple(Switch(key, _grow(inner)) if key in switches else first[key] for key, inner in below.items())


def single(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the tree with no switch below another: a slot keeps the switch directly above it if others share that."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Slot):
            found.append(node)
            continue
        own = tuple(inner for inner in node.below if isinstance(inner, Slot))
        found += (Switch(node.host, own),) if len(own) > 1 else own
        found += single([inner for inner in node.below if isinstance(inner, Switch)])
    return tuple(found)


def flat(nodes: Sequence[Node]) -> tuple[Slot, ...]:
    """Return the slots without switches."""
    slots: list[Slot] = []
    for node in nodes:
        slots += (node,) if isinstance(node, Slot) else flat(node.below)
    return tuple(slots)


LAST_SLOT = 0x1D  # 1e and 1f hold q35's own bridges and controllers
SLOTS = 32
FUNCTIONS = 8
LAST_BUS = 255
# Extra root ports for a guest with expanders. If a device is added later, libvirt cannot add a port for it, because the
# expanders have the next bus numbers.
HEADROOM = 2

# What is on pcie.0, then what is on each expander, each with its guest cell; None: no cell.
Groups = list[tuple[int | None, tuple[Node, ...]]]


class Tree(msgspec.Struct, frozen=True):
    """Controllers in index order, and the guest address of every host device.

    `note`: the parts of the host's tree that are missing because there are too few bus numbers; None if none are.
    """

    controllers: tuple[PciController, ...]
    addresses: dict[str, str]
    note: str | None = None


class NoRoomOnBus(Exception):
    """The guest would need more PCI bus numbers than there are."""


def build_tree(
    catalogue: Catalogue,
    cell_of: dict[str, int | None],
    cells: int,
    spare_ports: int,
    had: PlannedGuest | None = None,
) -> Tree:
    """Build the guest's PCIe tree.

    `cell_of` has each device's guest cell, out of `cells`. A device without a cell goes below a switch that it shares
    with a device that has one, else to the root bus; on another host bridge, to an expander of no cell. `spare_ports`
    are root ports on the root bus for disk, networks and hotplug. If there are too few bus numbers, the host bridges of
    a cell are made one first, then switches below switches are left out, then all switches.

    `had` is the guest before this change. Where its devices can keep their addresses, every controller stays: spare
    ports are not taken away, and further ones are on an expander of no cell after all others. (On the root bus they
    would move the numbers of every expander.)

    Raises NoRoomOnBus: the bus numbers are not enough even without switches.
    """
    cell_of = cells_of_all(catalogue, cell_of)
    assert all(cell is None or 0 <= cell < cells for cell in cell_of.values())
    slots = slots_of(catalogue, cell_of)
    joined = _groups(catalogue, slots, cell_of, by_bridge=False)
    one = "the host bridges of each cell are one"
    tries: tuple[tuple[Groups, str | None], ...] = (
        (_groups(catalogue, slots, cell_of, by_bridge=True), None),
        (joined, one),
        ([(cell, single(nodes)) for cell, nodes in joined], f"{one}, and switches below other switches are left out"),
        ([(cell, flat(nodes)) for cell, nodes in joined], f"{one}, and its PCIe switches are left out"),
    )
    for groups, note in tries:
        spares = spare_ports + (HEADROOM if len(groups) > 1 else 0)
        for before, on_root_bus, behind in (*_spares_kept(had, spares), (None, spares, 0)):
            on_root = (*groups[0][1], *[Slot(())] * on_root_bus)
            parts: Groups = [(None, on_root), *groups[1:], *([(None, (Slot(()),) * behind)] if behind else [])]
            expanders = len(parts) - 1
            pack = len(on_root) + expanders > LAST_SLOT
            root_slots = -(-len(on_root) // FUNCTIONS) if pack else len(on_root)
            if sum(_buses(nodes) for _, nodes in parts) + expanders > LAST_BUS or root_slots + expanders > LAST_SLOT:
                continue
            tree = _build_tree_parts(catalogue, parts, note, pack=pack)
            if before is None or _keeps(tree, before):
                return tree
    raise NoRoomOnBus(f"{len(slots)} devices need more than {LAST_BUS} bus numbers, or more slots than pcie.0 has")


def _spares_kept(had: PlannedGuest | None, spares: int) -> Iterator[tuple[PlannedGuest, int, int]]:
    """Yield the guest as it was with the spare ports on the root bus, and after all others, that may keep its tree."""
    if had is not None:
        used = {port.bus for port in had.controllers} | {address_key(device.guest_address)[1] for device in had.devices}
        free = [port.bus for port in had.controllers if port.model == "pcie-root-port" and port.index not in used]
        on_root_bus = free.count(0)
        yield had, max(on_root_bus, spares), 0
        yield had, on_root_bus, max(spares, len(free)) - on_root_bus


def _keeps(tree: Tree, had: PlannedGuest) -> bool:
    """Return whether every controller and device of a guest that is still there is where it was."""
    places = [
        [(port.index, port.model, port.bus, port.slot, port.function) for port in controllers]
        for controllers in (had.controllers, tree.controllers)
    ]
    return places[1][: len(places[0])] == places[0] and all(
        tree.addresses.get(device.address, device.guest_address) == device.guest_address for device in had.devices
    )


def _groups(
    catalogue: Catalogue, slots: Sequence[Slot], cell_of: Mapping[str, int | None], *, by_bridge: bool
) -> Groups:
    """Return the slots by root bus of the guest: one for each host bridge, or for each cell."""
    homes = grouped(
        ((cell_of[address := slot.members[0]], host_bridge(catalogue.index, address) if by_bridge else ""), slot)
        for slot in slots
    )
    groups = [(cell, nested(catalogue, here)) for (cell, _), here in homes.items()]
    groups.sort(key=lambda group: -1 if group[0] is None else group[0])
    return groups if groups and groups[0][0] is None else [(None, ()), *groups]


def _buses(nodes: Sequence[Node]) -> int:
    """Return the number of buses below: one for the port above each node, and one more for each switch."""
    return sum(1 if isinstance(node, Slot) else 2 + _buses(node.below) for node in nodes)


class _TreePart(msgspec.Struct, frozen=True):
    """A part of the tree: its controllers, numbered from `first`, and the addresses of its devices."""

    controllers: tuple[PciController, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: _TreePart) -> _TreePart:
        return _TreePart(self.controllers + other.controllers, self.addresses + other.addresses)


def _build_tree_parts(catalogue: Catalogue, groups: Groups, note: str | None, *, pack: bool) -> Tree:
    laid = _TreePart((PciController(index=0, model="pcie-root"),))
    laid += _ports(catalogue, groups[0][1], "pcie-root-port", bus=0, first=1, pack=pack)
    for n, (cell, nodes) in enumerate(groups[1:]):
        bus = len(laid.controllers)
        expander = PciController(index=bus, model="pcie-expander-bus", bus=0, slot=LAST_SLOT - n, bus_nr=bus, node=cell)
        laid += _TreePart((expander,))
        laid += _ports(catalogue, nodes, "pcie-root-port", bus=bus, first=bus + 1, pack=len(nodes) > SLOTS)
    return Tree(laid.controllers, dict(laid.addresses), note)


def _ports(catalogue: Catalogue, nodes: Sequence[Node], model: str, *, bus: int, first: int, pack: bool) -> _TreePart:
    """Return a port on `bus` for each node, with everything below it; indexes start at `first`, depth first."""
    laid = _TreePart()
    for nth, node in enumerate(nodes):
        index = first + len(laid.controllers)
        laid += _TreePart((_port(index, model, bus, nth, pack=pack),))
        if isinstance(node, Slot):
            places = ((address, f"0000:{index:02x}:00.{function}") for function, address in enumerate(node.members))
            laid += _TreePart(addresses=tuple(places))
        else:
            laid += _switch(catalogue, node, index)
    return laid


def _switch(catalogue: Catalogue, switch: Switch, bus: int) -> _TreePart:
    """Return a switch in the port whose bus is `bus`, with a downstream port for each node below it."""
    index = bus + 1
    speed, width = limits(catalogue.index, switch.host)
    upstream = PciController(
        index=index,
        model="pcie-switch-upstream-port",
        bus=bus,
        slot=0,
        host=switch.host,
        link_speed_gts=speed,
        link_width=width,
    )
    pack = len(switch.below) > SLOTS
    below = _ports(catalogue, switch.below, "pcie-switch-downstream-port", bus=index, first=index + 1, pack=pack)
    return _TreePart((upstream,)) + below


def _port(index: int, model: str, bus: int, nth: int, *, pack: bool) -> PciController:
    """Return the nth port of a bus: one for each slot, or (`pack`) eight functions for each slot."""
    first = 1 if bus == 0 else 0
    slot, function = divmod(nth, FUNCTIONS) if pack else (nth, 0)
    return PciController(
        index=index,
        model=model,
        bus=bus,
        slot=first + slot,
        function=function,
        chassis=index,
        port=(first + slot) * FUNCTIONS + function,
    )


def with_host_places(catalogue: Catalogue, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return devices with what the guest's own tree cannot show: class, link and switches on the host.

    A device of unknown node gets the cell that `build_tree` gives it: the cell of a device with which it shares a
    switch.
    """
    functions = {device.address: device.guest_cell for device in devices if device.kind != "mdev"}
    cell_of = cells_of_all(catalogue, functions)

    def placed(device: Device) -> Device:
        function = catalogue.pci.get(device.address)
        speed, width = limits(catalogue.index, device.address)
        return msgspec.structs.replace(
            device,
            guest_cell=cell_of.get(device.address, device.guest_cell),
            class_code=function.class_code if function else None,
            link_speed_gts=speed,
            link_width=width,
            switches=switches_above(catalogue.index, device.address),
        )

    return tuple(placed(device) for device in devices)


def tree_findings(tree: Tree, where: str) -> tuple[PlanFinding, ...]:
    """Return a finding about parts of the host's PCIe tree that the guest does not see."""
    if tree.note is None:
        return ()
    text = (
        f"not enough PCI bus numbers or slots for the host's tree: {tree.note}; the guest's NCCL topology file still "
        "shows which devices share a switch"
    )
    return (PlanFinding(level="warn", text=text, where=where),)
