"""The steps of a transaction, in order: one step for each setting, with the actions of the plan that it covers.

This module only reads. The present value of each setting gives its verdict before the first write.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput, HosttuneError, Refused, Unreadable
from hosttune.journal import Record
from hosttune.journal.force import cut
from hosttune.machine.system import System
from hosttune.model.plan import Action
from hosttune.model.result import Entry
from hosttune.model.settingtext import short_lists
from hosttune.model.values import FrozenMap, freeze, value_text
from hosttune.settings.setting import (
    BOOT,
    Divisible,
    EditedInPlace,
    MayGiveLess,
    ServedByOthers,
    Setting,
    WrittenTogether,
)
from hosttune.transaction.rehearsal import MissesNoted

TODO, ALREADY, PENDING, AS_FOUND, ABSENT, UNREADABLE = "todo", "already", "pending", "as-found", "absent", "unreadable"
# Outcomes of steps that are not carried out. `ignored` is not among them, because it is the outcome of a write.
VERDICT_OUTCOMES = {ALREADY: "already", PENDING: "pending", ABSENT: "failed", UNREADABLE: "failed", TODO: "planned"}
GIVEN_UP = "given up: left as it is"
LONGEST_TEXT = 200  # characters of a value within a sentence


class SettingStep(msgspec.Struct, frozen=True):
    """One setting and its wanted value. `parts`: action id -> the part of the setting that it is about ("" = all).

    `back`: the value is the original one, and the setting is in force no more after it; `origin` is its record then.
    `whole`: what is written, where that is more than what is wanted (a definition with what others have added to it).
    """

    setting: Setting
    want: Any
    actions: tuple[Action, ...]
    parts: Mapping[str, str]
    at_boot: bool = False  # what is missing now is staged for the next boot, so it is not rolled back
    back: bool = False
    origin: Record | None = None
    whole: Any = None
    gives_up: bool = False  # nothing is written: the journal says that it is in force no more

    @property
    def written(self) -> Any:
        """Return what is written."""
        return self.want if self.whole is None else self.whole

    @property
    def needed(self) -> bool:
        """Return whether the guests cannot work without it."""
        return any(action.needed for action in self.actions)

    @property
    def holders(self) -> tuple[str, ...]:
        """Return the guests whose present run holds it."""
        return tuple(dict.fromkeys(name for action in self.actions for name in action.holders))

    @property
    def name(self) -> str:
        """Return its kind and target, for messages."""
        return short_lists(f"{self.setting.kind} {self.setting.target}".rstrip())


class Prepared(msgspec.Struct, frozen=True):
    """A step with what was read: `live` is what it is set to, `effective` is what works now."""

    step: SettingStep
    verdict: str
    live: Any = None
    effective: Any = None
    why: str | None = None
    outcome: str | None = None  # for AS_FOUND: the outcome of the earlier attempt
    unrecorded: bool = False  # the capture does not have the value: it is the plan's, and None is unknown

    @property
    def is_noted(self) -> bool:
        """Return whether nothing is to be written: the journal must only say that it is in force."""
        return self.step.setting.in_force_as_found and self.step.setting.agrees(self.live, self.step.want)

    @property
    def before(self) -> Any:
        """Return the value to show as the present one: `effective`, or `live` if only `live` is not as wanted."""
        setting = self.step.setting
        apart = setting.scope != BOOT and self.verdict == TODO and setting.agrees(self.effective, self.step.want)
        return self.live if apart else self.effective


def steps_of(actions: Iterable[Action]) -> tuple[SettingStep, ...]:
    """Return the steps of a plan's actions, ordered by stage, then as in the plan.

    Raises BadInput for an unknown kind, a target or value that the kind cannot have, and two actions for one setting.
    """

    from hosttune.transaction.kinds import setting_of  # all kinds: not imported where there is no action

    single: list[SettingStep] = []
    merging: dict[tuple[type[WrittenTogether], bool], list[tuple[Action, Setting]]] = {}
    seen: set[tuple[str, str]] = set()
    for action in actions:
        if (action.kind, action.target) in seen:
            where = f"action {action.kind}:{action.target}"
            raise BadInput("two actions for one setting", where=where, hint="plan again")
        seen.add((action.kind, action.target))
        setting = setting_of(action.kind, action.target)
        back = action.change == "back"
        if isinstance(setting, WrittenTogether):
            merging.setdefault((type(setting), back), []).append((action, setting))
            continue
        if not back:  # an original is what was read here: it is compared with the journal, not with what plans can ask
            setting.check(action.want)
        single.append(SettingStep(setting, freeze(action.want), (action,), FrozenMap({action.id: ""}), back=back))
    return in_order((*single, *(_merged(kind, settings, back=back) for (kind, back), settings in merging.items())))


def back_step(record: Record, why: str = "not wanted any more", *, gives_up: bool = False) -> SettingStep:
    """Return the step that puts a setting in force back to its original, or gives it up as it is."""
    setting = setting_of_record(record)
    want = record.after if gives_up else record.old
    actions = [
        Action(
            id=name, kind=record.kind, target=record.target, current=record.new, want=want, effect="now",
            needed=record.needed, reversible=True, why=why, change="back",
        )
        for name in record.actions
    ]  # fmt: skip
    parts = FrozenMap({name: name.partition(":")[2] for name in record.actions})
    parts = parts if isinstance(setting, WrittenTogether) else FrozenMap(dict.fromkeys(record.actions, ""))
    return SettingStep(
        setting, freeze(want), tuple(actions), parts, back=True, origin=None if gives_up else record, gives_up=gives_up
    )


def held_by(names: Sequence[str]) -> str:
    """Return why a step waits for the end of guests' present runs, and what to do."""
    ends = " && ".join(f"virsh shutdown {shlex.quote(name)}" for name in names)
    return f"guest {', '.join(names)} still runs on it: {ends}, then hosttune apply --start"


