"""Every choice of GPUs that a guest may have, drawn as it is asked for, with a bound on what it comes to.

Pure. GPUs that no guest could tell apart are counted (`stock.Kind`), so that a choice says how many of which kinds. A
counted request is made up node by node; each part has a bound on the contract's objective.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations, islice

from hosttune.planning.fabric.partitions import lost
from hosttune.planning.inventory.cores import cores_needed
from hosttune.planning.inventory.devices import address_key, gpu_count
from hosttune.planning.inventory.shape import CellDemand, Shape
from hosttune.planning.inventory.sizing import base_cells
from hosttune.planning.mig.instances import MigSlot, is_vgpu_guest, mig_choices
from hosttune.planning.request.resource_pool import Kind, gpu_pools, gpu_sets, occupied
from hosttune.planning.search.problem import Problem

MOST_SLOTS = 1024  # ways to place the MIG instances of one guest that are looked at
Node = int | None
Picks = tuple[tuple[int, int], ...]  # (index of a kind, bundles of it)


@dataclass(frozen=True)
class View:
    """What there is for a guest: the amounts that are left, and whether a node could hold a cell of some shape.

    `spend` gets the work that was done, so that a search can end in time.
    """

    left: Sequence[int]
    holds: Callable[[int, CellDemand, Shape], bool]
    spend: Callable[[int], None]


@dataclass(frozen=True)
class Selection:
    """GPUs that were selected: how many of which kinds, the node of each, and some that stand for all like them."""

    picks: Picks
    nodes: tuple[Node, ...]
    mixed: int
    busy: int
    gpus: tuple[str, ...]
    brought: frozenset[str] = frozenset()  # these and all that goes along with them
    slots: tuple[MigSlot, ...] = ()


@dataclass(frozen=True)
class Partial:
    """A counted request that is made up in part: from nodes before `at` of a pool; `left` GPUs are still wanted."""

    pool: tuple[tuple[Node, tuple[Kind, ...]], ...]
    rooms: tuple[int, ...]  # GPUs there are on each node of the pool
    left: int
    at: int = 0
    picks: Picks = ()
    taken: tuple[tuple[Node, int], ...] = ()  # nodes and how many GPUs of each
    models: frozenset[str | None] = field(default=frozenset())


class Selections:
    """The choices of GPUs of one guest of a problem."""

    def __init__(self, problem: Problem, which: int, view: View) -> None:
        self._problem, self._field, self._stock = problem, problem.context, problem.stock
        self._want, self._which, self._view = problem.wants[which], which, view
        self._sets = gpu_sets(self._want.candidates)
        self._slots: list[Selection] | None = None
        self.cut_off = False  # whether there are more ways to place MIG instances than are looked at
        resources = self._field.resources
        self._own = min((resources.distance(node, node) for node in resources.nodes), default=0)
        nodes = list(resources.nodes)
        self._near = {a: min((resources.distance(a, b) for b in nodes if b != a), default=0) for a in nodes}
        self._nearest = min(self._near.values(), default=0)
        self._pools = [self._pool(part) for part in range(len(gpu_pools(self._want)))]
        self.has_own_nodes = self._may_be_own()

    def _pool(self, part: int) -> tuple[tuple[Node, tuple[Kind, ...]], ...]:
        """The kinds of a pool by node, those of unknown node last."""
        by_node: dict[Node, list[Kind]] = {}
        for kind in self._stock.of((self._which, "gpu", part)):
            by_node.setdefault(kind.trait.node, []).append(kind)
        return tuple((node, tuple(by_node[node])) for node in sorted(by_node, key=lambda n: (n is None, n or 0)))

    def _may_be_own(self) -> bool:
        """Whether the contract gives the guest cells on its GPUs' own nodes, so that others are a step from that."""
        if self._want.guest.numa != "auto":
            return False
        if is_vgpu_guest(self._want.guest):
            return any(None not in selection.nodes for selection in self._vgpus())
        if self._sets:
            sets = (self.select(self.all_of("set", part)).nodes for part in range(len(self._sets)))
            return any(nodes and None not in nodes for nodes in sets)
        return any(node is not None for pool in self._pools for node, _ in pool)

    def begin(self) -> Iterator[Selection | Partial]:
        """MIG instances, the GPUs that the guest names or partitions that it may have, or pools to count them from."""
        guest = self._want.guest
        if self._want.candidates.first() is None:
            return
        if is_vgpu_guest(guest):
            yield from self._vgpus()
        elif self._sets:
            for part in range(len(self._sets)):
                picks = self.all_of("set", part)
                if all(self._view.left[index] >= count for index, count in picks):
                    yield self.select(picks)
        elif not gpu_count(guest):
            yield self.select(())
        else:
            for pool in self._pools:
                rooms = (sum(kind.trait.size * self._view.left[kind.index] for kind in kinds) for _, kinds in pool)
                yield Partial(pool, tuple(rooms), gpu_count(guest) or 0)

    def spreads(self) -> range:
        """How many cells the guest may begin with: as many as asked for, or one on each node with its GPUs."""
        guest = self._want.guest
        if guest.numa != "auto":
            cells = guest.numa if isinstance(guest.numa, int) else len(guest.numa)
            return range(cells, cells + 1)
        if is_vgpu_guest(guest) or self._sets or not gpu_count(guest):
            return range(1, 1 + len(self._field.resources.nodes))
        return range(1, 1 + min(gpu_count(guest) or 1, max(map(len, self._pools), default=0)))

    def grown(self, part: Partial, mixed: int) -> Iterator[Selection | Partial]:
        """A part with GPUs of one node more, in every way, of at most so many models beyond the first."""
        for i in range(part.at, len(part.pool)):
            node, kinds = part.pool[i]
            later = sum(part.rooms[i + 1 :])
            for size in range(max(1, part.left - later), min(part.rooms[i], part.left) + 1):
                for picks in handed_out(kinds, self._view.left, size):
                    self._view.spend(1)
                    models = part.models.union(*(self._stock.kind(index).trait.models for index, _ in picks))
                    if len(models) - 1 > mixed:
                        continue
                    longer = (*part.picks, *picks)
                    if size == part.left:
                        yield self.select(longer)
                        continue
                    taken = (*part.taken, (node, size))
                    yield replace(part, left=part.left - size, at=i + 1, picks=longer, taken=taken, models=models)

    def all_of(self, what: str, part: int) -> Picks:
        """Every device of a list: those that are alike are in it together."""
        return tuple((kind.index, len(kind.bundles)) for kind in self._stock.of((self._which, what, part)))

    def select(self, picks: Picks) -> Selection:
        """So many devices of these kinds; of those that are alike the ones that break the fewest partitions."""
        gpus: list[str] = []
        models: set[str | None] = set()
        nodes: list[Node] = []
        brought: set[str] = set()
        busy = 0
        fabric = self._field.catalogue.fabric
        for index, count in picks:
            kind = self._stock.kind(index)
            bundles = sorted(kind.bundles, key=lambda one: lost(fabric, one)) if fabric.partitions else kind.bundles
            gpus += [address for bundle in bundles[:count] for address in bundle]
            models |= kind.trait.models
            busy += kind.trait.busy * count
            brought.update(address for one in kind.members[:count] for address in one)
            nodes += [kind.trait.node] * (kind.trait.size * count)
        mixed = 0 if self._sets else max(0, len(models) - 1)  # what is named, or a partition, is as it was asked for
        return Selection(picks, tuple(nodes), mixed, busy, tuple(gpus), frozenset(brought))

    def _vgpus(self) -> list[Selection]:
        """Every way to have its MIG instances on what is left of the host's GPUs, best first."""
        if self._slots is None:
            guest = self._want.guest
            taken = occupied(self._stock, self._view.left)
            sites = self._stock.sites.get(guest.mig.profile) if guest.mig else None
            ways = mig_choices(self._field, guest, taken, self._want.where, sites)
            self._slots = [self._of_slots(slots) for slots in islice(ways, MOST_SLOTS)]
            self.cut_off = len(self._slots) == MOST_SLOTS
        return self._slots

    def _of_slots(self, slots: tuple[MigSlot, ...]) -> Selection:
        nodes = tuple(self._field.catalogue.node(slot.gpu) for slot in slots)
        known = tuple(node if node in self._field.resources.nodes else None for node in nodes)
        gpus = tuple(sorted({slot.gpu for slot in slots}, key=address_key))
        return Selection((), known, 0, 0, gpus, slots=slots)

    # --- bounds on the objective, in parts of `Problem.unit` ------------------------------------------------------

    def least(self, found: Selection | Partial, level: int) -> int:
        """A bound on the objective of these GPUs; named devices and those counted out later come on top."""
        if isinstance(found, Selection):
            taken = Counter(node for node in found.nodes if node is not None)
            if level == 0 and self.has_own_nodes and taken:
                return self._on_own_nodes(taken, 0, 0)
            return self._on_any_nodes(taken, self._cells(found, level))
        taken = Counter({node: count for node, count in found.taken if node is not None})
        if level or not self.has_own_nodes or self._few_cores(len(taken) + 1):
            return self._on_any_nodes(taken, 1)
        return min(self._on_own_nodes(taken, found.left, more) for more in range(self._fewest(found), found.left + 1))

    def _fewest(self, part: Partial) -> int:
        """From how many nodes the GPUs that are left come at the least."""
        found = list(accumulate(sorted(part.rooms[part.at :], reverse=True)))
        return min(1 + bisect_left(found, part.left), part.left)

    def _few_cores(self, nodes: int) -> bool:
        """Whether a guest has fewer cores than nodes with its GPUs, so that it gets a single cell."""
        vcpus = self._want.guest.vcpus
        return isinstance(vcpus, int) and cores_needed(vcpus, self._field.resources.threads_per_core) < nodes

    def _cells(self, selection: Selection, level: int) -> int:
        if isinstance(self._want.guest.numa, tuple):
            return 1  # its cells have uneven shares: no more is known than that something is nearest
        return base_cells(self._field, self._want.guest, selection.gpus).cells + max(0, level - self.has_own_nodes)

    def _on_own_nodes(self, taken: Counter[int], left: int, more: int) -> int:
        """A cell on each node with GPUs, when `left` GPUs from `more` other nodes are still to come."""
        distance, unit = self._field.resources.distance, self._problem.unit
        cells = len(taken) + more
        nearest, near = self._nearest, self._near
        known = sum(count * distance(cell, node) for node, count in taken.items() for cell in taken)
        known += sum(count * more * near[node] for node, count in taken.items())
        to_come = left * (self._own + (cells - 1) * nearest)
        pairs = sum(distance(a, b) for a, b in combinations(sorted(taken), 2)) + more * sum(
            near[node] for node in taken
        )
        pairs += more * (more - 1) // 2 * nearest
        return unit * (known + to_come) // cells + unit * pairs

    def _on_any_nodes(self, taken: Counter[int], cells: int) -> int:
        """So many cells on the nodes nearest to the GPUs, as near to each other as can be."""
        resources = self._field.resources
        distances = (sum(count * resources.distance(n, node) for node, count in taken.items()) for n in resources.nodes)
        pairs = self._nearest * (cells * (cells - 1) // 2)
        return self._problem.unit * (sum(sorted(distances)[:cells])) // cells + self._problem.unit * pairs


def handed_out(kinds: Sequence[Kind], left: Sequence[int], count: int) -> list[Picks]:
    """Every way to take exactly so many devices of some kinds."""
    if not count:
        return [()]
    if not kinds:
        return []
    kind, rest = kinds[0], kinds[1:]
    found: list[Picks] = []
    for bundles in range(min(left[kind.index], count // kind.trait.size), -1, -1):
        head: Picks = ((kind.index, bundles),) if bundles else ()
        found += [(*head, *tail) for tail in handed_out(rest, left, count - bundles * kind.trait.size)]
    return found
