"""Where one guest goes: the host node of each cell, chosen exactly, and the cores in it.

Pure. The objective is the contract's: the sum over cells and devices of (the cell's share of the guest's
vCPUs) × distance(cell's node, device's node), plus the distances between the cells; `ties` says what decides
between equal ones. Whole branch and bound: no heuristic decides what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

from hosttune.planning.pages import NodeMemory
from hosttune.planning.resources import LOCAL_DISTANCE, Core, NodeResources, Resources, core_of


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
    at_boot: bool = False  # its pages are reserved by the next boot, for more than is free now

    @property
    def vcpus(self) -> int:
        """vCPUs of the whole guest."""
        return sum(cell.vcpus for cell in self.cells)


@dataclass(frozen=True)
class Placement:
    """The host node of each cell, and what that costs: the objective times the guest's vCPUs, a whole number.

    `weight` decides between equal costs: the sum over the cells of what each spoils on its node (`ties`).
    """

    nodes: tuple[int, ...]
    cost: int
    weight: int


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
    room = memory.capacity_bytes(shape.page, at_boot=shape.at_boot) if memory else None
    return room is None or cell.memory_bytes <= room


def place(
    shape: Shape,
    resources: Resources,
    memory: Mapping[int, NodeMemory],
    device_nodes: Sequence[int],
    weigh: Callable[[int, CellDemand, Shape], int],
    limit: int | None = None,
    only: frozenset[int] | None = None,
) -> Placement | None:
    """The best nodes for the cells, every cell on a node of its own; None when no choice fits or costs at most `limit`.

    A cell's price on a node is its vCPUs times the node's distances to the devices; a pair of cells costs all
    vCPUs times their distance. Dividing by the vCPUs gives the contract's objective. `weigh` decides between equal
    costs; `only` restricts the nodes.
    """
    rows = _fitting(shape, resources, memory, only)
    if not _matchable(rows):
        return None
    to_devices = device_distances(resources, device_nodes)
    options: list[Options] = []
    for i, cell in enumerate(shape.cells):
        if i and cell == shape.cells[i - 1]:
            options.append(options[-1])
            continue
        options.append({n: (cell.vcpus * to_devices[n], weigh(n, cell, shape)) for n in rows[i]})
    return _search(shape, resources, options, limit)


def possible(
    shape: Shape, resources: Resources, memory: Mapping[int, NodeMemory], only: frozenset[int] | None = None
) -> bool:
    """Whether some choice of nodes holds the cells."""
    return _matchable(_fitting(shape, resources, memory, only))


def _fitting(
    shape: Shape, resources: Resources, memory: Mapping[int, NodeMemory], only: frozenset[int] | None
) -> list[list[int]]:
    """For every cell the nodes that could hold it."""
    rows: list[list[int]] = []
    for i, cell in enumerate(shape.cells):
        if i and cell == shape.cells[i - 1]:
            rows.append(rows[-1])
            continue
        rows.append(
            [
                node.id
                for node in resources.nodes.values()
                if (only is None or node.id in only) and fits(node, memory.get(node.id), cell, shape)
            ]
        )
    return rows


def _matchable(rows: Sequence[Sequence[int]]) -> bool:
    """Whether every cell can have a node of its own (bipartite matching by augmenting paths)."""
    holder: dict[int, int] = {}

    def assign(cell: int, seen: set[int]) -> bool:
        for node in rows[cell]:
            if node not in seen:
                seen.add(node)
                if node not in holder or assign(holder[node], seen):
                    holder[node] = cell
                    return True
        return False

    return all(assign(cell, set()) for cell in range(len(rows)))


def device_distances(resources: Resources, device_nodes: Sequence[int]) -> dict[int, int]:
    """For every node, the sum of its distances to the devices."""
    return {node: sum(resources.distance(node, device) for device in device_nodes) for node in resources.nodes}


def cost_of(shape: Shape, resources: Resources, nodes: Sequence[int], device_nodes: Sequence[int]) -> int:
    """What cells on these nodes cost: the objective times the guest's vCPUs."""
    to_devices = device_distances(resources, device_nodes)
    pairs = sum(resources.distance(a, b) for a, b in combinations(nodes, 2))
    prices = (cell.vcpus * to_devices[node] for node, cell in zip(nodes, shape.cells, strict=True))
    return sum(prices) + shape.vcpus * pairs