def with_origin(step: SettingStep, known: Iterable[Record]) -> SettingStep | None:
    """Return a way back with the record in force that it is of; None if it is not in force any more.

    Raises Refused if the journal has another original.
    """
    record = record_of(step.setting, {(record.kind, record.target): record for record in known})
    parts = step.setting.parts
    if record is None:
        return None
    if parts(freeze(record.old)) != parts(step.want):
        what = f"the plan is stale: it puts {step.name} back to {shown_text(step.setting, step.want)},"
        original = shown_text(step.setting, record.old)
        raise Refused(f"{what} and its original is {original}", where="plan: actions", hint="plan again: hosttune plan")
    return replace(step, origin=record)


def in_order(steps: Iterable[SettingStep]) -> tuple[SettingStep, ...]:
    """Sort steps into the order of execution.

    First the ways back, by stage from the last to the first, and the newest first; then what is set, by stage. Within a
    stage those that are written together come last. Pages come back at the very end: until then a guest may have them.
    """

    def place(step: SettingStep) -> tuple[int, int, bool]:
        if step.back:
            return (2, 0, False) if isinstance(step.setting, MayGiveLess) else (0, -step.setting.stage, False)
        return 1, step.setting.stage, isinstance(step.setting, WrittenTogether)

    known = tuple(steps)
    backs = (step for step in reversed(known) if step.back)
    return tuple(sorted((*backs, *(step for step in known if not step.back)), key=place))


def _merged(kind: type[WrittenTogether], settings: list[tuple[Action, Setting]], *, back: bool) -> SettingStep:
    """Return one step for all actions of a kind whose settings are written together. A part is an action's target."""
    setting = kind.merged([setting for _, setting in settings])
    want = freeze({action.target: action.want for action, _ in settings})
    if not back:
        setting.check(want)
    actions = tuple(action for action, _ in settings)
    return SettingStep(setting, want, actions, FrozenMap({action.id: action.target for action in actions}), back=back)


def prepare(system: System, steps: Iterable[SettingStep], told: Iterable[Record] = ()) -> tuple[Prepared, ...]:
    """Read every step's setting. `told`: the records of settings in force and of earlier attempts; the last counts."""
    known = {(record.kind, record.target): record for record in told}
    return tuple(_prepare(system, step, record_of(step.setting, known)) for step in steps)


def record_of(setting: Setting, known: Mapping[tuple[str, str], Record]) -> Record | None:
    """Return the record of a setting, cut to its parts if it is of more; None if there is none."""
    record = known.get((setting.kind, setting.target))
    if record is not None or not isinstance(setting, Divisible):
        return record
    names = setting.parts(None).keys()
    for (kind, _), other in known.items():
        if kind == setting.kind and names <= setting_of_record(other).parts(None).keys():
            return cut(other, setting_of_record(other), names)
    return None


