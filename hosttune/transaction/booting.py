"""`apply --boot`: what a reboot has undone is set again, from the journal. Run by the boot unit.

Nothing here asks libvirt: the unit runs before it, and a call to its socket would wait for a daemon that waits for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hosttune import __version__
from hosttune.holders import holders
from hosttune.journal import Record, Store, Transaction, in_force
from hosttune.model import sysfs
from hosttune.model.plan import Action
from hosttune.model.result import Entry, Result
from hosttune.settings.setting import GUEST_STAGE, RUNTIME, START_STAGE
from hosttune.transaction.engine import Say, carry_out, interruptible
from hosttune.transaction.site import Site, described, must_write, refuse_open
from hosttune.transaction.steps import (
    ALREADY,
    PENDING,
    TODO,
    UNREADABLE,
    VERDICT_OUTCOMES,
    Prepared,
    Step,
    entries,
    entry,
    prepare,
    setting_of_record,
    with_verdict,
)
from hosttune.transaction.undoing import AGAIN, NO, SUCCESS, applied_plans, reboot_required, standing

_FINE = ("done", VERDICT_OUTCOMES[ALREADY], VERDICT_OUTCOMES[PENDING])


@dataclass(frozen=True)
class _Turn:
    """What became of setting one record again; `stopped`: somebody asked the whole to end."""

    entries: Sequence[Entry]
    fine: bool
    stopped: bool = False


def reapply(site: Site, say: Say) -> tuple[Result, int]:
    """Set again every runtime setting in force. What cannot be set is told and left; the originals stay as recorded.

    Each setting is a transaction of its own here: one that fails takes nothing else with it, for a host that boots
    with most of its settings serves better than one with none. Guests are not started: that is their autostart's. 1
    where one is not as the apply left it. Raises Refused.
    """
    store = must_write(site)
    with store.locked(), interruptible():
        kept = _without_old(site, store)
        records = [one for one in in_force(kept).values() if setting_of_record(one).stage not in _GUESTS]
        number = 1 + max((one.header.number for one in site.transactions()), default=0)
        found: list[Entry] = []
        failed = False
        for record in records:
            if setting_of_record(record).scope != RUNTIME:
                continue
            before = tuple(one for one in kept if one.header.verb == AGAIN and _is_of(one, record))
            turn = _again(site, store, number, record, before, say)
            found += turn.entries
            failed = failed or not turn.fine
            number += 1
            if turn.stopped:
                break
        transactions = site.transactions()
        left = next((one for one in transactions if one.is_open), None)
        now, drift = standing(site, records)
        result = Result(
            host=site.hostname,
            verb="apply",
            changed=any(row.outcome in ("done", "clamped") for row in found),
            reboot_required=any(row.outcome == "pending" for row in now) or reboot_required(site, transactions),
            entries=tuple(found),
            drift=tuple(drift),
            open_transaction=described(left) if left else None,
        )
        return result, NO if failed or left else SUCCESS


_GUESTS = (GUEST_STAGE, START_STAGE)  # what libvirt alone can tell


def _without_old(site: Site, store: Store) -> tuple[Transaction, ...]:
    """The journals, those of earlier re-applies forgotten: the originals are in the applies themselves. Raises Refused.

    One that was cut off goes too, else a power cut during one boot would hold up every later one; what it was about is
    set again now. Those of this boot stay: they tell a revert what is ours.
    """
    transactions = site.transactions()
    again = (one for one in transactions if one.header.verb == AGAIN)
    old = [one for one in again if one.state != "applied" or one.header.boot_id != site.boot_id]
    for one in old:
        store.forget(one)
    kept = tuple(one for one in transactions if one not in old)
    refuse_open(kept)
    return kept


def _is_of(transaction: Transaction, record: Record) -> bool:
    return any((one.kind, one.target) == (record.kind, record.target) for one in transaction.records)


def _again(site: Site, store: Store, number: int, record: Record, before: Iterable[Transaction], say: Say) -> _Turn:
    """Set one record again, if it is not as wanted. Looked at only now: an earlier one may have changed it.

    `before`: the journals of its having been set again before, which this one replaces.
    """
    one = _judged(site, prepare(site.system, [step_of(record)], {})[0])
    if one.verdict != TODO:
        rows = entry(one)
        return _Turn(rows, all(row.outcome in _FINE or row.outcome == record.outcome for row in rows))
    journal = store.begin(
        number, verb=AGAIN, version=__version__, host=site.hostname, boot_id=site.boot_id, machine=site.machine
    )
    try:
        carried = carry_out(site.system, journal, [one], say)
    finally:
        journal.close()
    if 1 not in carried.made:
        return _Turn((), fine=False, stopped=True)
    made = carried.made[1]
    for replaced in before:
        store.forget(replaced)
    fine = carried.succeeded and (made.outcome in _FINE or made.outcome == record.outcome)
    return _Turn(entries(one.step, made.outcome, one.live, made.after, made.why), fine, carried.interrupted)


def _judged(site: Site, one: Prepared) -> Prepared:
    """The same step; what somebody uses, and pages that somebody has added, are left alone."""
    setting = one.step.setting
    if one.verdict != TODO:
        return one
    if setting.enough(one.live, one.step.want):
        return with_verdict(one, ALREADY, "more than was applied: left alone")
    addresses = setting.taken(site.system)
    if not addresses:
        return one
    other = _another_device(site, setting.target)
    why = other or "; ".join(holder.text for holder in holders(site.system, addresses))
    return with_verdict(one, UNREADABLE, why) if why else one


def _another_device(site: Site, address: str) -> str | None:
    """That another device is where a guest's was planned: a card more or less, and buses get other numbers.

    None where it is the same one, or no plan says which it was. Raises BadInput for a kept plan that does not read.
    """
    known = {device.address: device.identity for p in applied_plans(site) for g in p.guests for device in g.devices}
    _, _, facts = known.get(address, "").partition(" ")
    planned = facts.partition(" ")[0]  # "10de:2335"
    read = (site.system.read(f"{sysfs.PCI_DEVICES}/{address}/{name}") or "?" for name in ("vendor", "device"))
    now = ":".join(text.strip().removeprefix("0x") for text in read)
    if not planned or "?" in f"{planned}{now}" or planned == now:
        return None
    return f"{address} is {now} now, and {planned} was given to a guest: left alone"


def step_of(record: Record) -> Step:
    """The step that does a record again."""
    setting = setting_of_record(record)
    actions = [
        Action(
            id=name, kind=record.kind, target=record.target, current=None, want=record.new, effect="now",
            needed=False, reversible=True, why="set again after a reboot",
        )
        for name in record.actions
    ]  # fmt: skip
    return Step(setting, record.new, tuple(actions), dict.fromkeys(record.actions, ""))
