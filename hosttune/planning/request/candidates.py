"""The sets of GPUs that an intent allows, by the number of nodes they come from.

Pure. GPUs of one node are alike for the objective, so a counted request gives one set for every way to take so
many GPUs from each node, not one for every set of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hosttune.model.gpu import Gpu
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.model.limits import limit
from hosttune.planning.fabric.partitions import bound_to_sets, lost, none_of, refusal, sets_of
from hosttune.planning.inventory.devices import (
    Catalogue,
    address_key,
    close_groups,
    countable_gpus,
    gpu_count,
    matches,
    named_gpus,
)
from hosttune.planning.inventory.sizing import PlanningContext
from hosttune.planning.mig.guest import inside_refusal, takes_inside

GpuSet = tuple[str, ...]
Reach = dict[int, GpuSet]  # how many GPUs of a node -> which
Pool = tuple[tuple[int | None, Reach], ...]


Taken = tuple[tuple[int | None, int], ...]  # nodes and how many GPUs of each


def _ways(pool: Pool, nodes: int, count: int, taken: Taken = ()) -> Iterator[Taken]:
    """Every way to take `count` more GPUs from `nodes` more nodes of the pool, at least one of each."""
    if nodes == 0:
        if count == 0:
            yield taken
        return
    for i, (node, reach) in enumerate(pool):
        rest = pool[i + 1 :]
        most = sum(sorted((max(more) for _, more in rest), reverse=True)[: nodes - 1])
        if len(rest) < nodes - 1:
            return
        for size in sorted(reach):
            if size and nodes - 1 <= count - size <= most:
                yield from _ways(rest, nodes - 1, count - size, (*taken, (node, size)))


@dataclass(frozen=True)
class Candidates:
    """Sets of GPUs to try: the one that was `named`, the `sets` that a fabric has partitions for, or every way to take
    `count` from `pools`.

    A pool holds, for each node with GPUs (None: unknown), how many can be taken there and which those are.
    `set_nodes` is from how many nodes each of the sets comes. `why` says why there are none.
    """

    count: int
    pools: tuple[Pool, ...] = ()
    named: GpuSet | None = None
    why: tuple[str, ...] = ()
    bundles: tuple[tuple[GpuSet, ...], ...] = ()  # for each pool, what can only be taken together
    sets: tuple[GpuSet, ...] | None = None
    set_nodes: tuple[int, ...] = ()

    def first(self) -> GpuSet | None:
        """Some set over the fewest nodes, None when there is none."""
        if self.named is not None:
            return self.named
        if self.sets:
            return min(zip(self.set_nodes, range(len(self.sets)), self.sets, strict=True))[2]
        for nodes in range(1, 1 + min(self.count, max(map(len, self.pools), default=0))):
            for pool in self.pools:
                taken = next(_ways(pool, nodes, self.count), None)
                if taken is not None:
                    reach = dict(pool)
                    return tuple(sorted((a for node, size in taken for a in reach[node][size]), key=address_key))
        return None


def gpu_candidates(context: PlanningContext, guest: GuestIntent, others: tuple[str, ...], where: str) -> Candidates:
    """The sets of GPUs that the intent allows. `others` are devices it names besides (they may share groups)."""
    catalogue = context.catalogue
    count = gpu_count(guest)
    if not count:  # named, or none at all
        named = named_gpus(catalogue, guest.gpus, where) if isinstance(guest.gpus, tuple) else ()
        conflicts = (
            *(inside_refusal(context, guest, a) for a in named if not takes_inside(context, guest, a)),
            *_off_partition(catalogue, guest, named, where),
            *close_groups(catalogue, (*named, *others)).conflicts,
        )
        return Candidates(len(named), named=None if conflicts else named, why=conflicts)
    request = guest.gpus if isinstance(guest.gpus, GpuRequest) else GpuRequest(count=count)
    pool = [g for g in countable_gpus(context.host, catalogue) if matches(g, catalogue.pci.get(g.address), request)]
    usable, excluded = _usable(catalogue, pool, others)
    free = len(usable)
    excluded += [
        inside_refusal(context, guest, g.address) for g in usable if not takes_inside(context, guest, g.address)
    ]
    usable = [gpu for gpu in usable if takes_inside(context, guest, gpu.address)]
    if catalogue.fabric.known:
        partitions = _of_partitions(catalogue, usable, count, others) if guest.mig is None else None
        if partitions is not None:
            return partitions
        usable, away = _off_fabric(catalogue, usable, count, mig=guest.mig is not None)
        excluded += away
    parts = list(_alike(usable, request))
    bundles = tuple(_bundles(catalogue, part) for part in parts)
    found = Candidates(count, tuple(_reaches(catalogue, part) for part in parts), bundles=bundles)
    if found.first() is not None:
        return found
    what = f"{count} GPU{'' if count == 1 else 's'} wanted" + (f" of model {request.model}" if request.model else "")
    return Candidates(count, why=(f"{what}, {len(pool)} on this host, {free} free", *excluded))


def _off_partition(catalogue: Catalogue, guest: GuestIntent, named: GpuSet, where: str) -> tuple[str, ...]:
    """Why named GPUs are nothing that the fabric can join and keep apart from others."""
    why = refusal(catalogue.fabric, named, mig=guest.mig is not None)
    return (f"{where.rpartition(': ')[2]}: {why}",) if why else ()


def _off_fabric(catalogue: Catalogue, usable: list[Gpu], count: int, *, mig: bool) -> tuple[list[Gpu], tuple[str, ...]]:
    """(GPUs that can be taken without a partition, why the others cannot): none of the fabric but for MIG."""
    fabric = catalogue.fabric
    if mig:
        why = refusal(fabric, fabric.members, mig=True)
        return (usable, ()) if why is None else ([g for g in usable if g.address not in fabric.members], (why,))
    bound = bound_to_sets(fabric, (gpu.address for gpu in usable))
    return [gpu for gpu in usable if gpu.address not in bound], none_of(fabric, count)


def _of_partitions(catalogue: Catalogue, usable: list[Gpu], count: int, others: tuple[str, ...]) -> Candidates | None:
    """The partitions of so many GPUs that can be taken, None if there are none. GPUs alone are alike: one pool."""
    free = {gpu.address for gpu in usable}
    sets = [
        gpus
        for gpus in sets_of(catalogue.fabric, count)
        if free.issuperset(gpus) and not close_groups(catalogue, (*gpus, *others)).conflicts
    ]
    if not sets:
        return None
    if count == 1:
        alone = [gpu for gpu in usable if (gpu.address,) in sets]
        return Candidates(1, (_reaches(catalogue, alone),), bundles=(_bundles(catalogue, alone),))
    spreads = tuple(len({catalogue.node(address) for address in gpus}) for gpus in sets)
    return Candidates(count, sets=tuple(sets), set_nodes=spreads)


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


def _bundles(catalogue: Catalogue, pool: list[Gpu]) -> tuple[GpuSet, ...]:
    """A pool cut into what can only be taken together."""
    addresses = {gpu.address for gpu in pool}
    return tuple(dict.fromkeys(_bundle(catalogue, gpu.address, addresses) for gpu in pool))


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


def _reaches(catalogue: Catalogue, pool: list[Gpu]) -> Pool:
    """For each node, how many GPUs can be taken there and which: idle ones first, then those that break the fewest
    partitions of the fabric, then lowest addresses.
    """
    most = limit("gpus")  # no guest asks for more
    busy = {gpu.address for gpu in pool if gpu.processes}
    bundles: dict[int | None, list[GpuSet]] = {}
    for bundle in _bundles(catalogue, pool):
        bundles.setdefault(catalogue.node(bundle[0]), []).append(bundle)
    found: list[tuple[int | None, Reach]] = []
    for node in sorted(bundles, key=lambda n: (n is None, n or 0)):
        rows = sorted(
            bundles[node], key=lambda b: (sum(a in busy for a in b), lost(catalogue.fabric, b), address_key(b[0]))
        )
        reach: Reach = {0: ()}
        for bundle in rows:
            for size, taken in sorted(reach.items(), reverse=True):
                together = size + len(bundle)
                if together <= most and together not in reach:
                    reach[together] = (*taken, *bundle)
        found.append((node, reach))
    return tuple(found)
