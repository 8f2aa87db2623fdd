"""Bounds on what the remaining guests of a search can still reach: the guests that stay out, and the least rank.

Pure. No plan is better than its bound, so a branch whose bound is no better than the best plan found can be left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from hosttune.model.values import grouped
from hosttune.planning.mig.instances import is_vgpu_guest
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.search.ledger import Ledger
from hosttune.planning.search.needs import Need, instances_left
from hosttune.planning.search.rank import LEFT_OUT, Rank, minus, plus, times, total

Guests = tuple[int, ...]


class Bounds:
    """The bounds of one search."""

    def __init__(self, ledger: Ledger, wants: Sequence[GuestRequest], needs: Mapping[int, Need]) -> None:
        self._ledger, self._wants, self._needs = ledger, wants, needs
        self._sums: dict[Guests, tuple[tuple[int, tuple[int, ...]], ...]] = {}
        self._vgpus: dict[Guests, dict[str, list[int]]] = {}

    def of(self, guests: Guests, alone: Sequence[Rank]) -> Rank:
        """Return a bound on the rank of plans for these guests; `alone`: the least rank of each."""
        least = total(alone)
        # How many of these guests cannot be placed, because the whole host has too little of some resource. For each
        # amount, the guests that need least of it are counted first.
        if guests not in self._sums:
            found = []
            for part, needs in enumerate(zip(*(self._needs[i].least for i in guests), strict=True)):
                sums = tuple(accumulate(sorted(need or 0 for need in needs)))
                if sums[-1]:
                    found.append((part, sums))
            self._sums[guests] = tuple(found)
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
            by_profile = grouped((one.profile, one.count) for one in mig if one is not None)
            self._vgpus[guests] = {profile: list(accumulate(sorted(n))) for profile, n in by_profile.items()}
        rows = self._vgpus[guests].items()
        return sum(len(sums) - bisect_right(sums, instances_left(self._ledger, profile)) for profile, sums in rows)
