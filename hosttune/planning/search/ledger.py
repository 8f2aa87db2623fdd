"""What is left of a host while guests are tried on it: amounts of the resource pool, and the memory of its nodes.

Pure except for its own state: a placement is taken and given back. `state` is equal for two states in which the same
can still be placed; nodes that are twins are exchangeable.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from copy import copy
from operator import itemgetter
from typing import NamedTuple

from hosttune.gpu.mig_tables import SLICES
from hosttune.inventory.cores import CellDemand, GuestShape, cores_needed
from hosttune.inventory.devices import countable_gpus
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.values import grouped
from hosttune.planning.request.resource_pool import ResourcePool, atom_of, instances_of
from hosttune.planning.search.placements import Placement
from hosttune.planning.search.problem import PlacementProblem
from hosttune.planning.search.selections import View


class Ledger:
    """The amounts left in one search. `left`: the amounts of the resource pool; `work`: the cost of the search."""

    def __init__(self, problem: PlacementProblem) -> None:
        context, resource_pool = problem.context, problem.resource_pool
        self.context, self.resource_pool = context, resource_pool
        self.left = list(resource_pool.capacity)
        self.work = 0
        self._memory = Memory(context)
        self._twins: list[list[tuple[int, Picker]]] | None = None  # only `state` needs them
        self._nodeless = picker(resource_pool.nodeless)
        self._cores = picker([index for (_, least), index in resource_pool.cores.items() if least == 1])
        self._threads = picker(list(resource_pool.threads.values()))
        cut = [address for address in context.catalogue.gpus if instances_of(address) in resource_pool.parts]
        self._slices = picker([resource_pool.parts[atom_of(address, bit)] for address in cut for bit in range(SLICES)])

    def spend(self, work: int) -> None:
        """Add work that other code did for this search."""
        self.work += work

    def fits(self, placement: Placement) -> bool:
        """Return whether a placement fits what is left."""
        self.work += 1
        left = self.left
        for index, amount in placement.use:
            if left[index] < amount:
                return False
        at_boot = placement.sizes.shape.at_boot
        return all(self._memory.holds(node, page, size, at_boot) for node, page, size in placement.memory)

    def take(self, placement: Placement, sign: int) -> None:
        """Take what a placement needs (1), or give it back (-1)."""
        for index, amount in placement.use:
            self.left[index] -= sign * amount
        at_boot = placement.sizes.shape.at_boot
        for node, page, size in placement.memory:
            self._memory.take(node, page, size, at_boot, sign)

    def memory_state(self, node: int) -> tuple[int, ...]:
        """Return everything that decides what memory a cell can still get on a node."""
        return self._memory.state(node)

    def holds_memory(self, node: int, page: int | None, size: int, at_boot: bool) -> bool:
        """Return whether a node has this much memory left."""
        return self._memory.holds(node, page, size, at_boot)

    def state(self, unused: Container[int] = ()) -> object:
        """Return what is left, with twin nodes in any order. What can still be placed depends on nothing else.

        `unused`: nodes of which no remaining guest can take anything; what is left of them does not matter.
        """
        if self._twins is None:
            groups = grouped(
                (group, (node, picker(places)))
                for node, (group, places) in _twins(self.context, self.resource_pool).items()
            )
            self._twins = list(groups.values())
        left, memory = self.left, self._memory
        parts = []
        for group in self._twins:
            rows = [() if node in unused else (amounts(left), memory.state(node)) for node, amounts in group]
            if len(rows) > 1:
                rows.sort()
            parts.append(tuple(rows))
        return tuple(parts), self._nodeless(left)

    def rooms(self, *, shared: bool) -> list[tuple[int, int | None]]:
        """Return (free cores, the most memory that a cell could get) of each node; `shared`: CPUs instead of cores."""
        left, resource_pool, memory = self.left, self.resource_pool, self._memory
        places = (
            resource_pool.threads.items()
            if shared
            else ((node, resource_pool.cores[node, 1]) for node in resource_pool.threads)
        )
        return [(left[index], memory.most(node)) for node, index in places]

    def view(self) -> View:
        """Return a snapshot of what is left, for generating placements that fit.

        It does not change when more is taken.
        """
        left, memory, resource_pool = tuple(self.left), self._memory.copy(), self.resource_pool

        def holds(node: int, cell: CellDemand, shape: GuestShape) -> bool:
            if shape.share_cores:
                if left[resource_pool.threads[node]] < cell.vcpus:
                    return False
            elif left[resource_pool.cores[node, shape.threads]] < cores_needed(cell.vcpus, shape.threads):
                return False
            return memory.holds(node, shape.page, cell.memory_bytes, shape.at_boot)

        return View(left, holds, self.spend)

    def totals(self) -> Totals:
        """Return what is left on the whole host."""
        left = self.left
        return Totals(
            cores=sum(self._cores(left)),
            memory_bytes=self._memory.total(),
            gpus=self._of("any-gpu"),
            cpus=sum(self._threads(left)),
            slices=sum(self._slices(left)),
            counted_gpus=self._of("gpu"),
            nics=self._of("nic"),
            drives=self._of("nvme"),
        )

    def _of(self, what: str) -> int:
        return sum(self.left[index] * size for index, size in self.resource_pool.pools[what])


class Totals(NamedTuple):
    """Amounts of the whole host: what is left, or the minimum that a guest needs. `memory_bytes` None: unknown.

    `counted_gpus`, `nics`, `drives`: only devices that can be given to a guest by count.
    """

    cores: int
    memory_bytes: int | None
    gpus: int
    cpus: int
    slices: int
    counted_gpus: int
    nics: int
    drives: int


class Memory:
    """The memory of the nodes. Free pages of a pool are used first; the rest is made from other memory."""

    def __init__(self, context: PlanningContext) -> None:
        rows = context.memory.items()
        self._room = {n: m.creatable_bytes for n, m in rows}
        self._now = {n: m.room_bytes() for n, m in rows}  # the part of it that needs no reboot
        free = {(n, page): m.pages_free(page) * page for n, m in rows for page in m.pools}
        self._pooled = {key: size for key, size in free.items() if size}
        self._asked = dict.fromkeys(self._pooled, 0)  # bytes taken of each pool
        # A node without an entry is no reason to refuse a guest.
        self._known = bool(rows) and None not in self._room.values() and len(rows) == len(context.resources.nodes)

    def copy(self) -> Memory:
        """Return an independent copy."""
        memory = copy(self)
        memory._room, memory._now, memory._asked = dict(self._room), dict(self._now), dict(self._asked)
        return memory

    def _spends(self, node: int, page: int | None, size: int) -> int:
        """Return how much memory outside the pools `size` bytes in such pages take."""
        key = node, page or 0
        free = self._pooled.get(key)
        if free is None:
            return size
        before = self._asked[key]
        return max(0, before + size - free) - max(0, before - free)

    def holds(self, node: int, page: int | None, size: int, at_boot: bool) -> bool:
        """Return whether a node has this much memory left; unknown memory size is no reason to refuse."""
        room, now = self._room.get(node), self._now.get(node)
        spends = self._spends(node, page, size)
        return (room is None or spends <= room) and (at_boot or now is None or spends <= now)

    def take(self, node: int, page: int | None, size: int, at_boot: bool, sign: int) -> None:
        """Take this much (1), or give it back (-1)."""
        key = node, page or 0
        if sign < 0 and key in self._asked:
            self._asked[key] -= size
        spends = sign * self._spends(node, page, size)
        for there in (self._room,) if at_boot else (self._room, self._now):
            room = there.get(node)
            if room is not None:
                there[node] = room - spends
        if sign > 0 and key in self._asked:
            self._asked[key] += size

    def state(self, node: int) -> tuple[int, ...]:
        """Return everything that decides what a node can still hold."""
        asked = (size for (there, _), size in self._asked.items() if there == node) if self._asked else ()
        return (self._room.get(node) or 0, self._now.get(node) or 0, *asked)

    def most(self, node: int) -> int | None:
        """Return the most memory that a cell could get on a node; None = unknown."""
        room = self._room.get(node)
        if room is None or not self._pooled:
            return room
        return room + max((self._free(key) for key in self._pooled if key[0] == node), default=0)

    def total(self) -> int | None:
        """Return what is left on all nodes; None = unknown."""
        if not self._known:
            return None
        return sum(room or 0 for room in self._room.values()) + sum(map(self._free, self._pooled))

    def _free(self, key: tuple[int, int]) -> int:
        return max(0, self._pooled[key] - self._asked[key])


Picker = Callable[[Sequence[int]], tuple[int, ...]]


def picker(indices: Sequence[int]) -> Picker:
    """Return a function that picks the amounts of these indices."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda left: tuple(left[index] for index in indices)