def least_cost(
    resources: Resources, device_nodes: Sequence[int], cells: int, only: frozenset[int] | None = None
) -> Fraction:
    """A bound on the objective of so many equal cells: no placement costs less. Exact where `only` fixes the nodes.

    Each cell costs its share of the distances to the devices and half of its distances to the other cells.
    """
    if only is not None and len(only) == cells:
        pairs = sum(resources.distance(a, b) for a, b in combinations(sorted(only), 2))
        return Fraction(sum(resources.distance(n, d) for n in only for d in device_nodes), cells) + pairs
    nodes = sorted(resources.nodes if only is None else only)
    to_devices = device_distances(resources, device_nodes)
    halves = _half_distances(resources, nodes, cells)
    each = sorted(Fraction(to_devices[node], cells) + Fraction(halves[node], 2) for node in nodes)
    return sum(each[:cells], Fraction(0))


def _half_distances(resources: Resources, nodes: Sequence[int], cells: int) -> dict[int, int]:
    """For each node, the sum of its distances to the nearest `cells - 1` others: twice its part of the pairs."""
    return {
        node: sum(sorted(resources.distance(node, other) for other in nodes if other != node)[: cells - 1])
        for node in nodes
    }


def least_of_part(resources: Resources, taken: Sequence[tuple[int | None, int]], nodes: int, count: int) -> Fraction:
    """A bound on what `count` GPUs of exactly `nodes` nodes cost, one cell on each, when these are taken already.

    `taken` has nodes in ascending order with the GPUs of each; the rest come from later nodes.
    """
    known = [(node, gpus) for node, gpus in taken if node is not None]
    if len(known) < len(taken):
        return Fraction(0)
    distance = resources.distance
    devices = sum(gpus * distance(cell, node) for cell, _ in known for node, gpus in known)
    pairs = sum(distance(a, b) for (a, _), (b, _) in combinations(known, 2))
    left = nodes - len(known)
    later = [node for node in resources.nodes if node > known[-1][0]]
    if left > len(later):
        return Fraction(1 << 60)
    each = []
    for node in later:
        near = sorted(distance(node, other) for other in later if other != node)[: left - 1]
        toward = sum((gpus + 1 + nodes) * distance(node, other) for other, gpus in known)
        each.append(Fraction(toward + distance(node, node), nodes) + Fraction(sum(near) * (nodes + 2), 2 * nodes))
    spare = count - sum(gpus for _, gpus in known) - left
    return Fraction(devices, nodes) + pairs + sum(sorted(each)[:left]) + spare * LOCAL_DISTANCE


Options = dict[int, tuple[int, int]]  # node -> (price, weight between equal costs)
Found = tuple[int, int, tuple[int, ...]]  # doubled cost, weight, node of each cell


