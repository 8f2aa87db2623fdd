"""GPU measurements through CuPy, in a worker: what PyTorch would do, where only CuPy is installed.

CuPy has no BF16 or FP8 product and no collective over processes: those stay unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from hosttune.bench.link import read_machine, under_load
from hosttune.bench.pace import paced_rates
from hosttune.bench.placement import NotPlaced, nodes_of, placed
from hosttune.bench.supervise import Record

_LINK_COPIES = 8  # of 1 GiB: about 0.15 s at 55 GB/s


def _cupy() -> Any:
    return import_module("cupy")


def devices(_options: dict[str, Any]) -> Iterator[Record]:
    """What CuPy sees: one record with versions and every device's address, name and memory."""
    runtime = _cupy().cuda.runtime
    rows = []
    for index in range(runtime.getDeviceCount()):
        seen = runtime.getDeviceProperties(index)
        rows.append(
            {
                "index": index,
                "address": runtime.deviceGetPCIBusId(index).lower(),
                "uuid": None,
                "name": seen["name"].decode(),
                "memory_bytes": seen["totalGlobalMem"],
            }
        )
    yield {"devices": rows, "versions": {"cupy": _cupy().__version__, "cuda": str(runtime.runtimeGetVersion())}}


def rates(device: int, work: Callable[[Any], object], amount: float, pace: dict[str, Any]) -> list[float]:
    """The rate of each run in `amount` per second; `work` queues one operation on the stream that it is given."""
    cuda = _cupy().cuda
    with cuda.Device(device), cuda.Stream(non_blocking=True) as stream:
        begin, end = cuda.Event(), cuda.Event()

        def seconds(count: int) -> float:
            begin.record(stream)
            for _ in range(count):
                work(stream)
            end.record(stream)
            end.synchronize()
            return float(cuda.get_elapsed_time(begin, end)) / 1000

        return paced_rates(seconds, amount, pace)


def _random(size: int) -> Any:
    cupy = _cupy()
    return cupy.random.randint(0, 1 << 32, size // 4, dtype=cupy.uint32).view(cupy.uint8)


def host_copies(options: dict[str, Any]) -> Iterator[Record]:
    """Pinned host memory to the GPU and back by its copy engines; see `gpu_torch.host_copies`."""
    cuda = _cupy().cuda
    size, node, suffix = options["bytes"], options.get("node"), options.get("suffix", "")
    with placed(options.get("cpus", ()), node), cuda.Device(options["index"]):
        host = cuda.alloc_pinned_memory(size)  # touched by the allocation: the policy decides
        there = _random(size)
        cuda.runtime.memcpy(host.ptr, there.data.ptr, size, cuda.runtime.memcpyDeviceToHost)
        found = sorted(nodes_of(host.ptr, size))
        if node is not None and found != [node]:
            raise NotPlaced(f"memory asked for on node {node} lies on {found}")
        for metric, target, source, kind in (
            ("h2d-ce", there.data.ptr, host.ptr, cuda.runtime.memcpyHostToDevice),
            ("d2h-ce", host.ptr, there.data.ptr, cuda.runtime.memcpyDeviceToHost),
        ):
            values = rates(options["index"], _copy(target, source, size, kind), size / 1e9, options["pace"])
            yield _record(metric + suffix, options, "GB/s", values)
        if "link" in options:
            copy = _copy(there.data.ptr, host.ptr, size, cuda.runtime.memcpyHostToDevice)
            with cuda.Stream(non_blocking=True) as stream:
                yield from under_load(options["link"], _several(copy, stream), lambda: not stream.done, read_machine)
                stream.synchronize()


def _several(copy: Callable[[Any], object], stream: Any) -> Callable[[], None]:
    """Queues some tenths of a second of copies on a stream."""

    def work() -> None:
        for _ in range(_LINK_COPIES):
            copy(stream)

    return work


def _copy(target: int, source: int, size: int, kind: int) -> Callable[[Any], object]:
    runtime = _cupy().cuda.runtime
    return lambda stream: runtime.memcpyAsync(target, source, size, kind, stream.ptr)


def device_copy(options: dict[str, Any]) -> Iterator[Record]:
    """A copy inside the GPU's memory, in GB/s read plus written."""
    cupy = _cupy()
    with cupy.cuda.Device(options["index"]):
        source = _random(options["bytes"])
        target = cupy.empty_like(source)
    kind = cupy.cuda.runtime.memcpyDeviceToDevice
    work = _copy(target.data.ptr, source.data.ptr, options["bytes"], kind)
    values = rates(options["index"], work, 2 * options["bytes"] / 1e9, options["pace"])
    yield _record("device-copy", options, "GB/s", values)


def peer_copy(options: dict[str, Any]) -> Iterator[Record]:
    """From one GPU's memory to another's, queued on the source's stream, in GB/s."""
    cupy = _cupy()
    runtime = cupy.cuda.runtime
    source, target, size = options["source"], options["target"], options["bytes"]
    if not runtime.deviceCanAccessPeer(source, target):
        yield {"metric": "p2p-write-ce", "subject": options["subject"], "skip": "no peer access between these GPUs"}
        return
    with cupy.cuda.Device(target):
        there = cupy.empty(size, dtype=cupy.uint8)
    with cupy.cuda.Device(source):
        here = _random(size)
        runtime.deviceEnablePeerAccess(target)
    try:
        values = rates(
            source,
            lambda stream: runtime.memcpyPeerAsync(there.data.ptr, target, here.data.ptr, source, size, stream.ptr),
            size / 1e9,
            options["pace"],
        )
    finally:
        with cupy.cuda.Device(source):
            runtime.deviceDisablePeerAccess(target)
    yield _record("p2p-write-ce", options, "GB/s", values)


def gemm(options: dict[str, Any]) -> Iterator[Record]:
    """Square FP64 products in TFLOP/s, one GPU after the other; other types are not CuPy's."""
    cupy = _cupy()
    dtype, size = options["dtype"], options["n"]
    for index, subject in options["subjects"].items():
        if dtype != "fp64":
            yield {"metric": f"gemm-{dtype}", "subject": subject, "skip": f"CuPy has no {dtype} product"}
            continue
        with cupy.cuda.Device(int(index)):
            left, right = (cupy.random.standard_normal((size, size)) for _ in range(2))
            out = cupy.empty_like(left)
        values = rates(int(index), _product(left, right, out), 2 * size**3 / 1e12, options["pace"])
        yield {**_record(f"gemm-{dtype}", {"subject": subject}, "TFLOP/s", values), "n": size}


def _product(left: Any, right: Any, out: Any) -> Callable[[Any], object]:
    matmul = _cupy().matmul
    return lambda stream: matmul(left, right, out=out)


def _record(metric: str, options: dict[str, Any], unit: str, values: list[float]) -> Record:
    return {"metric": metric, "subject": options["subject"], "unit": unit, "values": values}


WORK: dict[str, Callable[[dict[str, Any]], Iterator[Record]]] = {
    "devices": devices,
    "host-copies": host_copies,
    "device-copy": device_copy,
    "peer-copy": peer_copy,
    "gemm": gemm,
}
