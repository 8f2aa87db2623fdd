"""The transaction itself: intent on disk, old value read again, write, read back, outcome on disk; and the way back.

Everything that is taken back is taken back from the journal, never from memory: what a crash, a Ctrl-C or a failing
write leaves is settled by the same code.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hosttune.child import in_child
from hosttune.errors import CommandFailed, HosttuneError, InUse, Stuck, Unreadable
from hosttune.journal import Journal, JournalFailed, Record, Transaction, read_transaction
from hosttune.model.values import FrozenMap, freeze
from hosttune.settings.setting import RUNTIME, Setting
from hosttune.settings.traits import MayGiveLess
from hosttune.system import System
from hosttune.transaction.rehearsal import Counted
from hosttune.transaction.steps import TODO, VERDICT_OUTCOMES, Prepared, setting_of_record, text_of

_FATAL = ("failed", "conflict")
_FATAL_WHEN_NEEDED = ("clamped", "ignored", "stuck")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Say = Callable[[str], None]
LookAgain = Callable[[Prepared], Prepared]


@dataclass(frozen=True)
class Made:
    """What became of one step: outcome, the value read back, and why. `untouched`: it failed before any write."""

    outcome: str
    after: Any = None
    why: str | None = None
    untouched: bool = False


@dataclass(frozen=True)
class Carried:
    """A transaction's steps by number; `failed` names the step that ended it, `undone` what became of taking it back.

    `interrupted`: somebody asked it to stop. `unjournalled`: the way back could not be written down to its end.
    """

    made: Mapping[int, Made]
    failed: int | None = None
    interrupted: bool = False
    undone: Mapping[int, Made] | None = None
    unjournalled: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether all was carried out."""
        return self.failed is None and not self.interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP (a lost connection) mean what Ctrl-C means: KeyboardInterrupt, and so the way back."""
    asked: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        if len(asked) == 1:  # SIGTERM and SIGHUP come together: the second must not cut the way back short
            raise KeyboardInterrupt

    heard = (number for number in _INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN)  # nohup: not these
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """No signal ends the way back half-way; it is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- forth ---------------------------------------------------------------------------------------------------


def carry_out(
    system: System, journal: Journal, todo: Sequence[Prepared], say: Say, look_again: LookAgain = lambda one: one
) -> Carried:
    """Carry out steps in order, numbered from 1. When one fails, or on an interrupt, all are taken back.

    `look_again` judges a step when its turn comes: what it leaves without a write is told, not journalled.
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
            _step(system, journal, number, one, made)
            say(f"[{number}/{len(todo)}] {one.step.name}: {outcome_line(one, made[number])}")
            if _ends(one, made[number]):
                failed = number
                break
        else:
            journal.write("closed", state="applied")
            return Carried(made)
    except JournalFailed as error:
        failed = number
        made[number] = Made("failed", made[number].after if number in made else None, error.what)
    except KeyboardInterrupt:
        interrupted = True
    with uninterrupted():
        system.forget()
        say("rolling back what was done, newest first")
        transaction = read_transaction(journal.path)
        undone, whole = take_back(system, journal, transaction.records if transaction else (), say, same_boot=True)
        unjournalled = not (whole and _close(journal, undone))
    return Carried(made, failed, interrupted, undone, unjournalled)


def _ends(one: Prepared, made: Made) -> bool:
    """Whether a step's outcome ends the transaction."""
    if made.outcome == "clamped" and one.step.at_boot:
        return False
    return made.outcome in _FATAL or (one.step.needed and made.outcome in _FATAL_WHEN_NEEDED)


def outcome_line(one: Prepared, made: Made) -> str:
    """One line about a step that was taken."""
    text = f"{text_of(one.live)} -> {text_of(one.step.want)}: {made.outcome}"
    if made.outcome != "done":
        text += f", now {text_of(made.after)}"
    return f"{text} ({made.why})" if made.why else text


