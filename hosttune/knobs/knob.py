"""The type of a knob: a host setting that an intent can name, declared once. Pure.

A declaration has the name, the profiles that include the knob, the allowed values, what it sets, the reason with its
source, and the kind of `hosttune.settings` that reads, writes and compares it. `target` and `now` return the target of
that kind and its current value for one place on a host (the host itself, a PCI function, a GPU).
`hosttune.knobs.knob` makes actions from this; apply, status, the checks of applied settings and the manual's table
follow from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from hosttune.model.host import Host, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, PlanFinding, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.settings.setting import BOOT, Setting

# --- what a knob can read ------------------------------------------------------------------------------------


class KnobContext(msgspec.Struct, frozen=True, dict=True):
    """The host, the intent, and the guests that were planned.

    `held_cpus`: CPUs that existing guests hold, without housekeeping CPUs; `node_cpus`: the usable CPUs of each node.
    `every`: also actions for what is as wanted now.
    """

    host: Host
    intent: Intent
    guests: tuple[PlannedGuest, ...]
    held_cpus: CpuSet
    node_cpus: Mapping[int, CpuSet]
    every: bool = False

    @property
    def devices(self) -> DeviceIndex:
        """The host's devices by address."""
        return self.host.index

    @cached_property
    def pinned(self) -> CpuSet:
        """The CPUs that vCPUs of the planned guests are pinned to."""
        return CpuSet(cpu for guest in self.guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))

    @cached_property
    def given(self) -> frozenset[str]:
        """The devices that an existing or planned guest has."""
        planned = (device.address for guest in self.guests for device in guest.devices)
        return frozenset((*self.devices.holders, *planned))

    def passed(self) -> Iterator[PciDevice]:
        """Yield the functions that planned guests get, guest by guest, without those that the host document does not
        have.
        """
        for guest in self.guests:
            for device in guest.devices:
                if (function := self.devices.pci.get(device.address)) is not None:
                    yield function


# --- a knob --------------------------------------------------------------------------------------------------


# Profiles that include a knob.
GUEST, HOST, BY_NAME = ("guest", "host"), ("host",), ()
KEEP = "keep"
# The list of isolcpus may begin with these words (admin-guide/kernel-parameters, "isolcpus=").
ISOLATION_FLAGS = frozenset(("nohz", "domain", "managed_irq"))

P = TypeVar("P")


class Change(msgspec.Struct, frozen=True):
    """The change of a knob at one place; `current` None = unknown or absent. No action if `current` equals `want`.

    `why`: a reason other than the knob's own. `always`: make an action even if both values are the same. `when`: it can
    be written then, if not at once or by a reboot.
    """

    target: str
    current: Any
    want: Any
    why: str | None = None
    always: bool = False
    when: str | None = None


