"""OpenStack Nova as a child process, for as long as a comparison takes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from rows import ROOT

from hosttune.model.values import parse_cpus

Json = dict[str, Any]
NOVA_PYTHON = ROOT / ".bench/nova/bin/python"
NOVA_FIT = ROOT / "bench/nova/fit.py"


@dataclass(frozen=True)
class Arrival:
    """What became of one guest: its host CPUs in vCPU order (None: refused), and how long that took to decide.

    `cells` are the CPUs of each cell with the host node that the cell is said to be on.
    """

    cpus: tuple[int, ...] | None
    seconds: float
    cells: tuple[tuple[int, tuple[int, ...]], ...] = ()


def nova_host(host: Json) -> Json:
    """A host document as Nova's child takes it, without its devices."""
    held = {cpu for guest in host["guests"] for pin in guest["vcpu_pins"] for cpu in parse_cpus(pin["cpus"])}
    nodes = []
    for node in host["numa_nodes"]:
        cores: dict[int, list[int]] = {}
        for cpu in host["cpus"]:
            if cpu["numa_node"] == node["id"]:
                cores.setdefault(cpu["core"], []).append(cpu["id"])
        in_use = sorted(cpu for core in cores.values() for cpu in core if cpu in held)
        memory = node["memory_bytes"] >> 20
        nodes.append({"id": node["id"], "cores": list(cores.values()), "in_use": in_use, "memory_mib": memory})
    return {"nodes": nodes}


class Nova:
    """Nova's child: streams in, arrivals out."""

    def __init__(self, to: IO[str], of: IO[str]) -> None:
        self._to, self._of = to, of
        self._read()

    def _read(self) -> Any:
        return json.loads(self._of.readline())

    def place(self, mode: str, host: Json, guests: Sequence[Json]) -> list[Arrival]:
        """Guests (vcpus, cells, memory_mib; kinds of devices) one by one on a host, in `spread` or `pack` mode."""
        self._to.write(json.dumps({"mode": mode, "host": host, "guests": list(guests)}) + "\n")
        self._to.flush()
        return [_arrival(row) for row in self._read()]


def _arrival(row: Json) -> Arrival:
    if row["cells"] is None:
        return Arrival(None, row["seconds"])
    cells = tuple((cell["node"], tuple(cell["cpus"])) for cell in row["cells"])
    return Arrival(tuple(cpu for _, cpus in cells for cpu in cpus), row["seconds"], cells)


@contextmanager
def nova() -> Iterator[Nova]:
    """Nova's child for as long as it is needed."""
    command = [str(NOVA_PYTHON), str(NOVA_FIT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        yield Nova(child.stdin, child.stdout)
        child.stdin.close()
