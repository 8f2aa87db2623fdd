"""Rules of the guest's memory: its amount, the nodes that it comes from, and what the guest sees of them."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.guest import GuestCell
from hosttune.model import sysfs
from hosttune.model.limits import limit
from hosttune.model.listing import numbered
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, CPU_NODES, ERROR, NODES, TUNING, WARN, rule, unknown

_NUMATUNE = "/domain/numatune"
_CELLS = "/domain/cpu/numa/cell"
_NODES = sysfs.NODES
_TUNING = "libvirt formatdomain, NUMA Node Tuning"
_LOCAL, _REMOTE = 10, 20  # what QEMU gives a guest for distances that are not written (hw/core/numa.c)


@rule(
    "memory-sum",
    WARN,
    "/domain/memory",
    right="the cells add up to the guest's memory",
    why="libvirt gives the guest the sum of the cells, whatever <memory> says",
    source="libvirt formatdomain, Guest NUMA Topology",
    remedy="write the sum of the cells as <memory>",
)
def memory_sum(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare the guest's memory with the sum of its cells."""
    guest = scene.guest
    sizes = [cell.memory_bytes for cell in guest.cells if cell.memory_bytes is not None]
    if not sizes or len(sizes) < len(guest.cells) or guest.memory_bytes is None:
        return
    more = guest.memory_bytes - sum(sizes)
    # Memory devices count in <memory> but in no cell. They need a <maxMemory>.
    if more < 0 or (more > 0 and guest.max_memory_bytes is None):
        text = (
            f"<memory> is {format_size(guest.memory_bytes)} ({guest.memory_bytes} bytes), but the cells add up to "
            f"{format_size(sum(sizes))} ({sum(sizes)} bytes): libvirt gives the guest the cells' sum"
        )
        yield Finding(text, "/domain/memory", remedy=f"write <memory unit='KiB'>{sum(sizes) // 1024}</memory>")


@rule(
    "memory-bound",
    TUNING,
    _NUMATUNE,
    right="memory comes from chosen nodes only",
    why="the kernel takes it from any node, without a warning; each access to another node is slower",
    source=f"{_TUNING}, mode; Linux admin-guide/mm/numa_memory_policy",
    remedy="write <numatune> with mode='strict' for <memory> and for the <memnode> of each cell",
    needs=(NODES,),
    applies=lambda scene: scene.demanding and not scene.confidential,
)
def memory_bound(scene: GuestOnHost) -> Iterator[Finding]:
    """Find memory without a strict policy on a host of several nodes."""
    if len(scene.host.numa_nodes) < 2:
        return
    policies = scene.guest.policies
    loose = [cell.id for cell in scene.guest.cells if scene.memory_nodes(cell.id) is None]
    if "auto" in (scene.guest.vcpu_placement, *(policy.placement for policy in policies)):
        yield unknown("which nodes memory comes from: numad chooses them at each start (placement='auto')", _NUMATUNE)
    elif loose or (not scene.guest.cells and scene.memory_nodes(None) is None):
        said = f"numatune mode is {policies[0].mode}" if policies else "there is no numatune"
        text = f"memory is not bound: {said}, so it may come from any node ({_NODES}), without a warning"
        yield Finding(text, _NUMATUNE)
    elif scene.guest.numatune is None:
        text = "numatune has no <memory>: QEMU's own memory, beside that of the cells, may come from any node"
        yield Finding(text, _NUMATUNE, remedy="add <memory mode='strict' nodeset='…'/> with the nodes of the cells")


