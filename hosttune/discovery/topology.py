"""What a CPU shares with others (package, die, core, caches), its NUMA node, and its kind of core.

Part of reading the CPUs (`cpu`). Sibling lists are facts about groups, so they are checked against each other. If they
disagree, the interpretation that is used is reported as a problem. Sources: Linux'
Documentation/admin-guide/cputopology.rst and Documentation/ABI/stable/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hosttune.discovery.cpuinfo import blocks_by_cpu, ids_of
from hosttune.discovery.sets import read_set
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import NumaNode
from hosttune.model.values import CpuSet

CPUS = sysfs.CPUS
_NODE_NAME = re.compile(r"node([0-9]+)")

# New name first. The *_siblings files are older aliases, and captures of old kernels have only the masks.
_CORE_FILES = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PACKAGE_FILES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
# Hybrid CPUs have one performance-monitoring unit for each kind of core (arch/x86/events/intel/core.c).
_HYBRID_UNITS = (("cpu_core", "performance"), ("cpu_atom", "efficiency"), ("cpu_lowpower", "efficiency"))


# --- NUMA nodes ----------------------------------------------------------------------------------------------


def read_homes(reader: Reader, nodes: Sequence[NumaNode], online: CpuSet) -> dict[int, int]:
    """Return the node of each online CPU, from the nodes' lists.

    A CPU in several lists (firmware that repeats one list for every node, or numa=fake) is on the node that its own
    directory links to, and there is a problem.
    """
    homes = defaultdict[int, list[int]](list)
    for node in nodes:
        for cpu in CpuSet.parse(node.cpus or "") & online:
            homes[cpu].append(node.id)
    disputed = CpuSet(cpu for cpu, listed in homes.items() if len(listed) > 1)
    for cpu in disputed:
        links = (_NODE_NAME.fullmatch(name) for name in reader.names(f"{CPUS}/cpu{cpu}"))
        own = [int(match[1]) for match in links if match]
        homes[cpu] = [node for node in own if node in homes[cpu]] or homes[cpu]
    if disputed:
        why = f"CPUs {disputed} are in the lists of several nodes: each is on the node it links to, else the lowest"
        reader.problem("nodes share CPUs", sysfs.NODES, why)
    nodeless = online - CpuSet(homes)
    if nodes and nodeless:
        reader.problem("CPUs without a node", sysfs.NODES, f"no node lists CPUs {nodeless}")
    return {cpu: listed[0] for cpu, listed in homes.items()}


# --- packages, dies and cores --------------------------------------------------------------------------------


CpuMap = Mapping[int, int]  # by CPU


def read_places(reader: Reader, online: CpuSet, homes: CpuMap, cpuinfo: str) -> tuple[CpuMap, CpuMap, CpuMap]:
    """Return by online CPU the kernel's ids of package and die, and the lowest CPU of the core.

    Sibling lists show who shares a core; on many machines `core_id` is not unique.
    """
    names = next((entries for cpu in sorted(online) if (entries := reader.names(f"{CPUS}/cpu{cpu}/topology"))), [])
    blocks: Mapping[int, Mapping[str, str]] = {}
    if online and not names:
        blocks = blocks_by_cpu(cpuinfo)
        reader.problem("no CPU topology in sysfs", CPUS, "packages and cores are taken from /proc/cpuinfo")
    packages = _read_ids(reader, online, "physical_package_id") if names else ids_of(blocks, "physical id")
    siblings = _read_siblings(reader, online, next((name for name in _PACKAGE_FILES if name in names), None))
    packages = _check_packages(reader, packages, siblings)
    threads = _read_siblings(reader, online, next((name for name in _CORE_FILES if name in names), None))
    cores = _cores_of_threads(reader, threads, packages)
    rest = online - CpuSet(cores)
    heads = _read_ids(reader, {*cores.values(), *rest}, "die_id") if "die_id" in names else {}
    dies = {cpu: heads[head] for cpu in online if (head := cores.get(cpu, cpu)) in heads}
    if rest:
        core_ids = _read_ids(reader, rest, "core_id") if names else ids_of(blocks, "core id")
        cores |= _cores_of_ids(reader, rest, core_ids, packages, dies, homes)
    return packages, dies, cores


def _read_ids(reader: Reader, cpus: Iterable[int], name: str) -> dict[int, int]:
    """Return one number of each CPU's topology directory. The kernel's -1 means unknown and is left out."""
    ids = ((cpu, reader.identifier(f"{CPUS}/cpu{cpu}/topology/{name}")) for cpu in cpus)
    return {cpu: value for cpu, value in ids if value is not None}


def _read_siblings(reader: Reader, online: CpuSet, name: str | None) -> dict[int, CpuSet]:
    """Return one list of each CPU's topology directory, without offline CPUs."""
    if name is None:
        return {}
    siblings = {cpu: read_set(reader, f"{CPUS}/cpu{cpu}/topology/{name}") for cpu in sorted(online)}
    # Intersect each distinct set once: the CPUs of a package share one. An empty set proves nothing.
    shared = {cpus: cpus if cpus <= online else cpus & online for cpus in set(siblings.values()) if cpus}
    return {cpu: shared[cpus] for cpu, cpus in siblings.items() if cpus}


