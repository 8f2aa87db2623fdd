"""Plan guests that are already defined, each where it is now if all together are then placed as well as possible. Pure.

The guests are planned on the host without them; what running ones hold counts as their own. A guest that cannot be
planned stays as it is defined, with its CPUs, memory and devices, and the others are planned beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as changed

from hosttune.domain.definitions import digest_of, managers_of
from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Guest
from hosttune.domain.reader import read_domain
from hosttune.inventory.resources import Resources, held_by_guests, read_resources
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.knobs.knob import make_action
from hosttune.model.host import Host, RunningGuest, VcpuPin
from hosttune.model.intent import Intent, Network, is_guest_name
from hosttune.model.plan import (
    BOOT_WAYS,
    Action,
    AdoptedCell,
    AdoptedChange,
    AdoptedGuest,
    Plan,
    PlanFinding,
    PlannedGuest,
    PlannedPin,
    Unplaced,
)
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.planning import plan
from hosttune.planning.adopting.changes import write_placement
from hosttune.planning.adopting.drafts import (
    Candidate,
    Definition,
    Draft,
    candidates,
    in_order,
    kept,
    pci_devices,
    read_drafts,
    without,
)
from hosttune.planning.adopting.threads import LIVE_AFFINITY, Threads, affinity, in_the_way, is_there
from hosttune.planning.batch import Outcome, guest_request_of, off_pins, place_guests
from hosttune.planning.guest.document import Placed
from hosttune.planning.guest.reserve import pins_of, take
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.staying import Names, limited, most_staying, objective, reserving

# --- guests that stay where they are -------------------------------------------------------------------------

# Where adopted guests run: each stays on its own CPUs unless all of them together are better off if it moves. Pure.


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
    return len(decided.unplaced), sum((objective(context.resources, guest) for guest in decided.guests), Fraction(0))


def _plan_staying(whole: PlanningContext, intent: Intent, own: Mapping[str, CpuSet], where: str) -> Plan:
    """Return the plan in which these guests have these CPUs, and the others get the best places beside them."""

    def place(
        context: PlanningContext, wants: Sequence[GuestRequest]
    ) -> tuple[tuple[Outcome, ...], tuple[PlanFinding, ...]]:
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
    pinned = (
        RunningGuest(name=name, vcpu_pins=tuple(VcpuPin(vcpu=n, cpus=str(cpu)) for n, cpu in enumerate(sorted(cpus))))
        for name, cpus in own.items()
    )
    with_own = read_resources(changed(host, guests=(*(host.guests or ()), *pinned)), intent.reserve)
    return plan(host, intent, where=where, context=reserving(whole, with_own), place=place)


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
    core = {cpu: core.id for node in resources.nodes.values() for core in node.cores for cpu in core.siblings}
    cpu_of: dict[int, int] = {}
    for cell in guest.cells:
        vcpus = CpuSet.parse(cell.vcpus)
        cores = list(dict.fromkeys(core[int(pin.cpus)] for pin in guest.vcpu_pins if pin.vcpu in vcpus))
        cpus = sorted((cores.index(core[cpu]), cpu) for cpu in own if core.get(cpu) in cores)
        cpu_of |= {vcpu: cpu for vcpu, (_, cpu) in zip(sorted(vcpus), cpus, strict=False)}
    if sorted(cpu_of.values()) != sorted(own):
        return None
    return tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in sorted(cpu_of.items()))


# --- adoption ------------------------------------------------------------------------------------------------


_WHERE = "adopted guests"
_IN_AN_INTENT = re.compile(r"^guests\[[0-9]+\]\.[a-z]+: ")


class Adoption(msgspec.Struct, frozen=True):
    """A definition before and after, the changes between them, and the place that they follow.

    `placement`: as the plan document has it; None if there is no plan, then `unplaced` says why, and `after` is
    `before`. `kept`: what the planner does not decide. `findings`: those about the definition, also in the plan.
    `managers`: programs that write the definition anew. `runs`: the guest runs now. `affinity`: where its threads must
    go while it runs; None: it does not run, libvirt reports them there, or they must not move yet (a finding says why).
    """

    name: str
    before: bytes
    after: bytes
    runs: bool
    changes: tuple[AdoptedChange, ...] = ()
    unplaced: tuple[str, ...] = ()
    relaxation: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    findings: tuple[PlanFinding, ...] = ()
    managers: tuple[str, ...] = ()
    placement: AdoptedGuest | None = None
    affinity: str | None = None


class Adoptions(msgspec.Struct, frozen=True):
    """Guests that were planned together, by name, and their plan: one for all, with the settings of the host.

    The plan's `guests` are for pictures: they have the planner's numbers of cells and vCPUs, and the other threads and
    devices of the definitions. `saved.saved_plan` makes the document of it.
    """

    guests: tuple[Adoption, ...]
    plan: Plan


def adopt(host: Host, definitions: Sequence[Definition], *, tolerant: bool = False) -> Adoptions:
    """Plan the guests of these definitions together, all others where they are. Their order does not matter.

    Raises BadInput: a guest is given twice; and, unless `tolerant`: not the definition of a guest of QEMU on x86-64, a
    device does not exist, another guest has its name or its UUID. `tolerant`: such a guest is refused like one without
    a place.
    """
    drafts = read_drafts(host, definitions, tolerant=tolerant)
    while True:
        free, able = without(host, drafts), candidates(drafts)
        decided = _decide(free, able)
        refused = {left_out.guest: left_out for left_out in (*decided.unplaced, *_clashes(decided, able))}
        if not refused:
            break
        drafts = [_refused(draft, refused.get(draft.name)) for draft in drafts]
    # The CPUs that emulator and I/O threads must not use: those of all vCPUs, and isolated ones.
    online = CpuSet(cpu.id for cpu in free.cpus if cpu.online is not False)
    others, _, _ = held_by_guests(free.guests or (), online)
    isolated = CpuSet(cpu.id for cpu in free.cpus if cpu.isolated)
    foreign = CpuSet(others | isolated | {cpu for guest in decided.guests for cpu in pins_of(guest)})
    places = [
        _placement(free, candidate, guest, foreign) for candidate, guest in zip(able, decided.guests, strict=True)
    ]
    placed = _in_turn(
        host, able, [_written(host, candidate, place) for candidate, place in zip(able, places, strict=True)]
    )
    adoptions = tuple(placed.get(draft.name) or _unplaced(host, draft) for draft in drafts)
    return Adoptions(adoptions, _as_adopted(decided, able, adoptions))


def _decide(free: Host, able: Sequence[Candidate]) -> Plan:
    """Return the plan of the guests. Those that run come first when it is decided who stays on its own CPUs."""
    profile = (free.in_force and free.in_force.profile) or "guest"
    intent = Intent(version=1, profile=profile, guests=tuple(candidate.intent for candidate in able))
    order = sorted(able, key=lambda candidate: (not candidate.draft.runs, candidate.draft.name))
    own = {candidate.draft.name: cpus for candidate in order if (cpus := candidate.own_cpus) is not None}
    return plan_together(free, intent, own, _WHERE)


def _clashes(decided: Plan, able: Sequence[Candidate]) -> Iterator[Unplaced]:
    """Yield the guests with devices that must go along and that another of the definitions has."""
    owners = {address: candidate.draft.name for candidate in able for address in pci_devices(candidate.facts)}
    for guest in decided.guests:
        why = tuple(
            f"{device.address} must go with its devices, and guest {owners[device.address]} has it"
            for device in guest.devices
            if owners.get(device.address, guest.name) != guest.name
        )
        if why:
            yield Unplaced(guest=guest.name, why=why)


def _refused(draft: Draft, why: Unplaced | None) -> Draft:
    if why is None:
        return draft
    reasons = tuple(_IN_AN_INTENT.sub("", reason) for reason in why.why)  # the guest comes from no intent
    return replace(draft, unplaced=reasons, relaxation=why.relaxation)


# --- in the numbers of the definition --------------------------------------------------------------------------


def _placement(host: Host, candidate: Candidate, guest: PlannedGuest, foreign: CpuSet) -> AdoptedGuest:
    facts, data = candidate.facts, candidate.draft.definition.data
    cells = in_order(facts.cells)
    planned = {pin.vcpu: int(pin.cpus) for pin in guest.vcpu_pins}
    numbered: list[AdoptedCell] = []
    pins: dict[int, int] = {}
    for n, cell in enumerate(guest.cells):
        numbered.append(AdoptedCell(id=cells[n].id if cells else cell.id, cell=cell))
        theirs = sorted(parse_cpus(cells[n].vcpus if cells else cell.vcpus))
        order = [planned[vcpu] for vcpu in sorted(parse_cpus(cell.vcpus))]
        pins.update(zip(theirs, _as_now(host, facts, guest, theirs, order), strict=True))
    return AdoptedGuest(
        name=candidate.draft.name,
        uuid=facts.uuid or "",
        definition_sha256=digest_of(data.decode("utf-8", "replace")),
        changes=(),
        guest=guest,
        pins=tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in sorted(pins.items())),
        cells=tuple(numbered),
        foreign_cpus=str(foreign),
        managers=managers_of(XmlText(data)),
    )


def _as_now(host: Host, facts: Guest, guest: PlannedGuest, vcpus: list[int], planned: list[int]) -> list[int]:
    """Return the CPUs of a cell in the guest's own order if that has the same CPUs and the same siblings together."""
    now = [cpu for vcpu in vcpus for cpu in facts.pins.get(vcpu, ())]
    if sorted(now) != sorted(planned):
        return planned
    core = {cpu.id: cpu.core for cpu in host.cpus}
    threads = guest.topology.threads if guest.topology else 1
    groups = [{core.get(cpu) for cpu in now[n : n + threads]} for n in range(0, len(now), threads)]
    return now if all(len(group) == 1 for group in groups) else planned


