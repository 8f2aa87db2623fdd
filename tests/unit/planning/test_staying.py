"""Guests that change beside others: the order of preference, against trying everything (`batch_brute.best_again`).

The guests do not run. Of one that runs, what it runs on is nobody else's, so it is placed before the others.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from batch_brute import Had, best_again
from batch_facts import Class, asks_of, guest_score, level, room_of
from forcehosts import applied
from msgspec.structs import replace
from plan_facts import Json
from planhosts import Card, build_host
from sweeps import sample

from hosttune.model.force import InForce
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

POOLS = {"gpu": "gpus", "nic": "nics"}


def host_of(rng: Random) -> Any:
    nodes = rng.choice([2, 2, 3])
    cards = [Card(f"0000:{0x21 + 0x10 * n:02x}:00.0", rng.randrange(nodes), group=n) for n in range(rng.randint(2, 5))]
    cards += [Card(f"0001:{0x11 + n:02x}:00.0", n % nodes, kind="nic", group=50 + n) for n in range(2)]
    cores = [rng.randint(4, 9) for _ in range(nodes)]
    return build_host(nodes=nodes, cores_per_node=cores, threads=2, memory_gib=32, cards=cards)


def guest_of(rng: Random, name: str) -> Any:
    gpus, numa = rng.choice([0, 1, 1, 2]), rng.choice([1, 1, 2, "auto"])
    vcpus = rng.choice([4, 8]) if numa == 2 else 12 if numa == "auto" else rng.choice([2, 4, 6, 8])
    nics = rng.choice([0, 0, 1])
    memory = rng.choice(["3GiB", "6GiB"])
    asked = {"gpus": gpus, "nics": nics, "numa": numa, "vcpus": vcpus, "memory": memory, "hugepages": "2MiB"}
    return {"name": name, **asked}


def planned(host: Host, guests: list[Any]) -> tuple[Host, Any]:
    found = plan(host, Intent.from_json(json.dumps({"version": 1, "guests": guests})))
    return applied(host, found), json.loads(found.to_json())


def node_of(host: Json) -> dict[str, int]:
    return {str(row["id"]): row["numa_node"] for row in host["cpus"]}


def had_of(host: Json, guest: Any) -> Had:
    nodes = {row["address"]: row["numa_node"] for row in host["pci"]}
    devices = Counter(Class(POOLS[one["kind"]], nodes[one["address"]], 1) for one in guest["devices"])
    return Had(devices, Counter(node_of(host)[pin["cpus"]] for pin in guest["vcpu_pins"]))


def moved(old: Any, new: Any) -> tuple[int, int, int]:
    """Devices, nodes and CPUs that a guest has now and had not before."""
    fields = (("devices", "address"), ("cells", "host_nodes"), ("vcpu_pins", "cpus"))
    rows = ([{one[key] for one in guest[field]} for guest in (old, new)] for field, key in fields)
    devices, cells, cpus = (len(now - then) for then, now in rows)
    return devices, cells, cpus


@pytest.mark.parametrize("seed", sample("moves", range(1500), 40))
def test_the_order_of_preference(seed: int) -> None:
    rng = Random(f"moves {seed}")
    document = host_of(rng)
    guests = [guest_of(rng, name) for name in "abc"]
    host, first = planned(replace(Host.from_json(json.dumps(document)), in_force=InForce(), guests=()), guests)
    old = {guest["name"]: guest for guest in first["guests"]}
    changed = rng.sample(sorted(old), min(len(old), rng.randint(1, 2)))
    asked = [guest for guest in guests if guest["name"] in old]
    asked = [{**guest_of(rng, guest["name"])} if guest["name"] in changed else guest for guest in asked]
    asked += [guest_of(rng, "new")] if rng.random() < 0.6 else []
    _, second = planned(host, asked)
    new = {guest["name"]: guest for guest in second["guests"]}
    fixed = [guest["name"] for guest in guests if guest in asked]
    for name in fixed:
        assert moved(old[name], new[name]) == (0, 0, 0)
    beside = {**document, "guests": [held for name in fixed for held in entries(document, old[name])]}
    anew: Any = {"version": 1, "guests": [guest for guest in asked if guest["name"] not in fixed]}
    had = {guest["name"]: had_of(document, old[guest["name"]]) for guest in anew["guests"] if guest["name"] in old}
    best = best_again(room_of(beside, anew), asks_of(beside, anew), had)
    if best[0]:  # who is left out is asked elsewhere; it is refused as a whole
        assert second["unplaced"]
        return
    rows = [new[guest["name"]] for guest in anew["guests"] if guest["name"] in new]
    moves = [moved(old[guest["name"]], guest) for guest in rows if guest["name"] in had]
    devices, cells, vcpus = (sum(column) for column in zip((0, 0, 0), *moves, strict=True))
    levels = sum(level(document, anew, guest) for guest in rows)
    cost = sum((guest_score(document, guest) for guest in rows), Fraction(0))
    assert (len(second["unplaced"]), devices, levels, cells, vcpus, cost) == best


def entries(host: Json, guest: Any) -> list[Json]:
    """A guest as guests of a host document: one for each of its cells, because memory is that of one node."""
    rows = []
    for cell in guest["cells"]:
        node = int(cell["host_nodes"])
        pins = [pin for pin in guest["vcpu_pins"] if node_of(host)[pin["cpus"]] == node]
        devices = [one["address"] for one in guest["devices"]] if cell is guest["cells"][0] else []
        rows.append({"name": f"{guest['name']}-{node}", "vcpu_pins": pins, "memory_bytes": cell["memory_bytes"],
                     "devices": devices, "state": "shut off"})  # fmt: skip
    return rows
