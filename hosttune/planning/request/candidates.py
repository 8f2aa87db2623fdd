"""The sets of GPUs that an intent allows, by the number of nodes they come from.

Pure. GPUs of one node are equal for the objective. So a counted request gives one set for every way to take this many
GPUs from each node, not one for every set of addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations, islice

import msgspec

from hosttune.inventory.devices import Catalogue, close_groups, countable_gpus, gpu_count, matches, named_gpus
from hosttune.inventory.partitions import bound_to_sets, lost, none_of, refusal, sets_of
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.gpu import Gpu
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.model.limits import limit
from hosttune.model.text import count as counted
from hosttune.model.values import address_key, grouped
from hosttune.planning.mig.guest import inside_refusal, takes_inside

MOST_SETS = 256  # ways in which a guest keeps a part of its GPUs that are looked at
GpuSet = tuple[str, ...]
Reach = dict[int, GpuSet]  # number of GPUs of a node -> their addresses
Pool = tuple[tuple[int | None, Reach], ...]


Taken = tuple[tuple[int | None, int], ...]  # nodes, and the number of GPUs from each


def _ways(pool: Pool, nodes: int, count: int, taken: Taken = ()) -> Iterator[Taken]:
    """Yield every way to take `count` more GPUs from `nodes` more nodes of the pool, at least one from each."""
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


class Candidates(msgspec.Struct, frozen=True):
    """The sets of GPUs to try for a guest.

    The set that was `named`, the `sets` for which a fabric has partitions, or every way to take `count` from `pools`. A
    pool has, for each node with GPUs (None: unknown), how many can be taken there and which ones. `set_nodes`: from how
    many nodes each of the sets comes. `why`: why there are none.
    """

    count: int
    pools: tuple[Pool, ...] = ()
    named: GpuSet | None = None
    why: tuple[str, ...] = ()
    bundles: tuple[tuple[GpuSet, ...], ...] = ()  # for each pool, the groups of GPUs that can only be taken together
    sets: tuple[GpuSet, ...] | None = None
    set_nodes: tuple[int, ...] = ()

    def first(self) -> GpuSet | None:
        """Return a set from the fewest nodes, None if there is no set."""
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
    """Return the sets of GPUs that the intent allows. `others`: other devices that it names (they may share groups)."""
    catalogue = context.catalogue
    count = gpu_count(guest)
    if not count:  # the GPUs are named, or none are wanted
        named = named_gpus(catalogue, guest.gpus, where) if isinstance(guest.gpus, tuple) else ()
        why = refusal(catalogue.fabric, named, mig=guest.mig is not None)
        conflicts = (
            *(inside_refusal(context, guest, a) for a in named if not takes_inside(context, guest, a)),
            *((f"{where.rpartition(': ')[2]}: {why}",) if why else ()),
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
    candidates = Candidates(count, tuple(_reaches(catalogue, part) for part in parts), bundles=bundles)
    if candidates.first() is not None:
        return candidates
    what = f"{counted(count, 'GPU')} wanted" + (f" of model {request.model}" if request.model else "")
    others_here = {gpu.model for gpu in countable_gpus(context.host, catalogue) if gpu.model}
    models = [f"this host has {', '.join(sorted(others_here))}"] if request.model and not pool and others_here else []
    return Candidates(count, why=(f"{what}, {len(pool)} on this host, {free} free", *models, *excluded))


def keeping(context: PlanningContext, candidates: Candidates, had: GpuSet, last: Collection[str]) -> Candidates:
    """Return the candidates that have as many of these GPUs as they can; all of them if none has.

    `last`: GPUs that other guests keep or may get besides, of which they should not take the same.
    """
    count, catalogue = candidates.count, context.catalogue
    if candidates.named is not None or not count:
        return candidates
    if candidates.sets is not None:
        sets = [addresses for addresses in candidates.sets if set(had) <= set(addresses) or set(addresses) <= set(had)]
    else:
        part = max((dict.fromkeys(a for b in bundles for a in b) for bundles in candidates.bundles or ((),)),
                   key=lambda able: len(able.keys() & set(had)))  # fmt: skip
        kept = tuple(address for address in had if address in part)
        rest = [catalogue.gpus[address] for address in part if address not in kept]
        pool = _reaches(catalogue, rest, last)
        more = max(0, count - len(kept))
        ways = (way for nodes in range(more + 1) for way in _ways(pool, nodes, more))
        added = [[a for node, size in way for a in dict(pool)[node][size]] for way in ways]
        less = islice(combinations(kept, min(count, len(kept))), MOST_SETS)
        sets = (
            [tuple(sorted((*addresses, *extra), key=address_key)) for addresses in less for extra in added]
            if kept
            else []
        )
        sets = [addresses for addresses in sets if not close_groups(catalogue, addresses).conflicts]
    spreads = tuple(len({catalogue.node(address) for address in gpus}) for gpus in sets)
    return Candidates(count, sets=tuple(sets), set_nodes=spreads) if sets else candidates


def _off_fabric(catalogue: Catalogue, usable: list[Gpu], count: int, *, mig: bool) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return (GPUs that can be taken without a partition, why the others cannot).

    GPUs of the fabric are among the first only with MIG.
    """
    fabric = catalogue.fabric
    if mig:
        why = refusal(fabric, fabric.members, mig=True)
        return (usable, ()) if why is None else ([g for g in usable if g.address not in fabric.members], (why,))
    bound = bound_to_sets(fabric, (gpu.address for gpu in usable))
    return [gpu for gpu in usable if gpu.address not in bound], none_of(fabric, count)


