"""Which GPUs and which nodes: every choice that could be best is tried, the best one is kept.

Pure. GPUs of one node are alike for the objective, so a counted request is tried once per number of GPUs
taken from each node, not once per set of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from hosttune.planning.placement import Placement, Shape, place
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


def choose(field: Field, guest: GuestIntent, candidates: Candidates, others: tuple[str, ...]) -> Choice | None:
    """The best choice of GPUs, cells and nodes; None when nothing fits.

    The number of cells begins at the contract's (one per node with a GPU) and grows only while nothing fits.
    """
    for extra in range(len(field.resources.nodes)):
        best: tuple[tuple[object, ...], Choice] | None = None
        any_more = False
        for gpus in _cheapest_first(field, candidates.sets):
            cells, may_grow = base_cells(field, guest, gpus)
            any_more |= may_grow
            if (extra and not may_grow) or cells + extra > len(field.resources.nodes):
                continue
            found = _best_shape(field, guest, gpus, others, cells + extra, best[1].placement.cost if best else None)
            if found and (best is None or found[0] < best[0]):
                best = found
        if best:
            return Choice(best[1].gpus, best[1].placement, best[1].shape, best[1].short, extra)
        if not any_more:
            break
    return None


def _cheapest_first(field: Field, sets: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Sets over fewer nodes first: a good bound early makes the rest of the search short."""
    return sorted(sets, key=lambda gpus: (len({field.catalogue.node(a) for a in gpus}), [address_key(a) for a in gpus]))


def _best_shape(
    field: Field,
    guest: GuestIntent,
    gpus: tuple[str, ...],
    others: tuple[str, ...],
    cells: int,
    limit: Fraction | None,
) -> tuple[tuple[object, ...], Choice] | None:
    nodes = [node for node in (field.catalogue.node(a) for a in (*gpus, *others)) if node in field.resources.nodes]
    device_nodes = [node for node in nodes if node is not None]
    best: tuple[tuple[object, ...], Choice] | None = None
    for order, sizes in enumerate(shapes(field, guest, gpus, cells)):
        placement = place(sizes.shape, field.resources, field.memory, device_nodes, limit)
        if placement is None:
            continue
        busy = sum(bool(field.catalogue.gpus[a].processes) for a in gpus)
        mixed = len({field.catalogue.gpus[a].model for a in gpus})
        key = (
            placement.cost,
            sizes.short,
            mixed,
            busy,
            order,
            placement.llcs,
            placement.nodes,
            tuple(address_key(a) for a in gpus),
        )
        if best is None or key < best[0]:
            shape = enlarge(field, sizes, guest, gpus, placement.nodes)
            best = key, Choice(gpus, placement, shape, sizes.short, 0)
    return best