def places_of_node(context: PlanningContext, resource_pool: ResourcePool) -> dict[int, tuple[int, ...]]:
    """Return the indices of the amounts of each node."""
    return {node: places for node, (_, places) in _twins(context, resource_pool).items()}


Twin = tuple[object, tuple[int, ...]]  # the group of exchangeable nodes; the indices of the node's amounts


def _twins(context: PlanningContext, resource_pool: ResourcePool) -> dict[int, Twin]:
    """Return nodes that differ for guests only by what is left of them: same distances, same sizes, same devices."""
    resources = context.resources
    ids = sorted(resources.nodes)
    kinds: dict[int | None, list[tuple[object, int]]] = {}
    for kind in resource_pool.kinds:
        mark = (
            tuple(sorted(kind.trait.labels)),
            kind.trait.size,
            kind.trait.busy,
            tuple(sorted(map(str, kind.trait.models))),
        )
        along = tuple("here" if node == kind.trait.node else node for node in kind.trait.along)
        kinds.setdefault(kind.trait.node, []).append(((mark, kind.trait.also, along), kind.index))
    firsts: list[tuple[int, object]] = []
    twins: dict[int, Twin] = {}
    for node in ids:
        here = sorted(kinds.get(node, ()), key=repr)
        places = [index for (where, _), index in resource_pool.cores.items() if where == node]
        places = [*places, resource_pool.threads[node], *(index for _, index in here)]
        gpus = [address for address in context.catalogue.gpus if context.catalogue.node(address) == node]
        cut = tuple(address for address in gpus if instances_of(address) in resource_pool.parts)
        without = tuple(n for n in ids if n != node and resources.home(n) == node)  # nodes without CPUs near it alone
        looks = (
            tuple(mark for mark, _ in here),
            resources.distance(node, node),
            _size(context, node),
            cut,
            without,
            context.sockets.get(node),
        )
        group = next((n for n, other in firsts if other == looks and _has_same_distances(context, ids, node, n)), None)
        if group is None:
            firsts.append((node, looks))
        twins[node] = (node if group is None else group), tuple(places)
    return twins


def _size(context: PlanningContext, node: int) -> object:
    """Return what `auto` and page pools use of a node."""
    memory = context.memory.get(node)
    pools = [(page, memory.pages_free(page)) for page in sorted(memory.pools)] if memory else []
    countable = countable_gpus(context.host, context.catalogue)
    gpus = sum(context.home(gpu.address) == node for gpu in countable)
    room = (memory.assignable_bytes, memory.creatable_bytes is None, memory.short_now) if memory else None
    return len(context.resources.nodes[node].assignable), room, tuple(pools), gpus


def _has_same_distances(context: PlanningContext, ids: Sequence[int], a: int, b: int) -> bool:
    """Return whether two nodes have the same distances to all others."""
    distance = context.resources.distance
    return distance(a, b) == distance(b, a) and all(
        distance(a, n) == distance(b, n) and distance(n, a) == distance(n, b) for n in ids if n not in (a, b)
    )
