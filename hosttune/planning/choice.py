"""Which GPUs and which nodes: every choice that could be best is tried, the best one is kept.

Pure. Choices come in the order of what they could cost at the least, so that the search ends as soon as nothing
that is left can be better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from hosttune.model.intent import GuestIntent
from hosttune.planning.candidates import Candidates, GpuSet, Taken
from hosttune.planning.devices import address_key
from hosttune.planning.fabric import lost
from hosttune.planning.mig import MigSlot
from hosttune.planning.placement import (
    Placement,
    Shape,
    Spans,
    fewest_caches,
    least_cost,
    least_of_part,
    place,
    possible,
)
from hosttune.planning.sizing import Base, Field, Parts, base_cells, enlarge, shapes


@dataclass(frozen=True)
class Choice:
    """A decided guest: its GPUs, the node of each cell, its final shape."""

    gpus: GpuSet
    placement: Placement
    shape: Shape
    short: bool
    extra_cells: int
    slots: tuple[MigSlot, ...] = ()  # MIG instances that it gets as vGPUs
    parts: Parts | None = None  # and what part of each GPU those are

    @property
    def sharing(self) -> GpuSet:
        """The GPUs that its `auto` size is a share of."""
        return self.gpus or tuple(sorted({slot.gpu for slot in self.slots}, key=address_key))


@dataclass(frozen=True)
class Attempt:
    """One thing to try: these GPUs (and other named devices), so many cells, on `only` these nodes if given."""

    gpus: GpuSet
    device_nodes: tuple[int, ...]
    cells: int
    only: frozenset[int] | None


# What decides between choices, first to last: cost, auto size cut short, GPU models mixed, busy GPUs, order of the
# cut (threads per core, page size), last-level caches, partitions of the fabric that break, nodes, addresses.
Rank = tuple[Fraction, bool, int, int, int, int, tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]
Ranked = tuple[Rank, Choice]


def choose(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """The best choice of GPUs, cells and nodes; None when nothing fits.

    First the contract's own cells: one on each node that holds one of the guest's GPUs. Where those do not fit
    for any choice of GPUs, as many cells on any nodes; then one cell more, and so on.
    """
    if next(_feasible(field, guest, candidates), None) is None:
        return None
    spans: Spans = {}
    best: Ranked | None = None
    for spread in candidates.spreads():
        best = _own_nodes(field, guest, candidates, others, spread, best, spans)
    if best:
        return best[1]
    for extra in range(len(field.resources.nodes)):
        for spread in candidates.spreads():
            best = _any_nodes(field, guest, candidates, others, spread, extra, best, spans)
        if best:
            return replace(best[1], extra_cells=extra)
    return None


def _own_nodes(
    field: Field,
    guest: GuestIntent,
    candidates: Candidates,
    others: tuple[str, ...],
    spread: int,
    best: Ranked | None,
    spans: Spans,
) -> Ranked | None:
    """The contract's own cells. The cost follows from the nodes, so that hopeless branches are cut as they grow."""

    def hopeless(taken: Taken) -> bool:
        return best is not None and least_of_part(field.resources, taken, spread, candidates.count) > best[0][0]

    for gpus in candidates.over(spread, hopeless):
        base = base_cells(field, guest, gpus)
        if base.nodes is not None:
            attempt = Attempt(gpus, _nodes_of(field, (*gpus, *others)), base.cells, base.nodes)
            best = _better(field, guest, attempt, best, spans)
    return best


def _any_nodes(
    field: Field,
    guest: GuestIntent,
    candidates: Candidates,
    others: tuple[str, ...],
    spread: int,
    extra: int,
    best: Ranked | None,
    spans: Spans,
) -> Ranked | None:
    """Cells on any nodes, `extra` more than the contract's: the sets that could be cheapest come first."""
    attempts = []
    for gpus in candidates.over(spread):
        base: Base = base_cells(field, guest, gpus)
        cells = base.cells + extra
        if cells <= len(field.resources.nodes) and (base.may_grow or not extra):
            attempts.append(Attempt(gpus, _nodes_of(field, (*gpus, *others)), cells, None))
    for attempt in sorted(attempts, key=lambda a: (_least(field, a), [address_key(gpu) for gpu in a.gpus])):
        best = _better(field, guest, attempt, best, spans)
    return best


