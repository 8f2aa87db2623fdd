"""Which GPUs and which nodes: every choice that could be best is tried, the best one is kept.

Pure. GPUs of one node are alike for the objective, so a counted request is tried once per number of GPUs
taken from each node, not once per set of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hosttune.model.host import Gpu
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.planning.devices import (
    Catalogue,
    address_key,
    close_groups,
    countable_gpus,
    gpu_count,
    matches,
    named_gpus,
)
from hosttune.planning.placement import Placement, Shape, Spans, least_cost, place
from hosttune.planning.sizing import Field, base_cells, enlarge, shapes


@dataclass(frozen=True)
class Choice:
    """A decided guest: its GPUs, the node of each cell, its final shape."""

    gpus: tuple[str, ...]
    placement: Placement
    shape: Shape
    short: bool
    extra_cells: int


@dataclass(frozen=True)
class Candidates:
    """Sets of GPUs to try, and, when there are none, why."""

    sets: tuple[tuple[str, ...], ...]
    why: tuple[str, ...] = ()


def gpu_candidates(field: Field, guest: GuestIntent, others: tuple[str, ...], where: str) -> Candidates:
    """The sets of GPUs that the intent allows. `others` are devices it names besides (they may share groups)."""
    catalogue = field.catalogue
    count = gpu_count(guest)
    if count is None:
        assert isinstance(guest.gpus, tuple)
        named = named_gpus(catalogue, guest.gpus, where)
        conflicts = close_groups(catalogue, (*named, *others)).conflicts
        return Candidates(() if conflicts else (named,), conflicts)
    if count == 0:
        conflicts = close_groups(catalogue, others).conflicts
        return Candidates(() if conflicts else ((),), conflicts)
    request = guest.gpus if isinstance(guest.gpus, GpuRequest) else GpuRequest(count=count)
    pool = [g for g in countable_gpus(field.host, catalogue) if matches(g, catalogue.pci.get(g.address), request)]
    usable, excluded = _usable(catalogue, pool, others)
    sets: list[tuple[str, ...]] = []
    for part in _alike(usable, request):
        sets += _by_node(catalogue, part, count)
    if sets:
        return Candidates(tuple(dict.fromkeys(sets)))
    what = f"{count} GPUs wanted" + (f" of model {request.model}" if request.model else "")
    return Candidates((), (f"{what}, {len(pool)} on this host, {len(usable)} free", *excluded))


def _usable(catalogue: Catalogue, pool: list[Gpu], others: tuple[str, ...]) -> tuple[list[Gpu], list[str]]:
    """GPUs that could be taken together with their groups, counting other GPUs of the pool as takeable."""
    addresses = {gpu.address for gpu in pool}
    usable: list[Gpu] = []
    excluded: list[str] = []
    for gpu in pool:
        together = _bundle(catalogue, gpu.address, addresses)
        conflicts = close_groups(catalogue, (*together, *others)).conflicts
        if conflicts:
            excluded += conflicts
        else:
            usable.append(gpu)
    return usable, list(dict.fromkeys(excluded))


def _bundle(catalogue: Catalogue, address: str, pool: set[str]) -> tuple[str, ...]:
    """A GPU and the GPUs of the pool that share its IOMMU group: they can only be taken together."""
    device = catalogue.pci.get(address)
    group = catalogue.groups.get(device.iommu_group, ()) if device and device.iommu_group is not None else ()
    return tuple(sorted({address, *(d.address for d in group if d.address in pool)}, key=address_key))


def _alike(pool: list[Gpu], request: GpuRequest) -> Iterator[list[Gpu]]:
    """The pool cut into parts of one model (joined by NVLink, if asked), then whole: alike GPUs come first."""
    models: dict[str | None, list[Gpu]] = {}
    for gpu in pool:
        models.setdefault(gpu.model, []).append(gpu)
    parts = list(models.values())
    for part in parts:
        if request.nvlink:
            yield from _islands(part)
        else:
            yield part
    if not request.nvlink and len(parts) > 1 and all(len(part) < request.count for part in parts):
        yield pool


def _islands(pool: list[Gpu]) -> Iterator[list[Gpu]]:
    """GPUs that reach each other over NVLink, as whole islands."""
    peers = {g.address: {p.address for p in g.peers or () if p.kind == "nvlink"} for g in pool}
    left = list(pool)
    while left:
        island = [g for g in left if g is left[0] or g.address in peers[left[0].address]]
        yield island
        left = [g for g in left if g not in island]


def _by_node(catalogue: Catalogue, pool: list[Gpu], count: int) -> list[tuple[str, ...]]:
    """One set of addresses for every way to take `count` GPUs from the nodes: idle ones first, then lowest."""
    addresses = {gpu.address for gpu in pool}
    busy = {gpu.address for gpu in pool if gpu.processes}
    bundles: dict[int | None, list[tuple[str, ...]]] = {}
    for bundle in dict.fromkeys(_bundle(catalogue, gpu.address, addresses) for gpu in pool):
        bundles.setdefault(catalogue.node(bundle[0]), []).append(bundle)
    partial: dict[tuple[int, ...], tuple[str, ...]] = {(): ()}
    for node in sorted(bundles, key=lambda n: (n is None, n or 0)):
        rows = sorted(bundles[node], key=lambda b: (sum(a in busy for a in b), address_key(b[0])))
        reach: dict[int, tuple[str, ...]] = {0: ()}
        for bundle in rows:
            for size, taken in sorted(reach.items(), reverse=True):
                reach.setdefault(size + len(bundle), (*taken, *bundle))
        partial = {
            (*vector, size): (*taken, *more)
            for vector, taken in partial.items()
            for size, more in reach.items()
            if sum(vector) + size <= count
        }
    return [tuple(sorted(taken, key=address_key)) for vector, taken in sorted(partial.items()) if sum(vector) == count]


# What decides between choices, first to last: cost, auto size cut short, GPU models mixed, busy GPUs, order of the
# cut (threads per core, page size), last-level caches, nodes, addresses.
Rank = tuple[Fraction, bool, int, int, int, int, tuple[int, ...], tuple[tuple[int, ...], ...]]
Ranked = tuple[Rank, "Choice"]


def choose(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """The best choice of GPUs, cells and nodes; None when nothing fits.

    First the contract's own cells: one on each node that holds one of the guest's GPUs. Where those do not fit
    for any choice of GPUs, as many cells on any nodes; then one cell more, and so on.
    """
    spans: Spans = {}
    sets = [(gpus, base_cells(field, guest, gpus)) for gpus in _cheapest_first(field, candidates.sets)]
    for extra, own in ((0, True), *((n, False) for n in range(len(field.resources.nodes)))):
        best: Ranked | None = None
        for gpus, base in sets:
            cells = base.cells + extra
            if cells > len(field.resources.nodes) or (extra and not base.may_grow) or (own and base.nodes is None):
                continue
            attempt = Attempt(gpus, others, cells, base.nodes if own else None)
            found = _best_shape(field, guest, attempt, best[0][0] if best else None, spans)
            if found and (best is None or found[0] < best[0]):
                best = found
        if best:
            return replace(best[1], extra_cells=extra)
    return None


def _cheapest_first(field: Field, sets: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Sets over fewer nodes first: a good bound early makes the rest of the search short."""
    return sorted(sets, key=lambda gpus: (len({field.catalogue.node(a) for a in gpus}), [address_key(a) for a in gpus]))


@dataclass(frozen=True)
class Attempt:
    """One thing to try: these GPUs (and other named devices), so many cells, on `only` these nodes if given."""

    gpus: tuple[str, ...]
    others: tuple[str, ...]
    cells: int
    only: frozenset[int] | None


def _best_shape(
    field: Field, guest: GuestIntent, attempt: Attempt, limit: Fraction | None, spans: Spans
) -> Ranked | None:
    gpus = attempt.gpus
    nodes = (field.catalogue.node(address) for address in (*gpus, *attempt.others))
    device_nodes = [node for node in nodes if node is not None and node in field.resources.nodes]
    models = len({field.catalogue.gpus[a].model for a in gpus})
    busy = sum(bool(field.catalogue.gpus[a].processes) for a in gpus)
    best: Ranked | None = None
    least: Fraction | None = None
    for order, sizes in enumerate(shapes(field, guest, gpus, attempt.cells)):
        vcpus = sizes.shape.vcpus
        if least is None and (floor := least_cost(sizes.shape, field.resources, device_nodes)) is not None:
            least = Fraction(floor, vcpus)
        most = None if limit is None else int(limit * vcpus)
        placement = place(sizes.shape, field.resources, field.memory, device_nodes, most, spans, attempt.only)
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
