"""PCIe settings of one function or link. A target is a PCI address in the kernel's form ("0000:40:00.0").

Values are as in the host document: `PciDevice.aspm`, `read_request_bytes`, `relaxed_ordering`, and the names of
`Acs.enabled`. A function that sleeps or does not respond has no value, and nothing is written to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from hosttune.errors import WriteFailed
from hosttune.linux.pciconfig import (
    ACS_BITS,
    ASPM,
    CAP_EXPRESS,
    EXT_ACS,
    ConfigFacts,
    capability_at,
    decode,
    extended_capability_at,
)
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import FrozenMap, slot_of
from hosttune.settings.setting import DEVICES, ISOLATION_STAGE, OfFunction, refuse

READ_REQUEST_BYTES = (128, 256, 512, 1024, 2048, 4096)  # 128 << field; 6 and 7 are reserved
NO_ACS = "none"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_BIT = {name: bit for bit, name in ACS_BITS}
# ACS bits that isolate devices. The other two only allow translated requests, or control ports by a vector.
_ISOLATING = 0x1F
# REQ_ACS_FLAGS of drivers/iommu/iommu.c: the bits from which the kernel forms IOMMU groups, once, when a device
# appears.
_GROUPING = 0x1D
_GROUPS = sysfs.IOMMU_GROUPS


class OfRegister(OfFunction):
    """Base class of settings in a function's configuration space. A reset of the function undoes them."""

    def facts(self, system: System) -> ConfigFacts:
        """Return the facts in the function's configuration space; none for a virtual function, whose control bits are
        in its physical function.

        Source: PCIe 5.0, 9.3.5.4 and 9.3.5.7 (device and link control of a virtual function). Raises Unreadable.
        """
        virtual = system.link(f"{DEVICES}/{self.target}/physfn") is not None
        return decode(b"" if virtual else config_of(system, self.target))


class ReadRequest(OfRegister):
    """The largest read request of the function, in bytes: bits 14:12 of device control."""

    kind: ClassVar[str] = "read-request"
    values = READ_REQUEST_BYTES

    def read(self, system: System) -> int | None:
        """See Setting."""
        return self.facts(system).read_request_bytes

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        return write_field(system, self.target, READ_REQUEST, READ_REQUEST_BYTES.index(value) << 12)


class RelaxedOrdering(OfRegister):
    """Whether the function may mark its writes as relaxed: bit 4 of device control."""

    kind: ClassVar[str] = "relaxed-ordering"
    values = (True, False)

    def read(self, system: System) -> bool | None:
        """See Setting."""
        return self.facts(system).relaxed_ordering

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        return write_field(system, self.target, RELAXED_ORDERING, RELAXED_ORDERING.mask if value else 0)


class AccessControl(OfRegister):
    """Access Control Services of a function: names as in lspci, in register order, or "none".

    Bits that isolate devices are never cleared while a device below is on vfio-pci, or while IOMMU groups depend on
    them: the kernel forms groups only once, so the isolation would be lost without notice.
    """

    kind: ClassVar[str] = "acs"
    stage: ClassVar[int] = ISOLATION_STAGE

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, str) or value != acs_text(value.split()):
            names = " ".join(_BIT)
            raise refuse(self.kind, self.target, f"invalid value {value!r}", f"{NO_ACS}, or in this order: {names}")

    def read(self, system: System) -> str | None:
        """See Setting."""
        acs = self.facts(system).acs
        return acs_text(acs.enabled) if acs is not None and acs.capable else None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        bits = sum(_BIT[name] for name in value.split() if name != NO_ACS)
        now = sum(_BIT[name] for name in (self.read(system) or NO_ACS).split() if name != NO_ACS)
        lost = now & ~bits & _ISOLATING
        if lost:
            names = acs_text(name for bit, name in ACS_BITS if lost & bit)
            grouped = bool(system.list(_GROUPS)) and lost & _GROUPING
            own = _last(system.link(f"{DEVICES}/{self.target}/iommu_group"))
            for address in _concerned(system, self.target):
                if _last(system.link(f"{DEVICES}/{address}/driver")) == "vfio-pci":
                    raise WriteFailed(config_path(self.target), f"{names} stays on: {address} is a virtual machine's")
                group = _last(system.link(f"{DEVICES}/{address}/iommu_group"))
                if grouped and (own is None or group != own):
                    raise WriteFailed(
                        config_path(self.target), f"{names} stays on: IOMMU group {group} of {address} may rest on it"
                    )
        return write_field(system, self.target, ACS_CONTROL, bits & ACS_CONTROL.mask)


