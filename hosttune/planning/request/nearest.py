"""The NICs and drives nearest to a guest's GPUs.

Pure. Near means: more bridges shared with a GPU (the same PCIe switch is nearer than the same root complex), then a
smaller node distance. A device that the host itself needs is never chosen by count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hosttune.inventory.devices import Catalogue, close_groups
from hosttune.inventory.pcielink import limits
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.intent import NicRequest
from hosttune.model.listing import some
from hosttune.model.values import address_key


def shared_bridges(catalogue: Catalogue, a: str, b: str) -> int:
    """Return how many bridges are above both functions: the more, the nearer they are."""
    return len(set(catalogue.above(a)) & set(catalogue.above(b)))


def dealt(
    ranked: Sequence[tuple[str, str | None]], count: int, take: Callable[[str], bool]
) -> list[tuple[str, str | None]]:
    """Return (device, GPU) pairs, at most `count`: no GPU has a second device before every GPU has had a turn.

    `ranked`: devices with GPUs, the nearest pair first. `take` says whether a device can still be taken, and takes it.
    """
    pairs: list[tuple[str, str | None]] = []
    gone: set[str] = set()
    for turn in range(1, count + 1):
        served: Counter[str | None] = Counter(gpu for _, gpu in pairs)
        for device, gpu in ranked:
            if len(pairs) < count and device not in gone and served[gpu] < turn and take(device):
                pairs.append((device, gpu))
                gone.add(device)
                served[gpu] += 1
    return pairs


def remoteness(
    context: PlanningContext, device: str, gpu: str | None, nodes: Sequence[int]
) -> tuple[int, int, bool, float, tuple[int, ...]]:
    """Return a sort key, nearest first: shared bridges with the GPU, then node distance (unknown is farthest).

    Of equally near devices, those that apply can take at once come first, then those whose PCIe link can do more.
    """
    node = context.catalogue.node(device)
    homes = [context.catalogue.node(gpu)] if gpu else list(nodes)
    known = [home for home in homes if home is not None]
    distance = 1 << 16
    if node is not None and known:
        distance = min(context.resources.distance(home, node) for home in known)
    shared = shared_bridges(context.catalogue, device, gpu) if gpu else 0
    speed, width = limits(context.catalogue.index, device)
    able = (speed or 0) * (width or 0)
    return -shared, distance, device in context.catalogue.busy, -able, address_key(device)


def can_be_counted(context: PlanningContext, device: str, taken: tuple[str, ...]) -> bool:
    """Return whether a NIC or drive may be chosen by count with what is taken.

    The host and guests do not use it, and that is known.
    """
    catalogue = context.catalogue
    ends = (device, *catalogue.virtuals.get(device, ()))
    return (
        device not in taken
        and device not in catalogue.foreign_data
        and catalogue.in_use.keys().isdisjoint(ends)
        and catalogue.use_unknown.keys().isdisjoint(ends)
        and not close_groups(catalogue, (*taken, device)).conflicts
    )


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


def too_few(what: str, wanted: int, there: int, have: int) -> list[str]:
    """Return why there are too few NICs or drives for a count; empty if there are enough."""
    if there >= wanted:
        return []
    singular = what.removesuffix("s")
    what = singular if wanted == 1 else what
    if have == 0:
        return [f"{wanted} {what} wanted: this host has no {singular}"]
    rest = "the rest are in use, share groups or carry the GPUs' fabric"
    return [f"{wanted} {what} wanted, {there} can be given away ({have} on this host; {rest})"]


def in_doubt(context: PlanningContext, pool: Iterable[str]) -> list[str]:
    """Return which of these devices no count takes because it is unknown who uses them, and why."""
    doubts = {**context.catalogue.use_unknown, **context.catalogue.foreign_data}
    doubted = [address for address in pool if address in doubts]
    return [f"no count takes {some(doubted)}: {doubts[doubted[0]]}"] if doubted else []
