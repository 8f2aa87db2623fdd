"""Measurements of one Gaudi through PyTorch with habana_frameworks, in a worker to which only that device is visible.

Not tested on a machine with Gaudi. Sources: HabanaAI/gaudi-pytorch-bridge, python_packages/habana_frameworks/
torch/hpu/__init__.py (device_count, get_device_name, synchronize: "Waits for all kernels in all streams on a HPU device
to complete"), its tests (`pin_memory(device="hpu")`, `copy_(…, non_blocking=True)`); docs.habana.ai, "PyTorch Gaudi
Theory of Operations" (PT_HPU_LAZY_MODE=0, which the caller sets: operations run one by one, in the order queued).

Time is measured with the process's clock from one synchronize to the next; operations in between are queued without
pauses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from hosttune.bench.gpu_torch import record, where_of
from hosttune.bench.placement import placed
from hosttune.bench.supervise import Record

# --- how long a run lasts ------------------------------------------------------------------------------------


# --- one Gaudi -----------------------------------------------------------------------------------------------


# get_device_properties returns text without a documented format, so the memory size is not read from it. The smallest
# Gaudi, the first generation, has 32 GB (docs.habana.ai).
_LEAST_MEMORY = 32 * 10**9


def _torch() -> Any:
    import_module("habana_frameworks.torch.core")  # registers the device "hpu" and the module torch.hpu
    return import_module("torch")


def devices(_options: dict[str, Any]) -> Iterator[Record]:
    """Yield a record of the devices that PyTorch sees.

    PyTorch reports neither PCI address nor UUID. The environment defines which device is visible.
    """
    torch = _torch()
    rows = [
        {
            "index": index,
            "address": None,
            "uuid": None,
            "name": torch.hpu.get_device_name(index),
            "memory_bytes": _LEAST_MEMORY,
        }
        for index in range(torch.hpu.device_count())
    ]
    yield {"devices": rows, "versions": {"torch": torch.__version__}}


def rates(work: Callable[[], object], amount: float, pace: dict[str, Any]) -> list[float]:
    """Return the rate of each run in `amount` per second. `work` queues one operation on the device."""
    torch = _torch()

    def seconds(count: int) -> float:
        torch.hpu.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        torch.hpu.synchronize()
        return time.perf_counter() - begin

    seconds(1)
    count = max(1, math.ceil(pace["run_seconds"] / (seconds(2) / 2)))
    until = time.monotonic() + pace["warm_seconds"]
    while time.monotonic() < until:
        seconds(count)
    values = []
    for _ in range(pace["runs"]):
        time.sleep(pace.get("rest_seconds", 0))
        values.append(amount * count / seconds(count))
    return values


def host_copies(options: dict[str, Any]) -> Iterator[Record]:
    """Copy pinned host memory to the device and back, in GB/s (10^9), with thread and memory on `cpus` and `node`.

    The location of the pages is checked, and the data that come back are compared with the data sent.
    """
    torch = _torch()
    size, suffix = options["bytes"], options.get("suffix", "")
    with placed(options.get("cpus", ()), options.get("node")):
        host = torch.randint(0, 256, (size,), dtype=torch.uint8).pin_memory(device="hpu")
        where = where_of(host, size, options.get("node"))
        sent = host.clone()
        there = torch.empty(size, dtype=torch.uint8, device="hpu")
        for metric, work in (
            ("h2d-ce", lambda: there.copy_(host, non_blocking=True)),
            ("d2h-ce", lambda: host.copy_(there, non_blocking=True)),
        ):
            if metric == "d2h-ce":
                host.zero_()
            values = rates(work, size / 1e9, options["pace"])
            yield record(metric + suffix, options["subject"], "GB/s", values, bytes=size, host_nodes=where)
        torch.hpu.synchronize()
        if not torch.equal(host, sent):
            raise RuntimeError("what came back differs from what was sent")


def device_copy(options: dict[str, Any]) -> Iterator[Record]:
    """Copy inside the device's memory, in GB/s read plus written."""
    torch = _torch()
    size = options["bytes"] // 4 * 4
    source = torch.randn(size // 4).to("hpu")
    target = torch.empty_like(source)
    values = rates(lambda: target.copy_(source), 2 * size / 1e9, options["pace"])
    torch.hpu.synchronize()
    if not torch.equal(target.cpu(), source.cpu()):
        raise RuntimeError("the copy differs from its source")
    yield record("device-copy", options["subject"], "GB/s", values, bytes=size)


def gemm(options: dict[str, Any]) -> Iterator[Record]:
    """Measure square BF16 products in TFLOP/s (2 n³ operations). There is no source for other types here."""
    torch = _torch()
    dtype, size = options["dtype"], options["n"]
    for subject in options["subjects"].values():
        if dtype != "bf16":
            why = f"no source was found for a {dtype} product on Gaudi"
            yield {"metric": f"gemm-{dtype}", "subject": subject, "skip": why}
            continue
        left, right = (torch.randn(size, size).to(torch.bfloat16).to("hpu") for _ in range(2))
        values = rates(partial(torch.matmul, left, right), 2 * size**3 / 1e12, options["pace"])
        yield record("gemm-bf16", subject, "TFLOP/s", values, n=size)


WORK: dict[str, Callable[[dict[str, Any]], Iterator[Record]]] = {
    "devices": devices,
    "host-copies": host_copies,
    "device-copy": device_copy,
    "gemm": gemm,
}
