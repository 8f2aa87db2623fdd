"""CPU, memory, disk and network benchmarks.

They load the whole host or another host, so they do not run while guests are running.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial

from hosttune.bench.backend import Ask, Backend, BackendCommand, installed
from hosttune.bench.parse import child
from hosttune.bench.parse.tools import parse_cyclictest, parse_fio, parse_mlc, parse_perftest
from hosttune.errors import BadInput
from hosttune.machine.system import System
from hosttune.model.values import CpuSet, parse_cpus

_PEER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
_FIO = (
    ("disk-write", "write", "1M", "16"),
    ("disk-read", "read", "1M", "16"),
    ("disk-random-read", "randread", "4k", "32"),
)


def _quiet(tool: str | None, system: System, ask: Ask) -> str | None:
    return ask.quiet or (installed(system, tool) if tool else None)


def _memory(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    usable = {cpu.id for cpu in ask.host.cpus if cpu.online and cpu.allowed is not False}
    cpus = {node.id: sorted(parse_cpus(node.cpus) & usable) for node in ask.host.numa_nodes if node.cpus}
    cpus = {node: _one_a_core(ask, node_cpus) for node, node_cpus in cpus.items() if node_cpus}
    memory = [node.id for node in ask.host.numa_nodes if node.memory_bytes and node.kind != "gpu"]
    pairs = len(cpus) * len(memory)
    if not pairs:
        return ()
    seconds = 0.1 if ask.level == 1 else 0.5
    budget = 15 + pairs * (1.0 if ask.level == 1 else 10.0)
    nodes = json.dumps({"cpus": {str(node): list(node_cpus) for node, node_cpus in cpus.items()}, "memory": memory})
    argv = (
        *(sys.executable, "-P", "-m", "hosttune.bench.memory_child", "--nodes", nodes),
        *("--run-seconds", f"{seconds:g}", "--budget", f"{budget:g}"),
    )
    return (BackendCommand(argv, child.parse, budget + 15, ("memory-copy",), "every pair of nodes"),)


def _one_a_core(ask: Ask, cpus: list[int]) -> list[int]:
    """Return the first CPU of each core: its siblings add no bandwidth."""
    cores = {cpu.id: cpu.core for cpu in ask.host.cpus}
    seen: dict[object, int] = {}
    for cpu in cpus:
        core = cores.get(cpu)
        seen.setdefault(cpu if core is None else ("core", core), cpu)
    return list(seen.values())


def _latency(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    return (
        BackendCommand(
            ("mlc", "--latency_matrix"), parse_mlc, 300, ("memory-latency",), "every pair of nodes", times=5
        ),
    )


def _jitter(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    """Return the command that compares the guests' cores with all other cores.

    The guests' cores are those that defined guests are pinned to; if there are none, the isolated cores.
    """
    online = CpuSet(cpu.id for cpu in ask.host.cpus if cpu.online and cpu.allowed is not False)
    pins = [pin for guest in ask.host.guests or () for pin in guest.vcpu_pins or ()]
    guests = CpuSet(cpu for pin in pins for cpu in parse_cpus(pin.cpus)) & online
    guests = guests or CpuSet(cpu.id for cpu in ask.host.cpus if cpu.isolated) & online
    seconds = 2 if ask.level == 1 else 30
    return tuple(
        BackendCommand(
            (
                "cyclictest",
                "-q",
                "-m",
                "-p",
                "80",
                "-i",
                "200",
                "-D",
                str(seconds),
                "-t",
                str(len(cpus)),
                "-a",
                str(cpus),
            ),
            partial(parse_cyclictest, subject=subject),
            seconds + 30,
            ("timer-jitter",),
            subject,
            times=5,
        )
        for subject, cpus in (("guests' CPUs", guests), ("housekeeping CPUs", online - guests))
        if cpus
    )


def _scratch(system: System, ask: Ask) -> str | None:
    """Return why disks cannot be measured, or None.

    Raises BadInput if the path is not a directory: fio would overwrite a device or an existing file.
    """
    if ask.scratch is None:
        return "no scratch folder was named"
    if not ask.scratch.startswith("/") or ":" in ask.scratch or ask.scratch.startswith("/dev/"):
        raise BadInput(
            f"{ask.scratch} is not a scratch folder", where="scratch path", hint="name a folder with an absolute path"
        )
    if not system.exists(f"{ask.scratch}/."):
        raise BadInput(f"no folder {ask.scratch}", where="scratch path", hint="make it, on the disk to be measured")
    return _quiet("fio", system, ask)


def _disk(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    """Return the commands of fio, which measures with its own file in the scratch folder and removes it afterwards."""
    seconds = 3 if ask.level == 1 else 30
    size = "1G" if ask.level == 1 else "16G"
    return tuple(
        BackendCommand(
            (
                *("fio", f"--name={name}", f"--directory={ask.scratch}", "--filename=hosttune-bench.tmp", "--unlink=1"),
                *(f"--rw={pattern}", f"--bs={block}", f"--iodepth={depth}", f"--size={size}", "--direct=1"),
                *("--ioengine=libaio", "--time_based", f"--runtime={seconds}", "--output-format=json"),
            ),
            partial(parse_fio, subject=str(ask.scratch)),
            seconds + 120,
            (name,),
            str(ask.scratch),
            times=5,
        )
        for name, pattern, block, depth in _FIO
    )


def _network_needs(system: System, ask: Ask) -> str | None:
    """Return why the network cannot be measured, or None. Raises BadInput for a peer that is not a host name."""
    for peer in ask.peers:
        if not _PEER.fullmatch(peer):
            raise BadInput(f"{peer!r} is not a host name", where="peers", hint="name hosts that run ib_write_bw")
    if not ask.peers:
        return "no other host was named"
    return installed(system, "ib_write_bw") or (None if _ports(ask) else "no active RDMA port here")


def _ports(ask: Ask) -> tuple[str, ...]:
    return tuple(nic.rdma for nic in ask.host.nics if nic.rdma and nic.physfn is None and nic.state != "down")


def _network(ask: Ask, groups: frozenset[str]) -> tuple[BackendCommand, ...]:
    """Return the commands that measure from each port of this host to each named host.

    On the named host `ib_write_bw -d DEVICE --report_gbits` must be waiting.
    """
    return tuple(
        BackendCommand(
            ("ib_write_bw", "-d", port, "--report_gbits", "-D", "2", "-s", "1048576", peer),
            partial(parse_perftest, subject=f"{port}->{peer}"),
            40,
            ("rdma-write",),
            f"{port}->{peer}",
            times=5,
        )
        for port in _ports(ask)
        for peer in ask.peers
    )


HOST_BACKENDS = (
    Backend("memcpy", frozenset(("memory",)), partial(_quiet, None), _memory),
    Backend("Intel MLC", frozenset(("latency",)), partial(_quiet, "mlc"), _latency, frozenset((2, 3))),
    Backend("cyclictest", frozenset(("jitter",)), partial(_quiet, "cyclictest"), _jitter, frozenset((2, 3))),
    Backend("fio", frozenset(("disk",)), _scratch, _disk),
    Backend("perftest", frozenset(("network",)), _network_needs, _network, frozenset((2, 3))),
)
