"""GPU measurements through PyTorch, in a worker: copies by copy engines, matrix products, copies between GPUs.

PyTorch for ROCm has the same names, torch.cuda for HIP and "nccl" for RCCL (PyTorch, "HIP (ROCm) semantics"); it binds
cudaHostRegister to HIP's function (torch/csrc/cuda/shared/cudart.cpp). Where it differs, the code checks `_rocm`.

Every figure is the rate of one run. A run is a number of operations, queued without pauses between two events of the
stream, chosen so that the run takes the wanted time. Runs that warm up clocks and caches are not recorded. Data are
random: zeros need less power and make products about 12 % faster than real work.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import msgspec

from hosttune.bench.link import read_machine, under_load
from hosttune.bench.placement import NotPlaced, nodes_of, placed
from hosttune.bench.supervise import Record

GIB = 1 << 30
_HOST_REGISTER_DEFAULT = 0  # cudaHostRegisterDefault
_LINK_COPIES = 8  # copies of 1 GiB: about 0.15 s at 55 GB/s


class Pace(msgspec.Struct, frozen=True):
    """How a figure is measured: `runs` runs of about `run_seconds`, after `warm_seconds` of the same work.

    `rest_seconds`: a pause before each run. It measures the rate of a burst, before the power limit lowers the clock.
    """

    runs: int = 5
    run_seconds: float = 0.05
    warm_seconds: float = 0.1
    rest_seconds: float = 0.0


def _torch() -> Any:
    return import_module("torch")


def _rocm() -> str | None:
    """Return the version of HIP that PyTorch is built for; None if it is built for CUDA."""
    return getattr(_torch().version, "hip", None)


def _engines(*variables: str) -> None:
    """Check that copies use DMA engines.

    Raises RuntimeError if an environment variable makes ROCm copy with kernels, which is a different figure. By default
    copies use DMA engines (rocm.docs.amd.com, ROCR-Runtime, "Environment variables").
    """
    off = [name for name in variables if _rocm() is not None and os.environ.get(name) == "0"]
    if off:
        raise RuntimeError(f"{off[0]}=0 makes kernels copy, and not the copy engines: unset it")


def devices(_options: dict[str, Any]) -> Iterator[Record]:
    """Yield one record of what PyTorch sees: versions, and the address, UUID, name and memory of every device."""
    torch = _torch()
    rows = []
    for index in range(torch.cuda.device_count()):
        seen = torch.cuda.get_device_properties(index)
        domain, bus, device = (getattr(seen, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
        known = None not in (domain, bus, device)
        rows.append(
            {
                "index": index,
                "address": f"{domain:04x}:{bus:02x}:{device:02x}.0" if known else None,
                "uuid": f"GPU-{seen.uuid}" if hasattr(seen, "uuid") else None,
                "name": seen.name,
                "memory_bytes": seen.total_memory,
                "multiprocessors": getattr(seen, "multi_processor_count", None),
            }
        )
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if rows else None
    made_for = {"cuda": torch.version.cuda, "nccl": nccl} if _rocm() is None else {"hip": _rocm(), "rccl": nccl}
    yield {"devices": rows, "versions": {"torch": torch.__version__, **made_for}}


def rates(device: int, work: Callable[[], object], amount: float, pace: Pace) -> list[float]:
    """Return the rate of each run in `amount` per second.

    `work` queues one operation on the device's current stream.
    """
    torch = _torch()
    with torch.cuda.device(device):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def seconds(count: int) -> float:
            begin.record()
            for _ in range(count):
                work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000

        seconds(1)
        one = seconds(2) / 2
        count = max(1, math.ceil(pace.run_seconds / one))
        until = time.monotonic() + pace.warm_seconds
        while time.monotonic() < until:
            seconds(count)
        return [amount * count / seconds(count) for _ in range(pace.runs)]


def record(metric: str, subject: str, unit: str, values: list[float], **more: Any) -> Record:
    """Return the record of a figure with all its runs."""
    return {"metric": metric, "subject": subject, "unit": unit, "values": values, **more}


def host_copies(options: dict[str, Any]) -> Iterator[Record]:
    """Copy pinned host memory to the GPU and back with its copy engines, in GB/s (10^9).

    `cpus` and `node` are where thread and memory are placed; the location of the pages is checked. `suffix` is added to
    the metric's name. `link`: the PCI address whose link is read while copies run.
    """
    torch = _torch()
    _engines("HSA_ENABLE_SDMA")
    index, size, node = options["index"], options["bytes"], options.get("node")
    with placed(options.get("cpus", ()), node), torch.cuda.device(index):
        host = torch.empty(size, dtype=torch.uint8)  # new pages from mmap, not from a cache
        api = torch.cuda.cudart()
        # Registering touches the pages for the first time, so the memory policy of the thread places them here.
        refused = api.cudaHostRegister(host.data_ptr(), size, _HOST_REGISTER_DEFAULT)
        if int(refused) != 0:
            raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(refused)}")
        try:
            where = where_of(host, size, node)
            there = torch.randint(0, 256, (size,), dtype=torch.uint8, device=index)
            host.copy_(there)
            pace = Pace(**options["pace"])
            suffix = options.get("suffix", "")
            for metric, work in (
                ("h2d-ce", lambda: there.copy_(host, non_blocking=True)),
                ("d2h-ce", lambda: host.copy_(there, non_blocking=True)),
            ):
                values = rates(index, work, size / 1e9, pace)
                yield record(metric + suffix, options["subject"], "GB/s", values, bytes=size, host_nodes=where)
            if "link" in options:
                yield from _link(options["link"], lambda: there.copy_(host, non_blocking=True))
        finally:
            torch.cuda.synchronize(index)
            api.cudaHostUnregister(host.data_ptr())


def _link(address: str, copy: Callable[[], object]) -> Iterator[Record]:
    """Yield the speed and width of the GPU's link, read while copies are running on the device's current stream."""
    done = _torch().cuda.Event()
    started = False

    def work() -> None:
        nonlocal started
        for _ in range(_LINK_COPIES):
            copy()
        done.record()
        started = True

    yield from under_load(address, work, lambda: started and not done.query(), read_machine)


def where_of(host: Any, size: int, node: int | None) -> list[int] | None:
    """Return the nodes that hold the buffer. Raises NotPlaced if it is not on the requested node."""
    try:
        nodes_found = sorted(nodes_of(host.data_ptr(), size))
    except NotPlaced:
        if node is not None:
            raise
        return None
    if node is not None and nodes_found != [node]:
        raise NotPlaced(f"memory requested on node {node} is on {nodes_found}")
    return nodes_found


def device_copy(options: dict[str, Any]) -> Iterator[Record]:
    """Copy inside the GPU's memory, in GB/s read plus written."""
    torch = _torch()
    index, size = options["index"], options["bytes"]
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=index)
    target = torch.empty_like(source)
    values = rates(index, lambda: target.copy_(source, non_blocking=True), 2 * size / 1e9, Pace(**options["pace"]))
    yield record("device-copy", options["subject"], "GB/s", values, bytes=size)


