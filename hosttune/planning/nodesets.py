"""Sets of host nodes for the cells of a guest, cheapest first.

Pure. Best-first over partial sets (A*): the bound of a partial set is what its nodes cost among themselves plus, for
each cell that is left, the least it can add, so that sets come out in the order of their cost and none is listed
before it is asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Prices:
    """What cells cost: `shares` (scaled, one a cell), each node's sum of distances to the devices, scaled pairs."""

    shares: tuple[int, ...]
    to_devices: Mapping[int, int]
    pair: Mapping[tuple[int, int], int]


def node_sets(
    prices: Prices,
    rooms: Sequence[Sequence[int]],
    twin: Sequence[bool],
    known: dict[tuple[int, ...], list[dict[int, int]]],
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(cost, node of each cell), every cell on a node of its own, cheapest first.

    `rooms` are the nodes that could hold each cell. A cell that is the `twin` of the one before takes a higher node,
    so that no set comes twice. `known` remembers, between calls with the same pairs, what depends on these alone.
    """
    count = len(prices.shares)
    every = tuple(sorted({node for room in rooms for node in room}))
    halves = known.setdefault(every, [])
    while len(halves) <= count:
        halves.append(_half(prices, every, len(halves)))
    heap: list[tuple[int, int, tuple[int, ...], int]] = [(0, 0, (), 0)]  # bound, -cells, nodes, cost so far
    while heap:
        bound, _, chosen, cost = heapq.heappop(heap)
        at = len(chosen)
        if at == count:
            yield bound, chosen
            continue
        for node in rooms[at]:
            if node in chosen or (twin[at] and node < chosen[-1]):
                continue
            grown = cost + prices.shares[at] * prices.to_devices[node]
            grown += sum(prices.pair[node, other] for other in chosen)
            longer = (*chosen, node)
            rest = _rest(prices, rooms, longer, halves)
            if rest is not None:
                heapq.heappush(heap, (grown + rest, -len(longer), longer, grown))


def _half(prices: Prices, nodes: Sequence[int], left: int) -> dict[int, int]:
    """With so many cells still to place: half of each node's least distances to the others among them."""
    return {
        node: sum(sorted(prices.pair[node, other] for other in nodes if other != node)[: max(0, left - 1)]) // 2
        for node in nodes
    }


def _rest(
    prices: Prices, rooms: Sequence[Sequence[int]], chosen: tuple[int, ...], halves: Sequence[Mapping[int, int]]
) -> int | None:
    """A bound on what the cells that are left add; None where they have no nodes."""
    left = len(rooms) - len(chosen)
    if not left:
        return 0
    share = min(prices.shares[len(chosen) :])
    free = {node for room in rooms[len(chosen) :] for node in room}.difference(chosen)
    if len(free) < left:
        return None
    each = sorted(
        share * prices.to_devices[node] + sum(prices.pair[node, other] for other in chosen) + halves[left][node]
        for node in free
    )
    return sum(each[:left])
