"""The arguments that a definition gives to QEMU itself (`<qemu:commandline>`), as far as something depends on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# "name" is the key that QEMU takes for a first word without one (system/vl.c, qemu_fw_cfg_opts).
WINDOW = (
    r"(?=.*X-PciMmio64Mb)(?:(?:name=)?opt/ovmf/X-PciMmio64Mb,)?string=([0-9]{1,12})(?:,name=opt/ovmf/X-PciMmio64Mb)?"
)
DMA_OFF = r"(?:driver=)?intel-iommu(?:\.|,property=)dma-translation(?:=|,value=)(?:off|false|no)"
CLIQUE = "x-nv-gpudirect-clique"  # the property of vfio-pci that names a GPU's clique (QEMU hw/vfio/pci-quirks.c)
_HOLE = (
    r"(?i)(?:driver=)?(?:q35|i440FX)-pcihost(?:\.|,property=)pci-hole64-size(?:=|,value=)"
    r"(0x[0-9a-f]+|[0-9]+)([bkmgtpe]?)"
)
_SUFFIXES = "bkmgtpe"  # powers of 1024 (QEMU util/cutils.c, qemu_strtosz)
_PASSED = r"""\b(?:host|sysfsdev)["\s]*[=:]["\s]*([^",\s]+)"""  # also in QEMU's JSON form
_NODE = r"/dev/(?:nvme|sd|dm-|md|mapper/|disk/|vhost-vdpa)[^,\s\"]*"  # of disks and of vhost-vdpa
_ADDRESS = r"(?i)(?:(?:^|/)([0-9a-f]{1,8}):|^)([0-9a-f]{1,2}):([01]?[0-9a-f])\.([0-7])/?$"


def values_of(arguments: Sequence[str], option: str) -> list[str]:
    """Return the values of an option, in the order in which QEMU takes them; it takes "--" for "-", too."""
    return [value for word, value in pairwise(arguments) if word in (f"-{option}", f"--{option}")]


def passed_functions(arguments: Sequence[str]) -> dict[str, str | None]:
    """Return what `-device vfio-pci` passes as it is written, and its PCI address; None if it has none (a vGPU)."""
    written = (re.search(_PASSED, value) for value in values_of(arguments, "device") if "vfio-pci" in value)
    places = {match[1]: re.search(_ADDRESS, match[1]) for match in written if match}
    return {
        text: f"{int(at[1] or '0', 16):04x}:{at[2]:0>2}:{at[3]:0>2}.{at[4]}".lower() if at else None
        for text, at in places.items()
    }


def named_nodes(arguments: Sequence[str]) -> list[str]:
    """Return the nodes of disks and of vhost-vdpa that any argument names."""
    return [path for text in arguments for path in re.findall(_NODE, text)]


def hole_bytes(arguments: Sequence[str]) -> int | None:
    """Return the size of the 64-bit hole that `-global` sets, the property that `<pcihole64>` sets, too."""
    sizes = [match for value in values_of(arguments, "global") if (match := re.fullmatch(_HOLE, value))]
    if not sizes:
        return None
    number, suffix = sizes[-1].groups()
    return int(number, 16 if number[:2].lower() == "0x" else 10) << 10 * max(0, _SUFFIXES.find(suffix.lower() or "b"))
