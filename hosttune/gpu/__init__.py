"""The seam to the GPU makers: which accelerators exist (sysfs decides), and what their makers' drivers tell.

Nothing outside this package asks who made a GPU. One module a maker; the makers never import each other.
"""

from __future__ import annotations

from hosttune.gpu.amd import AMD
from hosttune.gpu.habana import HABANA
from hosttune.gpu.inside import Inside
from hosttune.gpu.intel import INTEL
from hosttune.gpu.nvidia import NVIDIA
from hosttune.gpu.vendor import Vendor
from hosttune.model.gpu import OTHER, Gpu
from hosttune.model.host import PciDevice
from hosttune.model.limits import check_count
from hosttune.reader import Reader

__all__ = ["VENDORS", "inside", "maker_of", "read_gpus", "vendor_of"]

VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, HABANA, INTEL)


def read_gpus(reader: Reader, pci: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
    """Every display (03xx) and accelerator (12xx) function as a Gpu, in the order of `pci`.

    A function of no known accelerator maker, and graphics built into a CPU or a board, is `other`. A virtual
    function is a GPU as well. The maker's library is asked only where the maker's driver holds a GPU that is
    awake; doubts go to the reader's problems. Raises BadInput for a hostile capture, nothing else.
    """
    bridges = {device.address: device for device in pci if device.is_bridge}
    devices = tuple(device for device in pci if device.is_display)
    check_count(len(devices), "GPUs of a host", reader.system.origin)
    makers = {device.address: _maker(device, bridges) for device in devices}
    found = {device.address: _gpu(device, makers[device.address]) for device in devices}
    for vendor in VENDORS:
        mine = tuple(device for device in devices if makers[device.address] is vendor)
        if mine:
            gpus = vendor.enrich(reader, mine, tuple(found[device.address] for device in mine))
            found.update((gpu.address, gpu) for gpu in gpus)
    return tuple(found[device.address] for device in devices)


def _maker(device: PciDevice, bridges: dict[str, PciDevice]) -> Vendor | None:
    bridge = bridges.get(device.parent or "")
    for vendor in VENDORS:
        if device.vendor_id == vendor.vendor_id:
            return vendor if vendor.makes(device, bridge) else None
    return None


def _gpu(device: PciDevice, vendor: Vendor | None) -> Gpu:
    model = vendor.models.get(device.device_id or "") if vendor else None
    return Gpu(
        address=device.address,
        vendor=vendor.name if vendor else OTHER,
        model=model or device.device_name,
        source="sysfs",
    )


def vendor_of(name: str) -> Vendor | None:
    """The maker that a Gpu's `vendor` names; None of "other"."""
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def maker_of(vendor_id: str | None) -> Vendor | None:
    """The maker with this PCI vendor id ("10de"); None for any other."""
    return next((vendor for vendor in VENDORS if vendor.vendor_id == vendor_id), None)


def inside(vendor_id: str | None) -> Inside:
    """What is known of a maker's GPUs inside a guest, by its PCI vendor id; nothing of any other's."""
    maker = maker_of(vendor_id)
    return maker.inside if maker else Inside()
