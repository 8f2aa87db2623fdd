"""What a host says of its NVSwitch fabric does not hold together: it is said which was believed, never passed over."""

from __future__ import annotations

import json

import pytest
from fabrichosts import AT, GPUS, H200, MODULES, SWITCHES, board, decide, gpus_of, listed, shared, told
from planhosts import Held

from hosttune.model.host import Host
from hosttune.planning.fabric.guest import not_startable


def test_mode_0_and_a_list_of_partitions_contradict_each_other() -> None:
    found = decide(board(shared(mode=0)), {"gpus": [AT[1], AT[3]]})
    assert found.guests[0].fabric_partition == 3
    (text,) = told(found, "warn")
    assert "FABRIC_MODE=0 is configured here" in text
    assert "the two contradict each other. The list is used" in text
    assert told(decide(board(shared()), {"gpus": [AT[1], AT[3]]}), "warn") == []


def test_a_list_under_an_unknown_mode_is_believed_aloud() -> None:
    found = decide(board({**shared(), "mode": None}), {"gpus": [AT[1], AT[3]]})
    assert found.guests[0].fabric_partition == 3
    (text,) = told(found, "warn")
    assert "the mode is unknown, and there is a list of partitions: assumed to be mode 1" in text


def test_the_list_of_a_service_vm_is_no_contradiction() -> None:
    found = decide(board(shared(mode=0), guests=[Held(name="fm", devices=SWITCHES)]), {"gpus": 4})
    assert found.guests[0].fabric_partition in (1, 2)
    (text,) = told(found, "warn")
    assert "guest fm has the NVSwitches and no GPU" in text


@pytest.mark.parametrize(
    ("table", "modules", "why"),
    [
        ({3: set()}, MODULES, "its partitions name no module id, and the GPUs have 1, 2, 3, 4, 5, 6, 7, 8"),
        ({3: {99}}, MODULES, "its partitions name module ids 99, and the GPUs have 1, 2, 3, 4, 5, 6, 7, 8"),
        (
            H200,
            {address: 100 + n for n, address in enumerate(GPUS)},
            "its partitions name module ids 1, 2, 3, 4, 5, 6, 7, 8, and the GPUs have 100, 101, 102, 103",
        ),
    ],
    ids=["of nothing", "of another module", "of another board"],
)
def test_a_known_list_that_holds_none_of_the_gpus_places_none(
    table: dict[int, set[int]], modules: dict[str, int | None], why: str
) -> None:
    document = board({"mode": 1, "partitions": listed(table)}, modules=modules)
    for count in (1, 2, 8):
        found = decide(document, {"gpus": count})
        assert found.guests == ()
        assert any(why in line for line in found.unplaced[0].why)
    found = decide(document, {"gpus": [AT[1]]})
    assert found.guests == ()
    assert any(line.startswith("guests[0].gpus: ") and why in line for line in found.unplaced[0].why)
    assert decide(document, {"gpus": 0}).unplaced == ()


def test_gpus_that_claim_one_module_contradict_each_other_and_the_rest_is_known() -> None:
    document = board(shared(), modules={**MODULES, AT[4]: 2})
    mine = sorted((AT[2], AT[4]))
    found = decide(document, {"gpus": mine})
    (text,) = told(found, "error")
    assert "whose module ids contradict each other" in text
    assert f"{mine[0]} and {mine[1]} all claim module id 2" in text
    assert "unknown" not in text
    assert not_startable(Host.from_json(json.dumps(document)), found.guests[0]) is not None
    rest = decide(document, {"gpus": 2})
    assert set(gpus_of(rest)).isdisjoint(mine)
    assert rest.guests[0].fabric_partition in (3, 5, 6)


def test_gpus_that_all_claim_one_module_are_in_no_partition_that_is_known() -> None:
    document = board(shared(), modules=dict.fromkeys(GPUS, 1))
    for request in ({"gpus": 3}, {"gpus": list(GPUS[:2])}):
        found = decide(document, request)
        assert found.guests[0].fabric_partition is None
        assert found.guests[0].steps == ()
        assert any("all claim module id 1" in text for text in told(found, "error"))
        assert not_startable(Host.from_json(json.dumps(document)), found.guests[0]) is not None
