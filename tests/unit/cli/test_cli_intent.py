"""`apply --intent`, and `plan` of an intent that is applied: what a fleet's second visit finds nothing to do for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import applyroots
import boardroots
import pytest
from applyroots import EXAMPLE, GPU, OTHER_GPU, PREFERENCE, STATE, Cli, outcomes

from hosttune.cli import run

pristine = boardroots.lean_host
plan = applyroots.plan
root = applyroots.root
cli = applyroots.cli

INTENT = "version: 1\nguests: [{name: t1, gpus: ['%s']}]\n"


@pytest.fixture
def intent(tmp_path: Path) -> Path:
    path = tmp_path / "intent.yaml"
    path.write_text(INTENT % GPU)
    return path


def saved(cli: Cli) -> Path:
    return cli.root.path / STATE / "plan.json"


def planned_here(cli: Cli, intent: Path) -> tuple[int, str, str]:
    saved(cli).parent.mkdir(parents=True, exist_ok=True)
    return cli("plan", "-f", str(intent), "--out", str(saved(cli)), "-o", "json")


def test_an_intent_is_planned_and_applied(cli: Cli, intent: Path) -> None:
    found = cli.json("apply", "--intent", str(intent), "--yes")
    assert found["changed"] is True
    assert cli.root.driver(GPU) == "vfio-pci"
    assert "guest:t1" in outcomes(found)


def test_a_second_apply_of_an_intent_changes_nothing(cli: Cli, intent: Path) -> None:
    cli.json("apply", "--intent", str(intent), "--yes")
    before = cli.root.tree()
    found = cli.json("apply", "--intent", str(intent), "--yes")
    assert found["changed"] is False
    after = cli.root.tree()
    assert {name for name in after if after[name] != before.get(name)} == {f"{STATE}/lock"}


def test_an_intent_written_in_another_way_is_the_same(cli: Cli, intent: Path) -> None:
    cli.json("apply", "--intent", str(intent), "--yes")
    intent.write_text(json.dumps({"version": 1, "profile": "guest", "guests": [{"name": "t1", "gpus": [GPU]}]}))
    assert cli.json("apply", "--intent", str(intent), "--yes")["changed"] is False


def test_an_intent_is_planned_anew_whatever_plan_is_saved(cli: Cli, intent: Path) -> None:
    code, _, err = planned_here(cli, intent)
    assert (code, err) == (0, f"plan saved: {saved(cli)}\n")
    document = json.loads(saved(cli).read_text())
    saved(cli).write_text(json.dumps({**document, "findings": []}))
    cli.json("apply", "--intent", str(intent), "--yes")
    kept = cli.root.path / STATE / "transactions"
    plans = [json.loads(path.read_text()) for path in kept.iterdir() if path.suffix == ".json"]
    assert [plan["findings"] for plan in plans] == [document["findings"]]


def test_a_value_that_moved_since_the_plan_is_set_nevertheless(cli: Cli, intent: Path) -> None:
    planned_here(cli, intent)
    cli.root.put(PREFERENCE.format(1), "power\n")
    assert cli("apply", "--yes")[0] == 0
    assert cli.root.get(PREFERENCE.format(1)) == "performance"


def test_another_intents_saved_plan_is_left_alone(cli: Cli, intent: Path) -> None:
    planned_here(cli, intent)
    other = intent.with_name("other.yaml")
    other.write_text(INTENT.replace("t1", "t2") % OTHER_GPU)
    cli.json("apply", "--intent", str(other), "--yes")
    assert cli.root.driver(OTHER_GPU) == "vfio-pci"
    assert cli.root.driver(GPU) == "nvidia"


def test_a_rehearsal_of_an_intent_writes_nothing(cli: Cli, intent: Path) -> None:
    before = cli.root.tree()
    found = cli.json("apply", "--intent", str(intent), "--dry-run")
    assert found["writes"]
    assert cli.root.tree() == before


def test_an_intent_is_read_from_standard_input(cli: Cli, intent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with intent.open("rb") as file:
        keep = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert cli.json("apply", "--intent", "-", "--yes")["changed"] is True
        finally:
            os.dup2(keep, 0)
            os.close(keep)


def test_a_plan_of_what_is_applied_keeps_it(cli: Cli, intent: Path) -> None:
    cli.json("apply", "--intent", str(intent), "--yes")
    code, again, _ = planned_here(cli, intent)
    assert (code, [guest["change"] for guest in json.loads(again)["guests"]]) == (0, ["keep"])


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("version: 2\nguests: []\n", 2, "version"),
        ("version: 1\nguests: [{name: t1, gpus: 9}]\n", 1, "unplaced"),
        ("version: 1\nguests: [{name: t1, gpsu: 1}]\n", 2, "guests[0].gpsu"),
        (": :\n", 2, "intent.yaml"),
    ],
)
def test_an_intent_that_cannot_be_applied_changes_nothing(
    cli: Cli, intent: Path, text: str, code: int, where: str
) -> None:
    intent.write_text(text)
    before = cli.root.tree()
    got, out, err = cli("apply", "--intent", str(intent), "--yes")
    assert (got, out) == (code, "")
    assert where in err
    assert cli.root.tree() == before


def test_an_intent_for_a_capture_is_refused(intent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--root", str(EXAMPLE), "--intent", str(intent), "--yes"]) == 3
    assert "a captured host cannot be changed" in capsys.readouterr().err


def test_a_plan_and_an_intent_are_one_too_many(cli: Cli, intent: Path) -> None:
    code, _, err = cli("apply", str(intent), "--intent", str(intent))
    assert code == 2
    assert "both a plan and an intent" in err
