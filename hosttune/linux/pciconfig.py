"""Decodes PCI configuration space: bytes in, facts out; pure, and safe on truncated or invalid input.

`decode` returns the facts of a function for discovery; `capability_at` and `extended_capability_at` return where
registers are, for code that writes one. Registers and bits are those of <linux/pci_regs.h>, names those of lspci. An
unprivileged user gets 64 bytes, and a conventional device has 256, so every capability may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any

from hosttune.model.host import Acs
from hosttune.model.pci import PCIE_GTS
from hosttune.model.values import Value

_U16 = Struct("<H").unpack_from
_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_EXPRESS = Struct("<HIHHIHH").unpack_from  # PCI_EXP_FLAGS, DEVCAP, DEVCTL, DEVSTA, LNKCAP, LNKCTL, LNKSTA

_HEADER = 64
_CAPABILITY_POINTER = 0x34
_STATUS_CAP_LIST = 0x10
_CAP_SSVID = 0x0D
CAP_EXPRESS = 0x10
_EXT_AER = 0x01
_EXT_DSN = 0x03
EXT_ACS = 0x0D
_EXT_ATS = 0x0F
_EXT_SRIOV = 0x10
_EXT_START = 0x100

# PCI_EXP_FLAGS_TYPE. The root complex's own functions (9, 10) are on no link.
_PORT_TYPES = {
    0: "endpoint",
    1: "legacy-endpoint",
    4: "root-port",
    5: "upstream-port",
    6: "downstream-port",
    7: "pcie-to-pci-bridge",
    8: "pci-to-pcie-bridge",
    9: "root-complex-endpoint",
    10: "root-complex-event-collector",
}
_WITHOUT_LINK = (9, 10)
WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
ASPM = ("off", "L0s", "L1", "L0s L1")  # by the two bits of LNKCTL
_ASPM_SUPPORTED = ("none", *ASPM[1:])
ACS_BITS = (
    (0x01, "SrcValid"),
    (0x02, "TransBlk"),
    (0x04, "ReqRedir"),
    (0x08, "CmpltRedir"),
    (0x10, "UpstreamFwd"),
    (0x20, "EgressCtrl"),
    (0x40, "DirectTrans"),
)
_ACS_NAMES = tuple(tuple(name for bit, name in ACS_BITS if value & bit) for value in range(128))
_NO_ACS = Acs()


class SriovFacts(Value, frozen=True, kw_only=True):
    """The SR-IOV capability of a physical function: how many virtual functions it can have and has now.

    The routing id of the nth is its own plus `offset` plus n times `stride`; `device_id` is theirs.
    """

    total_vfs: int
    vfs: int
    enabled: bool
    offset: int
    stride: int
    device_id: str


class ConfigFacts(Value, frozen=True, kw_only=True):
    """The facts in configuration space. None: not there, or beyond the bytes that the kernel returned.

    `vendor_id` and the other ids are four hex digits without 0x; a virtual function returns ffff and so has none. `acs`
    without names: extended space was read and has no ACS capability. `aer`: it has the AER capability; None also where
    the list of capabilities is broken. `aspm`: "off", "L0s", "L1", "L0s L1"; `aspm_supported` likewise, with "none".
    `dsn`: its Device Serial Number. Link widths outside the standard, including zero, are None. `doubts`: what was
    wrong with the lists ("the capability list loops at 0x50"). `all_ones`: the function does not respond.
    """

    vendor_id: str | None = None
    device_id: str | None = None
    revision: str | None = None
    class_code: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_device_id: str | None = None
    is_bridge: bool = False
    no_bars: bool = False  # a normal header whose six base address registers are all zero
    wide_bars: tuple[int, ...] = ()  # those that are 64-bit memory BARs, whether or not they have an address
    capabilities: tuple[int, ...] = ()
    extended_capabilities: tuple[int, ...] = ()
    port_type: str | None = None
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    aspm: str | None = None
    aspm_supported: str | None = None
    max_payload_bytes: int | None = None
    max_payload_supported_bytes: int | None = None
    read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    aer: bool | None = None
    acs: Acs | None = None
    ats_enabled: bool | None = None
    sriov: SriovFacts | None = None
    dsn: str | None = None
    doubts: tuple[str, ...] = ()
    all_ones: bool = False


_NOTHING = ConfigFacts()
_GONE = ConfigFacts(all_ones=True)
_NO_BARS = bytes(0x18)
# The lowest bytes of two base address registers, of which the first says memory, 64 bits wide (PCI 3.0, 6.2.5.1); the
# second is the upper half of its address.
_WIDE_BARS = re.compile(rb"[\x04\x0c].", re.DOTALL).finditer


@lru_cache(maxsize=1024)
def decode(config: bytes) -> ConfigFacts:
    """Return the facts in one function's configuration space of any length.

    All are None if it does not respond (0xff) or has less than 64 bytes. The ids of a virtual function are ffff while
    everything else is real, so only ids *and* status of all ones mean "gone".
    """
    if not _answers(config):
        return _GONE if len(config) >= _HEADER else _NOTHING
    doubts: list[str] = []
    capabilities = _capabilities(config, doubts)
    facts = _header(config, capabilities)
    if CAP_EXPRESS in capabilities:
        _express(config, capabilities[CAP_EXPRESS], facts)
    if len(config) > _EXT_START + 4 and CAP_EXPRESS in capabilities:
        facts["acs"] = _NO_ACS
        before = len(doubts)
        order: list[int] = []
        for kind, at in _extended_capabilities(config, doubts):
            if kind not in order:
                order.append(kind)
                _extended_capability(config, kind, at, facts)
        facts["extended_capabilities"] = tuple(order)
        facts["aer"] = _EXT_AER in order or (False if len(doubts) == before else None)
    return ConfigFacts(capabilities=tuple(capabilities), doubts=tuple(doubts), **facts)


def capability_at(config: bytes, kind: int) -> int | None:
    """Return where the first capability with this id begins; None if there is none or the function does not respond."""
    return _capabilities(config, []).get(kind) if _answers(config) else None


def extended_capability_at(config: bytes, kind: int) -> int | None:
    """Return where the first extended capability with this id begins; None as for `capability_at`."""
    if not _answers(config) or CAP_EXPRESS not in _capabilities(config, []):
        return None
    return next((at for capability, at in _extended_capabilities(config, []) if capability == kind), None)


def _answers(config: bytes) -> bool:
    return len(config) >= _HEADER and config[:8] != b"\xff" * 8


def _header(config: bytes, offsets: dict[int, int]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "revision": f"{config[8]:02x}",
        "class_code": f"{config[11]:02x}{config[10]:02x}{config[9]:02x}",
    }
    vendor, device = _U16(config, 0)[0], _U16(config, 2)[0]
    if vendor != 0xFFFF:
        facts["vendor_id"] = f"{vendor:04x}"
        facts["device_id"] = f"{device:04x}"
    at = 0x2C
    if config[14] & 0x7F:  # header type 1 or 2: a bridge has its subsystem in a capability
        facts["is_bridge"] = True
        at = offsets[_CAP_SSVID] + 4 if _CAP_SSVID in offsets else len(config)
    elif config[0x10:0x28] == _NO_BARS:
        facts["no_bars"] = True
    else:
        facts["wide_bars"] = tuple(bar.start() for bar in _WIDE_BARS(config[0x10:0x28:4]))
    if at + 4 <= len(config):
        subsystem = _U32(config, at)[0]
        if subsystem not in (0, 0xFFFFFFFF):
            facts["subsystem_vendor_id"] = f"{subsystem & 0xFFFF:04x}"
            facts["subsystem_device_id"] = f"{subsystem >> 16:04x}"
    return facts


def _capabilities(config: bytes, doubts: list[str]) -> dict[int, int]:
    """Return offsets of the standard capabilities by id (the first of each), in list order."""
    capabilities: dict[int, int] = {}
    if not config[6] & _STATUS_CAP_LIST:
        return capabilities
    end = min(len(config), 256)
    seen = set()
    at = config[_CAPABILITY_POINTER] & 0xFC
    while at:
        if at in seen:
            doubts.append(f"the capability list loops at {at:#x}")
            break
        if at < _HEADER:
            doubts.append(f"the capability list points into the header, at {at:#x}")
            break
        if at + 2 > end:
            break  # an unprivileged reader does not get more
        seen.add(at)
        kind = config[at]
        if kind == 0xFF:
            doubts.append(f"the capability list reads 0xff at {at:#x}")
            break
        capabilities.setdefault(kind, at)
        at = config[at + 1] & 0xFC
    return capabilities


def _express(config: bytes, at: int, facts: dict[str, Any]) -> None:
    """Decode the PCI Express capability: port type, payload, and the link if the function has one."""
    if at + 4 > len(config):
        return
    kind = config[at + 2] >> 4
    facts["port_type"] = _PORT_TYPES.get(kind)
    if at + 0x14 > len(config):
        return
    flags, device_cap, control, _, link_cap, link_control, link_status = _EXPRESS(config, at + 2)
    facts["max_payload_supported_bytes"] = _payload(device_cap & 7)
    facts["max_payload_bytes"] = _payload(control >> 5 & 7)
    facts["read_request_bytes"] = _payload(control >> 12 & 7)
    facts["relaxed_ordering"] = bool(control & 0x10)
    if kind in _WITHOUT_LINK:
        return
    facts["speed_gts"] = PCIE_GTS.get(link_status & 0xF)
    facts["width"] = _width(link_status >> 4 & 0x3F)
    facts["max_speed_gts"] = PCIE_GTS.get(link_cap & 0xF)
    facts["max_width"] = _width(link_cap >> 4 & 0x3F)
    facts["aspm_supported"] = _ASPM_SUPPORTED[link_cap >> 10 & 3]
    facts["aspm"] = ASPM[link_control & 3]
    if flags & 0xF >= 2 and at + 0x30 <= len(config):
        # The vector of LNKCAP2 is preferred to the code of LNKCAP, as in the kernel's pcie_get_speed_cap().
        vector = _U32(config, at + 0x2C)[0] >> 1 & 0x7F
        if vector:
            facts["max_speed_gts"] = PCIE_GTS.get(vector.bit_length())


def _extended_capabilities(config: bytes, doubts: list[str]) -> Iterator[tuple[int, int]]:
    """Yield (id, offset) of each, from 0x100; like the kernel, it stops at a header of 0 or all ones."""
    size = len(config)
    seen = set()
    at = _EXT_START
    while at >= _EXT_START and at + 4 <= size:
        if at in seen:
            doubts.append(f"the extended capability list loops at {at:#x}")
            return
        seen.add(at)
        header = _U32(config, at)[0]
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, at
        at = header >> 20 & 0xFFC
    if at:
        doubts.append(f"the extended capability list points to {at:#x}, where there is none")


def _extended_capability(config: bytes, kind: int, at: int, facts: dict[str, Any]) -> None:
    if kind == EXT_ACS and at + 8 <= len(config):
        facts["acs"] = Acs(
            capable=_ACS_NAMES[_U16(config, at + 4)[0] & 0x7F], enabled=_ACS_NAMES[_U16(config, at + 6)[0] & 0x7F]
        )
    elif kind == _EXT_ATS and at + 8 <= len(config):
        facts["ats_enabled"] = bool(_U16(config, at + 6)[0] & 0x8000)
    elif kind == _EXT_DSN and at + 12 <= len(config):
        facts["dsn"] = f"{_U64(config, at + 4)[0]:016x}".replace("0" * 16, "") or None
    elif kind == _EXT_SRIOV and at + 0x1C <= len(config):
        facts["sriov"] = SriovFacts(
            total_vfs=_U16(config, at + 0xE)[0],
            vfs=_U16(config, at + 0x10)[0],
            enabled=bool(_U16(config, at + 8)[0] & 1),
            offset=_U16(config, at + 0x14)[0],
            stride=_U16(config, at + 0x16)[0],
            device_id=f"{_U16(config, at + 0x1A)[0]:04x}",
        )


def _payload(code: int) -> int | None:
    """Return the bytes of a payload or read-request field: 128 << code; 6 and 7 are reserved."""
    return 128 << code if code < 6 else None


def _width(lanes: int) -> int | None:
    return lanes if lanes in WIDTHS else None
