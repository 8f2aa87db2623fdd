"""What is in force now: `status` with drift, and the entries of records in a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput, Refused, Unreadable
from hosttune.hypervisor.definition import AdoptedDefinition
from hosttune.journal import RETIRED, Record, Transaction
from hosttune.journal.force import MEASURED, StandingSetting, cut
from hosttune.journal.register import read_register
from hosttune.journal.state import unseen_journals
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.force import InForce
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.values import freeze
from hosttune.settings.hook import recording_of
from hosttune.settings.setting import (
    BOOT,
    FILE,
    Divisible,
    EditedInPlace,
    Explains,
    MayGiveLess,
    Setting,
    TakesDevice,
    WrittenTogether,
)
from hosttune.transaction.guards import made_since, renamed
from hosttune.transaction.rollback import is_original
from hosttune.transaction.site import Site, described
from hosttune.transaction.steps import (
    PENDING,
    entry,
    held_by,
    part_of,
    prepare,
    setting_of_record,
    steps_of,
    with_verdict,
)
from hosttune.transaction.writing import Made

SUCCESS, NO, PERSON = 0, 1, 4
UNREAD = "cannot be read: "  # the beginning of the reason of a drift whose value is unknown
_MEASURES = "hosttune validate measures in a partition of the NVSwitch fabric: apply is refused until it ends"
_OF_GONE = "change the devices of its guest and apply, or take it away: hosttune revert --guest NAME"


def undone_entries(record: Record, made: Made) -> Iterable[Entry]:
    """Return the result of reverting a record: one entry for each action."""
    before = record.new if record.outcome is None else record.after
    if made.outcome in ("already", "planned"):
        before = made.after  # nothing was written
    after = None if made.outcome == "planned" else made.after
    return record_entries(record, made.outcome, before, record.old, after, made.why)


def record_entries(
    record: Record, outcome: str, before: Any, want: Any, after: Any, why: str | None
) -> Iterable[Entry]:
    """Return one entry for each action of a record, with its own part of the values."""
    setting = setting_of_record(record)
    for action in names_of(record, setting):
        name = _part(setting, action)
        yield Entry(
            action=action,
            outcome=outcome,  # type: ignore[arg-type]  # the engine's outcomes are those of the document
            before=part_of(setting, before, name),
            want=part_of(setting, want, name),
            after=part_of(setting, after, name),
            why=why,
        )


def names_of(record: Record, setting: Setting) -> tuple[str, ...]:
    """Return the actions of a record; one of which only a part counts has the name of that part."""
    return record.actions if isinstance(setting, WrittenTogether) else (f"{record.kind}:{record.target}",)


def _part(setting: Setting, action: str) -> str:
    """Return the part of a setting that an action of its record is about; "" means all of it."""
    return action.partition(":")[2] if isinstance(setting, WrittenTogether) else ""


def _not_back(site: Site, record: Record) -> Record | None:
    """Return a record cut to the parts that a failed or interrupted way back has left; None if all are back."""
    if not record.undoing and record.undone != "failed":
        return record
    setting = setting_of_record(record)
    try:
        now = setting.parts(freeze(setting.read(site.system)))
    except Unreadable:
        return record
    old = setting.parts(freeze(record.old))
    names = [name for name, original in old.items() if not is_original(setting, now.get(name), original)]
    if len(names) < len(old) and names and isinstance(setting, Divisible):
        return cut(record, setting, names)
    return record if names or not old else None


def status(site: Site) -> tuple[Result, int]:
    """Return what is applied, what has drifted, what waits for a reboot, and what is unfinished. Changes nothing.

    A measurement that goes on is a note. The exit code is 1 if something has drifted or is unfinished, or if what is
    applied is unknown, else 0.
    """
    transactions: tuple[Transaction, ...] = ()
    note = None
    if site.store is None:
        note = "a capture and a host document keep no state: run hosttune status on the host itself"
    elif not site.system.captured and (unseen := unseen_journals(site.store.folder)) is not None:
        note = f"only root can read what is applied ({unseen}): run hosttune status as root"
    else:
        try:
            transactions = site.transactions()
            if lost := site.lost(transactions):
                note = f"{lost.what}: {lost.hint}"
        except Refused as error:
            note = str(error)
    if note is not None:
        return Result(host=site.hostname, verb="status", state_known=False, notes=(note,)), NO
    unfinished = next((transaction for transaction in transactions if transaction.is_open), None)
    measures = (unfinished and unfinished.header.verb) == MEASURED and site.store is not None and site.store.is_locked()
    if measures:  # its process lives: it rolls this back itself
        unfinished = None
    rows = site.standings(transactions)
    entries, drift = applied_state(site, rows.in_force)
    known = {setting.key for setting in rows.in_force}
    unchanged = [setting.record for setting in rows.dropped if setting.key not in known]
    kept = [row for setting in rows.left_alone for row in _kept(site, setting.record)]
    retired = site.retired(transactions)
    notes = (
        *_between_tenants(site),
        *([_MEASURES] if measures else ()),
        *(made_since(site) if unfinished is None else ()),
        *(f"{record.kind} {record.target}: {RETIRED[record.kind]}" for record in retired),
    )
    unstaged: tuple[Entry, ...] = ()
    try:
        unstaged = (*_never_staged(site, transactions), *_after_stop(site, transactions))
    except BadInput as error:  # the journal alone is enough for what is applied
        notes = (*notes, f"the plan of {error.where} cannot be read: what it stages for the next boot is unknown")
    result = Result(
        host=site.hostname,
        verb="status",
        reboot_required=reboot_required(site, transactions),
        entries=(
            *entries,
            *(row for record in unchanged for row in _dropped(site, record)),
            *kept,
            *unstaged,
        ),
        drift=tuple(drift),
        open_transaction=described(unfinished) if unfinished else None,
        notes=notes,
    )
    return result, NO if drift or unfinished or kept else SUCCESS


def _dropped(site: Site, record: Record) -> Iterable[Entry]:
    """Report a write that changed nothing, as long as the value is still the same.

    Such a value is not hosttune's and never counts as drift.
    """
    setting = setting_of_record(record)
    try:
        as_found = freeze(setting.read(site.system)) == freeze(record.after)
    except Unreadable:
        return
    if as_found:
        yield from _standing(msgspec.structs.replace(record, outcome="ignored"), None)


def _never_staged(site: Site, transactions: tuple[Transaction, ...]) -> Iterable[Entry]:
    """Report what is wanted for the next boot but could not be written: it has no record and is not staged.

    Raises BadInput for a plan that cannot be read.
    """
    recorded = {name for transaction in transactions for record in transaction.records for name in record.actions}
    plan = site.plan_in_force()
    steps = (step for step in steps_of(plan.actions if plan else ()) if step.setting.scope == BOOT)
    for prepared in prepare(site.system, steps):
        if prepared.verdict == PENDING and recorded.isdisjoint(action.id for action in prepared.step.actions):
            yield from entry(prepared)


def _after_stop(site: Site, transactions: tuple[Transaction, ...]) -> Iterable[Entry]:
    """Report what waits for the end of guests' runs. Raises BadInput for a plan that cannot be read."""
    for action, held in site.waiting(transactions):
        for step in prepare(site.system, steps_of([action])):
            why = held_by(action.holders) if held else "its guest has stopped: hosttune apply"
            yield from entry(with_verdict(step, PENDING, why))


