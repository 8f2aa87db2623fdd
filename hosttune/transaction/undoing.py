"""`revert` and `recover`: revert what is applied, roll back what was interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hosttune.errors import Declined, Refused
from hosttune.journal import RETIRED, Record, Store, Transaction
from hosttune.model.result import Entry, Result
from hosttune.model.values import FrozenMap
from hosttune.transaction.applied import NO, PERSON, SUCCESS, reboot_required, undone_entries
from hosttune.transaction.guards import refuse_between_tenants, refuse_in_use, refuse_running_guests
from hosttune.transaction.rollback import rehearse, settle
from hosttune.transaction.signals import interruptible
from hosttune.transaction.site import Site, described, refuse_open, writable_store
from hosttune.transaction.steps import setting_of_record
from hosttune.transaction.writing import Made, Say

AGAIN = "boot"  # verb of re-applies after a boot; they are never reverted by themselves
KEPT = "keep"  # verb of corrections by the agent; likewise
Key = tuple[str, str]  # kind and target
Confirm = Callable[[Sequence[str]], bool]


def revert(
    site: Site, say: Say, *, force: bool = False, dry_run: bool = False, confirm: Confirm = lambda lines: True
) -> tuple[Result, int]:
    """Revert every finished transaction, newest first. Return the result and the exit code.

    Exit code 0: everything has its original value. 1: something that was changed by others was left alone. 4: something
    could not be reverted. Raises Refused; Declined if `confirm`, which gets a line for each setting, returns false.
    `dry_run`: write and lock nothing; the result has what would be done, its notes what would be refused.
    """
    store = writable_store(site)
    with contextlib.nullcontext() if dry_run else store.locked():
        transactions = site.transactions()
        applied, again = tuple(one for one in transactions if one.to_revert), set_again(site, transactions)
        refusals = _refusals(site, store, transactions, applied)
        if not dry_run and (refused := next(refusals, None)):
            raise refused
        rehearsed = _rehearsed(site, applied, force=force, again=again)
        if dry_run:
            entries = tuple(entry for record, made in rehearsed for entry in undone_entries(record, made))
            told = (f"revert would be refused: {error.what} ({error.hint})" for error in refusals)
            notes = (*told, "dry run: nothing was written")
            return Result(host=site.hostname, verb="revert", entries=entries, notes=notes), SUCCESS
        writes = any(made.outcome not in ("already", "conflict") for _, made in rehearsed)
        if writes and not confirm(tuple(revert_lines(rehearsed))):
            raise Declined("not reverted: answered no", where="prompt", hint="nothing was changed")
        with interruptible():
            result, code = _settled(site, store, "revert", applied, say, force=force, again=again)
        if code == SUCCESS:
            for one in (one for one in transactions if one.header.verb != "apply"):
                store.forget(one)  # the applies hold the original values of what was set again
        return result, code


def _refusals(
    site: Site, store: Store, transactions: tuple[Transaction, ...], applied: tuple[Transaction, ...]
) -> Iterator[Refused]:
    """Yield what refuses a revert, checked one after the other."""
    guards: tuple[Callable[[], None], ...] = (
        lambda: refuse_open(transactions),
        lambda: refuse_between_tenants(site.system, store, applied),
        lambda: refuse_running_guests(site.system, applied),
        lambda: refuse_in_use(site.system, applied),
    )
    for guard in guards:
        try:
            guard()
        except Refused as error:
            yield error


def _rehearsed(
    site: Site, applied: tuple[Transaction, ...], *, force: bool, again: Mapping[Key, Any]
) -> list[tuple[Record, Made]]:
    """Return what a revert would do with each record, newest first."""
    left: dict[tuple[str, str, str], Any] = {}
    return [
        row
        for one in reversed(applied)
        for row in rehearse(site.system, one.records, left, same_boot=_same_boot(site, one), force=force, again=again)
    ]


def _same_boot(site: Site, transaction: Transaction) -> bool:
    return transaction.header.boot_id is None or transaction.header.boot_id == site.boot_id


def revert_lines(rehearsed: Iterable[tuple[Record, Made]]) -> Iterable[str]:
    """Return the lines that the prompt of `revert` shows."""
    from hosttune.model.settingtext import value_line

    for record, made in rehearsed:
        if made.outcome == "conflict":
            yield f"  {record.kind} {record.target}: {made.why}"
        elif made.outcome != "already":
            line = value_line(setting_of_record(record), made.after, record.old)
            yield f"{line} ({made.why})" if made.why else line


def recover(site: Site, say: Say, *, force: bool = False, disrupt: Collection[str] = frozenset()) -> tuple[Result, int]:
    """Roll back everything that an interrupted transaction has done. Exit codes as of `revert`. Raises Refused.

    A guest that it started and that is still running is ended only if `disrupt` names it.
    """
    store = writable_store(site)
    with store.locked(), interruptible():
        unfinished = tuple(one for one in site.transactions() if one.is_open)
        refuse_between_tenants(site.system, store, unfinished)
        refuse_running_guests(site.system, unfinished, disrupt)
        refuse_in_use(site.system, unfinished, disrupt)
        return _settled(site, store, "recover", unfinished, say, force=force)


def set_again(site: Site, transactions: Iterable[Transaction]) -> Mapping[Key, Any]:
    """Return, for each setting that was set again during the present boot, the value that it had afterwards."""
    ours = (one for one in transactions if one.header.verb in (AGAIN, KEPT) and one.state == "applied")
    return {
        (record.kind, record.target): record.after
        for one in ours
        if site.boot_id is not None and one.header.boot_id == site.boot_id
        for record in one.records
        if not record.dropped
    }


def _settled(
    site: Site,
    store: Store,
    verb: str,
    transactions: tuple[Transaction, ...],
    say: Say,
    *,
    force: bool,
    again: Mapping[Key, Any] = FrozenMap({}),
) -> tuple[Result, int]:
    entries: list[Entry] = []
    outcomes: set[str] = set()
    whole = True
    for transaction in reversed(transactions):
        same_boot = _same_boot(site, transaction)
        journal = store.reopen(transaction)
        try:
            undone, written = settle(
                site.system, journal, transaction, say, same_boot=same_boot, force=force, again=again
            )
        finally:
            journal.close()
        whole = whole and written
        outcomes |= {made.outcome for made in undone.values()}
        entries += _told(transaction.records, undone)
    for record in site.retired(transactions):
        outcomes.add("conflict")
        why, value = RETIRED[record.kind], record.after
        entries += (
            Entry(action=name, outcome="conflict", before=value, want=record.old, after=value, why=why)
            for name in record.actions
        )
    now = site.transactions()
    left = next((one for one in now if one.is_open), None)
    result = Result(
        host=site.hostname,
        verb=verb,
        changed=any(entry.before != entry.after for entry in entries),
        reboot_required=reboot_required(site, now),
        entries=tuple(entries),
        open_transaction=described(left) if left else None,
        notes=() if whole else ("the journal could not be written to its end: free space, then run hosttune recover",),
    )
    if outcomes & {"failed", "stuck"}:
        return result, PERSON
    return result, NO if "conflict" in outcomes or not whole else SUCCESS


def _told(records: Iterable[Record], undone: Mapping[int, Made]) -> Iterable[Entry]:
    for record in sorted(records, key=lambda one: one.step, reverse=True):
        made = undone.get(record.step)
        if made is not None:
            yield from undone_entries(record, made)
