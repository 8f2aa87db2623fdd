"""The GPU measurements of each level, as a list of jobs, the most important first. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.bench.supervise import Measurement

MIB, GIB = 1 << 20, 1 << 30
RUNS = 5
# Published all-reduce floors are for 16 GiB; those for GPUs with 40 GB are for 8 GiB.
_SIZES = {1: (MIB, 32 * MIB, 256 * MIB, GIB, 4 * GIB), 2: (MIB, 32 * MIB, 256 * MIB, GIB, 4 * GIB, 8 * GIB, 16 * GIB)}
_TYPES = {1: ("bf16", "fp8"), 2: ("bf16", "fp8", "tf32", "fp64")}
# The metrics that each kind gives at least for one device. They are unknown if the device is not available.
GIVES = {
    "host-copies": ("h2d-ce", "d2h-ce"),
    "device-copy": ("device-copy",),
    "peer-copy": ("p2p-write-ce",),
    "gemm": ("gemm-bf16",),
    "collectives": ("all-reduce", "all-gather"),
    "burn": ("gemm-bf16-sustained", "burn-wrong-results"),
}
BETWEEN = frozenset(("peer-copy", "collectives"))  # kinds that need two devices
_SIDE = {"bf16": 8192, "fp8": 8192, "tf32": 8192, "fp64": 4096}


def size_name(size: int) -> str:
    """Return a size as it is written in the names of metrics: "64mib"."""
    for unit, factor in (("gib", GIB), ("mib", MIB), ("kib", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}b"


class LoadableGpu(msgspec.Struct, frozen=True):
    """A GPU that may be loaded: the library's index, PCI address or name of a part, memory in bytes, and two places.

    `near` and `far` are (NUMA node, its CPUs): the GPU's own node and the farthest other node; None if unknown.
    """

    index: int
    address: str
    memory_bytes: int
    near: tuple[int, tuple[int, ...]] | None = None
    far: tuple[int, tuple[int, ...]] | None = None
    link: str | None = None  # the PCI address whose link is read, if `address` is the name of a part

    @property
    def function(self) -> str:
        """The PCI address of the GPU, or of the GPU that this part belongs to."""
        return self.link or self.address


class Level(msgspec.Struct, frozen=True):
    """The extent of a level: runs of each figure, seconds of a run and of its warm-up, and seconds of burn-in."""

    number: int
    runs: int
    run_seconds: float
    warm_seconds: float
    burn_seconds: float | None

    @property
    def pace(self) -> dict[str, Any]:
        """The pace of copies."""
        return {"runs": self.runs, "run_seconds": self.run_seconds, "warm_seconds": self.warm_seconds}

    @property
    def peer_pace(self) -> dict[str, Any]:
        """The pace of copies between GPUs: shorter, because there are n (n - 1) of them."""
        return {"runs": self.runs, "run_seconds": self.run_seconds / 3, "warm_seconds": self.warm_seconds / 3}

    @property
    def burst(self) -> dict[str, Any]:
        """The pace of matrix products: short runs with a rest before each. The burn-in measures the sustained rate."""
        return {"runs": self.runs, "run_seconds": 0.03, "warm_seconds": 0.05, "rest_seconds": 0.3}


LEVELS = {
    1: Level(1, RUNS, 0.03, 0.03, 6.0),
    2: Level(2, 9, 0.1, 0.2, 20.0),
    3: Level(3, 9, 0.1, 0.2, None),
}


def worker_jobs(
    level: int, devices: Sequence[LoadableGpu], kinds: frozenset[str], seconds: float
) -> Iterator[Measurement]:
    """Yield the jobs for one worker that measures all devices.

    `kinds`: the kinds of measurement that the library supports; `seconds`: duration of the burn-in at level 3.
    """
    pace = LEVELS[level]
    for make in (_host_copies, _device_copies, _peers, _gemms):
        yield from (job for job in make(devices, pace) if job.kind in kinds)
    if "burn" in kinds:
        yield _burn(devices, seconds if pace.burn_seconds is None else pace.burn_seconds)


def _host_copies(devices: Sequence[LoadableGpu], level: Level) -> Iterator[Measurement]:
    for device in devices:
        yield _host_copy(device, level, device.near, "")
    for device in devices:
        if device.far is not None:
            yield _host_copy(device, level, device.far, "-far")


def _host_copy(
    device: LoadableGpu, level: Level, place: tuple[int, tuple[int, ...]] | None, suffix: str
) -> Measurement:
    options: dict[str, Any] = {"index": device.index, "bytes": GIB, "pace": level.pace, "suffix": suffix}
    if not suffix:
        options["link"] = device.function  # this link is read while copies run
    if place is not None:
        options |= {"node": place[0], "cpus": list(place[1])}
    return _job("host-copies", device.address, (f"h2d-ce{suffix}", f"d2h-ce{suffix}"), options)


def _device_copies(devices: Sequence[LoadableGpu], level: Level) -> Iterator[Measurement]:
    for device in devices:
        size = min(4 * GIB, device.memory_bytes // 8)
        yield _job(
            "device-copy", device.address, ("device-copy",), {"index": device.index, "bytes": size, "pace": level.pace}
        )


def _peers(devices: Sequence[LoadableGpu], level: Level) -> Iterator[Measurement]:
    for source in devices:
        for target in devices:
            if source is not target:
                options = {"source": source.index, "target": target.index, "bytes": GIB, "pace": level.peer_pace}
                yield _job("peer-copy", f"{source.address}->{target.address}", ("p2p-write-ce",), options)


def _gemms(devices: Sequence[LoadableGpu], level: Level) -> Iterator[Measurement]:
    subjects = {str(device.index): device.address for device in devices}
    for dtype in _TYPES[min(level.number, 2)]:
        options = {"subjects": subjects, "dtype": dtype, "n": _SIDE[dtype], "pace": level.burst}
        yield _job("gemm", ",".join(subjects.values()), (f"gemm-{dtype}",), options)


def _burn(devices: Sequence[LoadableGpu], seconds: float) -> Measurement:
    subjects = {str(device.index): device.address for device in devices}
    options = {"subjects": subjects, "n": 8192, "duration": seconds}
    metrics = ("gemm-bf16-sustained", "burn-wrong-results")
    return Measurement("burn", ",".join(subjects.values()), metrics, options, seconds + 120, load=True)


def _job(kind: str, subject: str, metrics: tuple[str, ...], options: Mapping[str, Any]) -> Measurement:
    return Measurement(kind, subject, metrics, {**options, "subject": subject}, 30.0)


def collective_job(level: int, devices: Sequence[LoadableGpu]) -> Measurement:
    """Return the job for all-reduce and all-gather over all devices, for sizes of at most a third of their memory."""
    pace = LEVELS[level]
    least = min(device.memory_bytes for device in devices)
    sizes = [size for size in _SIZES[min(level, 2)] if 3 * size <= least]
    options = {
        "indices": [device.index for device in devices],
        "sizes": sizes,
        "runs": pace.runs,
        "run_seconds": pace.run_seconds,
    }
    metrics = tuple(f"{kind}-{size_name(size)}" for size in sizes for kind in ("all-reduce", "all-gather"))
    return Measurement("collectives", f"{len(devices)} GPUs", metrics, options, 60.0 if level == 1 else 300.0)