@rule(
    "memory-nodes",
    ERROR,
    _NUMATUNE,
    right="the nodes that memory comes from exist and have memory",
    why="the guest does not start",
    source=f"{_NODES}; {_TUNING}",
    remedy="name nodes of this host: numactl --hardware lists them",
    needs=(NODES,),
    applies=lambda scene: any(policy.nodes or policy.cell is not None for policy in scene.guest.policies),
)
def memory_nodes(scene: GuestOnHost) -> Iterator[Finding]:
    """Find nodes that the host does not have, or that have no memory."""
    known = {node.id: node for node in scene.host.numa_nodes}
    wanted = CpuSet(node for policy in scene.guest.policies for node in parse_cpus(policy.nodes))
    absent = wanted - known.keys()
    if absent:
        yield Finding(f"nodes {CpuSet(absent)} do not exist on this host ({_NODES})", _NUMATUNE)
    empty = CpuSet(node for node in wanted & known.keys() if known[node].memory_bytes == 0)
    if empty:
        remedy = f"name nodes that have memory: {CpuSet(node for node in known if known[node].memory_bytes)}"
        yield Finding(f"nodes {empty} have no memory ({_NODES}/node*/meminfo)", _NUMATUNE, remedy=remedy)


@rule(
    "memnode-cells",
    ERROR,
    f"{_NUMATUNE}/memnode",
    right="each memnode is for a cell that the guest has",
    why="libvirt refuses the definition",
    source=f"{_TUNING}, memnode",
    remedy="write the cell in <cpu><numa>, or take the memnode out",
    applies=lambda scene: bool(scene.guest.memnodes),
)
def memnode_cells(scene: GuestOnHost) -> Iterator[Finding]:
    """Find policies for cells that do not exist."""
    cells = {cell.id for cell in scene.guest.cells}
    absent = [memnode.cell for memnode in scene.guest.memnodes if memnode.cell not in cells]
    if absent:
        text = f"memnode for cells {named(absent)}, which the guest does not have: libvirt refuses"
        yield Finding(text, f"{_NUMATUNE}/memnode[@cellid='{absent[0]}']")


@rule(
    "memory-near-vcpus",
    TUNING,
    f"{_NUMATUNE}/memnode",
    right="the memory of a cell is on the node of its vCPUs",
    why="each access of the others crosses the link between sockets",
    source=f"{_TUNING}; Linux admin-guide/mm/numaperf",
    remedy="bind each cell's memory (memnode) to the one node where its vCPUs are pinned",
    needs=(CPU_NODES,),
    applies=lambda scene: bool(scene.pins and scene.guest.policies),
)
def memory_near_vcpus(scene: GuestOnHost) -> Iterator[Finding]:
    """Check that each cell's memory is on the node of its vCPUs, and only there."""
    cells: list[int | None] = [cell.id for cell in scene.guest.cells]
    for cell in cells or [None]:
        memory = scene.memory_nodes(cell)
        vcpus = scene.vcpu_nodes(cell)
        who = "the guest" if cell is None else f"cell {cell}"
        where = f"{_NUMATUNE}/memnode" if cell is None else f"{_NUMATUNE}/memnode[@cellid='{cell}']"
        if memory is None or not vcpus:
            continue
        here, there = numbered("node", vcpus), numbered("node", memory)
        if not vcpus <= memory:
            yield Finding(f"the vCPUs of {who} run on {here}, its memory is on {there}: remote access", where)
        elif len(cells) > 1 and memory - vcpus:
            yield Finding(f"the memory of {who} may come from {there}, its vCPUs run on {here}", where)


@rule(
    "memory-room",
    ERROR,
    _NUMATUNE,
    right="each node has the memory that is bound to it",
    why="the guest does not start",
    source=f"{_NODES}/node*/meminfo",
    remedy="give the guest less memory, or memory of more nodes",
    needs=(NODES,),
    applies=lambda scene: any(scene.memory_nodes(cell.id) for cell in _cells(scene)),
)
def memory_room(scene: GuestOnHost) -> Iterator[Finding]:
    """Check that each node can hold the memory bound to it alone."""
    known = {node.id: node for node in scene.host.numa_nodes}
    for node, needed in sorted(bound_bytes(scene).items()):
        total, numa_node = sum(needed.values()), known.get(node)
        if numa_node is None:
            continue
        if numa_node.memory_bytes is None:
            yield unknown(f"the memory of node {node} is unknown ({_NODES}/node{node}/meminfo)", _NUMATUNE)
        elif total > numa_node.memory_bytes:
            has = f"{format_size(numa_node.memory_bytes)} ({_NODES}/node{node}/meminfo)"
            yield Finding(f"{format_size(total)} of memory bound to node {node}, which has {has}", _NUMATUNE)


