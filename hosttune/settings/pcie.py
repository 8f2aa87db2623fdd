"""PCIe settings of one function or link. A target is a PCI address in the kernel's form ("0000:40:00.0").

Values are as in the host document: `PciDevice.aspm`, `read_request_bytes`, `relaxed_ordering`, and the names of
`Acs.enabled`. A function that sleeps or does not respond has no value, and nothing is written to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from hosttune.errors import WriteFailed
from hosttune.linux.pciconfig import ACS_BITS, ConfigFacts, decode
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import slot_of
from hosttune.settings.registers import (
    ACS_CONTROL,
    READ_REQUEST,
    RELAXED_ORDERING,
    config_of,
    config_path,
    write_field,
)
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
