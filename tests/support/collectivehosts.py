"""A stand-in for PyTorch, and hosts that answer as `hosttune collective` does, for tests of collectives.

The stand-in does its collectives over the one socket that the product gives it, with lists of numbers. It shows that
hosts meet, that ranks start and end, that wrong values and deaths are seen; figures of a network only hardware shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import convert, structs

from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.results import answer_path
from hosttune.model.collective import CollectiveJob, Library, Member, MemberOutcome, Place, Task, Timing, Wiring

TORCH = """
import json, os
_TOLD = json.loads(os.environ.get("STANDIN", "{}"))
__version__ = _TOLD.get("torch", "2.11.0")
float32 = float64 = "f"
class version: cuda, hip = None, None
class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
class Tensor:
    def __init__(self, values): self.v = list(values)
    def __mod__(self, n): return Tensor(x % n for x in self.v)
    def __add__(self, n): return Tensor(x + n for x in self.v)
    def __mul__(self, n): return Tensor(x * n for x in self.v)
    def __eq__(self, other): return Tensor(a == b for a, b in zip(self.v, other.v, strict=True))
    def __getitem__(self, n): return Tensor([self.v[n]])
    def to(self, kind): return self
    def copy_(self, other): self.v[:] = other.v; return self
    def mul_(self, n): self.v[:] = [x * n for x in self.v]; return self
    def fill_(self, n): self.v[:] = [n] * len(self.v); return self
    def normal_(self, std=1): return self
    def numel(self): return len(self.v)
    def all(self): return all(self.v)
    def item(self): return self.v[0]
    def chunk(self, n):
        size = len(self.v) // n
        return [Tensor(self.v[i * size:(i + 1) * size]) for i in range(n)]
def arange(n, device=None): return Tensor(range(n))
def empty(n, dtype=None, device=None): return Tensor([0.0] * n)
def tensor(values, dtype=None, device=None): return Tensor(values)
"""
DISTRIBUTED = """
import json, os, socket, time
import torch
from torch import _TOLD
class ReduceOp: SUM, MAX = "sum", "max"
_at = {}
def is_nccl_available(): return False
class TCPStore:
    def __init__(self, address, port, world, is_master, timeout, wait_for_workers, master_listen_fd=None):
        self.port, self.address = port, address
        self.server = socket.socket(fileno=os.dup(master_listen_fd)) if is_master else None
        if self.server is not None:
            assert self.server.getsockname() == (address, port), self.server.getsockname()
def init_process_group(backend, store, rank, world_size, timeout):
    _at.update(rank=rank, world=world_size, timeout=timeout.total_seconds(), files={})
    if rank == 0:
        for _ in range(world_size - 1):
            link, _ = store.server.accept()
            link.settimeout(_at["timeout"])
            file = link.makefile("rwb")
            _at["files"][json.loads(file.readline())] = file
    else:
        link = socket.create_connection((store.address, store.port), timeout=_at["timeout"])
        _at["files"][0] = link.makefile("rwb")
        _say(0, rank)
def _say(rank, what):
    _at["files"][rank].write(json.dumps(what).encode() + b"\\n")
    _at["files"][rank].flush()
def _hear(rank):
    line = _at["files"][rank].readline()
    if not line: raise RuntimeError("Connection closed by peer")
    return json.loads(line)
def _together(mine, made):
    if _at["rank"]:
        _say(0, mine)
        return _hear(0)
    both = {0: mine, **{rank: _hear(rank) for rank in _at["files"]}}
    found = made([both[rank] for rank in sorted(both)])
    for rank in _at["files"]: _say(rank, found)
    return found
