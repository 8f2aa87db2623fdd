"""Which GPUs and which nodes: every choice that could be best is tried, the best one is kept.

Pure. Choices come in the order of what they could cost at the least, so that the search ends as soon as nothing
that is left can be better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from hosttune.model.intent import GuestIntent
from hosttune.planning.candidates import Candidates, GpuSet
from hosttune.planning.devices import address_key
from hosttune.planning.placement import Placement, Shape, Spans, fewest_caches, least_cost, place, possible
from hosttune.planning.sizing import Base, Field, base_cells, enlarge, shapes


@dataclass(frozen=True)
class Choice:
    """A decided guest: its GPUs, the node of each cell, its final shape."""

    gpus: GpuSet
    placement: Placement
    shape: Shape
    short: bool
    extra_cells: int


@dataclass(frozen=True)
class Attempt:
    """One thing to try: these GPUs (and other named devices), so many cells, on `only` these nodes if given."""

    gpus: GpuSet
    device_nodes: tuple[int, ...]
    cells: int
    only: frozenset[int] | None


# What decides between choices, first to last: cost, auto size cut short, GPU models mixed, busy GPUs, order of the
# cut (threads per core, page size), last-level caches, nodes, addresses.
Rank = tuple[Fraction, bool, int, int, int, int, tuple[int, ...], tuple[tuple[int, ...], ...]]
Ranked = tuple[Rank, Choice]


def choose(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """The best choice of GPUs, cells and nodes; None when nothing fits.

    First the contract's own cells: one on each node that holds one of the guest's GPUs. Where those do not fit
    for any choice of GPUs, as many cells on any nodes; then one cell more, and so on.
    """
    spans: Spans = {}
    for extra, own in _stages(field):
        best: Ranked | None = None
        for spread in candidates.spreads():
            rows = sorted(
                (
                    (least_cost(field.resources, attempt.device_nodes, attempt.cells, attempt.only), attempt)
                    for attempt in _attempts(field, guest, candidates, others, spread, extra, own=own)
                ),
                key=lambda row: (row[0], [address_key(a) for a in row[1].gpus]),
            )
            for least, attempt in rows:
                if best and (least > best[0][0] or (least == best[0][0] and _is_perfect(field, best, spans))):
                    break
                found = _best_shape(field, guest, attempt, least, best[0][0] if best else None, spans)
                if found and (best is None or found[0] < best[0]):
                    best = found
        if best:
            return replace(best[1], extra_cells=extra)
    return None


def fits(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> bool:
    """Whether anything fits at all: no optimum is looked for, so that the answer is quick also when it is no."""
    for extra, own in _stages(field):
        for spread in candidates.spreads():
            for attempt in _attempts(field, guest, candidates, others, spread, extra, own=own):
                for sizes in shapes(field, guest, attempt.gpus, attempt.cells):
                    if possible(sizes.shape, field.resources, field.memory, attempt.only):
                        return True
    return False


def _stages(field: Field) -> Iterator[tuple[int, bool]]:
    """(extra cells, whether only on the contract's own nodes)."""
    yield 0, True
    for extra in range(len(field.resources.nodes)):
        yield extra, False


def _attempts(
    field: Field,
    guest: GuestIntent,
    candidates: Candidates,
    others: tuple[str, ...],
    spread: int,
    extra: int,
    *,
    own: bool,
) -> Iterator[Attempt]:
    for gpus in candidates.over(spread):
        base: Base = base_cells(field, guest, gpus)
        cells = base.cells + extra
        if cells > len(field.resources.nodes) or (extra and not base.may_grow) or (own and base.nodes is None):
            continue
        nodes = (field.catalogue.node(address) for address in (*gpus, *others))
        known = tuple(node for node in nodes if node is not None and node in field.resources.nodes)
        yield Attempt(gpus, known, cells, base.nodes if own else None)


def _is_perfect(field: Field, best: Ranked, spans: Spans) -> bool:
    """Nothing of the same cost can be better, but for lower nodes or addresses, which come first anyway."""
    (_, short, models, busy, order, llcs, _, _), choice = best
    least = len(choice.shape.cells) * fewest_caches(field.resources, choice.shape, spans)
    return not short and models <= 1 and busy == 0 and order == 0 and llcs <= least


def _best_shape(
    field: Field, guest: GuestIntent, attempt: Attempt, least: Fraction, limit: Fraction | None, spans: Spans
) -> Ranked | None:
    gpus = attempt.gpus
    models = len({field.catalogue.gpus[a].model for a in gpus})
    busy = sum(bool(field.catalogue.gpus[a].processes) for a in gpus)
    best: Ranked | None = None
    for order, sizes in enumerate(shapes(field, guest, gpus, attempt.cells)):
        vcpus = sizes.shape.vcpus
        most = None if limit is None else int(limit * vcpus)
        placement = place(sizes.shape, field.resources, field.memory, attempt.device_nodes, most, spans, attempt.only)
        if placement is None:
            continue
        cost = Fraction(placement.cost, vcpus)
        addresses = tuple(address_key(a) for a in gpus)
        key = (cost, sizes.short, models, busy, order, placement.llcs, placement.nodes, addresses)
        if best is None or key < best[0]:
            shape = enlarge(field, sizes, guest, gpus, placement.nodes)
            best = key, Choice(gpus, placement, shape, sizes.short, 0)
        # Later cuts come after in order and cannot be cheaper: equal cells cost the same whatever their size.
        if not sizes.short and (cost == least or attempt.only is not None):
            break
    return best
