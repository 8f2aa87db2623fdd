"""The register of devices between two tenants: one document, `handover/register.json` in the state directory.

A device enters it as quarantined, before anything is done to it, and leaves it as clean (returned, every step proven)
or released (freed by a person). Planning and apply refuse a quarantined device, by its address and by its serial
number or UUID where these are known. Callers that change the register hold the lock of the state (`Store.locked`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import msgspec

from hosttune.errors import BadInput, Refused, state_remedy
from hosttune.journal.accepted import caller
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.files import append_line, make_folder, sync_folder
from hosttune.machine.live import LiveMachine
from hosttune.model.clock import now_text
from hosttune.model.quarantine import DeviceRecord, Register
from hosttune.model.starts import (
    FOLDER,
    HANDOVER,
    QUARANTINED,
    REGISTER,
    STARTS,
    count_quarantines,
    quarantine_list,
    start_line,
    trace_of_register,
)
from hosttune.model.values import address_key, to_json

MOST_WHY = 500  # characters
_RESTORE = "restore it from a backup; or, once no device has data of a tenant, move its folder away: all are free then"


def read_register(folder: str) -> Register:
    """Return the register of a state directory; an empty one if none was ever written.

    Raises BadInput, and Refused if it is absent although other files of a hand-over are there.
    """
    path = os.path.join(folder, REGISTER)
    if not os.path.lexists(path):
        machine = LiveMachine()
        trace = trace_of_register(folder, machine.list, machine.read)
        if trace is not None:
            raise Refused(f"the register of quarantined devices is lost: {trace} is there", where=path, hint=_RESTORE)
        return Register()
    return Register.from_json(load(path, what="hosttune's own register"), where=path)


def record_devices(folder: str, records: Iterable[DeviceRecord]) -> Register:
    """Put these records in place of those of the same addresses; on the disk when this returns. Raises BadInput.

    The hook's list is written such that a crash leaves it with too many devices, never with too few.
    """
    before = read_register(folder)
    records = tuple(records)
    kept = {record.address for record in before.quarantined}
    held = {record.address for record in records if record.state == "quarantined"}
    for address in sorted((held - kept) | _uncounted(folder, held & kept)):
        path = _place(folder, STARTS)
        try:
            append_line(path, start_line(address, HANDOVER, now_text(), "").encode(), mode_of(STARTS))
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror}", where=path, hint=state_remedy(error)) from error
    known = {record.address: record for record in before.devices} | {record.address: record for record in records}
    after = Register(devices=tuple(known[address] for address in sorted(known, key=address_key)))
    held = {record.address for record in after.quarantined}
    _write(folder, QUARANTINED, quarantine_list(held | kept))
    _write(folder, REGISTER, to_json(after))
    _write(folder, QUARANTINED, quarantine_list(held))
    return after


def _uncounted(folder: str, addresses: Collection[str]) -> set[str]:
    """Return which quarantined devices have lost the line that tells it, so that their epoch would be 0.

    Of a record that cannot be read nothing is said: then the epochs are unknown too.
    """
    path = os.path.join(folder, STARTS)
    try:
        there = addresses and os.path.lexists(path)
        text = load(path, what="the record of starts", size="starts").decode("utf-8", "replace") if there else ""
    except BadInput:
        return set()
    return {address for address in addresses if not count_quarantines(text, address)}


def _write(folder: str, name: str, text: str) -> None:
    path = _place(folder, name)
    save(path, text, mode=mode_of(name))
    sync_folder(os.path.dirname(path))


def _place(folder: str, name: str) -> str:
    """Return the path of a file of the register, in a folder that exists."""
    make_folder(folder, mode_of(""))
    make_folder(os.path.join(folder, FOLDER), mode_of(f"{FOLDER}/"))
    return os.path.join(folder, name)


def release(folder: str, address: str, why: str) -> DeviceRecord:
    """Free a quarantined device, as a person decided. It does not count as clean. Raises Refused, BadInput."""
    if not why.strip() or len(why) > MOST_WHY or not why.isprintable():
        hint = f"give one line of at most {MOST_WHY} characters"
        raise BadInput("a reason is needed", where="--why", hint=hint)
    device_record = read_register(folder).record(address)
    if device_record is None or device_record.state != "quarantined":
        known = ", ".join(record.address for record in read_register(folder).quarantined) or "none"
        raise Refused(f"{address} is not quarantined", where=os.path.join(folder, REGISTER), hint=f"these are: {known}")
    freed = msgspec.structs.replace(device_record, state="released", since=now_text(), why=why.strip(), who=caller())
    record_devices(folder, (freed,))
    return freed
