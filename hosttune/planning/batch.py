"""Several guests, one decision: which of them fit together, on which nodes, with which devices.

Pure. Guests that cannot be placed even alone are told so for themselves. The others are decided together (`search`):
the most guests, then the contract's objective; then each is built, one after the other, on what the others leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from hosttune.errors import BadInput
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import Finding, Unplaced
from hosttune.model.values import CpuSet, parse_address, parse_cpus
from hosttune.planning.builder import Builder
from hosttune.planning.candidates import gpu_candidates
from hosttune.planning.devices import named_gpus
from hosttune.planning.guests import Placed, named_of, place_guest, refusal_of
from hosttune.planning.mig import is_vgpu_guest, mig_changes, mig_refusal
from hosttune.planning.relax import shortage
from hosttune.planning.search import Found, Stage, all_fit, best_of, set_stage
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Want
from hosttune.planning.taking import pins_of, take

MOST_RIVALS = 32  # guests among which a smallest set that is in the way is looked for
MOST_EXPLAINED = 8  # guests without a place for which that set, and what would help, are worked out: each takes a while
Outcome = Placed | Unplaced


def want_of(field: Field, guest: GuestIntent, where: str) -> Want:
    """A guest with the devices that it names and the sets of GPUs that it may have. Raises BadInput."""
    named = named_of(field, guest, where)
    return Want(guest, where, named, gpu_candidates(field, guest, named, f"{where}.gpus"))


def check_apart(field: Field, wants: Sequence[Want]) -> None:
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
        keys = {**dict.fromkeys(named_gpus(field.catalogue, gpus, f"{want.where}.gpus"), "gpus")}
        keys |= {address: "nics" if address in _nics(want) else "nvme" for address in want.named}
        for address, key in keys.items():
            if address in names:
                raise BadInput(
                    f"{address} is named by guests {names[address]} and {want.guest.name}",
                    where=f"{want.where}.{key}",
                    hint="a device goes to one guest: name another, or ask for a number of them",
                )
            names[address] = want.guest.name


def _nics(want: Want) -> frozenset[str]:
    nics = want.guest.nics if isinstance(want.guest.nics, tuple) else ()
    return frozenset(parse_address(text, where=f"{want.where}.nics") for text in nics)


def place_guests(field: Field, wants: Sequence[Want]) -> tuple[tuple[Outcome, ...], tuple[Finding, ...]]:
    """(what became of each guest, findings about the whole)."""
    if len(wants) == 1 and not is_vgpu_guest(wants[0].guest):
        return (place_guest(field, wants[0].guest, wants[0].where),), ()
    refused = {i: refusal for i, want in enumerate(wants) if (refusal := _refused_alone(field, want)) is not None}
    together = _decide_together(field, wants, refused)
    outcomes: dict[int, Outcome] = dict(together.placed)
    after = field
    for placed in together.placed.values():
        after = take(after, placed.guest, exclusive=placed.exclusive)
    left_out = [i for i in range(len(wants)) if i not in outcomes]
    for n, i in enumerate(left_out):
        whole = n < MOST_EXPLAINED
        outcomes[i] = outcome = _left_out(field, after, wants, i, refused.get(i), together, whole=whole)
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
class _Together:
    """What was decided for all guests at once; `stage` None: for none of them."""

    placed: dict[int, Placed]
    findings: tuple[Finding, ...] = ()
    stage: Stage | None = None
    members: tuple[int, ...] = ()  # the guests on the stage


def _refused_alone(field: Field, want: Want) -> Unplaced | None:
    """Why a guest could not be placed if it were the only one; None where it could."""
    if not is_vgpu_guest(want.guest):
        return refusal_of(field, want.guest, want.where)
    if all_fit(set_stage(field, [want]), [0]):
        return None
    why = mig_refusal(field, want.guest) or shortage(field, want.guest, want.candidates)
    return Unplaced(guest=want.guest.name, why=why)


def _decide_together(field: Field, wants: Sequence[Want], refused: dict[int, Unplaced]) -> _Together:
    """The best plan for all guests that could be placed alone. What no amount shows ends it for a guest (`refused`)."""
    while members := tuple(i for i in range(len(wants)) if i not in refused):
        stage = set_stage(field, [wants[i] for i in members])
        found = best_of(stage)
        built = dict(zip(members, Builder(stage, found).build(), strict=True))
        failed = {i: outcome for i, outcome in built.items() if isinstance(outcome, Unplaced)}
        if not failed:
            placed = {i: outcome for i, outcome in built.items() if isinstance(outcome, Placed)}
            return _Together(placed, _doubts(found), stage, members)
        refused |= failed
    return _Together({})


def _doubts(found: Found) -> tuple[Finding, ...]:
    """Where the search was cut off, the plan holds but may not be the best."""
    if found.proven:
        return ()
    text = (
        "the search for the best plan was cut off: this one is valid, but more guests or nearer nodes may be possible"
    )
    return (Finding(level="warn", text=text, where="guests"),)


def _unexplained(count: int) -> tuple[Finding, ...]:
    """That what would help was looked for only the first guests without a place."""
    if count <= 0:
        return ()
    text = (
        f"{count} more {'guest has' if count == 1 else 'guests have'} no place; who is in the way and what would help"
        f" was worked out for the first {MOST_EXPLAINED} only: plan fewer at once to see it for others"
    )
    return (Finding(level="info", text=text, where="guests"),)


def _left_out(
    field: Field,
    after: Field,
    wants: Sequence[Want],
    which: int,
    refused: Unplaced | None,
    together: _Together,
    *,
    whole: bool,
) -> Outcome:
    """Why a guest has no place; `whole`: also who is in the way, and what would give it one beside the others."""
    want = wants[which]
    if is_vgpu_guest(want.guest):
        line = f"no GPU has room for {_instances(want.guest)} beside what they take"
        helpful = _other_mig(field, wants, which, tuple(together.placed)) if whole else ()
        beside: Outcome = Unplaced(guest=want.guest.name, why=(line,), relaxation=helpful)
    else:
        beside = place_guest(after, want.guest, want.where, suggest=whole)
    if isinstance(beside, Placed):
        return beside
    if refused is not None:
        return msgspec.structs.replace(beside, why=refused.why)
    if not whole:
        return msgspec.structs.replace(beside, why=("alone it fits; it has no place beside the others", *beside.why))
    rivals = [wants[i].guest.name for i in _in_the_way(together, which)]
    why = f"alone it fits; it has no place beside {_listed(rivals)}"
    return msgspec.structs.replace(beside, why=(why, *beside.why))


def _in_the_way(together: _Together, which: int) -> list[int]:
    """Placed guests beside which it does not fit, none of whom can be left out of that."""
    rivals = list(together.placed)
    if together.stage is None or len(rivals) > MOST_RIVALS:
        return rivals
    number = {i: n for n, i in enumerate(together.members)}
    for other in together.placed:
        fewer = [i for i in rivals if i != other]
        if not all_fit(together.stage, [number[i] for i in (*fewer, which)]):
            rivals = fewer
    return rivals


def _instances(guest: GuestIntent) -> str:
    return f"{guest.mig.count} x {guest.mig.profile}" if guest.mig else "nothing"


def _other_mig(field: Field, wants: Sequence[Want], which: int, placed: Sequence[int]) -> tuple[str, ...]:
    """Other ways to ask for MIG with each of which a guest would be placed beside these: the first of each kind."""
    want = wants[which]
    helpful: dict[str, str] = {}
    for text, changed in mig_changes(field, want.guest):
        kind = text.partition(":")[0]
        if kind in helpful:
            continue
        try:
            other = want_of(field, changed, want.where)
        except BadInput:
            continue
        trial = set_stage(field, [*(wants[i] for i in placed), other])
        if all_fit(trial, range(len(trial.wants))):
            helpful[kind] = text
    return tuple(helpful.values())


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(names[:-1])
    return f"{'guests' if head else 'guest'} {f'{head} and ' if head else ''}{names[-1] if names else '(none)'}"
