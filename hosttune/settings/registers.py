"""The only way to write a register of configuration space: read, change the bits of one field, write that word back.

Only the fields listed here can be written, because one wrong bit resets a device, disables its link or retrains it
(<linux/pci_regs.h>). Everything outside the field is written back as it was read. A word with a set bit that acts
immediately when written is left alone.
"""

from __future__ import annotations

import msgspec

from hosttune.errors import WriteFailed
from hosttune.linux.pciconfig import CAP_EXPRESS, EXT_ACS, capability_at, extended_capability_at
from hosttune.machine.system import System
from hosttune.settings.setting import DEVICES

_GONE = 0xFFFF


class Field(msgspec.Struct, frozen=True):
    """Bits of a 16-bit register.

    `offset`: from its capability. `mask`: the bits. `acts`: bits that trigger an action when 1 is written; a word with
    one of them set is not written back.
    """

    register: str
    capability: int
    offset: int
    mask: int
    acts: int = 0
    extended: bool = False


# Bit 15 of device control starts a function-level reset (PCI_EXP_DEVCTL_BCR_FLR); bits 4 and 5 of link control disable
# and retrain the link (PCI_EXP_LNKCTL_LD, _RL).
LINK_ASPM = Field("LNKCTL", CAP_EXPRESS, 0x10, 0x0003, acts=0x0030)
READ_REQUEST = Field("DEVCTL", CAP_EXPRESS, 0x08, 0x7000, acts=0x8000)
RELAXED_ORDERING = Field("DEVCTL", CAP_EXPRESS, 0x08, 0x0010, acts=0x8000)
# Without bit 5, P2P egress control: it has no effect without its vector.
ACS_CONTROL = Field("ACSCTL", EXT_ACS, 0x06, 0x005F, extended=True)
WRITABLE = frozenset((LINK_ASPM, READ_REQUEST, RELAXED_ORDERING, ACS_CONTROL))


def config_path(address: str) -> str:
    """Return the path of a function's configuration space."""
    return f"{DEVICES}/{address}/config"


def config_of(system: System, address: str) -> bytes:
    """Return the configuration space; empty if there is none or if the function is in D3cold, because a read would wake
    it.

    Discovery does the same (drivers/pci/pci.c, pci_config_pm_runtime_get). Raises Unreadable.
    """
    state = (system.read(f"{DEVICES}/{address}/power_state") or "").strip()
    if state in ("", "unknown", "error"):
        status = (system.read(f"{DEVICES}/{address}/power/runtime_status") or "").strip()
        state = "D3cold" if status == "suspended" else ""
    return b"" if state == "D3cold" else system.read_bytes(config_path(address)) or b""


def write_field(system: System, address: str, field: Field, bits: int) -> str | None:
    """Set a field of a function to `bits` (in place, not shifted); every other bit is kept. Raises WriteFailed.

    Returns a note if the function sleeps, because it may lose the value when it wakes.
    """
    path = config_path(address)
    if field not in WRITABLE or bits & ~field.mask:
        raise WriteFailed(path, f"{bits:#06x} of {field.register} must not be written")
    config = config_of(system, address)
    start = (extended_capability_at if field.extended else capability_at)(config, field.capability)
    if start is None or start + field.offset + 2 > len(config):
        raise WriteFailed(path, f"it does not answer, or has no {field.register}")
    at = start + field.offset
    word = int.from_bytes(config[at : at + 2], "little")
    if word == _GONE or word & field.acts:
        raise WriteFailed(
            path, f"{field.register} reads {word:#06x}: left alone, writing that back would act by itself"
        )
    wanted = word & ~field.mask | bits
    if wanted == word:
        return None
    system.write_register(path, at, wanted.to_bytes(2, "little"))
    if (system.read(f"{DEVICES}/{address}/power_state") or "").strip() == "D3hot":
        return f"{address} is in D3hot: the kernel puts back what it saved before that when the device wakes"
    return None
