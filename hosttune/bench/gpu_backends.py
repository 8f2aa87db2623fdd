"""GPU benchmarks: PyTorch and CuPy in children of ours, NVIDIA's nvbandwidth, nccl-tests and DCGM diagnostics."""

from __future__ import annotations

import json
import sys
from functools import partial

from hosttune.bench.backend import Ask, Backend, Command, installed
from hosttune.bench.parse import child, dcgm, nccl, nvbandwidth
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.model.values import parse_cpus
from hosttune.system import System

# Seconds in all. Level 1 takes half a minute on four GPUs; what is cut off is unknown, so eight get more time.
# Groups of figures, as jobs of the children are called.
_TORCH = frozenset(("host-copies", "device-copy", "peer-copy", "gemm", "collectives", "burn"))
_CUPY = frozenset(("host-copies", "device-copy", "peer-copy", "gemm"))
_BUDGET = {1: 90.0, 2: 900.0, 3: 900.0}
_GIVES = {
    "host-copies": ("h2d-ce", "d2h-ce"),
    "device-copy": ("device-copy",),
    "peer-copy": ("p2p-write-ce",),
    "gemm": ("gemm-bf16",),
    "collectives": ("all-reduce", "all-gather"),
    "burn": ("gemm-bf16-sustained", "burn-wrong-results"),
}


def _library(name: str, system: System, ask: Ask) -> str | None:
    return None if name in ask.libraries else f"no {name} for {sys.executable}"


def places(host: Host, gpu: Gpu) -> dict[str, object]:
    """The GPU's own node and the farthest other one that has CPUs and memory, with their CPUs; none where unknown.

    A node without memory of its own, or whose memory guests' pages fill, would refuse: the child says so then.
    """
    device = next((row for row in host.pci if row.address == gpu.address), None)
    nodes = {node.id: node for node in host.numa_nodes if node.cpus and node.memory_bytes}
    if device is None or device.numa_node is None or device.numa_node not in nodes or len(nodes) < 2:
        return {}
    near = nodes[device.numa_node]
    distances = near.distances or {}
    far = max((node for node in nodes.values() if node is not near), key=lambda n: (distances.get(str(n.id), 0), n.id))
    return {name: [node.id, sorted(parse_cpus(node.cpus))] for name, node in (("near", near), ("far", far))}


def _children(library: str, ask: Ask, groups: frozenset[str]) -> tuple[Command, ...]:
    where = {gpu.address: places(ask.host, gpu) for gpu in ask.gpus}
    named = {gpu.uuid: {**where[gpu.address], "name": gpu.address} for gpu in ask.gpus if gpu.uuid}
    budget = _BUDGET[ask.level] + (ask.seconds if ask.level == 3 else 0)
    wanted = ",".join([gpu.address for gpu in ask.gpus] + [gpu.uuid for gpu in ask.gpus if gpu.uuid])
    argv = (
        *(sys.executable, "-m", "hosttune.bench.gpu_child", "--library", library, "--level", str(ask.level)),
        *("--gpus", wanted, "--kinds", ",".join(sorted(groups)), "--places", json.dumps({**where, **named})),
        *("--seconds", f"{ask.seconds:g}", "--budget", f"{budget:g}"),
    )
    asked = sorted(group for group in groups if _applies(group, ask))
    metrics = tuple(metric for group in asked for metric in _GIVES[group])
    return (Command(argv, child.parse, budget + 30, metrics, "all GPUs"),)


def _applies(group: str, ask: Ask) -> bool:
    return len(ask.gpus) > 1 or group not in ("peer-copy", "collectives")


def _nvbandwidth(ask: Ask, groups: frozenset[str]) -> tuple[Command, ...]:
    wanted = ("h2d-ce", "d2h-ce") if "host-copies" in groups else ()
    if "peer-copy" in groups and len(ask.gpus) > 1:
        wanted = (*wanted, "p2p-read-ce", "p2p-write-ce")
    tests = [test for test, metric in nvbandwidth.TESTS.items() if metric in wanted]
    argv = ("nvbandwidth", "-j", "-t", *tests)
    return (Command(argv, nvbandwidth.parse, 300, wanted, "all GPUs", times=5),) if tests else ()


def _nccl_tests(ask: Ask, groups: frozenset[str]) -> tuple[Command, ...]:
    if len(ask.gpus) < 2:
        return ()
    sizes = ("-b", "1M", "-e", "4G" if ask.level == 1 else "16G", "-f", "4", "-g", str(len(ask.gpus)))
    return tuple(
        Command((tool, *sizes), partial(nccl.parse, collective=name), 600, (name,), f"{len(ask.gpus)} GPUs", times=5)
        for tool, name in (("all_reduce_perf", "all-reduce"), ("all_gather_perf", "all-gather"))
    )


def _dcgm(ask: Ask, groups: frozenset[str]) -> tuple[Command, ...]:
    run_level = {2: "2", 3: "3"}[ask.level]
    return (Command(("dcgmi", "diag", "-r", run_level, "-j"), dcgm.parse, 3600, ("dcgm",), "host"),)


def _every_gpu(tool: str, system: System, ask: Ask) -> str | None:
    """NVIDIA's tools take all GPUs that the driver has: only where all of those may be loaded."""
    if any(gpu.mig is not None and gpu.mig.mode == "enabled" for gpu in ask.host.gpus):
        return f"{tool} takes every GPU, and one is in MIG mode"
    return installed(system, tool)


TORCH = Backend("PyTorch", _TORCH, partial(_library, "torch"), partial(_children, "torch"))
CUPY = Backend("CuPy", _CUPY, partial(_library, "cupy"), partial(_children, "cupy"))
NVBANDWIDTH = Backend(
    "nvbandwidth", frozenset(("host-copies", "peer-copy")), partial(_every_gpu, "nvbandwidth"), _nvbandwidth
)
NCCL_TESTS = Backend("nccl-tests", frozenset(("collectives",)), partial(_every_gpu, "all_reduce_perf"), _nccl_tests)
DCGM = Backend("DCGM", frozenset(("dcgm",)), partial(_every_gpu, "dcgmi"), _dcgm, frozenset((2, 3)))

# The first that is there measures a group. Ours come first: their runs are single figures, with memory placed by node.
GPU_BACKENDS = (TORCH, CUPY, NVBANDWIDTH, NCCL_TESTS, DCGM)
