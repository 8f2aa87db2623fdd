"""Decide all guests of an intent together: which of them fit, on which nodes, with which devices.

Pure. Guests that do not fit even alone get the reasons for that. The others are decided together (`search`): the most
guests first, then the contract's objective. Then each guest is built, one after the other, on what the guests before it
left. One guest is a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.inventory.devices import disk_claims, named_devices, named_gpus
from hosttune.inventory.sizing import PlanningContext
from hosttune.inventory.virtualfunctions import lacking, vf_networks
from hosttune.model.intent import GuestIntent, NicRequest
from hosttune.model.plan import PlanFinding, Unplaced
from hosttune.model.values import CpuSet, parse_address, parse_cpus
from hosttune.planning.guest.builder import Builder
from hosttune.planning.guest.document import Placed
from hosttune.planning.guest.reserve import pins_of, take
from hosttune.planning.mig.instances import is_vgpu_guest, mig_changes, mig_refusal
from hosttune.planning.request.candidates import Candidates, gpu_candidates
from hosttune.planning.request.nearest import can_be_counted, free_nics, in_doubt, too_few
from hosttune.planning.request.resource_pool import GuestRequest, counted_nics, counted_nvme
from hosttune.planning.search.branch_and_bound import SearchProblem, all_fit, best_of, search_problem
from hosttune.planning.suggestions import has_room, relaxations, shortage

MOST_RIVALS = 32  # with more placed guests than this, no smallest conflicting set is searched
MOST_EXPLAINED = 8  # unplaced guests that get this set and suggestions; each of these takes time
Outcome = Placed | Unplaced


def guest_request_of(context: PlanningContext, guest: GuestIntent, where: str) -> GuestRequest:
    """Return the request of a guest: the devices that it names and the possible sets of GPUs. Raises BadInput."""
    nics = guest.nics if isinstance(guest.nics, tuple) else ()
    nvme = guest.nvme if isinstance(guest.nvme, tuple) else ()
    mine = context.functions.get(guest.name, ())
    named = (
        *named_devices(context.catalogue, nics, "nic", f"{where}.nics"),
        *named_devices(context.catalogue, nvme, "nvme", f"{where}.nvme"),
        *mine,
    )
    for n, _, physical in vf_networks(guest.networks):
        named_devices(context.catalogue, (physical,), "nic", f"{where}.networks[{n}].vf_of")
    asked = guest
    guest, mates = _with_mates(context, guest, named, where)
    named = (*named, *mates)
    claims = (
        *(claim for disk in guest.disk_paths.values() for claim in disk_claims(context.catalogue, disk)),
        *lacking(context.host, guest, mine),
    )
    candidates = Candidates(0, why=claims) if claims else gpu_candidates(context, guest, named, f"{where}.gpus")
    return GuestRequest(guest, where, named, candidates, asked)


def _with_mates(
    context: PlanningContext, guest: GuestIntent, named: tuple[str, ...], where: str
) -> tuple[GuestIntent, tuple[str, ...]]:
    """Return a guest that wants fewer NICs and drives, and those that it gets because they share its GPUs' groups."""
    gpus = named_gpus(context.catalogue, guest.gpus, f"{where}.gpus") if isinstance(guest.gpus, tuple) else ()
    groups = {device.iommu_group for device in map(context.catalogue.pci.get, gpus) if device}
    inside = [function.address for n in groups if n is not None for function in context.catalogue.groups[n]]
    nics = NicRequest(count=guest.nics) if isinstance(guest.nics, int) else guest.nics
    ports = free_nics(context, nics) if isinstance(nics, NicRequest) else []
    drives = [drive.address for drive in context.host.nvme]
    of_nics = [mate for mate in inside if mate in ports][: nics.count if isinstance(nics, NicRequest) else 0]
    of_drives = [mate for mate in inside if mate in drives][: guest.nvme if isinstance(guest.nvme, int) else 0]
    every = (*gpus, *named, *of_nics, *of_drives)
    if any(not can_be_counted(context, mate, tuple(a for a in every if a != mate)) for mate in (*of_nics, *of_drives)):
        return guest, ()
    if isinstance(nics, NicRequest) and of_nics:
        guest = msgspec.structs.replace(guest, nics=msgspec.structs.replace(nics, count=nics.count - len(of_nics)))
    if isinstance(guest.nvme, int) and of_drives:
        guest = msgspec.structs.replace(guest, nvme=guest.nvme - len(of_drives))
    return guest, (*of_nics, *of_drives)


