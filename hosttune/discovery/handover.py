"""The register of devices between two tenants, and their epochs (`Host.handover`), from hosttune's state directory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hosttune.disks import drive_serial
from hosttune.errors import BadInput
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS, STATE_INSIDE, state_directory
from hosttune.model.limits import limit
from hosttune.model.pci import PciDevice
from hosttune.model.quarantine import DeviceRecord, HandoverState, Register
from hosttune.model.starts import (
    FOLDER,
    OWN_STARTS,
    REGISTER,
    REGISTER_ANSWER,
    STARTS,
    count_starts,
    starts_mark,
    trace_of_register,
)
from hosttune.model.values import to_json
from hosttune.settings.hook import recording_of

_Counted = tuple[dict[str, int] | None, dict[str, str] | None]


def read_handover(reader: Reader, pci: Sequence[PciDevice]) -> HandoverState | None:
    """Return the register and the epochs of its devices; None if the register cannot be read, or was not recorded.

    A capture has only the quarantined devices, without serial numbers and epochs.
    """
    system = reader.system
    if system.scratch:
        return _state(reader, STATE_INSIDE, pci)
    if system.captured:
        text = reader.query(REGISTER_ANSWER, lambda: None)
        if text is None:
            return HandoverState() if system.lacks(COMMANDS + REGISTER_ANSWER) else None
        register = _parsed(reader, text, COMMANDS + REGISTER_ANSWER)
        return None if register is None else HandoverState(devices=register.devices)
    states: list[HandoverState | None] = []

    def ask() -> str | None:  # what a query reads is not recorded in a capture, only its answer
        states.append(_state(reader, state_directory(), pci))
        return _brief(states[0])

    reader.query(REGISTER_ANSWER, ask)
    return states[0]


def _state(reader: Reader, folder: str, pci: Sequence[PciDevice]) -> HandoverState | None:
    system = reader.system
    if folder != STATE_INSIDE and not os.environ.get("HOSTTUNE_STATE") and system.exists(f"{STATE_INSIDE}/{FOLDER}"):
        reader.problem(
            "register of quarantined devices not read", f"{STATE_INSIDE}/{REGISTER}", "only root may read it"
        )
        return None
    path, known = f"{folder}/{REGISTER}", len(reader.problems)
    text = reader.text(path)
    if text is not None:
        register = _parsed(reader, text, path)
    else:
        trace = trace_of_register(folder, reader.names, reader.text)
        if trace is not None:
            reader.problem("register of quarantined devices lost", path, f"absent, and {trace} is there")
        register = Register() if len(reader.problems) == known and not reader.system.exists(path) else None
    if register is None:
        return None
    if not register.devices:
        return HandoverState()
    recording = recording_of(system, folder)
    recorded = recording is not None and recording.active
    epochs, marks = _counted(reader, folder, register, pci) if recorded else (None, None)
    if register.quarantined:
        # The serial numbers of the drives that the host's driver has, by address.
        drives = [function.address for function in pci if function.is_nvme]
        serials = {drive: serial for drive in drives if (serial := drive_serial(reader.names, reader.text, drive))}
    else:
        serials = None
    return HandoverState(devices=register.devices, epochs=epochs, starts=marks, recording=recording, serials=serials)


def _parsed(reader: Reader, text: str, where: str) -> Register | None:
    try:
        return Register.from_json(text, where=where)
    except BadInput as error:
        reader.problem("register of quarantined devices not understood", error.where, error.what)
        return None


def _brief(state: HandoverState | None) -> str | None:
    """Return the register for a capture: quarantined devices, without what identifies a machine; None if none is.

    An empty text if it cannot be read: then it is unknown in the capture too.
    """
    if state is None:
        return ""
    records = tuple(
        DeviceRecord(
            address=record.address,
            identity=" ".join(record.identity.split(" ")[:2]),
            state=record.state,
            since=record.since,
            why="hand-over",
        )
        for record in state.register.quarantined
    )
    return to_json(Register(devices=records)) if records else None


def _counted(reader: Reader, folder: str, register: Register, pci: Sequence[PciDevice]) -> _Counted:
    """Return the epoch of each device, and the mark of the lines that were counted; (None, None): they are unknown.

    A device without an epoch is one of which lines are missing: there are none, though each has that of its quarantine,
    or fewer than its record in the register has counted, or as many, and others.
    """
    texts = []
    for name in (STARTS, OWN_STARTS):
        known = len(reader.problems)
        text = reader.text(f"{folder}/{name}")
        if len(reader.problems) > known or (text is not None and len(text) > limit("starts")):
            return None, None
        texts.append(text or "")
    physical = {function.address: function.physfn for function in pci}
    epochs, marks = {}, {}
    for record in register.devices:
        parent = physical.get(record.address)
        count = sum(count_starts(text, record.address, parent) for text in texts)
        mark = starts_mark(texts[0], texts[1], record.address, parent)
        least = record.epoch or 0
        if count > least or (count and count == least and record.starts in (None, mark)):
            epochs[record.address], marks[record.address] = count, mark
    return epochs, marks
