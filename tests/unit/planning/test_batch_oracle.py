"""The oracle of several guests (CP-SAT, `batch_oracle`) is right.

It equals trying everything on tiny batches, hand-made answers and the older judge of one guest, and it names what is
wrong with wrong plans.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import batch_brute
import pytest
from batch_cases import Case, case
from batch_facts import Undecided, asks_of, guest_score, room_of
from batch_judge import faults
from batch_oracle import Reading, optimum, solve
from plan_facts import GIB, Json
from plan_optimum import judge
from planhosts import Card, Held, build_host
from sweeps import FULL, sample

TINY = 20_000  # joint placements


def batch(*guests: Json, **top: Any) -> Json:
    """An intent of guests named a, b, c, …, in pages of 2 MiB."""
    rows = [{"name": "abcdefgh"[i], "hugepages": "2MiB", **guest} for i, guest in enumerate(guests)]
    return {"version": 1, **top, "guests": rows}


def gpus(*nodes: int | None) -> list[Card]:
    return [Card(f"0000:{0x21 + 16 * i:02x}:00.0", node, group=i, bar_bytes=GIB) for i, node in enumerate(nodes)]


# --- the oracle itself ---------------------------------------------------------------------------------------


def tiny() -> list[Case]:
    """Batches of two to four guests that can be tried out whole."""
    cases = [case(seed, 2 + seed % 3) for seed in sample("tiny", range(300), 50)]
    rooms = [(c, room_of(c.host, c.intent), asks_of(c.host, c.intent)) for c in cases]
    return [c for c, room, asks in rooms if len(room.nodes) <= 4 and batch_brute.count(room, asks) <= TINY]


def test_the_oracle_equals_trying_everything() -> None:
    compared = tiny()
    for found in compared:
        room, asks = room_of(found.host, found.intent), asks_of(found.host, found.intent)
        best = optimum(room, asks)
        assert (best.placed, best.levels, best.objective) == batch_brute.best(room, asks), found.seed
    assert len(compared) >= (150 if FULL else 20)


def test_the_oracle_agrees_with_the_judge_of_one_guest() -> None:
    decided = 0
    for seed in sample("one guest", range(250), 40):
        found = case(seed, 1)
        verdict, best = judge(found.host, found.intent), solve(found.host, found.intent)
        if verdict.placed is not None:
            assert bool(best.placed) == verdict.placed, seed
        if best.placed and verdict.objectives:
            assert best.objective in verdict.objectives, seed
            decided += 1
    assert decided >= (75 if FULL else 10)


NEAR_PAIRS = [[10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]]
SMALL = {"vcpus": 2, "memory": "2GiB"}


@pytest.mark.parametrize(
    ("shape", "intent", "best"),
    [
        # each GPU has a guest of its own: 10 + 10
        ({"cards": gpus(0, 1)}, batch({"gpus": 1, **SMALL}, {"gpus": 1, **SMALL}), (2, 0, Fraction(20))),
        # three ask for two GPUs
        ({"cards": gpus(0, 1)}, batch(*[{"gpus": 1, **SMALL}] * 3), (2, 0, Fraction(20))),
        # the guest that names the GPU of node 0 leaves that of node 1 to the count
        (
            {"cards": gpus(0, 1)},
            batch({"gpus": 1, **SMALL}, {"gpus": ["0000:21:00.0"], **SMALL}),
            (2, 0, Fraction(20)),
        ),
        # 7 free cores a node: 14 vCPUs fill node 0, where both GPUs are; one guest moves off it: 10 + 21
        (
            {"cards": gpus(0, 0)},
            batch({"gpus": 1, "vcpus": 14, "memory": "2GiB"}, {"gpus": 1, "vcpus": 14, "memory": "2GiB"}),
            (2, 1, Fraction(31)),
        ),
        # one large guest or two small ones: guests are counted
        (
            {"nodes": 1},
            batch({"vcpus": 14, "memory": "2GiB"}, {"vcpus": 6, "memory": "2GiB"}, {"vcpus": 8, "memory": "2GiB"}),
            (2, 0, Fraction(0)),
        ),
        # two pairs of cells on two pairs of near nodes: 12 + 12
        (
            {"nodes": 4, "distances": NEAR_PAIRS, "cores_per_node": 4},
            batch(*[{"vcpus": 12, "memory": "2GiB", "numa": 2}] * 2),
            (2, 0, Fraction(24)),
        ),
        # 56 GiB a node without the reserve: 40 + 40 need two nodes, a third fits nowhere
        ({}, batch(*[{"vcpus": 2, "memory": "40GiB", "numa": 1}] * 3), (2, 0, Fraction(0))),
        # cells of 2 and 6 vCPUs: the large one is at the GPU: ¾·10 + ¼·21, and 21 between them
        (
            {"cards": gpus(1)},
            batch({"gpus": 1, "numa": [{"vcpus": 2, "memory": "1GiB"}, {"vcpus": 6, "memory": "1GiB"}]}),
            (1, 0, Fraction(30 + 21, 4) + 21),
        ),
        # whole cores: 3 vCPUs take two of the three free cores; `threads` takes what is left of cores, not of those
        ({"nodes": 1, "cores_per_node": 4}, batch(*[{"vcpus": 3, "memory": "1GiB"}] * 2), (1, 0, Fraction(0))),
        (
            {"nodes": 1, "cores_per_node": 4},
            batch(*[{"vcpus": 3, "memory": "1GiB", "smt": "threads"}] * 2),
            (2, 0, Fraction(0)),
        ),
        # an existing guest keeps its GPU, its cores and its memory
        (
            {"nodes": 1, "cards": gpus(0, 0), "guests": [Held(pins=(1, 9), devices=("0000:21:00.0",))]},
            batch({"gpus": 1, **SMALL}, {"gpus": 1, **SMALL}),
            (1, 0, Fraction(10)),
        ),
    ],
)
def test_the_optimum_of_hand_made_batches(shape: Json, intent: Json, best: tuple[int, int, Fraction]) -> None:
    found = solve(build_host(**shape), intent)
    assert (found.placed, found.levels, found.objective) == best


def test_the_readings_of_numa_auto_are_told_apart() -> None:
    """Two GPUs far from each other: cells on their nodes are 60 apart; with one cell on node 2 they are 20 apart."""
    table = [[10, 60, 20], [60, 10, 20], [20, 20, 10]]
    host = build_host(nodes=3, distances=table, cards=gpus(0, 1, 1), cores_per_node=4)
    two = {"gpus": ["0000:21:00.0", "0000:31:00.0"], "vcpus": 4, "memory": "2GiB"}
    own, free = (solve(host, batch(two), reading) for reading in Reading)
    assert (own.levels, own.objective) == (0, Fraction(2 * 35 + 60))
    assert free.objective == Fraction(10 + 20 + 60 + 20, 2) + 20  # cells on 0 and 2, or on 1 and 2


@pytest.mark.parametrize(
    ("shape", "guest"),
    [
        ({}, {"gpus": 0, "vcpus": "auto", "memory": "2GiB"}),
        ({"hidden": [3]}, SMALL),
        ({"offline": [3]}, SMALL),
        ({"guests": [Held(pins=(1, 9), memory_bytes=GIB)], "hugepages": {0: {2 << 20: (512, 0)}}}, SMALL),
        ({"guests": [Held(memory_bytes=GIB)]}, SMALL),
        ({}, {"mig": {"profile": "1g.18gb", "count": 1}, **SMALL}),
    ],
)
def test_what_the_contract_leaves_open_is_not_judged(shape: Json, guest: Json) -> None:
    with pytest.raises(Undecided):
        solve(build_host(**shape), batch(guest))


# --- wrong plans ---------------------------------------------------------------------------------------------

# Two nodes of four SMT2 cores, siblings n and n+8: node 0 has CPUs 0-3,8-11, node 1 has 4-7,12-15.
CARDS = gpus(0, 1)


def _guest(name: str, card: Card, cpus: list[int]) -> Json:
    device = {"address": card.address, "kind": "gpu", "guest_cell": 0, "guest_address": "0000:01:00.0"}
    return {
        "name": name,
        "vcpu_pins": [{"vcpu": i, "cpus": str(cpu)} for i, cpu in enumerate(cpus)],
        "emulator_cpus": "0,8" if card.node == 0 else "4,12",
        "iothread_cpus": [],
        "cells": [{"id": 0, "vcpus": "0-3", "memory_bytes": 2 * GIB, "host_nodes": str(card.node)}],
        "page_bytes": 2 << 20,
        "devices": [{**device, "identity": card.address}],
        "mig": [],
        "fabric_partition": None,
        "why": [],
        "topology": {"sockets": 1, "dies": 1, "cores": 2, "threads": 2},
    }


def _pages(node: int, want: int) -> Json:
    target = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
    row = {"id": f"hugepages:{node}", "kind": "hugepages", "target": target, "want": want}
    return {**row, "effect": "now", "needed": True}


def right() -> tuple[Json, Json, Json]:
    """A host, an intent and its best plan: a GPU with its guest on each node."""
    host = build_host(cores_per_node=4, memory_gib=32, cards=CARDS, digest="d")
    intent = batch(*[{"gpus": 1, "vcpus": 4, "memory": "2GiB"}] * 2)
    document = {
        "schema": "hosttune.plan/v1",
        "host_digest": "d",
        "intent": intent,
        "housekeeping_cpus": "0,4,8,12",
        "guests": [_guest("a", CARDS[0], [1, 9, 2, 10]), _guest("b", CARDS[1], [5, 13, 6, 14])],
        "unplaced": [],
        "actions": [_pages(0, 1024), _pages(1, 1024)],
        "findings": [],
    }
    return host, intent, document


def test_the_right_plan_is_right() -> None:
    assert faults(*right()) == []


def _drop(plan: Json) -> None:
    plan["unplaced"].append({"guest": plan["guests"].pop()["name"], "why": ["no room"], "relaxation": []})


def _swap_gpus(plan: Json) -> None:
    """Each guest has the other's GPU: both are one distance too far."""
    first, second = plan["guests"]
    first["devices"], second["devices"] = second["devices"], first["devices"]
    for guest in plan["guests"]:
        guest["devices"][0]["guest_cell"] = None