def covered(prepared: Iterable[Prepared]) -> tuple[Prepared, ...]:
    """Return the steps; `at_boot` is set for those whose shortfall is, or will be, staged for the next boot."""
    steps = tuple(prepared)
    asked = {covered_by(change.step.setting) for change in steps}
    staged = {
        (change.step.setting.kind, part)
        for change in steps
        for part in change.step.parts.values()
        if (change.step.setting.kind, part) in asked
        and (change.verdict in (TODO, ALREADY) or change.step.setting.agrees(change.live, change.step.want))
    }
    return tuple(
        replace(change, step=replace(change.step, at_boot=True))
        if covered_by(change.step.setting) in staged
        else change
        for change in steps
    )


def covered_by(setting: Setting) -> tuple[str, str] | None:
    """Return kind and target of the setting that supplies at the next boot what this one lacks now; None for none."""
    return setting.covered_by if isinstance(setting, MayGiveLess) else None


def _prepare(system: System, step: SettingStep, record: Record | None) -> Prepared:
    setting = step.setting
    if step.back and setting.is_gone(system) and not _unrecorded(system):
        return Prepared(step, TODO)
    seen = MissesNoted(system)
    try:
        live = freeze(setting.read(seen))
        staged = type(setting).effective is not Setting.effective  # this read may call a GPU maker's tool
        seen.missed = seen.missed and not staged
        effective = freeze(setting.effective(seen)) if staged else live
    except Unreadable as error:
        if _unrecorded(system):
            return _as_planned(step)
        return Prepared(step, UNREADABLE, why=f"cannot be read: {error.reason}")
    if seen.missed and _unrecorded(system) and _is_nothing(effective):
        return _as_planned(step, setting.waits_for(system))
    if step.gives_up:
        return Prepared(replace(step, want=live), TODO, live, effective, GIVEN_UP)
    if step.back:  # it is a step even where nothing has to be written: the journal must say that it is back
        return Prepared(step, TODO, live, effective)
    changed = any(action.current == step.want for action in step.actions) or step.holders
    other = setting.kind == "guest" and record is not None and not setting.agrees(live, freeze(record.new))
    later = other or (changed and record is not None and freeze(record.new) != step.want)  # the journal must say it
    kept: tuple[str, ...] = ()
    if isinstance(setting, EditedInPlace) and live is not None:
        whole, kept = setting.edited(record and freeze(record.new), live, step.want)
        step = replace(step, whole=whole)
    agreed = setting.agrees(effective, step.want) and _both(setting, live, step.want) and step.whole in (None, live)
    if agreed and not later and (record is not None or not setting.in_force_as_found):
        return Prepared(step, ALREADY, live, effective)
    waits = setting.waits_for(system)
    if waits is not None:
        hidden = live is None and record is not None and freeze(record.new) == step.want
        return Prepared(step, ALREADY if hidden else PENDING, live, effective, waits)
    if live is None and not setting.none_is_value:
        if _unrecorded(system):
            return _as_planned(step)
        return Prepared(step, ABSENT, why=f"this host has no {step.name}: nothing was written")
    if setting.scope == BOOT and setting.agrees(live, step.want):
        return Prepared(step, PENDING, live, effective, "staged: takes effect with the next boot")
    served = setting.served(system, live, step.want) if isinstance(setting, ServedByOthers) and record is None else None
    if served is not None:
        return Prepared(step, ALREADY, live, effective, served)
    if covered_by(setting) is not None and all(action.effect == "reboot" for action in step.actions):
        return Prepared(step, PENDING, live, effective, "reserved by the next boot: more than is free now")
    if record is not None and _told_before(record, step, live):
        return Prepared(step, AS_FOUND, live, effective, record.why, record.outcome)
    return Prepared(step, TODO, live, effective, "; ".join(kept) or None)


def _unrecorded(system: System) -> bool:
    """Return whether a missing value may only be missing from the capture.

    Such a host can be rehearsed, not changed.
    """
    return system.captured and not system.scratch and not system.complete


def _is_nothing(value: Any) -> bool:
    """Return whether a value is None, or has no part that is not."""
    return value is None or (isinstance(value, Mapping) and all(part is None for part in value.values()))