def _kept(site: Site, record: Record) -> Iterable[Entry]:
    """Report what a revert left alone because something else had changed it, until it has its original value again."""
    setting = setting_of_record(record)
    try:
        now = freeze(setting.read(site.system))
    except Unreadable:
        now = freeze(record.after)
    if not is_original(setting, now, freeze(record.old)):
        made = Made(
            "conflict", now, "something else changed it, so revert left it alone: hosttune revert --force reverts it"
        )
        yield from undone_entries(record, made)


def _between_tenants(site: Site) -> Iterable[str]:
    """Yield the quarantined devices, and whether libvirt would start a guest that has one."""
    if site.store is None:
        return
    try:
        register = read_register(site.store.folder)
    except (BadInput, Refused) as error:
        yield f"the register of quarantined devices cannot be read: {error.what} ({error.where})"
        return
    held = register.quarantined
    for record in register.devices:
        if record.state == "clean":
            yield (
                f"{record.address} was handed over at {record.since} ({record.why}); statement: "
                "hosttune handover status"
            )
    for record in held:
        yield (
            f"{record.address} is quarantined since {record.since} ({record.why}): no guest gets it; "
            "hosttune handover status"
        )
    if held:
        recording = recording_of(site.system, STATE_INSIDE if site.system.captured else site.store.folder)
        if recording is None or not recording.active:
            why = recording.why if recording else "the hook of libvirt cannot be read"
            yield f"virsh can start a guest with a quarantined device: {why} (setting libvirt_hook)"


def applied_state(site: Site, rows: Iterable[StandingSetting]) -> tuple[list[Entry], list[Drift]]:
    """Return an entry for each setting in force, oldest first, and what has drifted."""
    drift: list[Drift] = []
    entries: list[Entry] = []
    for row in rows:
        if (record := _not_back(site, row.record)) is not None:
            state = _look(site, record)
            drift += _drifted(record, state)
            entries += _standing(record, state)
    return entries, drift


def drifted_records(site: Site, rows: Iterable[StandingSetting]) -> Iterable[Record]:
    """Yield the records in force whose setting has another value now, each cut to the parts that count.

    Not included: what cannot be read, and what waits for a boot or a guest.
    """
    for row in rows:
        state = _look(site, row.record)
        if isinstance(state, Drift) and not (state.why or "").startswith(UNREAD):
            yield row.record


