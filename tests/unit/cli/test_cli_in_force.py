"""After a revert that left something alone: validation, status and `apply --intent` speak of what is in force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import GPU, PAGES, PREFERENCE, Cli, outcomes

from hosttune.cli import run
from hosttune.machine.scratch import Scratch
from hosttune.model.plan import Plan
from hosttune.transaction.site import site_of

plan = applyroots.plan
root = applyroots.root
cli = applyroots.cli

INTENT = f"version: 1\nprofile: host\nguests: [{{name: t1, gpus: ['{GPU}']}}]\n"


@pytest.fixture
def intent(tmp_path: Path) -> Path:
    path = tmp_path / "intent.yaml"
    path.write_text(INTENT)
    return path


def by_plan(cli: Cli) -> list[dict[str, Any]]:
    """The results of a validation that judge by a plan."""
    found = json.loads(cli("validate", "-o", "json")[1])["results"]
    return [one for one in found if "planned" in f"{one['expected']}" or "applied plan" in f"{one['expected']}"]


def in_force(cli: Cli) -> Plan | None:
    return site_of(Scratch(str(cli.root.path))).plan_in_force()


def test_a_plan_that_was_reverted_but_for_a_conflict(cli: Cli, intent: Path, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert cli("plan", "-f", str(intent), "--out", str(path))[0] == 0
    wanted = Plan.from_json(path.read_text())
    before = by_plan(cli)
    assert cli("apply", str(path), "--yes", "--no-guests")[0] == 0
    assert {one["check"] for one in by_plan(cli) if one not in before} >= {"cpu-idle"}
    assert (now := in_force(cli)) is not None
    assert {one.id for one in wanted.actions} >= {one.id for one in now.actions}
    assert now.guests == wanted.guests
    applyroots.put_pages(cli, 300)
    cli.root.put(PREFERENCE.format(1), "power\n")
    found = outcomes(cli.json("revert", "--yes", code=1))
    left = {name for name, outcome in found.items() if outcome == "conflict"}
    assert left == {f"hugepages:/{PAGES}", "energy-preference:cpus 1-11,97-107"}
    assert by_plan(cli) == before  # what they say where nothing is planned
    assert in_force(cli) is None
    applied_state = cli.json("status", code=1)
    assert outcomes(applied_state) == {
        f"hugepages:/{PAGES}": "conflict",
        "energy-preference:cpus 1": "conflict",  # the others went back
    }
    assert applied_state["drift"] == []
    assert "nothing in force" in cli("status")[1]
    (told,) = [
        one for one in json.loads(cli("validate", "-o", "json")[1])["results"] if one["check"] == "settings-in-force"
    ]
    assert (told["outcome"], "revert --force" in told["hint"]) == ("warn", True)
    again = outcomes(cli.json("apply", "--intent", str(intent), "--dry-run"))
    assert again[f"driver:{GPU}"] == "planned"  # planned anew: of the reverted plan nothing is left to go by
    assert cli("revert", "--yes", "--force")[0] == 0
    assert cli.json("status")["entries"] == []


def test_a_plan_by_options_keeps_the_profile_in_force(cli: Cli, intent: Path) -> None:
    intent.write_text(f"{INTENT}settings: {{thp: never}}\n")
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    options = ("--gpus", "1", "--name", "t2", "--network", "default", "-o", "json")
    beside = Plan.from_json(cli("plan", *options)[1])
    assert [guest.name for guest in beside.guests] == ["t2"]
    assert (beside.intent.profile, [action.id for action in beside.actions if action.change == "back"]) == ("host", [])
    narrower = Plan.from_json(cli("plan", *options, "--profile", "guest")[1])
    assert narrower.intent.profile == "guest"
    assert "numa-balancing:kernel.numa_balancing" in {
        action.id for action in narrower.actions if action.change == "back"
    }


def test_a_rehearsal_on_a_host_document_names_what_it_cannot_tell(
    cli: Cli, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is planned has its writes, or a line that says why they are not known."""
    document = tmp_path / "host.json"
    document.write_text(cli("discover", "-o", "json")[1])
    assert run(["apply", "--host", str(document), str(plan), "--dry-run", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert outcomes(found)[f"driver:{GPU}"] == "planned"
    assert f"(driver {GPU}: unknown here, its state is not recorded)" in found["writes"]


def test_what_a_rehearsal_says_of_a_guests_files(cli: Cli, plan: Path) -> None:
    """Each once, by size and digest: the seed's texts hold the bundle a second time."""
    writes = cli.json("apply", str(plan), "--dry-run")["writes"]
    files = [line for line in writes if "/guests/gpu-guest/" in line]
    assert len(files) > 5
    assert all("sha256" in line and "\n" not in line for line in files)
    assert len({line.split()[1] for line in files}) == len(files)
