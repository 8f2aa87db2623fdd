"""`auto` sizes among other guests: the contract's share, less where less is free, and never more than there is."""

from __future__ import annotations

import json

import pytest
from batch_oracle import solve
from joint_sizes import faults, sized
from plan_facts import Json
from plan_oracle import violations
from planhosts import GIB, Card, build_host
from sweeps import sample

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

SEEDS = sample("sizes", range(160), 48)
PORTIONS = 4
ONE, TWO, OTHER = "0000:21:00.0", "0000:22:00.0", "0000:31:00.0"
CARDS = [Card(ONE, 0, group=1), Card(TWO, 0, group=2), Card(OTHER, 1, group=3)]


def planned(host: Json, *guests: Json, **top: object) -> Json:
    """The plan as JSON."""
    intent = {"version": 1, "profile": "none", **top, "guests": list(guests)}
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


def sizes(found: Json) -> dict[str, tuple[int, int]]:
    """vCPUs and GiB of each guest."""
    return {
        guest["name"]: (len(guest["vcpu_pins"]), sum(cell["memory_bytes"] for cell in guest["cells"]) // GIB)
        for guest in found["guests"]
    }


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_random_batches(portion: int) -> None:
    wrong = {}
    for seed in SEEDS[portion::PORTIONS]:
        found = sized(seed)
        document = planned(found.host, *found.intent["guests"], reserve=found.intent["reserve"])
        lines = [*violations(found.host, document["intent"] | found.intent, document), *faults(found, document)]
        count = len(document["guests"])
        fewest, most = (solve(found.host, found.least(memory)).placed for memory in ("1GiB", "2MiB"))
        if not fewest <= count <= most:  # an auto guest makes room for others, down to a core
            lines.append(f"{count} placed, {fewest} to {most} can be")
        if lines:
            wrong[seed] = lines
    assert wrong == {}


def test_the_share_is_that_of_the_node_and_its_gpus() -> None:
    """7 cores and 56 GiB of each node are not reserved: half of it a GPU on node 0, all of it on node 1."""
    host = build_host(cards=CARDS)
    guests = [{"name": name, "gpus": [gpu]} for name, gpu in (("a", ONE), ("b", TWO), ("c", OTHER))]
    assert sizes(planned(host, *guests)) == {"a": (6, 28), "b": (6, 28), "c": (14, 56)}


def test_a_guest_over_two_nodes_takes_the_smallest_share_in_each() -> None:
    host = build_host(cards=CARDS)
    found = planned(host, {"name": "a", "gpus": [ONE, OTHER]}, {"name": "b", "gpus": [TWO]})
    assert sizes(found) == {"a": (12, 56), "b": (6, 28)}
    (cells,) = ([cell["vcpus"] for cell in g["cells"]] for g in found["guests"] if g["name"] == "a")
    assert cells == ["0-5", "6-11"]


def test_an_auto_guest_makes_room_and_says_what_it_lacks() -> None:
    host = build_host(cards=CARDS)
    for order in (0, 1):
        guests = [{"name": "a", "gpus": [ONE]}, {"name": "b", "vcpus": 24, "memory": "4GiB", "numa": 2}]
        found = planned(host, *(reversed(guests) if order else guests))
        assert sizes(found) == {"a": (2, 28), "b": (24, 4)}
        (said,) = (f for f in found["findings"] if "less than the auto share" in f["text"])
        assert "3 cores" in said["text"]
        assert "a" in said["where"]


def test_memory_alone_may_be_short() -> None:
    host = build_host(cards=CARDS)
    big = [{"name": name, "vcpus": 2, "memory": "55GiB"} for name in ("b", "c")]
    found = planned(host, {"name": "a", "gpus": [ONE]}, *big)
    assert sizes(found) == {"a": (6, 1), "b": (2, 55), "c": (2, 55)}
    assert any("less than the auto share" in f["text"] and "28 GiB" in f["text"] for f in found["findings"])


def test_devices_that_another_guest_holds_still_count_in_the_share() -> None:
    """[intent] held by guests or not ÷ its GPUs (busy or not)."""
    host = build_host(cards=CARDS)
    host["guests"] = [{"name": "old", "state": "running", "vcpu_pins": [], "memory_bytes": None, "devices": [TWO]}]
    assert sizes(planned(host, {"name": "a", "gpus": 1}, {"name": "b", "gpus": 1})) == {"a": (6, 28), "b": (14, 56)}


def test_one_core_per_gpu_is_the_least() -> None:
    """More GPUs than cores: each auto guest has a core as long as there is one, and the others are not placed."""
    cards = [Card(f"0000:{0x21 + i:02x}:00.0", 0, group=i) for i in range(5)]
    host = build_host(cards=cards, nodes=1, cores_per_node=4)
    found = planned(host, *({"name": f"g{i}", "gpus": 1} for i in range(5)))
    assert [vcpus for vcpus, _ in sizes(found).values()] == [2, 2, 2]
    assert len(found["unplaced"]) == 2
