"""The cores of a host by node, the cores that stay with the host, and what existing guests hold.

Pure. A core is named by its lowest CPU. Only CPUs that are online and not hidden by a cpuset are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import msgspec

from hosttune.model.host import Cpu, Host, NumaNode, RunningGuest
from hosttune.model.intent import Reserve
from hosttune.model.plan import PlanFinding
from hosttune.model.topology import home_nodes, table_of
from hosttune.model.values import CpuSet, grouped, parse_cpus

LOCAL_DISTANCE = 10
LEAST_CORES = 1
CORES_FOR_MORE = 32  # of a node: one more for the host is then at most 3 % of the node
REMOTE_DISTANCE = 20  # the kernel's own value if firmware has no table (REMOTE_DISTANCE, topology.h)
_NODE_OF_CPU = "cpus[].numa_node"


class Core(msgspec.Struct, frozen=True):
    """One core: its usable CPUs (online, allowed), its node and cache, and whether its CPUs are isolated.

    `siblings` are all its CPUs, also hidden and offline ones: a guest that holds one of them shares the core.
    """

    id: int
    node: int
    llc: int
    cpus: tuple[int, ...]
    siblings: frozenset[int]
    isolated: tuple[int, ...]
    isolation_rank: int  # 0 all its CPUs are isolated, 1 some, 2 none: the order in which guests take cores


def core_of(
    name: int, node: int, llc: int, cpus: Iterable[int], siblings: Iterable[int], isolated: Collection[int]
) -> Core:
    """Return the core with these CPUs; `isolated` has all isolated CPUs of the host."""
    usable = tuple(sorted(cpus))
    apart = tuple(cpu for cpu in usable if cpu in isolated)
    rank = 2 if not apart else 0 if len(apart) == len(usable) else 1
    return Core(name, node, llc, usable, frozenset(siblings), apart, rank)


class Sharing(msgspec.Struct, frozen=True):
    """How many of the host's CPUs share a last-level cache. `within_sockets`: QEMU bounds this by the guest's socket.

    It does so in leaf 4, which Intel's CPUs have; leaf 0x8000001D of AMD's CPUs is passed as it is.
    """

    cpus: int
    within_sockets: bool


class NodeResources(msgspec.Struct, frozen=True, dict=True):
    """One host node: every usable core, and what of it is free for a new guest.

    `reserved` cores stay with the host. `free` cores are wholly free. `free_threads` also has the CPUs of cores that
    are partly in use (only `smt: threads` may take those).
    """

    id: int
    cores: tuple[Core, ...]
    reserved: tuple[Core, ...]
    free: tuple[Core, ...]
    free_threads: CpuSet
    info: NumaNode | None
    sharing: Sharing | None = None

    @cached_property
    def assignable(self) -> tuple[Core, ...]:
        """The cores that are not reserved, also those that guests hold: `auto` divides them."""
        kept = {core.id for core in self.reserved}
        return tuple(core for core in self.cores if core.id not in kept)


class Resources(msgspec.Struct, frozen=True, dict=True):
    """The host's CPUs as the planner uses them.

    `cpu_nodes_known` False: the nodes of the CPUs are unknown, and all count as CPUs of one node.
    """

    nodes: Mapping[int, NodeResources]
    distances: Mapping[tuple[int, int], int]
    boot_core: int | None
    housekeeping: CpuSet
    pinned: CpuSet  # CPUs that existing guests' vCPUs, emulator and I/O threads hold
    isolated: CpuSet
    threads_per_core: int
    findings: tuple[PlanFinding, ...] = msgspec.field(default=())
    cpu_nodes_known: bool = True
    sharing: Sharing | None = None  # None = unknown

    def distance(self, a: int, b: int) -> int:
        """Return the distance between two nodes; the kernel's default if the table lacks it (`has_all_distances`)."""
        return self.distances.get((a, b), LOCAL_DISTANCE if a == b else REMOTE_DISTANCE)

    @cached_property
    def _homes(self) -> Mapping[int, int]:
        able = [node for node in self.nodes.values() if node.cores]
        with_memory = [node.id for node in able if node.info is None or node.info.memory_bytes != 0]
        return home_nodes(self.nodes, with_memory or [node.id for node in able], self.distances)

    def home(self, node: int | None) -> int | None:
        """Return the node that a device on this node counts for: itself, or the nearest with usable CPUs and memory.

        A cell has CPUs and memory of one node. None if the node is unknown, or if it lacks one of them and its nearest
        is unknown.
        """
        return None if node is None else self._homes.get(node)

    def has_all_distances(self, nodes: Iterable[int]) -> bool:
        """Return whether the host's own table has every distance among these nodes, both ways and to themselves."""
        wanted = set(nodes)
        return all((a, b) in self.distances for a in wanted for b in wanted)


class CpuNodes(msgspec.Struct, frozen=True):
    """The node of each CPU that has one. `known` False: all are assumed to be on one node."""

    nodes: Mapping[int, int]
    known: bool = True


