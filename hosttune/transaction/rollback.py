"""Rollback: put back what the records of a journal say, newest first.

It uses the journal, never values in memory, so the same code serves a crash, a Ctrl-C, a failing write and `revert`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.errors import HosttuneError, InUse, Stuck
from hosttune.journal import Journal, JournalFailed, Record, Transaction
from hosttune.journal.force import StandingSetting
from hosttune.machine.system import System
from hosttune.model.values import freeze
from hosttune.settings.setting import GONE, RUNTIME, Setting
from hosttune.transaction.rehearsal import CountingSystem
from hosttune.transaction.steps import setting_of_record, shown_text, text_of
from hosttune.transaction.writing import Made, Say, reason_of, uninterrupted, value_or_none, write

_NOT_THERE = Made("already", None, GONE)
AT_ORIGINAL = "it was at its original: nothing was written"
COMES_BACK = "it is not there now: its driver is put back before it"


def roll_back_records(
    system: System, journal: Journal, records: Iterable[Record], say: Say, *, same_boot: bool, force: bool = False
) -> tuple[dict[int, Made], bool]:
    """Roll back those of these records that still need it, newest first. A failure does not stop the others.

    `same_boot`: the records were written during the present boot. Return the result of each step, and whether the
    journal could record all of it: a full disk does not stop a rollback.
    """
    undone: dict[int, Made] = {}
    whole = True
    for record in sorted((r for r in records if r.to_undo), key=lambda r: r.step, reverse=True):

        def begin(now: Any, target: Any, step: int = record.step) -> bool:
            return now == target or _noted(journal, "undo", step=step, old=now, new=target)

        made, kept = restored(system, record, begin, same_boot=same_boot, force=force)
        outcome = made.outcome if made.outcome != "stuck" else "failed"
        fields = {"step": record.step, "outcome": outcome, "value": made.after, "why": made.why}
        whole = _noted(journal, "undone", **fields) and kept and whole
        undone[record.step] = made
        say(f"{record.kind} {record.target}: {made.outcome}{f' ({made.why})' if made.why else ''}")
    return undone, whole


def rehearse(
    system: System, rows: Iterable[StandingSetting], *, boot_id: str | None, force: bool
) -> Iterator[tuple[StandingSetting, Made]]:
    """Yield what a revert would do with each setting, without a write; `after` of what is planned is its value now."""
    for row in rows:
        record, here = as_set_again(row, boot_id)
        setting = setting_of_record(record)
        if setting.is_gone(system):
            yield row, _NOT_THERE
            continue
        try:
            live = freeze(setting.read(system))
        except (HosttuneError, OSError) as error:
            yield row, Made("failed", None, reason_of(error))
            continue
        value, foreign = _value_to_restore(setting, record, live, same_boot=here, force=force)
        if foreign and live is None and not setting.none_is_value:
            yield row, Made("planned", record.after, COMES_BACK)
        elif foreign:
            made = _foreign(setting, live, foreign)
            yield row, made if value == live else replace(made, outcome="planned")
        else:
            why = _gone(setting, record, live, here) if value == live else None
            yield row, Made("already" if why else "planned", live, why)


def as_set_again(row: StandingSetting, boot_id: str | None) -> tuple[Record, bool]:
    """Return a record, with the value that was set again during this boot, and whether it is of this boot."""
    same_boot = row.boot_id is None or row.boot_id == boot_id
    again = same_boot and row.again is not None
    record = msgspec.structs.replace(row.record, after=row.again, outcome="done") if again else row.record
    return record, same_boot


def put_back(
    system: System, journal: Journal, step: int, record: Record, *, same_boot: bool, force: bool, strict: bool = False
) -> tuple[Made, bool]:
    """Put the original value of a setting back, as a step of a transaction. Return also whether that was journalled.

    A full disk does not stop it, for what is not in the journal counts as in force, and is found to be back later; but
    with `strict` nothing is written that is not in the journal first: raises JournalFailed.
    """

    def note(event: str, **more: Any) -> bool:
        if strict:
            journal.write(event, step=step, **more)
            return True
        return _noted(journal, event, step=step, **more)

    fields: dict[str, Any] = {"kind": record.kind, "target": record.target, "actions": record.actions}
    fields |= {"scope": record.scope, "needed": record.needed, "change": "back"}
    begun: list[bool] = []

    def begin(now: Any, target: Any) -> bool:
        begun.append(note("intent", old=now, new=target, **fields))
        return begun[-1]

    made, kept = restored(system, record, begin, same_boot=same_boot, force=force)
    kept = kept if begun else begin(record.after, record.old)
    outcome = made.outcome if made.outcome != "stuck" else "failed"
    return made, kept and note("done", outcome=outcome, value=made.after, why=made.why)


def restored(
    system: System, record: Record, begin: Callable[[Any, Any], bool], *, same_boot: bool, force: bool
) -> tuple[Made, bool]:
    """Restore a record's old value. `begin` gets the present and the next value first, and returns whether it noted."""
    setting = setting_of_record(record)
    if setting.is_gone(system):
        return _NOT_THERE, True
    counted = CountingSystem(system)
    kept = True
    try:
        now = freeze(setting.read(system))
        target, foreign = _value_to_restore(setting, record, now, same_boot=same_boot, force=force)
        kept = begin(now, target)
        if target == now:
            made = (
                _foreign(setting, now, foreign)
                if foreign
                else Made("already", now, _gone(setting, record, now, same_boot))
            )
        else:
            note = write(counted, setting, target)
            made = _made_of_undo(
                setting, target, freeze(setting.read(system)), foreign, note, wrote=counted.changes > 0
            )
        if made.outcome in ("reverted", "already"):
            for path in setting.places(system):
                system.tidy(path)
    except InUse as error:
        made = Made("conflict", value_or_none(system, setting), f"left alone: {error.reason}")
    except Stuck as error:
        made = Made("stuck", value_or_none(system, setting), f"{error.what}: {error.where}")
    except JournalFailed:
        raise
    except (HosttuneError, OSError) as error:
        made = Made("failed", value_or_none(system, setting), reason_of(error))
    return made, kept