def _move(plan: Json, cpus: list[int], node: int) -> None:
    """The second guest on these CPUs of a node."""
    plan["guests"][1] |= {"vcpu_pins": [{"vcpu": i, "cpus": str(cpu)} for i, cpu in enumerate(cpus)]}
    plan["guests"][1]["cells"][0]["host_nodes"] = str(node)


def _halves(plan: Json) -> None:
    """The second guest in two cells where one would do."""
    _move(plan, [3, 11, 5, 13], 1)
    cell = plan["guests"][1]["cells"][0]
    cells = [cell | {"vcpus": "0-1", "host_nodes": "0"}, cell | {"id": 1, "vcpus": "2-3"}]
    plan["guests"][1]["cells"] = [part | {"memory_bytes": GIB} for part in cells]


WRONG: list[tuple[str, Callable[[Json], object]]] = [
    ("batch-placed", _drop),
    ("batch-levels", _swap_gpus),
    ("batch-levels", _halves),
    ("core-shared", lambda p: _move(p, [2, 3, 11, 7], 0)),
    ("cpu-once", lambda p: _move(p, [2, 10, 3, 11], 0)),
    ("device-once", lambda p: p["guests"][1]["devices"].append({**p["guests"][0]["devices"][0], "guest_cell": None})),
    ("helpers-pinned", lambda p: p["guests"][1].update(emulator_cpus="1")),
    ("pages-joint", lambda p: _move(p, [3, 11, 7, 15], 0)),
]


