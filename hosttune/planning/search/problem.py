"""The input of every search over the guests of an intent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import lcm

import msgspec

from hosttune.inventory.sizing import PlanningContext, Sizes
from hosttune.planning.request.resource_pool import GuestRequest, ResourcePool, read_resource_pool
from hosttune.planning.search.fragmentation import Fragments
from hosttune.planning.search.lazy_sequence import LazySequence


class PlacementProblem(msgspec.Struct, frozen=True, dict=True):
    """Guests, the host, and the resources for which the guests compete.

    `unit`: objectives are counted in parts of this size, so that each is a whole number.
    """

    context: PlanningContext
    wants: tuple[GuestRequest, ...]
    resource_pool: ResourcePool
    unit: int

    @cached_property
    def fragments(self) -> Fragments:
        """The object that computes what placements break up on this host."""
        return Fragments(self.context)

    @cached_property
    def pair(self) -> dict[tuple[int, int], int]:
        """The cost of two cells by the distance between their nodes, in parts of `unit`."""
        nodes = list(self.context.resources.nodes)
        return {(a, b): self.unit * self.context.resources.distance(a, b) for a in nodes for b in nodes if a != b}

    @cached_property
    def cuts(self) -> dict[object, LazySequence[Sizes]]:
        """The ways to divide each guest, cached by `placements` for every search."""
        return {}


def read_problem(context: PlanningContext, wants: Sequence[GuestRequest]) -> PlacementProblem:
    """Count the resources for which these guests compete."""
    # The factor 2 makes half a pair of cells whole as well.
    parts = [*range(1, len(context.resources.nodes) + 1)]
    parts += [sum(cell.vcpus for cell in w.guest.numa) for w in wants if isinstance(w.guest.numa, tuple)]
    return PlacementProblem(context, tuple(wants), read_resource_pool(context, wants), 2 * lcm(*parts))
