"""The placements that a search tries, each a bit of one integer, so that those that still fit are one integer too.

Pure. What fits is the `and` of one mask for each amount that is left, so a search finds out in a few operations what a
placement leaves to all other guests. A placement that takes as much as a better one of its guest is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from hosttune.planning.mig.instances import is_vgpu_guest
from hosttune.planning.request.resource_pool import ResourcePool
from hosttune.planning.search.ledger import Ledger, places_of_node
from hosttune.planning.search.placements import Placement, PlacementStream
from hosttune.planning.search.problem import NOTHING, PlacementProblem, Rank

MemoryNeed = tuple[int | None, int, bool]  # page size, bytes, whether the next boot reserves the pages


class GuestOptions(msgspec.Struct, frozen=True, dict=True):
    """The listed placements of one guest, the best first: bit `first`, `first` + 1, … of the options.

    `whole`: it has no other placements that are worth trying. `after`: no placement that is not listed ranks better.
    """

    first: int
    placements: tuple[Placement, ...]
    whole: bool
    after: Rank

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The rank of each placement."""
        return tuple(placement.rank for placement in self.placements)

    @cached_property
    def bits(self) -> int:
        """All its placements."""
        return ((1 << len(self.placements)) - 1) << self.first

    def best(self, bits: int) -> Rank:
        """Return the least rank of some of its placements."""
        return self.ranks[(bits & -bits).bit_length() - 1 - self.first]

    def below(self, count: int) -> int:
        """Return its `count` best placements."""
        return ((1 << count) - 1) << self.first

    def each(self, bits: int) -> Iterator[Placement]:
        """Yield some of its placements, the best first."""
        bits >>= self.first
        while bits:
            low = bits & -bits
            yield self.placements[low.bit_length() - 1]
            bits ^= low


class PlacementOptions:
    """The listed placements of all guests of a problem; `rows` has one entry for each guest."""

    def __init__(self, problem: PlacementProblem, streams: Sequence[PlacementStream], most: int) -> None:
        self._redundant = _redundant(problem.resource_pool)
        self._of_amount: dict[int, dict[int, int]] = {}
        self._of_memory: dict[int, dict[MemoryNeed, int]] = {}
        self._masks: dict[object, int] = {}
        self._places = places_of_node(problem.context, problem.resource_pool)
        self._pooled = any(memory.pools for memory in problem.context.memory.values())
        rows: dict[PlacementStream, GuestOptions] = {}
        first = 0
        for i, stream in enumerate(streams):
            if stream not in rows:
                unlisted = is_vgpu_guest(problem.wants[i].guest)
                rows[stream] = row = self._unlisted(stream, first) if unlisted else self._listed(stream, first, most)
                first += len(row.placements)
        self.rows = tuple(rows[stream] for stream in streams)
        self.all = (1 << first) - 1
        self.whole = all(row.whole for row in self.rows)
        for row in rows.values():
            for number, placement in enumerate(row.placements, row.first):
                bit = 1 << number
                for index, much in placement.use:
                    if index not in self._redundant:
                        amounts = self._of_amount.setdefault(index, {})
                        amounts[much] = amounts.get(much, 0) | bit
                at_boot = placement.sizes.shape.at_boot
                for node, page, size in placement.memory:
                    needs = self._of_memory.setdefault(node, {})
                    needs[page, size, at_boot] = needs.get((page, size, at_boot), 0) | bit

    def _unlisted(self, stream: PlacementStream, first: int) -> GuestOptions:
        """Return the row of a vGPU guest: one placement stands for all equal GPUs, so they are drawn for each state."""
        best = stream.get(0)
        return GuestOptions(first, (), best is None, best.rank if best else NOTHING)

    def _listed(self, stream: PlacementStream, first: int, most: int) -> GuestOptions:
        """List the placements of a guest that no better one dominates."""
        placements: list[Placement] = []
        alike: dict[object, list[tuple[dict[int, int], Placement]]] = {}
        number = 0
        while len(placements) < most and (placement := stream.get(number)) is not None:
            number += 1
            use = {index: much for index, much in placement.use if index not in self._redundant}
            better = alike.setdefault((frozenset(placement.nodes), placement.picks, placement.slots), [])
            if not any(_within(a, use) and self._spares(known, placement) for a, known in better):
                better.append((use, placement))
                placements.append(placement)
        last = stream.get(number - 1) if number else None
        whole = len(placements) < most
        return GuestOptions(first, tuple(placements), whole, last.rank if last else NOTHING)

    def _spares(self, a: Placement, b: Placement) -> bool:
        """Return whether one placement leaves at least as much memory on each node as another on the same nodes."""
        late, early = a.sizes.shape.at_boot, b.sizes.shape.at_boot
        if early and not late:
            return False
        sizes = {node: (page, size) for node, page, size in b.memory}
        same_pages = not self._pooled or a.sizes.shape.page == b.sizes.shape.page
        return same_pages and all(size <= sizes[node][1] for node, _, size in a.memory)

    @cached_property
    def touching(self) -> dict[int, int]:
        """For each node, the placements that take something of it."""
        bits_of = {}
        for node, places in self._places.items():
            bits = 0
            for amounts in (self._of_amount.get(index, {}) for index in places):
                for some in amounts.values():
                    bits |= some
            for some in self._of_memory.get(node, {}).values():
                bits |= some
            bits_of[node] = bits
        return bits_of

    def fitting(self, ledger: Ledger) -> int:
        """Return the placements that fit what is left."""
        bits = self.all
        for index in self._of_amount:
            bits &= self._amount(index, ledger.left[index])
        for node in self._of_memory:
            bits &= self._memory(node, ledger)
        return bits

    def after(self, bits: int, placement: Placement, ledger: Ledger) -> int:
        """Return those of some placements that still fit after this one was taken."""
        for index, _ in placement.use:
            if index not in self._redundant:
                bits &= self._amount(index, ledger.left[index])
        for node, _, _ in placement.memory:
            bits &= self._memory(node, ledger)
        return bits

    def _amount(self, index: int, left: int) -> int:
        """Return the placements that take no more than this of an amount."""
        key = index, left
        if key not in self._masks:
            bits = self.all
            for much, some in self._of_amount.get(index, {}).items():
                if much > left:
                    bits &= ~some
            self._masks[key] = bits
        return self._masks[key]

    def _memory(self, node: int, ledger: Ledger) -> int:
        """Return the placements whose cell on a node finds its memory there."""
        key = "memory", node, ledger.memory_state(node)
        if key not in self._masks:
            bits = self.all
            for (page, size, at_boot), some in self._of_memory.get(node, {}).items():
                if not ledger.holds_memory(node, page, size, at_boot):
                    bits &= ~some
            self._masks[key] = bits
        return self._masks[key]


def _within(a: Mapping[int, int], b: Mapping[int, int]) -> bool:
    return all(much <= b.get(index, 0) for index, much in a.items())


def _redundant(resource_pool: ResourcePool) -> frozenset[int]:
    """Return amounts that never decide: cores of some width on nodes that have no narrower ones."""
    return frozenset(
        index
        for (node, least), index in resource_pool.cores.items()
        if least > 1 and resource_pool.capacity[index] == resource_pool.capacity[resource_pool.cores[node, least - 1]]
    )
