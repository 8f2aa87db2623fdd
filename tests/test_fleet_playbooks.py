"""Every playbook end to end on three scratch hosts: documents stored, each asked once a phase, changed is true."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from applyroots import Root
from fleethosts import BIN, HOSTTUNE, INTENT, PLAYBOOKS, ROOT, Fleet, fleet, pristine, stand_in

from hosttune.model.fleet import Answer
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import Validation

__all__ = ["fleet", "pristine"]

ONE = {"h1": 1, "h2": 1, "h3": 1}
OK = {"h1": "ok", "h2": "ok", "h3": "ok"}
MODELS: dict[str, Any] = {"discover": Host, "plan": Plan, "apply": Result, "validate": Validation, "revert": Result}


def read(fleet: Fleet, host: str, record: str) -> Any:
    """A stored document as its model reads it, the key `fleet` left to the Answer."""
    text = (fleet.results / host / f"{record}.json").read_text()
    return MODELS[record].from_json(text)


def changed(fleet: Fleet, verb: str, *options: str, **variables: Any) -> dict[str, int]:
    """How many tasks of a run changed each host."""
    recap = fleet.play(verb, *options, **variables).recap()
    return {host: recap[host]["changed"] for host in fleet.hosts}


def test_the_whole_story(fleet: Fleet) -> None:
    assert changed(fleet, "discover") == {"h1": 0, "h2": 0, "h3": 0}
    assert fleet.executions() == ONE
    assert fleet.outcomes("discover") == OK
    assert [gpu.model for gpu in read(fleet, "h3", "discover").gpus].count("NVIDIA H200") == 8

    assert changed(fleet, "plan") == ONE
    assert fleet.executions() == ONE
    assert read(fleet, "h2", "plan").guests[0].name == "train"
    assert changed(fleet, "plan") == {"h1": 0, "h2": 0, "h3": 0}  # the same plan again
    fleet.executions()

    assert changed(fleet, "apply") == ONE
    assert fleet.executions() == {"h1": 3, "h2": 3, "h3": 3}  # before, apply, validate
    assert read(fleet, "h1", "apply").changed
    assert {entry.outcome for entry in read(fleet, "h1", "apply").entries} >= {"done"}
    assert fleet.records("h1") == {"discover", "plan", "before", "apply", "validate"}
    assert Root(fleet.root("h1")).driver("0000:41:00.0") == "vfio-pci"
    assert changed(fleet, "apply") == {"h1": 0, "h2": 0, "h3": 0}
    fleet.executions()

    assert changed(fleet, "validate", against="before") == {"h1": 0, "h2": 0, "h3": 0}
    assert fleet.executions() == ONE
    validation = read(fleet, "h2", "validate")
    assert (validation.level, validation.verdict in ("pass", "warn")) == (0, True)
    assert validation.worse == ()

    assert changed(fleet, "revert") == ONE
    assert fleet.executions() == {"h1": 3, "h2": 3, "h3": 3}
    assert Root(fleet.root("h1")).driver("0000:41:00.0") == "nvidia"
    assert changed(fleet, "revert") == {"h1": 0, "h2": 0, "h3": 0}


def test_an_answer_is_sealed_with_what_became_of_it(fleet: Fleet) -> None:
    fleet.play("validate", "--limit", "h2", run="r1")
    document = fleet.document("h2", "validate")
    seal = document.pop("fleet")
    answer = Answer(**seal)
    assert (answer.host, answer.phase, answer.run, answer.outcome, answer.exit_code) == (
        "h2",
        "validate",
        "r1",
        "ok",
        0,
    )
    assert answer.verdict == document["verdict"]
    printed = subprocess.run(
        [HOSTTUNE, "validate", "--root", str(fleet.root("h2")), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert json.loads(printed) == document  # its own keys untouched
    assert fleet.records("h1") == set()


def test_handover_is_level_2_which_no_captured_host_can_do(fleet: Fleet) -> None:
    out = fleet.play("handover", code=2).out
    assert set(fleet.outcomes("handover").values()) == {"refused"}
    document = fleet.document("h1", "handover")
    assert (document["verdict"], document["level"]) == ("unknown", 2)
    assert "level 2 measures a machine, and a captured host is none" in out


def test_handover_at_a_level_of_the_operator_says_so(fleet: Fleet) -> None:
    played = fleet.play("handover", level=0)
    assert "a handover at level 0: hosttune_level is set, without it the level is 2" in played.out
    assert fleet.outcomes("handover") == OK
    assert fleet.executions() == ONE


@pytest.mark.parametrize("verb", ["plan", "apply", "revert", "validate", "handover", "discover"])
def test_check_mode_writes_nothing_on_the_host(fleet: Fleet, verb: str) -> None:
    if verb == "revert":
        fleet.play("apply")
        fleet.executions()
    before = {host: Root(fleet.root(host)).tree() for host in fleet.hosts}
    played = fleet.play(verb, "--check", "--diff")
    assert {host: Root(fleet.root(host)).tree() for host in fleet.hosts} == before
    record = f"{verb}.check"
    assert fleet.outcomes(record) == OK
    assert fleet.document("h1", record)["fleet"]["check"] is True
    would = verb in ("plan", "apply", "revert")
    assert [played.recap()[host]["changed"] for host in fleet.hosts] == [int(would)] * 3
    waves = verb in ("apply", "revert")
    assert fleet.executions() == ({"h1": 2, "h2": 2, "h3": 2} if waves else ONE)
    if verb in ("plan", "apply"):
        assert "+driver:0000:41:00.0 = vfio-pci" in played.out
        assert "-driver:0000:41:00.0 = nvidia" in played.out


def test_a_second_plan_in_check_mode_would_change_nothing(fleet: Fleet) -> None:
    fleet.play("plan")
    assert changed(fleet, "plan", "--check") == {"h1": 0, "h2": 0, "h3": 0}
    fleet.play("apply")
    assert changed(fleet, "apply", "--check") == {"h1": 0, "h2": 0, "h3": 0}


def test_a_diff_of_what_was_applied(fleet: Fleet) -> None:
    out = fleet.play("apply", "--diff", "--limit", "h1").out
    assert "+driver:0000:41:00.0 = vfio-pci" in out


def test_an_intent_in_a_file_and_one_of_a_vault(fleet: Fleet, tmp_path: Path) -> None:
    plain = tmp_path / "intent.yml"
    plain.write_text("version: 1\nguests:\n  - {name: filed, gpus: 1}  # a comment, {{ braces }}\n")
    fleet.play("plan", "--limit", "h1", intent=str(plain))
    assert fleet.document("h1", "plan")["guests"][0]["name"] == "filed"
    (tmp_path / "word").write_text("secret\n")
    vault = [str(BIN / "ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "word"), str(plain)]
    subprocess.run(vault, check=True, capture_output=True, env=fleet.environment())
    assert "filed" not in plain.read_text()
    played = fleet.play(
        "plan", "-vvv", "--limit", "h2", "--vault-password-file", str(tmp_path / "word"), intent=str(plain)
    )
    assert fleet.document("h2", "plan")["guests"][0]["name"] == "filed"
    assert "filed" not in played.out  # what was encrypted is in no log


def test_ad_hoc_returns_the_document_and_stores_nothing(fleet: Fleet) -> None:
    fleet.variables["hosttune_results"] = None
    out = fleet.ansible("ansible", "h1", "-m", "hosttune", "-a", "phase=status").out
    assert '"schema": "hosttune.result/v1"' in out
    assert not fleet.results.exists()


def test_the_default_folder_of_results_is_below_the_working_directory(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, hosttune_results=None)
    fleet.play("discover", code=2, command="/no/such/command")
    assert (
        json.loads((tmp_path / "hosttune-results/h1/discover.json").read_text())["fleet"]["outcome"] == "not-installed"
    )


def test_an_empty_inventory_is_an_error(tmp_path: Path) -> None:
    played = Fleet(tmp_path, {}).play("validate", code=2)
    assert "The inventory names no host" in played.out


def test_a_limit_that_matches_nothing_is_an_error(fleet: Fleet) -> None:
    played = fleet.play("validate", "--limit", "nosuch", code=1)
    assert "leaves us with no hosts to target" in played.out


def test_a_broken_inventory_is_an_error_that_names_it(fleet: Fleet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("all:\n  hosts: {h1: [\n")
    command = [str(BIN / "ansible-playbook"), "-i", str(broken), str(PLAYBOOKS / "validate.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=fleet.environment(), cwd=tmp_path)
    assert done.returncode == 1
    assert str(broken) in done.stderr
    assert not fleet.results.exists()


def test_an_intent_of_another_version_is_bad_input_and_changes_nothing(fleet: Fleet) -> None:
    before = Root(fleet.root("h1")).tree()
    print(fleet.play("apply", "--limit", "h1", code=2, intent={"version": 2, "guests": []}).out)
    answer = fleet.document("h1", "apply")["fleet"]
    assert (answer["outcome"], answer["exit_code"]) == ("bad-input", 2)
    assert "version" in answer["why"]
    assert Root(fleet.root("h1")).tree() == before


def test_what_ansible_doc_shows_is_a_manual(fleet: Fleet) -> None:
    command = [str(BIN / "ansible-doc"), "-M", str(PLAYBOOKS / "library"), "hosttune", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=fleet.environment(), cwd=ROOT)
    page = json.loads(done.stdout)["hosttune"]
    source = "".join((PLAYBOOKS / part / "hosttune.py").read_text() for part in ("library", "action_plugins"))
    assert set(page["doc"]["options"]) >= {"phase", "intent", "results", "gate", "timeout", "rescue"}
    assert [name for name in page["doc"]["options"] if f'"{name}"' not in source] == []  # what is documented is taken
    assert set(page["return"]) >= {"outcome", "why", "verdict", "reboot_required", "file"}
    assert page["examples"].count("hosttune:") >= 3
    assert INTENT["version"] == 1
