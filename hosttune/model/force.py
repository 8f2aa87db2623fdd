"""What is in force on a host: the guests and settings that hosttune's journal says are applied (`Host.in_force`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hosttune.model.intent import GuestIntent, Reserve
from hosttune.model.plan import AdoptedGuest, PlannedGuest, Source
from hosttune.model.values import Closed, Value


class GuestInForce(Value, frozen=True, kw_only=True):
    """A guest that hosttune defined, or changed (`adopted`), and that it has not taken away since.

    `request` and `reserve`: of the intent applied last, as given. `places`: the guest as planned then, with its sizes,
    CPUs in their order, cells, devices with guest addresses, partition and MIG starts. `uuid`: of its definition as it
    was read back; None where it has none (a scratch root). `number`: the newest transaction whose plan has it.
    """

    name: str
    uuid: str | None = None
    request: GuestIntent
    reserve: Reserve = Reserve()
    places: PlannedGuest
    adopted: AdoptedGuest | None = None
    source: Source | None = None
    number: int


class SettingInForce(Closed, frozen=True, kw_only=True):
    """A setting that hosttune wrote and has not put back. `original` and `want` are by part ("" = it has one).

    `original`: before hosttune's first write; `want`: what was written last; `after`: what was read back then.
    `outcome`: of the last write. `source`: of the plan that wrote it last.
    """

    kind: str
    target: str
    original: Mapping[str, Any]
    want: Mapping[str, Any]
    after: Mapping[str, Any]
    outcome: str
    scope: str
    actions: tuple[str, ...] = ()
    source: Source | None = None
    number: int

    MAPPINGS = ("original", "want", "after")


class Wanted(Closed, frozen=True, kw_only=True):
    """A value under `settings` of an intent that is in force, by the knob's name, and the source that gave it last."""

    value: Any
    source: Source | None = None

    MAPPINGS = ("value",)


class InForce(Closed, frozen=True, kw_only=True):
    """All that is in force. `last`: the number of the newest finished transaction; 0: none.

    `profile`: that of the newest source; None: nothing was applied. `wanted`: values asked for by name, the newest of
    each.
    """

    last: int = 0
    profile: Literal["guest", "host", "none"] | None = None
    guests: tuple[GuestInForce, ...] = ()
    settings: tuple[SettingInForce, ...] = ()
    wanted: Mapping[str, Wanted] = {}

    MAPPINGS = ("wanted",)
