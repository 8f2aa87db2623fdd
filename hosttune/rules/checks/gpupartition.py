"""Check of modes in which a GPU is several devices: the modes of GPUs of one model are alike, and go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.vendor import Partitioning
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.facts import accelerators, for_vfio
from hosttune.rules.checks.gpufacts import Fact, every_gpu, not_judged, others_of_model

_FACT = Fact(
    "gpu-partition",
    "modes that go together, the same as of the other GPUs of its model",
    ("compute_partition", "memory_partition"),
    "",
)


def gpu_partition(evidence: Evidence) -> Iterator[CheckResult]:
    """Yield one result for each GPU of a maker whose GPUs have such modes."""

    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        vendor = vendor_of(gpu.vendor)
        modes = vendor.partitioning if vendor else None
        if modes is None or (
            device is not None and device.device_id is not None and device.device_id not in modes.devices
        ):
            return skipped(_FACT.check, gpu.address, "no source says that GPUs of its model have such modes")
        return not_judged(evidence, _FACT, gpu, device) or _modes(evidence, gpu, modes)

    results = every_gpu(evidence, _FACT, judged)
    for gpu, result in zip(accelerators(evidence.host), results, strict=True):
        vendor = vendor_of(gpu.vendor)
        if vendor is not None and vendor.partitioning is not None:
            yield result


def _modes(evidence: Evidence, gpu: Gpu, modes: Partitioning) -> CheckResult:
    compute, memory = gpu.compute_partition or "", gpu.memory_partition or ""
    actual = _words(compute, memory, modes)
    look = f"look with: {hints_for(gpu).partition}"
    if memory not in modes.valid.get(compute, ()):
        return _FACT.unknown(gpu, f"{actual}: its driver allows no such pair, so one of the two was misread", look)
    functions = evidence.host.index.pci
    # Only the maker's driver can read the modes: those of a GPU on vfio-pci are judged in its guest.
    alike = others_of_model(evidence, gpu)
    others = [one for one in alike if not _on_vfio(functions.get(one.address))]
    away = len(alike) - len(others)
    actual += f"; not compared with {away} of its model on vfio-pci" if away else ""
    unread = next((one.address for one in others if None in (one.compute_partition, one.memory_partition)), None)
    if unread is not None:
        return _FACT.unknown(gpu, f"{actual}; the modes of {unread}, of the same model, are unknown", look)
    pairs = Counter((one.compute_partition, one.memory_partition) for one in (gpu, *others))
    (most, number), *rest = pairs.most_common()
    if len(pairs) == 1:
        return _FACT.passed(gpu, actual)
    tied = any(other == number for _, other in rest)
    if (compute, memory) == most and not tied:
        return _FACT.passed(gpu, f"{actual}, as {number - 1} of {len(others)} others of its model")
    hint = f"set the GPUs of a host to one pair of modes, with none in use; {look}"
    usual = "" if tied else f"; {number} GPUs of its model are in {most[0]} with {most[1]}"
    return _FACT.warned(gpu, f"{actual}{usual}", hint)


def _on_vfio(device: PciDevice | None) -> bool:
    return device is not None and for_vfio(device.driver)


def _words(compute: str, memory: str, modes: Partitioning) -> str:
    return f"{compute} with {memory}" + (", one device" if compute == modes.whole else ", several devices")


CHECKS = (
    Check(
        _FACT.check,
        "Partition modes of GPUs alike",
        "each GPU of a maker whose GPUs have such modes",
        "A guest that expects eight whole GPUs does not start its job on one that is eight devices",
        (
            "drivers/gpu/drm/amd/amdgpu/aqua_vanjaram.c, amdgpu_gfx.c (current_compute_partition), amdgpu_gmc.c"
            " (current_memory_partition); ROCm/amdsmi, conceptual/partition.md"
        ),
        gpu_partition,
        inside=True,
        none="GPU with partition modes",
    ),
)
