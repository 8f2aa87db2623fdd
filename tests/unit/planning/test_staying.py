"""Guests that change beside others: the order of preference, against CP-SAT (`batch_oracle.again`), and that against
trying everything (`batch_brute.best_again`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from batch_brute import Had, best_again
from batch_facts import Class, asks_of, guest_score, level, room_of
from batch_oracle import again
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


def host_of(rng: Random, gpus: tuple[int, int] = (2, 5)) -> Any:
    nodes = rng.choice([2, 2, 3])
    cards = [Card(f"0000:{0x21 + 0x10 * n:02x}:00.0", rng.randrange(nodes), group=n) for n in range(rng.randint(*gpus))]
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


def planned(host: Host, guests: list[Any], running: Sequence[str] = ()) -> tuple[Host, Any]:
    found = plan(host, Intent.from_json(json.dumps(intent(guests))))
    return applied(host, found, running=running), json.loads(found.to_json())


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


@pytest.mark.parametrize("seed", sample("moves", range(1500), 20))
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
    anew = [guest for guest in asked if guest["name"] not in fixed]
    room, asks, had = room_of(beside, intent(anew)), asks_of(beside, intent(anew)), hads(document, anew, old)
    best = again(room, asks, had)
    tried = best_again(room, asks, had)  # all of them or none
    assert best == tried or (best[0] and tried[0])
    assert len(second["unplaced"]) == best[0]
    placed = [guest for guest in anew if guest["name"] in new]  # which guest is left out is not judged by moves
    if best[0]:
        best = again(room_of(beside, intent(placed)), asks_of(beside, intent(placed)), hads(document, placed, old))
    assert reached(document, anew, old, new) == best[1:]


# 107: two guests grow by GPUs of one node. 241: a guest needs fewer CPUs, and one that runs has taken its first ones.
@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("seed", sorted({*sample("more moves", range(300), 4), 107, 241}))
def test_the_order_of_preference_of_more_guests(seed: int, runs: bool) -> None:
    """As CP-SAT judges it. A guest that runs takes its place first; then nobody gets what its run or its place has."""
    rng = Random(f"more moves {seed}")
    document = host_of(rng, (6, 9))
    guests = [guest_of(rng, name) for name in "abcde"]
    bare = replace(Host.from_json(json.dumps(document)), in_force=InForce(), guests=())
    runner = rng.choice("abcde") if runs else ""
    host, first = planned(bare, guests, running=[runner])
    old = {guest["name"]: guest for guest in first["guests"]}
    changed = {*rng.sample(sorted(old), min(len(old), 3)), runner} & old.keys()
    asked = [guest_of(rng, one["name"]) if one["name"] in changed else one for one in guests if one["name"] in old]
    asked += [guest_of(rng, "new")]
    _, second = planned(host, asked)
    new = {guest["name"]: guest for guest in second["guests"]}
    anew = [guest for guest in asked if guest["name"] not in {one["name"] for one in guests if one in asked}]
    stay = old.keys() - {guest["name"] for guest in anew}
    assert {moved(old[name], new[name]) for name in stay} <= {(0, 0, 0)}
    held = [row for name in sorted(stay) for row in entries(document, old[name])]
    turns = [anew]
    if any(one["name"] == runner for one in anew):
        turns = [[one for one in anew if (one["name"] == runner) == first_turn] for first_turn in (True, False)]
    for turn in turns:
        beside = {**document, "guests": held}
        best = again(room_of(beside, intent(turn)), asks_of(beside, intent(turn)), hads(document, turn, old))
        left = {one["guest"] for one in second["unplaced"]} & {guest["name"] for guest in turn}
        assert len(left) == best[0]
        assert best[0] or reached(document, turn, old, new) == best[1:]
        for name in [one["name"] for one in turn if one["name"] == runner or one["name"] in new]:
            held += entries(document, new.get(name) or old[name], old.get(name))


def test_guests_that_grow_by_gpus_of_one_node_keep_theirs() -> None:
    """Each of them is offered another GPU besides."""
    cards = [Card(f"0000:{0x21 + 0x10 * n:02x}:00.0", 0, group=n) for n in range(6)]
    host = Host.from_json(json.dumps(build_host(nodes=1, cores_per_node=8, threads=2, memory_gib=32, cards=cards)))
    guests = [{"name": name, "gpus": 1, "vcpus": 2, "memory": "2GiB", "hugepages": "2MiB"} for name in "abc"]
    host, first = planned(replace(host, in_force=InForce(), guests=()), guests)
    _, second = planned(host, [{**guest, "gpus": 2} for guest in guests])
    had, has = ({g["name"]: {d["address"] for d in g["devices"]} for g in found["guests"]} for found in (first, second))
    assert all(had[name] < has[name] for name in "abc"), (had, has)


def intent(guests: list[Any]) -> Any:
    return {"version": 1, "guests": guests}


def hads(document: Json, guests: list[Any], old: dict[str, Any]) -> dict[str, Had]:
    return {guest["name"]: had_of(document, old[guest["name"]]) for guest in guests if guest["name"] in old}


def reached(document: Json, asked: list[Any], old: dict[str, Any], new: dict[str, Any]) -> tuple[Any, ...]:
    """Devices moved, Σ levels, cells and vCPUs moved, and the objective, of the guests that are placed."""
    rows = [new[guest["name"]] for guest in asked if guest["name"] in new]
    moves = [moved(old[guest["name"]], guest) for guest in rows if guest["name"] in old]
    devices, cells, vcpus = (sum(column) for column in zip((0, 0, 0), *moves, strict=True))
    levels = sum(level(document, intent(asked), guest) for guest in rows)
    return devices, levels, cells, vcpus, sum((guest_score(document, guest) for guest in rows), Fraction(0))


def entries(host: Json, guest: Any, run: Any = None) -> list[Json]:
    """A guest as guests of a host document: one for each node of its cells, because memory is that of one node.

    `run`: the places that its run has besides.
    """
    places = [guest, *([run] if run else [])]
    sizes = [{int(cell["host_nodes"]): cell["memory_bytes"] for cell in one["cells"]} for one in places]
    devices = sorted({device["address"] for one in places for device in one["devices"]})
    rows: list[dict[str, Any]] = []
    for node in sorted({node for one in sizes for node in one}):
        cpus = sorted({pin["cpus"] for one in places for pin in one["vcpu_pins"] if node_of(host)[pin["cpus"]] == node})
        pins = [{"vcpu": n, "cpus": one} for n, one in enumerate(cpus)]
        rows.append({"name": f"{guest['name']}-{node}", "vcpu_pins": pins,
                     "memory_bytes": max(one.get(node, 0) for one in sizes), "devices": [] if rows else devices,
                     "state": "shut off"})  # fmt: skip
    return rows


def test_a_changed_guest_keeps_what_shares_the_group_of_its_gpu() -> None:
    cards = [Card("0000:21:00.0", 0, group=1), Card("0000:31:00.0", 0, kind="nic", group=1)]
    cards += [Card("0000:41:00.0", 0, kind="nic", group=2)]
    guest = {"name": "a", "gpus": ["0000:21:00.0"], "nics": 1, "vcpus": 4, "memory": "4GiB"}
    bare = replace(Host.from_json(json.dumps(build_host(cards=cards))), in_force=InForce(), guests=())
    host, first = planned(bare, [guest])
    _, second = planned(host, [{**guest, "vcpus": 6}])
    devices = [[one["address"] for one in made["guests"][0]["devices"]] for made in (first, second)]
    assert devices == [["0000:21:00.0", "0000:31:00.0"]] * 2


def test_a_changed_guest_with_a_whole_socket_keeps_its_nodes() -> None:
    table = [[10 if a == b else 12 if a // 2 == b // 2 else 32 for b in range(4)] for a in range(4)]
    document = build_host(nodes=4, distances=table, cards=[Card("0000:21:00.0", 1, group=1)])
    for cpu in document["cpus"]:
        cpu["package"] = cpu["numa_node"] // 2
    bare = replace(Host.from_json(json.dumps(document)), in_force=InForce(), guests=())
    host, first = planned(bare, [{"name": "a", "gpus": 1}])
    _, second = planned(host, [{"name": "a", "gpus": 1, "memory": "20GiB"}])
    nodes = [[cell["host_nodes"] for cell in made["guests"][0]["cells"]] for made in (first, second)]
    assert nodes == [["0", "1"]] * 2
    assert moved(first["guests"][0], second["guests"][0]) == (0, 0, 0)
