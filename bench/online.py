"""Guests one by one, no foresight: hosttune beside OpenStack Nova's fit, on the same streams in the same run.

Nova runs as a child in an environment of its own (`nova/`), once in spread and once in packing mode; hosttune plans
one guest at a time on a host document to which every placed guest is added. Both have the same CPUs and memory:
nothing is reserved. hosttune gets the cells of Nova's flavour (`numa: N`), and once more decides them itself
(`numa: auto`), which a flavour cannot ask for.
"""

from __future__ import annotations

import json
import operator
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from answers import answers
from peer import NOVA_PYTHON, Arrival, Nova, nova, nova_host
from rows import ROOT, Row
from streams import COARSE, FINE, MIB_PER_VCPU, Family, HostShape, StreamGuest, stream

import hosttune
from hosttune.model.values import parse_cpus

Json = dict[str, Any]
SHAPES = (HostShape(2, 48), HostShape(4, 48), HostShape(8, 24))
FAMILIES = ((COARSE, 400), (FINE, 100))  # and how many streams of each
SPARE_MEMORY = 1.25  # a node has more memory than its CPUs' guests ask for: memory decides nothing here
LLC_EXCESS = 1.02
PACKING = "Nova, packing"
# Deciding the cells as well must be ahead. Where the flavour decides them, little is left: on nodes and halves, packing
# is as good as looking ahead with the true odds of what comes, and there hosttune must be level. On finer guests it
# is bound by caches alone: they come before what stays placeable, and the price of that is what the row shows.
AHEAD, LEVEL, CACHES = ">", "≥", "caches"
COMPARE = {AHEAD: operator.gt, LEVEL: operator.ge}
SAME_CELLS = {COARSE: LEVEL, FINE: CACHES}
OWN_CELLS = {COARSE: AHEAD, FINE: AHEAD}

Run = tuple[Sequence[StreamGuest], Sequence[Arrival]]
Place = Callable[[Json, Sequence[StreamGuest]], list[Arrival]]


@dataclass(frozen=True)
class Way:
    """A way of placing a stream on an empty host.

    `fewest`: the least last-level caches that it could give a guest. `bound`: how it must compare with Nova's packing
    in each family; none for Nova itself.
    """

    name: str
    place: Place
    fewest: Callable[[HostShape, StreamGuest], int]
    bound: Mapping[Family, str] = field(default_factory=dict)


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


def place_by_nova(peer: Nova, mode: str, host: Json, guests: Sequence[StreamGuest]) -> list[Arrival]:
    """A stream by Nova, in `spread` or `pack` mode."""
    wanted = [{"vcpus": g.vcpus, "cells": g.cells, "memory_mib": g.memory_mib} for g in guests]
    return peer.place(mode, nova_host(host), wanted)


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
    """A row each way."""
    packing = next(found for way, found in zip(ways, tallies, strict=True) if way.name == PACKING)
    rows = []
    for way, found in zip(ways, tallies, strict=True):
        what = f"guests one by one on {shape.name} CPUs, {family.name}: {way.name}"
        figure = f"{found.share}, caches {found.excess:.2f}×, {found.milliseconds:.1f} ms"
        bound = way.bound.get(family)
        shares = f"{bound} {packing.share}, " if bound in COMPARE else ""
        told = f"{shares}caches ≤ {LLC_EXCESS}×" if bound else ""
        rows.append(Row(what, figure, told, bound is None or _holds(bound, found, packing)))
    return rows


def _holds(bound: str, found: Tally, packing: Tally) -> bool:
    ours, theirs = (found.placed, found.complete), (packing.placed, packing.complete)
    level = bound not in COMPARE or all(map(COMPARE[bound], ours, theirs))
    return level and found.excess <= LLC_EXCESS


def online(most: int | None = None) -> list[Row]:
    """Guests / streams placed, last-level caches as a multiple of the least, time of a decision: Nova's and ours.

    `most` bounds the number of streams of each kind, for a quick look.
    """
    if not NOVA_PYTHON.exists():
        return [Row("guests one by one, beside Nova", f"not measured: no {NOVA_PYTHON.relative_to(ROOT)}", "", False)]
    rows = []
    with nova() as peer:
        ways = (
            Way("Nova, spread", partial(place_by_nova, peer, "spread"), fewest_caches),
            Way(PACKING, partial(place_by_nova, peer, "pack"), fewest_caches),
            Way("hosttune, same cells", partial(place, None), fewest_caches, SAME_CELLS),
            Way("hosttune, `numa: auto`", partial(place, "auto"), fewest_uncut, OWN_CELLS),
        )
        for family, count in FAMILIES:
            for shape in SHAPES:
                rows += rows_of(ways, shape, family, measure(ways, shape, family, min(count, most or count)))
        rows += answers(peer)
    return rows


if __name__ == "__main__":
    for row in online(*map(int, sys.argv[1:])):
        print(f"| {row.what} | {row.figure}{'' if row.holds else ' **missed**'} | {row.bound} |")
