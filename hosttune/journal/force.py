"""What is in force: the journals of all transactions, folded in the order of their numbers.

A setting counts by its parts (a CPU of a list, an argument of several): the original value is that before hosttune's
first write, the wanted one that of the newest. What was put back is not in force any more. Pure: the journals and the
plans kept beside them are all that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.journal.records import RETIRED, TAKING_AWAY, Record, Transaction
from hosttune.model.force import GuestInForce, InForce, SettingInForce, Wanted
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import Action, AdoptedGuest, Plan, PlannedGuest
from hosttune.model.values import FrozenMap, freeze
from hosttune.settings.setting import BOOT, Divisible, Setting, WrittenTogether

AGAIN, KEPT = "boot", "keep"  # verbs of transactions that set again what is in force; they are never reverted
LATER = "after-stop"  # the verb of a transaction that does what a plan in force has left for the end of a guest's run
MEASURED = "validate"  # the verb of a transaction that lasts for a measurement
GUEST, ADOPTED = "guest", "adopted-guest"
# Kinds that follow from the guests and settings of a plan: no plan has an action of one.
FOLLOWING = (GUEST, ADOPTED, "guest-disk", "guest-files", "guest-state", "guest-autostart", "drop-in")
_CLOSED = ("applied", "kept", "reverted")
SettingOf = Callable[[Record], Setting]
PlanOf = Callable[[Transaction], Plan | None]
_Key = tuple[str, str, str]  # kind, target ("" where parts are settings of their own), part


class StandingSetting(msgspec.Struct, frozen=True):
    """A setting as the journals leave it.

    Of `record`, `old` is the value before hosttune's first write; all else is of the newest write, cut to the parts
    that still count. `undoing`: putting it back was cut off, or failed. `again`: the value after it was set again
    since (None: it was not), during the boot `boot_id`.
    """

    record: Record
    number: int
    boot_id: str | None
    again: Any = None

    @property
    def key(self) -> tuple[str, str]:
        """Return kind and target."""
        return self.record.kind, self.record.target


class Standings(msgspec.Struct, frozen=True):
    """The settings by what became of them, oldest write first.

    `dropped`: a write changed nothing. `left_alone`: it was not put back because something else had changed it.
    """

    in_force: tuple[StandingSetting, ...]
    dropped: tuple[StandingSetting, ...]
    left_alone: tuple[StandingSetting, ...]


class _PartInForce(msgspec.Struct, frozen=True):
    old: Any
    record: Record
    number: int
    boot_id: str | None
    again: Any = None


_Parts = dict[_Key, _PartInForce]


def counts(transaction: Transaction) -> bool:
    """Return whether a transaction is one of which something is in force: finished, and not rolled back as a whole."""
    return transaction.is_applied or any(record.in_force for record in transaction.records)


def standings(transactions: Iterable[Transaction], setting_of: SettingOf) -> Standings:
    """Return the settings as these transactions leave them. An interrupted apply does not count before its rollback."""
    force: _Parts = {}
    dropped: _Parts = {}
    left: _Parts = {}
    for transaction in transactions:
        verb = transaction.header.verb
        if verb in (AGAIN, KEPT):
            for record in transaction.records if transaction.state == "applied" else ():
                setting = setting_of(record)
                after = setting.parts(freeze(record.after))
                for key, name in _keys_of(setting, record.new):
                    if key in force and not record.dropped:
                        force[key] = replace(force[key], again=after.get(name), boot_id=transaction.header.boot_id)
        elif transaction.state != "applying":
            for record in transaction.records:
                take = _set if record.change == "set" else _put_back
                take(transaction, record, setting_of(record), force, dropped, left)
            if transaction.goes_on and not transaction.is_open:
                dropped.clear()  # nothing wants these any more
    return Standings(*(tuple(_grouped(parts, setting_of)) for parts in (force, dropped, left)))


def _keys_of(setting: Setting, value: Any) -> Iterator[tuple[_Key, str]]:
    """Yield all keys; a part that has no value now, as threads and interrupts of a guest that is off, has one, too."""
    target = "" if isinstance(setting, Divisible) else setting.target
    names = setting.names if isinstance(setting, WrittenTogether) else ()
    parts = dict.fromkeys((*setting.parts(freeze(value)), *names))
    yield from (((setting.kind, target, name), name) for name in parts or ({} if target == "" else {"": None}))


def _set(
    transaction: Transaction, record: Record, setting: Setting, force: _Parts, dropped: _Parts, left: _Parts
) -> None:
    if not setting.undone_later:
        return
    old = setting.parts(freeze(record.old))
    for key, name in _keys_of(setting, record.new):
        known = force.get(key) or left.get(key)
        header = transaction.header
        part = _PartInForce(known.old if known else old.get(name), record, header.number, header.boot_id)
        if record.in_force:
            force[key] = part
            left.pop(key, None)
            dropped.pop(key, None)
        elif record.to_undo:  # its rollback left alone what something else had changed
            left |= {} if key in force else {key: part}
        elif record.dropped and transaction.is_applied:
            dropped[key] = part


def _put_back(
    transaction: Transaction, record: Record, setting: Setting, force: _Parts, dropped: _Parts, left: _Parts
) -> None:
    """Take out the parts that were put back. A rollback of that has set them again."""
    if record.undone in ("reverted", "already"):
        return
    after, new = (setting.parts(freeze(value)) for value in (record.after, record.new))
    parts = [(key, name, force.get(key) or left.get(key)) for key, name in _keys_of(setting, record.new)]
    back = {key for key, name, known in parts if known and after.get(name) == freeze(known.old) == new.get(name)}
    if not isinstance(setting, Divisible) and len(back) < len(parts):
        back = set()  # it is written as a whole
    for key, _, known in parts:
        if known is None:
            continue
        if record.outcome in ("done", "already", "reverted") or (record.outcome == "conflict" and key in back):
            force.pop(key, None)
            left.pop(key, None)
        elif record.outcome == "conflict":
            force.pop(key, None)
            left[key] = known
        elif key in force:
            force[key] = replace(known, record=msgspec.structs.replace(known.record, undoing=True))


def _grouped(parts: _Parts, setting_of: SettingOf) -> Iterator[StandingSetting]:
    """Yield one standing for each step that wrote last, with those of its parts that no newer step has written."""
    groups: dict[tuple[int, int, str, str], dict[str, _PartInForce]] = {}
    for (kind, target, name), part in parts.items():
        groups.setdefault((part.number, part.record.step, kind, target), {})[name] = part
    for (number, *_), group in sorted(groups.items()):
        last = next(iter(group.values()))
        setting = setting_of(last.record)
        again = {name: part.again for name, part in group.items()}
        whole = None not in again.values()
        record = cut(last.record, setting, group)
        joined = setting_of(record).joined
        record = msgspec.structs.replace(record, old=joined({name: part.old for name, part in group.items()}))
        yield StandingSetting(record, number, last.boot_id, joined(again) if whole else None)


def left_by(
    rows: Iterable[StandingSetting], backs: Iterable[Setting], setting_of: SettingOf
) -> Iterator[StandingSetting]:
    """Yield the settings that stay in force when these are put back; of one that goes in part, the whole."""
    gone = {key for setting in backs for key, _ in _keys_of(setting, None)}
    for row in rows:
        if any(key not in gone for key, _ in _keys_of(setting_of(row.record), row.record.new)):
            yield row


def cut(record: Record, setting: Setting, names: Iterable[str]) -> Record:
    """Return the record cut to these parts of its setting."""
    kept = set(names)
    if not isinstance(setting, Divisible) or kept >= setting.parts(freeze(record.new)).keys():
        return record
    target = setting.target_of(kept)
    part = type(setting).restored(target)

    def only(value: Any) -> Any:
        if value is None:
            return None
        return part.joined({name: one for name, one in setting.parts(freeze(value)).items() if name in kept})

    together = isinstance(setting, WrittenTogether)
    actions = tuple(action for action in record.actions if not together or action.partition(":")[2] in kept)
    return msgspec.structs.replace(
        record, target=target, actions=actions, old=only(record.old), new=only(record.new), after=only(record.after)
    )


# --- the document --------------------------------------------------------------------------------------------


class _PlannedOnce(msgspec.Struct, frozen=True):
    number: int
    plan: Plan
    guest: PlannedGuest
    adopted: AdoptedGuest | None = None

    @property
    def request(self) -> GuestIntent:
        """Return what the intent asks for this guest."""
        name = self.guest.name
        return next(
            (guest_intent for guest_intent in self.plan.intent.guests if guest_intent.name == name),
            GuestIntent(name=name),
        )


def fold(transactions: Iterable[Transaction], plan_of: PlanOf, setting_of: SettingOf) -> InForce:
    """Return what is in force. `plan_of` returns the plan kept with a transaction, None if there is none.

    Raises what `plan_of` raises.
    """
    known = tuple(transactions)
    plans = tuple(_plans(known, plan_of))
    standing = standings(known, setting_of).in_force
    sources = {
        number: plan.source
        for number, plan in ((transaction.header.number, plan) for transaction, plan in plans)
        if plan
    }
    profile: Any = None
    wanted: dict[str, Wanted] = {}
    for _, plan in plans:
        if plan is None:  # all of it was reverted
            profile, wanted = None, {}
            continue
        settings = plan.intent.settings or {}
        if plan.prune and plan.source is not None and plan.source.kind == "file":
            wanted = {name: old for name, old in wanted.items() if old.source is None or old.source.kind != "file"}
        wanted |= {name: Wanted(value=value, source=plan.source) for name, value in settings.items()}
        wanted = {name: new for name, new in wanted.items() if new.value != "keep"}
        profile = plan.intent.profile
    return InForce(
        last=newest(known),
        profile=profile,
        guests=tuple(_guests(known, plans, standing)),
        settings=tuple(
            _setting(setting, setting_of, sources) for setting in standing if setting.record.kind not in FOLLOWING
        ),
        wanted=FrozenMap(wanted),
    )


def newest(transactions: Iterable[Transaction]) -> int:
    """Return the number of the newest finished transaction that changed what is in force; 0 for none."""
    return max((transaction.header.number for transaction in transactions if changes_force(transaction)), default=0)


def changes_force(transaction: Transaction) -> bool:
    """Return whether a finished transaction changed what is in force: not one that set it again or was rolled back."""
    if transaction.header.verb in (AGAIN, KEPT, LATER, MEASURED) or transaction.state not in _CLOSED:
        return False
    return transaction.goes_on or transaction.state != "reverted"


def _plans(transactions: Iterable[Transaction], plan_of: PlanOf) -> Iterator[tuple[Transaction, Plan | None]]:
    """Yield each transaction that counts with its plan; None for a revert, which has none."""
    for transaction in transactions:
        if transaction.goes_on and transaction.state in _CLOSED:
            yield transaction, None
        elif (
            transaction.header.verb in ("apply", TAKING_AWAY)
            and transaction.state != "applying"
            and counts(transaction)
        ):
            plan = plan_of(transaction)
            yield from [] if plan is None else [(transaction, plan)]


def planned_guests(plans: Iterable[tuple[Transaction, Plan | None]]) -> dict[str, _PlannedOnce]:
    """Return the guests of applied plans by name, each of the newest plan that has it, without those taken away.

    Of an apply that was reverted in part: those whose definitions are in force.
    """
    planneds: dict[str, _PlannedOnce] = {}
    for transaction, plan in plans:
        gone = [
            record.target
            for record in transaction.records
            if record.change == "back" and record.kind in (GUEST, ADOPTED)
        ]
        planneds = {} if plan is None else {name: known for name, known in planneds.items() if name not in gone}
        if plan is None:
            continue
        left = {record.target for record in transaction.records if record.in_force and record.kind in (GUEST, ADOPTED)}
        number = transaction.header.number
        new = {guest.name: _PlannedOnce(number, plan, guest) for guest in plan.guests}
        new |= {adopted.name: _PlannedOnce(number, plan, adopted.guest, adopted) for adopted in plan.adoptions}
        planneds |= {name: planned for name, planned in new.items() if transaction.is_applied or name in left}
    return planneds


def _guests(
    transactions: tuple[Transaction, ...],
    plans: tuple[tuple[Transaction, Plan | None], ...],
    standing: tuple[StandingSetting, ...],
) -> Iterator[GuestInForce]:
    defined = {setting.record.target: setting for setting in standing if setting.record.kind in (GUEST, ADOPTED)}
    for name, known in planned_guests(plans).items():
        if name not in defined:
            continue
        yield GuestInForce(
            name=name,
            uuid=known.adopted.uuid if known.adopted else _uuid(defined[name].record.after),
            request=known.request,
            reserve=known.plan.intent.reserve,
            places=known.guest,
            adopted=known.adopted,
            source=known.plan.source,
            number=known.number,
        )


def _uuid(definition: Any) -> str | None:
    from hosttune.domain.reader import read_domain  # few commands need it

    try:
        return read_domain(definition, where="journal").uuid if isinstance(definition, str) else None
    except BadInput:
        return None


def _setting(standing_setting: StandingSetting, setting_of: SettingOf, sources: Mapping[int, Any]) -> SettingInForce:
    record, setting = standing_setting.record, setting_of(standing_setting.record)
    after = record.after if standing_setting.again is None else standing_setting.again
    return SettingInForce(
        kind=record.kind,
        target=record.target,
        original=setting.parts(freeze(record.old)),
        want=setting.parts(freeze(record.new)),
        after=setting.parts(freeze(after)),
        outcome=record.outcome or "done",
        scope=record.scope,
        actions=record.actions,
        source=sources.get(standing_setting.number),
        number=standing_setting.number,
    )


def newest_plan(transactions: Iterable[Transaction], plan_of: PlanOf) -> tuple[Transaction, Plan] | None:
    """Return the plan applied last, with its transaction; None if there is none, or if all was reverted since.

    Raises what `plan_of` raises.
    """
    for transaction in reversed(tuple(transactions)):
        for _, plan in _plans((transaction,), plan_of):
            return None if plan is None else (transaction, plan)
    return None


def waiting(transactions: Iterable[Transaction], since: Transaction, plan: Plan) -> Iterator[Action]:
    """Yield what the newest plan has left for the end of guests' runs and no transaction has done yet."""

    def key(one: Record | Action, value: Any) -> tuple[str, str, Any]:
        return one.kind, one.target, None if one.change == "back" else freeze(value)

    later = (
        transaction
        for transaction in transactions
        if transaction.header.number >= since.header.number and transaction.state == "applied"
    )
    done = {key(record, record.new) for transaction in later for record in transaction.records}
    yield from (
        action for action in plan.actions if action.when == "after-stop" and key(action, action.want) not in done
    )


