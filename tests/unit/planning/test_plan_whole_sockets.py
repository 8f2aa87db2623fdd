"""Nodes without GPUs (NPS4, SNC, L3 as NUMA): whose they are, and what is said of those that nobody has.

Two sockets with four nodes each, distances 12 in a socket and 32 across; two GPUs on the second and on the fourth node
of each socket. A node has 8 cores of 2 threads, 64 GiB, and keeps a core and 8 GiB.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from planhosts import Card, Held, build_host

import hosttune

CARDS = [Card(f"0000:{0x10 * node + n:02x}:00.0", node, group=10 * node + n) for node in (1, 3, 5, 7) for n in (1, 2)]
TABLE = [[10 if a == b else 12 if a // 4 == b // 4 else 32 for b in range(8)] for a in range(8)]
Json = dict[str, Any]


def planned(*guests: Json, cards: list[Card] = CARDS, **shape: Any) -> Json:
    host = build_host(nodes=8, distances=TABLE, cards=cards, **shape)
    for cpu in host["cpus"]:
        cpu["package"] = cpu["numa_node"] // 4
    intent = {"version": 1, "profile": "none", "guests": [{"name": f"g{n}", **one} for n, one in enumerate(guests)]}
    made = hosttune.plan(hosttune.Host.from_json(json.dumps(host)), hosttune.Intent.from_json(json.dumps(intent)))
    found: Json = json.loads(made.to_json())
    assert not found["unplaced"]
    return found


def cells(guest: Json) -> list[int]:
    return [int(cell["host_nodes"]) for cell in guest["cells"]]


def sizes(guest: Json) -> tuple[int, int]:
    return len(guest["vcpu_pins"]), sum(cell["memory_bytes"] for cell in guest["cells"]) >> 30


def unused(plan: Json) -> list[str]:
    return [f["text"] for f in plan["findings"] if "stay unused" in f["text"]]


def test_a_guest_with_all_gpus_has_all_nodes() -> None:
    plan = planned({"gpus": 8})
    (guest,) = plan["guests"]
    assert cells(guest) == [*range(8)]
    assert sizes(guest) == (8 * 14, 8 * 56)
    assert not unused(plan)


def test_a_guest_with_all_gpus_of_a_socket_has_its_nodes() -> None:
    plan = planned({"gpus": 4}, {"gpus": 4})
    assert sorted(map(cells, plan["guests"])) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {sizes(guest) for guest in plan["guests"]} == {(4 * 14, 4 * 56)}


def test_a_guest_with_a_part_has_a_part_and_the_rest_is_said() -> None:
    plan = planned({"gpus": 2})
    (guest,) = plan["guests"]
    (node,) = cells(guest)
    assert node in (1, 3, 5, 7)
    (said,) = unused(plan)
    assert said.startswith("nodes 0,2 have no GPU: 14 cores and 112 GiB there stay unused") or "nodes 4,6" in said


@pytest.mark.parametrize(("vcpus", "nodes"), [(64, [*range(8)]), (56, [1, 3, 5, 7])])
def test_a_size_by_number_that_the_nodes_do_not_divide_stays_beside_its_gpus(vcpus: int, nodes: list[int]) -> None:
    (guest,) = planned({"gpus": 8, "vcpus": vcpus, "memory": "64GiB"})["guests"]
    assert cells(guest) == nodes


def test_a_node_that_is_in_use_is_left_out() -> None:
    other = Held(name="old", pins=(1, 65), memory_bytes=8 << 30)
    (guest,) = planned({"gpus": 8}, guests=[other])["guests"]
    assert cells(guest) == [1, 2, 3, 4, 5, 6, 7]
    assert sizes(guest)[0] == 7 * 14


def test_where_the_nodes_have_no_room_the_guest_stays_beside_its_gpus() -> None:
    """48 GiB a cell would do on the nodes with GPUs only."""
    memory = [16 if node % 2 == 0 else 64 for node in range(8)]
    (guest,) = planned({"gpus": 8, "vcpus": 32, "memory": "192GiB"}, memory_gib=memory)["guests"]
    assert cells(guest) == [1, 3, 5, 7]


def test_a_gpu_on_a_node_without_memory_counts_for_the_nearest_node() -> None:
    """Node 1 has two GPUs, CPUs and no memory: a cell cannot be there."""
    memory = [64, 0, *[64] * 6]
    plan = planned({"gpus": 8}, memory_gib=memory)
    (guest,) = plan["guests"]
    assert cells(guest) == [0, 2, 3, 4, 5, 6, 7]
    assert sizes(guest) == (7 * 14, 7 * 56)
    text = "node 1 has no memory: 7 cores there stay unused; a cell has CPUs and memory of one node"
    assert unused(plan) == [text]
    address = next(card.address for card in CARDS if card.node == 1)
    near = "the nearest with CPUs and memory, at distance 12"
    said = f"{address} is on node 1, which has no memory: it counts for node 0, {near}"
    assert said in [finding["text"] for finding in plan["findings"]]
    (one,) = planned({"gpus": [address]}, memory_gib=memory)["guests"]
    assert (cells(one), sizes(one)) == ([0], (6, 28))


def test_no_node_is_said_to_have_no_gpu_where_the_node_of_one_is_unknown() -> None:
    cards = [replace(card, node=None if card is CARDS[0] else card.node) for card in CARDS]
    assert not unused(planned({"gpus": [CARDS[-1].address]}, cards=cards))
