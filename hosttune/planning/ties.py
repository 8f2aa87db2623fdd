"""What decides between equal costs: what a choice of nodes spoils for the guests that come after, least first.

Pure. In this order:

1. last-level caches that the cells take (then the partitions of the fabric that break, which only the GPUs decide);
2. free GPUs that stay behind on the nodes whose CPUs are taken, so that GPUs keep CPUs near them;
3. room: the nodes with the most free cores stay as they are, so that the largest guest stays placeable (best fit);
4. last-level caches that were whole and of which a part is taken;
5. free 1 GiB pages on the nodes of a guest that takes none of them;
6. the lowest nodes, so that the same question has the same answer.

All of it adds up over the cells, whichever way they are chosen, and is written as whole numbers that compare in this
order: so a search has a bound on what is left to choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hosttune.planning.pages import HUGE_1G, NodeMemory
from hosttune.planning.placement import CellDemand, Shape, choose_cores, llcs_spanned
from hosttune.planning.resources import NodeResources, Resources

PART_BITS = 24  # of each part: sums over all cells stay below
Spans = dict[tuple[int, int, int, bool], tuple[int, int]]  # node, vCPUs, threads, shared cores -> caches taken, cut


@dataclass(frozen=True)
class Ties:
    """Compares choices of nodes on one host.

    `beside`: free GPUs of each node that a guest does not take. `fullness`: for each node, how many sizes of room there
    are on this host below its own. `spans` remembers what cells take.
    """

    resources: Resources
    memory: Mapping[int, NodeMemory]
    beside: Mapping[int, int]
    fullness: Mapping[int, int]
    spans: Spans

    def without(self, gpu_nodes: Iterable[int | None]) -> Ties:
        """The same for a guest that takes a GPU of each of these nodes."""
        taken = Counter(gpu_nodes)
        beside = {node: max(0, gpus - taken[node]) for node, gpus in self.beside.items()}
        return replace(self, beside=beside)

    def weigh(self, node: int, cell: CellDemand, shape: Shape) -> int:
        """What a cell takes and spoils on a node, as one number."""
        key = node, cell.vcpus, shape.threads, shape.share_cores
        if key not in self.spans:
            self.spans[key] = _caches(self.resources.nodes[node], cell.vcpus, shape)
        caches, cut = self.spans[key]
        memory = self.memory.get(node)
        pages = memory.pages_free(HUGE_1G) if memory and shape.page != HUGE_1G else 0
        nodes = len(self.fullness)
        number = caches << PART_BITS | self.beside.get(node, 0)
        number = number << PART_BITS * nodes | 1 << PART_BITS * self.fullness[node]
        number = (number << PART_BITS | cut) << PART_BITS | pages
        # Of sets of as many nodes, the sum is least where the lowest node is lowest, then the next, and so on.
        above = sum(other > node for other in self.fullness)
        return number << 2 * nodes | (1 << nodes) - (1 << above)

    def split(self, weight: int) -> tuple[int, int]:
        """(last-level caches, all that comes after them) of a sum of such numbers."""
        bits = PART_BITS * (len(self.fullness) + 3) + 2 * len(self.fullness)
        return weight >> bits, weight & (1 << bits) - 1

    def least(self, shape: Shape, only: Iterable[int] | None) -> tuple[int, int]:
        """Bounds on both parts for a guest of this shape, on `only` these nodes if given."""
        nodes = (self.resources.nodes[node] for node in (self.resources.nodes if only is None else only))
        able = [node.id for node in nodes if (node.free_threads if shape.share_cores else node.free)]
        cells = {cell.vcpus: cell for cell in shape.cells}.values()
        found = [[self.split(self.weigh(node, cell, shape)) for cell in cells] for node in able]
        caches = sorted(min(caches for caches, _ in row) for row in found)
        rest = sorted(min(rest for _, rest in row) for row in found)
        return sum(caches[: len(shape.cells)]), sum(rest[: len(shape.cells)])


def ties_of(resources: Resources, memory: Mapping[int, NodeMemory], beside: Mapping[int, int]) -> Ties:
    """How choices of nodes on this host compare."""
    sizes = sorted({len(node.free) for node in resources.nodes.values()})
    fullness = {node.id: sizes.index(len(node.free)) for node in resources.nodes.values()}
    return Ties(resources, memory, beside, fullness, {})


def _caches(node: NodeResources, vcpus: int, shape: Shape) -> tuple[int, int]:
    """(last-level caches that a cell takes on a node, those of them that were whole and will be taken in part)."""
    chosen = choose_cores(node, vcpus, shape)
    taken, free = {core.id for core in chosen}, {core.id for core in node.free}
    used = {core.llc for core in node.assignable if core.id not in free}
    left = {core.llc for core in node.free if core.id not in taken}
    touched = {core.llc for core in chosen}
    return llcs_spanned(chosen), len((touched & left) - used)
