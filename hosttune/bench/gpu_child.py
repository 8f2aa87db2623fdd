"""`python -m hosttune.bench.gpu_child`: run GPU benchmarks with a GPU library and print one JSON document.

This is a separate process: the caller imports no GPU library, and a hang or crash here becomes "unknown" there. It
needs only the standard library and PyTorch. It loads every GPU that it is given and changes no setting; the caller must
check that no GPU is in use. Environment variables of NCCL, PyTorch and CUDA keep their effect.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from hosttune.bench.gpu_jobs import BETWEEN, GIVES, LoadableGpu, collective_job, size_name, worker_jobs
from hosttune.bench.supervise import Emit, Measurement, Record, end_worker, fork_worker, lost, run_jobs
from hosttune.errors import CommandFailed
from hosttune.machine.live import run_command

# --- one rank a process, for collectives ---------------------------------------------------------------------

# NCCL collectives over all GPUs of one host through torch.distributed, with one process per GPU, as NCCL is used.
#
# Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md): all-reduce 2(n-1)/n × bytes / time; all-gather (n-1)/n
# × bytes of the gathered buffer / time. All NCCL_* and TORCH_* environment variables keep their values.


_MOST_IN_A_RUN = 20  # each all-reduce makes sums n times larger: with 16 GPUs they stay below the FP32 maximum
_TIMEOUT_SECONDS = 60


def collectives(job: Measurement, until: float) -> Iterator[Record]:
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


# --- the worker ----------------------------------------------------------------------------------------------


_QUERY = "pci.bus_id,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_LOADED = (("load-sm-clock", "MHz"), ("load-memory-clock", "MHz"), ("load-power", "W"), ("load-temperature", "°C"))
_WATCH_SECONDS = 1.0
_UNASKED = "which devices the library has is not known: it could not be asked"


def main(arguments: Sequence[str]) -> int:
    """Run the child: parse the arguments, measure, and print the document. Returns the exit code."""
    options = _options(arguments)
    until = time.monotonic() + options.budget
    work = import_module(f"hosttune.bench.gpu_{options.library}").WORK
    started = time.time()
    document: dict[str, Any] = {"library": options.library, "level": options.level, "records": []}
    records: list[Record] = document["records"]
    for record in run_jobs([Measurement("devices", "all GPUs", (), {}, 60.0)], _worker(work), until=until):
        document.update(record) if "devices" in record else records.append(record)
    kinds = frozenset(work) | {"collectives"} if options.library == "torch" else frozenset(work)
    kinds = kinds if options.kinds == "all" else kinds & frozenset(options.kinds.split(","))
    devices, missing = _devices_to_load(document, options, kinds)
    records.extend(missing)
    if devices:
        jobs = tuple(
            job
            for job in worker_jobs(options.level, devices, kinds, options.seconds)
            if not (bool(job.metrics) and frozenset(job.metrics) <= frozenset(options.without.split(",")))
        )
        watch = _Watch(options.watch) if options.watch else lambda job: ()
        records.extend(run_jobs(jobs, _worker(work), until=until, watch=watch))
        if len(devices) > 1 and "collectives" in kinds:
            records.extend(collectives(collective_job(options.level, devices), until))
    document["seconds"] = round(time.time() - started, 1)
    document["sum"] = checksum(records)
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hosttune.bench.gpu_child")
    parser.add_argument("--library", choices=("torch", "hpu"), default="torch")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--gpus", default="all", help="PCI addresses, with commas")
    parser.add_argument("--kinds", default="all", help="kinds of measurement, with commas")
    parser.add_argument("--places", default="{}", help='JSON: {address: {"near": [node, [cpu…]], "far": …}}')
    parser.add_argument("--alone", help="name of the only device that the environment shows")
    parser.add_argument("--multiprocessors", type=int, help="how many that device must have")
    parser.add_argument("--without", default="", help="metrics that are not to be taken, with commas")
    parser.add_argument("--watch", default="", help="the tool that tells clocks and power under load (`Bench.watch`)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of burn-in (level 3)")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for everything")
    return parser.parse_args(arguments)


def checksum(records: Sequence[Record]) -> int:
    """Return the CRC-32 of the records. The parser of the document checks it to detect damaged figures."""
    return zlib.crc32(json.dumps(records, sort_keys=True).encode())


def _worker(work: Mapping[str, Any]) -> Any:
    return lambda job: work[job.kind](dict(job.options))


def _devices_to_load(
    document: Mapping[str, Any], options: argparse.Namespace, kinds: frozenset[str]
) -> tuple[tuple[LoadableGpu, ...], list[Record]]:
    """Return (the devices to load, an error record for each requested device that was not found).

    A device that cannot be identified is never guessed.
    """
    rows = tuple(document.get("devices", ()))
    places = json.loads(options.places)
    metrics = [metric for kind in sorted(kinds & GIVES.keys() - BETWEEN) for metric in GIVES[kind]]
    if options.alone is not None:
        why = _not_alone(rows, options) if "devices" in document else _UNASKED
        devices_found = () if why else (_device(rows[0], options.alone, places.get(options.gpus) or {}, options.gpus),)
        return devices_found, [{"error": why, "metrics": metrics, "subject": options.alone}] if why else []
    devices = _devices(rows, options.gpus, places)
    wanted = [] if options.gpus == "all" else options.gpus.split(",")
    names = dict.fromkeys(str((places.get(name) or {}).get("name", name)) for name in wanted)
    loaded = {device.address.lower() for device in devices}
    return devices, [
        {"error": _why_missing(name, rows, document), "metrics": metrics, "subject": name}
        for name in names
        if name.lower() not in loaded
    ]


def _devices(rows: Sequence[Mapping[str, Any]], wanted: str, places: Mapping[str, Any]) -> tuple[LoadableGpu, ...]:
    """Return the devices to load. If the library does not report a device's PCI address, its UUID or index is used.

    Several devices at one address are parts of one GPU, and none of them is the whole GPU: they are left out.
    """
    chosen = None if wanted == "all" else frozenset(wanted.lower().split(","))
    at = Counter(row["address"] for row in rows if row["address"])
    devices = []
    for row in rows:
        name = row["address"] or row["uuid"] or f"gpu{row['index']}"
        if at[row["address"]] > 1:
            continue
        if chosen is None or name.lower() in chosen or (row["uuid"] or "").lower() in chosen:
            place = places.get(name) or places.get(row["uuid"]) or {}
            devices.append(_device(row, place.get("name", name), place))
    return tuple(devices)


def _device(row: Mapping[str, Any], name: str, place: Mapping[str, Any], link: str | None = None) -> LoadableGpu:
    near, far = (_place(place.get(key)) for key in ("near", "far"))
    return LoadableGpu(row["index"], name, row["memory_bytes"], near, far, link)


def _why_missing(name: str, rows: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> str:
    """Return the reason why a requested GPU is not among the library's devices."""
    library = ", ".join(f"{key} {value}" for key, value in (document.get("versions") or {}).items() if value)
    if "devices" not in document:
        return _UNASKED
    same = sum(row["address"] == name for row in rows)
    if same > 1:
        return f"{library} shows {same} devices at this address: the GPU is cut into partitions, none of which is it"
    if any(row["address"] is None for row in rows):
        return f"{library} does not report the PCI addresses of its devices: cannot tell which one this is"
    if any(str(row["address"]).rpartition(".")[0] == name.rpartition(".")[0] for row in rows):
        return f"{library} reports no function numbers: cannot tell whether its device in this slot is this GPU"
    return (
        f"{library or document.get('library')} shows no device at this address: is it built for this maker's GPUs, does"
        " a variable (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES) hide it?"
    )


