"""`revert`, `recover` and `status`: taking back what is applied, settling what was cut off, and what is in force."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hosttune.errors import Unreadable
from hosttune.journal import Record, Store, Transaction, in_force
from hosttune.model.plan import Plan
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.values import freeze
from hosttune.settings.setting import BOOT
from hosttune.transaction.engine import Made, Say, interruptible, settle
from hosttune.transaction.guards import refuse_running_guests
from hosttune.transaction.site import Site, described, must_write, refuse_open
from hosttune.transaction.steps import part_of, setting_of_record

SUCCESS, NO, PERSON = 0, 1, 4


def revert(site: Site, say: Say, *, force: bool = False) -> tuple[Result, int]:
    """Take back every finished transaction, newest first. Returns the result and the exit code.

    0: all is at its original; 1: something that others have changed since was left alone; 4: something could not be
    taken back. Raises Refused.
    """
    store = must_write(site)
    with store.locked(), interruptible():
        transactions = site.transactions()
        refuse_open(transactions)
        applied = tuple(one for one in transactions if one.state in ("applied", "kept") and one.header.verb == "apply")
        refuse_running_guests(site.system, applied)
        result, code = _settled(site, store, "revert", applied, say, force=force)
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
        return _settled(site, store, "recover", unfinished, say, force=force)


def _settled(
    site: Site, store: Store, verb: str, transactions: tuple[Transaction, ...], say: Say, *, force: bool
) -> tuple[Result, int]:
    entries: list[Entry] = []
    outcomes: set[str] = set()
    whole = True
    for transaction in reversed(transactions):
        same_boot = transaction.header.boot_id is None or transaction.header.boot_id == site.boot_id
        journal = store.reopen(transaction)
        try:
            undone, written = settle(site.system, journal, transaction, say, same_boot=same_boot, force=force)
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


def undone_entries(record: Record, made: Made) -> Iterable[Entry]:
    """What became of taking a record back, one entry an action."""
    setting = setting_of_record(record)
    before = record.new if record.outcome is None else record.after
    for action in record.actions:
        name = action.partition(":")[2] if setting.merges else ""
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
    applied = (one for one in site.transactions() if one.state in ("applied", "kept") and one.header.verb == "apply")
    texts = ((one.path, site.store.plan_of(one)) for one in applied)
    return tuple(Plan.from_json(text, where=path) for path, text in texts if text is not None)


def status(site: Site) -> tuple[Result, int]:
    """What is in force, what has drifted from it, what waits for a reboot, what is unfinished. Changes nothing.

    The code is 1 where something drifted or is unfinished, else 0.
    """
    transactions = site.transactions()
    unfinished = next((one for one in transactions if one.is_open), None)
    records = in_force(transactions)
    drift: list[Drift] = []
    entries: list[Entry] = []
    for record in records.values():
        if not setting_of_record(record).undone_later:
            continue  # whether a guest runs now is its operator's business
        found = _look(site, record)
        drift += _drifted(record, found)
        entries += _standing(record, found)
    result = Result(
        host=site.hostname,
        verb="status",
        reboot_required=any(entry.outcome == "pending" for entry in entries) or reboot_required(site, transactions),
        entries=tuple(entries),
        drift=tuple(drift),
        open_transaction=described(unfinished) if unfinished else None,
    )
    return result, NO if drift or unfinished else SUCCESS


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
        name = action.partition(":")[2] if setting.merges else ""
        expected, actual = part_of(setting, found.expected, name), part_of(setting, found.actual, name)
        if found.why or expected != actual:
            yield Drift(action=action, expected=expected, actual=actual, why=found.why)


def _standing(record: Record, found: Drift | str | None) -> Iterable[Entry]:
    """How a record stands, one entry an action."""
    setting = setting_of_record(record)
    after = found.actual if isinstance(found, Drift) else record.after
    for action in record.actions:
        name = action.partition(":")[2] if setting.merges else ""
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
