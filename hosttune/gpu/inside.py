"""What is known about a maker's GPUs inside a guest, and how the name of a vGPU is recognised. Pure."""

from __future__ import annotations

import re

from hosttune.model.values import Value

NCCL_FOLDER = "/var/run/nvidia-topologyd"  # where NCCL and RCCL look for a topology file (src/graph/topo.cc)


class Inside(Value, frozen=True, kw_only=True):
    """What is known about one maker's GPUs inside a guest.

    `tool` sets persistence and power limit (None: no tool is known). `note` says what is unknown; empty if there is
    nothing to say. `nccl`: the version of NCCL's topology file that the maker's collectives library reads (it refuses
    any other version and does not start); None: it reads no such file. `library_file`: the file with settings that this
    library reads for the whole system; None: no such file is known. `peer_module` lets NICs reach the GPUs' memory;
    without it a driver can do so through dma-buf if the file `driver_text` has the words `open_words`. None: no source.
    `reads_rom`: its driver looks for a GPU's BIOS in the option ROM, and may not load without it. `cliques`: its driver
    allows traffic between GPUs over PCIe only within a clique that the hypervisor names.
    """

    tool: str | None = None
    note: str = ""
    nccl: str | None = None
    reads_rom: bool = False
    cliques: bool = False
    library_file: str | None = None
    peer_module: str | None = None
    driver_text: str | None = None
    open_words: str | None = None


# NVIDIA, Virtual GPU Software User Guide, "vGPU types": a board, the memory in GB and the series (A, B, C or Q), as in
# "NVIDIA A40-48Q", "NVIDIA H100XM-80C" and "GRID A100D-1-10C". "ME" marks MIG-backed types with media engines.
_VGPU = re.compile(r".*-[0-9]{1,3}[ABCQ](?:ME|GFX|NOME)?")


def is_vgpu(model: str | None) -> bool:
    """Return whether this is the name of a vGPU type, and not of a physical GPU."""
    return model is not None and _VGPU.fullmatch(model) is not None
