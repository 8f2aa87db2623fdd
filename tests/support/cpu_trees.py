"""Small CPU trees for the tests of discovery, and what is found in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hosttune.discovery.cpu import read_cpus
from hosttune.discovery.memory import read_nodes
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.host import Cpu, CpuModel, NumaNode, Problem
from hosttune.model.values import CpuSet

SYSTEM = "sys/devices/system"


class Found(NamedTuple):
    cpus: dict[int, Cpu]
    model: CpuModel
    nodes: tuple[NumaNode, ...]
    problems: list[Problem]

    def groups(self, field: str) -> set[CpuSet]:
        """The online CPUs partitioned by one field, CPUs without it left out."""
        return partition({cpu.id: getattr(cpu, field) for cpu in self.cpus.values()})

    def where(self, what: str) -> str:
        """Where the one problem of that kind is; fails when there is none or more than one."""
        (found,) = [problem for problem in self.problems if problem.what == what]
        return found.where

    def ids(self, **fields: object) -> CpuSet:
        return CpuSet(
            cpu.id for cpu in self.cpus.values() if all(getattr(cpu, name) == value for name, value in fields.items())
        )


def partition(keys: Mapping[int, Hashable]) -> set[CpuSet]:
    members = defaultdict[Hashable, set[int]](set)
    for cpu, key in keys.items():
        if key is not None:
            members[key].add(cpu)
    return {CpuSet(group) for group in members.values()}


def found_in(root: Path) -> Found:
    reader = Reader(Capture(str(root)))
    nodes = read_nodes(reader)
    cpus, model = read_cpus(reader, nodes)
    assert [cpu.id for cpu in cpus] == sorted({cpu.id for cpu in cpus})
    return Found({cpu.id: cpu for cpu in cpus}, model, nodes, reader.problems)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write {"sys/…/file": "text"} below a directory; files that are there already stay."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(cpu: int, package: int, threads: str, siblings: str = "0-3") -> dict[str, str]:
    path = f"{SYSTEM}/cpu/cpu{cpu}/topology"
    return {
        f"{path}/physical_package_id": str(package),
        f"{path}/core_cpus_list": threads,
        f"{path}/package_cpus_list": siblings,
    }


def four_cpus(
    threads: Iterable[str] = ("0,2", "1,3", "0,2", "1,3"), packages: Sequence[int] = (0,) * 4
) -> dict[str, str]:
    """Four online CPUs of one node; two cores of two threads unless told otherwise."""
    files = {f"{SYSTEM}/cpu/{name}": "0-3" for name in ("online", "present", "possible")}
    files |= {f"{SYSTEM}/node/node0/cpulist": "0-3", f"{SYSTEM}/node/online": "0"}
    for cpu, (listed, package) in enumerate(zip(threads, packages, strict=True)):
        siblings = str(CpuSet(other for other in range(4) if packages[other] == package))
        files |= topology(cpu, package, listed, siblings)
    return files
