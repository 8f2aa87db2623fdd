"""The register of devices between two tenants, and their epochs (`Host.handover`), from hosttune's state directory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hosttune.errors import BadInput
from hosttune.libvirthook import recording_of
from hosttune.model.limits import limit
from hosttune.model.pci import PciDevice
from hosttune.model.quarantine import HandoverState, Register
from hosttune.model.values import to_json
from hosttune.reader import Reader
from hosttune.starts import OWN_STARTS, REGISTER, STARTS, count_starts
from hosttune.system import COMMANDS, STATE_INSIDE, state_directory

QUERY = "handover-register"  # the answer that a capture has: of quarantined devices only what planning needs


def read_handover(reader: Reader, pci: Sequence[PciDevice]) -> HandoverState | None:
    """Return the register and the epochs of its devices; None if the register cannot be read, or was not recorded.

    A capture has only the quarantined devices, without serial numbers and epochs.
    """
    system = reader.system
    if system.captured and not system.scratch:
        text = reader.query(QUERY, lambda: None)
        if text is None:
            return HandoverState() if system.lacks(COMMANDS + QUERY) else None
        register = _parsed(reader, text, COMMANDS + QUERY)
        return None if register is None else HandoverState(devices=register.devices)
    folder = STATE_INSIDE if system.captured else state_directory()
    register = _register(reader, f"{folder}/{REGISTER}")
    if not system.captured:
        reader.query(QUERY, lambda: None if register is None else _brief(register))
    if register is None:
        return None
    if not register.devices:
        return HandoverState()
    recording = recording_of(system, folder)
    epochs = _epochs(reader, folder, register, pci) if recording.active else None
    return HandoverState(devices=register.devices, epochs=epochs, recording=recording)


def _register(reader: Reader, path: str) -> Register | None:
    known = len(reader.problems)
    text = reader.text(path)
    if text is None:
        return Register() if len(reader.problems) == known and not reader.system.exists(path) else None
    return _parsed(reader, text, path)


def _parsed(reader: Reader, text: str, where: str) -> Register | None:
    try:
        return Register.from_json(text, where=where)
    except BadInput as error:
        reader.problem("register of quarantined devices not understood", error.where, error.what)
        return None


def _brief(register: Register) -> str | None:
    """Return the register for a capture: quarantined devices, without what identifies a machine; None if none is."""
    found = tuple(
        msgspec.structs.replace(one, identity=" ".join(one.identity.split(" ")[:2]), why="quarantined", guest=None,
                                who=None, handover=None, boot_id=None, firmware=None)
        for one in register.quarantined
    )  # fmt: skip
    return to_json(Register(devices=found)) if found else None


def _epochs(reader: Reader, folder: str, register: Register, pci: Sequence[PciDevice]) -> dict[str, int] | None:
    texts = []
    for name in (STARTS, OWN_STARTS):
        known = len(reader.problems)
        text = reader.text(f"{folder}/{name}")
        if len(reader.problems) > known or (text is not None and len(text) > limit("starts")):
            return None
        texts.append(text or "")
    physical = {one.address: one.physfn for one in pci}
    return {
        one.address: sum(count_starts(text, one.address, physical.get(one.address)) for text in texts)
        for one in register.devices
    }
