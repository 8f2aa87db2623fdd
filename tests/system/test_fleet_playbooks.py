"""Every playbook end to end on scratch hosts: documents stored, each asked once a phase, changed is true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from applyroots import EXAMPLE
from fleethosts import BIN, COLLECTION, HOSTTUNE, INTENT, PLAYBOOKS, ROOT, Fleet, Played, fleet, simulated, stand_in

from hosttune.cli import run
from hosttune.model.fleet import Answer
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import Validation

__all__ = ["fleet"]

OK = {"h1": "ok", "h2": "ok"}
MODELS: dict[str, Any] = {"plan": Plan, "apply": Result, "validate": Validation}


def read(fleet: Fleet, host: str, record: str) -> Any:
    """A stored document as its model reads it, the key `fleet` left to the Answer."""
    text = (fleet.results / host / f"{record}.json").read_text()
    return MODELS[record].from_json(text)


def changed(played: Played) -> dict[str, int]:
    """How many tasks of a run changed each host."""
    return {host: counts["changed"] for host, counts in played.recap().items() if host != "localhost"}


def test_the_whole_story(fleet: Fleet) -> None:
    """h2 is planned and applied; while h1 is not, check mode says of both what would be.

    Discovery and the way back are in the same story over ssh (test_fleet_ssh).
    """
    fleet.variables["hosttune_waves"] = ["100%"]

    def play(verb: str, *options: str, executions: int, changes: int, **variables: Any) -> Played:
        """A run on h2 alone."""
        played = fleet.play(verb, "--limit", "h2", *options, **variables)
        assert (changed(played), fleet.executions()) == ({"h2": changes}, {"h1": 0, "h2": executions})
        return played

    play("plan", executions=1, changes=1)
    assert read(fleet, "h2", "plan").guests[0].name == "train"
    play("plan", executions=1, changes=0)  # the same plan again

    out = play("apply", "--diff", executions=3, changes=1).out  # before, apply, validate
    assert "+driver:0000:41:00.0 = vfio-pci" in out
    assert read(fleet, "h2", "apply").changed
    assert {entry.outcome for entry in read(fleet, "h2", "apply").entries} >= {"done"}
    assert fleet.records("h2") == {"plan", "before", "apply", "validate"}
    assert fleet.root("h2").driver("0000:41:00.0") == "vfio-pci"
    play("apply", executions=2, changes=0, keep_before=True)

    trees = {host: fleet.root(host).tree() for host in fleet.hosts}
    would = {"validate": (False, False), "plan": (True, True), "apply": (True, False), "revert": (False, True)}
    # One Ansible plays them one after the other; what it counts of a host it adds up.
    words = ("--check", "--diff", *(str(PLAYBOOKS / f"{verb}.yml") for verb in would))
    checked = fleet.ansible("ansible-playbook", *words)
    assert {host: fleet.root(host).tree() for host in fleet.hosts} == trees
    for verb, told in would.items():
        assert fleet.outcomes(f"{verb}.check") == OK
        sealed = [fleet.document(host, f"{verb}.check")["fleet"] for host in fleet.hosts]
        assert [(one["check"], one["changed"]) for one in sealed] == [(True, changes) for changes in told], verb
    assert changed(checked) == {"h1": 2, "h2": 2}
    assert fleet.executions() == {"h1": 6, "h2": 6}
    assert checked.out.count("+driver:0000:41:00.0 = vfio-pci") == 2  # what h1 would get, by its plan and by apply
    assert checked.out.count("-driver:0000:41:00.0 = nvidia") == 2

    play("validate", executions=1, changes=0, against="before")
    validation = read(fleet, "h2", "validate")
    assert (validation.level, validation.verdict in ("pass", "warn")) == (0, True)
    assert validation.worse == ()


# --- hosts that are only looked at -----------------------------------------------------------------------------


@pytest.fixture
def looked_at(pristine: Path, tmp_path: Path) -> Iterator[Fleet]:
    """Two hosts, in whose state a validation keeps its looks at GPUs."""
    with simulated(pristine, tmp_path, ("h1", "h2")) as found:
        found.variables.clear()
        yield found


def test_an_answer_is_sealed_with_what_became_of_it(looked_at: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    looked_at.play("validate", "--limit", "h1", run="r1")
    document = looked_at.document("h1", "validate")
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
    run(["validate", "--root", str(looked_at.root("h1").path), "-o", "json"])
    assert json.loads(capsys.readouterr().out) == document  # its own keys untouched


def test_handover_is_level_2_which_no_captured_host_can_do(looked_at: Fleet) -> None:
    """Also where the inventory has a lower level: that is for its validations."""
    looked_at.hosts["h2"]["hosttune_level"] = 0
    out = looked_at.play("handover", code=2).out
    assert looked_at.outcomes("handover") == {"h1": "refused", "h2": "refused"}
    document = looked_at.document("h1", "handover")
    assert (document["verdict"], document["level"]) == ("unknown", 2)
    assert out.count("level 2 runs benchmarks, and a captured host cannot be measured") >= 2
    assert "level 2 runs benchmarks" in looked_at.document("h2", "handover")["fleet"]["why"]


def test_handover_at_a_level_of_the_operator_says_so(looked_at: Fleet) -> None:
    played = looked_at.play("handover", "--limit", "h1", level=0)
    assert "a handover at level 0: hosttune_level is set, without it the level is 2" in played.out
    assert looked_at.outcomes("handover") == {"h1": "ok"}
    assert looked_at.executions() == {"h1": 1, "h2": 0}


def test_ad_hoc_returns_the_document_and_stores_nothing(looked_at: Fleet) -> None:
    looked_at.variables["hosttune_results"] = None
    out = looked_at.ansible("ansible", "h1", "-m", "hosttune.host.hosttune", "-a", "phase=status").out
    assert '"schema": "hosttune.result/v1"' in out
    assert not looked_at.results.exists()


def test_an_empty_inventory_is_an_error(tmp_path: Path) -> None:
    played = Fleet(tmp_path, {}).play("validate", code=2)
    assert "The inventory names no host" in played.out


def test_a_limit_that_matches_nothing_is_an_error(looked_at: Fleet) -> None:
    played = looked_at.play("validate", "--limit", "nosuch", code=1)
    assert "leaves us with no hosts to target" in played.out


def test_a_broken_inventory_is_an_error_that_names_it(looked_at: Fleet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("all:\n  hosts: {h1: [\n")
    command = [str(BIN / "ansible-playbook"), "-i", str(broken), str(PLAYBOOKS / "validate.yml")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=looked_at.environment(), cwd=tmp_path
    )
    assert done.returncode == 1
    assert str(broken) in done.stderr
    assert not looked_at.results.exists()


def test_what_ansible_doc_shows_is_a_manual(looked_at: Fleet) -> None:
    command = [str(BIN / "ansible-doc"), "--playbook-dir", str(PLAYBOOKS), "hosttune.host.hosttune", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=looked_at.environment(), cwd=ROOT)
    page = json.loads(done.stdout)["hosttune.host.hosttune"]
    source = "".join((COLLECTION / "plugins" / part / "hosttune.py").read_text() for part in ("modules", "action"))
    assert set(page["doc"]["options"]) >= {"phase", "intent", "results", "gate", "timeout", "rescue"}
    assert [name for name in page["doc"]["options"] if f'"{name}"' not in source] == []  # what is documented is taken
    assert set(page["return"]) >= {"outcome", "why", "verdict", "reboot_required", "file"}
    assert page["examples"].count("hosttune.host.hosttune:") >= 3
    assert INTENT["version"] == 1


def test_the_module_is_source_that_old_pythons_of_hosts_read() -> None:
    """RHEL 9's own Python is 3.9; hosttune's is another one, and the module runs in the host's."""
    for name in ("modules/hosttune.py", "module_utils/hosttune_answer.py"):
        path = COLLECTION / "plugins" / name
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
    tree = ast.parse((COLLECTION / "plugins/modules/hosttune.py").read_text())
    manual = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    options = set(yaml.safe_load(manual)["options"]) - {"phase", "answer", "rescue", "carried", "job"}
    elsewhere = ("bootstrap", "monitoring")  # pages of their own
    files = [path for path in PLAYBOOKS.glob("**/*.yml") if path.parent.name not in ("meta", "vars")]
    text = "".join(path.read_text() for path in files if not path.name.startswith(elsewhere))
    # Of the command's own making (see hosttune/fleet), and what a playbook itself registers or groups.
    own = {"keep_before", "keep_course", "course", "course_", "course_no", "course_yes", "pairs_jobs", "pairs_record"}
    own |= {"collective_jobs", "collective_record", "watched"}
    used = set(re.findall(r"(?<!_)hosttune_(\w+)", text)) - own
    assert told == options | used | {"templates"}
