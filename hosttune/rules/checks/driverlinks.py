"""What a GPU's driver reports of its PCIe link, compared with sysfs and configuration space. Pure.

The maximum generation is that of the GPU, or of the GPU in this system; the maximum width always that of the GPU in
this system (nvml.h, nvmlDeviceGetMaxPcieLinkWidth). So neither is more than the link's own maximum, or less than what
the link has now. The width does not change while the GPU is idle, the generation may (nvidia-smi(1), GPU Link Info).
"""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu import vendor_of
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Link, PciDevice
from hosttune.rules.checks.facts import accelerators
from hosttune.rules.checks.gpufacts import UNREADABLE

_RATES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # GT/s per lane, by generation
_FIELDS = ("pcie_generation", "pcie_max_generation", "pcie_gpu_max_generation", "pcie_width", "pcie_max_width")
_WITH_WIDTH = ("pcie_generation", "pcie_max_generation", "pcie_width", "pcie_max_width")  # all of them are printed


def contradiction(link: Link, gpu: Gpu) -> str | None:
    """Return in what the driver contradicts the link's own registers and files; None if in nothing."""
    read = link.told[0].read if link.told else "the link"
    for by_link, by_driver in _differences(link, gpu):
        return f"sources disagree: {read} says {by_link}, {gpu.source or 'its driver'} {by_driver}"
    return None


def _differences(link: Link, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield (what the link says, what the driver says) for values that cannot both be true."""
    numbers = (gpu.pcie_generation, gpu.pcie_max_generation, gpu.pcie_gpu_max_generation)
    now, together, alone = (_RATES.get(number or 0) for number in numbers)
    if (most := link.max_speed_gts) is not None:
        wrong = (alone if alone != most else None, *(speed for speed in (together, now) if speed and speed > most))
        yield from ((f"{most:g} GT/s at most", f"{speed:g}") for speed in wrong if speed)
    if together and link.speed_gts and link.speed_gts > together:
        yield f"{link.speed_gts:g} GT/s", f"{together:g} at most"
    if gpu.pcie_width and link.width and gpu.pcie_width != link.width:
        yield f"{link.width} lanes", f"{gpu.pcie_width}"
    if gpu.pcie_max_width and link.max_width and gpu.pcie_max_width > link.max_width:
        yield f"{link.max_width} lanes at most", f"{gpu.pcie_max_width}"
    if gpu.pcie_max_width and link.width and link.width > gpu.pcie_max_width:
        yield f"{link.width} lanes", f"{gpu.pcie_max_width} at most"


def speed_now(link: Link, gpu: Gpu) -> float | None:
    """Return the speed (GT/s) that the driver reports now, if the link has another; None if it has not, or unknown."""
    speed = _RATES.get(gpu.pcie_generation or 0)  # 0: unknown
    return None if speed == link.speed_gts else speed


def missing(evidence: Evidence, gpu: Gpu, device: PciDevice) -> str | None:
    """Return what the driver should have reported of the link and has not, so that it contradicts nothing; else None.

    It is missing if the driver holds the GPU, or may hold it, and the answer is lost, or another GPU of the driver has
    the fact, or a fact that is reported together with it is known. A suspended GPU is not asked.
    """
    vendor = vendor_of(gpu.vendor)
    if vendor is None or device.runtime_status == "suspended":
        return None
    if device.driver != vendor.driver and not device.driver_unknown:
        return None
    problems = evidence.host.problems
    lost = next((one for one in problems if one.what == UNREADABLE and one.where in vendor.compared), None)
    if lost is not None:
        return f"{lost.where}, which reports the link too, cannot be read"
    others = [one for one in accelerators(evidence.host) if one.vendor == gpu.vendor]
    expected = {name for one in others for name in _FIELDS if getattr(one, name) is not None}
    expected |= set(_WITH_WIDTH) if expected & {"pcie_generation", "pcie_width", "pcie_max_width"} else set()
    lacking = [name for name in _FIELDS if name in expected and getattr(gpu, name) is None]
    if lacking:
        names = [name.removeprefix("pcie_").replace("_", " ") for name in lacking]
        return f"its driver did not report the link's {', '.join(names)}"
    # Only the maker's tool counts the GPUs of the driver, so if they are counted, its other answer was lost.
    asked = evidence.complete or any(not one.names and one.shows for one in evidence.host.sources or ())
    if asked and gpu.source in (None, "sysfs"):
        return "neither library nor tool of its driver reported the link"
    return None
