"""What is left of a host while guests are tried on it: amounts of its stock, and the memory of its nodes.

Pure but for its own books: a way is taken and given back. Two states in which the same can still be done are equal in
`state`, nodes that are twins standing for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosttune.gpu.mig_tables import SLICES
from hosttune.planning.devices import countable_gpus
from hosttune.planning.options import Option, View
from hosttune.planning.pages import NodeMemory
from hosttune.planning.placement import CellDemand, Shape, cores_needed
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Stock, atom_of, instances_of


class Ledger:
    """The books of one search. `left` are the amounts of the stock; `work` counts what looking costs."""

    def __init__(self, field: Field, stock: Stock) -> None:
        self.field, self.stock = field, stock
        self.left = list(stock.capacity)
        self.work = 0
        self._room = {n: m.creatable_bytes for n, m in field.memory.items()}
        self._now = {n: m.room_bytes() for n, m in field.memory.items()}  # of that, without a reboot
        self._asked: dict[tuple[int, int | None], int] = {}
        self._twins = _twins(field, stock)
        cut = [address for address in field.catalogue.gpus if instances_of(address) in stock.parts]
        self._slices = [stock.parts[atom_of(address, bit)] for address in cut for bit in range(SLICES)]

    def spend(self, work: int) -> None:
        """Count work that somebody did for this search."""
        self.work += work

    def fits(self, option: Option) -> bool:
        """Whether what is left holds a way."""
        self.work += 1
        left = self.left
        for index, amount in option.use:
            if left[index] < amount:
                return False
        rooms = [self._room] if option.sizes.shape.at_boot else [self._room, self._now]
        for node, page, size in option.memory:
            for there in rooms:
                room = there.get(node)
                if room is not None and spends(self.field.memory[node], self._asked, page, size) > room:
                    return False
        return True

    def take(self, option: Option, sign: int) -> None:
        """Take what an option needs (1), or give it back (-1)."""
        for index, amount in option.use:
            self.left[index] -= sign * amount
        for node, page, size in option.memory:
            if sign < 0:
                self._asked[node, page] -= size
            for there in [self._room] if option.sizes.shape.at_boot else [self._room, self._now]:
                room = there.get(node)
                if room is not None:
                    there[node] = room - sign * spends(self.field.memory[node], self._asked, page, size)
            if sign > 0:
                self._asked[node, page] = self._asked.get((node, page), 0) + size

    def state(self) -> object:
        """What is left, with twin nodes in any order: what can still be done depends on nothing else."""
        rows: dict[object, list[object]] = {}
        pages = sorted({page for _, page in self._asked if page is not None})
        for node, (group, places) in self._twins.items():
            amounts = tuple(self.left[i] for i in places)
            asked = tuple(self._asked.get((node, page), 0) for page in pages)
            rooms = self._room.get(node) or 0, self._now.get(node) or 0
            rows.setdefault(group, []).append((amounts, rooms, asked))
        homed = tuple((group, tuple(sorted(found))) for group, found in rows.items())  # type: ignore[type-var]
        return homed, tuple(self.left[i] for i in self.stock.homeless)

    def memory_left(self, node: int) -> int | None:
        """The most memory that any cell could get on a node now; None = unknown."""
        room = self._room.get(node)
        if room is None:
            return None
        memory = self.field.memory[node]
        free = (memory.pages_free(page) * page - self._asked.get((node, page), 0) for page in memory.pools)
        return room + max(0, max(free, default=0))

    def view(self) -> View:
        """What there is now, for drawing ways that fit; it does not change with what is taken later."""
        left, asked = tuple(self.left), dict(self._asked)
        at_boot, now = dict(self._room), dict(self._now)
        stock, memory = self.stock, self.field.memory

        def holds(node: int, cell: CellDemand, shape: Shape) -> bool:
            if shape.share_cores:
                if left[stock.threads[node]] < cell.vcpus:
                    return False
            elif left[stock.cores[node, shape.threads]] < cores_needed(cell.vcpus, shape.threads):
                return False
            have = (at_boot if shape.at_boot else now).get(node)
            return have is None or spends(memory[node], asked, shape.page, cell.memory_bytes) <= have

        return View(left, holds, self.spend)

    def totals(self) -> tuple[int, int | None, int, int, int]:
        """(cores, bytes, GPUs, CPUs, memory slices of GPUs) that are left on the whole host; None = unknown."""
        stock, left = self.stock, self.left
        rooms = list(self._room.values())
        known = len(rooms) == len(self.field.resources.nodes)  # a node without a row never refuses
        memory = None if None in rooms or not known else sum(rooms)  # type: ignore[arg-type]
        pooled = sum(
            max(0, m.pages_free(page) * page - self._asked.get((m.node, page), 0))
            for m in self.field.memory.values()
            for page in m.pools
        )
        cores = sum(left[index] for (_, least), index in stock.cores.items() if least == 1)
        threads = sum(left[index] for index in stock.threads.values())
        gpus = sum(left[kind.index] * kind.trait.size for kind in stock.kinds if kind.trait.of_gpus)
        slices = sum(left[index] for index in self._slices)
        return (cores, None if memory is None or not self.field.memory else memory + pooled, gpus, threads, slices)


def spends(memory: NodeMemory, asked: Mapping[tuple[int, int | None], int], page: int | None, size: int) -> int:
    """What a cell takes of the memory that no pool holds, after what was `asked` of the pools already."""
    if page is None:
        return size
    free = memory.pages_free(page) * page
    before = asked.get((memory.node, page), 0)
    return max(0, before + size - free) - max(0, before - free)


Twin = tuple[object, tuple[int, ...]]  # nodes of one group may stand for each other; where a node's amounts are


def _twins(field: Field, stock: Stock) -> dict[int, Twin]:
    """Nodes that no guest could tell apart but by what is left of them: same distances, same sizes, same devices."""
    resources = field.resources
    ids = sorted(resources.nodes)
    kinds: dict[int | None, list[tuple[object, int]]] = {}
    for kind in stock.kinds:
        mark = (
            tuple(sorted(kind.trait.labels)),
            kind.trait.size,
            kind.trait.busy,
            tuple(sorted(map(str, kind.trait.models))),
        )
        along = tuple("here" if node == kind.trait.node else node for node in kind.trait.along)
        kinds.setdefault(kind.trait.node, []).append(((mark, kind.trait.also, along), kind.index))
    firsts: list[tuple[int, object]] = []
    found: dict[int, Twin] = {}
    for node in ids:
        here = sorted(kinds.get(node, ()), key=repr)
        places = [index for (where, _), index in stock.cores.items() if where == node]
        places = [*places, stock.threads[node], *(index for _, index in here)]
        gpus = [address for address in field.catalogue.gpus if field.catalogue.node(address) == node]
        cut = tuple(address for address in gpus if instances_of(address) in stock.parts)
        looks = (tuple(mark for mark, _ in here), resources.distance(node, node), _size(field, node), cut)
        group = next((n for n, other in firsts if other == looks and _stands_for(field, ids, node, n)), None)
        if group is None:
            firsts.append((node, looks))
        found[node] = (node if group is None else group), tuple(places)
    return found


def _size(field: Field, node: int) -> object:
    """What `auto` and page pools see of a node."""
    memory = field.memory.get(node)
    pools = [(page, memory.pages_free(page)) for page in sorted(memory.pools)] if memory else []
    countable = countable_gpus(field.host, field.catalogue)
    gpus = sum(field.catalogue.node(gpu.address) == node for gpu in countable)
    room = (memory.assignable_bytes, memory.creatable_bytes is None, memory.short_now) if memory else None
    return len(field.resources.nodes[node].assignable), room, tuple(pools), gpus


def _stands_for(field: Field, ids: Sequence[int], a: int, b: int) -> bool:
    """Whether two nodes have the same distances to all others."""
    distance = field.resources.distance
    return distance(a, b) == distance(b, a) and all(
        distance(a, n) == distance(b, n) and distance(n, a) == distance(n, b) for n in ids if n not in (a, b)
    )