def acs_text(names: Any) -> str:
    """Return ACS names as one text, in register order; "none" if there are none. Unknown names are left out."""
    held = set(names)
    return " ".join(name for name in _BIT if name in held) or NO_ACS


def real_path(system: System, address: str) -> str:
    """Return the function's own folder in the device tree."""
    return system.link(f"{DEVICES}/{address}") or f"{DEVICES}/{address}"


def below(system: System, path: str) -> Iterator[tuple[str, str]]:
    """Yield (address, folder) of the functions directly below a bridge."""
    for name in system.list(path):
        if ADDRESS.fullmatch(name):
            yield name, f"{path}/{name}"


def _concerned(system: System, address: str) -> Iterator[str]:
    """Yield every function that this one's ACS bits isolate: all below a bridge, else those of its slot."""
    path = real_path(system, address)
    todo = list(below(system, path))
    if not todo:
        slot = slot_of(address)
        yield from (name for name, _ in below(system, path.rpartition("/")[0]) if slot_of(name) == slot)
        return
    while todo:
        name, folder = todo.pop(0)
        yield name
        todo += below(system, folder)


def _last(path: str | None) -> str | None:
    return None if path is None else path.rpartition("/")[2]


SWITCHES = {"l0s_aspm": "L0s", "l1_aspm": "L1"}
SUBSTATES = ("l1_1_aspm", "l1_2_aspm", "l1_1_pcipm", "l1_2_pcipm")  # cleared with l1_aspm, but not set again with it
LINK, APART = "link", "apart"
_FACING_DOWN = ("root-port", "downstream-port")


class Aspm(OfRegister):
    """Active State Power Management (ASPM) of a link. Target: the address of one end, usually the port above.

    Value: the states that both ends have enabled, as in `PciDevice.aspm`: "off", "L0s", "L1", "L0s L1". The value is a
    mapping if the ends differ, if the kernel's switches contradict the ends, or if substates are on that a revert must
    switch on again: address -> states, "link" -> names of the kernel's switches that are on, "apart" -> names of the
    switches that contradict the ends.

    ASPM is set in two places. One is bits 1:0 of link control at each end. The other is the kernel's own switches
    (Documentation/ABI/testing/sysfs-bus-pci, `link/l0s_aspm`…; on the function below the port). They set both ends, and
    do nothing if the kernel already has the requested value (drivers/pci/pcie/aspm.c, pcie_config_aspm_link). setpci
    and firmware change the bits without the kernel noticing. So both places are read, and each is written if it
    differs. PCIe 5.0, 5.4.1.3: L1 is disabled at the downstream end first, so the port is written last.
    """

    kind: ClassVar[str] = "aspm"
    may_stop_midway: ClassVar[bool] = True  # two ends, several switches
    values = ASPM

    def effective(self, system: System) -> Any:
        """See Setting. Read from the registers of both ends, as in the host document."""
        ends = self._states(system)
        if self.target not in ends:
            return None
        return ends[self.target] if len(set(ends.values())) == 1 else FrozenMap(ends)

    def read(self, system: System) -> Any:
        """See Setting."""
        ends = self._states(system)
        if self.target not in ends:
            return None
        switches = _switches(system, self._folder(system))
        states = ends[self.target]
        alike = set(ends.values()) == {states}
        if not switches:
            return states if alike else FrozenMap(ends)
        on = [name for name, value in switches.items() if value == "1"]
        if "l1_aspm" not in on:  # substates have no effect without it
            on = [name for name in on if name in SWITCHES]
        apart = _apart(states, switches) if alike else []
        if alike and not apart and SWITCHES.keys() >= set(on):
            return states
        return FrozenMap({**ends, LINK: " ".join(on) or "off"} | ({APART: " ".join(apart)} if apart else {}))

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. The registers of the ends are written only if the switches did not set the wanted states."""
        folder = self._folder(system)
        switches = _switches(system, folder)
        before = self._states(system)
        whole = dict.fromkeys(before, value)
        states = {end: words for end, words in value.items() if end in whole} if isinstance(value, Mapping) else whole
        wanted = _wanted(value, switches)
        _set_switches(system, folder, switches, wanted)
        now = self._states(system)
        if now == before and any(wanted[name] != switches[name] for name in wanted if name in SWITCHES):
            now = dict.fromkeys(
                before, " ".join(state for name, state in SWITCHES.items() if wanted.get(name) == "1") or "off"
            )  # for a rehearsal; live, the read-back shows it
        notes = [
            write_field(system, end, LINK_ASPM, ASPM.index(words))
            for end, words in _port_last(states, self.ends(system))
            if now.get(end) != words
        ]
        return "; ".join(filter(None, notes)) or None

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Substates are ignored if the ends are as wanted, unless "off" is wanted."""
        if not (isinstance(live, Mapping) and isinstance(want, str)):
            return super().agrees(live, want)
        ends = all(states == want for end, states in live.items() if end not in (LINK, APART))
        return ends and APART not in live and (want != "off" or live.get(LINK, "off") == "off")

    def ends(self, system: System) -> tuple[str, ...]:
        """Return the functions at both ends of the link, the port above last; virtual functions are not ends."""
        path = real_path(system, self.target)
        if decode(config_of(system, self.target)).port_type not in _FACING_DOWN:
            path = path.rpartition("/")[0]
        port = path.rpartition("/")[2]
        ends = [name for name, folder in below(system, path) if system.link(f"{folder}/physfn") is None]
        if not ADDRESS.fullmatch(port):  # on a root bus: no port is visible
            ends, port = [], self.target
        return (*sorted(ends), port)

    def _states(self, system: System) -> dict[str, str]:
        """Return the ASPM states of each end that reports them."""
        if system.link(f"{DEVICES}/{self.target}/physfn") is not None:
            return {}
        states_of = {end: decode(config_of(system, end)).aspm for end in self.ends(system)}
        return {end: states for end, states in states_of.items() if states is not None}

    def _folder(self, system: System) -> str:
        """Return the folder with the kernel's switches for this link, of the first function that has it; "" if none."""
        folders = [f"{DEVICES}/{end}/link" for end in self.ends(system)[:-1]]
        return next((folder for folder in folders if SWITCHES.keys() & set(system.list(folder))), "")