def _step(system: System, journal: Journal, number: int, one: Prepared, made: dict[int, Made]) -> None:
    """One setting: intent, re-read, write, read back, done. Raises JournalFailed."""
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
    found = made[number] = _changed(system, setting, one.live, step.want)
    journal.write(
        "done", step=number, outcome=found.outcome, value=found.after, why=found.why, untouched=found.untouched
    )


def _changed(system: System, setting: Setting, old: Any, want: Any) -> Made:
    """Re-read, write, read back. What was not written is neither `ignored` nor `clamped`: they tell of a write."""
    counted = Counted(system)
    try:
        now = freeze(setting.read(system))
        if now != old and setting.agrees(now, want):  # by an earlier step: a reset for MIG brings the default limit
            return Made("done", now, "had that value when its turn came")
        if now != old:
            return Made("conflict", now, f"changed from {text_of(old)} to {text_of(now)} since it was read")
        note = _write(counted, setting, want)
        after = freeze(setting.read(system))
    except Stuck as error:
        return Made("stuck", _value_or_none(system, setting), f"{error.what}: {error.where}")
    except (HosttuneError, OSError) as error:
        return Made("failed", _value_or_none(system, setting), _reason(error), untouched=not counted.changes)
    if setting.agrees(after, want):
        return Made("done", after, note)
    if after == old and not counted.changes:
        return Made("failed", after, f"nothing was written{f': {note}' if note else ''}", untouched=True)
    return Made("ignored" if after == old and not isinstance(setting, MayGiveLess) else "clamped", after, note)


def _write(system: System, setting: Setting, value: Any) -> str | None:
    if setting.limit_seconds is None:
        return setting.write(system, value)
    note = in_child(lambda: setting.write(system, value), setting.limit_seconds, f"{setting.kind} {setting.target}")
    system.forget()
    return note


def _value_or_none(system: System, setting: Setting) -> Any:
    """What it is after a failure; None also where it cannot be read any more, as the outcome says."""
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


# --- back ----------------------------------------------------------------------------------------------------


def take_back(
    system: System,
    journal: Journal,
    records: Iterable[Record],
    say: Say,
    *,
    same_boot: bool,
    force: bool = False,
    again: Mapping[tuple[str, str], Any] = FrozenMap({}),
) -> tuple[dict[int, Made], bool]:
    """Take back what is still to be taken back of these records, newest first, going on past what fails.

    `same_boot`: they were written under the boot that runs now; `again`: what was left of those, by kind and target,
    that were set again under it. Gives what became of each step, and whether the journal could hold it all: a full
    disk stops no way back.
    """
    undone: dict[int, Made] = {}
    whole = True
    for record in sorted((r for r in records if r.to_undo), key=lambda r: r.step, reverse=True):
        key = record.kind, record.target
        left = msgspec.structs.replace(record, after=again[key], outcome="done") if key in again else record
        made, kept = _undo(system, journal, left, same_boot=same_boot or key in again, force=force)
        whole = whole and kept
        undone[record.step] = made
        say(f"{record.kind} {record.target}: {made.outcome}{f' ({made.why})' if made.why else ''}")
    return undone, whole


def _undo(system: System, journal: Journal, record: Record, *, same_boot: bool, force: bool) -> tuple[Made, bool]:
    setting = setting_of_record(record)
    counted = Counted(system)
    kept = True
    try:
        found = freeze(setting.read(system))
        target, foreign = _way_back(setting, record, found, same_boot=same_boot, force=force)
        if target == found:
            made = (
                _foreign(found, foreign)
                if foreign
                else Made("already", found, _gone(setting, record, found, same_boot))
            )
        else:
            kept = _noted(journal, "undo", step=record.step, old=found, new=target)
            note = _write(counted, setting, target)
            made = _judged(setting, target, freeze(setting.read(system)), foreign, note, wrote=counted.changes > 0)
        if made.outcome in ("reverted", "already"):
            for path in setting.places(system):
                system.tidy(path)
    except InUse as error:
        made = Made("conflict", _value_or_none(system, setting), f"left alone: {error.reason}")
    except Stuck as error:
        made = Made("stuck", _value_or_none(system, setting), f"{error.what}: {error.where}")
    except (HosttuneError, OSError) as error:
        made = Made("failed", _value_or_none(system, setting), _reason(error))
    outcome = made.outcome if made.outcome != "stuck" else "failed"
    return made, _noted(journal, "undone", step=record.step, outcome=outcome, value=made.after, why=made.why) and kept


