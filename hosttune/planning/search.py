"""Several guests at once: the most that fit, and of those the best, by branch and bound.

Pure. Guests are taken one after the other, the largest first; each tries its ways from the cheapest on, or stays
out. A branch ends where what it cannot avoid is no better than the best plan found: the least rank of every guest
that is left, on what is left of the host, and what its cores, memory and GPUs cannot hold together. States that were
seen before (nodes that are twins may stand for each other) are not searched again. What is equal in rank is tried in
the order of what leaves most: fewest last-level caches, no CPUs beside GPUs for guests without, fullest nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hosttune.model.values import parse_size
from hosttune.planning.devices import gpu_count
from hosttune.planning.options import Option, Options, Scale
from hosttune.planning.placement import choose_cores, cores_needed, llcs_spanned
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Stock, Want

MOST_WORK = 2_000_000  # ways looked at before the search is cut off: some seconds
SAME_RANK = 64  # ways of one rank that are put in order before they are tried


@dataclass(frozen=True)
class Found:
    """The way of each guest (None: left out), and whether nothing better exists for certain."""

    options: tuple[Option | None, ...]
    proven: bool


class _Enough(Exception):
    """The search ended: nothing better can be found, or it was cut off."""


class Search:
    """One search over the guests of a batch; use `run` once."""

    def __init__(
        self, field: Field, stock: Stock, scale: Scale, wants: Sequence[Want], *, most_work: int = MOST_WORK
    ) -> None:
        self._field, self._stock, self._scale, self._wants = field, stock, scale, wants
        self._ways = [Options(field, stock, scale, wants, i) for i in range(len(wants))]
        self._order = sorted(range(len(wants)), key=lambda i: (-self._weight(i), i))
        self._left = list(stock.capacity)
        self._room = {n: m.creatable_bytes for n, m in field.memory.items()}
        self._asked: dict[tuple[int, int | None], int] = {}
        self._twins = _twins(field, stock)
        self._needs = [self._suffix(part) for part in range(3)]
        self._llcs: dict[tuple[int, int, int], int] = {}
        self._seen: dict[object, int] = {}
        self._chosen: list[Option | None] = [None] * len(wants)
        self._best: tuple[int, tuple[Option | None, ...]] | None = None
        self._work, self._most_work = 0, most_work
        self._floor = 0

    def run(self) -> Found:
        """The best plan, and whether that is certain."""
        firsts = [0] * len(self._wants)
        self._floor = self._bound(0, firsts)[0]
        proven = True
        try:
            self._descend(0, 0, firsts)
        except _Enough:
            proven = self._best is not None and self._best[0] == self._floor
        assert self._best is not None, "leaving out every guest is always possible"
        return Found(self._best[1], proven)

    # --- the tree -----------------------------------------------------------------------------------------------

    def _descend(self, depth: int, rank: int, firsts: list[int]) -> None:
        """All ways of the guests from `depth` on; `firsts` are their first ways that may still fit."""
        if depth == len(self._order):
            self._best = rank, tuple(self._chosen)
            if rank <= self._floor:
                raise _Enough
            return
        firsts = list(firsts)
        bound, own = self._bound(depth, firsts)
        if self._hopeless(rank + bound):
            return
        key = self._state(depth)
        if self._seen.get(key, rank + 1) <= rank:
            return
        rest = rank + bound - own
        which = self._order[depth]
        number = firsts[which]
        while (run := self._run(which, number, rest)) is not None:
            number, options = run
            for option in options:
                if self._hopeless(rest + option.rank):
                    break
                self._take(option, 1)
                self._chosen[which] = option
                self._descend(depth + 1, rank + option.rank, firsts)
                self._chosen[which] = None
                self._take(option, -1)
        if not self._hopeless(rest + self._scale.unplaced):
            self._descend(depth + 1, rank + self._scale.unplaced, firsts)
        self._seen[key] = rank

    def _hopeless(self, rank: int) -> bool:
        return self._best is not None and rank >= self._best[0]

    def _run(self, which: int, number: int, rest: int) -> tuple[int, list[Option]] | None:
        """(number of the way after, ways of one rank that fit, those that leave most first)."""
        found: list[Option] = []
        while (option := self._ways[which].get(number)) is not None:
            if (found and option.rank != found[0].rank) or len(found) >= SAME_RANK:
                break
            if self._hopeless(rest + option.rank):
                break
            number += 1
            if self._fits(option):
                found.append(option)
        if not found:
            return None
        found.sort(key=lambda option: self._leaves(which, option))
        return number, found

    # --- what is left -------------------------------------------------------------------------------------------

    def _fits(self, option: Option) -> bool:
        self._work += 1
        if self._work > self._most_work:
            raise _Enough
        left = self._left
        for index, amount in option.use:
            if left[index] < amount:
                return False
        for node, page, size in option.memory:
            room = self._room.get(node)
            if room is not None and self._spends(node, page, size) > room:
                return False
        return True

    def _spends(self, node: int, page: int | None, size: int) -> int:
        """What a cell takes of the memory that no pool holds."""
        if page is None:
            return size
        free = self._field.memory[node].pages_free(page) * page
        before = self._asked.get((node, page), 0)
        return max(0, before + size - free) - max(0, before - free)

    def _take(self, option: Option, sign: int) -> None:
        """Take what an option needs (1), or give it back (-1)."""
        for index, amount in option.use:
            self._left[index] -= sign * amount
        for node, page, size in option.memory:
            if sign < 0:
                self._asked[node, page] -= size
            room = self._room.get(node)
            if room is not None:
                self._room[node] = room - sign * self._spends(node, page, size)
            if sign > 0:
                self._asked[node, page] = self._asked.get((node, page), 0) + size

    def _state(self, depth: int) -> object:
        """What is left, with twin nodes in any order: what can still be done depends on nothing else."""
        rows: dict[object, list[object]] = {}
        pages = sorted({page for _, page in self._asked if page is not None})
        for node, (group, places) in self._twins.items():
            amounts = tuple(self._left[i] for i in places)
            asked = tuple(self._asked.get((node, page), 0) for page in pages)
            rows.setdefault(group, []).append((amounts, self._room.get(node) or 0, asked))
        homed = tuple((group, tuple(sorted(found))) for group, found in rows.items())  # type: ignore[type-var]
        return depth, homed, tuple(self._left[i] for i in self._stock.homeless)

    # --- bounds -------------------------------------------------------------------------------------------------

    def _bound(self, depth: int, firsts: list[int]) -> tuple[int, int]:
        """(the least that the guests from `depth` on can come to, the part of the first of them)."""
        unplaced = self._scale.unplaced
        ranks: list[int] = []
        for which in self._order[depth:]:
            ways, number = self._ways[which], firsts[which]
            while (option := ways.get(number)) is not None and not self._fits(option):
                number += 1
            firsts[which] = number
            ranks.append(unplaced if option is None else option.rank)
        total = sum(ranks)
        out = sum(rank == unplaced for rank in ranks)
        more = self._too_many(depth) - out
        if more > 0:
            total += more * unplaced - sum(sorted(rank for rank in ranks if rank != unplaced)[-more:])
            return total, min(ranks[0], total)
        return total, ranks[0] if ranks else 0

    def _too_many(self, depth: int) -> int:
        """How many of the guests from `depth` on cannot all be placed: the smallest first, by cores, memory, GPUs."""
        stock, left = self._stock, self._left
        rooms = list(self._room.values())
        memory = None if None in rooms else sum(rooms)  # type: ignore[arg-type]
        pooled = sum(
            max(0, m.pages_free(page) * page - self._asked.get((m.node, page), 0))
            for m in self._field.memory.values()
            for page in m.pools
        )
        cores = sum(left[index] for (_, least), index in stock.cores.items() if least == 1)
        gpus = sum(left[kind.index] * kind.trait.size for kind in stock.kinds if kind.trait.of_gpus)
        have = (cores, None if memory is None or not self._field.memory else memory + pooled, gpus)
        count = len(self._order) - depth
        fewest = count
        for part, amount in zip(self._needs, have, strict=True):
            if amount is not None:
                fewest = min(fewest, bisect_right(part[depth], amount))
        return count - fewest

    def _suffix(self, part: int) -> list[list[int]]:
        """For each depth, what the 1, 2, 3, … smallest of the guests from there on need at the least."""
        needs = [self._least_need(i)[part] for i in self._order]
        return [list(accumulate(sorted(needs[depth:]))) for depth in range(len(needs) + 1)]

    def _least_need(self, which: int) -> tuple[int, int, int]:
        """(cores, bytes, GPUs) that a guest needs wherever it goes."""
        guest = self._wants[which].guest
        threads = self._field.resources.threads_per_core
        if isinstance(guest.numa, tuple):
            cores = sum(cores_needed(cell.vcpus, threads) for cell in guest.numa)
            size = sum(parse_size(cell.memory, where="numa") for cell in guest.numa)
        else:
            cores = cores_needed(guest.vcpus, threads) if isinstance(guest.vcpus, int) else 1
            size = 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")
        count = gpu_count(guest)
        gpus = len(self._wants[which].candidates.named or ()) if count is None else count
        return (0 if guest.smt == "threads" else cores), size, gpus

    def _weight(self, which: int) -> float:
        """How much of the host a guest takes, by the resource of which it takes most."""
        cores, size, gpus = self._least_need(which)
        memory = sum(node.memory_bytes or 0 for node in self._field.memory.values())
        all_cores = sum(len(node.cores) for node in self._field.resources.nodes.values())
        all_gpus = len(self._field.catalogue.gpus)
        return max(cores / max(1, all_cores), size / max(1, memory), gpus / max(1, all_gpus))

    # --- ties ---------------------------------------------------------------------------------------------------

    def _leaves(self, which: int, option: Option) -> tuple[int, int, int, tuple[int, ...]]:
        """What a way spoils, least first: caches, CPUs beside GPUs (for a guest without), room on nodes half full."""
        shape = option.sizes.shape
        caches = 0
        room = 0
        for node, cell in zip(option.nodes, shape.cells, strict=True):
            key = node, cell.vcpus, shape.threads
            if key not in self._llcs:
                self._llcs[key] = llcs_spanned(choose_cores(self._field.resources.nodes[node], cell.vcpus, shape))
            caches += self._llcs[key]
            room += self._left[self._stock.cores[node, 1]]
        beside = 0
        if not option.picks:
            beside = sum(
                self._left[kind.index] * kind.trait.size
                for kind in self._stock.kinds
                if kind.trait.of_gpus and kind.trait.node in option.nodes
            )
        return caches, beside, room, option.nodes


Twin = tuple[object, tuple[int, ...]]  # nodes of one group may stand for each other; where a node's amounts are


def _twins(field: Field, stock: Stock) -> dict[int, Twin]:
    """Nodes that no guest could tell apart but by what is left of them: same distances, same sizes, same devices."""
    resources = field.resources
    ids = sorted(resources.nodes)
    kinds: dict[int | None, list[tuple[object, int]]] = {}
    for kind in stock.kinds:
        mark = (tuple(sorted(kind.trait.labels)), kind.trait.size, kind.trait.busy, repr(kind.trait.models))
        kinds.setdefault(kind.trait.node, []).append(((mark, kind.trait.also), kind.index))
    firsts: list[tuple[int, object]] = []
    found: dict[int, Twin] = {}
    for node in ids:
        here = sorted(kinds.get(node, ()), key=repr)
        places = [index for (where, _), index in stock.cores.items() if where == node]
        places = [*places, stock.threads[node], *(index for _, index in here)]
        looks = (tuple(mark for mark, _ in here), resources.distance(node, node), _size(field, node))
        group = next((n for n, other in firsts if other == looks and _stands_for(field, ids, node, n)), None)
        if group is None:
            firsts.append((node, looks))
        found[node] = (node if group is None else group), tuple(places)
    return found


def _size(field: Field, node: int) -> object:
    """What `auto` and page pools see of a node."""
    memory = field.memory.get(node)
    pools = [(page, memory.pages_free(page)) for page in sorted(memory.pools)] if memory else []
    gpus = sum(field.catalogue.node(gpu.address) == node for gpu in field.host.gpus)
    room = (memory.assignable_bytes, memory.creatable_bytes is None) if memory else None
    return len(field.resources.nodes[node].assignable), room, tuple(pools), gpus


def _stands_for(field: Field, ids: Sequence[int], a: int, b: int) -> bool:
    """Whether two nodes have the same distances to all others."""
    distance = field.resources.distance
    return distance(a, b) == distance(b, a) and all(
        distance(a, n) == distance(b, n) and distance(n, a) == distance(n, b) for n in ids if n not in (a, b)
    )
