"""GPU benchmarks: PyTorch (also for ROCm and Gaudi) in child processes; nvbandwidth, nccl-tests and DCGM."""

from __future__ import annotations

import json
import sys
from functools import partial

from hosttune.bench.backend import Ask, Backend, BackendCommand, installed
from hosttune.bench.gpu_jobs import BETWEEN, GIVES
from hosttune.bench.parse import child, dcgm, nccl, nvbandwidth
from hosttune.gpu import vendor_of
from hosttune.gpu.vendor import MeasuredPart
from hosttune.machine.system import System
from hosttune.model.host import Gpu, Host
from hosttune.model.values import parse_cpus

# Total time limits in seconds. Level 1 takes half a minute on four GPUs. Figures that are cut off become unknown, so
# eight GPUs get more time.
# Groups of figures: the same names as the jobs of the children.
GPU_FIGURES = frozenset(("host-copies", "device-copy", "peer-copy", "gemm", "collectives", "burn"))
_HPU = frozenset(("host-copies", "device-copy", "gemm"))
_BUDGET = {1: 90.0, 2: 900.0, 3: 900.0}
_PART_BUDGET = {1: 60.0, 2: 300.0, 3: 300.0}  # for one part, which has fewer figures


def _lacking(system: System, ask: Ask) -> str | None:
    return f"no {' and no '.join(ask.lacking)} for {sys.executable}" if ask.lacking else None


def places(host: Host, gpu: Gpu) -> dict[str, object]:
    """Return the GPU's NUMA node and the farthest other node with CPUs and memory, with their CPUs.

    Unknown nodes are left out. A node without memory, or whose memory is full with guests' pages, refuses the
    allocation; the child reports that.
    """
    device = next((row for row in host.pci if row.address == gpu.address), None)
    nodes = {node.id: node for node in host.numa_nodes if node.cpus and node.memory_bytes}
    if device is None or device.numa_node is None or device.numa_node not in nodes or len(nodes) < 2:
        return {}
    near = nodes[device.numa_node]
    distances = near.distances or {}
    far = max((node for node in nodes.values() if node is not near), key=lambda n: (distances.get(str(n.id), 0), n.id))
    return {name: [node.id, sorted(parse_cpus(node.cpus))] for name, node in (("near", near), ("far", far))}


