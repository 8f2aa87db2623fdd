"""Which GPUs and which nodes: every choice that could be best is tried, the best one is kept.

Pure. Choices come in the order of what they could cost at the least, so that the search ends as soon as nothing
that is left can be better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from hosttune.model.intent import GuestIntent
from hosttune.planning.candidates import Candidates, GpuSet, Taken
from hosttune.planning.devices import address_key, countable_gpus
from hosttune.planning.fabric import lost
from hosttune.planning.mig import MigSlot
from hosttune.planning.placement import Placement, Shape, least_cost, least_of_part, place, possible
from hosttune.planning.sizing import Base, Field, Parts, base_cells, enlarge, shapes
from hosttune.planning.ties import Ties, ties_of


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


class Rank(NamedTuple):
    """What decides between choices, first to last; the least is best. `llcs` and `spoils` are explained in `ties`."""

    cost: Fraction
    short: bool  # an auto size was cut short
    models: int  # different GPU models
    busy: int  # GPUs that a process uses
    order: int  # of the cut: threads per core, page size
    llcs: int
    partitions: tuple[int, ...]  # of the fabric that break, the largest size first
    spoils: int
    nodes: tuple[int, ...]
    addresses: tuple[tuple[int, ...], ...]


Ranked = tuple[Rank, Choice]


@dataclass(frozen=True)
class Question:
    """One guest to be placed; `others` are devices that it names besides its GPUs."""

    field: Field
    guest: GuestIntent
    candidates: Candidates
    others: tuple[str, ...]
    ties: Ties


def choose(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """The best choice of GPUs, cells and nodes; None when nothing fits.

    First the contract's own cells: one on each node that holds one of the guest's GPUs. Where those do not fit
    for any choice of GPUs, as many cells on any nodes; then one cell more, and so on.
    """
    if next(_feasible(field, guest, candidates), None) is None:
        return None
    ask = Question(field, guest, candidates, others, ties_of(field.resources, field.memory, _free_gpus(field)))
    best: Ranked | None = None
    for spread in candidates.spreads():
        best = _own_nodes(ask, spread, best)
    if best:
        return best[1]
    for extra in range(len(field.resources.nodes)):
        for spread in candidates.spreads():
            best = _any_nodes(ask, spread, extra, best)
        if best:
            return replace(best[1], extra_cells=extra)
    return None


def _free_gpus(field: Field) -> Counter[int]:
    """GPUs of each node that no guest has."""
    catalogue = field.catalogue
    free = (gpu.address for gpu in countable_gpus(field.host, catalogue) if gpu.address not in catalogue.holders)
    return Counter(node for node in map(catalogue.node, free) if node is not None)


def _own_nodes(ask: Question, spread: int, best: Ranked | None) -> Ranked | None:
    """The contract's own cells. The cost follows from the nodes, so that hopeless branches are cut as they grow."""
    resources, candidates = ask.field.resources, ask.candidates

    def hopeless(taken: Taken) -> bool:
        return best is not None and least_of_part(resources, taken, spread, candidates.count) > best[0].cost

    for gpus in candidates.over(spread, hopeless):
        base = base_cells(ask.field, ask.guest, gpus)
        if base.nodes is not None:
            attempt = Attempt(gpus, _nodes_of(ask.field, (*gpus, *ask.others)), base.cells, base.nodes)
            best = _better(ask, attempt, best)
    return best


def _any_nodes(ask: Question, spread: int, extra: int, best: Ranked | None) -> Ranked | None:
    """Cells on any nodes, `extra` more than the contract's: the sets that could be cheapest come first."""
    attempts = []
    for gpus in ask.candidates.over(spread):
        base: Base = base_cells(ask.field, ask.guest, gpus)
        cells = base.cells + extra
        if cells <= len(ask.field.resources.nodes) and (base.may_grow or not extra):
            attempts.append(Attempt(gpus, _nodes_of(ask.field, (*gpus, *ask.others)), cells, None))
    for attempt in sorted(attempts, key=lambda a: (_least(ask.field, a), [address_key(gpu) for gpu in a.gpus])):
        best = _better(ask, attempt, best)
    return best


