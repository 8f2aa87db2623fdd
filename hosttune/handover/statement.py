"""The statement of a hand-over, and the same facts read from the host as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hosttune.errors import BadInput, Unreadable
from hosttune.handover.network.tools import versions
from hosttune.inventory.devices import identity, read_catalogue
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.clock import now_text
from hosttune.model.handover import (
    HandedDevice,
    HandoverStep,
    Predicate,
    Statement,
    ValidationReference,
    canonical_json,
    digest_of,
)
from hosttune.model.host import Host
from hosttune.model.validation import Validation
from hosttune.model.values import FrozenMap, Value, freeze
from hosttune.transaction.applied import UNREAD, applied_state
from hosttune.transaction.site import Site

_LONGEST = 200  # bytes of an applied value that the statement has in full


class Unread(Value, frozen=True, kw_only=True):
    """In place of an applied value that cannot be read now: `why`."""

    why: str


def statement_of(
    site: Site, host: Host, devices: Iterable[HandedDevice], validation: Validation | None = None
) -> Statement:
    """Return the statement of a hand-over that ends now, without an expiry: `sign` adds it.

    `host` was discovered after the devices were returned; `devices` come from `handed_device`. Raises BadInput,
    Refused.
    """
    return Statement.of(
        Predicate(
            host=host.hostname,
            boot_id=host.boot_id,
            machine=host.digest,
            applied=applied_values(site, as_applied=True),
            devices=tuple(devices),
            validation=None
            if validation is None
            else ValidationReference(level=validation.level, verdict=validation.verdict, sha256=digest_of(validation)),
            issued_at=now_text(),
        )
    )


def handed_device(
    host: Host,
    address: str,
    steps: Sequence[HandoverStep],
    firmware: Mapping[str, str] | None,
    *,
    kind: str | None = None,
) -> HandedDevice:
    """Return a device as it is now, after it was returned, with what was done to it.

    It is clean only if every step is done or not needed. `firmware`: as read during the hand-over (`read_firmware`).
    """
    known = live_device(host, address, firmware)
    fields: dict[str, Any] = {"kind": kind, "steps": tuple(steps), **known}
    proven = not HandedDevice(state="clean", **fields).unclean
    return HandedDevice(state="clean" if proven else "quarantined", **fields)


def live_device(host: Host, address: str, firmware: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Return the fields that a device's digest stands for, as a host document has them. Unknown is None."""
    function = host.index.pci.get(address)
    return {
        "address": address,
        "identity": identity(read_catalogue(host), address, host),
        "driver": function.driver if function else None,
        "firmware": None if firmware is None else FrozenMap(firmware),
        "epoch": epoch_of(host, address)[0],
    }


def epoch_of(host: Host, address: str) -> tuple[int | None, str]:
    """Return the epoch of a device, or (None, why it is unknown).

    On a driver of the host, any process of the host can use a device, which nothing records. Without a driver nothing
    shows that one was bound to it, and unbound again.
    """
    function = host.index.pci.get(address)
    state = host.handover
    if function is None:
        return None, "it is not in the PCI tree"
    if function.driver_unknown:
        return None, "its driver is unknown"
    if function.driver is None:
        return None, "no driver has it: whether one had it since is not recorded"
    if "vfio" not in function.driver:
        return None, f"it is on {function.driver}: uses by processes of the host are not recorded"
    if state is None:
        return None, "the register of devices cannot be read (as root: see the problems of hosttune discover)"
    record = state.register.record(address)
    if record is None:
        return None, "the register does not have it"
    if state.recording is None or not state.recording.active:
        why = state.recording.why if state.recording else None
        return None, f"starts by other programs are not recorded: {why or 'the hook of libvirt cannot be read'}"
    if state.recording.since != record.recorded_since:
        return None, "libvirt's hook was installed again since: a start in between was not recorded"
    epoch = state.counted(record)
    return epoch, "" if epoch is not None else "the record of starts cannot be read, or lines of it are missing"


def read_firmware(system: System, host: Host, address: str) -> Mapping[str, str] | None:
    """Return the firmware versions of a device that its own driver has now; None if they cannot be read.

    Empty for a virtual function, which has none of its own. Sources: the maker's driver for a GPU; `firmware_rev`
    (drivers/nvme/host/sysfs.c); `hosttune.handover.network.tools`.
    """
    try:
        function = host.index.pci.get(address)
        if function is None:
            return None
        if function.physfn is not None:
            return FrozenMap({})
        gpu = host.index.gpus.get(address)
        if gpu is not None:
            inforom = {} if gpu.inforom_version is None else {"inforom": gpu.inforom_version}
            return None if gpu.firmware_version is None else FrozenMap({"vbios": gpu.firmware_version, **inforom})
        if function.is_network:
            return versions(system, address)
        place = sysfs.function(address, "nvme")
        texts = {name: system.read(f"{place}/{name}/firmware_rev") for name in system.list(place)}
        words = {(text or "").strip() for text in texts.values()}
        return FrozenMap({"firmware_rev": " ".join(sorted(words))}) if texts and all(texts.values()) else None
    except Unreadable:
        return None


def known_firmware(system: System | None, host: Host, address: str) -> Mapping[str, str] | None:
    """Return the firmware versions of a device that was returned; None if they are unknown now.

    On vfio-pci they cannot be read. What was read when the device was returned counts as long as the host has not
    booted and the device was not started since: flashing needs a program that has the device.
    """
    record = host.handover.register.record(address) if host.handover else None
    epoch, _ = epoch_of(host, address)
    if record and None not in (epoch, record.boot_id) and (record.epoch, record.boot_id) == (epoch, host.boot_id):
        return record.firmware
    return read_firmware(system, host, address) if system is not None else None


def applied_values(site: Site, *, as_applied: bool = False) -> Mapping[str, Any]:
    """Return the values of all settings in force, by action: as they are now, or as they were applied.

    A value that cannot be read now is an `Unread`. One that is longer than 200 bytes is represented by its digest.
    Raises Refused for a journal that cannot be read.
    """
    entries, drift = applied_state(site, site.standings(site.transactions()).in_force)
    values = {entry.action: entry.after for entry in entries}
    if as_applied:
        values |= {drifted.action: drifted.expected for drifted in drift}
    else:
        values |= {
            drifted.action: Unread(why=drifted.why)
            for drifted in drift
            if drifted.why and drifted.why.startswith(UNREAD)
        }
    return FrozenMap({name: _short(freeze(value)) for name, value in sorted(values.items())})


def _short(value: Any) -> Any:
    if isinstance(value, Unread):
        return value
    return f"sha256:{digest_of(value)}" if len(canonical_json(value)) > _LONGEST else value


def refuse_forged(statement: Statement, where: str) -> None:
    """Raise BadInput if the subjects are not those of the predicate."""
    if statement.subject != Statement.of(statement.predicate).subject:
        hint = "give the statement as `hosttune handover` wrote it"
        raise BadInput("the digests of its subjects are not those of its fields", where=where, hint=hint)
