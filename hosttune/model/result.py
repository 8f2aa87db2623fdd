"""The result document (`hosttune.result/v1`): what apply, revert, recover or status found and did."""

from __future__ import annotations

from typing import Any, Literal

from hosttune.model.values import Value, close_lists, close_mappings, from_json, to_json

RESULT_SCHEMA = "hosttune.result/v1"

Outcome = Literal[
    "done", "already", "clamped", "ignored", "stuck", "failed", "reverted", "conflict", "pending", "planned"
]


class Entry(Value, frozen=True, kw_only=True):
    """What became of one action. `before`, `want` and `after` are values in the setting's normal form.

    `done` it was changed and reads back as wanted; `already` it was so, or on the way back nothing was left to take
    back: nothing was written; `clamped` it was written and another value was taken; `ignored` it was written and stayed
    as it was; `stuck` the kernel did not come back; `failed` the write was refused, there is no such setting, or it
    cannot be read; `reverted` it was written back to its original; `conflict` somebody else has changed it since and it
    was left alone; `pending` it takes effect with a reboot or once its guest runs; `planned` a rehearsal only said what
    would be written.
    """

    action: str
    outcome: Outcome
    before: Any = None
    want: Any = None
    after: Any = None
    why: str | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "before", "want", "after")

    @property
    def is_unstaged(self) -> bool:
        """Whether it waits for a boot that will not bring it: nothing could be staged, it takes a person."""
        return self.outcome == "pending" and self.after != self.want


class Drift(Value, frozen=True, kw_only=True):
    """A setting in force whose value is no longer the one that was left: `expected` then, `actual` now."""

    action: str
    expected: Any = None
    actual: Any = None
    why: str | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "expected", "actual")


class OpenTransaction(Value, frozen=True, kw_only=True):
    """A transaction that was not finished: `recover` settles it."""

    number: int
    verb: str
    state: str
    journal: str


class Result(Value, frozen=True, kw_only=True):
    """The outcome of one command on one host."""

    schema: str = RESULT_SCHEMA
    host: str | None = None
    verb: str
    changed: bool = False
    reboot_required: bool = False
    entries: tuple[Entry, ...] = ()
    drift: tuple[Drift, ...] = ()
    open_transaction: OpenTransaction | None = None
    exit_code: int | None = None  # of the command: 0, 1 or 4; None in results of older versions
    notes: tuple[str, ...] = ()  # what a person should know besides
    differences: tuple[str, ...] = ()  # of a rehearsal: how a guest's definition would change, as a unified diff
    writes: tuple[str, ...] = ()  # of a rehearsal: every change in order; guests' files by size and sha256

    def __post_init__(self) -> None:
        close_lists(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "result") -> Result:
        """Read a result. Raises BadInput naming the offending field or version."""
        return from_json(cls, text, schema=RESULT_SCHEMA, where=where)

    def to_json(self) -> str:
        """The result, indented."""
        return to_json(self)
