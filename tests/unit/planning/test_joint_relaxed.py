"""What a plan suggests for a guest without a place is true: followed, the guest has one beside those that had one."""

from __future__ import annotations

import json
from pathlib import Path

import joint_fabric
import joint_mig
import joint_sizes
import pytest
from applyroots import EXAMPLE
from batch_cases import case
from joint_relaxed import followed
from plan_facts import Json
from sweeps import sample

from hosttune.cli import run
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

SEEDS = sample("relaxed", range(16), 6)


def planned(host: Json, intent: Json) -> Json:
    """The plan as JSON."""
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


def untrue(host: Json, intent: Json) -> list[str]:
    """Suggestions that do not hold beside the guests that were placed."""
    first = planned(host, intent)
    placed = {guest["name"] for guest in first["guests"]}
    lines = []
    for row in first["unplaced"]:
        for text in row["relaxation"]:
            after = followed(host, intent, row["guest"], text)
            if after is None:
                lines.append(f"{row['guest']}: nobody can follow {text!r}")
                continue
            asked = [guest for guest in after[1]["guests"] if guest["name"] in placed | {row["guest"]}]
            again = {guest["name"] for guest in planned(after[0], {**after[1], "guests": asked})["guests"]}
            if again != {guest["name"] for guest in asked}:
                lines.append(f"{row['guest']}: {text!r} gives {sorted(again)}, beside {sorted(placed)}")
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_on_plain_hosts(seed: int) -> None:
    found = case(seed)
    assert untrue(found.host, found.intent) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_on_fabrics(seed: int) -> None:
    found = joint_fabric.board(seed)
    assert untrue(found.host, found.intent) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_with_vgpus(seed: int) -> None:
    found = joint_mig.batch(seed)
    assert untrue(found.host, found.intent) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_with_sizes_auto(seed: int) -> None:
    found = joint_sizes.sized(seed)
    assert untrue(found.host, found.intent) == []


def test_the_plan_is_the_same_whatever_the_file_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "version: 1\nguests: [{name: a, gpus: ['0000:41:00.0', '0000:9a:00.0']}, {name: b, gpus: 3}]\n"
    found = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(text)
        assert run(["plan", "--root", str(EXAMPLE), "-f", str(tmp_path / f"{name}.yaml"), "-o", "json"]) == 1
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]


def test_of_many_guests_without_a_place_the_first_are_explained() -> None:
    """For hundreds that would take minutes; the others say that they have no place, and the plan says why."""
    host = case(0).host
    guests = [{"name": f"g{n:02}", "gpus": 1, "vcpus": 1 + n % 3, "memory": "1GiB"} for n in range(24)]
    found = planned(host, {"version": 1, "guests": guests})
    rows = found["unplaced"]
    whole = [row["guest"] for row in rows if row["why"][0].startswith("alone it fits; it has no place beside guest")]
    assert whole == [row["guest"] for row in rows[:8]]
    assert {row["why"][0] for row in rows[8:]} == {"alone it fits; it has no place beside the others"}
    assert all(row["relaxation"] == [] for row in rows[8:])
    assert f"{len(rows) - 8} more guests have no place; who is in the way" in " ".join(
        finding["text"] for finding in found["findings"]
    )
