"""The files that make applied settings persistent. Pure: nothing is read or written here.

A reboot undoes runtime settings; the boot unit sets them again. A device for vfio-pci is bound to it from boot on by a
udev rule for its address. sysctl, irqbalance and kernel arguments have drop-ins with their own kind of setting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hosttune.gpu import fmpm
from hosttune.knobs.knob import make_action
from hosttune.model.plan import Action
from hosttune.model.values import FrozenMap
from hosttune.settings.drivers import UDEV_RULES, VFIO, Driver, udev_rules
from hosttune.settings.dropin import BOOT_UNIT, DropIn, boot_unit, own_command
from hosttune.settings.setting import OF_GUESTS, RUNTIME, ByService
from hosttune.transaction.kinds import kind_class

Wanted = tuple[str, str, Any]  # kind, target, wanted value


def bound(settings: Iterable[Wanted]) -> tuple[str, ...]:
    """Return the addresses of the functions that are vfio-pci's from boot on. The last entry for an address counts.

    GPUs with a partition are not: it is activated first (`hypervisor.partition`), by the boot unit.
    """
    wanted = {(kind, target): want for kind, target, want in settings}
    later = {gpu for kind, target in wanted if kind == fmpm.KIND for gpu in fmpm.parts_of(target)[1]}
    bound_functions = (target for (kind, target), want in wanted.items() if kind == Driver.kind and want == VFIO)
    return tuple(target for target in bound_functions if target not in later)


def persistence(
    settings: Collection[Wanted], state: str | None, ids: Mapping[str, str | None] = FrozenMap({})
) -> tuple[Action, ...]:
    """Return the actions that write hosttune's own files.

    `settings`: all applied settings, then those to apply; the last entry for a setting counts. `state`: the state
    directory if it is not the usual one. `ids`: see `udev_rules`. Applies accumulate, so each file holds what all
    applies need. There is no boot unit if the path of hosttune, or of its state, cannot be written in a unit. Raises
    BadInput for an unknown kind.
    """
    wanted = {(kind, target): want for kind, target, want in settings}
    made: list[Action] = []
    rules = udev_rules(bound(settings), ids)
    if rules:
        why = "devices of guests are vfio-pci's from boot on, by address"
        made.append(make_action(DropIn.kind, UDEV_RULES, None, rules, why))
    lost = {kind for kind, _ in wanted if _is_lost_at_reboot(kind)}
    by_services = any(issubclass(kind_class(kind, f"action {kind}"), ByService) for kind in lost)
    unit = boot_unit(own_command(), state, by_services=by_services)
    if unit and lost:
        why = "sets again after boot what a reboot undoes, before guests start"
        made.append(make_action(DropIn.kind, BOOT_UNIT, None, unit, why))
    return tuple(made)


def _is_lost_at_reboot(kind: str) -> bool:
    setting = kind_class(kind, f"action {kind}")
    return setting.scope == RUNTIME and setting.stage not in OF_GUESTS  # libvirt's autostart starts guests, as defined