@pytest.mark.parametrize(("name", "change"), WRONG, ids=[f"{n}-{name}" for n, (name, _) in enumerate(WRONG)])
def test_a_wrong_plan_for_two_is_named(name: str, change: Callable[[Json], object]) -> None:
    host, intent, document = copy.deepcopy(right())
    change(document)
    assert name in {line.partition(":")[0] for line in faults(host, intent, document)}


def test_one_more_distance_is_named() -> None:
    """`numa: 1` has no cells of its own that it could be away from: the objective alone is larger."""
    host, intent, document = copy.deepcopy(right())
    for guest in intent["guests"]:
        guest["numa"] = 1
    assert faults(host, intent, document) == []
    _swap_gpus(document)
    assert [line.partition(":")[0] for line in faults(host, intent, document)] == ["batch-objective"]
    assert [guest_score(host, guest) for guest in document["guests"]] == [21, 21]


def test_a_host_with_free_pages_and_unknown_nodes_is_judged() -> None:
    host = build_host(cards=gpus(None), hugepages={0: {GIB: (4, 4)}}, memory_gib=8)
    found = solve(host, batch(*[{"gpus": n, "vcpus": 2, "memory": "4GiB", "hugepages": "1GiB"} for n in (0, 1)]))
    assert (found.placed, found.objective) == (2, Fraction(0))
