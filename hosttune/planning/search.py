"""Several guests at once: the most that fit, and of those the best, by branch and bound.

Pure. Guests are taken one after the other, the largest first; each tries its ways from the cheapest on, or stays
out. A branch ends where what it cannot avoid is no better than the best plan found: the least rank of every guest
that is left, on what is left of the host, and what its cores, memory and GPUs cannot hold together. States that were
seen before (nodes that are twins may stand for each other) are not searched again. What is equal in rank is tried in
the order of what leaves most: fewest last-level caches, no CPUs beside GPUs for guests without, fullest nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from hosttune.planning.ledger import Ledger
from hosttune.planning.mig import is_vgpu_guest
from hosttune.planning.needs import instances_left, is_dead, need_of, weight
from hosttune.planning.options import Option, Options, Scale, scale_of
from hosttune.planning.placement import choose_cores, llcs_spanned
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Stock, Want, read_stock

MOST_WORK = 3_000_000  # ways looked at before the search is cut off: some seconds
KEPT = 64  # ways of a guest that are kept; further ones are drawn for what is left of the host
WORK_OF_DRAWING = 500
SAME_RANK = 64  # ways of one rank that are put in order before they are tried


@dataclass(frozen=True)
class Found:
    """The way of each guest (None: left out), and whether nothing better exists for certain."""

    options: tuple[Option | None, ...]
    proven: bool


class _Enough(Exception):
    """The search ended: nothing better can be found, or it was cut off."""


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
        self._ledger = Ledger(field, stock)
        self._needs = {i: need_of(field, stock, wants[i], i) for i in members}
        self._weights = {i: weight(field, need) for i, need in self._needs.items()}
        self._order = sorted(members, key=lambda i: (-self._weights[i], i))
        self._sums = [self._suffix(part) for part in range(len(self._ledger.totals()))]
        self._llcs: dict[tuple[int, int, int], int] = {}
        self._seen: dict[object, int] = {}
        self._chosen: list[Option | None] = [None] * len(wants)
        self._best: tuple[int, tuple[Option | None, ...]] = (1 + len(wants)) * self._scale.unplaced, tuple(self._chosen)
        self._most_work = most_work
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
        needs, weights = self._needs, self._weights
        by_amount = [
            sorted(self._members, key=lambda i: (needs[i].least[part], weights[i], i))
            for part in range(len(self._sums))
        ]
        for order in (self._order, *by_amount):
            if self._best[0] // self._scale.unplaced > floor // self._scale.unplaced:
                self._dive(order)
        try:
            self._descend(0, 0, firsts)
        except _Enough:
            return self._best[0] <= floor
        return not any(ways.cut_off for ways in self._ways)

    def _dive(self, order: Sequence[int]) -> None:
        """One plan without looking back: each guest takes its best way, or stays out."""
        taken: list[Option] = []
        rank = 0
        for which in order:
            run = next(self._runs(which, 0, rank, bounded=False), None)
            if run is None:
                rank += self._scale.unplaced
                continue
            self._ledger.take(run[0], 1)
            self._chosen[which] = run[0]
            taken.append(run[0])
            rank += run[0].rank
        if rank < self._best[0]:
            self._best = rank, tuple(self._chosen)
        for option in reversed(taken):
            self._ledger.take(option, -1)
        self._chosen = [None] * len(self._wants)

    # --- the tree -----------------------------------------------------------------------------------------------

    def _descend(self, depth: int, rank: int, firsts: list[int]) -> None:
        """All ways of the guests from `depth` on; `firsts` are their first ways that may still fit."""
        left, nodes = len(self._order) - depth, len(self._field.resources.nodes)
        self._ledger.spend(20 + 10 * left + 5 * nodes + left * nodes // 2)
        if self._ledger.work > self._most_work or self._best[0] <= self._floor:
            raise _Enough
        if depth == len(self._order):
            self._best = rank, tuple(self._chosen)
            return
        key = depth, self._ledger.state()
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
                self._ledger.take(option, 1)
                self._chosen[which] = option
                self._descend(depth + 1, rank + option.rank, firsts)
                self._chosen[which] = None
                self._ledger.take(option, -1)
        if not self._hopeless(rank + self._scale.unplaced):
            self._descend(depth + 1, rank + self._scale.unplaced, firsts)
        self._seen[key] = rank

    def _hopeless(self, rank: int) -> bool:
        return rank >= self._best[0]

    def _runs(self, which: int, number: int, rest: int, *, bounded: bool = True) -> Iterator[list[Option]]:
        """Ways that fit and could still be better, those of one rank together, those that leave most first."""
        if is_dead(self._ledger, self._needs[which]):
            return
        found: list[Option] = []
        for option in self._listed(which, number):
            if bounded and self._hopeless(rest + option.rank):
                break
            if found and (option.rank != found[0].rank or len(found) >= SAME_RANK):
                yield sorted(found, key=lambda one: self._leaves(which, one))
                found = []
            if self._ledger.fits(option):
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
        self._ledger.spend(WORK_OF_DRAWING)
        drawn = Options(self._field, self._stock, self._scale, self._wants, which, self._ledger.view())
        number = 0
        while (option := drawn.get(number)) is not None:
            if option.rank >= last:
                yield option
            number += 1

    # --- bounds -------------------------------------------------------------------------------------------------

    def _bound(self, depth: int, firsts: list[int]) -> tuple[int, int]:
        """(the least that the guests from `depth` on can come to, the most of it that is due to the first of them)."""
        unplaced = self._scale.unplaced
        ranks: list[int] = []
        for which in self._order[depth:]:
            ways, number = self._ways[which], firsts[which]
            option = ways.get(number)
            if option is not None and is_vgpu_guest(self._wants[which].guest):
                # Its ways stand for those on other GPUs like them: whether one is left is asked as a whole.
                option = None if is_dead(self._ledger, self._needs[which]) else option
            elif option is not None and not self._ledger.fits(option):
                if is_dead(self._ledger, self._needs[which]):
                    option = None
                while option is not None and number < KEPT - 1 and not self._ledger.fits(option):
                    number += 1
                    option = ways.get(number)
                firsts[which] = number
            ranks.append(unplaced if option is None else option.rank)
        total = sum(ranks)
        more = max(self._too_many(depth), self._too_many_vgpus(depth)) - ranks.count(unplaced)
        if more > 0:  # that many of those that could be placed alone stay out as well: the dearest, at the best
            total += more * unplaced - sum(sorted(rank for rank in ranks if rank != unplaced)[-more:])
        return total, ranks[0] if ranks else 0

    def _too_many(self, depth: int) -> int:
        """How many of the guests from `depth` on cannot all be placed: by each amount, the smallest first."""
        count = len(self._order) - depth
        fewest = count
        for sums, amount in zip(self._sums, self._ledger.totals(), strict=True):
            if amount is not None:
                fewest = min(fewest, bisect_right(sums[depth], amount))
        return count - fewest

    def _too_many_vgpus(self, depth: int) -> int:
        """How many of the guests from `depth` on cannot all have their vGPUs, profile by profile."""
        by_profile: dict[str, list[int]] = {}
        for which in self._order[depth:]:
            guest = self._wants[which].guest
            if guest.mig is not None and is_vgpu_guest(guest):
                by_profile.setdefault(guest.mig.profile, []).append(guest.mig.count)
        out = 0
        for profile, counts in by_profile.items():
            fewest = bisect_right(list(accumulate(sorted(counts))), instances_left(self._ledger, profile))
            out += len(counts) - fewest
        return out

    def _suffix(self, part: int) -> list[list[int]]:
        """For each depth, what the 1, 2, 3, … smallest of the guests from there on need at the least."""
        needs = [self._needs[i].least[part] for i in self._order]
        return [list(accumulate(sorted(needs[depth:]))) for depth in range(len(needs) + 1)]

    # --- ties ---------------------------------------------------------------------------------------------------

    def _leaves(self, which: int, option: Option) -> tuple[int, int, list[int], tuple[int, ...]]:
        """What a way spoils, as `ties` has it: caches, GPUs beside a guest without, room of the emptiest node first."""
        shape = option.sizes.shape
        caches = 0
        room: list[int] = []
        for node, cell in zip(option.nodes, shape.cells, strict=True):
            key = node, cell.vcpus, shape.threads
            if key not in self._llcs:
                self._llcs[key] = llcs_spanned(choose_cores(self._field.resources.nodes[node], cell.vcpus, shape))
            caches += self._llcs[key]
            room.append(self._ledger.left[self._stock.cores[node, 1]])
        beside = 0
        if not option.picks:
            beside = sum(
                self._ledger.left[kind.index] * kind.trait.size
                for kind in self._stock.kinds
                if kind.trait.of_gpus and kind.trait.node in option.nodes
            )
        return caches, beside, sorted(room, reverse=True), option.nodes


def _ways(field: Field, stock: Stock, scale: Scale, wants: Sequence[Want]) -> list[Options]:
    """The ways of each guest; guests that ask for the same and name no device of their own have them in common."""
    found: dict[object, Options] = {}
    ways: list[Options] = []
    for i, want in enumerate(wants):
        alike = msgspec.structs.replace(want.guest, name="", disk=None, networks=None, sysctl=None)
        key: object = i if want.named or want.candidates.named else repr(alike)
        if key not in found:
            found[key] = Options(field, stock, scale, wants, i)
        ways.append(found[key])
    return ways
