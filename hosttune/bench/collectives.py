"""NCCL collectives over all GPUs of one host through torch.distributed, with one process per GPU, as NCCL is used.

Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md): all-reduce 2(n-1)/n × bytes / time; all-gather
(n-1)/n × bytes of the gathered buffer / time. All NCCL_* and TORCH_* environment variables keep their values.
"""

from __future__ import annotations

import json
import math
import os
import select
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from hosttune.bench.gpu_jobs import size_name
from hosttune.bench.supervise import Emit, Job, Record, end_worker, fork_worker, lost

_MOST_IN_A_RUN = 20  # each all-reduce makes sums n times larger: with 16 GPUs they stay below the FP32 maximum
_TIMEOUT_SECONDS = 60


def collectives(job: Job, until: float) -> Iterator[Record]:
    """Yield the records of one job: options `indices` of the GPUs, `sizes` in bytes, `runs`, `run_seconds`, `subject`.

    Each rank is a separate worker process. Records received before the time limit `until` are kept.
    """
    options = {**job.options, "subject": job.subject}
    with tempfile.TemporaryDirectory(prefix="hosttune-bench-") as folder:
        count = len(options["indices"])
        ranks = [
            fork_worker(lambda emit, rank=rank: _rank(rank, folder, options, emit))  # type: ignore[misc]
            for rank in range(count)
        ]
        deadline = min(until, time.monotonic() + job.seconds)
        buffers = {reader: b"" for _, reader in ranks}
        why: str | None = None
        while buffers and why is None:
            ready, _, _ = select.select(list(buffers), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                why = f"no answer within {job.seconds:g} s"
            for reader in ready:
                chunk = os.read(reader, 1 << 16)
                if not chunk:
                    del buffers[reader]
                    continue
                *whole, buffers[reader] = (buffers[reader] + chunk).split(b"\n")
                for line in whole:
                    message = json.loads(line)
                    if "broken" in message:
                        why = message["broken"]
                    else:
                        yield message
        for pid, reader in ranks:
            os.close(reader)
            ended = end_worker(pid)
            why = why or ended
        if why is not None:
            yield lost(job, why)


def _rank(rank: int, folder: str, options: dict[str, Any], emit: Emit) -> None:
    torch = import_module("torch")
    dist = import_module("torch.distributed")
    from datetime import timedelta

    indices = options["indices"]
    torch.cuda.set_device(indices[rank])
    store = dist.FileStore(f"{folder}/store", len(indices))
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=len(indices), timeout=timedelta(seconds=_TIMEOUT_SECONDS)
    )
    try:
        for size in options["sizes"]:
            for record in (_all_reduce(size, options), _all_gather(size, options)):
                if rank == 0:
                    emit({**record, "subject": options["subject"]})
    finally:
        dist.destroy_process_group()


def _all_reduce(size: int, options: dict[str, Any]) -> Record:
    torch, dist = import_module("torch"), import_module("torch.distributed")
    ranks = dist.get_world_size()
    data = torch.empty(size // 4, dtype=torch.float32, device="cuda").fill_(dist.get_rank() + 1)
    dist.all_reduce(data)
    expected = ranks * (ranks + 1) / 2
    if not bool((data == expected).all()):
        raise RuntimeError(f"an all-reduce of {size} bytes gave a wrong sum")
    factor = 2 * (ranks - 1) / ranks * size / 1e9
    values = _rates(lambda: data.normal_(std=1e-3), lambda: dist.all_reduce(data), factor, options)
    return {"metric": f"all-reduce-{size_name(size)}", "unit": "GB/s", "values": values, "ranks": ranks}


def _all_gather(size: int, options: dict[str, Any]) -> Record:
    torch, dist = import_module("torch"), import_module("torch.distributed")
    ranks = dist.get_world_size()
    part = torch.empty(size // 4 // ranks, dtype=torch.float32, device="cuda").fill_(dist.get_rank() + 1)
    whole = torch.empty(part.numel() * ranks, dtype=torch.float32, device="cuda")
    dist.all_gather_into_tensor(whole, part)
    for rank, piece in enumerate(whole.chunk(ranks)):
        if not bool((piece == rank + 1).all()):
            raise RuntimeError(f"an all-gather of {size} bytes gave wrong data")
    factor = (ranks - 1) / ranks * whole.numel() * 4 / 1e9
    values = _rates(lambda: part.normal_(), lambda: dist.all_gather_into_tensor(whole, part), factor, options)
    return {"metric": f"all-gather-{size_name(size)}", "unit": "GB/s", "values": values, "ranks": ranks}


def _rates(fill: Any, work: Any, amount: float, options: dict[str, Any]) -> list[float]:
    """Return the rate of each run, computed from its slowest rank. Every rank does the same number of operations."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def slowest(count: int) -> float:
        fill()
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        seconds = torch.tensor([begin.elapsed_time(end) / 1000], dtype=torch.float64, device="cuda")
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds.item())

    slowest(5)
    one = slowest(5) / 5
    count = min(_MOST_IN_A_RUN, max(1, math.ceil(options["run_seconds"] / one)))
    slowest(count)
    return [amount * count / slowest(count) for _ in range(options["runs"])]
