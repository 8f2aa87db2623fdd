"""The transaction engine: journal the intent, read the old value again, write, read back, journal the outcome.

If a step fails or a signal comes, it rolls back what was done (`rollback`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.errors import HosttuneError, Stuck
from hosttune.journal import Journal, JournalFailed, read_transaction
from hosttune.machine.system import System
from hosttune.model.listing import some
from hosttune.model.text import duration
from hosttune.model.values import freeze
from hosttune.settings.setting import Explains, MayGiveLess, Setting
from hosttune.transaction.rehearsal import CountingSystem
from hosttune.transaction.rollback import close, put_back, roll_back_records, settle
from hosttune.transaction.steps import GIVEN_UP, TODO, VERDICT_OUTCOMES, Prepared, SettingStep, shown_text
from hosttune.transaction.writing import Made, Say, reason_of, uninterrupted, value_or_none, write

_FATAL = ("failed", "conflict")
_FATAL_WHEN_NEEDED = ("clamped", "ignored", "stuck")
LookAgain = Callable[[Prepared], Prepared]


class StepResults(msgspec.Struct, frozen=True):
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


def carry_out(
    system: System, journal: Journal, todo: Sequence[Prepared], say: Say, look_again: LookAgain = lambda change: change
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
            prepared = look_again(waiting)
            if prepared.verdict != TODO:
                made[number] = Made(VERDICT_OUTCOMES[prepared.verdict], prepared.effective, prepared.why)
                continue
            setting, name = prepared.step.setting, f"[{number}/{len(todo)}] {prepared.step.name}"
            most = f", at most {duration(setting.limit_seconds)}" if setting.limit_seconds else ""
            say(f"{name}: {shown_text(setting, prepared.live)} -> {shown_text(setting, prepared.step.want)}{most}")
            _step(system, journal, number, prepared, made, say)
            if made[number].outcome != "done" or made[number].why:
                say(f"{name}: {outcome_line(setting, made[number])}")
            if _ends(prepared, made[number]):
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
        unjournalled = not (whole and close(journal, undone))
    return StepResults(made, failed, interrupted, undone, unjournalled)


@contextlib.contextmanager
def for_a_time(system: System, journal: Journal, todo: Sequence[Prepared], say: Say) -> Iterator[Mapping[int, Made]]:
    """Carry out steps, whatever becomes of each; yield the results by number, and roll them back afterwards."""
    made: dict[int, Made] = {}
    try:
        for number, change in enumerate(todo, 1):
            made[number] = Made(VERDICT_OUTCOMES.get(change.verdict, ""), change.effective, change.why)
            if change.verdict == TODO:
                _step(system, journal, number, change, made, say)
        yield made
    finally:
        with uninterrupted():
            system.forget()
            transaction = read_transaction(journal.path)
            if transaction is not None:
                settle(system, journal, transaction, say, same_boot=True)


def _ends(change: Prepared, made: Made) -> bool:
    """Return whether a step's outcome ends the transaction."""
    if made.outcome == "clamped" and change.step.at_boot:
        return False
    return made.outcome in _FATAL or (change.step.needed and made.outcome in _FATAL_WHEN_NEEDED)


def outcome_line(setting: Setting, made: Made) -> str:
    """Return how a step went."""
    text = made.outcome if made.outcome == "done" else f"{made.outcome}, now {shown_text(setting, made.after)}"
    return f"{text} ({made.why})" if made.why else text


def _step(system: System, journal: Journal, number: int, change: Prepared, made: dict[int, Made], say: Say) -> None:
    """Carry out one step: journal the intent, re-read, write, read back, journal the outcome. Raises JournalFailed."""
    step, setting = change.step, change.step.setting
    if step.origin is not None:
        made[number], _ = put_back(system, journal, number, step.origin, same_boot=True, force=True, strict=True)
        return
    if step.gives_up:
        journal.write(
            "intent", step=number, kind=setting.kind, target=setting.target, scope=setting.scope, needed=False,
            actions=tuple(action.id for action in step.actions), change="given-up", old=change.live, new=change.live,
        )  # fmt: skip
        journal.write("done", step=number, outcome="done", value=change.live)
        made[number] = Made("done", change.live, GIVEN_UP)
        return
    journal.write(
        "intent",
        step=number,
        kind=setting.kind,
        target=setting.target,
        actions=tuple(action.id for action in step.actions),
        scope=setting.scope,
        needed=step.needed,
        old=change.live,
        new=step.want,
    )
    made_now = made[number] = _changed(system, step, change.live)
    journal.write(
        "done",
        step=number,
        outcome=made_now.outcome,
        value=made_now.after,
        why=made_now.why,
        untouched=made_now.untouched,
    )


def _changed(system: System, step: SettingStep, old: Any) -> Made:
    """Re-read, write, read back. `ignored` and `clamped` are outcomes of a write, so never without a write."""
    setting, want = step.setting, step.want
    counted = CountingSystem(system)
    try:
        now = freeze(setting.read(system))
        # An earlier step can have done it: a reset for MIG sets the default power limit.
        if now != old and setting.agrees(now, want):
            return Made("done", now, "had that value when its turn came")
        if now != old:
            change = f"changed from {shown_text(setting, old)} to {shown_text(setting, now)} since it was read"
            return Made("conflict", now, change)
        note = write(counted, setting, step.written)
        after = freeze(setting.read(system))
    except Stuck as error:
        return Made("stuck", value_or_none(system, setting), f"{error.what}: {error.where}")
    except (HosttuneError, OSError) as error:
        return Made("failed", value_or_none(system, setting), reason_of(error), untouched=not counted.changes)
    if setting.agrees(after, want):
        return Made("done", after, note)
    if after == old and not counted.changes:
        return Made("failed", after, f"nothing was written{f': {note}' if note else ''}", untouched=True)
    if isinstance(setting, Explains) and note is None:
        note = some(setting.differences(after, want), 4, "; ")
    unmoved = after == old and not isinstance(setting, MayGiveLess)
    return Made("ignored" if unmoved else "clamped", after, note)
