"""Guests that stay where they are: on their own CPUs and nodes, beside guests that are placed anew.

Pure. Of guests whose request has changed, each keeps its devices if all that fit without that still fit. The search
counts cells on other nodes and other vCPUs before its objective (`placements`); on its nodes a guest takes its own CPUs
first (`PlanningContext.turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

from msgspec.structs import replace
from msgspec.structs import replace as changed

from hosttune.inventory.bare import with_instances
from hosttune.inventory.resources import Core, NodeResources, Resources
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.host import RunningGuest
from hosttune.model.plan import PlanFinding, PlannedGuest
from hosttune.model.values import CpuSet
from hosttune.planning.batch import Outcome, guest_request_of, off_pins, place_alone, place_guests
from hosttune.planning.guest.document import Placed
from hosttune.planning.guest.reserve import take, take_entry
from hosttune.planning.request.candidates import keeping
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.standing import beyond

Names = tuple[str, ...]


def most_staying(stay: Names, more: Names, is_good: Callable[[Names], bool]) -> Names:
    """Return `stay` and of `more`, from the first to the last, each that keeps the set good.

    `is_good`: if a set is not good, no larger one is. It is asked at most 2 n times for n names.
    """
    if is_good((*stay, *more)):
        return (*stay, *more)
    if len(more) < 2:
        return stay
    half = len(more) // 2
    return most_staying(most_staying(stay, more[:half], is_good), more[half:], is_good)


def reserving(context: PlanningContext, like: Resources) -> PlanningContext:
    """Return the context in which the same cores stay with the host as in `like`."""

    def one(node: NodeResources) -> NodeResources:
        reserved = like.nodes[node.id].reserved
        kept = {core.id for core in reserved}
        pinned = context.resources.pinned
        free = tuple(core for core in node.cores if core.id not in kept and pinned.isdisjoint(core.siblings))
        return _with_free(replace(node, reserved=reserved), free)

    nodes = {number: one(node) for number, node in context.resources.nodes.items()}
    return replace(context, resources=replace(context.resources, nodes=nodes, housekeeping=like.housekeeping))


def limited(context: PlanningContext, own: CpuSet, *, whole: bool) -> PlanningContext:
    """Return the context in which only these CPUs are free, or the `whole` cores of them."""

    def one(node: NodeResources) -> NodeResources:
        mine = (core for core in node.free if own.intersection(core.cpus))
        cut = (replace(core, cpus=tuple(cpu for cpu in core.cpus if whole or cpu in own)) for core in mine)
        return _with_free(node, tuple(cut))

    nodes = {number: one(node) for number, node in context.resources.nodes.items()}
    return replace(context, resources=replace(context.resources, nodes=nodes))


def _with_free(node: NodeResources, free: tuple[Core, ...]) -> NodeResources:
    return replace(node, free=free, free_threads=CpuSet(cpu for core in free for cpu in core.cpus))


def objective(resources: Resources, guest: PlannedGuest) -> Fraction:
    """Return what the planner makes small: each cell's share of the vCPUs times its devices' distances, and the
    distances between cells.
    """
    nodes = {int(cell.host_nodes): len(CpuSet.parse(cell.vcpus)) for cell in guest.cells}
    homes = [device.host_node for device in guest.devices if device.host_node is not None]
    near = sum(vcpus * resources.distance(node, home) for node, vcpus in nodes.items() for home in homes)
    return Fraction(near, len(guest.vcpu_pins)) + sum(resources.distance(a, b) for a, b in combinations(nodes, 2))


# --- guests whose request has changed ---------------------------------------------------------------------------

Placement = tuple[tuple[Outcome, ...], tuple[PlanFinding, ...]]


def place_again(
    context: PlanningContext, wants: Sequence[GuestRequest], old_runs: Mapping[str, RunningGuest]
) -> Placement:
    """Place guests of which some have had places (`context.own`): the most guests first, then the fewest moves.

    Where not all fit, the moves are the fewest of those that are placed; who is left out is not chosen by moves (such a
    plan is not applied). Of two guests that cannot both keep their devices, the first does. The search itself counts
    moves of cells and vCPUs. `old_runs`: guests that run now and are changed or taken away; no other guest
    gets what they have.
    """
    own = tuple(want.guest.name for want in wants if want.guest.name in context.own)
    known: dict[Names, Placement] = {}

    def placed(stay: Names) -> int:
        if stay not in known:
            known[stay] = _place_keeping(context, wants, stay, old_runs)
        return sum(isinstance(outcome, Placed) for outcome in known[stay][0])

    if placed(own) == len(wants):
        return known[own]
    most = placed(())
    stay = most_staying((), own, lambda stay: placed(stay) >= most)
    placed(stay)
    return known[stay]


def _place_keeping(
    context: PlanningContext, wants: Sequence[GuestRequest], stay: Names, old_runs: Mapping[str, RunningGuest]
) -> Placement:
    """Place the guests that run one after the other, then all others together. `stay`: those that keep devices."""
    found: dict[str, Outcome] = {}
    planned: dict[str, PlannedGuest] = {}
    left = context
    for want in wants:
        name = want.guest.name
        if name not in old_runs:
            continue
        here = _beside_old_runs(left, {other: run for other, run in old_runs.items() if other != name}, planned)
        others = [request for request in wants if request is not want and request.guest.name not in found]
        own = {device.address for had in here.own.values() for device in had.devices}
        found[name] = outcome = place_alone(here, _keeping(here, want, others, stay, own))
        if isinstance(outcome, Placed):
            planned[name] = outcome.guest
            left = take(left, outcome.guest, exclusive=outcome.exclusive)
            if outcome.guest.mig:
                host = changed(left.host, gpus=with_instances(left.host.gpus, [outcome.guest]))
                left = replace(left, host=host, catalogue=replace(left.catalogue, gpus=host.index.gpus))
    left = _beside_old_runs(left, old_runs, planned)
    rest = [want for want in wants if want.guest.name not in found]
    again, last = list[GuestRequest](), {device.address for had in left.own.values() for device in had.devices}
    for want in rest:
        again.append(_keeping(left, want, [request for request in rest if request is not want], stay, last))
        last.update(a for gpus in again[-1].candidates.sets or () for a in gpus)
    outcomes, findings = place_guests(left, again) if again else ((), ())
    found |= {want.guest.name: outcome for want, outcome in zip(again, outcomes, strict=True)}
    for name, had in context.own.items():
        placement = found.get(name)
        if isinstance(placement, Placed):
            found[name] = replace(placement, guest=_in_order(placement.guest, had))
    return off_pins([found[want.guest.name] for want in wants]), findings


def _beside_old_runs(
    context: PlanningContext, old_runs: Mapping[str, RunningGuest], planned: Mapping[str, PlannedGuest]
) -> PlanningContext:
    for name, run in old_runs.items():
        entry = beyond(context.host, run, planned.get(name), run=True)
        context = take_entry(context, entry)
    return context


def _keeping(
    context: PlanningContext, want: GuestRequest, others: Sequence[GuestRequest], stay: Names, last: Collection[str]
) -> GuestRequest:
    """Return the request of a guest that keeps its devices, but for those that others name, if it is to `stay`.

    `last` as in `keeping`.
    """
    had = context.own.get(want.guest.name)
    if had is None or want.guest.name not in stay:
        return guest_request_of(context, want.asked, want.where)
    gone = {
        *context.catalogue.holders,
        *(a for request in others for a in (*request.named, *(request.candidates.named or ()))),
    }
    own = {kind: [device.address for device in had.devices if device.kind == kind] for kind in ("gpu", "nic", "nvme")}
    free = {kind: tuple(address for address in some if address not in gone) for kind, some in own.items()}
    counts = {"nics": (want.asked.nics, free["nic"]), "nvme": (want.asked.nvme, free["nvme"])}
    named = {
        key: some[:count] for key, (count, some) in counts.items() if isinstance(count, int) and 0 < count <= len(some)
    }
    again = guest_request_of(context, changed(want.asked, **named), want.where)
    return replace(again, candidates=keeping(context, again.candidates, free["gpu"], last))


def _in_order(guest: PlannedGuest, had: PlannedGuest) -> PlannedGuest:
    """Return the guest with its CPUs in the order in which it had them, if they are the same in every cell."""

    def by_cell(guest: PlannedGuest) -> list[tuple[str, str, set[str]]]:
        cpus = {pin.vcpu: pin.cpus for pin in guest.vcpu_pins}
        return [(cell.vcpus, cell.host_nodes, {cpus[n] for n in CpuSet.parse(cell.vcpus)}) for cell in guest.cells]

    same = by_cell(guest) == by_cell(had) and guest.topology == had.topology
    return changed(guest, vcpu_pins=had.vcpu_pins) if same else guest
