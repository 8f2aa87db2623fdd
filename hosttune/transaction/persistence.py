"""The files that make applied settings persistent. Pure: nothing is read or written here.

A reboot undoes runtime settings; the boot unit sets them again. A device for vfio-pci is bound to it from boot on by a
udev rule for its address. sysctl, irqbalance and kernel arguments have drop-ins with their own kind of setting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hosttune.gpu import fmpm
from hosttune.gpu.vgpu_set import MediatedDevice
from hosttune.journal import Record
from hosttune.knobs.knob import make_action
from hosttune.model.plan import Action, PlannedGuest
from hosttune.model.values import FrozenMap
from hosttune.settings.drivers import UDEV_RULES, VFIO, Driver, udev_rules
from hosttune.settings.dropin import BOOT_UNIT, DropIn, boot_unit, own_command
from hosttune.settings.setting import OF_GUESTS, RUNTIME, ByService
from hosttune.settings.vgpu import VgpuTypeSetting
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


# --- what the hook makes at a guest's start -------------------------------------------------------------------

# One line each: the guest, the kind of the setting, and what the hook needs (`templates/libvirt-hook.sh`).


def list_at_start(guests: Iterable[PlannedGuest], records: Sequence[Record], client: Sequence[str]) -> str:
    """Return the list for guests in force. `records`: of the settings in force; `client`: see `fmpm.client`."""
    partitions = [record for record in records if record.kind == fmpm.KIND]
    every = {gpu for record in partitions for gpu in fmpm.parts_of(record.target)[1]}
    lines = []
    for guest in guests:
        devices = {device.address for device in guest.devices}
        lines += [f"{guest.name} {line}" for line in _partitions(devices, partitions, every, client)]
        for record in records:
            words = record.target.split()
            if words[0] in devices and record.kind in (VgpuTypeSetting.kind, MediatedDevice.kind):
                lines.append(f"{guest.name} {record.kind} {record.target} {record.new}")
    return "".join(f"{line}\n" for line in lines)


def _partitions(
    devices: Collection[str], partitions: Iterable[Record], every: Collection[str], client: Sequence[str]
) -> Iterator[str]:
    for record in partitions:
        number, gpus = fmpm.parts_of(record.target)
        if {*gpus} <= {*devices}:
            modules = ",".join(map(str, fmpm.modules_of(record.new)))
            others = ",".join(sorted({*every} - {*gpus})) or "-"
            yield f"{record.kind} {number} {modules} {','.join(gpus)} {others} {' '.join(client)}"