def _way_back(
    setting: Setting, record: Record, now: Any, *, same_boot: bool, force: bool
) -> tuple[Any, Mapping[str, Any]]:
    """(what to write, parts that somebody else has changed since and that are left alone).

    Ours is what we wrote, what we read back then, and, of a write that was cut off and can stop between, anything; a
    part that we did not change is not. What runs only until a reboot and is neither went with that reboot: no conflict.
    """
    old, new = setting.parts(freeze(record.old)), setting.parts(freeze(record.new))
    after = setting.parts(freeze(record.after)) if record.outcome in ("done", "clamped") else {}
    live = setting.parts(now)
    cut_off = record.undoing or record.undone == "failed" or record.outcome in (None, "stuck", "failed")
    anything = setting.may_stop_midway and cut_off
    restored: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for name, original in old.items():
        if name not in live or same(setting, live[name], original):
            continue
        if not anything and after.get(name, new.get(name)) == original:
            continue  # it was so before us: whoever has changed it since has not changed what we did
        ours = same(setting, live[name], new.get(name)) or (name in after and same(setting, live[name], after[name]))
        ours = ours or anything
        if ours or force:
            restored[name] = original
        elif same_boot or setting.scope != RUNTIME:
            foreign[name] = live[name]
    return (setting.joined({**live, **restored}) if restored else now), foreign


def same(setting: Setting, one: Any, other: Any) -> bool:
    """Whether two values of a setting, or of a part of it, mean the same."""
    if one is None or other is None:
        return one is other
    return bool(one == other) or setting.agrees(one, other)


def _judged(
    setting: Setting, target: Any, now: Any, foreign: Mapping[str, Any], note: str | None, *, wrote: bool
) -> Made:
    if target != now and not same(setting, now, target):
        if wrote:
            return Made("failed", now, f"reads {text_of(now)} after {text_of(target)} was written")
        return Made("failed", now, f"nothing was written{f': {note}' if note else ''}: it reads {text_of(now)}")
    return _foreign(now, foreign) if foreign else Made("reverted", now, note)


def _foreign(now: Any, foreign: Mapping[str, Any]) -> Made:
    which = text_of(foreign[""] if set(foreign) == {""} else foreign)
    return Made("conflict", now, f"it is {which} now, which hosttune did not set: left alone (--force reverts it)")


def _gone(setting: Setting, record: Record, now: Any, same_boot: bool) -> str:
    """Why there is nothing to take back of a step that we had written, or were about to."""
    if not same_boot and record.scope == RUNTIME:
        left = "" if now == freeze(record.old) else f", it is {text_of(now)} since"
        return f"the reboot had undone it{left}: nothing was written"
    if now != freeze(record.old) and same(setting, now, freeze(record.old)):
        return f"{text_of(now)} serves as well as its original: nothing was written"
    if now != freeze(record.old):
        return f"what it is now, {text_of(now)}, is not hosttune's: nothing was written"
    return "it was at its original: nothing was written"


def _noted(journal: Journal, event: str, **fields: Any) -> bool:
    try:
        journal.write(event, **fields)
    except JournalFailed:
        return False
    return True


def _close(journal: Journal, undone: Mapping[int, Made]) -> bool:
    """Close the journal unless something could not be taken back; False when it stays open for want of room."""
    state = closing_state(undone)
    return state is None or _noted(journal, "closed", state=state)


def closing_state(undone: Mapping[int, Made]) -> str | None:
    """The state that a transaction ends in: None, it stays open, where something could not be taken back."""
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
    """Take a whole transaction back and close its journal if that is possible; see `take_back`."""
    with uninterrupted():
        undone, whole = take_back(
            system, journal, transaction.records, say, same_boot=same_boot, force=force, again=again
        )
        return undone, whole and _close(journal, undone)