# --- what comes of a guest --------------------------------------------------------------------------------------


def _written(host: Host, candidate: Candidate, placement: AdoptedGuest) -> Adoption:
    """Return the adoption of a planned guest, with its definition changed."""
    draft, where = candidate.draft, candidate.draft.definition.where
    text = XmlText(draft.definition.data, where=where)
    changes = write_placement(text, placement)
    after = bytes(text)
    then = read_domain(after, where=where)
    held = tuple(_held(candidate, placement))
    moves = draft.resident is not None and draft.runs and not held and not is_there(then, draft.resident)
    return Adoption(
        draft.name,
        before=draft.definition.data,
        after=after,
        runs=draft.runs,
        changes=changes,
        kept=tuple(kept(host, candidate.facts)),
        findings=(
            *_managed(placement.managers, draft.name),
            *_missing(candidate, placement.guest),
            *held,
        ),
        managers=placement.managers,
        placement=changed(placement, changes=changes),
        affinity=affinity(then) if moves else None,
    )


def _unplaced(host: Host, draft: Draft) -> Adoption:
    data, facts = draft.definition.data, draft.facts
    managers = managers_of(XmlText(data)) if facts else ()
    return Adoption(
        draft.name,
        before=data,
        after=data,
        runs=draft.runs,
        unplaced=draft.unplaced,
        relaxation=draft.relaxation,
        kept=tuple(kept(host, facts)) if facts else (),
        findings=tuple(_managed(managers, draft.name)),
        managers=managers,
    )