def plan_in_force(transactions: Iterable[Transaction], plan_of: PlanOf, setting_of: SettingOf) -> Plan | None:
    """Return what is in force as one plan: the newest one, with the guests and values of earlier ones that still stand.

    Its guests may be ones that hosttune did not define (`--no-guests`). Raises what `plan_of` raises.
    """
    known = tuple(transactions)
    plans = tuple(_plans(known, plan_of))
    transaction, plan = plans[-1] if plans else (None, None)
    if transaction is None or plan is None:
        return None
    rows = standings(known, setting_of)
    gone = {name for setting in rows.dropped for name in setting.record.actions}
    left = {action.id for action in plan.actions if action.change == "back" or action.when == "after-stop"}
    gone |= left if transaction.is_applied else {action.id for action in plan.actions}
    actions = {action.id: action for action in plan.actions if action.id not in gone}
    for setting in rows.in_force:
        if setting.record.kind not in FOLLOWING:
            actions |= {action.id: action for action in _actions(setting.record, setting_of(setting.record))}
    guests = planned_guests(plans).values()
    if not (actions or guests):
        return None
    fabric = next((plan.intent.fabric for _, plan in reversed(plans) if plan and plan.intent.fabric), None)
    requests = tuple(planned.request for planned in guests)
    return msgspec.structs.replace(
        plan,
        intent=msgspec.structs.replace(plan.intent, guests=requests, fabric=fabric),
        actions=tuple(actions.values()),
        guests=tuple(planned.guest for planned in guests if planned.adopted is None),
        adoptions=tuple(planned.adopted for planned in guests if planned.adopted is not None),
    )


def _actions(record: Record, setting: Setting) -> Iterator[Action]:
    """Yield the actions of a record that is in force, each with its own part of the values."""
    old, new = setting.parts(freeze(record.old)), setting.parts(freeze(record.new))
    for name in record.actions:
        part = name.partition(":")[2] if isinstance(setting, WrittenTogether) else None
        yield Action(
            id=name, kind=record.kind, target=record.target if part is None else part,
            current=record.old if part is None else old.get(part), want=record.new if part is None else new.get(part),
            effect="reboot" if record.scope == BOOT else "now", needed=record.needed, reversible=True,
            why="in force",
        )  # fmt: skip


def without_retired(plan: Plan) -> Plan:
    """Return a kept plan without the actions of kinds that this version does not have."""
    return msgspec.structs.replace(plan, actions=tuple(action for action in plan.actions if action.kind not in RETIRED))