def _children(library: str, ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    """Return the commands: one child for all GPUs together, and one child for each part."""
    whole = (_together(library, ask, groups),) if ask.gpus else ()
    return (*whole, *(_alone(library, ask, groups, part) for part in ask.parts))


def _together(library: str, ask: Ask, groups: frozenset[str]) -> BackendCommand:
    where = {gpu.address: places(ask.host, gpu) for gpu in ask.gpus}
    named = {gpu.uuid: {**where[gpu.address], "name": gpu.address} for gpu in ask.gpus if gpu.uuid}
    wanted = ",".join([gpu.address for gpu in ask.gpus] + [gpu.uuid for gpu in ask.gpus if gpu.uuid])
    budget = _BUDGET[ask.level]
    argv = _argv(library, ask, groups, wanted, {**where, **named}, budget)
    asked = sorted(group for group in groups if group not in BETWEEN or len(ask.gpus) > 1)
    watch = ("--watch", ask.watch) if ask.watch else ()
    metrics = tuple(metric for group in asked for metric in GIVES[group])
    return BackendCommand((*argv, *watch), child.parse, _with_burn(ask, budget) + 30, metrics, "all GPUs")


def _alone(library: str, ask: Ask, groups: frozenset[str], part: MeasuredPart) -> BackendCommand:
    """Return the command that measures one part alone. The burn-in starts at level 2: there may be many parts."""
    gpu = next(gpu for gpu in ask.host.gpus if gpu.address == part.address)
    kinds = groups - BETWEEN - (frozenset(("burn",)) if ask.level == 1 else frozenset())
    budget = _PART_BUDGET[ask.level]
    argv = _argv(library, ask, kinds, part.address, {part.address: places(ask.host, gpu)}, budget)
    count = () if part.multiprocessors is None else ("--multiprocessors", str(part.multiprocessors))
    without = ("--without", ",".join(sorted(part.without)))
    variables = tuple(f"{name}={value}" for name, value in sorted(part.environment.items()))
    metrics = tuple(metric for kind in sorted(kinds) for metric in GIVES[kind])
    whole = (*("env", *variables), *argv, *("--alone", part.subject), *count, *without)
    return BackendCommand(whole, child.parse, _with_burn(ask, budget) + 30, metrics, part.subject, own=True)


def _argv(
    library: str, ask: Ask, kinds: frozenset[str], gpus: str, where: dict[str, dict[str, object]], budget: float
) -> tuple[str, ...]:
    return (
        *(sys.executable, "-P", "-m", "hosttune.bench.gpu_child", "--library", library, "--level", str(ask.level)),
        *("--gpus", gpus, "--kinds", ",".join(sorted(kinds)), "--places", json.dumps(where)),
        *("--seconds", f"{ask.seconds:g}", "--budget", f"{_with_burn(ask, budget):g}"),
    )


def _with_burn(ask: Ask, budget: float) -> float:
    return budget + (ask.seconds if ask.level == 3 else 0)


def _nvbandwidth(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    wanted = ("h2d-ce", "d2h-ce") if "host-copies" in groups else ()
    if "peer-copy" in groups and len(ask.gpus) > 1:
        wanted = (*wanted, "p2p-read-ce", "p2p-write-ce")
    tests = [test for test, metric in nvbandwidth.TESTS.items() if metric in wanted]
    argv = ("nvbandwidth", "-j", "-t", *tests)
    return (BackendCommand(argv, nvbandwidth.parse, 300, wanted, "all GPUs", times=5),) if tests else ()


def _nccl_tests(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    if len(ask.gpus) < 2:
        return ()
    sizes = ("-b", "1M", "-e", "4G" if ask.level == 1 else "16G", "-f", "4", "-g", str(len(ask.gpus)))
    return tuple(
        BackendCommand(
            (tool, *sizes), partial(nccl.parse, collective=name), 600, (name,), f"{len(ask.gpus)} GPUs", times=5
        )
        for tool, name in (("all_reduce_perf", "all-reduce"), ("all_gather_perf", "all-gather"))
    )


def _dcgm(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    run_level = {2: "2", 3: "3"}[ask.level]
    return (BackendCommand(("dcgmi", "diag", "-r", run_level, "-j"), dcgm.parse, 3600, ("dcgm",), "host"),)


def _every_gpu(tool: str, system: System, ask: Ask) -> str | None:
    """Return why a tool of NVIDIA cannot be used, or None.

    The tools load all GPUs of the driver, so they can be used only if all of these GPUs may be loaded.
    """
    chosen = {gpu.address for gpu in ask.gpus}
    for gpu in ask.host.gpus:
        maker = vendor_of(gpu.vendor)
        function = ask.host.index.pci.get(gpu.address)
        held = maker is not None and function is not None and function.driver == maker.driver
        if held and gpu.address not in chosen:
            return f"{tool} takes every GPU that the driver has, and {gpu.address} must not be loaded as a whole"
    return installed(system, tool)


TORCH = Backend("PyTorch", GPU_FIGURES, _lacking, partial(_children, "torch"))
HPU = Backend("PyTorch for Gaudi", _HPU, _lacking, partial(_children, "hpu"))
NVBANDWIDTH = Backend(
    "nvbandwidth", frozenset(("host-copies", "peer-copy")), partial(_every_gpu, "nvbandwidth"), _nvbandwidth
)
NCCL_TESTS = Backend("nccl-tests", frozenset(("collectives",)), partial(_every_gpu, "all_reduce_perf"), _nccl_tests)
DCGM = Backend("DCGM", frozenset(("dcgm",)), partial(_every_gpu, "dcgmi"), _dcgm, frozenset((2, 3)))

# The first available backend measures a group. hosttune's own are first: they give a figure for each run, and they
# place memory on a chosen node.
GPU_BACKENDS = (TORCH, HPU, NVBANDWIDTH, NCCL_TESTS, DCGM)