def _check_packages(reader: Reader, packages: Mapping[int, int], siblings: Mapping[int, CpuSet]) -> dict[int, int]:
    """Return the package ids, compared with the lists of siblings.

    If they differ, the ids are used. The lists are used only for CPUs without an id.
    """
    where = f"{CPUS}/cpu*/topology"
    missing = CpuSet(siblings) - CpuSet(packages)
    if missing:
        why = f"package ids of CPUs {missing} are unknown: CPUs of one sibling list are taken as a package"
        reader.problem("unknown package ids", where, f"{why}, named by its lowest CPU")
        named = {listed: _package_of(listed, packages) for listed in {siblings[cpu] for cpu in missing}}
        packages = {**packages, **{cpu: named[siblings[cpu]] for cpu in missing}}
    grouped = defaultdict[int, set[int]](set)
    for cpu, package in packages.items():
        grouped[package].add(cpu)
    members = {package: CpuSet(cpus) for package, cpus in grouped.items()}
    lists = {(listed, packages[cpu]) for cpu, listed in siblings.items()}
    wrong = {package for listed, package in lists if listed != members[package]}
    if wrong:
        why = f"the sibling lists of packages {CpuSet(wrong)} do not list the CPUs with that package id"
        reader.problem("package lists disagree", where, f"{why}: physical_package_id is used")
    return dict(packages)


def _package_of(siblings: CpuSet, packages: Mapping[int, int]) -> int:
    """Return the package of a CPU without an id: that of a sibling, or else the lowest CPU of the siblings' group."""
    return next((packages[sibling] for sibling in sorted(siblings) if sibling in packages), min(siblings))


def _cores_of_threads(reader: Reader, threads: Mapping[int, CpuSet], packages: Mapping[int, int]) -> dict[int, int]:
    """Return the core of each CPU from the lists of thread siblings.

    Lists that disagree are merged: CPUs that are together in any list are one core, so that two guests never get
    threads of what may be one core. A core lies within one package, so CPUs of other packages are left out.
    """
    # Process each distinct list once: thousands of CPUs may share one list that names thousands.
    tellers: dict[CpuSet, set[int]] = defaultdict(set)
    for cpu, listed in threads.items():
        tellers[listed].add(cpu)
    agreed = all(CpuSet(cpus) == listed for listed, cpus in tellers.items())
    if agreed and not _crossing(threads, packages):
        return {cpu: head for listed, cpus in tellers.items() for head in (min(listed),) for cpu in cpus}
    groups = _joined(tellers, packages)
    where = f"{CPUS}/cpu*/topology"
    crossing = _crossing(threads, packages)
    if crossing:
        why = f"the thread siblings of CPUs {crossing} are in several packages: those of other packages are ignored"
        reader.problem("cores across packages", where, why)
    pairs = {(groups[cpu], listed) for cpu, listed in threads.items()}
    odd = {pair for pair in pairs if pair[0] != pair[1]}
    disagreeing = CpuSet(cpu for cpu, listed in threads.items() if (groups[cpu], listed) in odd) - crossing
    if disagreeing:
        why = f"the thread siblings of CPUs {disagreeing} do not list each other: taken as one core where any does"
        reader.problem("sibling lists disagree", where, why)
    lowest = {group: min(group) for group in set(groups.values())}
    return {cpu: lowest[group] for cpu, group in groups.items()}


