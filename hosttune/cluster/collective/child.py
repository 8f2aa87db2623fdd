"""`python -m hosttune.cluster.collective.child`: this host's ranks of a collective over several hosts, in PyTorch.

A separate process: the caller imports no GPU library, and a hang or crash here becomes an outcome there. It needs
only the standard library and PyTorch. The task is JSON on standard input, each answer a line of JSON on standard
output; what libraries print (NCCL_DEBUG) goes to standard error. Each rank is a process of its own that ends if its
parent dies.

Bus bandwidth is made of these times by the caller, as nccl-tests defines it (doc/PERFORMANCE.md); the size of an
all-gather is that of the gathered buffer. Every variable of the environment keeps its effect; for gloo, which would ask
for the address of the host's name, GLOO_SOCKET_IFNAME is set to the host's interface where it is not set.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from hosttune.bench.supervise import Emit, end_worker, fork_worker

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MOST_IN_A_RUN = 20  # each all-reduce makes sums n times larger
_WARM = 3
_PERIOD, _WEIGHTS = 13, 8  # sums stay exact in FP32 (below 2^24) up to 160,000 ranks
# What PyTorch says of a collective that did not work, rather than of this process alone.
_FAILED = re.compile(
    r"nccl|rccl|gloo|connect|timed? ?out|timeout|socket|store|broken pipe|reset by peer", re.IGNORECASE
)
_OWN = re.compile(r"out of memory|invalid device|no CUDA|not compiled|not available", re.IGNORECASE)


def main(arguments: Sequence[str]) -> int:
    """Run the child. `--look`: only say what PyTorch has. Returns the exit code."""
    if list(arguments) == ["--look"]:
        json.dump(look(), sys.stdout)
        return 0
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    task = json.load(sys.stdin)
    if os.getppid() != task["parent"]:
        return 1
    deadline = time.monotonic() + task["seconds"]
    ranks = [fork_worker(_work(local, task, deadline)) for local in range(task["ranks"])]
    # Print the lines of all ranks until all have ended, one has failed, or the time is over. Then end them.
    running = {reader: pid for pid, reader in ranks}
    buffers = dict.fromkeys(running, b"")
    failure: Mapping[str, Any] | None = None
    while running and failure is None:
        ready, _, _ = select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            failure = {"failed": "it did not end in its time", "late": True}
        for reader in ready:
            chunk = os.read(reader, 1 << 16)
            *whole, buffers[reader] = (buffers[reader] + chunk).split(b"\n")
            messages = [json.loads(line) for line in whole]
            broken = next((message["broken"] for message in messages if "broken" in message), None)
            for message in messages:
                if "broken" not in message:
                    _say(message)
            if broken is not None:  # by a rank's exception
                failure = {"failed": broken, "collective": is_of_all(broken)}
            elif not chunk and (why := end_worker(running.pop(reader))) is not None:
                failure = {"failed": why}
    if failure is not None:
        _say(failure)
    for pid in running.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        end_worker(pid)
    return 0


def look() -> dict[str, Any]:
    """Return versions and GPUs as PyTorch sees them."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    hip = getattr(torch.version, "hip", None)
    return {
        "python": sys.executable,
        "torch": str(torch.__version__),
        "nccl": _nccl(torch) if count and dist.is_nccl_available() else None,
        "made_for": f"hip {hip}" if hip else f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
        "gpus": count,
        "names": [torch.cuda.get_device_name(index) for index in range(count)],
    }


def _nccl(torch: Any) -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))


def _work(local: int, task: Mapping[str, Any], deadline: float) -> Callable[[Emit], None]:
    return lambda emit: _rank(local, task, deadline, emit)


def is_of_all(words: str) -> bool:
    """Return whether an error is of the collective, which all of its hosts share, and not of one process."""
    return bool(_FAILED.search(words)) and not _OWN.search(words)