def _look(site: Site, record: Record) -> Drift | str | None:
    """Return a record's drift; "pending" if it waits for a boot; None if it is as it was left."""
    setting = setting_of_record(record)
    if isinstance(setting, EditedInPlace) and record.outcome == "done":  # what others have in it is nobody's drift
        record = msgspec.structs.replace(record, after=record.new)
    expected = freeze(record.after)
    if setting.is_gone(site.system) and setting.waits_for(site.system) is None:  # a virtual function is made again
        return Drift(action=names_of(record, setting)[0], expected=expected, why="its device is gone", hint=_OF_GONE)
    try:
        now = freeze(setting.read(site.system))
        works = freeze(setting.effective(site.system))
    except Unreadable as error:
        return Drift(action=names_of(record, setting)[0], expected=expected, why=f"{UNREAD}{error.reason}")
    if not _as_left(setting, record, now):
        if record.kind == "guest" and (other := renamed(site, record.target)) is not None:
            why, hint = other.why[0], other.relaxation[0]
            return Drift(action=names_of(record, setting)[0], expected=expected, actual=now, why=why, hint=hint)
        waits = setting.waits_for(site.system)
        seen = setting.scope == FILE or (now and isinstance(setting, TakesDevice))
        if waits is not None and not seen:
            return None  # it cannot be seen now: its guest does not run, or has the device
        ours = partial(site.pages_of_runs, setting.target)
        if isinstance(setting, MayGiveLess) and setting.is_needed(site.system, now, expected, ours):
            return None
        texts: Sequence[str] = setting.differences(now, expected) if isinstance(setting, Explains) else ()
        if isinstance(setting, AdoptedDefinition):
            texts = _adopted_otherwise(site, setting.target, now, expected, texts)
            if not texts:
                return None
        why = "; ".join(texts)
        return Drift(action=names_of(record, setting)[0], expected=expected, actual=now, why=why or None, hint=waits)
    if setting.scope == BOOT and not setting.agrees(works, freeze(record.new)):
        return "pending"
    return None


def _adopted_otherwise(site: Site, name: str, now: Any, expected: Any, all_texts: Sequence[str]) -> Sequence[str]:
    """Return in what a definition differs that its adoption decides; all else is its owner's. Else all differences."""
    from hosttune.planning.adopting import change_definition  # few hosts have adopted guests

    adopted = next((guest.adopted for guest in (site.in_force() or InForce()).guests if guest.name == name), None)
    try:
        was, facts = read_domain(expected), read_domain(now)
        if adopted is None or (was.uuid, was.vcpus, was.memory_bytes) != (facts.uuid, facts.vcpus, facts.memory_bytes):
            return all_texts or (f"guest {name} is another one",)
        changes = change_definition(now, adopted)[1]
    except (BadInput, AttributeError):  # it is gone, or no definition
        return all_texts or (f"guest {name} is not defined",)
    return tuple(f"{change.element}: wanted {change.becomes}, found {change.was}" for change in changes)


def _as_left(setting: Setting, record: Record, now: Any) -> bool:
    """Return whether an applied setting is as it was left. Of several parts only those as wanted, or changed, count."""
    expected = freeze(record.after)
    if now == expected or (now is not None and expected is not None and setting.agrees(now, expected)):
        return True
    if record.outcome != "clamped" or now is None or expected is None:
        return False
    old, new, after, live = (setting.parts(freeze(value)) for value in (record.old, record.new, expected, now))
    ours = [name for name, part in after.items() if part == new.get(name) or part != old.get(name)]
    return len(ours) < len(after) and all(live.get(name) == after[name] for name in ours)


def _drifted(record: Record, drift: Drift | str | None) -> Iterable[Drift]:
    """Return the drift of each action of a record; for settings written together, only those that have drifted."""
    if not isinstance(drift, Drift):
        return
    setting = setting_of_record(record)
    for action in names_of(record, setting):
        name = _part(setting, action)
        expected, actual = part_of(setting, drift.expected, name), part_of(setting, drift.actual, name)
        if drift.why or expected != actual:
            yield msgspec.structs.replace(drift, action=action, expected=expected, actual=actual)


def _standing(record: Record, found: Drift | str | None) -> Iterable[Entry]:
    """Return the present state of a record: one entry for each action."""
    outcome = "pending" if found == "pending" else record.outcome or "done"
    after = found.actual if isinstance(found, Drift) else record.after
    return record_entries(record, outcome, record.old, record.new, after, record.why)


def reboot_required(site: Site, transactions: Iterable[Transaction]) -> bool:
    """Return whether the next boot brings something that these transactions staged, or ends what they took back."""
    known = tuple(transactions)
    staged = (
        setting.record for setting in site.standings(known).in_force if setting_of_record(setting.record).scope == BOOT
    )
    return any(_look(site, record) == "pending" for record in staged) or any(
        _still_works(site, record) for transaction in known for record in transaction.records
    )


def _still_works(site: Site, record: Record) -> bool:
    setting = setting_of_record(record)
    back = record.change == "back"
    done = record.outcome in ("done", "already", "reverted") if back else record.undone in ("reverted", "already")
    if setting.scope != BOOT or not done:
        return False
    try:
        works = setting.parts(freeze(setting.effective(site.system)))
    except Unreadable:
        return True  # unknown is not "no"
    old, new = setting.parts(freeze(record.old)), setting.parts(freeze(record.new))
    if back:
        old, new = new, old
    return any(works.get(name) == part and part != old.get(name) for name, part in new.items())
