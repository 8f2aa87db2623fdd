"""What is known of a maker's GPUs inside a guest, and how the name of a vGPU is told. Pure."""

from __future__ import annotations

import re

from hosttune.model.values import Value

NCCL_FOLDER = "/var/run/nvidia-topologyd"  # where NCCL and RCCL look for a topology file (src/graph/topo.cc)


class Inside(Value, frozen=True, kw_only=True):
    """One maker inside a guest. `tool` sets persistence and power limit (None = none known); `note` says what is not.

    An empty note: nothing more to say. `nccl`: the version of NCCL's topology file that its library of collectives
    reads (another version it refuses, and does not start); None = it reads none.
    """

    tool: str | None = None
    note: str = ""
    nccl: str | None = None


# NVIDIA, Virtual GPU Software User Guide, "vGPU types": a board, the memory in GB and the series (A, B, C or Q), as in
# "NVIDIA A40-48Q", "NVIDIA H100XM-80C" and "GRID A100D-1-10C"; "ME" marks MIG-backed ones with media engines.
_VGPU = r".*-[0-9]{1,3}[ABCQ](?:ME|GFX|NOME)?"


def is_vgpu(model: str | None) -> bool:
    """Whether this is the name of a vGPU type, and not of a physical GPU."""
    return model is not None and re.fullmatch(_VGPU, model) is not None
