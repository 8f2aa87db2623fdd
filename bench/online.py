"""Guests one by one, no foresight: hosttune beside OpenStack Nova's fit, on the same streams in the same run.

Nova runs as a child in an environment of its own (`nova/`), once in spread and once in packing mode; hosttune plans
one guest at a time on a host document to which every placed guest is added. Both have the same CPUs and memory:
nothing is reserved. hosttune gets the cells of Nova's flavour (`numa: N`), and once more decides them itself
(`numa: auto`), which a flavour cannot ask for.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from rows import ROOT, Row
from streams import COARSE, FINE, MIB_PER_VCPU, Family, HostShape, StreamGuest, stream

import hosttune
from hosttune.model.values import parse_cpus

Json = dict[str, Any]
NOVA_PYTHON = ROOT / ".bench/nova/bin/python"
NOVA_FIT = ROOT / "bench/nova/fit.py"
SHAPES = (HostShape(2, 48), HostShape(4, 48), HostShape(8, 24))
FAMILIES = ((COARSE, 400), (FINE, 100))  # and how many streams of each
SPARE_MEMORY = 1.25  # a node has more memory than its CPUs' guests ask for: memory decides nothing here
LLC_EXCESS = 1.02


@dataclass(frozen=True)
class Arrival:
    """What became of one guest: its host CPUs in vCPU order (None: refused), and how long that took to decide."""

    cpus: tuple[int, ...] | None
    seconds: float


Run = tuple[Sequence[StreamGuest], Sequence[Arrival]]
Place = Callable[[Json, Sequence[StreamGuest]], list[Arrival]]


@dataclass(frozen=True)
class Way:
    """A way of placing a stream on an empty host. `fewest`: the least last-level caches that it could give a guest."""

    name: str
    place: Place
    fewest: Callable[[HostShape, StreamGuest], int]


@dataclass(frozen=True)
class Tally:
    """What one way made of a family's streams."""

    guests: int
    placed: int
    streams: int
    complete: int
    caches: int  # last-level caches that the placed guests span
    fewest: int  # what they would span at the least, each alone on the host
    seconds: tuple[float, ...]

    @property
    def excess(self) -> float:
        """Caches spanned, as a multiple of the least."""
        return self.caches / self.fewest if self.fewest else float("nan")

    @property
    def share(self) -> str:
        """Guests placed, and streams of which every guest was."""
        return f"{100 * self.placed / self.guests:.1f} / {100 * self.complete / self.streams:.1f} %"

    @property
    def milliseconds(self) -> float:
        """Median time of a decision."""
        return 1000 * statistics.median(self.seconds)


def document(shape: HostShape) -> Json:
    """The empty host as hosttune reads it: siblings n and n + cores, as Linux numbers them."""
    from planhosts import Shape, build_host

    memory = int(shape.cpus * MIB_PER_VCPU * SPARE_MEMORY) // 1024
    cores, llc_cores = shape.cpus // 2, shape.llc_cpus // 2
    return build_host(Shape(nodes=shape.nodes, cores_per_node=cores, llc_cores=llc_cores, memory_gib=memory))


def nova_host(host: Json) -> Json:
    """The same host for Nova's child."""
    nodes = []
    for node in host["numa_nodes"]:
        cores: dict[int, list[int]] = {}
        for cpu in host["cpus"]:
            if cpu["numa_node"] == node["id"]:
                cores.setdefault(cpu["core"], []).append(cpu["id"])
        nodes.append({"id": node["id"], "cores": list(cores.values()), "memory_mib": node["memory_bytes"] >> 20})
    return {"nodes": nodes}


class Nova:
    """Nova's child: streams in, arrivals out."""

    def __init__(self, to: IO[str], of: IO[str]) -> None:
        self._to, self._of = to, of
        self._read()

    def _read(self) -> Any:
        return json.loads(self._of.readline())

    def place(self, mode: str, host: Json, guests: Sequence[StreamGuest]) -> list[Arrival]:
        """A stream in `spread` or `pack` mode."""
        wanted = [{"vcpus": g.vcpus, "cells": g.cells, "memory_mib": g.memory_mib} for g in guests]
        self._to.write(json.dumps({"mode": mode, "host": nova_host(host), "guests": wanted}) + "\n")
        self._to.flush()
        return [Arrival(row["cpus"] and tuple(row["cpus"]), row["seconds"]) for row in self._read()]


