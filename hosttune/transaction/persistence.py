"""What makes the settings in force last: the files of our own that follow from them. Pure.

Runtime settings go with a reboot: the boot unit sets them again. A device that is to be vfio-pci's is held from boot
on by a udev rule for its address. sysctl, irqbalance and arguments of the kernel have drop-ins of their own kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hosttune.knobs.actions import make_action
from hosttune.model.plan import Action
from hosttune.model.values import FrozenMap
from hosttune.settings.drivers import UDEV_RULES, VFIO, Driver, udev_rules
from hosttune.settings.dropin import BOOT_UNIT, DropIn, boot_unit, own_command
from hosttune.settings.setting import RUNTIME, START_STAGE
from hosttune.transaction.kinds import kind_class

Wanted = tuple[str, str, Any]  # kind, target, wanted value


def bound(settings: Iterable[Wanted]) -> tuple[str, ...]:
    """The functions that are to be vfio-pci's, by address: the last one for each counts."""
    wanted = {(kind, target): want for kind, target, want in settings}
    return tuple(target for (kind, target), want in wanted.items() if kind == Driver.kind and want == VFIO)


def persistence(
    settings: Collection[Wanted], state: str | None, ids: Mapping[str, str] = FrozenMap({})
) -> tuple[Action, ...]:
    """The actions that write our files. `settings`: all that is in force, then what is to be applied; the last counts.

    `state`: the state directory where it is not the usual one; `ids`: see `udev_rules`. Applies add up, and so do
    these files: each holds what all of them need. There is no unit where hosttune, or its state, lies at a path that
    a unit cannot name. Raises BadInput for an unknown kind.
    """
    wanted = {(kind, target): want for kind, target, want in settings}
    made: list[Action] = []
    rules = udev_rules(bound(settings), ids)
    if rules:
        why = "devices of guests are vfio-pci's from boot on, by address"
        made.append(make_action(DropIn.kind, UDEV_RULES, None, rules, why))
    unit = boot_unit(own_command(), state)
    if unit and any(_goes_with_a_reboot(kind) for kind, _ in wanted):
        why = "sets again after boot what a reboot undoes, before guests start"
        made.append(make_action(DropIn.kind, BOOT_UNIT, None, unit, why))
    return tuple(made)


def _goes_with_a_reboot(kind: str) -> bool:
    found = kind_class(kind, f"action {kind}")
    return found.scope == RUNTIME and found.stage != START_STAGE  # guests start by their own autostart
