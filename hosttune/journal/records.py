"""A journal as it is read: its lines, and the steps that they describe."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import msgspec

from hosttune.errors import BadInput, Refused
from hosttune.journal.jsonlines import decoded, whole_lines
from hosttune.machine.files import read_whole
from hosttune.model.history import Caller
from hosttune.model.limits import check_size
from hosttune.model.plan import Source
from hosttune.model.values import Closed, Value

JOURNAL_SCHEMA = "hosttune.journal/v1"
TAKING_AWAY = "revert-guest"  # the verb of an apply that only takes guests away
OPEN_STATES = ("applying", "reverting")
# Kinds of setting that only earlier versions have, and why this version does not undo them.
RETIRED = {
    "live-memory": "this version does not move the memory of running guests: what an earlier one has moved stays there"
    " until the guest is shut down and started again"
}


class Header(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: it identifies the transaction.

    `uptime`: seconds since the boot, where how long ago it was must not depend on a clock that people set. `runs`: the
    guests for whose end something waits, each with the process that it was then.
    """

    schema: str
    number: int
    verb: str
    version: str
    at: str
    host: str | None = None
    digest: str | None = None
    boot_id: str | None = None
    machine: str | None = None  # which machine it is, even after its CPUs were replaced
    by: Caller | msgspec.UnsetType = msgspec.UNSET
    source: Source | msgspec.UnsetType = msgspec.UNSET  # of the intent
    uptime: float | msgspec.UnsetType = msgspec.UNSET
    runs: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET


class Line(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Any later line; the fields that it has depend on `event`."""

    event: str
    at: str
    step: int | None = None
    kind: str | None = None
    target: str | None = None
    actions: tuple[str, ...] = ()
    scope: str | None = None
    needed: bool | None = None
    change: str | None = None
    old: Any = None
    new: Any = None
    outcome: str | None = None
    value: Any = None
    why: str | None = None
    untouched: bool = False
    state: str | None = None


class Record(Closed, frozen=True, kw_only=True):
    """One step of a transaction, from its lines. `outcome` None: it was interrupted before it had one.

    `after`: the value that was read back. `untouched`: it failed before anything was written. `undone`: the result of
    its revert, None before any attempt. `undoing`: a revert of it had begun when the journal ended. `change`: "set",
    "back" for a step that puts an original value back, or "given-up" for what is left as it is and in force no more.
    """

    step: int
    kind: str
    target: str
    actions: tuple[str, ...]
    scope: str
    needed: bool
    old: Any
    new: Any
    outcome: str | None = None
    after: Any = None
    why: str | None = None
    untouched: bool = False
    undone: str | None = None
    undoing: bool = False
    change: str = "set"

    MAPPINGS = ("old", "new", "after")

    @property
    def in_force(self) -> bool:
        """Return whether this step's setting is as the transaction left it, as far as the journal shows."""
        return self.to_undo and self.undone != "conflict"

    @property
    def to_undo(self) -> bool:
        """Return whether this step still has to be reverted.

        A step that changed nothing never has: it is not hosttune's.
        """
        nothing = self.outcome == "conflict" or self.dropped or self.untouched
        return not nothing and self.undone in (None, "conflict", "failed")

    @property
    def dropped(self) -> bool:
        """Return whether a write changed nothing."""
        return self.outcome == "ignored" or (self.outcome == "clamped" and self.after == self.old)


class Transaction(Value, frozen=True, kw_only=True):
    """A journal file that was read. `state`: applying, reverting (both unfinished), applied, kept or reverted.

    `retired`: the steps that would have to be reverted and are of a kind that this version does not have any more
    (`RETIRED`). All else is about the other ones, `records`.
    """

    path: str
    header: Header
    records: tuple[Record, ...]
    state: str
    retired: tuple[Record, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether it was interrupted. If it has no step, there is nothing to roll back."""
        return self.state in OPEN_STATES and bool(self.records or self.retired)

    @property
    def is_applied(self) -> bool:
        """Return whether it is a finished apply of which nothing was reverted: its plan is applied."""
        return self.state == "applied" and self.header.verb in ("apply", TAKING_AWAY)

    @property
    def goes_on(self) -> bool:
        """Return whether it is a revert: one that was cut off is finished, not rolled back."""
        return self.header.verb == "revert"


# --- reading -------------------------------------------------------------------------------------------------


def read_transaction(path: str) -> Transaction | None:
    """Read a journal file; None if not even its first line is complete. Raises Refused, naming file and line."""
    try:
        check_size(os.path.getsize(path), "journal", path)
    except BadInput as error:
        raise _unreadable(path, 1, error.what) from error
    lines = list(whole_lines(read_whole(path)))
    if not lines:
        return None
    header = decoded(lines[0][1], Header, lambda why: _unreadable(path, 1, why))
    if header.schema != JOURNAL_SCHEMA:
        why = f"schema {header.schema!r}, this version writes {JOURNAL_SCHEMA!r}"
        raise _unreadable(path, 1, why, f"use the version of hosttune that wrote it: {header.version}")
    records: dict[int, Record] = {}
    state = "reverting" if header.verb == "revert" else "applying"
    for number, text in lines[1:]:
        line = decoded(text, Line, partial(_unreadable, path, number))
        try:
            state = _take(records, line, state)
        except (KeyError, ValueError) as error:
            raise _unreadable(path, number, str(error)) from error
    ordered = [records[step] for step in sorted(records)]
    known = tuple(record for record in ordered if record.kind not in RETIRED)
    retired = tuple(record for record in ordered if record.kind in RETIRED and record.to_undo)
    return Transaction(path=path, header=header, records=known, state=state, retired=retired)


def _take(records: dict[int, Record], line: Line, state: str) -> str:
    """Return the state after one more line. Raises ValueError for a line that is not valid here."""
    if line.event == "closed":
        if line.state not in ("applied", "kept", "reverted"):
            raise ValueError(f"closed as {line.state!r}")
        return line.state
    if line.step is None:
        raise ValueError(f"{line.event!r} without a step")
    if line.event == "intent":
        if line.step in records or line.kind is None or line.target is None or line.scope is None:
            raise ValueError("an intent that is incomplete, or a second one")
        records[line.step] = Record(
            step=line.step, kind=line.kind, target=line.target, actions=line.actions, scope=line.scope,
            needed=bool(line.needed), old=line.old, new=line.new, change=line.change or "set",
        )  # fmt: skip
        return state
    record = records.get(line.step)
    if record is None:
        raise ValueError(f"{line.event!r} of a step without an intent")
    if line.event == "done":
        records[line.step] = msgspec.structs.replace(
            record, outcome=line.outcome, after=line.value, why=line.why, untouched=line.untouched
        )
        return state
    if line.event == "undo":
        records[line.step] = msgspec.structs.replace(record, undoing=True)
        return "reverting"
    if line.event == "undone":
        records[line.step] = msgspec.structs.replace(record, undone=line.outcome, undoing=False)
        return "reverting"
    raise ValueError(f"no event {line.event!r}")


_NO_JOURNAL = (
    "restore the state directory from its newest backup; without one: put back by hand the old values that it names, "
    "then move it out of the folder"
)


def _unreadable(path: str, number: int, why: str, hint: str = _NO_JOURNAL) -> Refused:
    return Refused(f"a journal that cannot be read: {why}", where=f"{path}, line {number}", hint=hint)
