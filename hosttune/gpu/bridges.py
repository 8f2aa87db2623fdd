"""NVLink fabrics whose switches are not PCI functions: ConnectX-7 functions on the baseboard represent them.

HGX B200 and B300 have no NVSwitch on PCI. ConnectX-7 functions carry the fabric's management: Fabric Manager and the
subnet manager work through them, and a reset of one resets its NVSwitch. They have the id of an ordinary ConnectX-7.
The vital product data of the limited ones contains SMDL=SW_MNG; that of the full ones beside them in the slot may lack
it (NVIDIA Fabric Manager User Guide, "Systems Using Fourth Generation NVSwitches").
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hosttune.model.host import Nic, PciDevice
from hosttune.model.values import slot_of

BOARDS = frozenset((("10de", "2901"), ("10de", "3182")))  # B200, B300 (pci.ids)
FUNCTIONS = frozenset((("15b3", "1021"),))  # ConnectX-7
MARK = b"SMDL=SW_MNG"
DRIVER = "mlx5_core"


def has_bridges(pci: Iterable[PciDevice]) -> bool:
    """Return whether the host has a GPU of such a baseboard."""
    return any((device.vendor_id, device.device_id) in BOARDS for device in pci)


def may_be_bridge(device: PciDevice) -> bool:
    """Return whether a function has the id of a bridge. Most functions with that id are ordinary NICs."""
    return (device.vendor_id, device.device_id) in FUNCTIONS and not device.physfn


def bridges_among(marks: dict[str, bool | None]) -> dict[str, bool | None]:
    """Return whether each function is a bridge; None if unknown.

    A slot with one marked function consists of bridges. `marks`: address -> whether its data has the mark, None if the
    data could not be read.
    """
    marked = {slot_of(address) for address, mark in marks.items() if mark}
    doubtful = {slot_of(address) for address, mark in marks.items() if mark is None}
    return {
        address: True if slot_of(address) in marked else None if slot_of(address) in doubtful else False
        for address in marks
    }


def fabric_bridges(pci: Iterable[PciDevice], nics: Iterable[Nic]) -> tuple[str, ...]:
    """Return the functions that carry the GPUs' fabric; empty if that is unknown of one, or on other boards."""
    kept = kept_bridges(pci, nics)
    physical = [device.address for device in pci if device.address in kept and not device.physfn]
    return tuple(physical) if all(kept[address].known for address in physical) else ()


class KeptFunction(msgspec.Struct, frozen=True):
    """A function that stays with the host, and why. `known`: it is a bridge; else it is only not proven to be none."""

    known: bool
    why: str


def kept_bridges(pci: Iterable[PciDevice], nics: Iterable[Nic]) -> dict[str, KeptFunction]:
    """Return the functions that carry the GPUs' fabric, or may carry it, by address; empty on other hosts."""
    functions = {device.address: device for device in pci}
    if not has_bridges(functions.values()):
        return {}
    is_bridge = {nic.address: nic.fabric_bridge for nic in nics}
    kept: dict[str, KeptFunction] = {}
    for address, device in functions.items():
        if not may_be_bridge(device) or is_bridge.get(address) is False:
            continue
        if is_bridge.get(address):
            why = "carries the NVLink fabric of the GPUs (SMDL=SW_MNG in its VPD, or in that of its slot)"
            kept[address] = KeptFunction(True, why)
        else:
            why = (
                "may carry the NVLink fabric of the GPUs: its vital product data was not read (as root, look with:"
                f" grep -a SMDL /sys/bus/pci/devices/{address}/vpd)"
            )
            kept[address] = KeptFunction(False, why)
    for device in functions.values():
        physical = kept.get(device.physfn or "")
        if physical is not None:
            kept[device.address] = KeptFunction(
                physical.known, f"is a virtual function of {device.physfn}, which {physical.why}"
            )
    return kept
