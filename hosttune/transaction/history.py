"""The transactions of a host as people read them, from its journals."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET

from hosttune.errors import BadInput, HosttuneError, Refused
from hosttune.journal import Record, Transaction
from hosttune.journal.force import ADOPTED, FOLLOWING, GUEST
from hosttune.journal.state import unseen_journals
from hosttune.model.history import ChangedGuests, History, PastTransaction
from hosttune.model.intent import Intent
from hosttune.model.result import Entry
from hosttune.transaction.applied import record_entries
from hosttune.transaction.site import Site


def history(site: Site, number: int | None = None) -> History:
    """Return all transactions, or the one of this number with its entries.

    Raises BadInput; HosttuneError where the journals cannot be read.
    """
    if number is not None:
        return History(transactions=(_past(_numbered(site, number), entries=True),))
    return History(transactions=tuple(_past(transaction, entries=False) for transaction in _transactions(site)))


def intent_of(site: Site, number: int) -> Intent:
    """Return the intent of a transaction. Raises BadInput for one that has none; else as `history`."""
    transaction = _numbered(site, number)
    plan = site.plan_of(transaction)
    if plan is None:
        what = f"transaction {number} ({transaction.header.verb}) was made without an intent"
        raise BadInput(what, where="N", hint="choose an apply: hosttune history")
    return plan.intent


def _transactions(site: Site) -> tuple[Transaction, ...]:
    if site.store is None:
        raise HosttuneError("a captured host keeps no journals", where=site.system.origin, hint="run it on the host")
    if not site.system.captured and (folder := unseen_journals(site.store.folder)) is not None:
        raise HosttuneError("the journals cannot be read", where=folder, hint="run it as root")
    try:
        return tuple(transaction for transaction in site.transactions() if transaction.records)
    except Refused as error:  # here nothing would be written
        raise HosttuneError(error.what, where=error.where, hint=error.hint) from error


def _numbered(site: Site, number: int) -> Transaction:
    every = {transaction.header.number: transaction for transaction in _transactions(site)}
    if number not in every:
        known = ", ".join(map(str, every)) or "none"
        raise BadInput(f"there is no transaction {number}", where="N", hint=f"there are: {known}")
    return every[number]


def _past(transaction: Transaction, *, entries: bool) -> PastTransaction:
    header, records = transaction.header, transaction.records
    outcomes = ["done", "clamped", "reverted", *([None] if transaction.goes_on and not transaction.is_open else [])]
    # Of a revert that was cut off right after a write, the next one found that at its original.
    seen = {
        (record.kind, record.target): record
        for record in records
        if record.outcome in outcomes and record.undone is None
    }
    made = list(seen.values())
    return PastTransaction(
        number=header.number,
        at=header.at,
        verb=header.verb,
        by=None if header.by is UNSET else header.by,
        source=None if header.source is UNSET else header.source,
        guests=_guests(made),
        settings=sum(record.kind not in FOLLOWING and record.after != record.old for record in made),
        outcome=_outcome(transaction),
        entries=tuple(row for record in records for row in _rows(record)) if entries else None,
    )


def _guests(records: list[Record]) -> ChangedGuests:
    names: dict[str, list[str]] = {"created": [], "updated": [], "removed": []}
    for record in records:
        if record.kind in (GUEST, ADOPTED):
            word = (
                "updated"
                if record.new is not None and record.old is not None
                else "removed"
                if record.old
                else "created"
            )
            names["removed" if record.change == "back" else word].append(record.target)
    return ChangedGuests(**{word: tuple(guests) for word, guests in names.items()})


def _outcome(transaction: Transaction) -> Literal["done", "reverted", "incomplete", "unfinished"]:
    if transaction.is_open:
        return "unfinished"
    if transaction.state == "kept":
        return "incomplete"
    return "reverted" if transaction.state == "reverted" and not transaction.goes_on else "done"


def _rows(record: Record) -> tuple[Entry, ...]:
    outcome: Any = record.undone or record.outcome or "pending"
    return tuple(record_entries(record, outcome, record.old, record.new, record.after, record.why))
