"""`apply --boot`: set again, from the journal, what a reboot has undone. The boot unit runs it.

Nothing in this module calls libvirt. The unit runs before libvirt's daemon, so a call to its socket would wait for a
daemon that itself waits for this unit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from hosttune.discovery.holders import holders
from hosttune.errors import BadInput, Refused, Unreadable
from hosttune.journal import Record, Store, Transaction
from hosttune.journal.force import AGAIN, KEPT, LATER, MEASURED
from hosttune.model import sysfs
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.result import Entry, Result
from hosttune.settings.setting import OF_GUESTS, RUNTIME, ByService, MayGiveLess, Setting, TakesDevice
from hosttune.transaction.applied import NO, SUCCESS, applied_state, reboot_required
from hosttune.transaction.engine import carry_out
from hosttune.transaction.guards import refuse_between_tenants
from hosttune.transaction.rollback import settle
from hosttune.transaction.site import Site, described, facts_of, next_number, refuse_open, writable_store
from hosttune.transaction.steps import (
    ALREADY,
    PENDING,
    TODO,
    UNREADABLE,
    VERDICT_OUTCOMES,
    Prepared,
    SettingStep,
    entries,
    entry,
    prepare,
    setting_of_record,
    steps_of,
    with_verdict,
)
from hosttune.transaction.writing import Say, interruptible

_FINE = ("done", VERDICT_OUTCOMES[ALREADY], VERDICT_OUTCOMES[PENDING])


class _RecordAtBoot(msgspec.Struct, frozen=True):
    """The result of setting one record again. `stopped`: a signal asked the whole run to stop."""

    entries: Sequence[Entry]
    fine: bool
    stopped: bool = False


def reapply(site: Site, say: Say) -> tuple[Result, int]:
    """Set again every applied runtime setting. A setting that cannot be set is reported and left as it is.

    The original values stay as recorded. Each setting is its own transaction here: if one fails, the others stay set,
    because a host that boots with most of its settings is better than a host with none. Guests are not started; their
    autostart does that. The exit code is 1 if a setting is not as the apply left it. Raises Refused.
    """
    store = writable_store(site)
    with store.locked(), interruptible():
        _without_old(site, store, say)
        found, failed = finish(site, store, say)
        kept = site.transactions()
        rows = [
            setting
            for setting in site.standings(kept).in_force
            if setting_of_record(setting.record).stage not in OF_GUESTS
        ]
        _await_services(site, [setting_of_record(row.record) for row in rows])
        number = next_number(kept)
        for record in (row.record for row in rows):
            if setting_of_record(record).scope != RUNTIME:
                continue
            before = tuple(
                transaction
                for transaction in kept
                if transaction.header.verb == AGAIN
                and any((one.kind, one.target) == (record.kind, record.target) for one in transaction.records)
            )
            turn = _again(site, store, number, record, before, say)
            found += turn.entries
            failed = failed or not turn.fine
            number += 1
            if turn.stopped:
                break
        transactions = site.transactions()
        left = next((transaction for transaction in transactions if transaction.is_open), None)
        here = {transaction.header.verb for transaction in transactions if transaction.header.boot_id == site.boot_id}
        lost = site.lost(transactions)
        _, drift = applied_state(replace(site, boots=here <= {AGAIN, LATER, MEASURED}), rows)
        result = Result(
            host=site.hostname,
            verb="apply",
            changed=any(row.outcome in ("done", "clamped") for row in found),
            reboot_required=reboot_required(site, transactions),
            entries=tuple(found),
            drift=tuple(drift),
            open_transaction=described(left) if left else None,
            notes=(f"{lost.what}: {lost.hint}",) if lost else (),
        )
        return result, NO if failed or left or lost else SUCCESS


def _await_services(site: Site, settings: Iterable[Setting]) -> None:
    """Wait until the services that read settings answer. What still does not is reported by the setting itself."""
    begun = time.monotonic()
    for setting in settings:
        while isinstance(setting, ByService) and not site.system.captured:
            try:
                setting.read(site.system)
                break
            except Unreadable:
                if time.monotonic() - begun > setting.answers_within:
                    break
                time.sleep(1.0)


def finish(site: Site, store: Store, say: Say) -> tuple[list[Entry], bool]:
    """Do what the newest plan has left for the end of guests' runs, as far as they have ended, each by itself.

    What failed since the last boot is left to the next apply. Return the entries, and whether one is not as wanted.
    Raises Refused.
    """
    from hosttune.transaction.applying import WantedSteps, due, look

    rows: list[Entry] = []
    known = site.transactions()
    tried = [
        transaction
        for transaction in known
        if (transaction.header.verb, transaction.header.boot_id) == (LATER, site.boot_id)
    ]
    targets = {record.target for transaction in tried for record in transaction.records}
    for step in steps_of(action for action, held in site.waiting(known) if not held and action.target not in targets):
        known = site.transactions()
        wanted = WantedSteps(Plan(intent=Intent(version=1)), (step,), ())
        todo = due([_unless_in_use(site, prepared) for prepared in look(site, wanted, Host(guests=()), known)])
        with contextlib.suppress(BadInput, Refused):  # a device between two tenants: its hand-over is first
            refuse_between_tenants(
                site.system, store, [prepared.step.origin for prepared in todo if prepared.step.origin]
            )
            rows += _finished(site, store, next_number(known), todo, say)
    if rows:
        site.keep_holders(site.transactions())
    return rows, any(row.outcome not in (*_FINE, "reverted", "clamped") for row in rows)


def _finished(site: Site, store: Store, number: int, todo: Sequence[Prepared], say: Say) -> Iterable[Entry]:
    if not todo:
        return
    journal = store.begin(number, **facts_of(site, LATER))
    try:
        carried = carry_out(site.system, journal, todo, say)
    finally:
        journal.close()
    for step, made in carried.made.items():
        yield from entries(todo[step - 1].step, made.outcome, todo[step - 1].live, made.after, made.why)


def _without_old(site: Site, store: Store, say: Say) -> None:
    """Delete the journals of earlier re-applies. The applies hold the original values.

    An unfinished re-apply is deleted too. Otherwise a power cut during one boot would block every later re-apply; its
    setting is set again now. Re-applies of this boot stay: a revert needs them to know which values hosttune has
    written. Raises Refused.
    """
    transactions = site.transactions()
    again = (transaction for transaction in transactions if transaction.header.verb == AGAIN)
    old = [
        transaction
        for transaction in again
        if transaction.state != "applied" or transaction.header.boot_id != site.boot_id
    ]
    # A correction that the reboot cut off: the apply holds the original value. The others count (`keeping`).
    old += [
        transaction
        for transaction in transactions
        if transaction.header.verb == KEPT and transaction.is_open and _of_earlier_boot(site, transaction)
    ]
    for transaction in old:
        store.forget(transaction)
    settle_left(site, store, say, LATER, MEASURED)  # a power cut: what the first was about waits again
    refuse_open(site.transactions())


def settle_left(site: Site, store: Store, say: Say, *verbs: str) -> bool:
    """Roll back transactions of these verbs that were cut off; return whether there were any. Raises Refused."""
    left = [
        transaction for transaction in site.transactions() if transaction.header.verb in verbs and transaction.is_open
    ]
    for transaction in left:
        journal = store.reopen(transaction)
        try:
            settle(site.system, journal, transaction, say, same_boot=not _of_earlier_boot(site, transaction))
        finally:
            journal.close()
    return bool(left)


def _of_earlier_boot(site: Site, transaction: Transaction) -> bool:
    return site.boot_id is not None and transaction.header.boot_id != site.boot_id


def _again(
    site: Site, store: Store, number: int, record: Record, before: Iterable[Transaction], say: Say
) -> _RecordAtBoot:
    """Set one record again if it is not as wanted. It is read only now, because an earlier step may have changed it.

    `before`: journals of earlier re-applies of this record. This one replaces them.
    """
    prepared = _unless_in_use(site, prepare(site.system, [step_of(record)])[0])
    if prepared.is_noted:
        prepared = with_verdict(prepared, ALREADY, "as wanted, and the journal has it")
    if prepared.verdict != TODO:
        rows = entry(prepared)
        return _RecordAtBoot(rows, all(row.outcome in _FINE or row.outcome == record.outcome for row in rows))
    journal = store.begin(number, **facts_of(site, AGAIN))
    try:
        carried = carry_out(site.system, journal, [prepared], say)
    finally:
        journal.close()
    if 1 not in carried.made:
        return _RecordAtBoot((), fine=False, stopped=True)
    made = carried.made[1]
    for replaced in before:
        store.forget(replaced)
    fine = carried.succeeded and (made.outcome in _FINE or made.outcome == record.outcome)
    return _RecordAtBoot(
        entries(prepared.step, made.outcome, prepared.live, made.after, made.why), fine, carried.interrupted
    )


def _unless_in_use(site: Site, change: Prepared) -> Prepared:
    """Return the step, or a step that writes nothing if its device is in use or there are more pages than wanted."""
    setting = change.step.setting
    if change.verdict != TODO:
        return change
    more = isinstance(setting, MayGiveLess) and setting.satisfied_by(change.live, change.step.want)
    if more and all(action.when != "after-stop" for action in change.step.actions):
        return with_verdict(change, ALREADY, "more than was applied: left alone")
    addresses = setting.taken(site.system) if isinstance(setting, TakesDevice) else ()
    if not addresses:
        return change
    others = filter(None, (_another_device(site, address) for address in (setting.target, *addresses)))
    why = next(others, None) or "; ".join(holder.text for holder in holders(site.system, addresses))
    return with_verdict(change, UNREADABLE, why) if why else change


def _another_device(site: Site, address: str) -> str | None:
    """Return a message if the address now belongs to another device than the one planned for a guest.

    This happens when a card is added or removed, because buses then get other numbers. None: it is the same device, or
    no plan says which device it was. Raises BadInput for a saved plan that cannot be read.
    """
    plan = site.plan_in_force()
    known = {device.address: device.identity for guest in plan.guests for device in guest.devices} if plan else {}
    _, _, facts = known.get(address, "").partition(" ")
    planned = facts.partition(" ")[0]  # "10de:2335"
    read = (site.system.read(f"{sysfs.PCI_DEVICES}/{address}/{name}") or "?" for name in ("vendor", "device"))
    now = ":".join(text.strip().removeprefix("0x") for text in read)
    if not planned or "?" in f"{planned}{now}" or planned == now:
        return None
    return f"{address} is {now} now, and {planned} was given to a guest: left alone"


def step_of(record: Record, why: str = "set again after a reboot") -> SettingStep:
    """Return the step that makes a record's change again."""
    setting = setting_of_record(record)
    actions = [
        Action(
            id=name, kind=record.kind, target=record.target, current=None, want=record.new, effect="now",
            needed=False, reversible=True, why=why,
        )
        for name in record.actions
    ]  # fmt: skip
    return SettingStep(setting, record.new, tuple(actions), dict.fromkeys(record.actions, ""))
