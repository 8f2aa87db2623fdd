"""Every choice of GPUs that a guest may have, generated on demand, with a bound on its objective.

Pure. GPUs that are equal for every guest are counted (`resource_pool.Kind`), so that a choice has the number of GPUs of
each kind. A counted request is completed node by node; each part has a bound on the contract's objective.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, combinations, islice

import msgspec
from msgspec.structs import replace

from hosttune.inventory.cores import CellDemand, GuestShape, cores_needed
from hosttune.inventory.devices import gpu_count
from hosttune.inventory.partitions import lost
from hosttune.inventory.sizing import base_cells
from hosttune.model.values import address_key, grouped
from hosttune.planning.mig.instances import MigSlot, is_vgpu_guest, mig_choices, own_slots
from hosttune.planning.request.resource_pool import Kind, gpu_pools, gpu_sets, occupied
from hosttune.planning.search.problem import PlacementProblem

MOST_SLOTS = 1024  # the most ways to place the MIG instances of one guest that are looked at
Node = int | None
Picks = tuple[tuple[int, int], ...]  # (index of a kind, number of its bundles)


class View(msgspec.Struct, frozen=True):
    """What is available to a guest: the amounts that are left, and whether a node could hold a cell of some shape.

    `spend` receives the work that was done, so that a search ends in time.
    """

    left: Sequence[int]
    holds: Callable[[int, CellDemand, GuestShape], bool]
    spend: Callable[[int], None]


class Selection(msgspec.Struct, frozen=True):
    """A choice of GPUs: how many of which kinds, the node of each, and example GPUs that stand for all equal ones."""

    picks: Picks
    nodes: tuple[Node, ...]
    mixed: int
    busy: int
    gpus: tuple[str, ...]
    brought: frozenset[str] = frozenset()  # these GPUs and everything that goes along with them
    slots: tuple[MigSlot, ...] = ()


class Partial(msgspec.Struct, frozen=True):
    """A counted request that is not complete: it has used nodes before `at` of a pool; `left` GPUs are still wanted."""

    pool: tuple[tuple[Node, tuple[Kind, ...]], ...]
    rooms: tuple[int, ...]  # the number of GPUs on each node of the pool
    left: int
    at: int = 0
    picks: Picks = ()
    taken: tuple[tuple[Node, int], ...] = ()  # nodes, and the number of GPUs from each
    models: frozenset[str | None] = msgspec.field(default=frozenset())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes from which it has GPUs."""
        return tuple(node for node, _ in self.taken)