def _nodes_of(field: Field, addresses: tuple[str, ...]) -> tuple[int, ...]:
    nodes = (field.catalogue.node(address) for address in addresses)
    return tuple(node for node in nodes if node is not None and node in field.resources.nodes)


def some_choice(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """A choice that fits, not the best one: enough to try whether a change to a guest would help."""
    for gpus, cells in _feasible(field, guest, candidates):
        attempt = Attempt(gpus, _nodes_of(field, (*gpus, *others)), cells, None)
        if found := _best_shape(field, guest, attempt, _least(field, attempt), None, {}):
            return found[1]
    return None


def _feasible(field: Field, guest: GuestIntent, candidates: Candidates) -> Iterator[tuple[GpuSet, int]]:
    """GPUs and numbers of cells for which some nodes have room; no optimum is looked for.

    Which GPUs are taken matters only through the number of cells: one set for each number is enough.
    """
    tried: set[int] = set()
    for spread in candidates.spreads():
        for gpus in candidates.over(spread):
            base = base_cells(field, guest, gpus)
            if base.cells in tried:
                if base.nodes is not None:
                    break  # every set of this spread has as many cells
                continue
            tried.add(base.cells)
            for cells in range(base.cells, 1 + (len(field.resources.nodes) if base.may_grow else base.cells)):
                cuts = shapes(field, guest, gpus, cells)
                if any(possible(sizes.shape, field.resources, field.memory) for sizes in cuts):
                    yield gpus, cells


def _better(field: Field, guest: GuestIntent, attempt: Attempt, best: Ranked | None, spans: Spans) -> Ranked | None:
    """The better of the best so far and what an attempt gives."""
    least = _least(field, attempt)
    if best and (least > best[0][0] or (least == best[0][0] and _is_perfect(field, best, spans))):
        return best
    found = _best_shape(field, guest, attempt, least, best[0][0] if best else None, spans)
    return found if found and (best is None or found[0] < best[0]) else best


def _least(field: Field, attempt: Attempt) -> Fraction:
    return least_cost(field.resources, attempt.device_nodes, attempt.cells, attempt.only)


def _is_perfect(field: Field, best: Ranked, spans: Spans) -> bool:
    """Nothing of the same cost can be better, but for lower nodes or addresses, which come first anyway."""
    (_, short, models, busy, order, llcs, broken, _, _), choice = best
    if broken:
        return False  # another set of GPUs may leave more partitions whole
    least = len(choice.shape.cells) * fewest_caches(field.resources, choice.shape, spans)
    return not short and models <= 1 and busy == 0 and order == 0 and llcs <= least


def _best_shape(
    field: Field, guest: GuestIntent, attempt: Attempt, least: Fraction, limit: Fraction | None, spans: Spans
) -> Ranked | None:
    gpus = attempt.gpus
    models = len({field.catalogue.gpus[a].model for a in gpus})
    busy = sum(bool(field.catalogue.gpus[a].processes) for a in gpus)
    broken = lost(field.catalogue.fabric, gpus)
    best: Ranked | None = None
    for order, sizes in enumerate(shapes(field, guest, gpus, attempt.cells)):
        vcpus = sizes.shape.vcpus
        most = None if limit is None else int(limit * vcpus)
        placement = place(sizes.shape, field.resources, field.memory, attempt.device_nodes, most, spans, attempt.only)
        if placement is None:
            continue
        cost = Fraction(placement.cost, vcpus)
        addresses = tuple(address_key(a) for a in gpus)
        key = (cost, sizes.short, models, busy, order, placement.llcs, broken, placement.nodes, addresses)
        if best is None or key < best[0]:
            shape = enlarge(field, sizes, guest, gpus, placement.nodes)
            best = key, Choice(gpus, placement, shape, sizes.short, 0)
        # Later cuts come after in order and cannot be cheaper: equal cells cost the same whatever their size.
        if not sizes.short and (cost == least or attempt.only is not None):
            break
    return best