def place_cpus(host: Host) -> CpuNodes:
    """Return every CPU's node: the CPU's own entry, else the node whose list has it, else the host's only node.

    If no CPU has a node and there are several nodes, all CPUs count as CPUs of one node: an unknown place is no reason
    to refuse a guest.
    """
    listing = host.numa_nodes if any(cpu.numa_node is None for cpu in host.cpus) else ()
    by_list = {cpu: node.id for node in listing for cpu in parse_cpus(node.cpus)}
    only = 0 if not host.numa_nodes else host.numa_nodes[0].id if len(host.numa_nodes) == 1 else None
    node_of = {cpu.id: by_list.get(cpu.id, only) if cpu.numa_node is None else cpu.numa_node for cpu in host.cpus}
    nodes = {cpu: node for cpu, node in node_of.items() if node is not None}
    if nodes or not node_of:
        return CpuNodes(nodes)
    return CpuNodes(dict.fromkeys(node_of, _likeliest_node(host)), known=False)


def _likeliest_node(host: Host) -> int:
    """Return the lowest node with memory, else with unknown memory size; a GPU's node only if there is no other."""
    return min(
        host.numa_nodes, key=lambda node: (node.kind == "gpu", node.memory_bytes == 0, not node.memory_bytes, node.id)
    ).id


def find_cores(host: Host) -> tuple[list[Core], list[PlanFinding]]:
    """Return every core with usable CPUs.

    A CPU whose core is unknown counts as its own core, with one finding for all of them.
    """
    places = place_cpus(host)
    whole = grouped((cpu.core, cpu.id) for cpu in host.cpus if cpu.core is not None)
    groups: dict[tuple[int, int], list[Cpu]] = {}
    nodeless: list[int] = []
    unknown: list[int] = []
    for cpu in host.cpus:
        if cpu.online is False or cpu.allowed is False:
            continue
        node = places.nodes.get(cpu.id)
        if node is None:
            nodeless.append(cpu.id)
            continue
        if cpu.core is None:
            unknown.append(cpu.id)
        groups.setdefault((node, cpu.id if cpu.core is None else cpu.core), []).append(cpu)
    cores = [
        core_of(
            name,
            node,
            _llc(members, node),
            (cpu.id for cpu in members),
            whole.get(name, ()) or (cpu.id for cpu in members),
            {cpu.id for cpu in members if cpu.isolated},
        )
        for (node, name), members in groups.items()
    ]
    return sorted(cores, key=lambda core: core.id), list(_doubts(places, CpuSet(nodeless), CpuSet(unknown)))


def _doubts(places: CpuNodes, nodeless: CpuSet, unknown: CpuSet) -> Iterator[PlanFinding]:
    """Yield what is not known of the CPUs: their nodes, or their cores."""
    if not places.known:
        node = next(iter(places.nodes.values()))
        yield _warn(f"which CPU is on which node is unknown: all are assumed to be CPUs of node {node}", _NODE_OF_CPU)
    if nodeless:
        yield _warn(f"CPUs {nodeless} belong to no known node and are not used", _NODE_OF_CPU)
    if unknown:
        yield _warn(f"the cores of CPUs {unknown} are unknown: each counts as one", "cpus[].core")


def _llc(members: list[Cpu], node: int) -> int:
    """Return the last-level cache of a core.

    Cores of a node whose caches are unknown share one assumed cache, which costs nothing in the placement.
    """
    known = [cpu.llc for cpu in members if cpu.llc is not None]
    return min(known) if known else -1 - node


def held_by_guests(guests: Iterable[RunningGuest], online: CpuSet) -> tuple[CpuSet, CpuSet, list[PlanFinding]]:
    """Return (vCPU pins, emulator and I/O pins, findings) of existing guests, running or only defined.

    A guest whose pins cover every online CPU is not pinned: it holds no CPU for itself, and there is a finding. Of a
    guest whose definition could not be read, what it holds is unknown: an error.
    """
    vcpus: set[int] = set()
    service: set[int] = set()
    findings = []
    for guest in guests:
        if guest.unread:
            findings.append(_unread(guest))
            continue
        pins = CpuSet().union(*(parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()))
        if guest.vcpu_pins is None:
            text = f"the CPUs of guest {guest.name}'s vCPUs are unknown: they may run on any CPU"
            findings.append(_warn(text, f"guests: {guest.name}"))
        elif not pins or pins >= online:
            findings.append(
                _warn(f"guest {guest.name} is not pinned: its vCPUs may run on any CPU", f"guests: {guest.name}")
            )
        else:
            vcpus |= pins
        threads = parse_cpus(guest.emulator_cpus).union(*(parse_cpus(t) for t in guest.iothread_cpus or ()))
        if threads and not threads >= online:
            service |= threads
    return CpuSet(vcpus), CpuSet(service), findings


