"""Configuration space for tests, built register by register; offsets and bits of <linux/pci_regs.h>."""

from __future__ import annotations

import struct

EXPRESS_AT = 0x60
ACS_AT = 0x140
DEVCTL, LNKCTL = EXPRESS_AT + 0x08, EXPRESS_AT + 0x10
ACSCTL = ACS_AT + 6
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM = 0, 4, 5, 6


def space(
    kind: int = ENDPOINT,
    *,
    aspm: int = 0,
    read_request: int = 2,
    relaxed: bool = False,
    acs: tuple[int, int] | None = None,
    size: int = 4096,
) -> bytes:
    """A function with a PCI Express capability. `read_request` is the field, `acs` (capable, enabled)."""
    config = bytearray(size)
    bridge = kind in (ROOT_PORT, UPSTREAM, DOWNSTREAM)
    struct.pack_into("<HHHH", config, 0, 0x10DE, 0x2335, 0x0146, 0x0010)
    config[10:12] = b"\x04\x06" if bridge else b"\x02\x03"
    config[14] = int(bridge)
    config[0x34] = 0x40
    struct.pack_into("<BBH", config, 0x40, 0x01, EXPRESS_AT, 0xC3)  # power management, then express
    struct.pack_into("<BBH", config, EXPRESS_AT, 0x10, 0, kind << 4 | 2)
    struct.pack_into("<IH", config, EXPRESS_AT + 4, 0x10008FE1, 0x2920 | read_request << 12 & 0x7000 | relaxed << 4)
    struct.pack_into("<H", config, DEVCTL, 0x0927 | read_request << 12 | relaxed << 4)
    struct.pack_into("<IHH", config, EXPRESS_AT + 0x0C, 0x00477905, 0x0148 | aspm, 0x5105)
    if size > 0x200:
        struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | (ACS_AT << 20 if acs is not None else 0))
    if acs is not None:
        struct.pack_into("<IHH", config, ACS_AT, 0x000D | 1 << 16, *acs)
    return bytes(config)


def word(config: bytes, at: int) -> int:
    """A 16-bit register."""
    return int.from_bytes(config[at : at + 2], "little")
