"""The interface to the GPU makers: which accelerators exist (sysfs decides), and what their makers' drivers report.

Code outside this package does not ask who made a GPU. There is one module for each maker, and they never import each
other.
"""

from __future__ import annotations

import re

import msgspec

from hosttune.gpu.amd import AMD
from hosttune.gpu.habana import HABANA
from hosttune.gpu.inside import Inside
from hosttune.gpu.intel import INTEL
from hosttune.gpu.nvidia import NVIDIA
from hosttune.gpu.vendor import Generation, Hints, Vendor
from hosttune.linux.kernellines import LINES
from hosttune.machine.reader import Reader
from hosttune.model.gpu import OTHER, Gpu
from hosttune.model.host import PciDevice
from hosttune.model.limits import check_count
from hosttune.model.values import format_size

__all__ = [
    "VENDORS", "Generation", "bar_missing", "begin", "generation_of", "hints_for", "inside", "maker_of",
    "maker_of_model",
    "model_names", "model_of", "read_gpus",
    "reset_touches", "vendor_of",
]  # fmt: skip

_REGISTERS = 64 << 20  # the largest BAR for registers
VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, HABANA, INTEL)
# The records of the kernel log that tell of a fault, those of makers' drivers too.
KERNEL_LINES = (*LINES, *(line for one in VENDORS if one.traces.log is not None for line in one.traces.log.lines))


def begin(reader: Reader) -> None:
    """Begin what takes makers' drivers long to answer. `read_gpus` collects it."""
    for vendor in VENDORS:
        if vendor.begin:
            vendor.begin(reader)


def read_gpus(reader: Reader, pci: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
    """Return every display (03xx) and accelerator (12xx) function as a Gpu, in the order of `pci`.

    A function whose maker is not a known accelerator maker is `other`, and so is graphics built into a CPU or a board.
    A virtual function is a GPU too. The maker's library is asked only if the maker's driver holds a GPU that is awake.
    Doubts become problems of the reader. Raises BadInput for a hostile capture, and no other error.
    """
    bridges = {device.address: device for device in pci if device.is_bridge}
    devices = tuple(device for device in pci if device.is_display)
    check_count(len(devices), "GPUs of a host", reader.system.origin)
    makers = {device.address: _maker(device, bridges) for device in devices}
    found = {device.address: _gpu(device, makers[device.address]) for device in devices}
    for vendor in VENDORS:
        own = tuple(device for device in devices if makers[device.address] is vendor)
        if own:
            gpus = vendor.enrich(reader, own, tuple(found[device.address] for device in own))
            found.update((gpu.address, gpu) for gpu in gpus)
    return tuple(found[device.address] for device in devices)


def _maker(device: PciDevice, bridges: dict[str, PciDevice]) -> Vendor | None:
    bridge = bridges.get(device.parent or "")
    for vendor in VENDORS:
        if device.vendor_id == vendor.vendor_id:
            return vendor if vendor.makes(device, bridge) else None
    return None


def _gpu(device: PciDevice, vendor: Vendor | None) -> Gpu:
    model = model_of(device.vendor_id, device.device_id) if vendor else None
    return Gpu(
        address=device.address,
        vendor=vendor.name if vendor else OTHER,
        model=model or device.device_name,
        source="sysfs",
    )


def model_of(vendor_id: str | None, device_id: str | None) -> str | None:
    """Return the model of a GPU that a maker's table has under these PCI ids; None if no table has them."""
    maker = maker_of(vendor_id)
    return maker.models.get(device_id or "") if maker else None


def bar_missing(device: PciDevice) -> str | None:
    """Return which memory window of a GPU has no address; None if none is known to be missing.

    The window of a data-centre GPU's memory has 256 MiB or more, and its registers 16 to 64 MiB.
    """
    if device.unassigned_bars:
        return f"BAR {', '.join(map(str, device.unassigned_bars))} has no address"
    largest = max((bar.size_bytes for bar in device.bars or ()), default=0)
    small = 0 < largest <= _REGISTERS and not device.physfn and model_of(device.vendor_id, device.device_id)
    return f"largest BAR {format_size(largest)}: the one for its memory is missing" if small else None


def model_names() -> dict[str, str]:
    """Return the models of all makers by vendor:device ("10de:2335")."""
    return {f"{vendor.vendor_id}:{device}": name for vendor in VENDORS for device, name in vendor.models.items()}


def generation_of(model: str | None) -> Generation | None:
    """Return the generation of a GPU from the name of its model, in any maker's or operator's form; None if unknown."""
    text = re.sub(r"[^a-z0-9]+|(?<=rtx)(?=[0-9])", " ", (model or "")[:200].lower())
    matching = (
        generation
        for vendor in VENDORS
        for generation in vendor.generations
        if re.search(rf"\b(?:{generation.names})\b", text)
    )
    return next(matching, None)


def vendor_of(name: str) -> Vendor | None:
    """Return the maker that a Gpu's `vendor` names; None for "other"."""
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def hints_for(gpu: Gpu) -> Hints:
    """Return the words of its maker for messages about this GPU, with its address filled in."""
    vendor = vendor_of(gpu.vendor)
    hints = vendor.hints if vendor else Hints()
    return Hints(**{name: text.replace("{gpu}", gpu.address) for name, text in msgspec.structs.asdict(hints).items()})


def reset_touches(gpu: Gpu, function: PciDevice | None) -> str:
    """Return what a reset of this GPU can do to those that are joined with it; "" if nothing is known.

    Nothing is known of virtual functions.
    """
    vendor = vendor_of(gpu.vendor)
    if vendor is None or function is None or function.physfn is not None:
        return ""
    return vendor.resets_peers.get(function.device_id or "", "")


def maker_of(vendor_id: str | None) -> Vendor | None:
    """Return the maker with this PCI vendor id ("10de"); None for any other id."""
    return next((vendor for vendor in VENDORS if vendor.vendor_id == vendor_id), None)


def maker_of_model(model: str) -> Vendor | None:
    """Return the maker whose table has a GPU of this name; None if no table has it."""
    return next((vendor for vendor in VENDORS if model in vendor.models.values()), None)


def reads_rom(gpu: Gpu | None) -> bool:
    """Return whether the driver of a GPU reads its option ROM in a guest."""
    vendor = vendor_of(gpu.vendor) if gpu else None
    return vendor is not None and vendor.inside.reads_rom


def inside(vendor_id: str | None) -> Inside:
    """Return what is known about a maker's GPUs inside a guest, by its PCI vendor id.

    An empty `Inside` for other ids.
    """
    maker = maker_of(vendor_id)
    return maker.inside if maker else Inside()
