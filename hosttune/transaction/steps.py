"""What a transaction is to do, in order: one step for each setting, with the actions of the plan that it stands for.

Steps are read, never written, here. What each setting is now decides its verdict before anything begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hosttune.errors import BadInput, HosttuneError, Refused, Unreadable
from hosttune.journal import Record
from hosttune.model.plan import Action
from hosttune.model.result import Entry
from hosttune.model.values import FrozenMap, freeze, value_text
from hosttune.settings.setting import BOOT, Setting
from hosttune.settings.traits import MayGiveLess, ServedByOthers, WrittenTogether
from hosttune.system import System
from hosttune.transaction.kinds import kind_class

TODO, ALREADY, PENDING, AS_FOUND, ABSENT, UNREADABLE = "todo", "already", "pending", "as-found", "absent", "unreadable"
# What is told of a step that is not carried out. `ignored` would say that it was written.
VERDICT_OUTCOMES = {ALREADY: "already", PENDING: "pending", ABSENT: "failed", UNREADABLE: "failed", TODO: "planned"}
LONGEST_TEXT = 200  # characters of a value within a sentence


@dataclass(frozen=True)
class Step:
    """One setting and what it shall be. `parts`: action id -> the part of the setting that it is about ("" = all)."""

    setting: Setting
    want: Any
    actions: tuple[Action, ...]
    parts: Mapping[str, str]
    at_boot: bool = False  # what falls short now is staged for the next boot, which must not be taken back for it

    @property
    def needed(self) -> bool:
        """Whether the guests cannot work without it."""
        return any(action.needed for action in self.actions)

    @property
    def name(self) -> str:
        """Its kind and target, for people."""
        return f"{self.setting.kind} {self.setting.target}".rstrip()


@dataclass(frozen=True)
class Prepared:
    """A step with what was read: `live` is what it is set to, `effective` what works now."""

    step: Step
    verdict: str
    live: Any = None
    effective: Any = None
    why: str | None = None
    outcome: str | None = None  # AS_FOUND: the outcome that was told when it was left so
    unrecorded: bool = False  # its value is the plan's, for this host's is not recorded

    @property
    def before(self) -> Any:
        """The value that is shown as its present one: what works now; where that is as wanted, what else is not."""
        setting = self.step.setting
        apart = setting.scope != BOOT and self.verdict == TODO and setting.agrees(self.effective, self.step.want)
        return self.live if apart else self.effective


def steps_of(actions: Iterable[Action]) -> tuple[Step, ...]:
    """The steps of a plan's actions, in the order of stages, then of the plan.

    Raises BadInput for an unknown kind, a target or value that its kind cannot have, and two actions for one setting.
    """
    single: list[Step] = []
    merging: dict[type[WrittenTogether], list[tuple[Action, Setting]]] = {}
    seen: set[tuple[str, str]] = set()
    for action in actions:
        where = f"action {action.kind}:{action.target}"
        if (action.kind, action.target) in seen:
            raise BadInput("two actions for one setting", where=where, hint="plan again")
        seen.add((action.kind, action.target))
        kind = kind_class(action.kind, where)
        setting = kind.of(action.target)
        if issubclass(kind, WrittenTogether):
            merging.setdefault(kind, []).append((action, setting))
            continue
        setting.check(action.want)
        single.append(Step(setting, freeze(action.want), (action,), FrozenMap({action.id: ""})))
    return in_order((*single, *(_merged(kind, found) for kind, found in merging.items())))


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps in the order in which they are taken: by stage, what is written together last, else as they come."""
    return tuple(sorted(steps, key=lambda step: (step.setting.stage, isinstance(step.setting, WrittenTogether))))


def _merged(kind: type[WrittenTogether], found: list[tuple[Action, Setting]]) -> Step:
    """One step of all actions of a kind whose settings are written together; a part is an action's target."""
    setting = kind.merged([one for _, one in found])
    want = freeze({action.target: action.want for action, _ in found})
    setting.check(want)
    actions = tuple(action for action, _ in found)
    return Step(setting, want, actions, FrozenMap({action.id: action.target for action in actions}))


def prepare(system: System, steps: Iterable[Step], told: Mapping[tuple[str, str], Record]) -> tuple[Prepared, ...]:
    """Read every step's setting. `told`: what is in force by setting, with outcomes that were told before."""
    return tuple(_prepare(system, step, told.get((step.setting.kind, step.setting.target))) for step in steps)


def covered(prepared: Iterable[Prepared]) -> tuple[Prepared, ...]:
    """The same steps; what is or will be staged for the next boot brings then what falls short now, which then may."""
    found = tuple(prepared)
    asked = {covered_by(one.step.setting) for one in found}
    staged = {
        (one.step.setting.kind, part)
        for one in found
        for part in one.step.parts.values()
        if (one.step.setting.kind, part) in asked
        and (one.verdict in (TODO, ALREADY) or one.step.setting.agrees(one.live, one.step.want))
    }
    return tuple(
        replace(one, step=replace(one.step, at_boot=True)) if covered_by(one.step.setting) in staged else one
        for one in found
    )


def covered_by(setting: Setting) -> tuple[str, str] | None:
    """Kind and target of the setting that brings with the next boot what this one falls short of now; None: none."""
    return setting.covered_by if isinstance(setting, MayGiveLess) else None


