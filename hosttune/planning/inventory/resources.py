"""What a host has to give: cores by node, the cores that stay with the host, and what existing guests hold.

Pure. A core is named by its lowest CPU; only CPUs that are online and that no cpuset hides are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hosttune.model.host import Cpu, Host, NumaNode, RunningGuest
from hosttune.model.intent import Reserve
from hosttune.model.plan import Finding
from hosttune.model.values import CpuSet, parse_cpus

LOCAL_DISTANCE = 10
REMOTE_DISTANCE = 20  # what the kernel itself assumes where firmware gives no table (REMOTE_DISTANCE, topology.h)


@dataclass(frozen=True)
class Core:
    """One core: its usable CPUs (online, allowed), its place, and whether its CPUs are isolated.

    `siblings` are all its CPUs, hidden and offline ones too: who holds one of them shares the core.
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
    """A core of these CPUs, `isolated` being those of the whole host."""
    usable = tuple(sorted(cpus))
    apart = tuple(cpu for cpu in usable if cpu in isolated)
    rank = 2 if not apart else 0 if len(apart) == len(usable) else 1
    return Core(name, node, llc, usable, frozenset(siblings), apart, rank)


@dataclass(frozen=True)
class NodeResources:
    """One host node: every usable core, and what is free of it for a new guest.

    `reserved` cores stay with the host. `free` cores are wholly free; `free_threads` adds the CPUs of cores
    that someone else uses in part (only `smt: threads` may take those).
    """

    id: int
    cores: tuple[Core, ...]
    reserved: tuple[Core, ...]
    free: tuple[Core, ...]
    free_threads: CpuSet
    info: NumaNode | None

    @cached_property
    def assignable(self) -> tuple[Core, ...]:
        """Cores that are not reserved, held by guests or not: what `auto` shares out."""
        kept = {core.id for core in self.reserved}
        return tuple(core for core in self.cores if core.id not in kept)


@dataclass(frozen=True)
class Resources:
    """The host as the planner sees it.

    `cpu_nodes_known` False: nothing says which CPU is where, and all of them count as CPUs of one node.
    """

    nodes: Mapping[int, NodeResources]
    distances: Mapping[tuple[int, int], int]
    boot_core: int | None
    housekeeping: CpuSet
    pinned: CpuSet  # CPUs that existing guests' vCPUs, emulator and I/O threads hold
    isolated: CpuSet
    threads_per_core: int
    findings: tuple[Finding, ...] = field(default=())
    cpu_nodes_known: bool = True

    def distance(self, a: int, b: int) -> int:
        """The distance between two nodes, the kernel's default where the table has a hole (`knows_distances`)."""
        return self.distances.get((a, b), LOCAL_DISTANCE if a == b else REMOTE_DISTANCE)

    def knows_distances(self, nodes: Iterable[int]) -> bool:
        """Whether the host's own table has every distance among these nodes, both ways and to themselves."""
        wanted = set(nodes)
        return all((a, b) in self.distances for a in wanted for b in wanted)


@dataclass(frozen=True)
class Places:
    """The node of each CPU that has one. `known` False: they are assumed to be all on one node."""

    nodes: Mapping[int, int]
    known: bool = True


def place_cpus(host: Host) -> Places:
    """Every CPU's node: its own word, else the node whose list holds it, else the only node there is.

    Where no CPU at all has a node and there are several, they count as one node's: unknown places do not unplace
    a guest.
    """
    by_list = {cpu: node.id for node in host.numa_nodes for cpu in parse_cpus(node.cpus)}
    only = 0 if not host.numa_nodes else host.numa_nodes[0].id if len(host.numa_nodes) == 1 else None
    told = {cpu.id: by_list.get(cpu.id, only) if cpu.numa_node is None else cpu.numa_node for cpu in host.cpus}
    nodes = {cpu: node for cpu, node in told.items() if node is not None}
    if nodes or not told:
        return Places(nodes)
    return Places(dict.fromkeys(told, _likeliest_node(host)), known=False)


def _likeliest_node(host: Host) -> int:
    """The lowest node with memory of its own, else of unknown size; never a GPU's unless there is no other."""
    return min(
        host.numa_nodes, key=lambda node: (node.kind == "gpu", node.memory_bytes == 0, not node.memory_bytes, node.id)
    ).id


