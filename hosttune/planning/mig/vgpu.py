"""The vGPU data of a host document that is used: known frameworks, and functions that belong to the GPU.

Pure. A host document may come from any source. A vGPU is on a virtual function of its GPU, or is a mediated device on
the GPU itself (NVIDIA virtual GPU software documentation). Anything else in the document is ignored, with a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from hosttune.gpu.vgpu import SRIOV_MANAGE
from hosttune.inventory.devices import Catalogue
from hosttune.model.host import Host
from hosttune.model.plan import PlanFinding
from hosttune.model.values import address_key
from hosttune.model.vgpu import FRAMEWORKS, VgpuFunction, VgpuGpu


class Known(Protocol):
    """The data that these functions need: a `PlanningContext`, or only its host and catalogue."""

    @property
    def host(self) -> Host:
        """The host document."""

    @property
    def catalogue(self) -> Catalogue:
        """Its devices by address."""


class HostDevices(msgspec.Struct, frozen=True):
    """A host and its devices, for callers without a `PlanningContext`."""

    host: Host
    catalogue: Catalogue


def vgpu_of(known: Known, address: str) -> VgpuGpu | None:
    """Return a GPU's vGPU framework, with only the functions that belong to the GPU; None if no framework is known."""
    vgpu = known.host.vgpu
    vgpu_gpu = next((gpu for gpu in vgpu.gpus if gpu.address == address), None) if vgpu else None
    if vgpu_gpu is None or vgpu_gpu.framework not in FRAMEWORKS:
        return None
    own = tuple(function for function in vgpu_gpu.functions if _is_own(known, vgpu_gpu, function.address))
    return msgspec.structs.replace(vgpu_gpu, functions=own)


def _is_own(known: Known, gpu: VgpuGpu, address: str) -> bool:
    device = known.catalogue.pci.get(address)
    virtual = device is not None and device.physfn == gpu.address
    return virtual or (gpu.framework == "mdev" and address == gpu.address)


def unused_vgpu_data(known: Known) -> Iterator[PlanFinding]:
    """Yield findings about vGPU data of the host document that is not used."""
    for gpu in known.host.vgpu.gpus if known.host.vgpu else ():
        at = f"vgpu: GPU {gpu.address}"
        if gpu.framework is not None and gpu.framework not in FRAMEWORKS:
            text = f"framework {gpu.framework!r} is neither of {', '.join(FRAMEWORKS)}: taken as unknown"
            yield PlanFinding(level="warn", text=text, where=at)
            continue
        others = [function.address for function in gpu.functions if not _is_own(known, gpu, function.address)]
        if others:
            text = f"no virtual function of this GPU by `pci`, so ignored: {', '.join(others)}"
            yield PlanFinding(level="warn", text=text, where=at)


def free_functions(known: Known, address: str) -> tuple[VgpuFunction, ...]:
    """Return the functions of a GPU that carry no vGPU and that no guest holds, in address order."""
    gpu = vgpu_of(known, address)
    free = [function for function in (gpu.functions if gpu else ()) if not carries(known, function)]
    return tuple(sorted(free, key=lambda function: address_key(function.address)))


def carries(known: Known, function: VgpuFunction) -> bool:
    """Return whether a function carries a vGPU, or a guest holds it."""
    taken = function.current_type not in (None, "0") or bool(function.mdevs)
    return taken or function.address in known.catalogue.holders


def manager_off(known: Known) -> bool:
    """Return whether it is known that no vGPU manager runs: then no vGPU can be made, whatever functions there are."""
    return known.host.vgpu is not None and known.host.vgpu.manager is False


def no_manager(known: Known) -> str | None:
    """Return why this host can make no vGPU at all; None if its manager runs, or seems to run."""
    vgpu = known.host.vgpu
    only = "a MIG instance is not a PCI function, and only a vGPU of the maker's manager takes one into a guest"
    if manager_off(known):
        return f"no vGPU manager runs on this host: {only}"
    if vgpu is None or not any(vgpu_of(known, gpu.address) for gpu in vgpu.gpus):
        if vgpu is not None and vgpu.manager:
            tool = f"{SRIOV_MANAGE} -e ADDRESS"
            return f"the vGPU manager runs, and no GPU has a function that offers a vGPU type: {tool}, then plan again"
        return f"no vGPU manager is seen on this host: {only}"
    return None
