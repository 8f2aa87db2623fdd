"""Where one guest goes: the host node of each cell, chosen exactly, and the cores in it.

Pure. The objective is the contract's: the sum over cells and devices of (the cell's share of the guest's
vCPUs) × distance(cell's node, device's node), plus the distances between the cells; ties go to fewer
last-level caches, then to the lowest nodes. Whole branch and bound: no heuristic decides what fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosttune.planning.pages import NodeMemory
from hosttune.planning.resources import Core, NodeResources, Resources, core_of


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
    """The host node of each cell, and what that costs: the objective times the guest's vCPUs, a whole number."""

    nodes: tuple[int, ...]
    cost: int
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
    elif not has_whole_cores(node, cell.vcpus, shape.threads):
        return False
    room = memory.capacity_bytes(shape.page) if memory else None
    return room is None or cell.memory_bytes <= room


def place(
    shape: Shape,
    resources: Resources,
    memory: Mapping[int, NodeMemory],
    device_nodes: Sequence[int],
    limit: int | None = None,
    spans: Spans | None = None,
    only: frozenset[int] | None = None,
) -> Placement | None:
    """The best nodes for the cells, every cell on a node of its own; None when no choice fits or costs at most `limit`.

    A cell's price on a node is its vCPUs times the node's distances to the devices; a pair of cells costs all
    vCPUs times their distance. Dividing by the vCPUs gives the contract's objective. `spans` remembers, between
    calls on the same resources, how many last-level caches a cell takes on a node; `only` restricts the
    nodes.
    """
    spans = {} if spans is None else spans
    to_devices = device_distances(resources, device_nodes)
    options: list[list[Option]] = []
    for i, cell in enumerate(shape.cells):
        if i and cell == shape.cells[i - 1]:
            options.append(options[-1])
            continue
        row = [
            (cell.vcpus * to_devices[node.id], _span(node, cell.vcpus, shape, spans), node.id)
            for node in resources.nodes.values()
            if (only is None or node.id in only) and fits(node, memory.get(node.id), cell, shape)
        ]
        if not row:
            return None
        options.append(sorted(row))
    return _search(shape, resources, options, limit)


Spans = dict[tuple[int, int, int, bool], int]  # node, vCPUs, threads, shared cores -> last-level caches


def _span(node: NodeResources, vcpus: int, shape: Shape, spans: Spans) -> int:
    key = node.id, vcpus, shape.threads, shape.share_cores
    if key not in spans:
        spans[key] = llcs_spanned(choose_cores(node, vcpus, shape))
    return spans[key]


def least_cost(shape: Shape, resources: Resources, device_nodes: Sequence[int]) -> int | None:
    """What the cells would cost if every node had room: no placement of this shape or a like one is cheaper."""
    to_devices = device_distances(resources, device_nodes)
    rows = [sorted((cell.vcpus * price, 0, node) for node, price in to_devices.items()) for cell in shape.cells]
    found = _search(shape, resources, rows, None)
    return found.cost if found else None


def device_distances(resources: Resources, device_nodes: Sequence[int]) -> dict[int, int]:
    """For every node, the sum of its distances to the devices."""
    return {node: sum(resources.distance(node, device) for device in device_nodes) for node in resources.nodes}


Option = tuple[int, int, int]  # price, last-level caches, node


def _search(shape: Shape, resources: Resources, options: Sequence[list[Option]], limit: int | None) -> Placement | None:
    count = len(options)
    total = shape.vcpus
    ids = list(resources.nodes)
    pair = {(a, b): total * resources.distance(a, b) for a in ids for b in ids if a != b}
    nearest = min(pair.values(), default=0)
    # The least that the cells from i on can still add: their cheapest nodes and the nearest pairs.
    rest = [0] * (count + 1)
    for i in range(count - 1, -1, -1):
        rest[i] = rest[i + 1] + options[i][0][0] + i * nearest
    alike = [i > 0 and shape.cells[i] == shape.cells[i - 1] for i in range(count)]
    best: tuple[int, int, tuple[int, ...]] | None = None

    def descend(i: int, chosen: tuple[int, ...], cost: int, llcs: int) -> None:
        nonlocal best
        bound = cost + rest[i]
        if (limit is not None and bound > limit) or (best is not None and bound > best[0]):
            return
        if i == count:
            if best is None or (cost, llcs, chosen) < best:
                best = cost, llcs, chosen
            return
        for price, spanned, node in options[i]:
            # Equal cells are interchangeable: only the ascending order of their nodes is tried.
            if node in chosen or (alike[i] and node < chosen[-1]):
                continue
            between = sum(pair[node, other] for other in chosen)
            descend(i + 1, (*chosen, node), cost + price + between, llcs + spanned)

    descend(0, (), 0, 0)
    return Placement(best[2], best[0], best[1]) if best else None


def has_whole_cores(node: NodeResources, vcpus: int, threads: int) -> bool:
    """Whether a node has enough free cores for the vCPUs without sharing any."""
    return len(fitting_cores(node, threads)) >= cores_needed(vcpus, threads)


def choose_cores(node: NodeResources, vcpus: int, shape: Shape) -> list[Core]:
    """The cores a cell takes on its node: isolated ones first, then the fewest last-level caches, lowest first.

    With `share_cores`, whole cores first, then the free siblings of cores that others use.
    """
    if has_whole_cores(node, vcpus, shape.threads):
        return _fewest_caches(fitting_cores(node, shape.threads), cores_needed(vcpus, shape.threads))
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


def llcs_spanned(cores: Sequence[Core]) -> int:
    """How many last-level caches the cores lie in."""
    return len({core.llc for core in cores})


def pin(cores: Sequence[Core], vcpus: int, threads: int) -> list[int]:
    """Host CPUs in vCPU order, `threads` siblings of each core adjacent; an odd count leaves the last one idle."""
    cpus = [cpu for core in cores for cpu in core.cpus[:threads]]
    return cpus[:vcpus]
