"""Host CPUs of a placed guest: a core for every pair of vCPUs, the guest's topology, the CPUs of its other threads.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from hosttune.inventory.cores import choose_cores, has_whole_cores, pin
from hosttune.inventory.resources import Core, Resources
from hosttune.model.plan import Finding, Topology
from hosttune.model.values import CpuSet
from hosttune.planning.guest.choice import Choice


@dataclass(frozen=True)
class Pinning:
    """The cores of each cell, one host CPU for each vCPU in vCPU order, the guest's topology, the emulator's CPUs."""

    cores: tuple[tuple[Core, ...], ...]
    cpus: tuple[int, ...]
    topology: Topology
    emulator: CpuSet
    findings: tuple[Finding, ...]


def pin_guest(
    resources: Resources,
    choice: Choice,
    at: str,
    others: CpuSet | None = None,
    turns: Mapping[int | str, int] | None = None,
) -> Pinning:
    """Decide every CPU of a guest. `at` is the place named in its findings.

    `others` are the CPUs of guests that are planned with it: its emulator threads do not use them. `turns`: see
    `choose_cores`.
    """
    nodes, shape = choice.nodes, choice.shape
    cores = tuple(
        tuple(choose_cores(resources.nodes[node], cell.vcpus, shape, turns))
        for node, cell in zip(nodes, shape.cells, strict=True)
    )
    findings: list[Finding] = []
    cpus: list[int] = []
    broken = False
    for node, cell, chosen in zip(nodes, shape.cells, cores, strict=True):
        if has_whole_cores(resources.nodes[node], cell.vcpus, shape.threads):
            cpus += pin(list(chosen), cell.vcpus, shape.threads)
            continue
        broken = True
        cpus += pin(list(chosen), cell.vcpus, max(len(core.cpus) for core in chosen))
        free = {core.id for core in resources.nodes[node].free}
        shared = CpuSet(core.id for core in chosen if core.id not in free)
        text = f"node {node}: cores {shared} are shared with others, as smt: threads allows"
        findings.append(Finding(level="warn", text=text, where=at))
    if resources.boot_core is not None and any(core.id == resources.boot_core for part in cores for core in part):
        text = f"core {resources.boot_core}, the boot CPU's, goes to the guest: reserve.cores_per_node is 0"
        findings.append(Finding(level="warn", text=text, where=at))
    topology, of_topology = _topology(resources, choice, at, broken=broken)
    emulator, warned = _emulator(resources, nodes, CpuSet(cpus), others or CpuSet(), at)
    warned += _far_emulator(resources, nodes, emulator, at)
    return Pinning(cores, tuple(cpus), topology, emulator, (*findings, *of_topology, *warned))


def _topology(resources: Resources, choice: Choice, at: str, *, broken: bool) -> tuple[Topology, list[Finding]]:
    """Return (the guest's topology, findings).

    threads=1 if sibling vCPUs would not be on sibling host CPUs, or if a cell has an odd number of vCPUs.
    """
    shape = choice.shape
    findings: list[Finding] = []
    odd = [i for i, cell in enumerate(shape.cells) if cell.vcpus % shape.threads]
    if odd and not broken:
        cells = f"cell{'s' if len(odd) > 1 else ''} {CpuSet(odd)}"
        text = f"an odd number of vCPUs: the last sibling of a core stays idle in {cells}; threads=1"
        findings.append(Finding(level="info", text=text, where=at))
    elif broken and resources.threads_per_core > 1:
        findings.append(Finding(level="info", text="vCPUs on parts of cores: the guest gets threads=1", where=at))
    elif shape.threads < resources.threads_per_core:
        most = resources.threads_per_core
        text = f"too few whole cores are free: {shape.threads} of {most} threads of each core are used"
        findings.append(Finding(level="warn", text=text, where=at))
    threads = 1 if broken or odd else shape.threads
    units = [cell.vcpus // threads for cell in shape.cells]
    per_socket = gcd(*units)
    return Topology(sockets=sum(units) // per_socket, dies=1, cores=per_socket, threads=threads), findings


def _far_emulator(resources: Resources, nodes: tuple[int, ...], emulator: CpuSet, at: str) -> list[Finding]:
    """Return findings for cells on nodes where the emulator threads have no CPU.

    libvirt 9.0 allocates a cell's memory with threads that QEMU binds to the cell's node, within the emulator's CPUs.
    On the emulated host this ended in "Setting CPU affinity failed" (thread-context, QEMU 7.2).
    """
    here = {node: CpuSet(cpu for core in resources.nodes[node].cores for cpu in core.cpus) for node in nodes}
    bare = [node for node, cpus in here.items() if cpus and emulator.isdisjoint(cpus)]
    if not bare:
        return []
    text = (
        f"the emulator threads have no CPU of node {CpuSet(bare)}, where the guest has memory: libvirt 9.0 does not"
        " start such a guest; reserve a core there"
    )
    return [Finding(level="warn", text=text, where=at)]


def _emulator(
    resources: Resources, nodes: tuple[int, ...], pinned: CpuSet, others: CpuSet, at: str
) -> tuple[CpuSet, list[Finding]]:
    """Return CPUs for emulator and I/O threads: housekeeping of the guest's nodes, else the nearest, else any left."""
    every = {node.id: CpuSet(cpu for core in node.cores for cpu in core.cpus) for node in resources.nodes.values()}
    by_node = {node: cpus & resources.housekeeping for node, cpus in every.items()}
    own = CpuSet().union(*(by_node[node] for node in nodes))
    if own:
        return CpuSet(own), []
    near = sorted((n for n in by_node if by_node[n]), key=lambda n: (resources.distance(nodes[0], n), n))
    if near:
        text = f"no housekeeping core on node {CpuSet(nodes)}: emulator threads run on node {near[0]}"
        return by_node[near[0]], [Finding(level="warn", text=text, where=at)]
    left = {node: cpus - pinned - others - resources.pinned - resources.isolated for node, cpus in every.items()}
    spare = sorted((n for n in left if left[n]), key=lambda n: (resources.distance(nodes[0], n), n))
    if spare:
        text = f"no cores are reserved: emulator threads share what is left of node {spare[0]}"
        return left[spare[0]], [Finding(level="warn", text=text, where=at)]
    text = "no CPU is left: emulator threads run on the guest's own CPUs"
    return pinned, [Finding(level="warn", text=text, where=at)]