def _prepare(system: System, step: Step, record: Record | None) -> Prepared:
    setting = step.setting
    try:
        live = freeze(setting.read(system))
        staged = type(setting).effective is not Setting.effective  # reading can cost a call of a maker's tool
        effective = freeze(setting.effective(system)) if staged else live
    except Unreadable as error:
        if _unrecorded(system):
            return _as_planned(step)
        return Prepared(step, UNREADABLE, why=f"cannot be read: {error.reason}")
    if setting.agrees(effective, step.want) and _both(setting, live, step.want):
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
    if record is not None and _told(record, step, live):
        return Prepared(step, AS_FOUND, live, effective, record.why, record.outcome)
    return Prepared(step, TODO, live, effective)


def _unrecorded(system: System) -> bool:
    """Whether what is missing may only not have been recorded: of such a host a plan is rehearsed, never applied."""
    return system.captured and not system.scratch and not system.complete


def _as_planned(step: Step) -> Prepared:
    """A step of a host that does not tell: its value is the one that the plan was made from."""
    values = {step.parts[action.id]: action.current for action in step.actions}
    live = freeze(values[""] if set(values) == {""} else values)
    return Prepared(step, TODO, live, live, "not recorded: its value is the plan's", unrecorded=True)


def _both(setting: Setting, live: Any, want: Any) -> bool:
    """Whether of a setting that works as wanted the machine's other book says no other value.

    That book is what is staged for the next boot, or of any other setting what `read` finds besides.
    """
    return not _unstaged(setting, live, want) if setting.scope == BOOT else setting.agrees(live, want)


def _unstaged(setting: Setting, live: Any, want: Any) -> bool:
    """Whether the next boot would bring another value than the wanted one that works now."""
    return any(
        part is not None and not setting.agrees(setting.joined({name: part}), setting.joined({name: wanted}))
        for name, part in setting.parts(live).items()
        for wanted in (setting.parts(want).get(name),)
    )


def _told(record: Record, step: Step, live: Any) -> bool:
    """Whether this very wish was tried before, came out otherwise, and stands as it was left then."""
    return (
        record.outcome in ("clamped", "ignored", "stuck")
        and freeze(record.new) == step.want
        and freeze(record.after) == live
    )


def check_fresh(prepared: Iterable[Prepared]) -> None:
    """Refuse a plan that was made for other values. `current: null` is never stale. Raises Refused with all of them."""
    stale = [line for one in prepared for line in _stale(one)]
    if stale:
        raise Refused(
            f"the plan is stale: {len(stale)} of its values changed since\n" + "\n".join(stale),
            where="plan",
            hint="plan again: hosttune plan",
        )


def _stale(one: Prepared) -> Iterable[str]:
    if one.verdict == ABSENT:
        known = [action.current for action in one.step.actions if action.current is not None]
        yield from (f"  {one.step.name}: planned from {text_of(current)}, now not there" for current in known)
    if one.verdict != TODO:
        return
    setting = one.step.setting
    live = setting.parts(one.effective)
    want = setting.parts(one.step.want)
    for action in one.step.actions:
        if action.current is None:
            continue
        part = one.step.parts[action.id]
        current = {part: freeze(action.current)} if part else setting.parts(freeze(action.current))
        for name in (part,) if part else tuple(current):
            now = live.get(name)
            if now != current.get(name) and now != want.get(name):
                said = f"{one.step.name}{f' ({name})' if name else ''}"
                yield f"  {said}: planned from {text_of(current.get(name))}, now {text_of(now)}"


def entry(one: Prepared) -> tuple[Entry, ...]:
    """What is told of a step that needs no write, or whose write is still to come (`planned`)."""
    outcome = one.outcome or VERDICT_OUTCOMES[one.verdict]
    return entries(one.step, outcome, one.before, None if one.verdict == TODO else one.effective, one.why)


def entries(step: Step, outcome: str, before: Any, after: Any, why: str | None) -> tuple[Entry, ...]:
    """One entry an action, with its own part of the values."""
    made: list[Entry] = []
    for action in step.actions:
        name = step.parts[action.id]
        made.append(
            Entry(
                action=action.id,
                outcome=outcome,  # type: ignore[arg-type]  # the engine's words are those of the document
                before=part_of(step.setting, before, name),
                want=action.want,
                after=part_of(step.setting, after, name),
                why=why,
            )
        )
    return tuple(made)


def part_of(setting: Setting, value: Any, name: str) -> Any:
    """A part of a setting's value; the whole for the name ""."""
    return value if not name or value is None else setting.parts(value).get(name)


def text_of(value: Any) -> str:
    """A value within a sentence: short, and none is told from empty."""
    text = value_text(value, nothing="nothing").replace("\n", "\\n")
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} ... ({len(text)} characters)"


def setting_of_record(record: Record, journal: str = "journal") -> Setting:
    """The setting that a record is about, again. Raises Refused where this version has no such setting."""
    try:
        kind = kind_class(record.kind, record.target)
        return kind.restored(record.target)
    except HosttuneError as error:
        raise Refused(
            f"the journal names a setting that this version does not know: {record.kind} {record.target}",
            where=f"{journal}, step {record.step}",
            hint="use the version that wrote it",
        ) from error


def with_verdict(one: Prepared, verdict: str, why: str) -> Prepared:
    """The same step, judged otherwise."""
    return replace(one, verdict=verdict, why=why)
