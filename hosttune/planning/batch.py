"""All guests of an intent, one decision: which of them fit, on which nodes, with which devices.

Pure. Guests that have no place even alone get the reasons for that. The others are decided together (`search`): the
most guests, then the contract's objective; then each is built, one after the other, on what the others leave. One guest
is a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from hosttune.errors import BadInput
from hosttune.model.intent import GuestIntent, NicRequest
from hosttune.model.plan import Finding, Unplaced
from hosttune.model.values import CpuSet, parse_address, parse_cpus
from hosttune.planning.guest.builder import Builder
from hosttune.planning.guest.document import Placed
from hosttune.planning.guest.reserve import pins_of, take
from hosttune.planning.inventory.devices import named_devices, named_gpus
from hosttune.planning.inventory.sizing import PlanningContext
from hosttune.planning.mig.instances import is_vgpu_guest, mig_changes, mig_refusal
from hosttune.planning.request.candidates import gpu_candidates
from hosttune.planning.request.nearest import too_few
from hosttune.planning.request.resource_pool import GuestRequest, counted_nics, counted_nvme
from hosttune.planning.search.branch_and_bound import SearchProblem, all_fit, best_of, search_problem
from hosttune.planning.suggestions import has_room, relaxations, shortage

MOST_RIVALS = 32  # guests among which a smallest set that is in the way is looked for
MOST_EXPLAINED = 8  # guests without a place for which that set, and what would help, are worked out: each takes a while
Outcome = Placed | Unplaced


def want_of(context: PlanningContext, guest: GuestIntent, where: str) -> GuestRequest:
    """A guest with the devices that it names and the sets of GPUs that it may have. Raises BadInput."""
    nics = guest.nics if isinstance(guest.nics, tuple) else ()
    nvme = guest.nvme if isinstance(guest.nvme, tuple) else ()
    named = (
        *named_devices(context.catalogue, nics, "nic", f"{where}.nics"),
        *named_devices(context.catalogue, nvme, "nvme", f"{where}.nvme"),
    )
    return GuestRequest(guest, where, named, gpu_candidates(context, guest, named, f"{where}.gpus"))


def check_apart(context: PlanningContext, wants: Sequence[GuestRequest]) -> None:
    """Refuse (BadInput, with the path of the later key) a device or disk that two guests name."""
    names: dict[str, str] = {}
    disks: dict[str, str] = {}
    for want in wants:
        disk = want.guest.disk
        if disk is not None and disks.setdefault(disk, want.guest.name) != want.guest.name:
            raise BadInput(
                f"{disk} is the disk of guests {disks[disk]} and {want.guest.name}: two writers would destroy it",
                where=f"{want.where}.disk",
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
) -> tuple[tuple[Outcome, ...], tuple[Finding, ...]]:
    """(what became of each guest, findings about the whole)."""
    searched = search_problem(context, wants)
    alone = [_decided(searched, [i]) for i in range(len(wants))]
    refused = {i: outcome for i, found in enumerate(alone) if isinstance(outcome := found.outcomes[i], Unplaced)}
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
        if isinstance(outcome, Placed):  # what a search that was cut off has missed
            after = take(after, outcome.guest, exclusive=outcome.exclusive)
    everyone = [outcomes[i] for i in range(len(wants))]
    findings = (*together.findings, *_unexplained(len(left_out) - MOST_EXPLAINED))
    return tuple(_off_pins(outcome, everyone) for outcome in everyone), findings


def _off_pins(outcome: Outcome, everyone: Sequence[Outcome]) -> Outcome:
    """A guest whose emulator threads are off the vCPUs of all others, those that found a place later too."""
    if isinstance(outcome, Unplaced):
        return outcome
    guest = outcome.guest
    placed = (other.guest for other in everyone if isinstance(other, Placed) and other is not outcome)
    others = {cpu for other in placed for cpu in pins_of(other)}
    now = parse_cpus(guest.emulator_cpus)
    if now.isdisjoint(others):
        return outcome
    left = CpuSet(now - others) or pins_of(guest)
    moved = msgspec.structs.replace(guest, emulator_cpus=str(left), iothread_cpus=(str(left),))
    return replace(outcome, guest=moved)


@dataclass(frozen=True)
class _Decided:
    """What was decided for some guests at once. One that is not among the `outcomes` was left out for the others."""

    outcomes: dict[int, Outcome]
    proven: bool

    @property
    def placed(self) -> dict[int, Placed]:
        """The guests that have a place."""
        return {i: outcome for i, outcome in self.outcomes.items() if isinstance(outcome, Placed)}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Where the search was cut off, the plan holds but may not be the best."""
        if self.proven:
            return ()
        text = (
            "the search for the best plan was cut off: this one is valid, but more guests or nearer nodes may be"
            " possible"
        )
        return (Finding(level="warn", text=text, where="guests"),)


