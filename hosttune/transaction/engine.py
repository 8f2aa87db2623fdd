"""The transaction engine: journal the intent, read the old value again, write, read back, journal the outcome.

It also rolls back. A rollback always uses the journal, never values in memory. So the same code handles a crash, a
Ctrl-C and a failing write.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hosttune.child import in_child
from hosttune.errors import CommandFailed, HosttuneError, InUse, PartlyRestored, Stuck, Unreadable
from hosttune.journal import Journal, JournalFailed, Record, Transaction, read_transaction
from hosttune.model.listing import some
from hosttune.model.values import FrozenMap, freeze
from hosttune.settings.explains import Explains
from hosttune.settings.setting import RUNTIME, Setting
from hosttune.settings.traits import Gradual, MayGiveLess
from hosttune.system import System
from hosttune.transaction.rehearsal import Counted
from hosttune.transaction.steps import (
    TODO,
    VERDICT_OUTCOMES,
    Prepared,
    same_reading,
    setting_of_record,
    shown_text,
    text_of,
)

_FATAL = ("failed", "conflict")
_FATAL_WHEN_NEEDED = ("clamped", "ignored", "stuck")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Say = Callable[[str], None]
LookAgain = Callable[[Prepared], Prepared]


@dataclass(frozen=True)
class Made:
    """The result of one step: outcome, value read back, and reason. `untouched`: it failed before any write."""

    outcome: str
    after: Any = None
    why: str | None = None
    untouched: bool = False


@dataclass(frozen=True)
class StepResults:
    """The results of a transaction's steps, by step number.

    `failed` is the step that ended the transaction. `undone` has the results of the rollback. `interrupted`: a signal
    stopped it. `unjournalled`: the journal could not record the whole rollback.
    """

    made: Mapping[int, Made]
    failed: int | None = None
    interrupted: bool = False
    undone: Mapping[int, Made] | None = None
    unjournalled: bool = False

    @property
    def succeeded(self) -> bool:
        """Return whether every step was carried out."""
        return self.failed is None and not self.interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (a lost connection) into KeyboardInterrupt, as Ctrl-C does, to cause a rollback."""
    asked: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        if len(asked) == 1:  # SIGTERM and SIGHUP come together: the second must not stop the rollback
            raise KeyboardInterrupt

    heard = (number for number in _INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN)  # nohup ignores SIGHUP
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block signals during a rollback, so that it is complete. They are delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- apply ---------------------------------------------------------------------------------------------------


def carry_out(
    system: System, journal: Journal, todo: Sequence[Prepared], say: Say, look_again: LookAgain = lambda one: one
) -> StepResults:
    """Carry out steps in order, numbered from 1. If one fails or a signal comes, roll all of them back.

    `look_again` checks a step when its turn comes. A step that it decides not to write is reported but not journalled.
    """
    made: dict[int, Made] = {}
    failed: int | None = None
    interrupted = False
    number = 0
    try:
        for number, waiting in enumerate(todo, 1):
            one = look_again(waiting)
            if one.verdict != TODO:
                made[number] = Made(VERDICT_OUTCOMES[one.verdict], one.effective, one.why)
                continue
            _step(system, journal, number, one, made, say)
            say(f"[{number}/{len(todo)}] {one.step.name}: {outcome_line(one, made[number])}")
            if _ends(one, made[number]):
                failed = number
                break
        else:
            journal.write("closed", state="applied")
            return StepResults(made)
    except JournalFailed as error:
        failed = number
        made[number] = Made("failed", made[number].after if number in made else None, error.what)
    except KeyboardInterrupt:
        interrupted = True
    with uninterrupted():
        system.forget()
        say("rolling back what was done, newest first")
        transaction = read_transaction(journal.path)
        undone, whole = roll_back_records(
            system, journal, transaction.records if transaction else (), say, same_boot=True
        )
        unjournalled = not (whole and _close(journal, undone))
    return StepResults(made, failed, interrupted, undone, unjournalled)


def _ends(one: Prepared, made: Made) -> bool:
    """Return whether a step's outcome ends the transaction."""
    if made.outcome == "clamped" and one.step.at_boot:
        return False
    return made.outcome in _FATAL or (one.step.needed and made.outcome in _FATAL_WHEN_NEEDED)


def outcome_line(one: Prepared, made: Made) -> str:
    """Return one line that reports a step."""
    setting = one.step.setting
    text = f"{shown_text(setting, one.live)} -> {shown_text(setting, one.step.want)}: {made.outcome}"
    if made.outcome != "done":
        text += f", now {shown_text(setting, made.after)}"
    return f"{text} ({made.why})" if made.why else text


