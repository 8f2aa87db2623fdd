"""How `ib_write_bw` is told to use the memory of each maker's GPUs. Source: linux-rdma/perftest, its own words.

The options are the same in 4.4-0.37 to 26.04: src/perftest_parameters.c; what it prints: src/cuda_memory.c and
src/rocm_memory.c (before 23.07 src/perftest_resources.c). The flags for dma-buf are newer: CUDA's is in 4.5-0.20 and
not in 4.5-0.17, ROCm's in 25.04 and not in 25.01.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec


class MemoryTest(msgspec.Struct, frozen=True, kw_only=True):
    """How `ib_write_bw` (linux-rdma/perftest) uses a GPU's memory, if it is built for it.

    `option`: its help names it then. `dmabuf`: the flag for dma-buf in place of a peer memory module, behind `option`.
    `chosen(address, uuid)` returns the environment and the words that choose the GPU; None: they cannot. `used` returns
    from the output the beginning of the PCI address, without its domain, of the GPU that was used; None: it does not
    say. `failed`: a regular expression of what it says if the memory cannot be used.
    """

    option: str
    dmabuf: str
    chosen: Callable[[str, str | None], tuple[Mapping[str, str], tuple[str, ...]] | None]
    used: Callable[[str], str | None]
    failed: str


_Chosen = tuple[Mapping[str, str], tuple[str, ...]]


def _by_address(address: str, uuid: str | None) -> _Chosen:
    return {}, (f"--use_cuda_bus_id={address}",)


def _picked(text: str) -> str | None:
    """Return bus and device of the CUDA device that was picked, from the list that is printed before."""
    number = re.findall(r"^Picking device No\. ([0-9]{1,3})$", text, re.MULTILINE)
    if len(number) != 1:
        return None
    addresses = re.findall(
        rf"^CUDA device {number[0]}: PCIe address is ([0-9A-F]{{2}}:[0-9A-F]{{2}})$", text, re.MULTILINE
    )
    return addresses[0].lower() if len(addresses) == 1 else None


def _by_uuid(address: str, uuid: str | None) -> _Chosen | None:
    """The index is ROCm's own: only this GPU is shown to the program (ROCR_VISIBLE_DEVICES, ROCm's GPU isolation)."""
    return None if uuid is None else ({"ROCR_VISIBLE_DEVICES": uuid}, ("--use_rocm=0",))


def _using(text: str) -> str | None:
    """Return the bus of the ROCm device that was used; it prints no more of its address."""
    buses = re.findall(r"^Using ROCm Device with ID: .*, PCI Bus ID: 0x([0-9a-f]{1,2}),", text, re.MULTILINE)
    return f"{int(buses[0], 16):02x}:" if len(buses) == 1 else None


CUDA = MemoryTest(
    option="--use_cuda_bus_id",
    dmabuf="--use_cuda_dmabuf",
    chosen=_by_address,
    used=_picked,
    failed="Failed to load CUDA library|cu[A-Z][A-Za-z_0-9]{1,60}(?:\\(0?\\))? ?(?:error|failed|returned)"
    "|There are no available device|Couldn't init GPU context|DMA-BUF is not supported on this GPU",
)
ROCM = MemoryTest(
    option="--use_rocm",
    dmabuf="--use_rocm_dmabuf",
    chosen=_by_uuid,
    used=_using,
    failed="hip[A-Z][A-Za-z]{1,60}(?:\\(\\) returned| error)|Requested ROCm device|Couldn't initialize ROCm device"
    "|could not verify dmabuf support|failed to export dmabuf",
)
