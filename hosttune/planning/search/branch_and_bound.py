"""Find the placements for one guest or several: the most guests that fit, and of those plans the best.

Pure. Branch and bound. A first plan gives each guest the best placement that is left. Then the guest with the fewest
placements left is tried first: each of them, the best first, and leaving it out. A branch ends if it cannot become
better than the best plan found (`bound`), and so does every placement that cannot be part of a better plan. A state is
searched once (nodes that are twins are exchangeable).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import msgspec

from hosttune.inventory.sizing import PlanningContext
from hosttune.model.values import grouped
from hosttune.planning.mig.instances import is_vgpu_guest
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.search.ledger import Ledger, Totals
from hosttune.planning.search.needs import GuestNeeds, instances_left, is_dead, need_of, weight
from hosttune.planning.search.options import PlacementOptions
from hosttune.planning.search.placements import Placement, PlacementStream
from hosttune.planning.search.problem import (
    LEFT_OUT,
    NEXT,
    NOTHING,
    PlacementProblem,
    Rank,
    minus,
    plus,
    read_problem,
    times,
    total,
)

# --- bounds --------------------------------------------------------------------------------------------------
# Pure. No plan is better than its bound, so a branch whose bound is no better than the best plan found can be left.


Guests = tuple[int, ...]


class Bounds:
    """The bounds of one search."""

    def __init__(self, ledger: Ledger, wants: Sequence[GuestRequest], needs: Mapping[int, GuestNeeds]) -> None:
        self._ledger, self._wants, self._needs = ledger, wants, needs
        self._sums: dict[Guests, tuple[tuple[int, tuple[int, ...]], ...]] = {}
        self._vgpus: dict[Guests, dict[str, list[int]]] = {}

    def of(self, guests: Guests, alone: Sequence[Rank]) -> Rank:
        """Return a bound on the rank of plans for these guests; `alone`: the least rank of each."""
        least = total(alone)
        # How many of these guests cannot be placed, because the whole host has too little of some resource. For each
        # amount, the guests that need least of it are counted first.
        if guests not in self._sums:
            parts = []
            for part, needs in enumerate(zip(*(self._needs[i].least for i in guests), strict=True)):
                sums = tuple(accumulate(sorted(need or 0 for need in needs)))
                if sums[-1]:
                    parts.append((part, sums))
            self._sums[guests] = tuple(parts)
        totals = self._ledger.totals()
        fewest = len(guests)
        for part, sums in self._sums[guests]:
            amount = totals[part]
            if amount is not None and sums[-1] > amount:
                fewest = min(fewest, bisect_right(sums, amount))
        more = max(len(guests) - fewest, self._too_many_vgpus(guests)) - least.unplaced
        if more > 0:  # `more` guests that could be placed alone also stay out; in the best case the dearest ones
            dearest = total(sorted(rank for rank in alone if rank != LEFT_OUT)[-more:])
            least = plus(least, minus(times(LEFT_OUT, more), dearest))
        return least

    def _too_many_vgpus(self, guests: Guests) -> int:
        """Return how many of these guests cannot get their vGPUs, profile by profile."""
        if guests not in self._vgpus:
            mig = (guest.mig for guest in (self._wants[which].guest for which in guests) if is_vgpu_guest(guest))
            by_profile = grouped((request.profile, request.count) for request in mig if request is not None)
            self._vgpus[guests] = {profile: list(accumulate(sorted(n))) for profile, n in by_profile.items()}
        rows = self._vgpus[guests].items()
        return sum(len(sums) - bisect_right(sums, instances_left(self._ledger, profile)) for profile, sums in rows)


# --- the search ----------------------------------------------------------------------------------------------


MOST_WORK = 2_000_000  # work after which the search is cut off: some seconds
SHORT_WORK = 30_000  # the same for a search whose answer is only used in an explanation
FEW_WORK = 10_000  # work after which more placements are listed
KEPT = 64  # placements listed for each guest at first; more are generated for what is left of the host
MOST_LISTED = 65_536  # placements listed for each guest later, times the square of the number of nodes
TIE_WORK = 200_000  # work for choosing between plans of equal rank
WORK_OF_DRAWING = 500


class Found(msgspec.Struct, frozen=True):
    """The placement of each guest (None: left out), and whether it is certain that nothing better exists."""

    placements: tuple[Placement | None, ...]
    proven: bool


class _SearchEnded(Exception):
    """The search ended: nothing better can be found, or it was cut off."""


class SearchProblem(msgspec.Struct, frozen=True, dict=True):
    """A problem and the placements of each of its guests, for every search over some of them."""

    problem: PlacementProblem
    streams: tuple[PlacementStream, ...]

    @cached_property
    def short_list(self) -> PlacementOptions:
        """The first placements of each guest."""
        return PlacementOptions(self.problem, self.streams, KEPT)

    @cached_property
    def long_list(self) -> PlacementOptions:
        """Many placements of each guest, on hosts of few nodes usually all."""
        return PlacementOptions(self.problem, self.streams, self.most_listed)

    @property
    def most_listed(self) -> int:
        """The number of placements of a guest that can be listed: drawing one takes longer the more nodes there are."""
        return MOST_LISTED // max(1, len(self.problem.context.resources.nodes)) ** 2


def search_problem(context: PlanningContext, wants: Sequence[GuestRequest]) -> SearchProblem:
    """Prepare the search: count the resources for which these guests compete.

    Guests with the same request that name no device share one stream of placements.
    """
    problem = read_problem(context, wants)
    by_key: dict[object, PlacementStream] = {}
    streams: list[PlacementStream] = []
    for i, want in enumerate(wants):
        alike = msgspec.structs.replace(want.guest, name="", disk=None, disks=None, networks=None, sysctl=None)
        own = want.guest.name in context.own
        key: object = i if want.named or want.candidates.named or own else repr(alike)
        if key not in by_key:
            by_key[key] = PlacementStream(problem, i)
        streams.append(by_key[key])
    return SearchProblem(problem, tuple(streams))


def best_of(searched: SearchProblem, members: Sequence[int]) -> Found:
    """Return the best plan for the most of these guests that fit together; guests that are not members stay out."""
    return _Search(searched, members, MOST_WORK).best()


def all_fit(searched: SearchProblem, members: Sequence[int]) -> bool | None:
    """Return whether these guests fit together; None if a short search cannot decide it."""
    return _Search(searched, members, SHORT_WORK).fits()


class RankedPlan(NamedTuple):
    """A plan: its rank, and the placement of each guest (None: left out)."""

    rank: Rank
    placements: tuple[Placement | None, ...]


class _PartialChoice(NamedTuple):
    """A guest that can be placed next, and the listed placements that could be part of a better plan.

    `alone`: the least rank of its placements. `more`: whether there may be others, which are not listed.
    """

    which: int
    alone: Rank
    bits: int
    more: bool


class _Search:
    """One search over some guests of a problem; used once."""

    def __init__(self, searched: SearchProblem, members: Sequence[int], most_work: int) -> None:
        self._searched, self._problem, self._streams = searched, searched.problem, searched.streams
        self._context, wants = self._problem.context, self._problem.wants
        self._ledger = Ledger(self._problem)
        self._needs = {i: need_of(self._problem, i) for i in members}
        weights = {i: weight(self._context, need) for i, need in self._needs.items()}
        self._vgpus = {i for i in members if is_vgpu_guest(wants[i].guest)}
        named = {i for i in members if wants[i].candidates.named or wants[i].named}
        self._order = tuple(sorted(members, key=lambda i: (i not in named, -weights[i], i)))
        self._orders = dict.fromkeys((self._order, *_by_amount(members, self._needs, weights)))
        self._alike = {i: self._streams.index(self._streams[i]) for i in members}
        self._bounds = Bounds(self._ledger, wants, self._needs)
        self._options: PlacementOptions  # the listed placements of the tree
        self._first: RankedPlan | None = None  # the best plan before the tree
        self._seen: dict[object, Rank] = {}
        self._chosen: list[Placement | None] = [None] * len(wants)
        self._best = RankedPlan(times(LEFT_OUT, 1 + len(members)), tuple(self._chosen))
        self._most_work = self._limit = most_work
        self._enough = NOTHING  # a plan below this rank ends the search
        self._cut_off = False  # whether some placements were not looked at

    def best(self) -> Found:
        """Return the best plan, and whether that is certain."""
        proven = self._explore(NOTHING)
        if proven and self._first is not None and self._best is not self._first:
            # Guest by guest, each placement that comes before its present one is tried.
            best, rank, taken = self._best, NOTHING, []
            self._enough = plus(best.rank, NEXT)
            self._limit, self._seen = self._ledger.work + TIE_WORK, {}
            try:
                for n, which in enumerate(self._order):
                    best = self._earlier(best, self._order[n:], rank)
                    placement = self._chosen[which] = best.placements[which]
                    rank = plus(rank, LEFT_OUT if placement is None else placement.rank)
                    if placement is not None:
                        self._ledger.take(placement, 1)
                        taken.append(placement)
            except _SearchEnded:  # the work is spent: the plan stays as it is
                pass
            for placement in taken:
                self._ledger.take(placement, -1)
            self._best = best
        return Found(self._best.placements, proven)

    def fits(self) -> bool | None:
        """Return whether there is a plan that leaves no guest out.

        None: the search was cut off before that was known.
        """
        nothing = self._best = RankedPlan(LEFT_OUT, self._best.placements)  # only a better plan is an answer
        certain = self._explore(LEFT_OUT)
        return True if self._best is not nothing else False if certain else None

    def _explore(self, enough: Rank) -> bool:
        """Search until the plan cannot improve, or a plan is below `enough`. Return whether nothing better exists."""
        floor = self._bounds.of(self._order, [self._least(which) for which in self._order])
        if self._cannot_improve(floor):
            return True
        self._enough = max(plus(floor, NEXT), enough)
        for order in self._orders:
            if self._best.rank.unplaced > floor.unplaced:
                # Make one plan without backtracking: each guest takes its best placement, or stays out.
                taken: list[tuple[int, Placement]] = []
                rank = NOTHING
                for which in order:
                    placement = self._first_fitting(which)
                    if placement is None:
                        rank = plus(rank, LEFT_OUT)
                        continue
                    self._ledger.take(placement, 1)
                    taken.append((which, placement))
                    rank = plus(rank, placement.rank)
                if rank < self._best.rank:
                    chosen = dict(taken)
                    self._best = RankedPlan(rank, tuple(map(chosen.get, range(len(self._chosen)))))
                for _, placement in taken:
                    self._ledger.take(placement, -1)
        if self._best.rank < self._enough:
            return self._best.rank <= floor
        self._first = self._best
        for options, limit in self._lists():
            self._options, self._limit, self._seen, self._cut_off = options, limit, {}, False
            try:
                self._descend(self._order, NOTHING, options.fitting(self._ledger))
            except _SearchEnded:
                if self._best.rank < self._enough:
                    return self._best.rank <= floor
            else:
                return not self._cut_off and not any(self._streams[i].cut_off for i in self._order)
        return False

    def _least(self, which: int) -> Rank:
        """Return the least rank of a guest on the empty host."""
        first = None if is_dead(self._ledger, self._needs[which]) else self._streams[which].get(0)
        return first.rank if first else LEFT_OUT

    def _first_fitting(self, which: int) -> Placement | None:
        """Return the best placement of a guest on what is left."""
        if is_dead(self._ledger, self._needs[which]):
            return None
        for number in range(0 if which in self._vgpus else KEPT):
            placement = self._streams[which].get(number)
            if placement is None or self._ledger.fits(placement):
                return placement
        return next(self._drawn(which, NOTHING), None)

    # --- plans of equal rank ------------------------------------------------------------------------------------

    def _earlier(self, best: RankedPlan, guests: Guests, rank: Rank) -> RankedPlan:
        """Return a plan as good as the best in which the first of these guests has its earliest possible placement.

        The guests before it keep theirs; `rank` is that of their placements.
        """
        self._best = RankedPlan(self._enough, best.placements)
        which, fitting = guests[0], self._options.fitting(self._ledger)
        alone = [self._least_left(guest, fitting) for guest in guests]
        least = plus(rank, self._bounds.of(guests, alone))
        branch = next((b for b in self._branches(guests, alone, least, fitting) if b.which == which), None)
        if branch is None:
            return best
        for placement in self._fitting(branch, minus(least, branch.alone)):
            if placement == best.placements[which]:
                return best
            try:
                self._place(placement, guests, rank, fitting)
            except _SearchEnded:
                if self._best.rank >= self._enough:
                    raise
            if self._best.rank < self._enough:
                return self._best
        return best

    # --- the tree -----------------------------------------------------------------------------------------------

    def _descend(self, guests: Guests, rank: Rank, fitting: int) -> None:
        """Try all placements of some guests; `fitting` are the listed ones that fit, `rank` that of all others."""
        self._ledger.spend(20 + 10 * len(guests))
        if self._ledger.work > self._limit or self._best.rank < self._enough:
            raise _SearchEnded
        alone = [self._least_left(which, fitting) for which in guests]
        bound = self._bounds.of(guests, alone)
        least = plus(rank, bound)
        if self._cannot_improve(least):
            return
        branches = self._branches(guests, alone, least, fitting)
        rank = plus(rank, times(LEFT_OUT, len(guests) - len(branches)))
        if not branches:
            self._best = RankedPlan(rank, tuple(self._chosen))
            return
        key = self._state(branches)
        if key in self._seen and self._seen[key] <= rank:
            return
        first = min(branches, key=_width)
        others = tuple(branch.which for branch in branches if branch is not first)
        fitting = 0
        for branch in branches:
            fitting |= branch.bits
        for placement in self._fitting(first, minus(least, first.alone)):
            self._place(placement, (first.which, *others), rank, fitting)
        without = plus(rank, LEFT_OUT)
        if not self._cannot_improve(without):
            self._descend(others, without, fitting)
        if self._best.rank >= self._enough:  # else a plan was found here, and the search ends
            self._seen[key] = rank

    def _place(self, placement: Placement, guests: Guests, rank: Rank, fitting: int) -> None:
        """Try all plans in which the first of these guests has this placement."""
        self._ledger.take(placement, 1)
        self._chosen[guests[0]] = placement
        try:
            left = self._options.after(fitting, placement, self._ledger)
            self._descend(guests[1:], plus(rank, placement.rank), left)
        finally:
            self._chosen[guests[0]] = None
            self._ledger.take(placement, -1)

    def _cannot_improve(self, rank: Rank) -> bool:
        return rank >= self._best.rank

    def _least_left(self, which: int, fitting: int) -> Rank:
        """Return a bound on the rank of a guest's placements on what is left."""
        row = self._options.rows[which]
        if bits := row.bits & fitting:
            return row.best(bits)
        if row.whole or is_dead(self._ledger, self._needs[which]):
            return LEFT_OUT
        return row.after

    def _branches(self, guests: Guests, alone: Sequence[Rank], least: Rank, fitting: int) -> list[_PartialChoice]:
        """Return the guests that have placements left, with those that could be part of a plan above `least`."""
        gap = minus(self._best.rank, least)
        branches = []
        for which, rank in zip(guests, alone, strict=True):
            if rank == LEFT_OUT:
                continue
            row = self._options.rows[which]
            bits, more = row.bits & fitting, not row.whole
            if not gap.unplaced:
                limit = plus(rank, gap)
                bits &= row.below(bisect_left(row.ranks, limit))
                more = more and row.after < limit
            branches.append(_PartialChoice(which, rank, bits, more))
        return branches

    def _state(self, branches: Sequence[_PartialChoice]) -> object:
        """Return what decides the best plan of the remaining guests: which they are, and what is left for them."""
        unused: Sequence[int] = ()
        if not any(branch.more for branch in branches):
            fitting = 0
            for branch in branches:
                fitting |= branch.bits
            unused = [node for node, bits in self._options.touching.items() if not bits & fitting]
        self._ledger.spend(5 * len(self._context.resources.nodes))
        return tuple(sorted(self._alike[branch.which] for branch in branches)), self._ledger.state(unused)

    def _fitting(self, branch: _PartialChoice, rest: Rank) -> Iterator[Placement]:
        """Yield the placements of a guest that could be part of a better plan, the best first; `rest`: all but it."""
        row = self._options.rows[branch.which]
        for placement in row.each(branch.bits):
            if self._cannot_improve(plus(rest, placement.rank)):
                return
            yield placement
        if branch.more:
            for placement in self._drawn(branch.which, row.after):
                if self._cannot_improve(plus(rest, placement.rank)):
                    return
                yield placement

    def _drawn(self, which: int, after: Rank) -> Iterator[Placement]:
        """Yield the placements of a guest on what is left, from a rank on."""
        self._ledger.spend(WORK_OF_DRAWING)
        stream = PlacementStream(self._problem, which, self._ledger.view())
        number = 0
        while (placement := stream.get(number)) is not None:
            if placement.rank >= after and self._ledger.fits(placement):
                yield placement
            number += 1
        self._cut_off = self._cut_off or stream.cut_off

    def _lists(self) -> Iterator[tuple[PlacementOptions, int]]:
        """Yield the placements to list, with the work after which the search is cut off."""
        if not self._searched.short_list.whole and self._searched.most_listed > KEPT:
            yield self._searched.short_list, FEW_WORK
            yield self._searched.long_list, self._most_work
        else:
            yield self._searched.short_list, self._most_work


def _width(branch: _PartialChoice) -> tuple[bool, int]:
    return branch.more, 0 if branch.more else branch.bits.bit_count()


def _by_amount(
    members: Sequence[int], needs: Mapping[int, GuestNeeds], weights: Mapping[int, float]
) -> Iterator[Guests]:
    """Yield the guests by what they need of each amount, the least first."""
    for part in range(len(Totals._fields)):
        if any(needs[i].least[part] for i in members):
            yield tuple(sorted(members, key=lambda i: (needs[i].least[part] or 0, weights[i], i)))