def check_apart(context: PlanningContext, wants: Sequence[GuestRequest]) -> None:
    """Check that no two guests name the same device or disk.

    Raises BadInput: two guests name it; the error has the path of the later key.
    """
    names: dict[str, str] = {}
    disks: dict[str, str] = {}
    for want in wants:
        for key, disk in want.guest.disk_paths.items():
            if disks.setdefault(disk, want.guest.name) != want.guest.name:
                raise BadInput(
                    f"{disk} is the disk of guests {disks[disk]} and {want.guest.name}: two writers would destroy it",
                    where=f"{want.where}.{key}",
                    hint="give each guest an image of its own",
                )
        gpus = want.guest.gpus if isinstance(want.guest.gpus, tuple) else ()
        keys = {**dict.fromkeys(named_gpus(context.catalogue, gpus, f"{want.where}.gpus"), "gpus")}
        keys |= {address: "nics" if address in _nics(want) else "nvme" for address in want.named}
        for address, key in keys.items():
            if address in names:
                raise BadInput(
                    f"{address} is named by guests {names[address]} and {want.guest.name}",
                    where=f"{want.where}.{key}",
                    hint="a device goes to one guest: name another, or ask for a number of them",
                )
            names[address] = want.guest.name


def _nics(want: GuestRequest) -> frozenset[str]:
    nics = want.guest.nics if isinstance(want.guest.nics, tuple) else ()
    return frozenset(parse_address(text, where=f"{want.where}.nics") for text in nics)


def place_guests(
    context: PlanningContext, wants: Sequence[GuestRequest]
) -> tuple[tuple[Outcome, ...], tuple[PlanFinding, ...]]:
    """Place the guests. Return (the outcome of each guest, findings about the whole)."""
    searched = search_problem(context, wants)
    alone = [_decided(searched, [i]) for i in range(len(wants))]
    refused = {i: outcome for i, single in enumerate(alone) if isinstance(outcome := single.outcomes[i], Unplaced)}
    able = [i for i in range(len(wants)) if i not in refused]
    together = alone[able[0]] if len(able) == 1 else _decided(searched, able)
    refused |= {i: outcome for i, outcome in together.outcomes.items() if isinstance(outcome, Unplaced)}
    outcomes: dict[int, Outcome] = dict(together.placed)
    after = context
    for placed in together.placed.values():
        after = take(after, placed.guest, exclusive=placed.exclusive)
    left_out = [i for i in range(len(wants)) if i not in outcomes]
    for n, i in enumerate(left_out):
        outcomes[i] = outcome = _left_out(_Rest(context, after, wants, searched, together), i, refused.get(i), n)
        if isinstance(outcome, Placed):  # the search was cut off and missed this place
            after = take(after, outcome.guest, exclusive=outcome.exclusive)
    findings = (*together.findings, *_unexplained(len(left_out) - MOST_EXPLAINED))
    return off_pins([outcomes[i] for i in range(len(wants))]), findings