class Knob(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """One declaration of a knob; see the module. `P`: the type of its places.

    `value` is what its profiles and `true` want. True = computed from the plan; None = no such value, so `true` is
    refused. The intent can give one of `values` besides true, false and keep; `numbers` is a range of allowed whole
    numbers, `cpus` allows a CPU list, `names` are words of which several can be given. `false_means`: a value that the
    user may have meant by a bare `false`. `sets` and `takes` are cells of the manual's table; if `takes` is None, it is
    made from the values. `changes(place, value)` replaces `target` and `now` if a comparison of the two values is not
    enough.

    `kept`: `hosttune watch --keep` may set it again after it has drifted: writing it disturbs nothing, at any time.
    Never a driver, a reset, a register, a drive, or a guest.
    """

    name: str
    setting: type[Setting]
    profiles: tuple[str, ...]
    value: Any
    sets: str
    why: str
    source: str
    values: tuple[str | int, ...] = ()
    numbers: range | None = None
    cpus: bool = False
    names: tuple[str, ...] = ()
    false_means: str | None = None
    takes: str | None = None
    target: Callable[[P], str] | None = None
    now: Callable[[P], Any] | None = None
    changes: Callable[[P, Any], Iterable[Change | PlanFinding]] | None = None
    kept: bool = False

    def accepts(self, value: object) -> bool:
        """Return whether an intent can give this value. A number is never a switch: 1 and true differ."""
        if isinstance(value, bool) or value == KEEP:
            return value is not True or self.value is not None
        if isinstance(value, int):
            in_range = self.numbers is not None and value in self.numbers
            return value in self.values or in_range or (self.cpus and value >= 0)
        if not isinstance(value, str):
            return False
        words = value.split()
        several = bool(words) and {*words} <= {*self.names}
        return value in self.values or (self.cpus and _is_cpu_list(value)) or several

    @property
    def allowed(self) -> str:
        """Return the allowed values as text for a user."""
        words = [str(value) for value in self.values]
        if self.numbers is not None:
            words.append(f"a whole number from {self.numbers[0]} to {self.numbers[-1]}")
        if self.cpus:
            words.append('a CPU list such as "2-7,16"')
        if self.names:
            words.append(f"one or several of {' '.join(self.names)}")
        return ", ".join((*words, *(("true",) if self.value is not None else ()), "false", KEEP))

    @property
    def row(self) -> str:
        """Return its row of the table in docs/intent.md: name, profiles, what it sets, values (the profile's first)."""
        own = () if self.value is None or self.value in self.values else (self.value,)
        values = (*own, *sorted(self.values, key=lambda value: value != self.value))
        few = self.numbers if self.numbers is not None and len(self.numbers) < 3 else ()
        made = list(dict.fromkeys(f"`{_yaml(value)}`" for value in (*values, *few)))
        if self.numbers is not None and not few:
            made.append(f"any number from `{self.numbers[0]}` to `{self.numbers[-1]}`")
        takes = self.takes or ", ".join(made)
        return f"| `{self.name}` | {', '.join(self.profiles) or 'none'} | {self.sets} | {takes} |"

    def at(self, place: P, value: Any) -> Iterable[Change | PlanFinding]:
        """Yield the changes that the wanted value needs at a place."""
        if self.changes is not None:
            return self.changes(place, value)
        if self.target is None or self.now is None:
            raise TypeError(f"knob {self.name} says neither its target and value nor its changes")
        return (Change(self.target(place), self.now(place), value),)


def _is_cpu_list(text: str) -> bool:
    """Return whether the text is a non-empty CPU list, with or without isolation flags before it."""
    parts = text.split(",")
    while parts and parts[0] in ISOLATION_FLAGS:
        parts.pop(0)
    try:
        return bool(CpuSet.parse(",".join(parts)))
    except ValueError:
        return False


def _yaml(value: Any) -> str:
    """Return a value as text that every YAML version reads back the same: a bare `off` is false in YAML 1.1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if value in ("on", "off") or "," in str(value) else str(value)


def wanted(intent: Intent, knob: Knob[Any]) -> Any:
    """Return the value that an intent wants of a knob.

    None: the setting is not changed (`NAME: keep`, or not in the profile).
    """
    value = (intent.settings or {}).get(knob.name, intent.profile in knob.profiles)
    if value is False or value == KEEP:
        return None
    return knob.value if value is True else value


def reason(intent: Intent, knob: Knob[Any]) -> str:
    """Return why a knob gets its value.

    The knob's own reason applies to the profile's value only; another value was given in the intent.
    """
    return knob.why if wanted(intent, knob) == knob.value else by_name(knob.name)


def by_name(*names: str) -> str:
    """Return the reason of settings that the intent names."""
    return f"asked for by name: {', '.join(f'settings.{name}' for name in names)}"


# --- the actions of knobs ------------------------------------------------------------------------------------
# A place is a part of the host where a knob applies: the host itself, a PCI function or a GPU.


def actions_for(
    intent: Intent, knobs: Collection[Knob[P]], places: Iterable[P], *, every: bool = False
) -> Iterator[Action | PlanFinding]:
    """Return the actions and findings of some knobs, place by place. `places` is not read if no knob is wanted.

    `every`: also actions for what is as wanted now.
    """
    wants = [(knob, value) for knob in knobs if (value := wanted(intent, knob)) is not None]
    for place in places if wants else ():
        for knob, value in wants:
            for change in knob.at(place, value):
                if isinstance(change, PlanFinding):
                    yield change
                elif every or change.always or change.current != change.want:
                    why = change.why or reason(intent, knob)
                    effect = "reboot" if knob.setting.scope == BOOT else "now"
                    when = change.when or effect
                    yield make_action(
                        knob.setting.kind, change.target, change.current, change.want, why, effect=effect, when=when
                    )


def make_action(kind: str, target: str, current: Any, want: Any, why: str, **more: Any) -> Action:
    """Return an action that takes effect now, is not needed and can be reverted, unless `more` says otherwise."""
    rest = {"effect": "now", "needed": False, "reversible": True, **more}
    rest.setdefault("when", rest["effect"])
    return Action(id=f"{kind}:{target}", kind=kind, target=target, current=current, want=want, why=why, **rest)


def split_findings(found: Iterable[Action | PlanFinding]) -> tuple[list[Action], list[PlanFinding]]:
    """Separate actions from findings; both keep their order."""
    actions: list[Action] = []
    findings: list[PlanFinding] = []
    for one in found:
        (findings if isinstance(one, PlanFinding) else actions).append(one)  # type: ignore[arg-type]
    return actions, findings
