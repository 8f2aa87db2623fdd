"""The input of every search over the guests of an intent, and how it compares placements. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import lcm
from operator import add, sub
from typing import Generic, NamedTuple, TypeVar

import msgspec

from hosttune.inventory.cores import CellDemand, GuestShape, caches_of
from hosttune.inventory.pages import HUGE_1G
from hosttune.inventory.partitions import lost
from hosttune.inventory.sizing import PlanningContext, Sizes
from hosttune.planning.request.resource_pool import GuestRequest, ResourcePool, read_resource_pool


class Fragmentation(NamedTuple):
    """What a placement breaks up, compared from the first field to the last. It adds up over the cells of a guest.

    `make bench` compares this order with OpenStack Nova's packing on streams of guests.
    """

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


T = TypeVar("T")


class LazySequence(Generic[T]):
    """The items of a source, each generated once."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._kept: list[T] = []

    def get(self, number: int) -> T | None:
        """Return the item of this number, from 0 on; None after the last."""
        while len(self._kept) <= number:
            try:
                self._kept.append(next(self._source))
            except StopIteration:
                return None
        return self._kept[number]

    def __iter__(self) -> Iterator[T]:
        """Yield every item."""
        number = 0
        while (item := self.get(number)) is not None:
            yield item
            number += 1


class PlacementProblem(msgspec.Struct, frozen=True, dict=True):
    """Guests, the host, and the resources for which the guests compete.

    `unit`: objectives are counted in parts of this size, so that each is a whole number.
    """

    context: PlanningContext
    wants: tuple[GuestRequest, ...]
    resource_pool: ResourcePool
    unit: int

    @cached_property
    def fragments(self) -> Fragments:
        """The object that computes what placements break up on this host."""
        return Fragments(self.context)

    @cached_property
    def pair(self) -> dict[tuple[int, int], int]:
        """The cost of two cells by the distance between their nodes, in parts of `unit`."""
        nodes = list(self.context.resources.nodes)
        return {(a, b): self.unit * self.context.resources.distance(a, b) for a in nodes for b in nodes if a != b}

    @cached_property
    def cuts(self) -> dict[object, LazySequence[Sizes]]:
        """The ways to divide each guest, cached by `placements` for every search."""
        return {}


def read_problem(context: PlanningContext, wants: Sequence[GuestRequest]) -> PlacementProblem:
    """Count the resources for which these guests compete."""
    # The factor 2 makes half a pair of cells whole as well.
    parts = [*range(1, len(context.resources.nodes) + 1)]
    parts += [sum(cell.vcpus for cell in w.guest.numa) for w in wants if isinstance(w.guest.numa, tuple)]
    return PlacementProblem(context, tuple(wants), read_resource_pool(context, wants), 2 * lcm(*parts))


# --- ranks ----------------------------------------------------------------------------------------------------

# Ranks add up field by field, and addition keeps their order: if one guest's placement gets better and the others
# stay the same, the whole plan gets better. The search uses that for its bounds.


class Rank(NamedTuple):
    """The rank of a placement of one guest, or of a plan for several guests."""

    unplaced: int = 0  # guests without a place
    level: int = 0  # 1 for cells off the nodes of the guest's GPUs, 1 more for each cell beyond the contract's number
    mixed: int = 0  # GPU models beyond one
    cost: int = 0  # the contract's objective, in parts of `Problem.unit`
    short: int = 0  # guests whose `auto` size was reduced
    busy: int = 0  # GPUs that a process uses
    order: int = 0  # number of the cut: the more threads per core and the larger the pages, the lower


NOTHING = Rank()
LEFT_OUT = Rank(unplaced=1)
NEXT = Rank(order=1)  # the smallest step from one rank to another


def plus(a: Rank, b: Rank) -> Rank:
    """Return the sum of two ranks."""
    return Rank(*map(add, a, b))


def minus(a: Rank, b: Rank) -> Rank:
    """Return a rank without a part of it; single fields may become negative."""
    return Rank(*map(sub, a, b))


def total(ranks: Iterable[Rank]) -> Rank:
    """Return the sum of all ranks."""
    fields = [sum(column) for column in zip(*ranks, strict=True)]
    return Rank(*fields) if fields else NOTHING


def times(rank: Rank, count: int) -> Rank:
    """Return the rank of `count` guests with this rank."""
    return Rank(*(count * field for field in rank))
