"""Several guests on an NVSwitch fabric: as many as have a partition each, and nobody has more or less than it."""

from __future__ import annotations

import json

import fabrichosts
import pytest
from joint_fabric import SMALL, Json, board, faults, most
from sweeps import sample

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

BOARDS = 100
PORTIONS = 4


def planned(host: Json, intent: Json) -> Json:
    """The plan as JSON."""
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_as_many_guests_as_have_a_partition_each(portion: int) -> None:
    wrong = {}
    for seed in sample("boards", range(BOARDS), 40)[portion::PORTIONS]:
        found = board(seed)
        if lines := faults(found, planned(found.host, found.intent)):
            wrong[seed] = lines
    assert wrong == {}


def test_the_batches_ask_for_more_than_there_is_often_enough() -> None:
    short = [seed for seed in range(BOARDS) if most(board(seed)) < len(board(seed).guests)]
    assert BOARDS // 3 < len(short) < BOARDS


@pytest.mark.parametrize("counts", [(1, 1), (8, 1), (1, 8), (8, 8), (1, 1, 1, 1)])
def test_without_partitions_one_tenant_has_gpus(counts: tuple[int, ...]) -> None:
    host = fabrichosts.board({"mode": 0, "partitions": None, "generation": "hopper", "source": "configuration"})
    guests = [{"name": f"g{i}", **SMALL, "gpus": count} for i, count in enumerate(counts)]
    guests.append({"name": "none", **SMALL})
    found = planned(host, {"version": 1, "profile": "none", "guests": guests})
    with_gpus = [g["name"] for g in found["guests"] if any(d["kind"] == "gpu" for d in g["devices"])]
    assert len(with_gpus) == 1
    assert "none" in [g["name"] for g in found["guests"]]
    assert len(found["unplaced"]) == len(counts) - 1
    assert all(g["fabric_partition"] is None for g in found["guests"])
    for row in found["unplaced"]:
        assert any("mode 0" in line or "tenant" in line for line in row["why"]), row


def test_with_all_switches_one_guest_has_all_eight() -> None:
    host = fabrichosts.board({"mode": 0, "partitions": None, "generation": "hopper", "source": "configuration"})
    (guest,) = planned(host, {"version": 1, "profile": "none", "guests": [{"name": "g", **SMALL, "gpus": 8}]})["guests"]
    kinds = [device["kind"] for device in guest["devices"]]
    assert (kinds.count("gpu"), kinds.count("nvswitch")) == (8, 4)
