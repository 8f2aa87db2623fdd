"""The order of preference between placements: named numbers, compared from the first to the last; the least is best.

Pure. Ranks add up field by field, and addition keeps their order: if one guest's placement gets better and the others
stay the same, the whole plan gets better. The search uses that for its bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add, sub
from typing import NamedTuple


class Rank(NamedTuple):
    """The rank of a placement of one guest, or of a plan for several guests."""

    unplaced: int = 0  # guests without a place
    level: int = 0  # 1 for cells off the nodes of the guest's GPUs, 1 more for each cell beyond the contract's number
    mixed: int = 0  # GPU models beyond one
    cost: int = 0  # the contract's objective, in parts of `Problem.unit`
    short: int = 0  # guests whose `auto` size was reduced
    busy: int = 0  # GPUs that a process uses
    order: int = 0  # number of the cut: the more threads per core and the larger the pages, the lower


NOTHING = Rank()
LEFT_OUT = Rank(unplaced=1)
NEXT = Rank(order=1)  # the smallest step from one rank to another


def plus(a: Rank, b: Rank) -> Rank:
    """Return the sum of two ranks."""
    return Rank(*map(add, a, b))


def minus(a: Rank, b: Rank) -> Rank:
    """Return a rank without a part of it; single fields may become negative."""
    return Rank(*map(sub, a, b))


def total(ranks: Iterable[Rank]) -> Rank:
    """Return the sum of all ranks."""
    fields = [sum(column) for column in zip(*ranks, strict=True)]
    return Rank(*fields) if fields else NOTHING


def times(rank: Rank, count: int) -> Rank:
    """Return the rank of `count` guests with this rank."""
    return Rank(*(count * field for field in rank))
