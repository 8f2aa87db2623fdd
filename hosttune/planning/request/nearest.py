"""The NICs and drives nearest to a guest's GPUs.

Pure. Near means: more bridges shared with a GPU (the same PCIe switch is nearer than the same root complex), then a
smaller node distance. A device that the host itself needs is never chosen by count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.intent import NicRequest
from hosttune.model.values import address_key
from hosttune.planning.inventory.devices import Catalogue, close_groups
from hosttune.planning.inventory.sizing import PlanningContext


def shared_bridges(catalogue: Catalogue, a: str, b: str) -> int:
    """Return how many bridges are above both functions: the more, the nearer they are."""
    return len(set(catalogue.above(a)) & set(catalogue.above(b)))


def _remoteness(
    context: PlanningContext, device: str, gpu: str | None, nodes: Sequence[int]
) -> tuple[int, int, bool, tuple[int, ...]]:
    """Return a sort key, nearest first: shared bridges with the GPU, then node distance (unknown is farthest).

    Of equally near devices, those that apply can take at once come first.
    """
    node = context.catalogue.node(device)
    homes = [context.catalogue.node(gpu)] if gpu else list(nodes)
    known = [home for home in homes if home is not None]
    distance = 1 << 16
    if node is not None and known:
        distance = min(context.resources.distance(home, node) for home in known)
    shared = shared_bridges(context.catalogue, device, gpu) if gpu else 0
    return -shared, distance, device in context.catalogue.busy, address_key(device)


def can_be_counted(context: PlanningContext, device: str, taken: tuple[str, ...]) -> bool:
    """Return whether a NIC or drive may be chosen by count with what is taken: the host and guests do not use it."""
    catalogue = context.catalogue
    return (
        device not in taken
        and catalogue.in_use.keys().isdisjoint((device, *catalogue.virtuals.get(device, ())))
        and not close_groups(catalogue, (*taken, device)).conflicts
    )


def nearest(
    context: PlanningContext, pool: Iterable[str], gpu: str | None, nodes: Sequence[int], taken: tuple[str, ...]
) -> str | None:
    """Return the device of the pool that is nearest to a GPU, or to the nodes; None if none can be given away."""
    left = (device for device in pool if can_be_counted(context, device, taken))
    return min(left, key=lambda device: _remoteness(context, device, gpu, nodes), default=None)


def free_nics(context: PlanningContext, request: NicRequest) -> list[str]:
    """Return the physical functions that a count can choose.

    NICs that the host uses are excluded later, with a reason.
    """
    return [
        nic.address
        for nic in context.host.nics
        if nic.physfn is None
        and (request.rdma is None or request.rdma == (nic.rdma is not None))
        and not (context.catalogue.pci[nic.address].physfn if nic.address in context.catalogue.pci else None)
    ]


def too_few(what: str, wanted: int, found: int, have: int) -> list[str]:
    """Return why there are too few NICs or drives for a count; empty if there are enough."""
    if found >= wanted:
        return []
    one = what.removesuffix("s")
    what = one if wanted == 1 else what
    if have == 0:
        return [f"{wanted} {what} wanted: this host has no {one}"]
    rest = "the rest are in use, share groups or carry the GPUs' fabric"
    return [f"{wanted} {what} wanted, {found} can be given away ({have} on this host; {rest})"]
