"""`revert` and `recover`: put back what is in force, settle what was interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from hosttune.errors import Declined, Refused
from hosttune.journal import RETIRED, Journal, Record, Store, Transaction
from hosttune.journal.force import AGAIN, KEPT, StandingSetting
from hosttune.model.result import Entry, Result
from hosttune.settings.setting import MayGiveLess
from hosttune.transaction.applied import NO, PERSON, SUCCESS, reboot_required, undone_entries
from hosttune.transaction.guards import (
    refuse_between_tenants,
    refuse_in_use,
    refuse_removal,
    refuse_running_guests,
)
from hosttune.transaction.rollback import as_set_again, close, put_back, rehearse, settle
from hosttune.transaction.site import Site, described, facts_of, log, next_number, refuse_open, writable_store
from hosttune.transaction.steps import setting_of_record
from hosttune.transaction.writing import Made, Say, interruptible, uninterrupted

Confirm = Callable[[Sequence[str]], bool]


def revert(
    site: Site, say: Say, *, force: bool = False, dry_run: bool = False, confirm: Confirm = lambda lines: True
) -> tuple[Result, int]:
    """Put everything that is in force back to its original, in one transaction. Return the result and the exit code.

    Exit code 0: everything has its original value. 1: something that was changed by others was left alone. 4: something
    could not be reverted. Raises Refused; Declined if `confirm`, which gets a line for each setting, returns false.
    `dry_run`: write and lock nothing; the result has what would be done, its notes what would be refused.
    """
    store = writable_store(site)
    with contextlib.nullcontext() if dry_run else store.locked():
        transactions = site.transactions()
        rows = _to_put_back(site, transactions)
        refusals = _refusals(site, store, transactions, [row.record for row in rows])
        if not dry_run and (refused := next(refusals, None)):
            raise refused
        rehearsed = list(rehearse(site.system, rows, boot_id=site.boot_id, force=force))
        if dry_run:
            entries = tuple(entry for row, made in rehearsed for entry in undone_entries(row.record, made))
            told = (f"revert would be refused: {error.what} ({error.hint})" for error in refusals)
            notes = (*told, "dry run: nothing was written")
            return Result(host=site.hostname, verb="revert", entries=entries, notes=notes), SUCCESS
        writes = any(made.outcome not in ("already", "conflict") for _, made in rehearsed)
        if writes and not confirm(tuple(revert_lines(rehearsed))):
            raise Declined("not reverted: answered no", where="prompt", hint="nothing was changed")
        retired = site.retired(transactions)
        if not (rows or retired):
            return _result(site, "revert", (), set(), whole=True)
        with interruptible():
            facts = facts_of(site, "revert")
            journal = store.begin(next_number(transactions), **facts)
            result, code = _put_all_back(site, "revert", journal, rows, 1, say, force=force, retired=retired)
        if code == SUCCESS:
            for one in (transaction for transaction in transactions if transaction.header.verb in (AGAIN, KEPT)):
                store.forget(one)  # of nothing that is in force any more
        return result, code


def _to_put_back(site: Site, transactions: Iterable[Transaction]) -> list[StandingSetting]:
    """Return what has to be put back, in the order of a way back: by stage, the newest first, pages last."""
    rows = site.standings(transactions)

    def place(row: StandingSetting) -> tuple[bool, int, int, int]:
        setting = setting_of_record(row.record)
        return isinstance(setting, MayGiveLess), -setting.stage, -row.number, -row.record.step

    return sorted((*rows.in_force, *rows.left_alone), key=place)


def _put_all_back(
    site: Site,
    verb: str,
    journal: Journal,
    rows: Sequence[StandingSetting],
    first: int,
    say: Say,
    *,
    force: bool,
    retired: Sequence[Record] = (),
) -> tuple[Result, int]:
    """Put settings back, as the steps of a journal from number `first` on, and close it unless one failed."""
    results: dict[int, Made] = {}
    entries: list[Entry] = []
    whole = True
    try:
        with uninterrupted():
            for number, row in enumerate(rows, first):
                record, same_boot = as_set_again(row, site.boot_id)
                made, kept = put_back(site.system, journal, number, record, same_boot=same_boot, force=force)
                whole = whole and kept
                results[number] = made
                entries += undone_entries(row.record, made)
                say(f"{record.kind} {record.target}: {made.outcome}{f' ({made.why})' if made.why else ''}")
            whole = close(journal, results) and whole
    finally:
        journal.close()
    site.keep_at_start(site.transactions())
    outcomes = {made.outcome for made in results.values()} | ({"conflict"} if retired else set())
    return _result(site, verb, (*entries, *_of_retired(retired)), outcomes, whole=whole)


def _refusals(
    site: Site, store: Store, transactions: tuple[Transaction, ...], records: Sequence[Record]
) -> Iterator[Refused]:
    """Yield what refuses a revert, checked one after the other."""
    guards: tuple[Callable[[], None], ...] = (
        lambda: refuse_open(transactions),
        lambda: site.refuse_lost(transactions),
        lambda: refuse_between_tenants(site.system, store, records),
        lambda: refuse_running_guests(site.system, records),
        lambda: refuse_removal(site, records),
        lambda: refuse_in_use(site.system, records),
    )
    for guard in guards:
        try:
            guard()
        except Refused as error:
            yield error


def revert_lines(rehearsed: Iterable[tuple[StandingSetting, Made]]) -> Iterable[str]:
    """Return the lines that the prompt of `revert` shows."""
    from hosttune.model.settingtext import value_lines

    rows = [(row.record, made) for row, made in rehearsed if made.outcome != "already"]
    for record, made in rows:
        if made.outcome == "conflict":
            yield f"  {record.kind} {record.target}: {made.why}"
    yield from value_lines(
        (setting_of_record(record), made.after, record.old, made.why or "")
        for record, made in rows
        if made.outcome != "conflict"
    )


def recover(site: Site, say: Say, *, force: bool = False, disrupt: Collection[str] = frozenset()) -> tuple[Result, int]:
    """Settle what was interrupted: roll back an apply, finish a revert. Exit codes as of `revert`. Raises Refused.

    A guest that the apply started and that is still running is ended only if `disrupt` names it.
    """
    store = writable_store(site)
    with store.locked(), interruptible():
        transactions = site.transactions()
        unfinished = tuple(transaction for transaction in transactions if transaction.is_open)
        if not unfinished:
            site.refuse_lost(transactions)
        begun = next((transaction for transaction in unfinished if transaction.goes_on), None)
        rows = _to_put_back(site, transactions) if begun else []
        records = [row.record for row in rows] or [
            record for transaction in unfinished for record in transaction.records
        ]
        records = [record for record in records if record.to_undo]
        refuse_between_tenants(site.system, store, records)
        refuse_running_guests(site.system, records, disrupt)
        refuse_in_use(site.system, records, disrupt)
        if begun is not None:
            first = 1 + max(record.step for record in begun.records)
            journal = store.reopen(begun)
            return _put_all_back(site, "recover", journal, rows, first, say, force=force)
        return _settled(site, store, unfinished, say, force=force)


def _settled(
    site: Site, store: Store, transactions: tuple[Transaction, ...], say: Say, *, force: bool
) -> tuple[Result, int]:
    entries: list[Entry] = []
    closed: list[str] = []
    outcomes: set[str] = set()
    whole = True
    for transaction in reversed(transactions):
        same_boot = transaction.header.boot_id in (None, site.boot_id)
        journal = store.reopen(transaction)
        try:
            undone, written = settle(site.system, journal, transaction, say, same_boot=same_boot, force=force)
        finally:
            journal.close()
        whole = whole and written
        if written and not undone:
            closed.append(f"transaction {transaction.header.number} was rolled back already: it is closed now")
        outcomes |= {made.outcome for made in undone.values()}
        for record in sorted(transaction.records, key=lambda record: record.step, reverse=True):
            if record.step in undone:
                entries += undone_entries(record, undone[record.step])
    retired = site.retired(transactions)
    outcomes |= {"conflict"} if retired else set()
    result, code = _result(site, "recover", (*entries, *_of_retired(retired)), outcomes, whole=whole)
    return replace(result, notes=(*result.notes, *closed)), code


def _of_retired(records: Iterable[Record]) -> Sequence[Entry]:
    return tuple(
        Entry(
            action=name, outcome="conflict", before=record.after, want=record.old, after=record.after,
            why=RETIRED[record.kind],
        )
        for record in records
        for name in record.actions
    )  # fmt: skip


def _result(
    site: Site, verb: str, entries: Sequence[Entry], outcomes: Collection[str], *, whole: bool
) -> tuple[Result, int]:
    now = site.transactions()
    left = next((transaction for transaction in now if transaction.is_open), None)
    result = Result(
        host=site.hostname,
        verb=verb,
        changed=any(entry.before != entry.after for entry in entries),
        reboot_required=reboot_required(site, now),
        entries=tuple(entries),
        open_transaction=described(left) if left else None,
        notes=() if whole else ("the journal could not be written to its end: free space, then run hosttune recover",),
    )
    code = NO if "conflict" in outcomes or not whole else SUCCESS
    code = PERSON if {"failed", "stuck"} & set(outcomes) else code
    if entries:
        log(site, result, code)
    return result, code
