"""The tie-breaker between placements of equal rank: what they take from later guests. The least is best.

Pure. `make bench` compares this order with OpenStack Nova's packing on streams of guests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add
from typing import NamedTuple

from hosttune.inventory.cores import caches_of
from hosttune.inventory.pages import HUGE_1G
from hosttune.inventory.partitions import lost
from hosttune.inventory.shape import CellDemand, GuestShape
from hosttune.inventory.sizing import PlanningContext


class Fragmentation(NamedTuple):
    """What a placement breaks up, compared from the first field to the last. It adds up over the cells of a guest."""

    caches: int = 0  # last-level caches that the cells take
    # partitions of the NVSwitch fabric that can no longer be given, the largest size first
    partitions: tuple[int, ...] = ()
    free_gpus: int = 0  # GPUs without a guest on the nodes whose CPUs are taken: GPUs need CPUs near them
    # cells on nodes, nodes with the most free cores first, so that the largest room stays whole
    room: tuple[int, ...] = ()
    caches_cut: int = 0  # last-level caches that were whole and are then used in part
    large_pages: int = 0  # free 1 GiB pages on the nodes of a guest that uses none of them


def joined(a: Fragmentation, b: Fragmentation) -> Fragmentation:
    """Return what both break up."""
    return Fragmentation(
        a.caches + b.caches,
        a.partitions or b.partitions,  # only the GPUs have partitions; cells have none
        a.free_gpus + b.free_gpus,
        tuple(map(add, a.room, b.room)),
        a.caches_cut + b.caches_cut,
        a.large_pages + b.large_pages,
    )


class Fragments:
    """Computes what cells and GPUs break up on one host, and caches the results."""

    def __init__(self, context: PlanningContext) -> None:
        self._field = context
        nodes = context.resources.nodes.values()
        sizes = sorted({len(node.free) for node in nodes}, reverse=True)
        self._rooms = {node.id: tuple(int(size == len(node.free)) for size in sizes) for node in nodes}
        self._no_room = (0,) * len(sizes)
        self._caches: dict[tuple[int, int, int, bool], tuple[int, int]] = {}
        held = context.catalogue.holders
        self._free_gpus = Counter(node for address, node in context.countable.items() if address not in held)

    def of_gpus(self, gpus: Sequence[str]) -> Fragmentation:
        """Return what taking these GPUs breaks up, before any cell has a place."""
        return Fragmentation(partitions=lost(self._field.catalogue.fabric, gpus), room=self._no_room)

    def of_cell(self, cell: CellDemand, shape: GuestShape, node: int, taken: Mapping[int | None, int]) -> Fragmentation:
        """Return what a cell breaks up on a node; `taken`: its guest's GPUs by the node they count for."""
        key = node, cell.vcpus, shape.threads, shape.share_cores
        if key not in self._caches:
            self._caches[key] = caches_of(self._field.resources.nodes[node], cell.vcpus, shape)
        caches, cut = self._caches[key]
        memory = self._field.memory.get(node)
        pages = memory.pages_free(HUGE_1G) if memory and shape.page != HUGE_1G else 0
        beside = max(0, self._free_gpus[node] - taken.get(node, 0))
        return Fragmentation(caches, (), beside, self._rooms[node], cut, pages)