def _search(shape: Shape, resources: Resources, options: Sequence[Options], limit: int | None) -> Placement | None:
    """Branch and bound over sets of nodes, those that look cheapest first; of twins the lighter one is taken first.

    Which cell goes to which node of a set is an assignment problem: pairs cost the same whoever sits where, so only
    the prices depend on it. Costs are doubled inside, so that half a pair is a whole number.
    """
    count = len(options)
    total = shape.vcpus
    ids = sorted({node for row in options for node in row})
    pair = {(a, b): 2 * total * resources.distance(a, b) for a in ids for b in ids if a != b}
    uniform = all(row == options[0] for row in options)
    # With r nodes still to choose, the pairs among them cost each at least half of its nearest r - 1 distances.
    halves = [{n: total * part for n, part in _half_distances(resources, ids, r).items()} for r in range(count + 1)]
    price = {node: min(2 * row[node][0] for row in options if node in row) for node in ids}
    weight = {node: min(row[node][1] for row in options if node in row) for node in ids}
    twins = _twins(ids, price, pair) if uniform and count > 1 else {node: node for node in ids}
    ids.sort(key=lambda node: (price[node] + halves[count][node], twins[node], weight[node], node))
    lighter = {node: before for before, node in pairwise(ids) if twins[node] == twins[before]}
    best: Found | None = None

    def descend(start: int, chosen: tuple[int, ...], cost: int, weighed: int) -> None:
        """`cost` counts the pairs among the chosen nodes and the least prices on them, `weighed` the least weights."""
        nonlocal best
        left = count - len(chosen)
        if not left:
            nodes = tuple(sorted(chosen))
            found = (cost, weighed, nodes) if uniform else _assign(options, nodes, cost - sum(price[n] for n in nodes))
            within = found is not None and (limit is None or found[0] <= 2 * limit)
            if found is not None and within and (best is None or found < best):
                best = found
            return
        later = ids[start:]
        if len(later) < left:
            return
        toward = {node: price[node] + sum(pair[node, other] for other in chosen) for node in later}
        rest = sum(sorted(toward[node] + halves[left][node] for node in later)[:left])
        if limit is not None and cost + rest > 2 * limit:
            return
        if best is not None and cost + rest >= best[0]:
            lightest = sum(sorted(weight[node] for node in later)[:left])
            if (cost + rest, weighed + lightest) >= best[:2]:
                return
        for i, node in enumerate(later):
            if node in lighter and lighter[node] not in chosen:
                continue
            descend(start + i + 1, (*chosen, node), cost + toward[node], weighed + weight[node])

    descend(0, (), 0, 0)
    return Placement(best[2], best[0] // 2, best[1]) if best else None


def _twins(ids: Sequence[int], price: Mapping[int, int], pair: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """For each node the first one with the same price and the same distances to all others."""
    found: dict[int, int] = {}
    for node in ids:
        others = [other for other in ids if other != node]

        def alike(first: int, node: int = node, others: Sequence[int] = others) -> bool:
            pairs = ((pair[node, n], pair[n, node], pair[first, n], pair[n, first]) for n in others if n != first)
            return price[node] == price[first] and all(a == c and b == d for a, b, c, d in pairs)

        found[node] = next((first for first in found.values() if alike(first)), node)
    return found


def _assign(rows: Sequence[Options], nodes: Sequence[int], pairs: int) -> Found | None:
    """The cheapest way to give each cell one of the nodes, of those the lightest.

    The Hungarian method with potentials (Kuhn 1955; shortest augmenting paths), exact in whole numbers.
    """
    size = len(rows)
    scale = 1 + sum(max(weight for _, weight in row.values()) for row in rows)  # weights decide between equal prices
    far = scale << 80
    cost = [[row[n][0] * 2 * scale + row[n][1] if n in row else far for n in nodes] for row in rows]
    potential_row, potential_column = [0] * (size + 1), [0] * (size + 1)
    row_of = [0] * (size + 1)  # column -> row, both from 1; 0 is free
    for i in range(1, size + 1):
        row_of[0] = i
        column = 0
        least, back, used = [far * 4] * (size + 1), [0] * (size + 1), [False] * (size + 1)
        while row_of[column]:
            used[column] = True
            row, step, following = row_of[column], far * 4, 0
            for j in range(1, size + 1):
                if used[j]:
                    continue
                reduced = cost[row - 1][j - 1] - potential_row[row] - potential_column[j]
                if reduced < least[j]:
                    least[j], back[j] = reduced, column
                if least[j] < step:
                    step, following = least[j], j
            for j in range(size + 1):
                if used[j]:
                    potential_row[row_of[j]] += step
                    potential_column[j] -= step
                else:
                    least[j] -= step
            column = following
        while column:
            row_of[column] = row_of[back[column]]
            column = back[column]
    place_of = {row_of[j]: nodes[j - 1] for j in range(1, size + 1)}
    chosen = tuple(place_of[i] for i in range(1, size + 1))
    if any(node not in row for row, node in zip(rows, chosen, strict=True)):
        return None
    prices = [row[node] for row, node in zip(rows, chosen, strict=True)]
    return pairs + 2 * sum(p for p, _ in prices), sum(weight for _, weight in prices), chosen


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
