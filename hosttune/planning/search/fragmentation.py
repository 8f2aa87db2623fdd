"""What decides between placements of equal rank: what they take from guests that come after, the least is best.

Pure. `make bench` plays streams of guests against OpenStack Nova's packing by this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add
from typing import NamedTuple

from hosttune.planning.fabric.partitions import lost
from hosttune.planning.inventory.cores import caches_of
from hosttune.planning.inventory.pages import HUGE_1G
from hosttune.planning.inventory.shape import CellDemand, Shape
from hosttune.planning.inventory.sizing import PlanningContext


class Fragmentation(NamedTuple):
    """What a placement breaks up, compared from the first to the last. It adds up over the cells of a guest."""

    caches: int = 0  # last-level caches that the cells take
    partitions: tuple[int, ...] = ()  # of the NVSwitch fabric that cannot be given any more, the largest size first
    free_gpus: int = 0  # GPUs without a guest on the nodes whose CPUs are taken: GPUs keep CPUs near them
    room: tuple[int, ...] = ()  # cells on nodes, the nodes with the most free cores first: the largest room stays whole
    caches_cut: int = 0  # last-level caches that were whole and of which a part is taken
    large_pages: int = 0  # free 1 GiB pages on the nodes of a guest that takes none of them


def joined(a: Fragmentation, b: Fragmentation) -> Fragmentation:
    """What both break up."""
    return Fragmentation(
        a.caches + b.caches,
        a.partitions or b.partitions,  # only the GPUs decide about them: cells have none
        a.free_gpus + b.free_gpus,
        tuple(map(add, a.room, b.room)),
        a.caches_cut + b.caches_cut,
        a.large_pages + b.large_pages,
    )


class Fragments:
    """Says what cells and GPUs break up on one host; remembers what was asked before."""

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
        """What taking these GPUs breaks up, before any cell has a place."""
        return Fragmentation(partitions=lost(self._field.catalogue.fabric, gpus), room=self._no_room)

    def of_cell(self, cell: CellDemand, shape: Shape, node: int, taken: Mapping[int | None, int]) -> Fragmentation:
        """What a cell breaks up on a node; `taken`: how many GPUs of each node its guest has itself."""
        key = node, cell.vcpus, shape.threads, shape.share_cores
        if key not in self._caches:
            self._caches[key] = caches_of(self._field.resources.nodes[node], cell.vcpus, shape)
        caches, cut = self._caches[key]
        memory = self._field.memory.get(node)
        pages = memory.pages_free(HUGE_1G) if memory and shape.page != HUGE_1G else 0
        beside = max(0, self._free_gpus[node] - taken.get(node, 0))
        return Fragmentation(caches, (), beside, self._rooms[node], cut, pages)
