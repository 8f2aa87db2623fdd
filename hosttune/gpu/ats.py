"""How to switch on a NIC's address translation (ATS), by its maker's tool."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.pci import PciDevice

_MELLANOX = "15b3"


def ats_step(nic: PciDevice, kernel_args: Iterable[str] | None) -> str:
    """Return what switches ATS of a NIC on, with these arguments of the kernel."""
    step = "switch ATS on in its firmware with its maker's tool, then reboot"
    if nic.vendor_id == _MELLANOX:
        step = f"mlxconfig -d {nic.address} set ATS_ENABLED=1, then reboot"
    words = (word.partition("=") for word in kernel_args or ())
    if any(name == "pci" and "noats" in options.split(",") for name, _, options in words):
        step += "; and the kernel argument pci=noats must be removed"
    return step