@contextmanager
def nova() -> Iterator[Nova]:
    """Nova's child for as long as it is needed."""
    command = [str(NOVA_PYTHON), str(NOVA_FIT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        yield Nova(child.stdin, child.stdout)
        child.stdin.close()


def place(numa: str | None, host: Json, guests: Sequence[StreamGuest]) -> list[Arrival]:
    """A stream by hosttune: each guest planned on the host with those that were placed before. Timed is the plan."""
    there: list[Json] = []
    arrivals = []
    for i, guest in enumerate(guests):
        now = hosttune.Host.from_json(json.dumps({**host, "guests": there}))
        intent = hosttune.Intent.from_json(json.dumps(intent_of(f"g{i}", guest, numa)))
        start = time.perf_counter()
        plan = hosttune.plan(now, intent)
        seconds = time.perf_counter() - start
        if not plan.guests:
            arrivals.append(Arrival(None, seconds))
            continue
        planned = json.loads(plan.to_json())["guests"][0]
        there.append(running(planned))
        cpus = tuple(cpu for pin in planned["vcpu_pins"] for cpu in parse_cpus(pin["cpus"]))
        arrivals.append(Arrival(cpus, seconds))
    return arrivals


def intent_of(name: str, guest: StreamGuest, numa: str | None) -> Json:
    """One guest by itself; nothing is reserved, so that both planners have the same CPUs."""
    size = {"vcpus": guest.vcpus, "memory": f"{guest.memory_mib}MiB", "numa": numa or guest.cells}
    reserve = {"cores_per_node": 0, "memory_per_node": 0}
    wanted = {"name": name, **size, "smt": "cores", "hugepages": "none"}
    return {"version": 1, "profile": "none", "reserve": reserve, "guests": [wanted]}


def running(planned: Mapping[str, Any]) -> Json:
    """A planned guest as the host document shows it once it runs."""
    memory = sum(cell["memory_bytes"] for cell in planned["cells"])
    kept = {key: planned[key] for key in ("name", "vcpu_pins", "emulator_cpus")}
    return {**kept, "state": "running", "memory_bytes": memory}


def fewest_caches(shape: HostShape, guest: StreamGuest) -> int:
    """The least last-level caches of a guest in the cells that it asks for."""
    return guest.cells * -(-guest.vcpus // guest.cells // shape.llc_cpus)


def fewest_uncut(shape: HostShape, guest: StreamGuest) -> int:
    """The least last-level caches of a guest in whatever cells."""
    nodes, rest = divmod(guest.vcpus, shape.cpus)
    return nodes * -(-shape.cpus // shape.llc_cpus) - (-rest // shape.llc_cpus)


def tally(way: Way, shape: HostShape, host: Json, runs: Iterable[Run]) -> Tally:
    """Count what was placed, and check it: no CPU twice, as many as asked."""
    cache = {cpu["id"]: cpu["llc"] for cpu in host["cpus"]}
    guests = placed = streams = complete = caches = fewest = 0
    seconds: list[float] = []
    for wanted, arrivals in runs:
        taken = [cpu for arrival in arrivals for cpu in arrival.cpus or ()]
        assert len(set(taken)) == len(taken), f"{way.name}: a CPU was given to two guests"
        streams += 1
        guests += len(wanted)
        complete += all(arrival.cpus for arrival in arrivals)
        for guest, arrival in zip(wanted, arrivals, strict=True):
            seconds.append(arrival.seconds)
            if arrival.cpus:
                assert len(arrival.cpus) == guest.vcpus
                placed += 1
                caches += len({cache[cpu] for cpu in arrival.cpus})
                fewest += way.fewest(shape, guest)
    return Tally(guests, placed, streams, complete, caches, fewest, tuple(seconds))


def measure(ways: Sequence[Way], shape: HostShape, family: Family, count: int) -> list[Tally]:
    """A family's streams on a host, each placed in all ways before the next one."""
    host = document(shape)
    runs: list[list[Run]] = [[] for _ in ways]
    for seed in range(count):
        guests = stream(shape, family, seed)
        for way, run in zip(ways, runs, strict=True):
            run.append((guests, way.place(host, guests)))
    return [tally(way, shape, host, run) for way, run in zip(ways, runs, strict=True)]


def rows_of(ways: Sequence[Way], shape: HostShape, family: Family, tallies: Sequence[Tally]) -> list[Row]:
    """A row each way; hosttune's (the last two) are bound by Nova's packing mode, the one before."""
    packing = tallies[1]
    rows = []
    for i, (way, found) in enumerate(zip(ways, tallies, strict=True)):
        figure = f"{found.share}, caches {found.excess:.2f}×, {found.milliseconds:.1f} ms"
        ahead = found.placed > packing.placed and found.complete > packing.complete
        holds = i < 2 or (ahead and found.excess <= LLC_EXCESS)
        bound = "" if i < 2 else f"> {packing.share}, ≤ {LLC_EXCESS}×"
        rows.append(Row(f"guests one by one on {shape.name} CPUs, {family.name}: {way.name}", figure, bound, holds))
    return rows


def online(most: int | None = None) -> list[Row]:
    """Guests / streams placed, last-level caches as a multiple of the least, time of a decision: Nova's and ours.

    `most` bounds the number of streams of each kind, for a quick look.
    """
    if not NOVA_PYTHON.exists():
        return [Row("guests one by one, beside Nova", f"not measured: no {NOVA_PYTHON.relative_to(ROOT)}", "", False)]
    rows = []
    with nova() as peer:
        ways = (
            Way("Nova, spread", partial(peer.place, "spread"), fewest_caches),
            Way("Nova, packing", partial(peer.place, "pack"), fewest_caches),
            Way("hosttune, same cells", partial(place, None), fewest_caches),
            Way("hosttune, `numa: auto`", partial(place, "auto"), fewest_uncut),
        )
        for family, count in FAMILIES:
            for shape in SHAPES:
                rows += rows_of(ways, shape, family, measure(ways, shape, family, min(count, most or count)))
    return rows


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests")]
    for row in online(*map(int, sys.argv[1:])):
        print(f"| {row.what} | {row.figure}{'' if row.holds else ' **missed**'} | {row.bound} |")