def _say(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


# --- a rank ------------------------------------------------------------------------------------------------------


def _rank(local: int, task: Mapping[str, Any], deadline: float, emit: Emit) -> None:
    torch, dist = import_module("torch"), import_module("torch.distributed")
    gpu = task["device"] == "gpu"
    if not gpu and task.get("interface"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", task["interface"])
    if gpu:
        torch.cuda.set_device(local)
    rank, world = task["index"] * task["ranks"] + local, len(task["hosts"]) * task["ranks"]
    limit = timedelta(seconds=max(1.0, deadline - time.monotonic()))
    # The first host's socket is bound to one address. Without it, the store would listen on all.
    listening = {"master_listen_fd": task["listen_fd"]} if rank == 0 else {}
    store = dist.TCPStore(
        task["address"], task["port"], world, is_master=rank == 0, timeout=limit, wait_for_workers=False, **listening
    )
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=world, timeout=limit)
    if local == 0:
        emit({"began": rank, "ranks": dist.get_world_size(), "torch": str(torch.__version__),
              "nccl": _nccl(torch) if gpu else None})  # fmt: skip
    try:
        for size in task["sizes"]:
            for kind in task["kinds"]:
                collective = _KINDS[kind](torch, dist, size, gpu)
                _measure(collective, kind, task, deadline, local, emit)
    finally:
        with contextlib.suppress(Exception):  # the figures are there; what fails now is not of them
            dist.destroy_process_group()
    if local == 0:
        emit({"done": rank})


class _Collective:
    """One collective of one size: `fill` and `right` for checks of values, `noise` before timing, `run` to do it."""

    def __init__(self, torch: Any, dist: Any, gpu: bool) -> None:
        self.torch, self.dist, self.place = torch, dist, {"device": "cuda" if gpu else "cpu"}
        self.gpu, self.rank, self.world = gpu, dist.get_rank(), dist.get_world_size()

    def pattern(self, count: int) -> Any:
        """1 to 13, again and again: no two neighbours are equal, so that shifted data are seen."""
        return (self.torch.arange(count, **self.place) % _PERIOD + 1).to(self.torch.float32)


class _AllReduce(_Collective):
    def __init__(self, torch: Any, dist: Any, size: int, gpu: bool) -> None:
        super().__init__(torch, dist, gpu)
        self.data = self.pattern(max(1, size // 4))
        self.size = self.data.numel() * 4

    def fill(self) -> None:
        self.data.copy_(self.pattern(self.data.numel())).mul_(self.rank % _WEIGHTS + 1)

    def wrong(self) -> list[int] | None:
        """Return None if every value is right, else the ranks whose part is wrong; [] where a sum cannot tell."""
        total = sum(rank % _WEIGHTS + 1 for rank in range(self.world))
        return None if bool((self.data == self.pattern(self.data.numel()) * total).all()) else []

    def noise(self) -> None:
        self.data.normal_(std=1e-3)

    def run(self) -> None:
        self.dist.all_reduce(self.data)


class _AllGather(_Collective):
    def __init__(self, torch: Any, dist: Any, size: int, gpu: bool) -> None:
        super().__init__(torch, dist, gpu)
        self.part = self.pattern(max(1, size // 4 // self.world))
        self.whole = torch.empty(self.part.numel() * self.world, dtype=torch.float32, **self.place)
        self.size = self.whole.numel() * 4

    def fill(self) -> None:
        self.whole.fill_(-1)
        self.part.copy_(self.pattern(self.part.numel())).mul_(self.rank % _WEIGHTS + 1)

    def wrong(self) -> list[int] | None:
        wanted = self.pattern(self.part.numel())
        pieces = self.whole.chunk(self.world)
        bad = [n for n, piece in enumerate(pieces) if not bool((piece == wanted * (n % _WEIGHTS + 1)).all())]
        return bad or None

    def noise(self) -> None:
        self.part.normal_()

    def run(self) -> None:
        self.dist.all_gather_into_tensor(self.whole, self.part)


_KINDS: Mapping[str, Callable[[Any, Any, int, bool], Any]] = {"all-reduce": _AllReduce, "all-gather": _AllGather}


def _measure(collective: Any, kind: str, task: Mapping[str, Any], deadline: float, local: int, emit: Emit) -> None:
    """Measure one collective, with a check of all values before and after."""
    _check(collective, kind, emit)
    _slowest(collective, 1)
    # The longest time of an operation and the least time left of all ranks: all must decide alike.
    both = collective.torch.tensor(
        [_slowest(collective, _WARM) / _WARM, time.monotonic() - deadline],
        dtype=collective.torch.float64,
        **collective.place,
    )
    collective.dist.all_reduce(both, op=collective.dist.ReduceOp.MAX)
    first, left = (max(float(both[0].item()), 1e-9), -float(both[1].item()))
    count = min(_MOST_IN_A_RUN, max(1, math.ceil(task["run_seconds"] / first)))
    if first * (count * (task["runs"] + 1) + 3) > left:
        if local == 0:
            emit(
                {
                    "left_out": kind,
                    "size": collective.size,
                    "why": f"{first:.3g} s each would not fit into the {left:.0f} s left",
                }
            )
        return
    seconds = [_slowest(collective, count) / count for _ in range(task["runs"])]
    _check(collective, kind, emit)
    if local == 0:
        emit({"kind": kind, "size": collective.size, "ranks": collective.world, "seconds": seconds})


def _check(collective: Any, kind: str, emit: Emit) -> None:
    collective.fill()
    collective.run()
    wrong = collective.wrong()
    if wrong is not None:
        emit({"wrong": kind, "size": collective.size, "seen_by": collective.rank, "of": wrong})


def _slowest(collective: Any, count: int) -> float:
    """Return the seconds that the slowest rank takes for `count` operations, begun together."""
    collective.noise()
    collective.dist.barrier()
    if collective.gpu:
        begin, end = (collective.torch.cuda.Event(enable_timing=True) for _ in range(2))
        collective.torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            collective.run()
        end.record()
        end.synchronize()
        taken = begin.elapsed_time(end) / 1000
    else:
        began = time.perf_counter()
        for _ in range(count):
            collective.run()
        taken = time.perf_counter() - began
    most = collective.torch.tensor([taken], dtype=collective.torch.float64, **collective.place)
    collective.dist.all_reduce(most, op=collective.dist.ReduceOp.MAX)
    return float(most.item())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