def _step(system: System, journal: Journal, number: int, one: Prepared, made: dict[int, Made], say: Say) -> None:
    """Carry out one step: journal the intent, re-read, write, read back, journal the outcome. Raises JournalFailed."""
    step, setting = one.step, one.step.setting
    journal.write(
        "intent",
        step=number,
        kind=setting.kind,
        target=setting.target,
        actions=tuple(action.id for action in step.actions),
        scope=setting.scope,
        needed=step.needed,
        old=one.live,
        new=step.want,
    )
    found = made[number] = _changed(system, setting, one.live, step.want, say)
    journal.write(
        "done", step=number, outcome=found.outcome, value=found.after, why=found.why, untouched=found.untouched
    )


def _changed(system: System, setting: Setting, old: Any, want: Any, say: Say) -> Made:
    """Re-read, write, read back. `ignored` and `clamped` are outcomes of a write, so never without a write."""
    counted = Counted(system)
    try:
        now = freeze(setting.read(system))
        same_as_old = same_reading(setting, now, old)
        # An earlier step can have done it: a reset for MIG sets the default power limit.
        if not same_as_old and setting.agrees(now, want):
            return Made("done", now, "had that value when its turn came")
        moves_by_itself = isinstance(setting, Gradual) and now is not None and setting.same_thing(now, old)
        if not same_as_old and not moves_by_itself:
            change = f"changed from {shown_text(setting, old)} to {shown_text(setting, now)} since it was read"
            return Made("conflict", now, change)
        note = _write(counted, setting, want, say)
        after = freeze(setting.read(system))
    except Stuck as error:
        return Made("stuck", _value_or_none(system, setting), f"{error.what}: {error.where}")
    except (HosttuneError, OSError) as error:
        return Made("failed", _value_or_none(system, setting), _reason(error), untouched=not counted.changes)
    if setting.agrees(after, want):
        return Made("done", after, note)
    if after == old and not counted.changes:
        return Made("failed", after, f"nothing was written{f': {note}' if note else ''}", untouched=True)
    if isinstance(setting, Explains) and note is None:
        note = some(setting.differences(after, want), 4, "; ")
    unmoved = same_reading(setting, after, old) and not isinstance(setting, MayGiveLess)
    return Made("ignored" if unmoved else "clamped", after, note)


def _write(system: System, setting: Setting, value: Any, say: Say) -> str | None:
    if isinstance(setting, Gradual):
        return setting.write_telling(system, value, say)
    if setting.limit_seconds is None:
        return setting.write(system, value)
    note = in_child(lambda: setting.write(system, value), setting.limit_seconds, f"{setting.kind} {setting.target}")
    system.forget()
    return note


def _value_or_none(system: System, setting: Setting) -> Any:
    """Return the value after a failure; None also if it cannot be read. The outcome tells these apart."""
    system.forget()
    try:
        return freeze(setting.read(system))
    except Unreadable:
        return None


def _reason(error: HosttuneError | OSError) -> str:
    if isinstance(error, CommandFailed):
        said = error.output.strip().splitlines()
        return f"{' '.join(error.argv)}: {error.reason}{f': {said[-1]}' if said else ''}"
    return error.what if isinstance(error, HosttuneError) else str(error)


# --- roll back -----------------------------------------------------------------------------------------------


def roll_back_records(
    system: System,
    journal: Journal,
    records: Iterable[Record],
    say: Say,
    *,
    same_boot: bool,
    force: bool = False,
    again: Mapping[tuple[str, str], Any] = FrozenMap({}),
) -> tuple[dict[int, Made], bool]:
    """Roll back those of these records that still need it, newest first. A failure does not stop the others.

    `same_boot`: the records were written during the present boot. `again`: by kind and target, the values of records
    that were set again during the present boot. Return the result of each step, and whether the journal could record
    all of it: a full disk does not stop a rollback.
    """
    undone: dict[int, Made] = {}
    whole = True
    for record in _newest_first(r for r in records if r.to_undo):
        key = record.kind, record.target
        left = msgspec.structs.replace(record, after=again[key], outcome="done") if key in again else record
        made, kept = _undo(system, journal, left, say, same_boot=same_boot or key in again, force=force)
        whole = whole and kept
        undone[record.step] = made
        say(f"{record.kind} {record.target}: {made.outcome}{f' ({made.why})' if made.why else ''}")
    return undone, whole


