"""`python -m hosttune.bench.gpu_child`: GPU benchmarks with what a GPU library can do, as one JSON document.

A process of its own: the caller imports no GPU library, and a hang or crash here is its "unknown". Needs the standard
library and PyTorch, nothing else. It loads every GPU it is told to and changes no setting; who holds a GPU is the
caller's question. Environment variables of NCCL, PyTorch and CUDA act as they are set.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from hosttune.bench.collectives import collectives
from hosttune.bench.gpu_jobs import Device, collective_job, worker_jobs
from hosttune.bench.supervise import Job, Record, run_jobs
from hosttune.errors import CommandFailed
from hosttune.system import run_command

_QUERY = "pci.bus_id,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_LOADED = (("load-sm-clock", "MHz"), ("load-memory-clock", "MHz"), ("load-power", "W"), ("load-temperature", "°C"))
_WATCH_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """The whole life of the child: what was asked for, measured, printed."""
    options = _options(arguments)
    until = time.monotonic() + options.budget
    work = import_module(f"hosttune.bench.gpu_{options.library}").WORK
    started = time.time()
    document: dict[str, Any] = {"library": options.library, "level": options.level, "records": []}
    records: list[Record] = document["records"]
    for record in run_jobs([Job("devices", "all GPUs", (), {}, 60.0)], _worker(work), until=until):
        document.update(record) if "devices" in record else records.append(record)
    devices = _devices(document.get("devices", ()), options.gpus, json.loads(options.places))
    if devices:
        kinds = frozenset(work) | {"collectives"} if options.library == "torch" else frozenset(work)
        kinds = kinds if options.kinds == "all" else kinds & frozenset(options.kinds.split(","))
        jobs = tuple(worker_jobs(options.level, devices, kinds, options.seconds))
        records.extend(run_jobs(jobs, _worker(work), until=until, watch=_Watch()))
        if len(devices) > 1 and "collectives" in kinds:
            records.extend(collectives(collective_job(options.level, devices), until))
    document["seconds"] = round(time.time() - started, 1)
    document["sum"] = checksum(records)
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hosttune.bench.gpu_child")
    parser.add_argument("--library", choices=("torch", "cupy"), default="torch")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--gpus", default="all", help="PCI addresses, with commas")
    parser.add_argument("--kinds", default="all", help="kinds of measurement, with commas")
    parser.add_argument("--places", default="{}", help='JSON: {address: {"near": [node, [cpu…]], "far": …}}')
    parser.add_argument("--seconds", type=float, default=60.0, help="of burn-in (level 3)")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for everything")
    return parser.parse_args(arguments)


def checksum(records: Sequence[Record]) -> int:
    """What the reader of the document compares, so that a damaged figure is not taken for a measured one."""
    return zlib.crc32(json.dumps(records, sort_keys=True).encode())


def _worker(work: Mapping[str, Any]) -> Any:
    return lambda job: work[job.kind](dict(job.options))


def _devices(rows: Iterable[Mapping[str, Any]], wanted: str, places: Mapping[str, Any]) -> tuple[Device, ...]:
    """The devices to load. One whose PCI address the library does not tell is known by its UUID, else its index."""
    chosen = None if wanted == "all" else frozenset(wanted.lower().split(","))
    found = []
    for row in rows:
        name = row["address"] or row["uuid"] or f"gpu{row['index']}"
        if chosen is None or name.lower() in chosen or (row["uuid"] or "").lower() in chosen:
            place = places.get(name) or places.get(row["uuid"]) or {}
            near, far = (_place(place.get(key)) for key in ("near", "far"))
            found.append(Device(row["index"], place.get("name", name), row["memory_bytes"], near, far))
    return tuple(found)


def _place(value: Sequence[Any] | None) -> tuple[int, tuple[int, ...]] | None:
    return None if value is None else (int(value[0]), tuple(map(int, value[1])))


class _Watch:
    """Clocks, power and temperature of the devices that a job loads, about every second, as nvidia-smi tells them.

    The one value here that changes: when it looked last, and whether that tool answers at all.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, job: Job) -> Iterator[Record]:
        if time.monotonic() < self._next:
            return
        try:
            text = run_command(("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"), 10.0)
        except CommandFailed as error:
            self._next = float("inf")
            yield {"metrics": [name for name, _ in _LOADED], "subject": "all GPUs", "error": str(error)}
            return
        self._next = time.monotonic() + _WATCH_SECONDS
        yield from (record for record in loaded(text) if record["subject"] in job.subject.split(","))


def loaded(text: str) -> Iterator[Record]:
    """Records of a nvidia-smi query; a figure that is no number ("[N/A]") is left out."""
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