def _not_alone(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> str | None:
    """Return why the only visible device is not the requested one; None if it is.

    The environment must make exactly one device visible to the library.
    """
    if len(rows) != 1:
        return f"the library shows {len(rows)} devices where its environment should show this one alone"
    (row,) = rows
    if row["address"] is not None and row["address"] != options.gpus:
        return f"the library shows the device at {row['address']} where this one is at {options.gpus}"
    count = row.get("multiprocessors")
    if options.multiprocessors is not None and count != options.multiprocessors:
        return (
            f"its device has {count or 'unknown'} multiprocessors, its profile {options.multiprocessors}: it is"
            " cut into several compute instances, or is another"
        )
    return None


def _place(value: Sequence[Any] | None) -> tuple[int, tuple[int, ...]] | None:
    return None if value is None else (int(value[0]), tuple(map(int, value[1])))


class _Watch:
    """Reads clocks, power and temperature of the devices that a job loads, about every second, with nvidia-smi.

    This is the only object with state in this module: the time of the next reading, which is never if the tool failed.
    """

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._next = 0.0

    def __call__(self, job: Measurement) -> Iterator[Record]:
        if time.monotonic() < self._next:
            return
        try:
            text = run_command((self._tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"), 10.0)
        except CommandFailed as error:
            self._next = float("inf")
            yield {"metrics": [name for name, _ in _LOADED], "subject": "all GPUs", "error": str(error)}
            return
        self._next = time.monotonic() + _WATCH_SECONDS
        yield from (record for record in loaded(text) if record["subject"] in job.subject.split(","))


def loaded(text: str) -> Iterator[Record]:
    """Yield the records in the output of a nvidia-smi query. Values that are not numbers ("[N/A]") are left out."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 1 + len(_LOADED):
            continue
        domain, _, rest = cells[0].lower().partition(":")
        subject = f"{domain[-4:]}:{rest}"
        for (metric, unit), cell in zip(_LOADED, cells[1:], strict=True):
            try:
                yield {"metric": metric, "subject": subject, "unit": unit, "values": [float(cell)]}
            except ValueError:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
