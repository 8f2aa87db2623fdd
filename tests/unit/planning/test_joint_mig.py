"""vGPU guests and whole-GPU guests in one plan: as many as there can be, and every instance where it may be."""

from __future__ import annotations

import json

import pytest
from joint_mig import Batch, Card, batch, cut_off, faults, most, packs, valid
from sweeps import sample

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

BATCHES = 40
SEEDS = sample("instances", range(BATCHES), 8)
PORTIONS = 4


def planned(found: Batch) -> str:
    """The plan of a batch, as JSON."""
    return plan(Host.from_json(json.dumps(found.host)), Intent.from_json(json.dumps(found.intent))).to_json()


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_as_many_guests_as_there_can_be_and_every_instance_where_it_may_be(portion: int) -> None:
    wrong, short = {}, 0
    for seed in SEEDS[portion::PORTIONS]:
        found = batch(seed)
        document = json.loads(planned(found))
        if lines := faults(found, document):
            wrong[seed] = lines
        short += cut_off(document) and len(document["guests"]) < most(found)
    assert wrong == {}
    assert short <= 1  # and that is said


EMPTY = Card("0000:41:00.0")


@pytest.mark.parametrize(
    "wanted",
    [
        ["4g.71gb", "3g.71gb"],
        ["3g.71gb", "3g.71gb"],
        ["4g.71gb", "2g.35gb", "1g.18gb"],
        ["2g.35gb", "2g.35gb", "2g.35gb", "1g.18gb"],
        ["1g.18gb"] * 7,
        ["1g.35gb"] * 4,
        ["3g.71gb", "2g.35gb", "1g.18gb"],
        ["2g.35gb", "2g.35gb", "2g.35gb", "1g.35gb"],
    ],
)
def test_the_judge_accepts_what_the_guide_accepts(wanted: list[str]) -> None:
    assert packs(EMPTY, tuple(wanted))


@pytest.mark.parametrize(
    "wanted",
    [
        ["3g.71gb"] * 3,
        ["1g.18gb+me"] * 2,
        ["7g.141gb", "1g.18gb"],
        ["1g.18gb"] * 8,
        ["4g.71gb"] * 2,
        ["1g.35gb"] * 5,
    ],
)
def test_the_judge_rejects_what_the_guide_rejects(wanted: list[str]) -> None:
    assert not packs(EMPTY, tuple(wanted))


@pytest.mark.parametrize("wrong", [("4g.71gb", 4), ("2g.35gb", 6), ("1g.18gb", 7), ("3g.71gb", 2)])
def test_the_judge_knows_where_instances_start(wrong: tuple[str, int]) -> None:
    assert not valid([wrong])


def test_the_batches_ask_for_more_than_there_is_often_enough() -> None:
    short = [seed for seed in range(BATCHES) if most(batch(seed)) < len(batch(seed).guests)]
    assert BATCHES // 3 < len(short) < BATCHES
