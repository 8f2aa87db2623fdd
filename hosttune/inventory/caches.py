"""Which cores, in which order and with how many dies a guest gets, so that no last-level cache that it sees spans two
of the host's.

Pure. With cache passthrough QEMU shows CPUID leaves 4 and 0x8000001D of the host (target/i386/cpu.c, cpu_x86_cpuid). A
guest's vCPUs share a cache if their APIC ids are equal above as many bits as the host's number of sharing CPUs needs
(Linux, get_count_order in cacheinfo.c). An APIC id has as many bits for each level as its count needs (QEMU,
i386/topology.h). So where caches do not have a power of two of cores, the guest needs dies: each starts at one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from hosttune.inventory.resources import Core, Sharing
from hosttune.model.plan import Topology


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
