"""`watch --keep`: set a drifted setting to its applied value again, through the ordinary journal, and never fight.

Only a setting whose knob declares it (`Knob.kept`). Everything is read anew each time: the journal (what is in force),
the setting's own value, and how often it was corrected. The count is in the journal, so it holds across restarts of the
agent. Nothing is done while another hosttune has the lock, with an open transaction, or after a revert that left
something alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hosttune.errors import Refused
from hosttune.journal import Record, Store, Transaction
from hosttune.journal.force import KEPT
from hosttune.knobs.registry import all_knobs
from hosttune.model.clock import seconds_of, since_boot
from hosttune.model.values import grouped
from hosttune.transaction.applied import drifted_records
from hosttune.transaction.booting import finish, step_of
from hosttune.transaction.engine import carry_out
from hosttune.transaction.site import Site, facts_of, next_number, refuse_open, writable_store
from hosttune.transaction.steps import TODO, prepare
from hosttune.transaction.writing import Say, interruptible

# After so many corrections of a knob at one place within so many seconds, something else wants another value.
LIMITS = ((2, 600.0), (6, 86400.0))
_LONGEST = max(seconds for _, seconds in LIMITS)


class Kept(NamedTuple):
    """What became of one drifted setting. `outcome`: corrected, failed, or given-up (corrected too often).

    `why`: for people, "" for none.
    """

    kind: str
    target: str
    outcome: str
    why: str = ""


class Keeping(NamedTuple):
    """One turn. `refused`: why nothing was done at all; None if the turn was made. `interrupted`: a signal came."""

    settings: tuple[Kept, ...] = ()
    refused: str | None = None
    interrupted: bool = False


def knob_to_keep(kind: str, target: str) -> str | None:
    """Return the name of the knob that a setting belongs to, if it may be kept; else None."""
    knobs = [knob for knob in all_knobs().values() if knob.setting.kind == kind]
    own = knobs if len(knobs) == 1 else [knob for knob in knobs if knob.name == target]
    return own[0].name if len(own) == 1 and own[0].kept else None


def keep(
    site: Site, say: Say, now: Callable[[], float] = time.time, uptime: Callable[[], float] = since_boot
) -> Keeping:
    """Correct what has drifted, as far as that may be. Raises Refused for a place that cannot be changed at all.

    `now`: seconds since the epoch, `uptime`: since the boot. A lock that is held, an unfinished transaction or an
    unreadable journal ends the turn with nothing done. Each setting is a transaction of its own, as after a boot: if
    one fails, it is rolled back, and the others stay.
    """
    store = writable_store(site)
    try:
        with store.locked(), interruptible():
            transactions = site.transactions()
            refuse_open(transactions)
            if site.standings(transactions).left_alone:
                return Keeping(refused="a revert left settings alone that something else had changed")
            return _turn(site, store, transactions, say, _Moment(site.boot_id, now(), uptime()))
    except Refused as error:
        return Keeping(refused=f"{error.what} ({error.where})")


class _Moment(NamedTuple):
    """A turn's boot, its seconds since the epoch and since the boot."""

    boot_id: str | None
    now: float
    uptime: float

    def age(self, transaction: Transaction) -> float:
        """Return how many seconds ago a correction was.

        In this boot by the clock that nobody sets. One of an earlier boot is at least as old as this boot. Else one of
        the future is of now.
        """
        header = transaction.header
        known = header.boot_id is not None and self.boot_id is not None
        then = header.uptime
        if known and header.boot_id == self.boot_id and isinstance(then, float) and then <= self.uptime:
            return self.uptime - then
        least = self.uptime if known and header.boot_id != self.boot_id else 0.0
        at = seconds_of(header.at)
        return least if at is None else max(least, self.now - at)


def _turn(site: Site, store: Store, transactions: Sequence[Transaction], say: Say, now: _Moment) -> Keeping:
    _forget_old(site, store, transactions, now)
    ended, failed = finish(site, store, say)
    word = "failed" if failed else "corrected"
    kept = [Kept(kind, target, word) for kind, _, target in (row.action.partition(":") for row in ended)]
    transactions = site.transactions()
    number = next_number(transactions)
    candidates = (setting for setting in site.standings(transactions).in_force if knob_to_keep(*setting.key))
    # the ages in seconds, by kind and target
    corrections = grouped(
        ((record.kind, record.target), now.age(transaction))
        for transaction in transactions
        if transaction.header.verb == KEPT
        for record in transaction.records
    )
    for record in drifted_records(site, candidates):
        ages = corrections.setdefault((record.kind, record.target), [])
        if (limit := _limit(ages)) is not None:
            kept.append(Kept(record.kind, record.target, "given-up", limit))
            continue
        done, interrupted = _correct(site, store, number, record, say, now.uptime)
        if done is None:
            continue
        kept.append(done)
        ages.append(0.0)
        number += 1
        if interrupted:
            return Keeping(tuple(kept), interrupted=True)
    return Keeping(tuple(kept))


def _correct(
    site: Site, store: Store, number: int, record: Record, say: Say, uptime: float
) -> tuple[Kept | None, bool]:
    """Set one record's value again. Return (None, False) if nothing is left to write, else (what was done, stopped)."""
    step = prepare(site.system, [step_of(record, "drifted, and kept (hosttune watch --keep)")])[0]
    if step.verdict != TODO:
        return None, False
    journal = store.begin(number, **facts_of(site, KEPT, uptime=round(uptime, 1)))
    try:
        carried = carry_out(site.system, journal, [step], say)
    finally:
        journal.close()
    made = carried.made.get(1)
    good = carried.succeeded and made is not None and made.outcome in ("done", record.outcome)
    why = "" if good or made is None else made.why or made.outcome
    return Kept(record.kind, record.target, "corrected" if good else "failed", why), carried.interrupted


def _limit(ages: Sequence[float]) -> str | None:
    """Return why a knob is not corrected once more; None if it may be."""
    for most, seconds in LIMITS:
        if sum(age < seconds for age in ages) >= most:
            within = f"{seconds / 60:g} minutes" if seconds < 3600 else f"{seconds / 3600:g} hours"
            return f"corrected {most} times within {within}: something else sets it too"
    return None


def _forget_old(site: Site, store: Store, transactions: Sequence[Transaction], now: _Moment) -> None:
    """Delete the journals of corrections that no longer count, but for the newest of a setting in this boot.

    A revert needs that one, to know the value that hosttune wrote last.
    """
    newest = {
        (record.kind, record.target): transaction
        for transaction in transactions
        if transaction.header.verb == KEPT
        for record in transaction.records
    }
    for transaction in transactions:
        needed = any(
            newest[record.kind, record.target] is transaction
            for record in transaction.records
            if transaction.header.verb == KEPT
        )
        same_boot = transaction.header.boot_id == site.boot_id
        if transaction.header.verb == KEPT and now.age(transaction) >= _LONGEST and not (needed and same_boot):
            store.forget(transaction)
