"""`revert`, `recover` and `status`: taking back what is applied, settling what was cut off, and what is in force."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from hosttune.errors import Unreadable
from hosttune.journal import Record, Store, Transaction, in_force
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.values import FrozenMap, freeze
from hosttune.settings.setting import BOOT, Setting
from hosttune.transaction.engine import Made, Say, interruptible, settle
from hosttune.transaction.guards import refuse_in_use, refuse_running_guests
from hosttune.transaction.site import Site, described, must_write, refuse_open
from hosttune.transaction.steps import part_of, setting_of_record

SUCCESS, NO, PERSON = 0, 1, 4
AGAIN = "boot"  # the verb of what was set again after a boot; nothing of it is ever taken back by itself
Key = tuple[str, str]  # kind and target


def revert(site: Site, say: Say, *, force: bool = False) -> tuple[Result, int]:
    """Take back every finished transaction, newest first. Returns the result and the exit code.

    0: all is at its original; 1: something that others have changed since was left alone; 4: something could not be
    taken back. Raises Refused.
    """
    store = must_write(site)
    with store.locked(), interruptible():
        transactions = site.transactions()
        refuse_open(transactions)
        applied = tuple(one for one in transactions if one.is_applied)
        refuse_running_guests(site.system, applied)
        refuse_in_use(site.system, applied)
        result, code = _settled(site, store, "revert", applied, say, force=force, again=set_again(site, transactions))
        if code == SUCCESS:
            for again in (one for one in transactions if one.header.verb != "apply"):
                store.forget(again)  # what was set again after a boot had its originals in the applies
        return result, code


def recover(site: Site, say: Say, *, force: bool = False, disrupt: Collection[str] = frozenset()) -> tuple[Result, int]:
    """Settle what was cut off: everything that it had done is taken back. Codes as of `revert`. Raises Refused.

    A guest that it had started and that still runs is ended only when `disrupt` names it.
    """
    store = must_write(site)
    with store.locked(), interruptible():
        unfinished = tuple(one for one in site.transactions() if one.is_open)
        refuse_running_guests(site.system, unfinished, disrupt)
        refuse_in_use(site.system, unfinished, disrupt)
        return _settled(site, store, "recover", unfinished, say, force=force)


def set_again(site: Site, transactions: Iterable[Transaction]) -> Mapping[Key, Any]:
    """What the boot's re-apply has left of each setting that it had to set, under the boot that runs now."""
    ours = (one for one in transactions if one.header.verb == AGAIN and one.state == "applied")
    return {
        (record.kind, record.target): record.after
        for one in ours
        if site.boot_id is not None and one.header.boot_id == site.boot_id
        for record in one.records
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
        same_boot = transaction.header.boot_id is None or transaction.header.boot_id == site.boot_id
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
    left = next((one for one in site.transactions() if one.is_open), None)
    result = Result(
        host=site.hostname,
        verb=verb,
        changed=any(entry.before != entry.after for entry in entries),
        reboot_required=reboot_required(site, site.transactions()),
        entries=tuple(entries),
        open_transaction=described(left) if left else None,
        notes=() if whole else ("the journal could not be written to its end: make room, then hosttune recover",),
    )
    if outcomes & {"failed", "stuck"}:
        return result, PERSON
    return result, NO if "conflict" in outcomes or not whole else SUCCESS


def _told(records: Iterable[Record], undone: Mapping[int, Made]) -> Iterable[Entry]:
    for record in sorted(records, key=lambda one: one.step, reverse=True):
        made = undone.get(record.step)
        if made is not None:
            yield from undone_entries(record, made)


def _part(setting: Setting, action: str) -> str:
    """The part of a setting that an action of its record is about, by its id; "": all of it."""
    return action.partition(":")[2] if setting.merges else ""


def undone_entries(record: Record, made: Made) -> Iterable[Entry]:
    """What became of taking a record back, one entry an action."""
    setting = setting_of_record(record)
    before = record.new if record.outcome is None else record.after
    for action in record.actions:
        name = _part(setting, action)
        yield Entry(
            action=action,
            outcome=made.outcome,  # type: ignore[arg-type]  # the engine's words are those of the document
            before=part_of(setting, before, name),
            want=part_of(setting, record.old, name),
            after=part_of(setting, made.after, name),
            why=made.why,
        )


def applied_plans(site: Site) -> tuple[Plan, ...]:
    """The plans that are applied, oldest first. Raises BadInput for one that does not read."""
    if site.store is None:
        return ()
    applied = (one for one in site.transactions() if one.is_applied)
    texts = ((one.path, site.store.plan_of(one)) for one in applied)
    return tuple(Plan.from_json(text, where=path) for path, text in texts if text is not None)


def plan_in_force(site: Site, intent: Intent) -> Plan | None:
    """The newest applied plan that was made from this very intent. Raises BadInput for one that does not read."""
    return next((plan for plan in reversed(applied_plans(site)) if plan.intent == intent), None)


def status(site: Site) -> tuple[Result, int]:
    """What is in force, what has drifted from it, what waits for a reboot, what is unfinished. Changes nothing.

    The code is 1 where something drifted or is unfinished, else 0.
    """
    transactions = site.transactions()
    unfinished = next((one for one in transactions if one.is_open), None)
    entries, drift = standing(site, in_force(transactions).values())
    result = Result(
        host=site.hostname,
        verb="status",
        reboot_required=any(entry.outcome == "pending" for entry in entries) or reboot_required(site, transactions),
        entries=tuple(entries),
        drift=tuple(drift),
        open_transaction=described(unfinished) if unfinished else None,
        notes=_not_seen(site),
    )
    return result, NO if drift or unfinished else SUCCESS


def _not_seen(site: Site) -> tuple[str, ...]:
    """Another user's state is another folder: "nothing in force" there says nothing of what root has applied."""
    if site.system.captured or os.geteuid() == 0 or os.environ.get("HOSTTUNE_STATE"):
        return ()
    return ("not root: what root has applied is not seen here",)


def standing(site: Site, records: Iterable[Record]) -> tuple[list[Entry], list[Drift]]:
    """How records in force stand, oldest first, and what has drifted of them."""
    drift: list[Drift] = []
    entries: list[Entry] = []
    for record in _newest_parts(records):
        if not setting_of_record(record).undone_later:
            continue  # whether a guest runs now is its operator's business
        found = _look(site, record)
        drift += _drifted(record, found)
        entries += _standing(record, found)
    return entries, drift


def _newest_parts(records: Iterable[Record]) -> Iterable[Record]:
    """The records, in order, each without what a newer one of another target is about by now (a CPU of two lists)."""
    found: list[Record] = []
    newer: dict[str, set[str]] = {}
    for record in reversed(tuple(records)):
        setting = setting_of_record(record)
        if setting.overlaps:
            taken = newer.setdefault(record.kind, set())
            mine = setting.parts(freeze(record.new)).keys()
            left = [name for name in mine if name not in taken]
            taken.update(mine)
            if not left:
                continue
            if len(left) < len(mine):
                record = _only(record, setting, left)
        found.append(record)
    return reversed(found)


def _only(record: Record, setting: Setting, names: Collection[str]) -> Record:
    """A record of these parts of its setting alone."""
    target = setting.target_of(names)
    part = type(setting).restored(target)

    def cut(value: Any) -> Any:
        return (
            None
            if value is None
            else part.joined({n: v for n, v in setting.parts(freeze(value)).items() if n in names})
        )

    actions = tuple(one for one in record.actions if not setting.merges or _part(setting, one) in names)
    return msgspec.structs.replace(
        record, target=target, actions=actions, old=cut(record.old), new=cut(record.new), after=cut(record.after)
    )


def _look(site: Site, record: Record) -> Drift | str | None:
    """A record's drift; "pending" where it waits for a boot; None where it stands as it was left."""
    setting = setting_of_record(record)
    expected = freeze(record.after)
    try:
        now = freeze(setting.read(site.system))
        works = freeze(setting.effective(site.system))
    except Unreadable as error:
        return Drift(action=record.actions[0], expected=expected, why=f"cannot be read: {error.reason}")
    if now != expected and not (now is not None and expected is not None and setting.agrees(now, expected)):
        if setting.waits_for(site.system) is not None:
            return None  # nothing to see of it now: its guest does not run, or has the device
        return Drift(action=record.actions[0], expected=expected, actual=now)
    if setting.scope == BOOT and not setting.agrees(works, freeze(record.new)):
        return "pending"
    return None


def _drifted(record: Record, found: Drift | str | None) -> Iterable[Drift]:
    """The drift of each action that a record stands for; of settings written together, those that did drift."""
    if not isinstance(found, Drift):
        return
    setting = setting_of_record(record)
    for action in record.actions:
        name = _part(setting, action)
        expected, actual = part_of(setting, found.expected, name), part_of(setting, found.actual, name)
        if found.why or expected != actual:
            yield Drift(action=action, expected=expected, actual=actual, why=found.why)


def _standing(record: Record, found: Drift | str | None) -> Iterable[Entry]:
    """How a record stands, one entry an action."""
    setting = setting_of_record(record)
    after = found.actual if isinstance(found, Drift) else record.after
    for action in record.actions:
        name = _part(setting, action)
        yield Entry(
            action=action,
            outcome="pending" if found == "pending" else record.outcome or "done",  # type: ignore[arg-type]  # as above
            before=part_of(setting, record.old, name),
            want=part_of(setting, record.new, name),
            after=part_of(setting, after, name),
            why=record.why,
        )


def reboot_required(site: Site, transactions: Iterable[Transaction]) -> bool:
    """Whether something that these transactions staged, and that is taken back, still works until the next boot."""
    records = (record for transaction in transactions for record in transaction.records if not record.in_force)
    return any(_still_works(site, record) for record in records)


def _still_works(site: Site, record: Record) -> bool:
    setting = setting_of_record(record)
    if setting.scope != BOOT:
        return False
    try:
        works = setting.parts(freeze(setting.effective(site.system)))
    except Unreadable:
        return True  # unknown is not "no"
    old, new = setting.parts(freeze(record.old)), setting.parts(freeze(record.new))
    return any(works.get(name) == part and part != old.get(name) for name, part in new.items())