def _as_planned(step: SettingStep, waits: str | None = None) -> Prepared:
    """Return a step whose value is unknown on this host: it gets the value from which the plan was made."""
    values = {step.parts[action.id]: action.current for action in step.actions}
    live = freeze(values[""] if set(values) == {""} else values)
    why = "not recorded here" if _is_nothing(live) else "not recorded here: its value is the plan's"
    return Prepared(step, PENDING if waits else TODO, live, live, waits or why, unrecorded=True)


def _both(setting: Setting, live: Any, want: Any) -> bool:
    """Return whether the other value of a setting, which already works as wanted, does not contradict it.

    For a boot setting the other value is the one staged for the next boot; for any other setting it is what `read`
    returns.
    """
    return not _unstaged(setting, live, want) if setting.scope == BOOT else setting.agrees(live, want)


def _unstaged(setting: Setting, live: Any, want: Any) -> bool:
    """Return whether the next boot would replace the wanted value, which works now, by another one."""
    return any(
        part is not None and not setting.agrees(setting.joined({name: part}), setting.joined({name: wanted}))
        for name, part in setting.parts(live).items()
        for wanted in (setting.parts(want).get(name),)
    )


def _told_before(record: Record, step: SettingStep, live: Any) -> bool:
    """Return whether the same value was written before with another outcome, and nothing has changed since."""
    return (
        record.outcome in ("clamped", "ignored", "stuck")
        and freeze(record.new) == step.want
        and bool(live == freeze(record.after))
    )


def check_there(prepared: Iterable[Prepared]) -> None:
    """Refuse a plan of settings that are not here any more. Raises Refused with all of them."""
    gone = [
        f"  {change.step.name}: planned from {shown_text(change.step.setting, action.current)}, now not there"
        for change in prepared
        if change.verdict == ABSENT
        for action in change.step.actions
        if action.current is not None
    ]
    if gone:
        what = "\n".join((f"the plan is stale: {len(gone)} of its settings are gone", *gone))
        raise Refused(what, where="plan", hint="plan again: hosttune plan")


def entry(change: Prepared) -> tuple[Entry, ...]:
    """Return the entries of a step that needs no write, or whose write is still to come (`planned`)."""
    outcome = change.outcome or VERDICT_OUTCOMES[change.verdict]
    after = None if change.verdict == TODO else change.effective
    return entries(change.step, outcome, change.before, after, change.why, known=not change.unrecorded)


def entries(
    step: SettingStep, outcome: str, before: Any, after: Any, why: str | None, *, known: bool = True
) -> tuple[Entry, ...]:
    """Return one entry for each action, with its own part of the values. `known`: `before` was read on this host."""
    made: list[Entry] = []
    for action in step.actions:
        name = step.parts[action.id]
        made.append(
            Entry(
                action=action.id,
                outcome=outcome,  # type: ignore[arg-type]  # the engine's outcomes are those of the document
                before=part_of(step.setting, before, name),
                want=part_of(step.setting, step.want, name),
                after=part_of(step.setting, after, name),
                why=why,
                before_known=known,
                when="after-stop" if outcome == VERDICT_OUTCOMES[PENDING] and step.holders else None,
            )
        )
    return tuple(made)


def part_of(setting: Setting, value: Any, name: str) -> Any:
    """Return a part of a setting's value, without secrets; the whole value for the name ""."""
    return setting.shown(value if not name or value is None else setting.parts(value).get(name))


def text_of(value: Any) -> str:
    """Return a value as short text for a sentence. None and an empty value are different texts."""
    text = value_text(value, nothing="nothing").replace("\n", "\\n")
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} ... ({len(text)} characters)"


def shown_text(setting: Setting, value: Any) -> str:
    """Return a setting's value as short text for a sentence, without secrets."""
    return text_of(setting.shown(value))


def setting_of_record(record: Record, journal: str = "journal") -> Setting:
    """Return the setting that a record is about. Raises Refused if this version does not have that setting."""
    from hosttune.transaction.kinds import kind_class

    try:
        return kind_class(record.kind, record.target).restored(record.target)
    except HosttuneError as error:
        raise Refused(
            f"the journal names a setting that this version does not know: {record.kind} {record.target}",
            where=f"{journal}, step {record.step}",
            hint="use the version that wrote it",
        ) from error


def with_verdict(change: Prepared, verdict: str, why: str) -> Prepared:
    """Return the same step with another verdict."""
    return replace(change, verdict=verdict, why=why)