def _unread(guest: RunningGuest) -> PlanFinding:
    """Return what an operator must know of a guest whose definition could not be read, and how to go on."""
    what = f"which CPUs, memory and devices guest {guest.name} ({guest.state or 'state unknown'}) has is unknown"
    then = "apply will refuse to take devices" if guest.may_run else "the two cannot run at the same time then"
    text = (
        f"{what}: the plan may give them away (NVMe drives only by name), and {then}; correct its definition (hosttune"
        " discover says why it cannot be read), or write what it has into its entry of a host document (hosttune"
        " discover -o json) and plan with --host"
    )
    return PlanFinding(level="error", text=text, where=f"guests: {guest.name}")


def _reserve(cores: list[Core], count: int, boot_core: int | None, held: CpuSet) -> list[Core]:
    """Return the cores of one node that stay with the host: the boot core, else the lowest that no guest holds.

    Further ones are of the same last-level cache, then of the next.

    Cores without isolated CPUs come first. A partly isolated core is taken only if there is no other, and a wholly
    isolated one never. The boot core stays even if a guest holds it or it is isolated.
    """
    usable = [core for core in cores if core.isolation_rank > 0 and not held.intersection(core.siblings)]
    usable.sort(key=lambda core: (core.id != boot_core, -core.isolation_rank, core.id))
    caches = list(dict.fromkeys(core.llc for core in usable))  # the fewest are broken
    usable.sort(key=lambda core: (core.id != boot_core, -core.isolation_rank, caches.index(core.llc)))
    reserved = usable[:count]
    if boot_core is not None and count:
        reserved += [core for core in cores if core.id == boot_core and core not in reserved]
    return reserved


def read_resources(host: Host, reserve: Reserve) -> Resources:
    """Return everything that a guest could take on this host, without the shares of the host and of existing guests."""
    cores, findings = find_cores(host)
    online = CpuSet(cpu.id for cpu in host.cpus if cpu.online is not False)
    vcpus, service, more = held_by_guests(host.guests or (), online)
    findings += more
    boot = min(online, default=None)
    boot_core = next((cpu.id if cpu.core is None else cpu.core for cpu in host.cpus if cpu.id == boot), None)
    infos = {node.id: node for node in host.numa_nodes}
    sharing = _sharing(host)
    nodes: dict[int, NodeResources] = {}
    housekeeping: set[int] = set()
    # Without reserved cores, emulator threads share the rest (the contract). So there they hold no CPUs for themselves.
    taken = vcpus | service if reserve.cores_per_node != 0 else vcpus
    for node in sorted({core.node for core in cores} | set(infos)):
        here = [core for core in cores if core.node == node]
        wanted = LEAST_CORES + (host.interrupts_through_host and len(here) >= CORES_FOR_MORE)
        wanted = wanted if reserve.cores_per_node is None else reserve.cores_per_node
        reserved = _reserve(here, wanted, boot_core, vcpus)
        kept = {core.id for core in reserved}
        for core in reserved:
            if not vcpus.intersection(core.siblings):
                housekeeping.update(cpu for cpu in core.cpus if cpu not in core.isolated)
        free = [core for core in here if core.id not in kept and not taken.intersection(core.siblings)]
        spare = CpuSet(cpu for core in here if core.id not in kept for cpu in core.cpus) - taken
        nodes[node] = NodeResources(node, tuple(here), tuple(reserved), tuple(free), spare, infos.get(node), sharing)
    distances = table_of(host.numa_nodes)
    with_cpus = {core.node for core in cores}
    if any((a, b) not in distances for a in with_cpus for b in with_cpus if a != b):
        text = f"distances between nodes are unknown: {REMOTE_DISTANCE} is assumed, as the kernel does"
        findings.append(_warn(text, "numa_nodes[].distances"))
    return Resources(
        nodes=nodes,
        distances=distances,
        boot_core=boot_core,
        housekeeping=CpuSet(housekeeping),
        pinned=taken,
        isolated=CpuSet(cpu.id for cpu in host.cpus if cpu.isolated),
        threads_per_core=max((len(core.cpus) for core in cores), default=1),
        findings=tuple(findings),
        cpu_nodes_known=place_cpus(host).known,
        sharing=sharing,
    )


def _sharing(host: Host) -> Sharing | None:
    """Return how many CPUs share a last-level cache as CPUID has it: it also counts those that are offline.

    Of an offline CPU nothing says which cache it has, and a cache all of whose CPUs are offline is not in sysfs. Caches
    are alike, so their number divides all CPUs: the least that does is at least the number of those that are known.
    """
    counts = Counter(cpu.llc for cpu in host.cpus if cpu.llc is not None)
    every = counts.total() + sum(cpu.online is False for cpu in host.cpus)
    within = host.cpu_model is not None and host.cpu_model.vendor == "GenuineIntel"
    most = max(counts.values(), default=0)
    if not most:
        return None
    parts = (every // caches for caches in range(len(counts), every // most + 1) if every % caches == 0)
    return Sharing(next(parts, most), within)


def _warn(text: str, where: str) -> PlanFinding:
    return PlanFinding(level="warn", text=text, where=where)