def _nodes_of(field: Field, addresses: tuple[str, ...]) -> tuple[int, ...]:
    nodes = (field.catalogue.node(address) for address in addresses)
    return tuple(node for node in nodes if node is not None and node in field.resources.nodes)


def some_choice(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """A choice that fits, not the best one: enough to try whether a change to a guest would help."""
    ask = Question(field, guest, candidates, others, ties_of(field.resources, field.memory, {}))
    for gpus, cells in _feasible(field, guest, candidates):
        attempt = Attempt(gpus, _nodes_of(field, (*gpus, *others)), cells, None)
        if found := _best_shape(ask, attempt, _least(field, attempt), None):
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


def _better(ask: Question, attempt: Attempt, best: Ranked | None) -> Ranked | None:
    """The better of the best so far and what an attempt gives."""
    least = _least(ask.field, attempt)
    if best and (least > best[0].cost or (least == best[0].cost and not _could_beat(ask, attempt, best[0]))):
        return best
    found = _best_shape(ask, attempt, least, best[0].cost if best else None)
    return found if found and (best is None or found[0] < best[0]) else best


def _least(field: Field, attempt: Attempt) -> Fraction:
    return least_cost(field.resources, attempt.device_nodes, attempt.cells, attempt.only)


def _could_beat(ask: Question, attempt: Attempt, best: Rank) -> bool:
    """Whether an attempt of the same cost could be better than the best so far, by what its GPUs and nodes spoil.

    Only lower addresses count for nothing: they come first anyway.
    """
    if best.short or best.order:
        return True
    sizes = next(shapes(ask.field, ask.guest, attempt.gpus, attempt.cells), None)  # what is cut later ranks lower
    if sizes is None:
        return False
    llcs, spoils = _ties(ask, attempt).least(sizes.shape, attempt.only)
    models, busy, partitions = _of_gpus(ask.field, attempt.gpus)
    return (models, busy, llcs, partitions, spoils) < (best.models, best.busy, best.llcs, best.partitions, best.spoils)


def _of_gpus(field: Field, gpus: GpuSet) -> tuple[int, int, tuple[int, ...]]:
    """(different models, busy ones, partitions that break) of a set of GPUs."""
    models = len({field.catalogue.gpus[a].model for a in gpus})
    busy = sum(bool(field.catalogue.gpus[a].processes) for a in gpus)
    return models, busy, lost(field.catalogue.fabric, gpus)


def _ties(ask: Question, attempt: Attempt) -> Ties:
    return ask.ties.without(map(ask.field.catalogue.node, attempt.gpus))


def _best_shape(ask: Question, attempt: Attempt, least: Fraction, limit: Fraction | None) -> Ranked | None:
    """The best way to cut the guest and place it, of those that cost at most `limit`."""
    field, gpus = ask.field, attempt.gpus
    models, busy, partitions = _of_gpus(field, gpus)
    addresses = tuple(address_key(a) for a in gpus)
    ties = _ties(ask, attempt)
    best: Ranked | None = None
    for order, sizes in enumerate(shapes(field, ask.guest, gpus, attempt.cells)):
        vcpus = sizes.shape.vcpus
        most = None if limit is None else int(limit * vcpus)
        placement = place(
            sizes.shape, field.resources, field.memory, attempt.device_nodes, ties.weigh, most, attempt.only
        )
        if placement is None:
            continue
        cost = Fraction(placement.cost, vcpus)
        llcs, spoils = ties.split(placement.weight)
        rank = Rank(cost, sizes.short, models, busy, order, llcs, partitions, spoils, placement.nodes, addresses)
        if best is None or rank < best[0]:
            shape = enlarge(field, sizes, ask.guest, gpus, placement.nodes)
            best = rank, Choice(gpus, placement, shape, sizes.short, 0)
        # Later cuts come after in order and cannot be cheaper: equal cells cost the same whatever their size.
        if not sizes.short and (cost == least or attempt.only is not None):
            break
    return best
