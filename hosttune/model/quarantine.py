"""What hosttune's register knows of devices between two tenants: a part of the host document.

The register is `handover/register.json` in the state directory (`hosttune.journal.register`); `Host.handover` has what
planning and verification need of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hosttune.errors import BadInput
from hosttune.model.values import Closed, Value, from_json, is_address

REGISTER_SCHEMA = "hosttune.handover-register/v1"

RegisterState = Literal["quarantined", "clean", "released"]


def drive_mark(serial: str) -> str:
    """Return a drive's serial number as a part of its identity, which has no spaces."""
    return f"serial={serial.strip().replace('%', '%25').replace(' ', '%20')}"


class DeviceRecord(Closed, frozen=True, kw_only=True):
    """One device of the register.

    - `state`: "quarantined": no guest gets it; "clean": every step of its last hand-over is done, and it was returned;
      "released": a person freed it (`who`, `why`), so it never counts as clean.
    - `identity`: as in plans, when it was recorded; of a GPU or drive with what its driver showed later (`drive_mark`).
    - `since`: the time of the last change, ISO 8601 in UTC; `why`: the reason; `guest`: its last guest, if known.
    - `step`: the last step that was begun. `handover`: the number of the course that it belongs to.
    - `boot_id`, `epoch`, `driver`, `firmware`: as they were when it was returned. Firmware can only be read while the
      host's driver has the device; it counts as read as long as boot and epoch are the same. `firmware` None: unknown;
      empty: the device has none of its own (a virtual function). `binding`: to that driver, None: unknown.
    - `recorded_since`: of the hook that recorded starts when `epoch` was read (`StartRecording.since`). `starts`: what
      the lines that were counted for `epoch` were (`hosttune.model.starts.starts_mark`); None: not noted.
    """

    address: str
    identity: str
    state: RegisterState
    since: str
    why: str
    guest: str | None = None
    who: str | None = None
    step: str | None = None
    handover: str | None = None
    boot_id: str | None = None
    epoch: int | None = None
    driver: str | None = None
    firmware: Mapping[str, str] | None = None
    binding: str | None = None
    recorded_since: str | None = None
    starts: str | None = None

    MAPPINGS = ("firmware",)

    @property
    def ways_out(self) -> str:
        """How its quarantine ends, in commands."""
        name = self.address
        return f"finish it: hosttune handover --device {name}; or free it: hosttune handover release {name} --why TEXT"


class Register(Closed, frozen=True, kw_only=True):
    """The register's document: at most one record for each address."""

    schema: str = REGISTER_SCHEMA
    devices: tuple[DeviceRecord, ...] = ()

    @property
    def quarantined(self) -> tuple[DeviceRecord, ...]:
        """The devices that no guest may have."""
        return tuple(record for record in self.devices if record.state == "quarantined")

    def record(self, address: str) -> DeviceRecord | None:
        """Return the record of an address; None if it is not in the register."""
        return next((device_record for device_record in self.devices if device_record.address == address), None)

    @classmethod
    def from_json(cls, data: str | bytes, *, where: str) -> Register:
        """Read a register. Raises BadInput for anything else, also for an address that occurs twice."""
        register = from_json(cls, data, schema=REGISTER_SCHEMA, where=where)
        addresses = [record.address for record in register.devices]
        wrong = next(
            (address for address in addresses if not is_address(address) or addresses.count(address) > 1), None
        )
        if wrong is not None:
            what = f"{wrong[:80]!r} is not an address, or occurs twice"
            hint = "read the file and correct it: the devices that it quarantines must stay quarantined"
            raise BadInput(what, where=where, hint=hint)
        return register


class StartRecording(Value, frozen=True, kw_only=True):
    """Whether starts of guests by other programs are recorded (libvirt's hook). `why`: the reason if not.

    `since`: when the hook was installed, or last changed in any way, in seconds; None: unknown, and on captured hosts.
    """

    active: bool
    why: str | None = None
    since: str | None = None


class HandoverState(Closed, frozen=True, kw_only=True):
    """The register of a host, and the epochs of its devices.

    - `epochs`: how often each device of the register was given to a guest that started, by address; a device that is
      not in it has no known epoch. `starts`: what the lines that were counted are (`model.starts.starts_mark`).
    - `recording` None: it is not known whether starts by other programs are recorded.
    - `serials`: of the drives that the host's driver has, by address; None: not read, since no device is quarantined.
    """

    devices: tuple[DeviceRecord, ...] = ()
    epochs: Mapping[str, int] | None = None
    starts: Mapping[str, str] | None = None
    recording: StartRecording | None = None
    serials: Mapping[str, str] | None = None

    MAPPINGS = ("epochs", "starts", "serials")

    @property
    def register(self) -> Register:
        """The register."""
        return Register(devices=self.devices)

    def noted(self, record: DeviceRecord) -> DeviceRecord:
        """Return a record with the epoch of its device as it is now, whichever driver has it; without, if unknown."""
        if self.recording is None:
            return record
        epoch, starts = ((values or {}).get(record.address) for values in (self.epochs, self.starts))
        return msgspec.structs.replace(record, epoch=epoch, starts=starts, recorded_since=self.recording.since)

    def counted(self, record: DeviceRecord) -> int | None:
        """Return the epoch of a device, if every start was recorded since it was noted in its record; else None."""
        if self.recording is None or not self.recording.active or self.recording.since != record.recorded_since:
            return None
        return (self.epochs or {}).get(record.address)
