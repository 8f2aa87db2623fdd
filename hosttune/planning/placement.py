"""Where one guest goes: the host node of each cell, chosen exactly, and the cores in it.

Pure. The objective is the contract's: the sum over cells and devices of (the cell's share of the guest's
vCPUs) × distance(cell's node, device's node), plus the distances between the cells; ties go to fewer
last-level caches, then to the lowest nodes. Whole branch and bound: no heuristic decides what fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hosttune.planning.pages import NodeMemory
from hosttune.planning.resources import Core, NodeResources, Resources


@dataclass(frozen=True)
class CellDemand:
    """What one cell needs: vCPUs and memory. `memory_bytes` is exact and whole in pages."""

    vcpus: int
    memory_bytes: int


@dataclass(frozen=True)
class Shape:
    """How a guest is cut: its cells, threads used of each core, page size (None: ordinary memory)."""

    cells: tuple[CellDemand, ...]
    threads: int
    page: int | None
    share_cores: bool  # smt: threads

    @property
    def vcpus(self) -> int:
        """vCPUs of the whole guest."""
        return sum(cell.vcpus for cell in self.cells)


@dataclass(frozen=True)
class Placement:
    """The host node of each cell, and what that costs (the objective, exact)."""

    nodes: tuple[int, ...]
    cost: Fraction
    llcs: int


def cores_needed(vcpus: int, threads: int) -> int:
    """Whole cores for so many vCPUs; an odd count leaves the last sibling idle."""
    return -(-vcpus // threads)


def fitting_cores(node: NodeResources, threads: int) -> list[Core]:
    """Free cores of a node that have at least `threads` usable CPUs."""
    return [core for core in node.free if len(core.cpus) >= threads]


def fits(node: NodeResources, memory: NodeMemory | None, cell: CellDemand, shape: Shape) -> bool:
    """Whether a cell fits a node: its CPUs and its memory. Memory of unknown size never refuses."""
    if shape.share_cores:
        if len(node.free_threads) < cell.vcpus:
            return False
    elif len(fitting_cores(node, shape.threads)) < cores_needed(cell.vcpus, shape.threads):
        return False
    room = memory.capacity_bytes(shape.page) if memory else None
    return room is None or cell.memory_bytes <= room


def place(
    shape: Shape,
    resources: Resources,
    memory: dict[int, NodeMemory],
    device_nodes: Sequence[int],
    limit: Fraction | None = None,
) -> Placement | None:
    """The best nodes for the cells, every cell on a node of its own; None when no choice fits (or beats `limit`)."""
    total = shape.vcpus
    options: list[list[tuple[Fraction, int, int]]] = []
    for cell in shape.cells:
        share = Fraction(cell.vcpus, total)
        row = []
        for node in resources.nodes.values():
            if fits(node, memory.get(node.id), cell, shape):
                price = share * sum(resources.distance(node.id, device) for device in device_nodes)
                row.append((price, llcs_spanned(choose_cores(node, cell.vcpus, shape)), node.id))
        if not row:
            return None
        options.append(sorted(row))
    return _search(shape, resources, options, limit)


def _search(
    shape: Shape, resources: Resources, options: list[list[tuple[Fraction, int, int]]], limit: Fraction | None
) -> Placement | None:
    count = len(options)
    ids = list(resources.nodes)
    nearest = min((resources.distance(a, b) for a in ids for b in ids if a != b), default=0)
    # The least that the cells from i on can still add: their cheapest nodes and the nearest pairs.
    rest = [Fraction(0)] * (count + 1)
    for i in range(count - 1, -1, -1):
        rest[i] = rest[i + 1] + options[i][0][0] + i * nearest
    best: Placement | None = None

    def descend(i: int, chosen: tuple[int, ...], cost: Fraction, llcs: int) -> None:
        nonlocal best
        bound = cost + rest[i]
        if limit is not None and bound > limit:
            return
        if best is not None and bound > best.cost:
            return
        if i == count:
            found = Placement(chosen, cost, llcs)
            if best is None or (cost, llcs, chosen) < (best.cost, best.llcs, best.nodes):
                best = found
            return
        alike = i > 0 and shape.cells[i] == shape.cells[i - 1]
        for price, spanned, node in options[i]:
            # Equal cells are interchangeable: only the ascending order of their nodes is tried.
            if node in chosen or (alike and node < chosen[-1]):
                continue
            between = sum(resources.distance(node, other) for other in chosen)
            descend(i + 1, (*chosen, node), cost + price + between, llcs + spanned)

    descend(0, (), Fraction(0), 0)
    return best


def choose_cores(node: NodeResources, vcpus: int, shape: Shape) -> list[Core]:
    """The cores a cell takes on its node: isolated ones first, then the fewest last-level caches, lowest first.

    With `share_cores`, whole cores first, then the free siblings of cores that others use.
    """
    whole = fitting_cores(node, shape.threads)
    need = cores_needed(vcpus, shape.threads)
    if len(whole) >= need:
        return _fewest_caches(whole, need)
    return _shared_cores(node, vcpus)


def _fewest_caches(cores: list[Core], need: int) -> list[Core]:
    chosen: list[Core] = []
    for rank in (0, 1, 2):
        ranked = [core for core in cores if core.isolation_rank == rank]
        left = need - len(chosen)
        if left <= 0:
            break
        chosen += ranked if len(ranked) <= left else _pack(ranked, left, {core.llc for core in chosen})
    return sorted(chosen, key=lambda core: core.id)


def _pack(cores: list[Core], need: int, touched: set[int]) -> list[Core]:
    """`need` of the cores over as few caches as possible, caches already touched first.

    Per step: the smallest cache that holds all the rest, so that large ones stay whole; else the largest.
    """
    groups: dict[int, list[Core]] = {}
    for core in cores:
        groups.setdefault(core.llc, []).append(core)
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
    """Cores cut down to their free CPUs, whole ones first, until they hold the vCPUs."""
    parts = []
    for core in node.cores:
        free = tuple(cpu for cpu in core.cpus if cpu in node.free_threads)
        if free:
            isolated = tuple(cpu for cpu in core.isolated if cpu in free)
            parts.append(Core(core.id, core.node, core.llc, free, isolated))
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


def llcs_spanned(cores: Sequence[Core]) -> int:
    """How many last-level caches the cores lie in."""
    return len({core.llc for core in cores})


def pin(cores: Sequence[Core], vcpus: int, threads: int) -> list[int]:
    """Host CPUs in vCPU order, `threads` siblings of each core adjacent; an odd count leaves the last one idle."""
    cpus = [cpu for core in cores for cpu in core.cpus[:threads]]
    return cpus[:vcpus]
