"""Changes that take, are dropped or fail, chosen by their number; and what a host's own words say is in force."""

from __future__ import annotations

import errno
import inspect
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from faultkills import Lab
from faultlab import BOOT_ID, effect_names

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.journal import Record, Store
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.values import freeze
from hosttune.settings.setting import Setting, WrittenTogether
from hosttune.transaction import status
from hosttune.transaction.site import Site
from hosttune.transaction.steps import setting_of_record

TAKEN, DROPPED, REFUSED, LATE = "taken", "dropped", "refused", "done, then an error"
FATES = (DROPPED, REFUSED, LATE)


class Fated(Scratch):
    """A scratch root whose nth change (from 1, those in forked children too) meets the fate that `fates` gives it."""

    def __init__(self, root: Path, fates: Mapping[int, str] | None = None) -> None:
        self.fates = fates or {}
        self.depth = 0  # changes that a scratch root makes within one of its own are part of that
        self._count = mmap.mmap(-1, mmap.PAGESIZE)
        super().__init__(str(root))

    @property
    def count(self) -> int:
        """Changes so far."""
        return int(struct.unpack_from("q", self._count)[0])

    def one_more(self) -> str:
        """The fate of the change that is asked for now."""
        struct.pack_into("q", self._count, 0, self.count + 1)
        return self.fates.get(self.count, TAKEN)


def _fated(name: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(Scratch, name)

    def method(self: Fated, *arguments: Any, **named: Any) -> Any:
        fate = TAKEN if self.depth else self.one_more()
        if fate == REFUSED:
            raise _refusal(name, arguments)
        if fate == DROPPED:
            return ""
        self.depth += 1
        try:
            answer = original(self, *arguments, **named)
        finally:
            self.depth -= 1
        if fate == LATE:
            raise _refusal(name, arguments)
        return answer

    method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # functions take attributes
    return method


def _refusal(name: str, arguments: Sequence[Any]) -> Exception:
    if name == "change":
        return CommandFailed(arguments[0], "exit status 1", "it cannot be done")
    return WriteFailed(str(arguments[0]), os.strerror(errno.EIO), errno.EIO)


for _name in effect_names():
    setattr(Fated, _name, _fated(_name))


def site_of(system: Scratch, *, boot_id: str = BOOT_ID) -> Site:
    """A scratch root as a site."""
    return Site(system=system, store=Store(f"{system.root}{STATE_INSIDE}"), boot_id=boot_id, hostname="scratch")


def live(lab: Lab, record: Record) -> Any:
    """What a record's setting reads now."""
    return freeze(setting_of_record(record).read(Scratch(str(lab.root))))


def same(setting: Setting, one: Any, other: Any) -> bool:
    """Whether two values as read are one."""
    return bool(one == other) or (None not in (one, other) and setting.agrees(one, other))


def moved(lab: Lab) -> dict[str, Record]:
    """The actions of the lab's steps whose settings are not at their original, by id; a start is its operator's."""
    found: dict[str, Record] = {}
    for record in lab.records:
        setting = setting_of_record(record)
        now, old = (setting.parts(value) for value in (live(lab, record), freeze(record.old)))
        moved = [name for name in old if setting.undone_later and not same(setting, now.get(name), old[name])]
        if isinstance(setting, WrittenTogether):
            found |= {action: record for action in record.actions if action.partition(":")[2] in moved}
        elif moved:
            found[f"{record.kind}:{record.target}"] = record
    return found


def check_words(lab: Lab, where: str, *, drift: bool = False) -> None:
    """`status` and the plan in force speak of the settings that are not at their original, and of no other.

    `drift`: a way back that was refused half-way may have left a setting at neither value, or at its original although
    the journal does not say so.
    """
    site = site_of(Scratch(str(lab.root)))
    result, _ = status(site)
    changed = moved(lab)
    said = {entry.action for entry in result.entries if entry.outcome not in ("ignored", "conflict")}
    kinds = [
        {name.partition(":cpus ")[0] for name in names} for names in (said, changed)
    ]  # a list may be named in part
    assert kinds[0] == kinds[1], (where, said ^ set(changed))
    assert drift or not result.drift, (where, result.drift)
    plan = site.plan_in_force()
    plans = (plan,) if plan else ()
    planned = {action.id for action in lab.example.plan.actions}
    stays = {name for record in lab.records if not setting_of_record(record).undone_later for name in record.actions}
    listed = {action.id for plan in plans for action in plan.actions} - stays
    assert listed == planned & set(changed) or (drift and listed > planned & set(changed)), where
    guests = {record.target for record in changed.values() if record.kind == "guest"}
    names = {guest.name for plan in plans for guest in plan.guests}
    assert names == guests or (drift and names > guests), where