def _newest_first(records: Iterable[Record]) -> Sequence[Record]:
    """Return the records in the order of a rollback. What is the last of its stage is the last there, too."""
    found = sorted(records, key=lambda record: record.step, reverse=True)
    for late in [one for one in found if setting_of_record(one).last_of_stage]:
        stage = setting_of_record(late).stage
        found.remove(late)
        before = [place for place, one in enumerate(found) if setting_of_record(one).stage >= stage]
        found.insert(max(before, default=-1) + 1, late)
    return found


def _undo(
    system: System, journal: Journal, record: Record, say: Say, *, same_boot: bool, force: bool
) -> tuple[Made, bool]:
    setting = setting_of_record(record)
    counted = Counted(system)
    kept = True
    try:
        found = freeze(setting.read(system))
        target, foreign = _value_to_restore(setting, record, found, same_boot=same_boot, force=force)
        if target == found:
            made = (
                _foreign(setting, found, foreign)
                if foreign
                else Made("already", found, _gone(setting, record, found, same_boot))
            )
        else:
            kept = _noted(journal, "undo", step=record.step, old=found, new=target)
            note = _write(counted, setting, target, say)
            made = _judged(setting, target, freeze(setting.read(system)), foreign, note, wrote=counted.changes > 0)
        if made.outcome in ("reverted", "already"):
            for path in setting.places(system):
                system.tidy(path)
    except InUse as error:
        made = Made("conflict", _value_or_none(system, setting), f"left alone: {error.reason}")
    except PartlyRestored as error:
        made = Made("conflict", _value_or_none(system, setting), f"{error.reason}: hosttune revert --force tries again")
    except Stuck as error:
        made = Made("stuck", _value_or_none(system, setting), f"{error.what}: {error.where}")
    except (HosttuneError, OSError) as error:
        made = Made("failed", _value_or_none(system, setting), _reason(error))
    outcome = made.outcome if made.outcome != "stuck" else "failed"
    return made, _noted(journal, "undone", step=record.step, outcome=outcome, value=made.after, why=made.why) and kept


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
    between = isinstance(setting, Gradual) and _is_between(setting, record, now)
    anything = setting.may_stop_midway and (cut_off or between)
    restored: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for name, original in old.items():
        if name not in live or same(setting, live[name], original):
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


def _is_between(setting: Gradual, record: Record, now: Any) -> bool:
    found = (now, freeze(record.old), freeze(record.after))
    return None not in found and setting.lies_between(*found)


def same(setting: Setting, one: Any, other: Any) -> bool:
    """Return whether two values of a setting, or of a part of it, mean the same."""
    if one is None or other is None:
        return one is other
    return bool(one == other) or setting.agrees(one, other)


def _judged(
    setting: Setting, target: Any, now: Any, foreign: Mapping[str, Any], note: str | None, *, wrote: bool
) -> Made:
    if target != now and not same(setting, now, target):
        text = shown_text(setting, now)
        if wrote and isinstance(setting, Gradual):
            return Made("conflict", now, f"it is {text} since it was put back: hosttune revert --force tries again")
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
    if now != freeze(record.old) and same(setting, now, freeze(record.old)):
        return f"{text} serves as well as its original: nothing was written"
    if now != freeze(record.old):
        return f"what it is now, {text}, is not hosttune's: nothing was written"
    return "it was at its original: nothing was written"


def _noted(journal: Journal, event: str, **fields: Any) -> bool:
    try:
        journal.write(event, **fields)
    except JournalFailed:
        return False
    return True


def _close(journal: Journal, undone: Mapping[int, Made]) -> bool:
    """Close the journal unless a rollback failed. Return False if the disk was too full to close it."""
    state = closing_state(undone)
    return state is None or _noted(journal, "closed", state=state)


def closing_state(undone: Mapping[int, Made]) -> str | None:
    """Return the final state of a transaction; None, so it stays open, if something could not be rolled back."""
    outcomes = {made.outcome for made in undone.values()}
    if outcomes & {"failed", "stuck"}:
        return None
    return "kept" if "conflict" in outcomes else "reverted"


def settle(
    system: System,
    journal: Journal,
    transaction: Transaction,
    say: Say,
    *,
    same_boot: bool,
    force: bool = False,
    again: Mapping[tuple[str, str], Any] = FrozenMap({}),
) -> tuple[dict[int, Made], bool]:
    """Roll back a whole transaction and close its journal if possible; see `roll_back_records`."""
    with uninterrupted():
        undone, whole = roll_back_records(
            system, journal, transaction.records, say, same_boot=same_boot, force=force, again=again
        )
        return undone, whole and _close(journal, undone)
