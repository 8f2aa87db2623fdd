"""Where adopted guests run: each stays on its own CPUs unless all of them together are better off if it moves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from msgspec.structs import replace as changed

from hosttune.inventory.resources import Resources, read_resources
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.model.host import Host, RunningGuest, VcpuPin
from hosttune.model.intent import Intent
from hosttune.model.plan import Finding, Plan, PlannedGuest, PlannedPin, Unplaced
from hosttune.model.values import CpuSet
from hosttune.planning import plan
from hosttune.planning.batch import Outcome, guest_request_of, off_pins, place_guests
from hosttune.planning.guest.document import Placed
from hosttune.planning.guest.reserve import pins_of, take
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.staying import Names, limited, most_staying, objective, reserving

_Cost = tuple[int, Fraction]


def plan_together(free: Host, intent: Intent, own: Mapping[str, CpuSet], where: str) -> Plan:
    """Return the plan that leaves the most guests on their own CPUs and is as good as the one in which all may move.

    `free`: the host without these guests. `own`: the CPUs of each guest that may stay, the guests whose move costs most
    first. Whether a guest stays is decided in this order. With n guests at most 2 n plans are made: if a set of guests
    cannot stay, no larger one can, so sets are halved.
    """
    best = plan(free, intent, where=where)
    if best.unplaced or not own:
        return best
    context = read_field(free, intent.reserve, may_boot_pages(intent))
    found: dict[Names, Plan] = {(): best}

    def is_good(stay: Names) -> bool:
        if stay not in found:
            found[stay] = _plan_staying(context, intent, {name: own[name] for name in stay}, where)
        return _cost(context, found[stay]) <= _cost(context, best)

    return found[most_staying((), tuple(own), is_good)]


def _cost(context: PlanningContext, decided: Plan) -> _Cost:
    """Return (guests without a place, the sum of the guests' objectives)."""
    return len(decided.unplaced), sum((objective(context.resources, one) for one in decided.guests), Fraction(0))


def _plan_staying(whole: PlanningContext, intent: Intent, own: Mapping[str, CpuSet], where: str) -> Plan:
    """Return the plan in which these guests have these CPUs, and the others get the best places beside them."""

    def place(
        context: PlanningContext, wants: Sequence[GuestRequest]
    ) -> tuple[tuple[Outcome, ...], tuple[Finding, ...]]:
        found: dict[str, Outcome] = {}
        left = context
        for want in wants:
            if want.guest.name not in own:
                continue
            found[want.guest.name] = outcome = _place_on(left, want, own[want.guest.name])
            if isinstance(outcome, Placed):
                left = take(left, outcome.guest, exclusive=outcome.exclusive)
        others = [guest_request_of(left, want.guest, want.where) for want in wants if want.guest.name not in own]
        outcomes, findings = place_guests(left, others) if others else ((), ())
        found |= {want.guest.name: outcome for want, outcome in zip(others, outcomes, strict=True)}
        return off_pins([found[want.guest.name] for want in wants]), findings

    host = whole.host
    pinned = (RunningGuest(name=name, vcpu_pins=_as_pins(cpus)) for name, cpus in own.items())
    with_own = read_resources(changed(host, guests=(*(host.guests or ()), *pinned)), intent.reserve)
    return plan(host, intent, where=where, context=reserving(whole, with_own), place=place)


def _as_pins(cpus: CpuSet) -> tuple[VcpuPin, ...]:
    return tuple(VcpuPin(vcpu=n, cpus=str(cpu)) for n, cpu in enumerate(sorted(cpus)))


def _place_on(context: PlanningContext, want: GuestRequest, own: CpuSet) -> Outcome:
    """Return the guest on these CPUs: with each as it is, or as parts of whole cores, which an odd number needs."""
    again = guest_request_of(context, want.guest, want.where)
    for whole in (False, True):
        (outcome,), _ = place_guests(limited(context, own, whole=whole), [again])
        pins = _own_pins(context.resources, outcome.guest, own) if isinstance(outcome, Placed) else None
        if isinstance(outcome, Placed) and pins is not None:
            return replace(outcome, guest=changed(outcome.guest, vcpu_pins=pins))
    return Unplaced(guest=want.guest.name, why=(f"its own CPUs {own} do not hold it",))


def _own_pins(resources: Resources, guest: PlannedGuest, own: CpuSet) -> tuple[PlannedPin, ...] | None:
    """Return pins to its own CPUs in the order of the planned cores; None if these are other cores."""
    if pins_of(guest) == own:
        return guest.vcpu_pins
    core = {cpu: one.id for node in resources.nodes.values() for one in node.cores for cpu in one.siblings}
    found: dict[int, int] = {}
    for cell in guest.cells:
        vcpus = CpuSet.parse(cell.vcpus)
        cores = list(dict.fromkeys(core[int(pin.cpus)] for pin in guest.vcpu_pins if pin.vcpu in vcpus))
        cpus = sorted((cores.index(core[cpu]), cpu) for cpu in own if core.get(cpu) in cores)
        found |= {vcpu: cpu for vcpu, (_, cpu) in zip(sorted(vcpus), cpus, strict=False)}
    if sorted(found.values()) != sorted(own):
        return None
    return tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in sorted(found.items()))
