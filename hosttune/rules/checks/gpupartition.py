"""Check of modes in which a GPU is several devices: the modes of GPUs of one model are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.vendor import Partitioning
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.pci import for_vfio
from hosttune.rules.checks.facts import accelerators
from hosttune.rules.checks.gpufacts import by_driver, fact, function, others_of_model
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding


def _dividable(evidence: Evidence) -> Iterator[tuple[str, tuple[Gpu, Partitioning]]]:
    """Yield the GPUs of makers whose GPUs have partition modes."""
    for gpu in accelerators(evidence.host):
        vendor = vendor_of(gpu.vendor)
        if vendor is not None and vendor.partitioning is not None:
            yield gpu.address, (gpu, vendor.partitioning)


@check(
    "gpu-partition",
    title="Partition modes of GPUs alike",
    about="each GPU of a maker whose GPUs have such modes",
    why="A guest that expects whole GPUs does not start its job on parts",
    source="drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (current_compute_partition), amdgpu_gmc.c"
    " (current_memory_partition); ROCm/amdsmi, conceptual/partition.md",
    expected="the modes of the other GPUs of its model",
    each=_dividable,
    inside=True,
    none="GPU with partition modes",
)
def gpu_partition(on: On, dividable: tuple[Gpu, Partitioning]) -> Finding:
    """Only the maker's driver can read the modes: those of a GPU on vfio-pci are judged in its guest."""
    (gpu, modes), on = dividable, by_driver(on, dividable[0])
    device_id = on.host.index.device_id(gpu.address)
    if device_id is not None and device_id not in modes.devices:
        on.skip("no source says that GPUs of its model have such modes")
    own = fact(on, gpu, "compute_partition"), fact(on, gpu, "memory_partition")
    actual = f"{own[0]} with {own[1]}, {'one device' if own[0] == modes.whole else 'several devices'}"
    look = f"look with: {hints_for(gpu).partition}"
    alike = others_of_model(on.evidence, gpu)
    others = [other for other in alike if not ((device := function(on, other)) and for_vfio(device.driver))]
    away = len(alike) - len(others)
    actual += f"; not compared with {away} of its model on vfio-pci" if away else ""
    unread = next(
        (other.address for other in others if None in (other.compute_partition, other.memory_partition)), None
    )
    if unread is not None:
        on.give_up(f"{actual}; the modes of {unread}, of the same model, are unknown", look)
    pairs = Counter((other.compute_partition, other.memory_partition) for other in (gpu, *others))
    (most, number), *rest = pairs.most_common()
    tied = any(other == number for _, other in rest)
    if not rest:
        return on.passed(actual)
    if own == most and not tied:
        return on.passed(f"{actual}, as {number - 1} of {len(others)} others of its model")
    usual = "" if tied else f"; {number} GPUs of its model are in {most[0]} with {most[1]}"
    return on.warned(f"{actual}{usual}", f"set the GPUs of a host to one pair of modes, with none in use; {look}")
