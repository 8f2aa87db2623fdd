"""The part of the host's PCIe tree that a guest sees: its passed slots below the switches that they share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hosttune.inventory.devices import Catalogue
from hosttune.model.pcitree import locality_switches, switches_above
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