def peer_copy(options: dict[str, Any]) -> Iterator[Record]:
    """Copy from one GPU's memory to another's, written by the source's copy engine, in GB/s.

    PyTorch queues a peer copy on the source's stream. If the GPUs cannot access each other, PyTorch would copy through
    the host. That is a different figure, so no value is given.
    """
    torch = _torch()
    source, target, size = options["source"], options["target"], options["bytes"]
    if not torch.cuda.can_device_access_peer(source, target):
        yield {"metric": "p2p-write-ce", "subject": options["subject"], "skip": "no peer access between these GPUs"}
        return
    _engines("HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA")
    here = torch.randint(0, 256, (size,), dtype=torch.uint8, device=source)
    there = torch.empty(size, dtype=torch.uint8, device=target)
    values = rates(source, lambda: there.copy_(here, non_blocking=True), size / 1e9, Pace(**options["pace"]))
    torch.cuda.synchronize(source)
    torch.cuda.synchronize(target)
    if not torch.equal(there.to(source), here):
        raise RuntimeError("what arrived differs from what was sent")
    yield record("p2p-write-ce", options["subject"], "GB/s", values, bytes=size)


def _product(dtype: str, size: int, index: int) -> Callable[[], Any]:
    """Return a function that computes one n × n product of normally distributed data on a device.

    TF32 means FP32 input on tensor cores.
    """
    torch = _torch()
    place = {"device": index}
    torch.manual_seed(20261120)
    if dtype == "fp8":
        # MI300 (gfx94x) supports only the format without negative zero (PyTorch's own tests).
        fp8_torch = _torch()
        name = getattr(fp8_torch.cuda.get_device_properties(index), "gcnArchName", "") if _rocm() is not None else ""
        kind = fp8_torch.float8_e4m3fnuz if name.startswith("gfx94") else fp8_torch.float8_e4m3fn
        left = torch.randn(size, size, dtype=torch.bfloat16, **place).to(kind)
        right = torch.randn(size, size, dtype=torch.bfloat16, **place).to(kind).t()
        unit_scale = torch.ones((), **place)
        # This private function is the only way to FP8 products in PyTorch (cuBLASLt); with fast accumulation.
        return lambda: torch._scaled_mm(
            left, right, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    kind = {"bf16": torch.bfloat16, "tf32": torch.float32, "fp64": torch.float64}[dtype]
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    left, right = (torch.randn(size, size, dtype=kind, **place) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.matmul(left, right, out=out)


def gemm(options: dict[str, Any]) -> Iterator[Record]:
    """Measure square matrix products in TFLOP/s (2 n³ operations) in bursts, on all GPUs at once."""
    dtype, size, subjects = options["dtype"], options["n"], options["subjects"]
    if dtype == "tf32" and _rocm() is not None:
        # torch/testing: hipBLASLt uses TF32 only with HIPBLASLT_ALLOW_TF32 and only on some GPUs, otherwise FP32.
        why = "PyTorch for ROCm does not report whether it computes TF32 or FP32: not measured"
        yield from ({"metric": "gemm-tf32", "subject": subject, "skip": why} for subject in subjects.values())
        return
    pace = Pace(**options["pace"])
    work = {int(index): _product(dtype, size, int(index)) for index in subjects}
    _together(work, 1)  # loads the kernels
    one = max(_together(work, 2).values()) / 2
    count = max(1, math.ceil(pace.run_seconds / one))
    until = time.monotonic() + pace.warm_seconds
    while time.monotonic() < until:
        _together(work, count)
    runs = []
    for _ in range(pace.runs):
        time.sleep(pace.rest_seconds)
        runs.append(_together(work, count))
    for index, subject in subjects.items():
        values = [2 * size**3 * count / 1e12 / seconds[int(index)] for seconds in runs]
        yield record(f"gemm-{dtype}", subject, "TFLOP/s", values, n=size)


def _together(work: Mapping[int, Callable[[], object]], count: int) -> dict[int, float]:
    """Return the seconds that each device takes for `count` operations. All devices are queued before waiting."""
    torch = _torch()
    pairs = {}
    for index, product in work.items():
        with torch.cuda.device(index):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                product()
            end.record()
            pairs[index] = (begin, end)
    seconds_of = {}
    for index, (begin, end) in pairs.items():
        end.synchronize()
        seconds_of[index] = float(begin.elapsed_time(end)) / 1000
    return seconds_of


def burn(options: dict[str, Any]) -> Iterator[Record]:
    """Run BF16 products on all GPUs for `duration` seconds; yield the rate of each second and the wrong results.

    The same product on the same device always gives the same bits; any other result is a hardware error.
    """
    torch = _torch()
    size, subjects = options["n"], options["subjects"]
    work = {int(index): _product("bf16", size, int(index)) for index in subjects}
    first = {index: product().clone() for index, product in work.items()}
    wrong = dict.fromkeys(work, 0)
    count = 64
    until = time.monotonic() + options["duration"]
    while time.monotonic() < until:
        seconds = _together(work, count)
        for index, taken in seconds.items():
            wrong[index] += int(not torch.equal(work[index](), first[index]))
            rate = 2 * size**3 * count / 1e12 / taken
            yield record("gemm-bf16-sustained", subjects[str(index)], "TFLOP/s", [rate], n=size)
        count = max(1, round(count / max(max(seconds.values()), 1e-3)))  # about a second each
    for index, errors in wrong.items():
        yield record("burn-wrong-results", subjects[str(index)], "count", [float(errors)])


WORK: dict[str, Callable[[dict[str, Any]], Iterator[Record]]] = {
    "devices": devices,
    "host-copies": host_copies,
    "device-copy": device_copy,
    "peer-copy": peer_copy,
    "gemm": gemm,
    "burn": burn,
}
