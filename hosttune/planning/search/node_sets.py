"""Sets of host nodes for the cells of a guest, the best first.

Pure. Best-first search over partial sets (A*). The bound of a partial set is the cost among its nodes plus the least
that each remaining cell can add. So sets come out in order, and none is generated before it is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations, islice

import msgspec

from hosttune.planning.search.problem import Fragmentation, joined


class CellCosts(msgspec.Struct, frozen=True):
    """The cost of cells: `shares` (one for each cell), each node's sum of distances to the devices, pairs of cells.

    `shares` and `pair` are in parts of `Problem.unit`. `known` caches what depends on the pairs only; prices with the
    same pairs share it. `free`: nodes without GPUs that a guest has because it has the socket; they cost nothing.
    """

    shares: tuple[int, ...]
    to_devices: Mapping[int, int]
    pair: Mapping[tuple[int, int], int]
    known: dict[tuple[int, ...], list[dict[int, int]]]
    free: frozenset[int] = frozenset()


class Cells(msgspec.Struct, frozen=True):
    """The cells of one cut: for each, what it breaks up on the nodes that could hold it.

    A cell that is the `twin` of the one before takes a higher node, so that no set comes twice. `start`: what is broken
    up before any cell has a place.
    """

    rooms: Sequence[Mapping[int, Fragmentation]]
    twin: Sequence[bool]
    start: Fragmentation


NodeSet = tuple[int, Fragmentation, tuple[int, ...]]  # cost, what it breaks up, node of each cell


def node_sets(prices: CellCosts, cells: Cells) -> Iterator[NodeSet]:
    """Yield every set with one node for each cell: the cheapest first, then the one that breaks up least."""
    count = len(cells.rooms)
    every = tuple(sorted({node for room in cells.rooms for node in room}))
    if count == len(every) and all(cells.twin[1:]):
        yield _of_all(prices, cells, every)
        return
    halves = prices.known.setdefault(every, [])
    while len(halves) <= count:
        halves.append(_half(prices, every, len(halves)))
    least = _least_to_come(cells)
    twins = [all(cells.twin[at:]) for at in range(count + 1)]
    # Bounds on both, -cells, nodes; then the cost and fragmentation of these nodes so far.
    heap: list[tuple[int, Fragmentation, int, tuple[int, ...], int, Fragmentation]]
    heap = [(0, cells.start, 0, (), 0, cells.start)]
    while heap:
        bound, most, _, chosen, cost, broken = heapq.heappop(heap)
        at = len(chosen)
        if at == count:
            yield bound, most, chosen
            continue
        left = count - at - 1
        later = _later(prices, cells.rooms[at + 1 :], prices.shares[at + 1 :], chosen, halves[left])
        for node, breaks in cells.rooms[at].items():
            if node in chosen or (cells.twin[at] and node < chosen[-1]):
                continue
            longer = (*chosen, node)
            lowest = node if twins[at + 1] else -1  # the later cells are its twins, so they take higher nodes
            able = ((other, bound) for other, bound in later.items() if other > lowest and other != node)
            each = sorted(bound + prices.pair[node, other] for other, bound in able)
            if len(each) < left:
                continue
            rest = sum(each[:left])
            grown = cost + prices.shares[at] * prices.to_devices[node]
            grown += sum(prices.pair[node, other] for other in chosen)
            more = joined(broken, breaks)
            to_come = (later for other, later in least[at + 1] if other > lowest and other not in longer)
            end = reduce(joined, islice(to_come, left), more)
            heapq.heappush(heap, (grown + rest, end, -len(longer), longer, grown, more))


def _of_all(prices: CellCosts, cells: Cells, nodes: tuple[int, ...]) -> NodeSet:
    """Return the set of all nodes, for equal cells that need every possible node."""
    cost = sum(share * prices.to_devices[node] for share, node in zip(prices.shares, nodes, strict=True))
    pairs = sum(prices.pair[pair] for pair in combinations(nodes, 2))
    broken = (room[node] for room, node in zip(cells.rooms, nodes, strict=True))
    return cost + pairs, reduce(joined, broken, cells.start), nodes


def _least_to_come(cells: Cells) -> list[list[tuple[int, Fragmentation]]]:
    """Return, for the cells from each one on, the nodes with the least that any of these cells breaks up there.

    The nodes with the least come first.
    """
    levels: list[list[tuple[int, Fragmentation]]] = [[]]
    least: dict[int, Fragmentation] = {}
    for room in reversed(cells.rooms):
        better = {node: broken for node, broken in room.items() if node not in least or broken < least[node]}
        least |= better
        ordered = sorted(least.items(), key=lambda row: (row[1], row[0])) if better else levels[-1]
        levels.append(ordered)
    return levels[::-1]


def _half(prices: CellCosts, nodes: Sequence[int], left: int) -> dict[int, int]:
    """Return half of each node's least distances to the other cells, with `left` cells still to place."""
    return {
        node: sum(sorted(prices.pair[node, other] for other in nodes if other != node)[: max(0, left - 1)]) // 2
        for node in nodes
    }


def _later(
    prices: CellCosts,
    rooms: Sequence[Mapping[int, Fragmentation]],
    shares: Sequence[int],
    chosen: tuple[int, ...],
    halves: Mapping[int, int],
) -> dict[int, int]:
    """Return, for each node that later cells could take, a bound on what one of them adds there beside these nodes."""
    if not rooms:
        return {}
    share = min(shares)
    free = {node for room in rooms for node in room}.difference(chosen)
    return {
        node: share * prices.to_devices[node] + sum(prices.pair[node, other] for other in chosen) + halves[node]
        for node in free
    }
