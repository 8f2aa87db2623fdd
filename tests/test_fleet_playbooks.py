"""Every playbook end to end on two scratch hosts: documents stored, each asked once a phase, changed is true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from applyroots import EXAMPLE, Root
from fleethosts import BIN, HOSTTUNE, INTENT, PLAYBOOKS, ROOT, Fleet, fleet, lone, stand_in

from hosttune.model.fleet import Answer
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import Validation

__all__ = ["fleet", "lone"]

NONE = {"h1": 0, "h2": 0}
ONE = {"h1": 1, "h2": 1}
THREE = {"h1": 3, "h2": 3}
OK = {"h1": "ok", "h2": "ok"}
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
    assert changed(fleet, "discover") == NONE
    assert fleet.executions() == ONE
    assert fleet.outcomes("discover") == OK
    assert [gpu.model for gpu in read(fleet, "h2", "discover").gpus].count("NVIDIA H200") == 8

    assert changed(fleet, "plan") == ONE
    assert fleet.executions() == ONE
    assert read(fleet, "h2", "plan").guests[0].name == "train"
    assert changed(fleet, "plan") == NONE  # the same plan again
    fleet.executions()

    assert changed(fleet, "apply") == ONE
    assert fleet.executions() == THREE  # before, apply, validate
    assert read(fleet, "h1", "apply").changed
    assert {entry.outcome for entry in read(fleet, "h1", "apply").entries} >= {"done"}
    assert fleet.records("h1") == {"discover", "plan", "before", "apply", "validate"}
    assert Root(fleet.root("h1")).driver("0000:41:00.0") == "vfio-pci"
    assert changed(fleet, "apply") == NONE
    fleet.executions()

    assert changed(fleet, "validate", against="before") == NONE
    assert fleet.executions() == ONE
    validation = read(fleet, "h2", "validate")
    assert (validation.level, validation.verdict in ("pass", "warn")) == (0, True)
    assert validation.worse == ()

    assert changed(fleet, "revert") == ONE
    assert fleet.executions() == THREE
    assert Root(fleet.root("h1")).driver("0000:41:00.0") == "nvidia"
    assert changed(fleet, "revert") == NONE


def test_an_answer_is_sealed_with_what_became_of_it(lone: Fleet) -> None:
    lone.play("validate", "--limit", "h1", run="r1")
    document = lone.document("h1", "validate")
    seal = document.pop("fleet")
    answer = Answer(**seal)
    assert (answer.host, answer.phase, answer.run, answer.outcome, answer.exit_code) == (
        "h1",
        "validate",
        "r1",
        "ok",
        0,
    )
    assert answer.verdict == document["verdict"]
    printed = subprocess.run(
        [HOSTTUNE, "validate", "--root", str(lone.root("h1")), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert json.loads(printed) == document  # its own keys untouched


def test_handover_is_level_2_which_no_captured_host_can_do(lone: Fleet) -> None:
    out = lone.play("handover", code=2).out
    assert set(lone.outcomes("handover").values()) == {"refused"}
    document = lone.document("h1", "handover")
    assert (document["verdict"], document["level"]) == ("unknown", 2)
    assert "level 2 runs benchmarks, and a captured host cannot be measured" in out


def test_the_level_of_an_inventory_lowers_no_handover(lone: Fleet) -> None:
    lone.variables["hosttune_level"] = 0
    lone.play("handover", code=2)
    assert lone.outcomes("handover") == {"h1": "refused"}
    assert "level 2 runs benchmarks" in lone.document("h1", "handover")["fleet"]["why"]


def test_handover_at_a_level_of_the_operator_says_so(lone: Fleet) -> None:
    played = lone.play("handover", level=0)
    assert "a handover at level 0: hosttune_level is set, without it the level is 2" in played.out
    assert lone.outcomes("handover") == {"h1": "ok"}
    assert lone.executions() == {"h1": 1}


def test_check_mode_writes_nothing_on_the_host_and_a_diff_shows_what_would_be(lone: Fleet) -> None:
    def check(verb: str, *, would: bool) -> str:
        before = Root(lone.root("h1")).tree()
        played = lone.play(verb, "--check", "--diff")
        assert Root(lone.root("h1")).tree() == before
        assert lone.outcomes(f"{verb}.check") == {"h1": "ok"}
        assert lone.document("h1", f"{verb}.check")["fleet"]["check"] is True
        assert played.recap()["h1"]["changed"] == int(would)
        assert lone.executions() == {"h1": 2 if verb in ("apply", "revert") else 1}
        return played.out

    check("validate", would=False)
    for verb in ("plan", "apply"):
        out = check(verb, would=True)
        assert "+driver:0000:41:00.0 = vfio-pci" in out
        assert "-driver:0000:41:00.0 = nvidia" in out
    check("revert", would=False)
    lone.play("plan")
    assert "+driver:0000:41:00.0 = vfio-pci" in lone.play("apply", "--diff").out
    lone.executions()
    check("plan", would=False)
    check("apply", would=False)
    check("revert", would=True)


def test_an_intent_in_a_file_and_one_of_a_vault(lone: Fleet, tmp_path: Path) -> None:
    plain = tmp_path / "intent.yml"
    plain.write_text("version: 1\nguests:\n  - {name: filed, gpus: 1}  # a comment, {{ braces }}\n")
    lone.play("plan", "--limit", "h1", intent=str(plain))
    assert lone.document("h1", "plan")["guests"][0]["name"] == "filed"
    (tmp_path / "word").write_text("secret\n")
    vault = [str(BIN / "ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "word"), str(plain)]
    subprocess.run(vault, check=True, capture_output=True, env=lone.environment())
    assert "filed" not in plain.read_text()
    played = lone.play(
        "plan", "-vvv", "--limit", "h1", "--vault-password-file", str(tmp_path / "word"), intent=str(plain)
    )
    assert lone.document("h1", "plan")["guests"][0]["name"] == "filed"
    assert "filed" not in played.out  # what was encrypted is in no log


def test_ad_hoc_returns_the_document_and_stores_nothing(lone: Fleet) -> None:
    lone.variables["hosttune_results"] = None
    out = lone.ansible("ansible", "h1", "-m", "hosttune", "-a", "phase=status").out
    assert '"schema": "hosttune.result/v1"' in out
    assert not lone.results.exists()


def test_the_default_folder_of_results_is_below_the_working_directory(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, hosttune_results=None)
    fleet.play("discover", code=2, command="/no/such/command")
    assert (
        json.loads((tmp_path / "hosttune-results/h1/discover.json").read_text())["fleet"]["outcome"] == "not-installed"
    )


def test_an_empty_inventory_is_an_error(tmp_path: Path) -> None:
    played = Fleet(tmp_path, {}).play("validate", code=2)
    assert "The inventory names no host" in played.out


def test_a_limit_that_matches_nothing_is_an_error(lone: Fleet) -> None:
    played = lone.play("validate", "--limit", "nosuch", code=1)
    assert "leaves us with no hosts to target" in played.out


def test_a_broken_inventory_is_an_error_that_names_it(lone: Fleet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("all:\n  hosts: {h1: [\n")
    command = [str(BIN / "ansible-playbook"), "-i", str(broken), str(PLAYBOOKS / "validate.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=lone.environment(), cwd=tmp_path)
    assert done.returncode == 1
    assert str(broken) in done.stderr
    assert not lone.results.exists()


def test_an_intent_of_another_version_is_bad_input_and_changes_nothing(lone: Fleet) -> None:
    before = Root(lone.root("h1")).tree()
    lone.play("apply", code=2, intent={"version": 2, "guests": []})
    answer = lone.document("h1", "apply")["fleet"]
    assert (answer["outcome"], answer["exit_code"]) == ("bad-input", 2)
    assert "version" in answer["why"]
    assert Root(lone.root("h1")).tree() == before


def test_what_ansible_doc_shows_is_a_manual(lone: Fleet) -> None:
    command = [str(BIN / "ansible-doc"), "-M", str(PLAYBOOKS / "library"), "hosttune", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=lone.environment(), cwd=ROOT)
    page = json.loads(done.stdout)["hosttune"]
    source = "".join((PLAYBOOKS / part / "hosttune.py").read_text() for part in ("library", "action_plugins"))
    assert set(page["doc"]["options"]) >= {"phase", "intent", "results", "gate", "timeout", "rescue"}
    assert [name for name in page["doc"]["options"] if f'"{name}"' not in source] == []  # what is documented is taken
    assert set(page["return"]) >= {"outcome", "why", "verdict", "reboot_required", "file"}
    assert page["examples"].count("hosttune:") >= 3
    assert INTENT["version"] == 1


def test_the_module_is_source_that_old_pythons_of_hosts_read() -> None:
    """RHEL 9's own Python is 3.9; hosttune's is another one, and the module runs in the host's."""
    for path in (PLAYBOOKS / "library/hosttune.py", PLAYBOOKS / "module_utils/hosttune_answer.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        assert names <= sys.stdlib_module_names
        assert "hosttune" not in names


def test_the_controller_needs_no_hosttune(tmp_path: Path) -> None:
    """A system-wide Ansible: the package is not to be imported there."""
    block = tmp_path / "without"
    (block / "hosttune").mkdir(parents=True)
    (block / "hosttune/__init__.py").write_text("raise ImportError('not here')\n")
    fleet = stand_in(tmp_path, hosttune_command=HOSTTUNE, hosttune_root=str(EXAMPLE))
    command = [str(BIN / "ansible-playbook"), "-i", str(fleet.inventory()), str(PLAYBOOKS / "discover.yml")]
    environment = {**fleet.environment(), "PYTHONPATH": str(block)}
    fleet.variables["hosttune_command"] = ["/usr/bin/env", "-u", "PYTHONPATH", HOSTTUNE]
    fleet.inventory()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.outcomes("discover") == {"h1": "ok"}


def test_the_page_names_every_variable_there_is() -> None:
    page = (ROOT / "docs/playbooks.md").read_text()
    tables = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `hosttune_"))
    told = set(re.findall(r"`hosttune_(\w+)`", tables))
    tree = ast.parse((PLAYBOOKS / "library/hosttune.py").read_text())
    manual = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    options = set(yaml.safe_load(manual)["options"]) - {"phase", "answer", "rescue", "carried", "job"}
    elsewhere = ("bootstrap", "monitoring")  # pages of their own
    text = "".join(path.read_text() for path in PLAYBOOKS.glob("**/*.yml") if not path.name.startswith(elsewhere))
    # Of the command's own making (see hosttune/fleet), and what a playbook itself registers or groups.
    own = {"keep_before", "keep_course", "course", "course_", "course_no", "course_yes", "pairs_jobs", "pairs_record"}
    own |= {"collective_jobs", "collective_record"}
    used = set(re.findall(r"(?<!_)hosttune_(\w+)", text)) - own
    assert told == options | used | {"templates"}