def _managed(managers: Sequence[str], name: str) -> Iterator[PlanFinding]:
    for manager in managers:
        what = f"{manager} manages this guest and writes its definition again: make the change there"
        yield PlanFinding(level="warn", text=what, where=f"guest {name}: metadata")


def _missing(candidate: Candidate, guest: PlannedGuest) -> Iterator[PlanFinding]:
    have = pci_devices(candidate.facts)
    for device in guest.devices:
        if device.address not in have:
            what = f"{device.address} must go with the guest's devices, and the definition does not have it"
            yield PlanFinding(level="warn", text=f"{what}: no other guest can use it", where=f"guest {guest.name}")


# --- what runs ---------------------------------------------------------------------------------------------------


def _held(candidate: Candidate, placement: AdoptedGuest) -> Iterator[PlanFinding]:
    """Yield why the threads of a running guest must not move now."""
    resident, where = candidate.draft.resident, f"guest {candidate.draft.name}"
    if resident is None or not candidate.draft.runs:
        return
    if not is_guest_name(resident.name):
        text = "its name is not one that hosttune gives: its threads do not move while it runs"
        yield PlanFinding(level="info", text=text, where=where)
    # vfio pins all memory of a guest with a device, so it cannot follow its threads (kernel, driver-api/vfio.rst).
    now = CpuSet(part.node for part in resident.memory or () if part.node is not None)
    planned = {node for cell in placement.cells for node in parse_cpus(cell.cell.host_nodes)}
    if (resident.devices or resident.mdevs) and not now <= planned:
        text = f"the memory of the running guest is on node {now}, and its devices hold it there: its threads stay too"
        yield PlanFinding(level="info", text=f"{text} until its next start", where=where)


