"""The history document (`hosttune.history/v1`): the transactions of a host, oldest first."""

from __future__ import annotations

from typing import Literal

from hosttune.model.plan import Source
from hosttune.model.result import Entry
from hosttune.model.values import Document, Value

HISTORY_SCHEMA = "hosttune.history/v1"


class Caller(Value, frozen=True, kw_only=True):
    """Who made a transaction: the login of the process, the user who called sudo, and by what."""

    login: str
    sudo_user: str | None = None
    via: Literal["shell", "ansible", "unit"] = "shell"


class ChangedGuests(Value, frozen=True, kw_only=True):
    """The names of the guests that a transaction defined, whose definitions it changed, and that it took away."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class PastTransaction(Value, frozen=True, kw_only=True):
    """One transaction. `settings`: how many settings of the host it changed; files of hosttune's own do not count.

    `outcome`: done, reverted (it failed, or was cut off, and was rolled back), incomplete (a revert that left something
    alone), or unfinished. `entries`: what became of each action, where one transaction was asked for.
    """

    number: int
    at: str
    verb: str
    by: Caller | None = None
    source: Source | None = None
    guests: ChangedGuests = ChangedGuests()
    settings: int = 0
    outcome: Literal["done", "reverted", "incomplete", "unfinished"]
    entries: tuple[Entry, ...] | None = None


class History(Document, frozen=True, kw_only=True):
    """The transactions of a host, oldest first."""

    schema: str = HISTORY_SCHEMA
    transactions: tuple[PastTransaction, ...] = ()