def _of_partitions(catalogue: Catalogue, usable: list[Gpu], count: int, others: tuple[str, ...]) -> Candidates | None:
    """Return the free partitions of `count` GPUs, None if there are none. For one GPU: a pool, as all are equal."""
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
    """Return (GPUs that can be taken with their groups, why the others cannot). Other GPUs of the pool can be added."""
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
    """Return a GPU and the GPUs of the pool that share its IOMMU group: they can only be taken together."""
    device = catalogue.pci.get(address)
    group = catalogue.groups.get(device.iommu_group, ()) if device and device.iommu_group is not None else ()
    return tuple(sorted({address, *(d.address for d in group if d.address in pool)}, key=address_key))


def _bundles(catalogue: Catalogue, pool: list[Gpu]) -> tuple[GpuSet, ...]:
    """Divide a pool into groups of GPUs that can only be taken together."""
    addresses = {gpu.address for gpu in pool}
    return tuple(dict.fromkeys(_bundle(catalogue, gpu.address, addresses) for gpu in pool))


def _alike(pool: list[Gpu], request: GpuRequest) -> Iterator[list[Gpu]]:
    """Yield the parts of the pool with one model (connected by NVLink, if requested), then the whole pool.

    So GPUs of one model come first.
    """
    models = grouped((gpu.model, gpu) for gpu in pool)
    parts = list(models.values())
    for part in parts:
        if request.nvlink:
            peers = {g.address: {p.address for p in g.peers or () if p.kind == "nvlink"} for g in part}
            left = list(part)
            while left:
                island = [g for g in left if g is left[0] or g.address in peers[left[0].address]]
                yield island
                left = [g for g in left if g not in island]
        else:
            yield part
    if not request.nvlink and len(parts) > 1 and all(len(part) < request.count for part in parts):
        yield pool


def _reaches(catalogue: Catalogue, pool: list[Gpu], last: Collection[str] = ()) -> Pool:
    """Return for each node how many GPUs can be taken there, and which.

    Idle ones first (`last` counts as busy), then those that break the fewest partitions of the fabric, then the lowest
    addresses.
    """
    most = limit("gpus")  # the most GPUs that a guest can request
    busy = {gpu.address for gpu in pool if gpu.processes}.union(last)
    bundles = grouped((catalogue.node(bundle[0]), bundle) for bundle in _bundles(catalogue, pool))
    reaches: list[tuple[int | None, Reach]] = []
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
        reaches.append((node, reach))
    return tuple(reaches)
