"""`apply --boot`: what a reboot has undone is set again, from the journal. Run by the boot unit."""

from __future__ import annotations

from collections.abc import Callable

from hosttune import __version__
from hosttune.journal import Record, in_force
from hosttune.model.host import Host
from hosttune.model.plan import Action
from hosttune.model.result import Entry, Result
from hosttune.settings.setting import RUNTIME
from hosttune.transaction.engine import Say, carry_out, interruptible
from hosttune.transaction.site import Site, described, must_write, refuse_open
from hosttune.transaction.steps import TODO, Step, entries, entry, prepare, setting_of_record
from hosttune.transaction.undoing import NO, SUCCESS, status

_BOOT = "boot"


def reapply(site: Site, discover: Callable[[], Host], say: Say) -> tuple[Result, int]:
    """Set again every runtime setting in force. What cannot be set is told and left; the originals stay as recorded.

    Each setting is a transaction of its own here: one that fails takes nothing else with it, for a host that boots
    with most of its settings serves better than one with none. 1 where one failed. Raises Refused.
    """
    store = must_write(site)
    with store.locked(), interruptible():
        transactions = site.transactions()
        refuse_open(transactions)
        for old in transactions:
            if old.header.verb == _BOOT:
                store.forget(old)  # nothing of it is ever taken back: the originals are in the applies themselves
        records = [one for one in in_force(transactions).values() if setting_of_record(one).scope == RUNTIME]
        prepared = prepare(site.system, [step_of(record) for record in records], {})
        found: list[Entry] = []
        failed = False
        number = 1 + max((one.header.number for one in transactions), default=0)
        for one in prepared:
            if one.verdict != TODO:
                found += entry(one)
                continue
            journal = store.begin(number, verb=_BOOT, version=__version__, host=site.hostname, boot_id=site.boot_id)
            try:
                carried = carry_out(site.system, journal, [one], say)
            finally:
                journal.close()
            made = carried.made[1]
            found += entries(one.step, made.outcome, one.live, made.after, made.why)
            failed = failed or not carried.succeeded
            number += 1
        left = next((one for one in site.transactions() if one.is_open), None)
        standing, _ = status(site)
        result = Result(
            host=site.hostname,
            verb="apply",
            changed=any(row.outcome in ("done", "clamped") for row in found),
            reboot_required=standing.reboot_required,
            entries=tuple(found),
            drift=standing.drift,
            open_transaction=described(left) if left else None,
        )
        return result, NO if failed or left else SUCCESS


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