class Selections:
    """The choices of GPUs of one guest of a problem."""

    def __init__(
        self, problem: PlacementProblem, which: int, view: View, able: Callable[[int], frozenset[int]]
    ) -> None:
        """Prepare; `able` returns the nodes that could hold a cell of the guest, if it has so many cells."""
        self._able = able
        self._problem, self._field, self._stock = problem, problem.context, problem.resource_pool
        self._want, self._which, self._view = problem.wants[which], which, view
        self._sets = gpu_sets(self._want.candidates)
        self._slots: list[Selection] | None = None
        self.cut_off = False  # whether there are more ways to place MIG instances than are looked at
        resources = self._field.resources
        self._own = min((resources.distance(node, node) for node in resources.nodes), default=0)
        nodes = list(resources.nodes)
        self._near = {a: min((resources.distance(a, b) for b in nodes if b != a), default=0) for a in nodes}
        self._nearest = min(self._near.values(), default=0)
        self._beside = min(self._own, self._nearest)  # of a GPU whose node may have no CPUs, to its nearest cell
        self._pools = [self._pool(part) for part in range(len(gpu_pools(self._want)))]
        self.has_own_nodes = self._may_be_own()

    def _pool(self, part: int) -> tuple[tuple[Node, tuple[Kind, ...]], ...]:
        """Return the kinds of a pool by node; those of unknown node come last."""
        by_node = grouped((kind.trait.node, kind) for kind in self._stock.of((self._which, "gpu", part)))
        return tuple((node, tuple(by_node[node])) for node in sorted(by_node, key=lambda n: (n is None, n or 0)))

    def _may_be_own(self) -> bool:
        """Return whether the contract gives the guest cells on its GPUs' own nodes.

        Then cells on other nodes rank one level worse.
        """
        if self._want.guest.numa != "auto":
            return False
        if is_vgpu_guest(self._want.guest):
            return any(None not in selection.nodes for selection in self._vgpus())
        if self._sets:
            sets = (self.select(self.all_of("set", part)).nodes for part in range(len(self._sets)))
            return any(nodes and None not in nodes for nodes in sets)
        return any(node is not None for pool in self._pools for node, _ in pool)

    def begin(self) -> Iterator[Selection | Partial]:
        """Yield the first choices.

        MIG instances, the GPUs that the guest names, its possible partitions, or pools from which GPUs are counted.
        """
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
        """Return the numbers of cells to begin with: as requested, or one on each node with the guest's GPUs."""
        guest = self._want.guest
        if guest.numa != "auto":
            cells = guest.numa if isinstance(guest.numa, int) else len(guest.numa)
            return range(cells, cells + 1)
        if is_vgpu_guest(guest) or self._sets or not gpu_count(guest) or self._field.sockets:
            return range(1, 1 + len(self._field.resources.nodes))
        return range(1, 1 + min(gpu_count(guest) or 1, max(map(len, self._pools), default=0)))

    def grown(self, part: Partial, mixed: int) -> Iterator[Selection | Partial]:
        """Yield a part with GPUs of one more node, in every way, with at most `mixed` models beyond the first."""
        for i in range(part.at, len(part.pool)):
            node, kinds = part.pool[i]
            later = sum(part.rooms[i + 1 :])
            for size in range(max(1, part.left - later), min(part.rooms[i], part.left) + 1):
                for picks in ways_to_take(kinds, self._view.left, size):
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
        """Return every device of a list by kind: equal devices are counted together."""
        return tuple((kind.index, len(kind.bundles)) for kind in self._stock.of((self._which, what, part)))

    def select(self, picks: Picks) -> Selection:
        """Return the choice of these devices; of equal ones, those that break the fewest partitions."""
        gpus: list[str] = []
        models: set[str | None] = set()
        nodes: list[Node] = []
        brought: set[str] = set()
        busy = 0
        fabric = self._field.catalogue.fabric
        for index, count in picks:
            kind = self._stock.kind(index)
            bundles = (
                sorted(kind.bundles, key=lambda bundle: lost(fabric, bundle)) if fabric.partitions else kind.bundles
            )
            gpus += [address for bundle in bundles[:count] for address in bundle]
            models |= kind.trait.models
            busy += kind.trait.busy * count
            brought.update(address for bundle in kind.members[:count] for address in bundle)
            nodes += [kind.trait.node] * (kind.trait.size * count)
        mixed = 0 if self._sets else max(0, len(models) - 1)  # a named set or a partition is as requested
        return Selection(picks, tuple(nodes), mixed, busy, tuple(gpus), frozenset(brought))

    def _vgpus(self) -> list[Selection]:
        """Return every way to place its MIG instances on what is left of the host's GPUs, best first."""
        if self._slots is None:
            guest = self._want.guest
            taken = occupied(self._stock, self._view.left)
            sites = self._stock.sites.get(guest.mig.profile) if guest.mig else None
            own = own_slots(self._field, guest)
            ways = iter((own,)) if own else mig_choices(self._field, guest, taken, self._want.where, sites)
            self._slots = [self._of_slots(slots) for slots in islice(ways, MOST_SLOTS)]
            self.cut_off = len(self._slots) == MOST_SLOTS
        return self._slots

    def _of_slots(self, slots: tuple[MigSlot, ...]) -> Selection:
        nodes = tuple(self._field.catalogue.node(slot.gpu) for slot in slots)
        known = tuple(node if node in self._field.resources.nodes else None for node in nodes)
        gpus = tuple(sorted({slot.gpu for slot in slots}, key=address_key))
        return Selection((), known, 0, 0, gpus, slots=slots)

    # --- bounds on the objective, in parts of `Problem.unit` ------------------------------------------------------

    def least(self, partial: Selection | Partial, level: int) -> int:
        """Return a bound on the objective of these GPUs; named and counted devices are added later."""
        if isinstance(partial, Selection):
            taken = Counter(node for node in partial.nodes if node is not None)
            if level == 0 and self.has_own_nodes and taken:
                return self._on_own_nodes(taken, 0, 0)
            cells = self._cells(partial, level)
            return self._on_any_nodes(taken, range(cells, cells + 1))
        taken = Counter({node: count for node, count in partial.taken if node is not None})
        fewest = self._fewest(partial)
        if level or not self.has_own_nodes or self._few_cores(len(self._homes(taken)) + fewest):
            return self._on_any_nodes(taken, self._possible_cells(partial, level), partial)
        return min(self._on_own_nodes(taken, partial.left, more) for more in range(fewest, partial.left + 1))

    def _possible_cells(self, part: Partial, level: int) -> range:
        """Return the numbers of cells of a guest with these GPUs and more."""
        numa, extra = self._want.guest.numa, max(0, level - self.has_own_nodes)
        if numa != "auto":
            cells = numa if isinstance(numa, int) else 1
            return range(cells, cells + 1)
        most = len(part.taken) + part.left
        unknown = any(self._field.resources.home(node) is None for node in (part.pool[-1][0], *part.nodes))
        fewest = 1 if unknown or self._few_cores(most) else len(self._homes(part.nodes)) + self._fewest(part)
        return range(fewest + extra, most + extra + 1)

    def _homes(self, nodes: Iterable[Node]) -> set[Node]:
        """Return the nodes that GPUs on these nodes count for."""
        return set(map(self._field.resources.home, nodes))

    def _fewest(self, part: Partial) -> int:
        """Return the least number of nodes that the missing GPUs count for, besides those of the GPUs that it has."""
        rooms: Counter[Node] = Counter()
        for (node, _), room in islice(zip(part.pool, part.rooms, strict=True), part.at, None):
            rooms[self._field.resources.home(node)] += room
        left = part.left - sum(rooms.pop(home, 0) for home in self._homes(part.nodes))
        if left <= 0:
            return 0
        sums = list(accumulate(sorted(rooms.values(), reverse=True)))
        return min(1 + bisect_left(sums, left), left)

    def _few_cores(self, nodes: int) -> bool:
        """Return whether a guest has fewer cores than nodes with its GPUs, so that it gets a single cell."""
        vcpus = self._want.guest.vcpus
        return isinstance(vcpus, int) and cores_needed(vcpus, self._field.resources.threads_per_core) < nodes

    def _cells(self, selection: Selection, level: int) -> int:
        if isinstance(self._want.guest.numa, tuple):
            return 1  # its cells have uneven shares, so the bound assumes only the nearest node
        return base_cells(self._field, self._want.guest, selection.gpus).cells + max(0, level - self.has_own_nodes)

    def _on_own_nodes(self, taken: Counter[int], left: int, more: int) -> int:
        """Return a bound for a cell on each node that GPUs count for; `left` GPUs add `more` nodes."""
        distance, unit = self._field.resources.distance, self._problem.unit
        own = sorted(home for home in self._homes(taken) if home is not None)
        cells = len(own) + more
        nearest, near = self._nearest, self._near
        known = sum(count * distance(cell, node) for node, count in taken.items() for cell in own)
        known += sum(count * more * near[node] for node, count in taken.items())
        to_come = left * (self._beside + (cells - 1) * nearest)
        pairs = sum(distance(a, b) for a, b in combinations(own, 2)) + more * sum(near[node] for node in own)
        pairs += more * (more - 1) // 2 * nearest
        return unit * (known + to_come) // cells + unit * pairs

    def _on_any_nodes(self, taken: Counter[int], cells: range, part: Partial | None = None) -> int:
        """Return a bound for so many cells on the nodes nearest to the GPUs, as near to each other as possible.

        The GPUs that a `part` still gets are each on the node of a cell, if that node could hold one, and as near as
        possible to the other cells. GPUs of unknown node add nothing.
        """
        resources, fewest = self._field.resources, cells[0]
        listed = isinstance(self._want.guest.numa, tuple)
        able = resources.nodes.keys() if listed else frozenset[int]().union(*map(self._able, cells))
        total = sum(
            sorted(sum(count * resources.distance(n, node) for node, count in taken.items()) for n in able)[:fewest]
        )
        if part is not None:
            rooms = [(node, room) for (node, _), room in zip(part.pool, part.rooms, strict=True)][part.at :]
            left = max(0, part.left - sum(room for node, room in rooms if node is None))
            beside = min(left, sum(room for node, room in rooms if node in able))
            total += beside * (self._own + (fewest - 1) * self._nearest) + (left - beside) * fewest * self._nearest
        pairs = self._nearest * (fewest * (fewest - 1) // 2)
        return self._problem.unit * total // fewest + self._problem.unit * pairs


def ways_to_take(kinds: Sequence[Kind], left: Sequence[int], count: int) -> list[Picks]:
    """Return every way to take exactly `count` devices of some kinds."""
    if not count:
        return [()]
    if not kinds:
        return []
    kind, rest = kinds[0], kinds[1:]
    ways: list[Picks] = []
    for bundles in range(min(left[kind.index], count // kind.trait.size), -1, -1):
        head: Picks = ((kind.index, bundles),) if bundles else ()
        ways += [(*head, *tail) for tail in ways_to_take(rest, left, count - bundles * kind.trait.size)]
    return ways
