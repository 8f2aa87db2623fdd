"""The metrics: unit, which direction is better, and which physical peak limits them. Units are converted only here.

Copies by copy engines (`-ce`) and by kernels (`-sm`) are different metrics: on the same link they differ by a third.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from hosttune.errors import BadInput

Direction = Literal["higher", "lower"]

# unit -> (dimension, factor to the first unit of that dimension). 1 GB is 10^9 bytes, not 2^30.
_UNITS: dict[str, tuple[str, float]] = {
    "GB/s": ("bytes per second", 1.0),
    "MB/s": ("bytes per second", 1e-3),
    "TB/s": ("bytes per second", 1e3),
    "Gb/s": ("bits per second", 1.0),
    "TFLOP/s": ("operations per second", 1.0),
    "GFLOP/s": ("operations per second", 1e-3),
    "PFLOP/s": ("operations per second", 1e3),
    "ns": ("time", 1.0),
    "us": ("time", 1e3),
    "ms": ("time", 1e6),
    "MHz": ("clock", 1.0),
    "W": ("power", 1.0),
    "°C": ("temperature", 1.0),
    "1/s": ("rate", 1.0),
    "GT/s": ("transfers per second", 1.0),
    "lanes": ("link width", 1.0),
    "count": ("count", 1.0),
}
_SIZE = re.compile(r"-[0-9]+(?:gib|mib|kib|b)$")


class Metric(msgspec.Struct, frozen=True):
    """A family of figures. `peak` is the field of the roofline that it is compared with, None if there is none.

    `factor`: the largest plausible figure as a multiple of the peak; larger figures are rejected. `least`: a floor
    below this fraction of the peak is treated as a mistake of units. `pair`: a copy from one GPU to another, over the
    links between the two.
    """

    name: str
    title: str
    unit: str
    direction: Direction = "higher"
    peak: str | None = None
    factor: float = 1.0
    least: float = 0.2
    pair: bool = False


METRICS: tuple[Metric, ...] = (
    Metric("h2d-ce", "host to device, pinned, copy engine", "GB/s", peak="pcie"),
    Metric("d2h-ce", "device to host, pinned, copy engine", "GB/s", peak="pcie"),
    Metric("h2d-ce-far", "host to device from the far node", "GB/s", peak="pcie", least=0.1),
    Metric("d2h-ce-far", "device to host to the far node", "GB/s", peak="pcie", least=0.1),
    Metric("h2d-sm", "host to device, by kernels", "GB/s", peak="pcie"),
    Metric("d2h-sm", "device to host, by kernels", "GB/s", peak="pcie"),
    Metric("device-copy", "copy in device memory, read plus written", "GB/s", peak="memory"),
    Metric("device-copy-nvbandwidth", "copy in device memory as nvbandwidth counts it", "GB/s", peak="memory"),
    Metric("p2p-write-ce", "GPU to GPU, written by the source's copy engine", "GB/s", peak="scale-up", pair=True),
    Metric("p2p-read-ce", "GPU to GPU, read by the target's copy engine", "GB/s", peak="scale-up", pair=True),
    Metric("p2p-write-sm", "GPU to GPU, written by kernels", "GB/s", peak="scale-up", pair=True),
    Metric("p2p-read-sm", "GPU to GPU, read by kernels", "GB/s", peak="scale-up", pair=True),
    Metric("gemm-bf16", "matrix product, BF16", "TFLOP/s", peak="bf16"),
    Metric("gemm-fp8", "matrix product, FP8", "TFLOP/s", peak="fp8"),
    Metric("gemm-tf32", "matrix product, TF32", "TFLOP/s", peak="tf32"),
    Metric("gemm-fp64", "matrix product, FP64", "TFLOP/s", peak="fp64"),
    Metric("gemm-bf16-sustained", "matrix product, BF16, all GPUs at once", "TFLOP/s", peak="bf16"),
    # Bus bandwidth is defined so that its maximum is the rate of one link in one direction (NVIDIA/nccl-tests,
    # doc/PERFORMANCE.md, "Bus Bandwidth"). If the switch does the reduction (NVLink SHARP), each byte is sent once but
    # counted 2(n-1)/n times: such figures exceed the maximum by a factor of less than 2.
    Metric("all-reduce", "all-reduce bus bandwidth", "GB/s", peak="scale-up", factor=2.0),
    Metric("all-gather", "all-gather bus bandwidth", "GB/s", peak="scale-up"),
    Metric("burn-wrong-results", "products that differ from the first", "count", "lower"),
    Metric("load-sm-clock", "SM clock under load", "MHz"),
    Metric("load-memory-clock", "memory clock under load", "MHz"),
    Metric("load-power", "power under load", "W", "lower"),
    Metric("load-temperature", "temperature under load", "°C", "lower"),
    Metric("load-link-speed", "PCIe link speed while copies run", "GT/s"),
    Metric("load-link-width", "PCIe link width while copies run", "lanes"),
    Metric("memory-copy", "memcpy by all CPUs of a node, read plus written", "GB/s"),
    Metric("memory-latency", "latency of one load", "ns", "lower"),
    Metric("timer-jitter", "wake-up latency, worst", "us", "lower"),
    Metric("disk-read", "sequential read of a file, 1 MiB blocks", "GB/s"),
    Metric("disk-write", "sequential write of a file, 1 MiB blocks", "GB/s"),
    Metric("disk-random-read", "random reads of 4 KiB", "1/s"),
    Metric("rdma-write", "RDMA write to a named host", "Gb/s", peak="network"),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric | None:
    """Return the family of a metric, None if unknown. The name may end with a size ("all-reduce-1gib")."""
    return _BY_NAME.get(name) or _BY_NAME.get(_SIZE.sub("", name))


def converted(value: float, unit: str, wanted: str, where: str) -> float:
    """Return a value in another unit. Raises BadInput for an unknown unit or a unit of another dimension."""
    for name in (unit, wanted):
        if name not in _UNITS:
            raise BadInput(f"unknown unit {name!r}", where=where, hint=f"one of {', '.join(_UNITS)}")
    (kind, factor), (wanted_kind, wanted_factor) = _UNITS[unit], _UNITS[wanted]
    if kind != wanted_kind:
        raise BadInput(
            f"{unit} measures {kind}, not {wanted_kind}",
            where=where,
            hint=f"give it in {wanted}, or correct the metric",
        )
    return value * factor / wanted_factor