def _switches(system: System, folder: str) -> dict[str, str]:
    """Return the switches of a link with their values, "0" or "1"."""
    names = set(system.list(folder)) if folder else set()
    values = {name: system.read(f"{folder}/{name}") for name in (*SWITCHES, *SUBSTATES) if name in names}
    return {name: value.strip() for name, value in values.items() if value is not None}


def _wanted(value: Any, switches: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted value of each switch. Substates are only ever restored."""
    if isinstance(value, Mapping) and LINK in value:
        on = set(value[LINK].split())
        return {name: "1" if name in on else "0" for name in switches if name in SWITCHES or "l1_aspm" in on}
    states = value.split() if isinstance(value, str) else {word for words in value.values() for word in words.split()}
    return {name: "1" if SWITCHES[name] in states else "0" for name in switches if name in SWITCHES}


def _apart(states: str, switches: Mapping[str, str]) -> list[str]:
    """Return the switches that contradict `states`, the states of the ends."""
    on = states.split()
    return [name for name, state in SWITCHES.items() if name in switches and (switches[name] == "1") != (state in on)]


def _set_switches(system: System, folder: str, now: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Write the switches that differ, in this order: those to switch off, those to switch on, substates to switch on.

    A substate also switches L1 on, and switching L1 off also switches substates off.
    """
    differing = [name for name in wanted if wanted[name] != now[name]]
    for name in sorted(differing, key=lambda name: (wanted[name] == "1", name in SUBSTATES)):
        system.write(f"{folder}/{name}", wanted[name])


def _port_last(states: Mapping[str, str], ends: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(end, states[end]) for end in ends if end in states]


# --- registers -------------------------------------------------------------------------------------------------
# The only way to write a register of configuration space: read, change the bits of one field, write that word back.
# Only the fields listed here can be written, because one wrong bit resets a device, disables its link or retrains it
# (<linux/pci_regs.h>). Everything outside the field is written back as it was read. A word with a set bit that acts
# immediately when written is left alone.

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