def _decided(searched: SearchProblem, members: Sequence[int]) -> _Decided:
    """The best plan for some guests. What amounts do not show is refused while a guest is built; the others go on."""
    problem = searched.problem
    refused: dict[int, Outcome] = {}
    while left := [i for i in members if i not in refused]:
        found = best_of(searched, left)
        built = {i: one for i, one in enumerate(Builder(problem, found).build()) if one is not None}
        failed: dict[int, Outcome] = {i: one for i, one in built.items() if isinstance(one, Unplaced)}
        if len(left) == 1 and not built:
            failed = {left[0]: _no_place(problem.context, problem.wants[left[0]])}
        if not failed:
            return _Decided(refused | built, found.proven)
        refused |= failed
    return _Decided(refused, True)


def _no_place(context: PlanningContext, want: GuestRequest) -> Unplaced:
    """Why a guest has no place even alone."""
    guest, candidates = want.guest, want.candidates
    if candidates.first() is None:
        return Unplaced(guest=guest.name, why=candidates.why)
    if is_vgpu_guest(guest):
        return Unplaced(guest=guest.name, why=mig_refusal(context, guest) or shortage(context, guest, candidates))
    nics = guest.nics.count if isinstance(guest.nics, NicRequest) else guest.nics
    missing: list[str] = []
    if isinstance(nics, int):
        missing += too_few("NICs", nics, len(counted_nics(context, want)), len(context.host.nics))
    if isinstance(guest.nvme, int):
        missing += too_few("NVMe drives", guest.nvme, len(counted_nvme(context, want)), len(context.host.nvme))
    room = () if missing and has_room(context, guest, candidates) else shortage(context, guest, candidates)
    return Unplaced(guest=guest.name, why=(*missing, *room))


def _alone(context: PlanningContext, guest: GuestIntent, where: str) -> Outcome:
    """What would become of a guest if it were the only one. Raises BadInput."""
    return _decided(search_problem(context, [want_of(context, guest, where)]), [0]).outcomes[0]


def _unexplained(count: int) -> tuple[Finding, ...]:
    """That what would help was looked for only the first guests without a place."""
    if count <= 0:
        return ()
    text = (
        f"{count} more {'guest has' if count == 1 else 'guests have'} no place; who is in the way and what would help"
        f" was worked out for the first {MOST_EXPLAINED} only: plan fewer at once to see it for others"
    )
    return (Finding(level="info", text=text, where="guests"),)


@dataclass(frozen=True)
class _Rest:
    """A host before and after the guests that were decided `together` have their part."""

    context: PlanningContext
    after: PlanningContext
    wants: Sequence[GuestRequest]
    searched: SearchProblem
    together: _Decided


def _left_out(rest: _Rest, which: int, refused: Outcome | None, number: int) -> Outcome:
    """Why a guest has no place; of the first ones also who is in the way, and what would give it one."""
    whole = number < MOST_EXPLAINED
    beside = _beside(rest, which, refused, suggest=whole)
    if isinstance(beside, Placed):
        return beside
    if isinstance(refused, Unplaced):
        return msgspec.structs.replace(beside, why=refused.why)
    if not whole:
        return msgspec.structs.replace(beside, why=("alone it fits; it has no place beside the others", *beside.why))
    rivals = [rest.wants[i].guest.name for i in _in_the_way(rest, which)]
    why = f"alone it fits; it has no place beside {_listed(rivals)}"
    return msgspec.structs.replace(beside, why=(why, *beside.why))


def _beside(rest: _Rest, which: int, refused: Outcome | None, *, suggest: bool) -> Outcome:
    """What becomes of a guest beside those that have a place; `suggest`: with changes that would give it one."""
    want = rest.wants[which]
    if is_vgpu_guest(want.guest):
        line = f"no GPU has room for {_instances(want.guest)} beside what they take"
        helpful = _other_mig(rest.context, rest.wants, which, tuple(rest.together.placed)) if suggest else ()
        return Unplaced(guest=want.guest.name, why=(line,), relaxation=helpful)
    outcome = _alone(rest.after, want.guest, want.where) if rest.together.placed or refused is None else refused
    if isinstance(outcome, Placed) or not suggest:
        return outcome

    def would_place(on: PlanningContext, changed: GuestIntent) -> bool:
        return isinstance(_alone(on, changed, want.where), Placed)

    candidates = want_of(rest.after, want.guest, want.where).candidates
    helpful = relaxations(rest.after, want.guest, candidates, would_place)
    return msgspec.structs.replace(outcome, relaxation=(*helpful, *outcome.relaxation))


def _in_the_way(rest: _Rest, which: int) -> list[int]:
    """Placed guests beside which it does not fit; as far as short searches can say, none of them can be left out."""
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
    """Other ways to ask for MIG with each of which a guest would be placed beside these: the first of each kind."""
    want = wants[which]
    helpful: dict[str, str] = {}
    for text, changed in mig_changes(context, want.guest):
        kind = text.partition(":")[0]
        if kind in helpful:
            continue
        try:
            other = want_of(context, changed, want.where)
        except BadInput:
            continue
        trial = search_problem(context, [*(wants[i] for i in placed), other])
        if all_fit(trial, range(len(trial.streams))):
            helpful[kind] = text
    return tuple(helpful.values())


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(names[:-1])
    return f"{'guests' if head else 'guest'} {f'{head} and ' if head else ''}{names[-1] if names else '(none)'}"
