"""The result document (`hosttune.result/v1`): what apply, revert, recover or status found and did."""

from __future__ import annotations

from typing import Any, Literal

from hosttune.model.values import Closed, Document, Value, from_json

RESULT_SCHEMA = "hosttune.result/v1"

Outcome = Literal[
    "done", "already", "clamped", "ignored", "stuck", "failed", "reverted", "conflict", "pending", "planned"
]


class Entry(Closed, frozen=True, kw_only=True):
    """The outcome of one action. `before`, `want` and `after` are values in the setting's normal form.

    `before_known` is False in a dry run on a capture that does not have the value: `before` is then the plan's, and
    null is unknown. Otherwise null is none.

    - `done`: it was changed, and reading it back gives the wanted value.
    - `already`: nothing was written, because the value was already right, or in a revert nothing was left to revert.
    - `clamped`: it was written, and the kernel kept another value.
    - `ignored`: it was written, and the value did not change.
    - `stuck`: the kernel did not return in time.
    - `failed`: the write was refused, the setting does not exist, or it cannot be read.
    - `reverted`: its original value was written back.
    - `conflict`: another program or person has changed it since, so it was not touched.
    - `pending`: it takes effect at a reboot or when its guest runs; with `when` "after-stop", when guests have ended.
    - `planned`: a dry run only lists what would be written.
    """

    action: str
    outcome: Outcome
    before: Any = None
    want: Any = None
    after: Any = None
    why: str | None = None
    before_known: bool = True
    when: Literal["after-stop"] | None = None

    MAPPINGS = ("before", "want", "after")

    @property
    def waits(self) -> bool:
        """Whether its setting does not have the wanted value yet."""
        return self.outcome == "pending" and self.after != self.want

    @property
    def is_unstaged(self) -> bool:
        """Whether it waits for a reboot that will not apply it.

        The change could not be prepared; a person must make it.
        """
        return self.waits and self.when is None


class Drift(Closed, frozen=True, kw_only=True):
    """An applied setting that has another value now: `expected` is the applied value, `actual` the present one.

    `hint`: what to do where applying the intent does not set it again.
    """

    action: str
    expected: Any = None
    actual: Any = None
    why: str | None = None
    hint: str | None = None

    MAPPINGS = ("expected", "actual")


class OpenTransaction(Value, frozen=True, kw_only=True):
    """A transaction that was not finished. `recover` rolls it back."""

    number: int
    verb: str
    state: str
    journal: str


class Result(Document, frozen=True, kw_only=True):
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
    pending: tuple[str, ...] = ()  # guests whose change holds from their next start, or waits for the end of their run
    notes: tuple[str, ...] = ()  # other things that a person should know
    differences: tuple[str, ...] = ()  # of a dry run: how a guest's definition would change, as a unified diff
    writes: tuple[str, ...] = ()  # of a dry run: every change in order; guests' files by size and sha256
    state_known: bool = True  # of status: false on a capture, which keeps no state: what is applied is unknown

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "result") -> Result:
        """Read a result. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=RESULT_SCHEMA, where=where)
