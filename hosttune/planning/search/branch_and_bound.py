"""Find the placements for one guest or several: the most guests that fit, and of those plans the best.

Pure. Branch and bound. Guests are tried one after the other: those that name devices first, then the largest. For each
guest the search tries its placements, the best first, and also tries to leave it out. A branch ends if it cannot become
better than the best plan found. Its bound is the least rank of every remaining guest on what is left of the host, and
the number of guests that its cores, memory and devices cannot hold together. A state that was seen before is not
searched again (nodes that are twins are exchangeable).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from hosttune.planning.inventory.sizing import PlanningContext
from hosttune.planning.mig.instances import is_vgpu_guest
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.search.ledger import Ledger
from hosttune.planning.search.needs import instances_left, is_dead, need_of, weight
from hosttune.planning.search.placements import Placement, PlacementStream
from hosttune.planning.search.problem import Problem, read_problem
from hosttune.planning.search.rank import LEFT_OUT, NEXT, NOTHING, Rank, minus, plus, times, total

MOST_WORK = 3_000_000  # placements looked at before the search is cut off: some seconds
SHORT_WORK = 30_000  # the same for a search whose answer is only used in an explanation
KEPT = 64  # placements kept for each guest; more are generated for what is left of the host
WORK_OF_DRAWING = 500


@dataclass(frozen=True)
class Found:
    """The placement of each guest (None: left out), and whether it is certain that nothing better exists."""

    placements: tuple[Placement | None, ...]
    proven: bool


class _Enough(Exception):
    """The search ended: nothing better can be found, or it was cut off."""


@dataclass(frozen=True)
class SearchProblem:
    """A problem and the placements of each of its guests, for every search over some of them."""

    problem: Problem
    streams: tuple[PlacementStream, ...]


def search_problem(context: PlanningContext, wants: Sequence[GuestRequest]) -> SearchProblem:
    """Prepare the search: count the resources for which these guests compete.

    Guests with the same request that name no device share one stream of placements.
    """
    problem = read_problem(context, wants)
    found: dict[object, PlacementStream] = {}
    streams: list[PlacementStream] = []
    for i, want in enumerate(wants):
        alike = msgspec.structs.replace(want.guest, name="", disk=None, networks=None, sysctl=None)
        key: object = i if want.named or want.candidates.named else repr(alike)
        if key not in found:
            found[key] = PlacementStream(problem, i)
        streams.append(found[key])
    return SearchProblem(problem, tuple(streams))


def best_of(searched: SearchProblem, members: Sequence[int]) -> Found:
    """Return the best plan for the most of these guests that fit together; guests that are not members stay out."""
    return _Search(searched, members, MOST_WORK).best()


def all_fit(searched: SearchProblem, members: Sequence[int]) -> bool | None:
    """Return whether these guests fit together; None if a short search cannot decide it."""
    return _Search(searched, members, SHORT_WORK).fits()


class _Search:
    """One search over some guests of a problem; used once."""

    def __init__(self, searched: SearchProblem, members: Sequence[int], most_work: int) -> None:
        self._problem, self._streams = searched.problem, searched.streams
        self._field, self._wants = self._problem.context, self._problem.wants
        self._members = tuple(members)
        self._ledger = Ledger(self._problem)
        self._needs = {i: need_of(self._problem, i) for i in members}
        self._dead = {i for i, need in self._needs.items() if is_dead(self._ledger, need)}
        self._weights = {i: weight(self._field, need) for i, need in self._needs.items()}
        self._vgpus = {i for i in members if is_vgpu_guest(self._wants[i].guest)}
        self._order = sorted(members, key=lambda i: (not self._names_devices(i), -self._weights[i], i))
        self._sums = [self._suffix(part) for part in range(len(self._ledger.totals()))]
        self._seen: dict[object, Rank] = {}
        self._chosen: list[Placement | None] = [None] * len(self._wants)
        self._best: tuple[Rank, tuple[Placement | None, ...]] = times(LEFT_OUT, 1 + len(members)), tuple(self._chosen)
        self._most_work = most_work
        self._enough = NOTHING  # a plan below this rank ends the search
        self._cut_off = False  # whether some placements were not looked at

    def best(self) -> Found:
        """Return the best plan, and whether that is certain."""
        proven = self._explore(NOTHING)
        return Found(self._best[1], proven)

    def fits(self) -> bool | None:
        """Return whether there is a plan that leaves no guest out.

        None: the search was cut off before that was known.
        """
        certain = self._explore(LEFT_OUT)
        return True if self._best[0] < LEFT_OUT else False if certain else None

    def _explore(self, enough: Rank) -> bool:
        """Search until the plan cannot improve, or a plan is below `enough`. Return whether nothing better exists."""
        firsts = [0] * len(self._wants)
        floor = self._bound(0, firsts)[0]
        if NOTHING < enough <= floor:
            return True
        self._enough = max(plus(floor, NEXT), enough)
        needs, weights = self._needs, self._weights
        by_amount = [
            sorted(self._members, key=lambda i: (needs[i].least[part], weights[i], i))
            for part in range(len(self._sums))
            if any(needs[i].least[part] for i in self._members)
        ]
        for order in dict.fromkeys(map(tuple, (self._order, *by_amount))):
            if self._best[0].unplaced > floor.unplaced:
                self._dive(order)
        try:
            self._descend(0, NOTHING, firsts)
        except _Enough:
            return self._best[0] <= floor
        return not self._cut_off and not any(stream.cut_off for stream in self._streams)

    def _names_devices(self, which: int) -> bool:
        want = self._wants[which]
        return bool(want.candidates.named or want.named)

    def _dive(self, order: Sequence[int]) -> None:
        """Make one plan without backtracking: each guest takes its best placement, or stays out."""
        taken: list[Placement] = []
        rank = NOTHING
        for which in order:
            placement = next(self._fitting(which, 0, None), None)
            if placement is None:
                rank = plus(rank, LEFT_OUT)
                continue
            self._ledger.take(placement, 1)
            self._chosen[which] = placement
            taken.append(placement)
            rank = plus(rank, placement.rank)
        if rank < self._best[0]:
            self._best = rank, tuple(self._chosen)
        for placement in reversed(taken):
            self._ledger.take(placement, -1)
        self._chosen = [None] * len(self._wants)

    # --- the tree -----------------------------------------------------------------------------------------------

    def _descend(self, depth: int, rank: Rank, firsts: list[int]) -> None:
        """Try all placements of the guests from `depth` on; `firsts` are their first ones that may still fit."""
        left, nodes = len(self._order) - depth, len(self._field.resources.nodes)
        self._ledger.spend(20 + 10 * left + 5 * nodes + left * nodes // 2)
        if self._ledger.work > self._most_work or self._best[0] < self._enough:
            raise _Enough
        if depth == len(self._order):
            self._best = rank, tuple(self._chosen)
            return
        key = depth, self._ledger.state()
        seen = self._seen.get(key)
        if seen is not None and seen <= rank:
            return
        firsts = list(firsts)
        bound, own = self._bound(depth, firsts)
        if self._hopeless(plus(rank, bound)):
            return
        rest = minus(plus(rank, bound), own)  # the rank of all but this guest
        which = self._order[depth]
        for placement in self._fitting(which, firsts[which], rest):
            self._ledger.take(placement, 1)
            self._chosen[which] = placement
            self._descend(depth + 1, plus(rank, placement.rank), firsts)
            self._chosen[which] = None
            self._ledger.take(placement, -1)
        without = plus(rank, LEFT_OUT)
        if not self._hopeless(without):
            self._descend(depth + 1, without, firsts)
        self._seen[key] = rank

    def _hopeless(self, rank: Rank) -> bool:
        return rank >= self._best[0]

    def _fitting(self, which: int, number: int, rest: Rank | None) -> Iterator[Placement]:
        """Yield placements of a guest that fit, the best first.

        With the `rest` of a plan: only those that could make the best plan better.
        """
        if is_dead(self._ledger, self._needs[which]):
            return
        for placement in self._listed(which, number):
            if rest is not None and self._hopeless(plus(rest, placement.rank)):
                return
            if self._ledger.fits(placement):
                yield placement

    def _listed(self, which: int, number: int) -> Iterator[Placement]:
        """Yield a guest's placements from a number on: first those of an empty host, then those on what is left."""
        last = NOTHING
        while number < KEPT and which not in self._vgpus:
            placement = self._streams[which].get(number)
            if placement is None:
                return
            yield placement
            last, number = placement.rank, number + 1
        self._ledger.spend(WORK_OF_DRAWING)
        drawn = PlacementStream(self._problem, which, self._ledger.view())
        number = 0
        while (placement := drawn.get(number)) is not None:
            if placement.rank >= last:
                yield placement
            number += 1
        self._cut_off = self._cut_off or drawn.cut_off

    # --- bounds -------------------------------------------------------------------------------------------------

    def _bound(self, depth: int, firsts: list[int]) -> tuple[Rank, Rank]:
        """Return (the least rank of the guests from `depth` on, the part of it that is due to the first of them)."""
        ranks: list[Rank] = []
        for which in self._order[depth:]:
            placement = None if which in self._dead else self._streams[which].get(firsts[which])
            if placement is not None and which in self._vgpus:
                # A placement of a vGPU guest stands for all equal GPUs. So the check is whether any of them has room.
                placement = None if is_dead(self._ledger, self._needs[which]) else placement
            elif placement is not None and not self._ledger.fits(placement):
                placement = self._next_fitting(which, firsts)
            ranks.append(LEFT_OUT if placement is None else placement.rank)
        least = total(ranks)
        more = max(self._too_many(depth), self._too_many_vgpus(depth)) - ranks.count(LEFT_OUT)
        if more > 0:  # `more` guests that could be placed alone also stay out; in the best case the dearest ones
            dearest = total(sorted(rank for rank in ranks if rank != LEFT_OUT)[-more:])
            least = plus(least, minus(times(LEFT_OUT, more), dearest))
        return least, ranks[0] if ranks else NOTHING

    def _next_fitting(self, which: int, firsts: list[int]) -> Placement | None:
        """Return the next placement of a guest that fits, or one that is not worse than it; None if it has none."""
        if is_dead(self._ledger, self._needs[which]):
            return None
        placement = None
        for number in range(firsts[which] + 1, KEPT):
            firsts[which] = number
            placement = self._streams[which].get(number)
            if placement is None or self._ledger.fits(placement):
                return placement
        return placement or self._streams[which].get(KEPT - 1)

    def _too_many(self, depth: int) -> int:
        """Return how many of the guests from `depth` on cannot be placed.

        For each amount, the guests that need least of it are counted first.
        """
        count = len(self._order) - depth
        fewest = count
        for sums, amount in zip(self._sums, self._ledger.totals(), strict=True):
            if amount is not None:
                fewest = min(fewest, bisect_right(sums[depth], amount))
        return count - fewest

    def _too_many_vgpus(self, depth: int) -> int:
        """Return how many of the guests from `depth` on cannot get their vGPUs, profile by profile."""
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
        """Return, for each depth, the minimum that the 1, 2, 3, … smallest of the guests from there on need."""
        needs = [self._needs[i].least[part] or 0 for i in self._order]
        return [list(accumulate(sorted(needs[depth:]))) for depth in range(len(needs) + 1)]