def _joined(tellers: Mapping[CpuSet, set[int]], packages: Mapping[int, int]) -> dict[int, CpuSet]:
    """Return the group of each CPU: all CPUs of its package that any list connects with it.

    A list connects its own CPU (`tellers`) with the CPUs that it names.
    """
    parents: dict[int, int] = {}

    def head(cpu: int) -> int:
        while parents.setdefault(cpu, cpu) != cpu:
            parents[cpu] = cpu = parents[parents[cpu]]
        return cpu

    for listed, cpus in tellers.items():
        known = {packages.get(cpu) for cpu in cpus}
        firsts: dict[int | None, int] = {}
        for cpu in (*cpus, *listed):
            if packages.get(cpu) in known:
                parents[head(cpu)] = head(firsts.setdefault(packages.get(cpu), cpu))
    members: dict[int, set[int]] = defaultdict(set)
    for cpu in parents:
        members[head(cpu)].add(cpu)
    return {cpu: group for cpus in members.values() for group in (CpuSet(cpus),) for cpu in cpus}


def _crossing(lists: Mapping[int, CpuSet], packages: Mapping[int, int]) -> CpuSet:
    """Return the CPUs whose list names CPUs of another package."""
    named = {listed: {packages.get(other) for other in listed} for listed in set(lists.values())}
    return CpuSet(cpu for cpu, listed in lists.items() if named[listed] - {packages.get(cpu)})


def _cores_of_ids(
    reader: Reader,
    cpus: CpuSet,
    core_ids: Mapping[int, int],
    packages: Mapping[int, int],
    dies: Mapping[int, int],
    numa_nodes: Mapping[int, int],
) -> dict[int, int]:
    """Return cores by core id, where sibling lists are missing. An id may repeat in each package, die and node."""
    cores: dict[int, int] = {}
    first: dict[tuple[int | None, ...], int] = {}
    for cpu in sorted(cpus & core_ids):
        key = (packages.get(cpu), dies.get(cpu), numa_nodes.get(cpu), core_ids[cpu])
        cores[cpu] = first.setdefault(key, cpu)
    if cores:
        why = f"no thread siblings of CPUs {CpuSet(cores)}: one core is one core id of one package, die and node"
        reader.problem("cores taken from core ids", f"{CPUS}/cpu*/topology", why)
    unknown = cpus - CpuSet(cores)
    if unknown:
        reader.problem("unknown cores", f"{CPUS}/cpu*/topology", f"nothing says which core CPUs {unknown} are on")
    return cores


# --- caches --------------------------------------------------------------------------------------------------


class _Cache(msgspec.Struct, frozen=True):
    """A data or unified cache as one CPU sees it: name of its directory, level, and the online CPUs that share it."""

    directory: str
    level: int
    cpus: CpuSet


