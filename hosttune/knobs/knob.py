"""What a knob is: a host setting that an intent can name, declared once. Pure.

A declaration says the name, the profiles that bring it, the values it may have, what it sets, why and by which source,
and the kind of `hosttune.settings` that reads, writes and compares it. `target` and `now` say, of one place on a host
(the host itself, a PCI function, a GPU), the target of that kind and its value now. `hosttune.knobs.actions` turns all
that into actions; apply, status, the checks of what is in force and the manual's table follow from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from hosttune.model.values import CpuSet

if TYPE_CHECKING:  # discovery imports this module, and needs none of them
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Finding
    from hosttune.settings.setting import Setting

# Profiles that bring a knob.
GUEST, HOST, BY_NAME = ("guest", "host"), ("host",), ()
KEEP = "keep"
# The list of isolcpus may begin with these words (admin-guide/kernel-parameters, "isolcpus=").
ISOLATION_FLAGS = frozenset(("nohz", "domain", "managed_irq"))

P = TypeVar("P")


class Change(NamedTuple):
    """What a knob comes to at one place; `current` None = unknown, or absent. No action where `current` is `want`.

    `why`: where it is another reason than the knob's own. `always`: an action although both are the same.
    """

    target: str
    current: Any
    want: Any
    why: str | None = None
    always: bool = False


class Knob(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """One declaration; see the module. `P`: what a place of it is.

    `value` is what its profiles and `true` want; True = worked out from the plan, None = there is none: `true` is
    refused. `values` may be given besides true, false and keep; `numbers` is a range of whole numbers that may be,
    `cpus` lets a CPU list be given, `names` are words of which several may be. `false_means`: a value that a bare
    `false` could be meant for. `sets` and `takes` are the cells of the manual's table; `takes` is made from the values
    where it is None. `changes(place, value)` stands in for `target` and `now` where comparing them is not all.
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
    changes: Callable[[P, Any], Iterable[Change | Finding]] | None = None

    def accepts(self, value: object) -> bool:
        """Whether an intent may give this value. A number is never a switch: 1 and true differ."""
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
        """The values that may be given, for people."""
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
        """Its row of the table in docs/intent.md: name, profiles, what it sets, values with the profile's first."""
        ours = () if self.value is None or self.value in self.values else (self.value,)
        values = (*ours, *sorted(self.values, key=lambda value: value != self.value))
        few = self.numbers if self.numbers is not None and len(self.numbers) < 3 else ()
        made = [f"`{_yaml(value)}`" for value in (*values, *few)]
        if self.numbers is not None and not few:
            made.append(f"any number from `{self.numbers[0]}` to `{self.numbers[-1]}`")
        takes = self.takes or ", ".join(made)
        return f"| `{self.name}` | {', '.join(self.profiles) or 'none'} | {self.sets} | {takes} |"

    def at(self, place: P, value: Any) -> Iterable[Change | Finding]:
        """What the wanted value comes to at a place."""
        if self.changes is not None:
            return self.changes(place, value)
        if self.target is None or self.now is None:
            raise TypeError(f"knob {self.name} says neither its target and value nor its changes")
        return (Change(self.target(place), self.now(place), value),)


def _is_cpu_list(text: str) -> bool:
    """A non-empty CPU list, after isolation flags or not."""
    parts = text.split(",")
    while parts and parts[0] in ISOLATION_FLAGS:
        parts.pop(0)
    try:
        return bool(CpuSet.parse(",".join(parts)))
    except ValueError:
        return False


def _yaml(value: Any) -> str:
    """A value as YAML reads it back, whichever version: a bare `off` is false in YAML 1.1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if value in ("on", "off") or "," in str(value) else str(value)


def wanted(intent: Intent, knob: Knob[Any]) -> Any:
    """The value an intent wants of a knob, None where it is left alone (`NAME: keep`, or not in the profile)."""
    value = (intent.settings or {}).get(knob.name, intent.profile in knob.profiles)
    if value is False or value == KEEP:
        return None
    return knob.value if value is True else value


def reason(intent: Intent, knob: Knob[Any]) -> str:
    """Why a knob gets its value: its own reason holds for the profile's value only, another one was asked for."""
    return knob.why if wanted(intent, knob) == knob.value else by_name(knob.name)


def by_name(*names: str) -> str:
    """The reason of what the intent names."""
    return f"asked for by name: {', '.join(f'settings.{name}' for name in names)}"
