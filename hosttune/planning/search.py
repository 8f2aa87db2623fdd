"""Several guests at once: the most that fit, and of those the best, by branch and bound.

Pure. Guests are taken one after the other, the largest first; each tries its ways from the cheapest on, or stays
out. A branch ends where what it cannot avoid is no better than the best plan found: the least rank of every guest
that is left, on what is left of the host, and what its cores, memory and GPUs cannot hold together. States that were
seen before (nodes that are twins may stand for each other) are not searched again. What is equal in rank is tried in
the order of what leaves most: fewest last-level caches, no CPUs beside GPUs for guests without, fullest nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from hosttune.gpu.mig_tables import SLICES
from hosttune.model.values import parse_size
from hosttune.planning.devices import gpu_count
from hosttune.planning.mig import is_vgpu_guest, mig_choices, mig_spaces
from hosttune.planning.options import Option, Options, Picks, Scale, View, occupied, scale_of
from hosttune.planning.pages import HUGE_1G, NodeMemory
from hosttune.planning.placement import CellDemand, Shape, choose_cores, cores_needed, llcs_spanned
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Stock, Want, atom_of, gpu_pools, gpu_sets, instances_of, read_stock

MOST_WORK = 2_000_000  # ways looked at before the search is cut off: some seconds
KEPT = 64  # ways of a guest that are kept; further ones are drawn for what is left of the host
SAME_RANK = 64  # ways of one rank that are put in order before they are tried


@dataclass(frozen=True)
class Found:
    """The way of each guest (None: left out), and whether nothing better exists for certain."""

    options: tuple[Option | None, ...]
    proven: bool


class _Enough(Exception):
    """The search ended: nothing better can be found, or it was cut off."""


@dataclass(frozen=True)
class _Request:
    """Which amounts of the stock the devices of a guest come from: those that it names, sets, or pools for `gpus`."""

    named: Picks
    sets: tuple[Picks, ...]
    pools: tuple[Picks, ...]  # (index, devices in each bundle)
    gpus: int


def _request(stock: Stock, want: Want, which: int) -> _Request:
    def listed(what: str, part: int) -> Picks:
        return tuple((kind.index, len(kind.bundles)) for kind in stock.of((which, what, part)))

    pools = tuple(
        tuple((kind.index, kind.trait.size) for kind in stock.of((which, "gpu", part)))
        for part in range(len(gpu_pools(want)))
    )
    sets = tuple(listed("set", part) for part in range(len(gpu_sets(want.candidates))))
    count = 0 if sets else gpu_count(want.guest) or 0
    return _Request(listed("named", 0), sets, pools or ((),), count)


@dataclass(frozen=True)
class Stage:
    """What every search over (some of) the guests of a batch has in common."""

    field: Field
    stock: Stock
    scale: Scale
    wants: tuple[Want, ...]
    ways: tuple[Options, ...]


def set_stage(field: Field, wants: Sequence[Want]) -> Stage:
    """Count what these guests compete for."""
    stock, scale = read_stock(field, wants), scale_of(field, wants)
    return Stage(field, stock, scale, tuple(wants), tuple(_ways(field, stock, scale, wants)))


def best_of(stage: Stage) -> Found:
    """The most guests that fit together, and of those plans the best."""
    return _Search(stage, range(len(stage.wants)), MOST_WORK).best()


def all_fit(stage: Stage, members: Sequence[int]) -> bool:
    """Whether these guests of a batch fit together, as far as a short search can tell."""
    return _Search(stage, members, MOST_WORK // 20).fits()


class _Search:
    """One search over some guests of a batch; for one use."""

    def __init__(self, stage: Stage, members: Sequence[int], most_work: int) -> None:
        field, stock, wants = stage.field, stage.stock, stage.wants
        self._field, self._stock, self._scale, self._wants, self._ways = field, stock, stage.scale, wants, stage.ways
        self._members = tuple(members)
        self._order = sorted(members, key=lambda i: (-self._weight(i), i))
        self._left = list(stock.capacity)
        self._room = {n: m.creatable_bytes for n, m in field.memory.items()}
        self._asked: dict[tuple[int, int | None], int] = {}
        self._twins = _twins(field, stock)
        cut = [address for address in field.catalogue.gpus if instances_of(address) in stock.parts]
        self._slices = [stock.parts[atom_of(address, bit)] for address in cut for bit in range(SLICES)]
        self._requests = [_request(stock, want, i) for i, want in enumerate(wants)]
        self._needs = [self._suffix(part) for part in range(5)]
        self._llcs: dict[tuple[int, int, int], int] = {}
        self._seen: dict[object, int] = {}
        self._chosen: list[Option | None] = [None] * len(wants)
        self._best: tuple[int, tuple[Option | None, ...]] = (1 + len(wants)) * self._scale.unplaced, tuple(self._chosen)
        self._work, self._most_work = 0, most_work
        self._floor = 0

    def best(self) -> Found:
        """The best plan, and whether that is certain."""
        proven = self._explore(None)
        return Found(self._best[1], proven)

    def fits(self) -> bool:
        """Whether there is a plan that leaves nobody out."""
        self._explore(self._scale.unplaced - 1)
        return self._best[0] < self._scale.unplaced

    def _explore(self, enough: int | None) -> bool:
        """Search until nothing better can be, or a plan is good `enough`; whether nothing better can be for certain."""
        firsts = [0] * len(self._wants)
        floor = self._bound(0, firsts)[0]
        self._floor = floor if enough is None else max(floor, enough)
        if enough is not None and floor > enough:
            return True
        needs = {i: self._least_need(i) for i in self._members}
        orders = [self._order]
        orders += [sorted(self._members, key=lambda i: (needs[i][part], self._weight(i), i)) for part in range(5)]
        for order in orders:
            if self._best[0] > self._floor:
                self._dive(order)
        try:
            self._descend(0, 0, firsts)
        except _Enough:
            return self._best[0] <= floor
        return True

    def _dive(self, order: Sequence[int]) -> None:
        """One plan without looking back: each guest takes its best way, or stays out."""
        taken: list[Option] = []
        rank = 0
        for which in order:
            run = next(self._runs(which, 0, rank, bounded=False), None)
            if run is None:
                rank += self._scale.unplaced
                continue
            self._take(run[0], 1)
            self._chosen[which] = run[0]
            taken.append(run[0])
            rank += run[0].rank
        if rank < self._best[0]:
            self._best = rank, tuple(self._chosen)
        for option in reversed(taken):
            self._take(option, -1)
        self._chosen = [None] * len(self._wants)

    # --- the tree -----------------------------------------------------------------------------------------------

    def _descend(self, depth: int, rank: int, firsts: list[int]) -> None:
        """All ways of the guests from `depth` on; `firsts` are their first ways that may still fit."""
        self._work += 20 + 4 * (len(self._order) - depth) + 2 * len(self._twins)
        if self._work > self._most_work or self._best[0] <= self._floor:
            raise _Enough
        if depth == len(self._order):
            self._best = rank, tuple(self._chosen)
            return
        key = self._state(depth)
        if self._seen.get(key, rank + 1) <= rank:
            return
        firsts = list(firsts)
        bound, own = self._bound(depth, firsts)
        if self._hopeless(rank + bound):
            return
        rest = rank + bound - own
        which = self._order[depth]
        for options in self._runs(which, firsts[which], rest):
            for option in options:
                if self._hopeless(rest + option.rank):
                    break
                self._take(option, 1)
                self._chosen[which] = option
                self._descend(depth + 1, rank + option.rank, firsts)
                self._chosen[which] = None
                self._take(option, -1)
        if not self._hopeless(rank + self._scale.unplaced):
            self._descend(depth + 1, rank + self._scale.unplaced, firsts)
        self._seen[key] = rank

    def _hopeless(self, rank: int) -> bool:
        return rank >= self._best[0]

    def _runs(self, which: int, number: int, rest: int, *, bounded: bool = True) -> Iterator[list[Option]]:
        """Ways that fit and could still be better, those of one rank together, those that leave most first."""
        if self._is_dead(which):
            return
        found: list[Option] = []
        for option in self._listed(which, number):
            if bounded and self._hopeless(rest + option.rank):
                break
            if found and (option.rank != found[0].rank or len(found) >= SAME_RANK):
                yield sorted(found, key=lambda one: self._leaves(which, one))
                found = []
            if self._fits(option):
                found.append(option)
        if found:
            yield sorted(found, key=lambda one: self._leaves(which, one))

    def _listed(self, which: int, number: int) -> Iterator[Option]:
        """A guest's ways from a number on; where those as if it were alone are too many, those for what is left."""
        last = 0
        while number < KEPT and not is_vgpu_guest(self._wants[which].guest):
            option = self._ways[which].get(number)
            if option is None:
                return
            yield option
            last, number = option.rank, number + 1
        self._work += 500
        view = View(tuple(self._left), self._holder(), self._spend)
        drawn = Options(self._field, self._stock, self._scale, self._wants, which, view)
        number = 0
        while (option := drawn.get(number)) is not None:
            if option.rank >= last:
                yield option
            number += 1

    def _holder(self) -> Callable[[int, CellDemand, Shape], bool]:
        """Whether a node could hold a cell now (what is left later may be less)."""
        left, room, asked = tuple(self._left), dict(self._room), dict(self._asked)
        stock, memory = self._stock, self._field.memory

        def holds(node: int, cell: CellDemand, shape: Shape) -> bool:
            if shape.share_cores:
                if left[stock.threads[node]] < cell.vcpus:
                    return False
            elif left[stock.cores[node, shape.threads]] < cores_needed(cell.vcpus, shape.threads):
                return False
            have = room.get(node)
            return have is None or spends(memory[node], asked, shape.page, cell.memory_bytes) <= have

        return holds

    def _is_dead(self, which: int) -> bool:
        """Whether a guest certainly has no way now: too few devices, or no number of cells finds room."""
        self._work += 8
        left = self._left
        need = self._requests[which]
        guest = self._wants[which].guest
        if is_vgpu_guest(guest):
            self._work += 100
            taken = occupied(self._stock, self._left)
            return next(mig_choices(self._field, guest, taken, ""), None) is None or not self._has_room(which)
        if any(left[index] < count for index, count in need.named):
            return True
        if need.sets and not any(all(left[index] >= count for index, count in one) for one in need.sets):
            return True
        if need.gpus and max(sum(left[index] * size for index, size in pool) for pool in need.pools) < need.gpus:
            return True
        return not self._has_room(which)

    def _has_room(self, which: int) -> bool:
        """Whether enough nodes have room for some number of cells; less exact than a way, never too strict."""
        guest = self._wants[which].guest
        most = self._field.resources.threads_per_core
        shares = guest.smt == "threads"
        places = self._stock.threads.items() if shares else ((n, self._stock.cores[n, 1]) for n in self._stock.threads)
        nodes = [(self._left[index], self._memory_left(node)) for node, index in places]

        def units(vcpus: int) -> int:
            return vcpus if shares else cores_needed(vcpus, most)

        def able(cpus: int, size: int) -> int:
            return sum(have >= cpus and (room is None or room >= size) for have, room in nodes)

        if isinstance(guest.numa, tuple):
            need = [(units(cell.vcpus), parse_size(cell.memory, where="numa")) for cell in guest.numa]
            return len(need) <= len(nodes) and all(able(cpus, size) for cpus, size in need)
        total = 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")
        for k in range(1, len(nodes) + 1) if guest.numa == "auto" else (guest.numa,):
            if not isinstance(guest.vcpus, int):
                if able(1, 0) >= k:
                    return True
            elif guest.vcpus % k == 0 and able(units(guest.vcpus // k), total // k - HUGE_1G) >= k:
                return True
        return False

    def _memory_left(self, node: int) -> int | None:
        """The most memory that any cell could get on a node now; None = unknown."""
        room = self._room.get(node)
        if room is None:
            return None
        memory = self._field.memory[node]
        free = (memory.pages_free(page) * page - self._asked.get((node, page), 0) for page in memory.pools)
        return room + max(0, max(free, default=0))

    def _spend(self, work: int) -> None:
        self._work += work

    # --- what is left -------------------------------------------------------------------------------------------

    def _fits(self, option: Option) -> bool:
        self._work += 1
        left = self._left
        for index, amount in option.use:
            if left[index] < amount:
                return False
        for node, page, size in option.memory:
            room = self._room.get(node)
            if room is not None and spends(self._field.memory[node], self._asked, page, size) > room:
                return False
        return True

    def _take(self, option: Option, sign: int) -> None:
        """Take what an option needs (1), or give it back (-1)."""
        for index, amount in option.use:
            self._left[index] -= sign * amount
        for node, page, size in option.memory:
            if sign < 0:
                self._asked[node, page] -= size
            room = self._room.get(node)
            if room is not None:
                self._room[node] = room - sign * spends(self._field.memory[node], self._asked, page, size)
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
        """(the least that the guests from `depth` on can come to, the most of it that is due to the first of them)."""
        unplaced = self._scale.unplaced
        ranks: list[int] = []
        for which in self._order[depth:]:
            ways, number = self._ways[which], firsts[which]
            option = ways.get(number)
            if option is not None and is_vgpu_guest(self._wants[which].guest):
                option = None if self._is_dead(which) else option  # its ways stand for those on other GPUs like them
            elif option is not None and not self._fits(option):
                if self._is_dead(which):
                    option = None
                while option is not None and number < KEPT - 1 and not self._fits(option):
                    number += 1
                    option = ways.get(number)
                firsts[which] = number
            ranks.append(unplaced if option is None else option.rank)
        total = sum(ranks)
        more = self._too_many(depth) - ranks.count(unplaced)
        if more > 0:  # that many of those that could be placed alone stay out as well: the dearest, at the best
            total += more * unplaced - sum(sorted(rank for rank in ranks if rank != unplaced)[-more:])
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
        threads = sum(left[index] for index in stock.threads.values())
        gpus = sum(left[kind.index] * kind.trait.size for kind in stock.kinds if kind.trait.of_gpus)
        slices = sum(left[index] for index in self._slices)
        have = (cores, None if memory is None or not self._field.memory else memory + pooled, gpus, threads, slices)
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

    def _least_need(self, which: int) -> tuple[int, int, int, int, int]:
        """(cores, bytes, GPUs, CPUs, memory slices of GPUs) that a guest needs wherever it goes."""
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
        shares = guest.smt == "threads"
        cpus = sum(cell.vcpus for cell in guest.numa) if isinstance(guest.numa, tuple) else guest.vcpus
        least = min(self._stock.widest.values(), default=1)
        threads = (cpus if isinstance(cpus, int) else 1) if shares else cores * least
        slices = 0
        if guest.mig is not None and is_vgpu_guest(guest):
            spaces = mig_spaces(self._field, guest.mig.profile, {})
            slices = guest.mig.count * min((space.profile.size or 1 for space in spaces), default=1)
        return (0 if shares else cores), size, gpus, threads, slices

    def _weight(self, which: int) -> float:
        """How much of the host a guest takes, by the resource of which it takes most."""
        cores, size, gpus, _, _ = self._least_need(which)
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


def spends(memory: NodeMemory, asked: Mapping[tuple[int, int | None], int], page: int | None, size: int) -> int:
    """What a cell takes of the memory that no pool holds, after what was `asked` of the pools already."""
    if page is None:
        return size
    free = memory.pages_free(page) * page
    before = asked.get((memory.node, page), 0)
    return max(0, before + size - free) - max(0, before - free)


def _ways(field: Field, stock: Stock, scale: Scale, wants: Sequence[Want]) -> list[Options]:
    """The ways of each guest; guests that ask for the same and name no device of their own have them in common."""
    found: dict[object, Options] = {}
    ways: list[Options] = []
    for i, want in enumerate(wants):
        alone = bool(want.named or want.candidates.named)
        key = i if alone else msgspec.structs.replace(want.guest, name="", disk=None, networks=None, sysctl=None)
        ways.append(found.setdefault(repr(key), Options(field, stock, scale, wants, i)))
    return ways


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
    gpus = sum(field.catalogue.node(gpu.address) == node for gpu in field.host.gpus)
    room = (memory.assignable_bytes, memory.creatable_bytes is None) if memory else None
    return len(field.resources.nodes[node].assignable), room, tuple(pools), gpus


def _stands_for(field: Field, ids: Sequence[int], a: int, b: int) -> bool:
    """Whether two nodes have the same distances to all others."""
    distance = field.resources.distance
    return distance(a, b) == distance(b, a) and all(
        distance(a, n) == distance(b, n) and distance(n, a) == distance(n, b) for n in ids if n not in (a, b)
    )
