"""The optimum of a tiny batch by trying everything: what proves the CP-SAT oracle. Shares with it the facts alone.

`best_again` is that of guests of which some have had places: the fewest moves come before the objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from operator import add

from batch_facts import Ask, CellKind, Class, Cut, Room

Score = tuple[int, int, Fraction]


@dataclass(frozen=True)
class Placement:
    """One way to place one guest: its cells with their nodes, its devices, and what it costs."""

    cells: tuple[tuple[CellKind, int], ...]
    page: int
    devices: Counter[Class]
    level: int
    cost: Fraction


def best(room: Room, asks: list[Ask]) -> Score:
    """(guests placed, Σ levels, objective) of the best of all joint placements."""
    ways = [list(placements(room, ask)) for ask in asks]
    found: list[Score] = [(0, 0, Fraction(0))]
    _extend(room, asks, ways, [], found)
    placed, level, cost = min((-n, level, cost) for n, level, cost in found)
    return -placed, level, cost


@dataclass(frozen=True)
class Had:
    """What a guest has had: devices of each class, and vCPUs on each node."""

    devices: Counter[Class]
    vcpus: Counter[int]


Again = tuple[int, int, int, int, int, Fraction]


def best_again(room: Room, asks: list[Ask], had: Mapping[str, Had]) -> Again:
    """(guests left out, devices moved, Σ levels, cells on another node, vCPUs moved, objective) of the best.

    Devices of a class, and cores of a node, are alike: a guest keeps as many of its own as it has there again. How many
    cells, and that they are where its GPUs are, is part of what `numa: auto` asks for: it comes before moves of cells.
    """
    ways = [[(p, _again(p, had.get(ask.name))) for p in placements(room, ask)] for ask in asks]

    def extended(chosen: list[tuple[Ask, Placement]], sums: Again) -> Iterator[Again]:
        at = len(chosen)
        if at == len(asks):
            yield sums
            return
        for placement, more in ways[at]:
            joined = [*chosen, (asks[at], placement)]
            if fits(room, joined):
                yield from extended(joined, tuple(map(add, sums, more)))

    none: Again = (len(asks), 0, 0, 0, 0, Fraction(0))
    return min(extended([], (0, 0, 0, 0, 0, Fraction(0))), default=none)


def _again(placement: Placement, had: Had | None) -> Again:
    if had is None:
        return 0, 0, placement.level, 0, 0, placement.cost
    devices = (placement.devices - had.devices).total()
    cells = len({node for _, node in placement.cells} - set(had.vcpus))
    vcpus = sum(max(0, kind.vcpus - had.vcpus[node]) for kind, node in placement.cells)
    return 0, devices, placement.level, cells, vcpus, placement.cost


def count(room: Room, asks: list[Ask]) -> int:
    """Joint placements that `best` may have to try."""
    total = 1
    for ask in asks:
        total *= 1 + sum(1 for _ in placements(room, ask))
    return total


def _extend(
    room: Room,
    asks: list[Ask],
    ways: list[list[Placement]],
    chosen: list[tuple[Ask, Placement]],
    found: list[Score],
) -> None:
    if not ways:
        cost = sum((p.cost for _, p in chosen), Fraction(0))
        found.append((len(chosen), sum(p.level for _, p in chosen), cost))
        return
    _extend(room, asks[1:], ways[1:], chosen, found)
    for placement in ways[0]:
        joined = [*chosen, (asks[0], placement)]
        if fits(room, joined):
            _extend(room, asks[1:], ways[1:], joined, found)


def placements(room: Room, ask: Ask) -> Iterator[Placement]:
    """Every way to place one guest that fits on the host alone."""
    for cut, devices in product(ask.cuts, list(_devices(room, ask))):
        for cells in _cells(room, list(cut.kinds)):
            level = _level(ask, cut, cells, devices)
            placement = Placement(cells, cut.page, devices, level, _cost(room, ask, cut, cells, devices))
            if level >= 0 and fits(room, [(ask, placement)]):
                yield placement


def fits(room: Room, chosen: list[tuple[Ask, Placement]]) -> bool:
    """Whether these guests fit together: cores, threads, pages and devices of each node."""
    cores: Counter[int] = Counter()
    threads: Counter[int] = Counter()
    pages: Counter[tuple[int, int]] = Counter()
    devices: Counter[Class] = Counter()
    for ask, placement in chosen:
        devices.update(placement.devices)
        for kind, node in placement.cells:
            if ask.threads:
                threads[node] += kind.vcpus
            else:
                cores[node] += -(-kind.vcpus // room.width)
            pages[node, placement.page] += kind.bytes // placement.page
    if any(n > room.devices[kind] for kind, n in devices.items()):
        return False
    for node in room.nodes:
        grown = sum(max(0, n - room.pages.get((at, p), 0)) * p for (at, p), n in pages.items() if at == node)
        whole = cores[node] * room.width
        shared = threads[node] == 0 or threads[node] + whole <= room.threads[node]
        if cores[node] > room.cores[node] or not shared or grown > room.growth[node]:
            return False
    return True


def _devices(room: Room, ask: Ask) -> Iterator[Counter[Class]]:
    choices = []
    for pool, wanted in ask.counts.items():
        classes = [kind for kind in room.devices if kind.pool == pool]
        every = product(*(range(min(wanted, room.devices[kind]) + 1) for kind in classes))
        choices.append([dict(zip(classes, ns, strict=True)) for ns in every if sum(ns) == wanted])
    for parts in product(*choices):
        devices = Counter(ask.fixed)
        for part in parts:
            devices.update({kind: n for kind, n in part.items() if n})
        yield devices


def _cells(room: Room, kinds: list[CellKind]) -> Iterator[tuple[tuple[CellKind, int], ...]]:
    if not kinds:
        yield ()
        return
    for rest in _cells(room, kinds[1:]):
        used = {node for _, node in rest}
        for nodes in combinations([n for n in room.nodes if n not in used], kinds[0].cells):
            yield (*((kinds[0], node) for node in nodes), *rest)


def _level(ask: Ask, cut: Cut, cells: tuple[tuple[CellKind, int], ...], devices: Counter[Class]) -> int:
    """0 with its own cells, 1 + cells more than their number; -1: fewer, which no reading allows."""
    if not ask.follows:
        return 0
    own = {kind.node for kind in devices if kind.pool in ("gpus", "other")} - {None}
    nodes = {node for _, node in cells}
    if nodes == own or (not own and len(nodes) == 1):
        return 0
    more = cut.cells - max(1, len(own))
    return 1 + more if more >= 0 else -1


def _cost(room: Room, ask: Ask, cut: Cut, cells: tuple[tuple[CellKind, int], ...], devices: Counter[Class]) -> Fraction:
    near = sum(
        ask.share(kind, cut) * room.near(node, device.node) * device.functions * n
        for kind, node in cells
        for device, n in devices.items()
    )
    return Fraction(near) + sum(room.distance[a, b] for (_, a), (_, b) in combinations(cells, 2))