def get_rank(): return _at["rank"]
def get_world_size(): return _TOLD.get("world", _at["world"])
def barrier(): _together(0, lambda all_: 0)
def _spoil(values):
    if _TOLD.get("wrong") in (_at["rank"], "here"): values[len(values) // 2] = float(_TOLD.get("by", "nan"))
    if _TOLD.get("dies"): os.kill(os.getpid(), 9)
    if _TOLD.get("raises"): raise RuntimeError(_TOLD["raises"])
    if _TOLD.get("hangs"): time.sleep(600)
def all_reduce(data, op="sum"):
    if op == "sum": _spoil(data.v)
    data.v[:] = _together(data.v, lambda all_: [(max if op == "max" else sum)(row) for row in zip(*all_)])
def all_gather_into_tensor(whole, part):
    _spoil(part.v)
    whole.v[:] = _together(part.v, lambda all_: [value for one in all_ for value in one])
def destroy_process_group(): pass
"""


def standin_torch(folder: Path) -> Path:
    """Write the stand-in into a folder for PYTHONPATH."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "torch/distributed.py").write_text(DISTRIBUTED)
    return folder


H200 = Wiring(gpu="NVIDIA H200", links=18, switched=True, per_host=8, nics=8, nic_gb_per_s=50.0)


def member(host: str, number: int, **changes: Any) -> Member:
    """What a host with eight H200 and eight ports of 400 Gb/s says of itself."""
    library = Library(python="python3", torch="2.11.0", nccl="2.28.9", made_for="cuda 13.0", gpus=8)
    place = Place(interface="eth0", address=f"10.0.{number // 250}.{number % 250 + 1}", rate_gbps=100.0)
    base = Member(
        host=host, machine=f"boot-{host}", guests=(), library=library, wiring=H200, place=place, rdma=True,
        gpus_present=8, environment={"NCCL_DEBUG": "WARN"},
    )  # fmt: skip
    return structs.replace(base, **changes)


@dataclass
class Fabric:
    """In ansible's place: hosts whose collectives take the time that the slowest one of a group allows.

    `reaches`: GB/s of bus bandwidth of a host over the network, if not what all reach (380). `says`: what a host says
    of itself, if other. `outcomes`: what it answers instead of figures. `dies`: records in which it gives no answer.
    `spoil`: changes an answer. `factor`: of a record and its group.
    """

    reaches: Mapping[str, float] = field(default_factory=dict)
    says: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[MemberOutcome, str]] = field(default_factory=dict)
    dies: Mapping[str, str] = field(default_factory=dict)
    spoil: Callable[[str, Member], Member] = lambda host, found: found
    before: Callable[[PlaybookOrder, Stop], None] = lambda order, stop: None
    factor: Callable[[str, frozenset[str]], float] = lambda record, hosts: 1.0
    full: str | None = None  # the record whose answers cannot be written
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    tasks: list[Mapping[str, Task]] = field(default_factory=list)

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        """As `playbook.play`."""
        self.before(order, stop)
        if stop.asked:
            return Played(254, True, ())
        record = str(order.variables["hosttune_collective_record"])
        self.asked.append((record, order.hosts))
        jobs: Any = order.variables.get("hosttune_collective_jobs", {})
        tasks = {host: task for host in order.hosts if (task := convert(jobs.get(host, {}), CollectiveJob).task)}
        self.tasks.append(tasks)
        if self.full == record:
            return Played(2, False, ())
        dead = {host for host in order.hosts if self.dies.get(host) == record}
        for host in order.hosts:
            if host in dead:
                store(order, host, record, {"outcome": "died", "why": "the connection was lost"}, None)
                continue
            number = int(host.rpartition("-")[2])
            about = structs.replace(member(host, number), **self.says.get(host, {}))
            if host in tasks:
                about = self.spoil(host, self._answer(record, tasks[host], about, dead))
            store(order, host, record, {"outcome": "ok"}, about)
        return Played(0, False, ())

    def _answer(self, record: str, task: Task, about: Member, dead: set[str]) -> Member:
        host = task.hosts[task.index]
        known = structs.replace(about, group=task.group, library=None, wiring=None, place=None)
        lost = sorted(dead & set(task.hosts))
        if lost:
            return structs.replace(known, outcome="member-lost", why="gone", accused=tuple(lost))
        bad = [one for one in task.hosts if one in self.outcomes]
        if bad:
            outcome, why = self.outcomes[host] if host in self.outcomes else ("member-lost", bad[0])
            return structs.replace(known, outcome=outcome, why=why)
        ranks = len(task.hosts) * task.ranks
        slow = self.reaches if len(task.hosts) > 1 else {}
        rate = min(slow.get(one, 380.0) for one in task.hosts) * self.factor(record, frozenset(task.hosts))
        timings = [
            Timing(kind=kind, size_bytes=size, ranks=ranks, seconds=(seconds_of(kind, ranks, size, rate),) * task.runs)
            for size in task.sizes
            for kind in task.kinds
        ]
        return structs.replace(known, outcome="measured", ranks=ranks, timings=tuple(timings))


def seconds_of(kind: str, ranks: int, size: int, rate: float) -> float:
    """The time of an operation by nccl-tests' doc/PERFORMANCE.md, from its bus bandwidth in GB/s."""
    moved = size * (ranks - 1) / ranks * (2 if kind == "all-reduce" else 1)
    return moved / (rate * 1e9)


def store(order: PlaybookOrder, host: str, record: str, answer: Mapping[str, Any], document: Member | None) -> None:
    """Write a result file as the playbook does."""
    path = Path(answer_path(order.results, host, record))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"host": host, "phase": record, "run": order.variables["hosttune_run"], **answer}
    body = json.loads(document.to_json()) if document else {"schema": "hosttune.answer/v1"}
    path.write_text(json.dumps({**body, "fleet": head}))
