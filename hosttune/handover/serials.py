"""The serial number of a drive: as it is given to allow that the drive is erased, and as the host's driver shows it."""

from __future__ import annotations

import re

from hosttune.disks import drive_serial
from hosttune.errors import BadInput
from hosttune.machine.system import System

# NVM Express: 20 characters of ASCII. No character that the patterns of udev know (* ? [ ] | " \\ $ %), and no "=".
_SERIAL = r"[A-Za-z0-9][A-Za-z0-9 ._:+/-]{0,19}"


def check_serial(text: str) -> str:
    """Return a serial number without spaces around it. Raises BadInput for what is none."""
    serial = text.strip()
    if not re.fullmatch(_SERIAL, serial):
        hint = "a serial number has at most 20 letters, digits and . _ : + / - or spaces"
        raise BadInput(f"{serial[:40]!r} is not a serial number of a drive", where="--erase", hint=hint)
    return serial


def serial_now(system: System, address: str) -> str | None:
    """Return the serial number that the host's nvme driver shows (see `drive_serial`). Raises Unreadable."""
    return drive_serial(system.list, system.read, address)
