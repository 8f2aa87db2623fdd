"""Batches of guests on boards with NVSwitch partitions, with a judge that tries every partition for every guest.

Partitions are those that the host document lists. From the Fabric Manager user guide's rule (a guest's GPUs are exactly
one partition, partitions in use share no GPU) and the contract; imports nothing of what it judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import fabrichosts
from planhosts import Held

Json = dict[str, Any]
SMALL: Json = {"vcpus": 2, "memory": "1GiB", "hugepages": "none"}


@dataclass(frozen=True)
class Board:
    """Eight GPUs, the partitions of their fabric by id as sets of addresses, those active, GPUs that are held."""

    partitions: dict[int, frozenset[str]]
    active: frozenset[int]
    held: frozenset[str]
    guests: tuple[Json, ...]
    host: Json = field(compare=False)

    @property
    def intent(self) -> Json:
        """The guests as an intent."""
        return {"version": 1, "profile": "none", "guests": list(self.guests)}

    def available(self) -> Iterator[int]:
        """Partitions none of whose GPUs is held or in another partition that is active."""
        for number, gpus in self.partitions.items():
            others = [self.partitions[one] for one in self.active - {number}]
            if not gpus & self.held and not any(gpus & other for other in others):
                yield number


def board(seed: int) -> Board:
    """The board of a seed: Hopper's table or Blackwell's, module ids in any order, 2-8 guests, often too many."""
    rng = Random(seed)
    hopper = rng.random() < 0.5
    table = fabrichosts.H200 if hopper else fabrichosts.B200
    order = rng.sample(range(1, 9), 8)
    modules = dict(zip(fabrichosts.GPUS, order, strict=True))
    at = {module: address for address, module in modules.items()}
    partitions = {number: frozenset(at[module] for module in ids) for number, ids in table.items()}
    active = frozenset(rng.sample(sorted(partitions)[3:], 1)) if rng.random() < 0.25 else frozenset()
    held = frozenset(rng.sample(fabrichosts.GPUS, rng.randint(1, 2))) if rng.random() < 0.25 else frozenset()
    host = fabrichosts.board(
        fabrichosts.shared(table, active),
        modules=modules,
        guests=[Held(pins=(1, 49), devices=tuple(held))] if held else [],
        device_id="2335" if hopper else "2901",
        switches=fabrichosts.SWITCHES if hopper else (),
        nodes=rng.choice([1, 2, 2, 4]),
    )
    if not hopper:
        host["fabric"]["generation"] = "blackwell"
    return Board(partitions, active, held, tuple(_guests(rng, partitions)), host)


def _guests(rng: Random, partitions: dict[int, frozenset[str]]) -> Iterator[Json]:
    named: set[str] = set()
    for i in range(rng.randint(2, 8)):
        gpus: int | list[str] = rng.choice([0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 8])
        if rng.random() < 0.2:
            chosen = partitions[rng.choice(sorted(partitions)[3:])]
            gpus = 1 if chosen & named else sorted(chosen)
            named |= chosen
        yield {"name": f"g{i}", **SMALL, "gpus": gpus}


def most(found: Board) -> int:
    """The largest number of guests that have a partition each and share no GPU."""
    ways = [_ways(found, guest) for guest in found.guests]

    def best(i: int, used: frozenset[str]) -> int:
        if i == len(ways):
            return 0
        placed = (1 + best(i + 1, used | gpus) for gpus in ways[i] if not gpus & used)
        return max(max(placed, default=0), best(i + 1, used))

    return best(0, frozenset())


def _ways(found: Board, guest: Json) -> list[frozenset[str]]:
    asked = guest["gpus"]
    sets = [found.partitions[number] for number in found.available()]
    if isinstance(asked, list):
        return [gpus for gpus in sets if gpus == frozenset(asked)]
    return [gpus for gpus in sets if len(gpus) == asked] if asked else [frozenset()]


def faults(found: Board, plan: Json) -> list[str]:
    """Every fault of the plan, as lines."""
    lines = []
    known = {row["address"] for row in found.host["gpus"]}
    available = set(found.available())
    asked = {guest["name"]: guest["gpus"] for guest in found.guests}
    uses: Counter[str] = Counter()
    for guest in plan["guests"]:
        mine = frozenset(row["address"] for row in guest["devices"] if row["address"] in known)
        uses.update(mine)
        number, want = guest["fabric_partition"], asked[guest["name"]]
        if mine and (number not in available or found.partitions[number] != mine):
            lines.append(f"{guest['name']}: partition {number} is not its GPUs {sorted(mine)}, or not to be had")
        if not mine and number is not None:
            lines.append(f"{guest['name']}: partition {number} without a GPU")
        if (frozenset(want) != mine) if isinstance(want, list) else (want != len(mine)):
            lines.append(f"{guest['name']}: asked {want}, has {sorted(mine)}")
    lines += [
        f"{address} is in {times} guests" for address, times in uses.items() if times > 1 or address in found.held
    ]
    placed, best = len(plan["guests"]), most(found)
    if placed != best:
        lines.append(f"{placed} placed, the most is {best}")
    return lines
