"""Intel GPUs (8086): Data Center GPU Max and Flex, Arc. Only PCI facts: no maker's library is used.

Integrated graphics is a function on the root bus (0000:00:02.0). It is not an accelerator and is listed as `other`.
"""

from __future__ import annotations

from hosttune.gpu.inside import Inside
from hosttune.gpu.vendor import Vendor
from hosttune.machine.reader import Reader
from hosttune.model.host import Gpu, PciDevice

# pci.ids (pciutils/pciids), vendor 8086.
MODELS = {
    "0bd5": "Intel Data Center GPU Max 1550",
    "0bd6": "Intel Data Center GPU Max 1550",
    "0bd9": "Intel Data Center GPU Max 1100",
    "0bda": "Intel Data Center GPU Max 1100",
    "0bdb": "Intel Data Center GPU Max 1100",
    "56c0": "Intel Data Center GPU Flex 170",
    "56c1": "Intel Data Center GPU Flex 140",
}


def _makes(device: PciDevice, bridge: PciDevice | None) -> bool:
    """Return whether it is a known card or a function below a port.

    A function on the root bus belongs to CPU or chipset.
    """
    return device.device_id in MODELS or device.parent is not None


def _enrich(reader: Reader, devices: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return gpus


INTEL = Vendor(
    name="intel",
    vendor_id="8086",
    models=MODELS,
    makes=_makes,
    enrich=_enrich,
    unset=dict.fromkeys(("i915", "xe"), "no source names a setting of it"),
    inside=Inside(note="Intel: no persistence or power limit is known"),
)