def find_cores(host: Host) -> tuple[list[Core], list[Finding]]:
    """Every core with usable CPUs. A CPU whose core is unknown counts as a core of its own, said once."""
    places = place_cpus(host)
    whole: dict[int, list[int]] = {}
    for cpu in host.cpus:
        if cpu.core is not None:
            whole.setdefault(cpu.core, []).append(cpu.id)
    groups: dict[tuple[int, int], list[Cpu]] = {}
    findings: list[Finding] = []
    homeless: list[int] = []
    unknown: list[int] = []
    for cpu in host.cpus:
        if cpu.online is False or cpu.allowed is False:
            continue
        node = places.nodes.get(cpu.id)
        if node is None:
            homeless.append(cpu.id)
            continue
        if cpu.core is None:
            unknown.append(cpu.id)
        groups.setdefault((node, cpu.id if cpu.core is None else cpu.core), []).append(cpu)
    if not places.known:
        node = next(iter(places.nodes.values()))
        text = f"which CPU is on which node is unknown: all are assumed to be CPUs of node {node}"
        findings.append(_warn(text, "cpus[].numa_node"))
    if homeless:
        findings.append(_warn(f"CPUs {CpuSet(homeless)} belong to no known node and are not used", "cpus[].numa_node"))
    if unknown:
        findings.append(_warn(f"the cores of CPUs {CpuSet(unknown)} are unknown: each counts as one", "cpus[].core"))
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
    return sorted(cores, key=lambda core: core.id), findings


def _llc(members: list[Cpu], node: int) -> int:
    """The last-level cache of a core; unknown ones share a made-up cache per node, which costs nothing."""
    known = [cpu.llc for cpu in members if cpu.llc is not None]
    return min(known) if known else -1 - node


def held_by_guests(guests: Iterable[RunningGuest], online: CpuSet) -> tuple[CpuSet, CpuSet, list[Finding]]:
    """(vCPU pins, emulator and I/O pins, findings) of existing guests, running or only defined.

    A guest whose pins cover every online CPU floats: it holds no CPU for itself, and that is said.
    """
    vcpus: set[int] = set()
    service: set[int] = set()
    findings = []
    for guest in guests:
        pins = CpuSet().union(*(parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()))
        if not pins or pins >= online:
            findings.append(
                _warn(f"guest {guest.name} is not pinned: its vCPUs may run on any CPU", f"guests: {guest.name}")
            )
        else:
            vcpus |= pins
        threads = parse_cpus(guest.emulator_cpus).union(*(parse_cpus(t) for t in guest.iothread_cpus or ()))
        if threads and not threads >= online:
            service |= threads
    return CpuSet(vcpus), CpuSet(service), findings


def _reserve(cores: list[Core], count: int, boot_core: int | None, held: CpuSet) -> list[Core]:
    """The cores of one node that stay with the host: the boot core, then the lowest that no guest holds.

    Cores without isolated CPUs come first; a core isolated in part is taken only where there is no other,
    and a wholly isolated one never. The boot core stays even when a guest or an isolation claims it.
    """
    usable = [core for core in cores if core.isolation_rank > 0 and not held.intersection(core.siblings)]
    usable.sort(key=lambda core: (core.id != boot_core, -core.isolation_rank, core.id))
    reserved = usable[:count]
    if boot_core is not None and count:
        reserved += [core for core in cores if core.id == boot_core and core not in reserved]
    return reserved


def _distances(host: Host) -> dict[tuple[int, int], int]:
    table = {}
    for node in host.numa_nodes:
        for other, distance in (node.distances or {}).items():  # keys of a hand-made document may be anything
            if distance > 0 and other.isdecimal():
                table[node.id, int(other)] = distance
    return table


def read_resources(host: Host, reserve: Reserve) -> Resources:
    """Everything a guest could take on this host, after the host's own share and existing guests'."""
    cores, findings = find_cores(host)
    online = CpuSet(cpu.id for cpu in host.cpus if cpu.online is not False)
    vcpus, service, said = held_by_guests(host.guests or (), online)
    findings += said
    boot = min(online, default=None)
    boot_core = next((cpu.id if cpu.core is None else cpu.core for cpu in host.cpus if cpu.id == boot), None)
    infos = {node.id: node for node in host.numa_nodes}
    nodes: dict[int, NodeResources] = {}
    housekeeping: set[int] = set()
    # Without reserved cores emulator threads share what is left (the contract): there they hold nothing for themselves.
    taken = vcpus | service if reserve.cores_per_node else vcpus
    for node in sorted({core.node for core in cores} | set(infos)):
        here = [core for core in cores if core.node == node]
        reserved = _reserve(here, reserve.cores_per_node, boot_core, vcpus)
        kept = {core.id for core in reserved}
        for core in reserved:
            if not vcpus.intersection(core.siblings):
                housekeeping.update(cpu for cpu in core.cpus if cpu not in core.isolated)
        free = [core for core in here if core.id not in kept and not taken.intersection(core.siblings)]
        spare = CpuSet(cpu for core in here if core.id not in kept for cpu in core.cpus) - taken
        nodes[node] = NodeResources(node, tuple(here), tuple(reserved), tuple(free), spare, infos.get(node))
    distances = _distances(host)
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
    )


def _warn(text: str, where: str) -> Finding:
    return Finding(level="warn", text=text, where=where)