def _cells(scene: GuestOnHost) -> tuple[GuestCell, ...]:
    """Return the guest's cells; a guest without cells counts as one."""
    return scene.guest.cells or (GuestCell(id=0, vcpus="", memory_bytes=scene.guest.memory_bytes),)


def bound_bytes(scene: GuestOnHost) -> dict[int, dict[int | None, int]]:
    """Return the bytes that must come from one node alone, by node and page size (None: ordinary pages, or unknown)."""
    need: dict[int, dict[int | None, int]] = {}
    for cell in _cells(scene):
        nodes = scene.memory_nodes(cell.id if scene.guest.cells else None)
        if nodes is None or len(nodes) != 1 or cell.memory_bytes is None:
            continue
        of_node = need.setdefault(min(nodes), {})
        size = page_size(scene, cell.id)
        of_node[size] = of_node.get(size, 0) + cell.memory_bytes
    return need


def paged_bytes(scene: GuestOnHost) -> dict[int, int]:
    """Return the bytes of all cells by the size of their huge pages, wherever they come from."""
    need: dict[int, int] = {}
    for cell in _cells(scene):
        if size := page_size(scene, cell.id):
            need[size] = need.get(size, 0) + (cell.memory_bytes or 0)
    return need


def page_size(scene: GuestOnHost, cell: int | None) -> int | None:
    """Return a cell's page size: of the pages for that cell, else for all cells; None = unknown or ordinary pages."""
    if (cell or 0) in scene.pages_of_cell:
        return scene.pages_of_cell[cell or 0]
    pages = scene.guest.backing.pages or ()
    settings = scene.host.memory_settings
    fallback = next((page for page in pages if page.cells is None), None)
    if fallback is None:
        return None
    return fallback.size_bytes or (settings.default_hugepage_bytes if settings else None)


@rule(
    "cell-distances",
    ADVICE,
    f"{_CELLS}/distances",
    right="the guest sees the distances between its nodes that the host has",
    why="without them every other node is equally far",
    source="libvirt formatdomain, Guest NUMA Topology, distances; ACPI SLIT",
    remedy="write <distances> in each <cell>, copied from the host's (numactl --hardware)",
    needs=(NODES, CPU_NODES),
    applies=lambda scene: 1 < len(scene.guest.cells) <= limit("cells") and bool(scene.pins),
)
def cell_distances(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare the distances that the guest sees with those of the host nodes behind its cells."""
    homes = {cell.id: nodes for cell in scene.guest.cells if len(nodes := scene.vcpu_nodes(cell.id)) == 1}
    table = {node.id: node.distances for node in scene.host.numa_nodes}
    written = {(cell.id, other): value for cell in scene.guest.cells for other, value in cell.distances}
    wrong: list[str] = []
    missing: set[int] = set()
    for home in sorted(homes):
        for other in sorted(homes):
            # libvirt takes the other direction's value where one is missing.
            default = _LOCAL if home == other else _REMOTE
            seen = written.get((home, other), written.get((other, home), default))
            (near,), (far,) = homes[home], homes[other]
            real = (table.get(near) or {}).get(str(far))
            if real is None:
                missing.add(near)
            elif real != seen:
                wrong.append(f"{seen} from cell {home} to {other}, on the host {real}")
    if wrong:
        yield Finding(f"the guest sees other distances than the host: {named(wrong, 2)}", f"{_CELLS}/distances")
    if missing:
        yield unknown(f"the distances from {numbered('node', missing)} are unknown", f"{_CELLS}/distances")