def _value_to_restore(
    setting: Setting, record: Record, now: Any, *, same_boot: bool, force: bool
) -> tuple[Any, Mapping[str, Any]]:
    """Return the value to write, and the parts that another program or person has changed, which are left alone.

    A part is hosttune's if it has the value that hosttune wrote or read back. After an interrupted write that may stop
    midway, any value counts. A part that hosttune did not change is not its own. A runtime setting that has neither
    value after a reboot was reset by that reboot: this is not a conflict.
    """
    old, new = setting.parts(freeze(record.old)), setting.parts(freeze(record.new))
    after = setting.parts(freeze(record.after)) if record.outcome in ("done", "clamped") else {}
    live = setting.parts(now)
    cut_off = record.undoing or record.undone == "failed" or record.outcome in (None, "stuck", "failed")
    anything = setting.may_stop_midway and cut_off
    restored: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for name, original in old.items():
        if name not in live or is_original(setting, live[name], original):
            continue
        if not anything and after.get(name, new.get(name)) == original:
            continue  # hosttune did not change this part, so a later change to it is not a conflict
        ours = same(setting, live[name], new.get(name)) or (name in after and same(setting, live[name], after[name]))
        ours = ours or anything
        if ours or force:
            restored[name] = original
        elif same_boot or setting.scope != RUNTIME:
            foreign[name] = live[name]
    return (setting.joined({**live, **restored}) if restored else now), foreign


def is_original(setting: Setting, live: Any, old: Any) -> bool:
    """Return whether a value of a setting, or of a part of it, needs not be put back."""
    if live is None or old is None:
        return live is old
    return bool(live == old) or setting.is_original(live, old)


def same(setting: Setting, one: Any, other: Any) -> bool:
    """Return whether two values of a setting, or of a part of it, mean the same."""
    if one is None or other is None:
        return one is other
    return bool(one == other) or setting.agrees(one, other)


def _made_of_undo(
    setting: Setting, target: Any, now: Any, foreign: Mapping[str, Any], note: str | None, *, wrote: bool
) -> Made:
    if target != now and not is_original(setting, now, target):
        text = shown_text(setting, now)
        if wrote:
            return Made("failed", now, f"reads {text} after {shown_text(setting, target)} was written")
        return Made("failed", now, f"nothing was written{f': {note}' if note else ''}: it reads {text}")
    return _foreign(setting, now, foreign) if foreign else Made("reverted", now, note)


def _foreign(setting: Setting, now: Any, foreign: Mapping[str, Any]) -> Made:
    parts = {name: setting.shown(part) for name, part in foreign.items()}
    which = text_of(parts[""] if set(parts) == {""} else parts)
    return Made("conflict", now, f"it is {which} now, which hosttune did not set: left alone (--force reverts it)")


def _gone(setting: Setting, record: Record, now: Any, same_boot: bool) -> str:
    """Return why a step that was written, or was about to be written, needs no rollback."""
    text = shown_text(setting, now)
    if not same_boot and record.scope == RUNTIME:
        left = "" if now == freeze(record.old) else f", it is {text} since"
        return f"the reboot had undone it{left}: nothing was written"
    if now != freeze(record.old) and is_original(setting, now, freeze(record.old)):
        return f"it is {text} now, and may stay: nothing was written"
    if now != freeze(record.old):
        return f"what it is now, {text}, is not hosttune's: nothing was written"
    return AT_ORIGINAL


def _noted(journal: Journal, event: str, **fields: Any) -> bool:
    try:
        journal.write(event, **fields)
    except JournalFailed:
        return False
    return True


def close(journal: Journal, undone: Mapping[int, Made]) -> bool:
    """Close the journal unless a rollback failed. Return False if the disk was too full to close it."""
    # it stays open if something could not be rolled back
    outcomes = {made.outcome for made in undone.values()}
    state = None if outcomes & {"failed", "stuck"} else "kept" if "conflict" in outcomes else "reverted"
    return state is None or _noted(journal, "closed", state=state)


def settle(
    system: System,
    journal: Journal,
    transaction: Transaction,
    say: Say,
    *,
    same_boot: bool,
    force: bool = False,
) -> tuple[dict[int, Made], bool]:
    """Roll back a whole transaction and close its journal if possible; see `roll_back_records`."""
    with uninterrupted():
        undone, whole = roll_back_records(system, journal, transaction.records, say, same_boot=same_boot, force=force)
        return undone, whole and close(journal, undone)