def read_caches(reader: Reader, online: CpuSet, packages: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the last-level and the level-2 cache of each CPU. A cache is named by the lowest CPU that shares it.

    A group is read once, at its lowest CPU; the last-level list is read a second time at its highest CPU. Reading every
    cache directory of every CPU would take most of discovery's time.
    """
    llc: dict[int, int] = {}
    l2: dict[int, int] = {}
    l2_index: dict[int, str] = {}
    for cpu in sorted(online):
        if cpu not in llc:
            # The caches of one CPU that hold data and are above the first level, which does not show which CPUs share.
            # If nothing above the first level is shown (a logical partition of POWER7, whose chip has an L3), the last
            # level is unknown. Using the first level instead would claim that cores share no cache.
            path = f"{CPUS}/cpu{cpu}/cache"
            indexes = [name for name in reader.names(path) if name.startswith("index")]
            holding = [index for index in indexes if reader.text(f"{path}/{index}/type") != "Instruction"]
            caches = [cache for index in holding if (cache := _cache_at(reader, cpu, index, online)) is not None]
            caches = [cache for cache in caches if cache.level > 1]
            if not caches:
                continue
            last = max(caches, key=lambda cache: cache.level)
            _check_cache(reader, cpu, last, online, packages)
            _cover(reader, llc, cpu, last)
            l2_index[llc[cpu]] = next((cache.directory for cache in caches if cache.level == 2), "")
        if cpu not in l2 and l2_index.get(llc[cpu]):
            second = _cache_at(reader, cpu, l2_index[llc[cpu]], online)
            if second is not None and second.level == 2:
                _cover(reader, l2, cpu, second)
    return llc, l2


def _cache_at(reader: Reader, cpu: int, index: str, online: CpuSet) -> _Cache | None:
    path = f"{CPUS}/cpu{cpu}/cache/{index}"
    level = reader.count(f"{path}/level")
    shared = read_set(reader, f"{path}/shared_cpu_list")
    if shared is None:
        shared = read_set(reader, f"{path}/shared_cpu_map")
    if level is None or shared is None:
        return None
    if not shared:
        reader.problem("empty cache lists", f"{CPUS}/cpu*/cache/{index}", "taken as a cache of each CPU's own")
    return _Cache(index, level, shared & online or CpuSet((cpu,)))


def _check_cache(reader: Reader, cpu: int, cache: _Cache, online: CpuSet, packages: Mapping[int, int]) -> None:
    """Compare the list of a last-level cache with the list of its last CPU, and with the packages."""
    where = f"{CPUS}/cpu{cpu}/cache/{cache.directory}"
    last = max(cache.cpus, default=cpu)
    other = _cache_at(reader, last, cache.directory, online) if last != cpu else cache
    if other is None or other.cpus != cache.cpus:
        listed = "none" if other is None else str(other.cpus)
        why = f"CPU {cpu} shares it with {cache.cpus}, CPU {last} with {listed}: the list of the lower CPU is used"
        reader.problem("cache lists disagree", where, why)
    if len({packages.get(member) for member in cache.cpus}) > 1:
        why = f"CPUs {cache.cpus} share a cache but are in several packages: both are kept as read"
        reader.problem("cache across packages", where, why)


def _cover(reader: Reader, groups: dict[int, int], cpu: int, cache: _Cache) -> None:
    """Put the CPUs of a cache into its group, unless an earlier list has claimed them."""
    free = cache.cpus - groups | {cpu}
    if free != cache.cpus:
        why = f"the list of CPU {cpu}, {cache.cpus}, overlaps another or lacks itself: the group is {free}"
        reader.problem("cache lists overlap", f"{CPUS}/cpu{cpu}/cache/{cache.directory}", why)
    groups |= dict.fromkeys(free, min(free))


# --- kinds of cores ------------------------------------------------------------------------------------------


def read_kinds(reader: Reader, cores: Mapping[int, int], names: Sequence[str]) -> tuple[dict[int, str], bool | None]:
    """Return the kind of each CPU of a hybrid part, and whether the CPU is hybrid (None: nothing shows it)."""
    kinds = {
        cpu: kind for unit, kind in _HYBRID_UNITS for cpu in read_set(reader, f"/sys/devices/{unit}/cpus") or CpuSet()
    }
    if kinds:
        return kinds, len(set(kinds.values())) > 1
    if "cpu_capacity" in names:
        # Capacity is a property of the core (Documentation/scheduler/sched-capacity.rst), so one thread is enough.
        capacities = {core: reader.count(f"{CPUS}/cpu{core}/cpu_capacity") for core in set(cores.values())}
        return _kinds_by(capacities, cores)
    sizes = Counter(cores.values())
    if len(set(sizes.values())) > 1:
        # The kinds for Intel's first hybrid parts, which do not report them. Efficiency cores are the cores without a
        # second thread that are also slower. Frequency alone is not enough, because SST-BF gives equal cores different
        # base frequencies.
        speeds = {core: reader.count(f"{CPUS}/cpu{core}/cpufreq/base_frequency") for core in sizes}
        slow = {speed for core, speed in speeds.items() if sizes[core] == 1}
        fast = {speed for core, speed in speeds.items() if sizes[core] > 1}
        if len(slow) != 1 or len(fast) != 1 or None in slow | fast or slow == fast:
            return {}, None
        reader.problem("kinds of cores inferred", CPUS, "slower cores without a second thread are taken as efficiency")
        return _kinds_by(speeds, cores)
    return {}, None


def _kinds_by(figures: Mapping[int, int | None], cores: Mapping[int, int]) -> tuple[dict[int, str], bool | None]:
    """Return the kinds by a figure of each core.

    Highest: performance; lowest: efficiency; between them: intermediate.
    """
    known = {figure for figure in figures.values() if figure is not None}
    if len(known) < 2:
        return {}, False if known and None not in figures.values() else None
    words = dict.fromkeys(known, "intermediate") | {max(known): "performance", min(known): "efficiency"}
    kinds = ((cpu, figures[core]) for cpu, core in cores.items())
    return {cpu: words[figure] for cpu, figure in kinds if figure is not None}, True
