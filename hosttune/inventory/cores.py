"""Which cores a cell takes on its node, and whether the cell fits there.

Pure. Isolated cores first, then the fewest last-level caches, then the lowest numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import msgspec

from hosttune.inventory.pages import NodeMemory
from hosttune.inventory.resources import Core, NodeResources, Sharing, core_of
from hosttune.model.plan import Topology
from hosttune.model.values import grouped


def cores_needed(vcpus: int, threads: int) -> int:
    """Return the whole cores for this many vCPUs; with an odd number the last sibling stays idle."""
    return -(-vcpus // threads)


def fitting_cores(node: NodeResources, threads: int) -> list[Core]:
    """Return the free cores of a node that have at least `threads` usable CPUs."""
    return [core for core in node.free if len(core.cpus) >= threads]


def fits(node: NodeResources, memory: NodeMemory | None, cell: CellDemand, shape: GuestShape) -> bool:
    """Return whether a node has the CPUs and the memory for a cell. Unknown memory size is no reason to refuse."""
    if shape.share_cores:
        if len(node.free_threads) < cell.vcpus:
            return False
    elif not has_whole_cores(node, cell.vcpus, shape.threads):
        return False
    room = memory.capacity_bytes(shape.page, at_boot=shape.at_boot) if memory else None
    return room is None or cell.memory_bytes <= room


def has_whole_cores(node: NodeResources, vcpus: int, threads: int) -> bool:
    """Return whether a node has enough free cores for the vCPUs without sharing any."""
    return len(fitting_cores(node, threads)) >= cores_needed(vcpus, threads)


def choose_cores(
    node: NodeResources, vcpus: int, shape: GuestShape, turns: Mapping[int | str, int] | None = None
) -> list[Core]:
    """Return the cores for a cell on its node: isolated ones first, then the fewest last-level caches, lowest first.

    With `share_cores`: whole cores first, then the free siblings of cores that others use. `turns`: the turn of CPUs,
    before all that (`PlanningContext.turns`).
    """
    if has_whole_cores(node, vcpus, shape.threads):
        cores, need = fitting_cores(node, shape.threads), cores_needed(vcpus, shape.threads)
        return _fewest_caches(cores, need, turns or {})
    return _shared_cores(node, vcpus)


def cores_in_groups(node: NodeResources, threads: int, groups: Sequence[int]) -> list[Core]:
    """Return cores for groups each of which is on a cache of its own (`groupings`), isolated ones first.

    Nothing where there are none, or where an isolated core would be left over beside others that are taken.
    """
    cores = sorted(fitting_cores(node, threads), key=lambda core: (core.isolation_rank, core.id))
    most = max((core.isolation_rank for core in cores[: sum(groups)]), default=0)
    pool = [core for core in cores if core.isolation_rank <= most]
    by_cache = list(grouped((core.llc, core) for core in pool).values())
    places = caches_for(groups, [len(part) for part in by_cache])
    chosen = [core for at, group in zip(places, groups, strict=True) for core in by_cache[at][:group]] if places else []
    return chosen if all(core in chosen for core in pool if core.isolation_rank < most) else []


def _fewest_caches(cores: list[Core], need: int, turns: Mapping[int | str, int]) -> list[Core]:
    chosen: list[Core] = []
    places = [(min(turns.get(cpu, 1) for cpu in core.cpus), core.isolation_rank) for core in cores]
    for place in sorted(set(places)):
        ranked = [core for core, at in zip(cores, places, strict=True) if at == place]
        left = need - len(chosen)
        if left <= 0:
            break
        chosen += ranked if len(ranked) <= left else _pack(ranked, left, {core.llc for core in chosen})
    return sorted(chosen, key=lambda core: core.id)


def _pack(cores: list[Core], need: int, touched: set[int]) -> list[Core]:
    """Return `need` of the cores in as few caches as possible; caches in `touched` come first.

    Each step takes the smallest cache that holds all remaining cores, so that large caches stay whole. If there is
    none, it takes the largest cache.
    """
    groups = grouped((core.llc, core) for core in cores)
    chosen: list[Core] = []
    for llc in sorted(touched & set(groups)):
        chosen += groups.pop(llc)[: need - len(chosen)]
    while len(chosen) < need:
        left = need - len(chosen)
        enough = [(len(members), llc) for llc, members in groups.items() if len(members) >= left]
        llc = min(enough)[1] if enough else max(groups, key=lambda g: (len(groups[g]), -g))
        chosen += groups.pop(llc)[:left]
    return chosen


def _shared_cores(node: NodeResources, vcpus: int) -> list[Core]:
    """Return cores reduced to their free CPUs, whole ones first, until they have enough CPUs for the vCPUs."""
    parts = []
    for core in node.cores:
        free = tuple(cpu for cpu in core.cpus if cpu in node.free_threads)
        if free:
            parts.append(core_of(core.id, core.node, core.llc, free, core.siblings, core.isolated))
    whole = {core.id for core in node.free}
    parts.sort(key=lambda core: (core.isolation_rank, core.id not in whole, core.id))
    chosen: list[Core] = []
    count = 0
    for core in parts:
        if count >= vcpus:
            break
        chosen.append(core)
        count += len(core.cpus)
    return chosen


def caches_of(node: NodeResources, vcpus: int, shape: GuestShape) -> tuple[int, int]:
    """Return (last-level caches that a cell uses on a node, those of them that were whole and are then divided)."""
    chosen = choose_cores(node, vcpus, shape)
    taken, free = {core.id for core in chosen}, {core.id for core in node.free}
    used = {core.llc for core in node.assignable if core.id not in free}
    left = {core.llc for core in node.free if core.id not in taken}
    touched = {core.llc for core in chosen}
    return len(touched), len((touched & left) - used)


def pin(cores: Sequence[Core], vcpus: int, threads: int) -> list[int]:
    """Return host CPUs in vCPU order, `threads` siblings of each core adjacent.

    With an odd number of vCPUs the last sibling stays idle.
    """
    cpus = [cpu for core in cores for cpu in core.cpus[:threads]]
    return cpus[:vcpus]


# --- last-level caches -----------------------------------------------------------------------------------------
# Which cores, in which order and with how many dies a guest gets, so that no last-level cache that it sees spans two
# of the host's.
# Pure. With cache passthrough QEMU shows CPUID leaves 4 and 0x8000001D of the host (target/i386/cpu.c,
# cpu_x86_cpuid). A guest's vCPUs share a cache if their APIC ids are equal above as many bits as the host's number of
# sharing CPUs needs (Linux, get_count_order in cacheinfo.c). An APIC id has as many bits for each level as its count
# needs (QEMU, i386/topology.h). So where caches do not have a power of two of cores, the guest needs dies: each
# starts at one.


def whole_first(cores: Sequence[Core]) -> list[Core]:
    """Return cores by cache, those of which most are here first: a cache that is broken comes last."""
    count = Counter(core.llc for core in cores)
    return sorted(cores, key=lambda core: (-count[core.llc], core.llc, core.id))


def with_dies(caches: Sequence[int], topology: Topology, sharing: Sharing) -> Topology | None:
    """Return the topology with the fewest dies in which no cache spans two of the host's; None: there is none.

    `caches`: the host's cache of each core of the guest. `topology` has one die in each socket.
    """
    for with_those in _divided(topology):
        pairs = set(zip(_caches_seen(with_those, sharing), caches, strict=True))
        if len(pairs) == len({seen for seen, _ in pairs}):
            return with_those
    return None


@cache
def groupings(cores: int, cells: int, threads: int, sharing: Sharing) -> tuple[tuple[int, ...], ...]:
    """Return for each number of dies how many of a cell's cores a guest sees on each last-level cache, one by one.

    Without numbers of dies with which it sees one cache in two cells, or a broken one before a whole one.
    """
    rows = []
    for topology in _divided(Topology(sockets=cells, dies=1, cores=cores, threads=threads)):
        seen = _caches_seen(topology, sharing)
        groups = [*Counter(seen[:cores]).values()]
        if len(set(seen)) == cells * len(groups) and groups == sorted(groups, reverse=True):
            rows.append(tuple(groups))
    return tuple(rows)


def caches_for(groups: Sequence[int], free: Sequence[int]) -> list[int]:
    """Return for each group of cores the place in `free` (cores of each cache) of a cache of its own, or nothing.

    The smallest that suffices. A guest that sees a whole group on one cache has another group on another one: each but
    the last is more than half of what a cache can have.
    """
    places: list[int] = []
    for group in groups:
        enough = [(have, at) for at, have in enumerate(free) if have >= group and at not in places]
        if not enough:
            return []
        places.append(min(enough)[1])
    return places


def _divided(topology: Topology) -> Iterator[Topology]:
    """Yield a topology with every number of dies that divides its cores, the fewest first."""
    for dies in (number for number in range(1, topology.cores + 1) if topology.cores % number == 0):
        yield Topology(sockets=topology.sockets, dies=dies, cores=topology.cores // dies, threads=topology.threads)


def _caches_seen(topology: Topology, sharing: Sharing) -> list[int]:
    """Return the cache that the guest sees above each of its cores."""
    die_bits, core_bits, thread_bits = (
        (count - 1).bit_length() for count in (topology.dies, topology.cores, topology.threads)
    )
    cache_bits = (sharing.cpus - 1).bit_length()
    if sharing.within_sockets and sharing.cpus > topology.dies * topology.cores * topology.threads:
        cache_bits = die_bits + core_bits + thread_bits
    places = product(range(topology.sockets), range(topology.dies), range(topology.cores))
    return [
        ((socket << die_bits | die) << core_bits | core) << thread_bits >> cache_bits for socket, die, core in places
    ]


# --- the shape of a guest --------------------------------------------------------------------------------------
# How a guest is divided into cells, and what each cell needs. Pure values.


class CellDemand(msgspec.Struct, frozen=True):
    """What one cell needs: vCPUs and memory. `memory_bytes` is exact and a whole number of pages."""

    vcpus: int
    memory_bytes: int


class GuestShape(msgspec.Struct, frozen=True):
    """The cells of a guest, the threads used of each core, and the page size (None: ordinary memory)."""

    cells: tuple[CellDemand, ...]
    threads: int
    page: int | None
    share_cores: bool  # true with `smt: threads`
    at_boot: bool = False  # the next boot reserves its pages, because they need more memory than is free now

    @property
    def vcpus(self) -> int:
        """The vCPUs of the whole guest."""
        return sum(cell.vcpus for cell in self.cells)