def _in_turn(host: Host, able: Sequence[Candidate], written: Sequence[Adoption]) -> dict[str, Adoption]:
    """Return the adoptions by name; threads do not move to cores where another guest of them runs and stays."""
    core = {cpu.id: cpu.id if cpu.core is None else cpu.core for cpu in host.cpus}
    online = {cpu.id for cpu in host.cpus if cpu.online is not False}

    def cores(cpus: Iterable[int]) -> frozenset[int]:
        return frozenset(core[cpu] for cpu in cpus if cpu in core)

    moves = []
    for candidate, adoption in zip(able, written, strict=True):
        resident = candidate.draft.resident if adoption.runs else None
        now = {cpu for pin in (resident.vcpu_pins if resident else ()) or () for cpu in parse_cpus(pin.cpus)}
        planned = cores(int(pin.cpus) for pin in adoption.placement.pins) if adoption.placement else frozenset()
        moves.append(
            Threads(adoption.name, frozenset() if now >= online else cores(now), planned, adoption.affinity is not None)
        )
    waits = in_the_way(moves)
    return {
        adoption.name: _waiting(adoption, waits[adoption.name]) if adoption.name in waits else adoption
        for adoption in written
    }


def _waiting(adoption: Adoption, other: str) -> Adoption:
    what = "its threads move" if adoption.runs else "start it"
    text = f"guest {other} runs on cores that are planned for this guest, until its next start: {what} after that"
    return replace(
        adoption,
        affinity=None,
        findings=(*adoption.findings, PlanFinding(level="warn", text=text, where=f"guest {adoption.name}")),
    )


# --- the plan of all --------------------------------------------------------------------------------------------


def _as_adopted(decided: Plan, able: Sequence[Candidate], adoptions: Sequence[Adoption]) -> Plan:
    """Return the plan with all that are refused, and with what can be done while the guests run."""
    facts = [candidate.facts for candidate in able]
    settings = (action for action in decided.actions if not _by_libvirt(facts, action))
    live = (
        make_action(
            LIVE_AFFINITY, adoption.name, None, adoption.affinity, "its threads move while it runs, without a restart"
        )
        for adoption in adoptions
        if adoption.affinity is not None
    )
    return changed(
        decided,
        guests=tuple(
            _shown(adoption.placement.guest, adoption.after) for adoption in adoptions if adoption.placement is not None
        ),
        unplaced=tuple(
            Unplaced(guest=o.name, why=o.unplaced, relaxation=o.relaxation) for o in adoptions if o.unplaced
        ),
        actions=(*settings, *live),
        findings=(
            # What a definition boots from is not the planner's: the request has only what decides the place.
            *(finding for finding in decided.findings if BOOT_WAYS not in finding.text),
            *(finding for adoption in adoptions for finding in adoption.findings),
        ),
    )


def _shown(guest: PlannedGuest, definition: bytes) -> PlannedGuest:
    """Return the planned guest with what its definition has: other threads, disks, networks, devices as it sees them.

    Without what a new definition would get, and why: each change has its own reason.
    """
    facts = read_domain(definition)
    passed = {device.source: device for device in facts.hostdevs}
    disks = [disk.source for disk in facts.disks if disk.source and disk.device in (None, "disk")]
    return changed(
        guest,
        why=(),
        mmio64_bytes=None,
        disk=disks[0] if disks else None,
        further_disks=tuple(disks[1:]),
        networks=tuple(
            Network(bridge=interface.source) if interface.type == "bridge" else Network(network=interface.source)
            for interface in facts.interfaces
            if interface.type in ("network", "bridge")
        ),
        emulator_cpus=facts.emulator_cpus or "",
        iothread_cpus=tuple(pin.cpus for pin in facts.iothread_pins),
        devices=tuple(
            changed(device, guest_address=here.guest_address or "", managed=bool(here.managed))
            for device in guest.devices
            if (here := passed.get(device.address))
        ),
        controllers=(),
    )


def _by_libvirt(facts: Sequence[Guest], action: Action) -> bool:
    """Return whether libvirt itself binds this device when a guest starts."""
    return action.kind == "driver" and any(
        device.managed and device.source == action.target for guest in facts for device in guest.hostdevs
    )