def off_pins(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes with emulator threads that are off the vCPUs of all other guests.

    This includes guests that got a place later.
    """
    return tuple(_off_pins(outcome, outcomes) for outcome in outcomes)


def _off_pins(outcome: Outcome, all_outcomes: Sequence[Outcome]) -> Outcome:
    if isinstance(outcome, Unplaced):
        return outcome
    guest = outcome.guest
    placed = (other.guest for other in all_outcomes if isinstance(other, Placed) and other is not outcome)
    others = {cpu for other in placed for cpu in pins_of(other)}
    now = parse_cpus(guest.emulator_cpus)
    if now.isdisjoint(others):
        return outcome
    left = CpuSet(now - others) or pins_of(guest)
    moved = msgspec.structs.replace(guest, emulator_cpus=str(left), iothread_cpus=(str(left),))
    return replace(outcome, guest=moved)


class _Decided(msgspec.Struct, frozen=True):
    """The decision for some guests together. A guest that is not in `outcomes` was left out in favour of the others."""

    outcomes: dict[int, Outcome]
    proven: bool

    @property
    def placed(self) -> dict[int, Placed]:
        """Return the guests that have a place."""
        return {i: outcome for i, outcome in self.outcomes.items() if isinstance(outcome, Placed)}

    @property
    def findings(self) -> tuple[PlanFinding, ...]:
        """Return a finding if the search was cut off: the plan is valid but may not be the best."""
        if self.proven:
            return ()
        text = (
            "the search for the best plan was cut off: this one is valid, but more guests or nearer nodes may be"
            " possible"
        )
        return (PlanFinding(level="warn", text=text, where="guests"),)


def _decided(searched: SearchProblem, members: Sequence[int]) -> _Decided:
    """Return the best plan for some guests.

    The search compares amounts only. A guest can still fail while it is built; then the others are decided without it.
    """
    problem = searched.problem
    refused: dict[int, Outcome] = {}
    while left := [i for i in members if i not in refused]:
        best = best_of(searched, left)
        built = {i: outcome for i, outcome in enumerate(Builder(problem, best).build()) if outcome is not None}
        failed: dict[int, Outcome] = {i: outcome for i, outcome in built.items() if isinstance(outcome, Unplaced)}
        if len(left) == 1 and not built:
            failed = {left[0]: _no_place(problem.context, problem.wants[left[0]])}
        if not failed:
            return _Decided(refused | built, best.proven)
        refused |= failed
    return _Decided(refused, True)


def _no_place(context: PlanningContext, want: GuestRequest) -> Unplaced:
    """Return why a guest has no place even alone."""
    guest, candidates = want.guest, want.candidates
    if candidates.first() is None:
        return Unplaced(guest=guest.name, why=candidates.why)
    if is_vgpu_guest(guest):
        return Unplaced(guest=guest.name, why=mig_refusal(context, guest) or shortage(context, guest, candidates))
    nics = NicRequest(count=guest.nics) if isinstance(guest.nics, int) else guest.nics
    missing: list[str] = []
    if isinstance(nics, NicRequest):
        there = len(counted_nics(context, want))
        missing += too_few("NICs", nics.count, there, len(context.host.nics))
        missing += in_doubt(context, free_nics(context, nics)) if there < nics.count else ()
    if isinstance(guest.nvme, int):
        there = len(counted_nvme(context, want))
        missing += too_few("NVMe drives", guest.nvme, there, len(context.host.nvme))
        missing += in_doubt(context, [drive.address for drive in context.host.nvme]) if there < guest.nvme else ()
    room = () if missing and has_room(context, guest, candidates) else shortage(context, guest, candidates)
    return Unplaced(guest=guest.name, why=(*missing, *room))


def place_alone(context: PlanningContext, want: GuestRequest) -> Outcome:
    """Return the outcome of a guest if it were the only one."""
    return _decided(search_problem(context, [want]), [0]).outcomes[0]


def _alone(context: PlanningContext, guest: GuestIntent, where: str) -> Outcome:
    return place_alone(context, guest_request_of(context, guest, where))


def _unexplained(count: int) -> tuple[PlanFinding, ...]:
    """Return a finding that only the first unplaced guests got suggestions."""
    if count <= 0:
        return ()
    text = (
        f"{count} more {'guest has' if count == 1 else 'guests have'} no place; who is in the way and what would help"
        f" was worked out for the first {MOST_EXPLAINED} only: plan fewer at once to see it for others"
    )
    return (PlanFinding(level="info", text=text, where="guests"),)


class _Rest(msgspec.Struct, frozen=True):
    """A host before (`context`) and after (`after`) the guests that were decided `together` got their resources."""

    context: PlanningContext
    after: PlanningContext
    wants: Sequence[GuestRequest]
    searched: SearchProblem
    together: _Decided


def _left_out(rest: _Rest, which: int, refused: Outcome | None, number: int) -> Outcome:
    """Return why a guest has no place; for the first ones also which guests conflict with it and what would help."""
    whole = number < MOST_EXPLAINED
    beside = _beside(rest, which, refused, suggest=whole)
    if isinstance(beside, Placed):
        return beside
    if isinstance(refused, Unplaced):
        return msgspec.structs.replace(beside, why=refused.why)
    if not whole:
        return msgspec.structs.replace(beside, why=("alone it fits; it has no place beside the others", *beside.why))
    rivals = [rest.wants[i].guest.name for i in _blocking_guests(rest, which)]
    why = f"alone it fits; it has no place beside {_listed(rivals)}"
    return msgspec.structs.replace(beside, why=(why, *beside.why))


def _beside(rest: _Rest, which: int, refused: Outcome | None, *, suggest: bool) -> Outcome:
    """Return the outcome of a guest beside those that have a place; `suggest`: add changes that would give it one."""
    want = rest.wants[which]
    if is_vgpu_guest(want.guest):
        line = f"no GPU has room for {_instances(want.guest)} beside what they take"
        helpful = _other_mig(rest.context, rest.wants, which, tuple(rest.together.placed)) if suggest else ()
        return Unplaced(guest=want.guest.name, why=(line,), relaxation=helpful)
    outcome = _alone(rest.after, want.asked, want.where) if rest.together.placed or refused is None else refused
    if isinstance(outcome, Placed) or not suggest:
        return outcome

    def fits_with_change(on: PlanningContext, changed: GuestIntent) -> bool:
        return isinstance(_alone(on, changed, want.where), Placed)

    candidates = guest_request_of(rest.after, want.asked, want.where).candidates
    helpful = relaxations(rest.after, want.asked, candidates, fits_with_change)
    return msgspec.structs.replace(outcome, relaxation=(*helpful, *outcome.relaxation))


def _blocking_guests(rest: _Rest, which: int) -> list[int]:
    """Return the placed guests beside which it does not fit, a smallest set as far as short searches can show."""
    rivals = list(rest.together.placed)
    if len(rivals) > MOST_RIVALS:
        return rivals
    for other in rest.together.placed:
        fewer = [i for i in rivals if i != other]
        if all_fit(rest.searched, (*fewer, which)) is False:
            rivals = fewer
    return rivals


def _instances(guest: GuestIntent) -> str:
    return f"{guest.mig.count} x {guest.mig.profile}" if guest.mig else "nothing"


def _other_mig(
    context: PlanningContext, wants: Sequence[GuestRequest], which: int, placed: Sequence[int]
) -> tuple[str, ...]:
    """Return other MIG requests with which a guest would fit beside these guests: the first of each kind."""
    want = wants[which]
    helpful: dict[str, str] = {}
    for text, changed in mig_changes(context, want.guest):
        kind = text.partition(":")[0]
        if kind in helpful:
            continue
        try:
            other = guest_request_of(context, changed, want.where)
        except BadInput:
            continue
        trial = search_problem(context, [*(wants[i] for i in placed), other])
        if all_fit(trial, range(len(trial.streams))):
            helpful[kind] = text
    return tuple(helpful.values())


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(names[:-1])
    return f"{'guests' if head else 'guest'} {f'{head} and ' if head else ''}{names[-1] if names else '(none)'}"
