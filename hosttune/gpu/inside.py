"""What is known of each maker's GPUs inside a guest: the tool that sets persistence and power, or that nothing is.

A table and a look-up, and how the name of a vGPU is told. They stand beside the makers' modules because only this
package tells makers apart. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.model.values import Value


class Inside(Value, frozen=True, kw_only=True):
    """One maker inside a guest. `tool` sets persistence and power limit (None = none known); `note` says what is not.

    An empty note: nothing more to say. `nccl`: the version of NCCL's topology file that its library of collectives
    reads (another version it refuses, and does not start); None = it reads none.
    """

    tool: str | None = None
    note: str = ""
    nccl: str | None = None


_NOTHING = Inside()
_INSIDE: Mapping[str, Inside] = {
    # nvidia-smi(1): -pm, -pl; NVML documents both as not persistent across reboots (nvml.h,
    # nvmlDeviceSetPersistenceMode, nvmlDeviceSetPowerManagementLimit).
    "10de": Inside(tool="nvidia-smi", nccl="1"),  # NVIDIA/nccl, src/graph/xml.h, NCCL_TOPO_XML_VERSION
    "1002": Inside(
        note="AMD: no persistence or power setting has a source, so none is made", nccl="2"
    ),  # ROCm/rccl, src/graph/xml.h
    "1da3": Inside(
        note="Gaudi: no persistence or power limit is known, and no official sysctl list: only what the intent names"
    ),
    "8086": Inside(note="Intel: no persistence or power limit is known"),
}


def inside(vendor_id: str) -> Inside:
    """What is known of a maker by its PCI vendor id; nothing for all others."""
    return _INSIDE.get(vendor_id, _NOTHING)


# NVIDIA, Virtual GPU Software User Guide, "vGPU types": a board, the memory in GB and the series (A, B, C or Q), as in
# "NVIDIA A40-48Q", "NVIDIA H100XM-80C" and "GRID A100D-1-10C"; "ME" marks MIG-backed ones with media engines.
_VGPU = re.compile(r".*-[0-9]{1,3}[ABCQ](?:ME|GFX|NOME)?")


def is_vgpu(model: str | None) -> bool:
    """Whether this is the name of a vGPU type, and not of a physical GPU."""
    return model is not None and _VGPU.fullmatch(model) is not None
