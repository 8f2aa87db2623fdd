"""The list by which libvirt's hook sets what a guest's devices need, at starts by others. Pure.

One line each: the guest, the kind of the setting, and what the hook needs (`templates/libvirt-hook.sh`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hosttune.gpu import fmpm
from hosttune.gpu.vgpu_set import MediatedDevice
from hosttune.journal import Record
from hosttune.model.plan import PlannedGuest
from hosttune.settings.vgpu import VgpuTypeSetting


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
