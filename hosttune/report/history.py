"""The report of a history: a row for each transaction, and the entries of the one that was asked for."""

from __future__ import annotations

from hosttune.model.history import History, PastTransaction
from hosttune.model.text import count
from hosttune.report.blocks import Entries, Report, Table
from hosttune.report.outcomes import Mark
from hosttune.report.result import entry_rows

_COLUMNS = ("no.", "at", "by", "what", "settings", "guests")


def history_report(history: History) -> Report:
    """Return the history as a report, oldest transaction first."""
    parts = entry_rows((row.outcome, row) for transaction in history.transactions for row in transaction.entries or ())
    return Report(
        kind="hosttune history",
        verdict="",
        headline=count(len(history.transactions), "transaction"),
        blocks=(
            Table(columns=_COLUMNS, rows=tuple(map(_row, history.transactions)), whole=True),
            Entries(heading="what it changed", parts=parts, numbered=False, whole=True),
        ),
    )


def _row(one: PastTransaction) -> tuple[str | Mark, ...]:
    by = one.by
    who = "" if by is None else f"{by.sudo_user or by.login}{'' if by.via == 'shell' else f', {by.via}'}"
    source = "" if one.source is None else one.source.name or one.source.kind
    signs = (("+", one.guests.created), ("~", one.guests.updated), ("-", one.guests.removed))
    guests = " ".join(f"{sign}{name}" for sign, names in signs for name in names)
    at = f"{one.at[:16].replace('T', ' ')}Z" if one.at.endswith("+00:00") else one.at
    return str(one.number), at, who, f"{one.verb} {source}".rstrip(), f"{one.settings} {one.outcome}", guests
