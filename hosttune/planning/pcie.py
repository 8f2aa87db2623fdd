"""The guest's own PCIe tree.

Pure. Every passed slot sits behind a root port of its own (a GPU directly on pcie.0 is an integrated
endpoint: CUDA initialisation fails with error 3 on SXM parts); with several cells the port is on the
expander bus of its cell, so that the guest's kernel and NCCL see which node a device is near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hosttune.model.plan import PciController
from hosttune.model.values import slot_of
from hosttune.planning.devices import Catalogue, address_key

LAST_SLOT = 0x1D  # 1e and 1f hold q35's own bridges and controllers
PORTS_PER_SLOT = 8
LAST_BUS = 255


@dataclass(frozen=True)
class Tree:
    """Controllers in index order, and the guest address of every host device."""

    controllers: tuple[PciController, ...]
    addresses: dict[str, str]


class NoRoomOnBus(Exception):
    """The guest would need more PCI bus numbers than there are."""


def _slots(catalogue: Catalogue, devices: Sequence[str]) -> list[list[str]]:
    """Devices that share a guest slot: the functions of one host slot; virtual functions stand alone."""
    slots: dict[str, list[str]] = {}
    for address in sorted(devices, key=address_key):
        device = catalogue.pci.get(address)
        slots.setdefault(address if device and device.physfn else slot_of(address), []).append(address)
    return list(slots.values())


def build_tree(catalogue: Catalogue, cell_of: dict[str, int | None], cells: int, spare_ports: int) -> Tree:
    """Lay out the guest's PCIe tree. Raises NoRoomOnBus.

    `cell_of` gives each device's guest cell; a device without one goes to the root bus. `spare_ports` are
    root ports on the root bus for disk, networks and hotplug.
    """
    slots = _slots(catalogue, list(cell_of))
    expand = sorted({cell_of[s[0]] for s in slots} - {None}, key=lambda c: c or 0) if cells > 1 else []
    controllers = [PciController(index=0, model="pcie-root")]
    on_root = [s for s in slots if not (cells > 1 and cell_of[s[0]] is not None)]
    top = LAST_BUS + 1
    numbers: dict[int, int] = {}
    for cell in reversed(expand):
        assert cell is not None
        top -= 1 + sum(cell_of[s[0]] == cell for s in slots)
        numbers[cell] = top
    ports = len(on_root) + spare_ports
    if ports + 1 > top or len(expand) + len(slots) + spare_ports > LAST_BUS:
        raise NoRoomOnBus(f"{len(slots)} devices and {spare_ports} spare ports need more than {LAST_BUS} bus numbers")
    for n, (cell, bus_nr) in enumerate(sorted(numbers.items())):
        controllers.append(
            PciController(index=n + 1, model="pcie-expander-bus", bus=0, slot=LAST_SLOT - n, bus_nr=bus_nr, node=cell)
        )
    expander = {controller.node: controller.index for controller in controllers[1:]}
    addresses: dict[str, str] = {}
    used: dict[int, int] = {}
    pack = ports + len(expand) > LAST_SLOT - 1
    ordered: list[list[str] | None] = [*slots, *[None] * spare_ports]
    for slot in ordered:
        cell = cell_of[slot[0]] if slot else None
        bus = expander.get(cell, 0) if cell is not None else 0
        index = len(controllers)
        controllers.append(_port(index, bus, used.setdefault(bus, 0), pack=pack and bus == 0))
        used[bus] += 1
        for function, address in enumerate(slot or ()):
            addresses[address] = f"0000:{index:02x}:00.{function}"
    return Tree(tuple(controllers), addresses)


def _port(index: int, bus: int, nth: int, *, pack: bool) -> PciController:
    """The nth root port of a bus: a slot each, or eight functions a slot where slots are short."""
    first = 1 if bus == 0 else 0
    slot, function = divmod(nth, PORTS_PER_SLOT) if pack else (nth, 0)
    return PciController(
        index=index,
        model="pcie-root-port",
        bus=bus,
        slot=first + slot,
        function=function,
        chassis=index,
        port=(first + slot) * PORTS_PER_SLOT + function,
    )
