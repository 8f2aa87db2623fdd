"""What of the host's PCIe tree a guest is to see: its passed slots below the switches that they share.

Pure. A switch is shown where it joins two passed slots at least; below such a switch those between it and a slot are
shown too, for the way past them is what tells PXB from PIX. A switch that joins nothing, and a switch that only leads
to another, change no grade and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hosttune.model.host import PciDevice
from hosttune.model.pcitree import switches_above
from hosttune.model.values import slot_of
from hosttune.planning.devices import Catalogue, address_key


@dataclass(frozen=True)
class Slot:
    """The passed functions that share a slot of the guest, in address order."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class Switch:
    """A switch of the host, by its upstream port, and what is passed below it."""

    host: str
    below: tuple[Slot | Switch, ...]


Node = Slot | Switch


def slots_of(catalogue: Catalogue, devices: Iterable[str]) -> list[Slot]:
    """Devices that share a guest slot: the functions of one host slot; virtual functions stand alone."""
    slots: dict[str, list[str]] = {}
    for address in sorted(devices, key=address_key):
        device = catalogue.pci.get(address)
        slots.setdefault(address if device and device.physfn else slot_of(address), []).append(address)
    return [Slot(tuple(members)) for members in slots.values()]


def nested(catalogue: Catalogue, slots: Sequence[Slot]) -> tuple[Node, ...]:
    """The slots below every switch that tells their grades apart."""
    return _grow([(slot, switches_above(catalogue.pci, slot.members[0])[::-1]) for slot in slots], shared=False)


def _grow(placed: Sequence[tuple[Slot, tuple[str, ...]]], *, shared: bool) -> tuple[Node, ...]:
    """Slots with the switches still above them, outermost first; `shared`: below a switch that joins several."""
    below: dict[str, list[tuple[Slot, tuple[str, ...]]]] = {}
    for slot, chain in placed:
        key = f"switch {chain[0]}" if chain else f"slot {slot.members[0]}"
        below.setdefault(key, []).append((slot, chain[1:]))
    found: list[Node] = []
    for key, inner in below.items():
        kind, _, name = key.partition(" ")
        found += _switch(name, inner, shared=shared) if kind == "switch" else (slot for slot, _ in inner)
    return tuple(found)


def _switch(name: str, placed: Sequence[tuple[Slot, tuple[str, ...]]], *, shared: bool) -> tuple[Node, ...]:
    branches = {chain[0] if chain else slot.members[0] for slot, chain in placed}
    inner = _grow(placed, shared=shared or len(branches) > 1)
    if len(inner) == 1 and (isinstance(inner[0], Switch) or not shared):
        return inner
    return (Switch(name, inner),)


def single(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The same with no switch below another: each slot keeps the switch directly above it, if others share that."""
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
    """The slots alone."""
    found: list[Slot] = []
    for node in nodes:
        found += (node,) if isinstance(node, Slot) else flat(node.below)
    return tuple(found)


def link_limits(function: PciDevice | None) -> tuple[float | None, int | None]:
    """The most that both ends of a function's link can do, in GT/s and lanes; None where it is not known."""
    link = function.link if function else None
    if link is None:
        return None, None
    speeds = [link.max_speed_gts, link.upstream.max_speed_gts if link.upstream else None]
    widths = [link.max_width, link.upstream.max_width if link.upstream else None]
    return (
        min((speed for speed in speeds if speed is not None), default=None),
        min((width for width in widths if width is not None), default=None),
    )
