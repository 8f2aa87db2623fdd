"""Many hosts through discover, plan, validate: each answers, is asked once a phase, and nothing of it is held.

Only in a full sweep: `make test` tells the same of two hosts (test_fleet_playbooks), and of shards without Ansible
(unit/fleet/test_fleet_course). What it costs is measured by `make bench-fleet`, with a thousand hosts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleethosts import HOSTTUNE, INTENT, Fleet
from sweeps import FULL

from hosttune.model.fleet import FleetReport
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.validation import Validation

pytestmark = pytest.mark.skipif(not FULL, reason="part of the full sweep (HOSTTUNE_SWEEP=full)")
NAMES = [f"gpu-{number:03d}" for number in range(1, 33)]
SHARD = -(-len(NAMES) // 2)  # two ansible processes, of which none knows all hosts' answers
DOCUMENTS: dict[str, Any] = {"discover": Host, "plan": Plan, "validate": Validation}
EVENT_BYTES = 4096  # of a host's result as Ansible passes it on


@pytest.fixture(scope="module")
def fleet(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Hosts that share one captured root, to which nothing can be written."""
    folder = tmp_path_factory.mktemp("fleet")
    root = folder / "captured"
    subprocess.run(["cp", "-al", str(pristine), str(root)], check=True)
    (root / ".hosttune/scratch").unlink()
    return Fleet(folder, {name: {"hosttune_root": str(root)} for name in NAMES}, {"hosttune_intent": INTENT})


@pytest.fixture(scope="module")
def counted(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Every phase done, in its order: phase → host → commands that were run on it."""
    found = {}
    for verb in DOCUMENTS:
        command = [
            HOSTTUNE, "fleet", verb, "-i", str(fleet.inventory()), "--results", str(fleet.results),
            "--shard", str(SHARD), "-o", "json",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=fleet.environment(), cwd=fleet.folder, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found[verb] = fleet.executions()
    return found


def report(fleet: Fleet, output: str) -> str:
    command = [HOSTTUNE, "fleet", "report", "--results", str(fleet.results), "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=fleet.environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("verb", DOCUMENTS)
def test_every_host_answers_with_a_whole_document(verb: str, fleet: Fleet, counted: dict[str, Any]) -> None:
    assert verb in counted
    assert fleet.outcomes(verb) == dict.fromkeys(NAMES, "ok")
    for name in NAMES:
        document = fleet.document(name, verb)
        assert document.pop("fleet")["host"] == name
        DOCUMENTS[verb].from_json(json.dumps(document))


@pytest.mark.parametrize("verb", DOCUMENTS)
def test_every_host_is_asked_once_a_phase(verb: str, counted: dict[str, dict[str, int]]) -> None:
    assert counted[verb] == dict.fromkeys(NAMES, 1)


def test_the_report_has_every_host(fleet: Fleet, counted: dict[str, Any]) -> None:
    assert list(counted) == list(DOCUMENTS)
    found = FleetReport.from_json(report(fleet, "json"))
    assert sorted(line.host for line in found.hosts) == NAMES
    assert {line.devices for line in found.hosts} == {"8 × NVIDIA H200"}
    page = report(fleet, "html")
    assert all(f">{name}<" in page or f">{name} <" in page for name in NAMES)


def test_no_result_holds_a_document(fleet: Fleet, counted: dict[str, Any]) -> None:
    results = fleet.folder / "verbose"
    said = fleet.play("discover", "-v", results=str(results)).out  # -v: every result as an event carries it
    kept = [path.stat().st_size for path in results.glob("*/discover.json")]
    assert len(kept) == len(NAMES)
    assert min(kept) > 10 * EVENT_BYTES
    assert "hosttune.host/v1" not in said
    assert len(said) < EVENT_BYTES * len(NAMES)
    shutil.rmtree(results)


def test_the_controller_keeps_nothing_but_answers_and_its_record(fleet: Fleet, counted: dict[str, Any]) -> None:
    found = {path.name for path in fleet.results.iterdir() if not path.name.startswith(".")}
    assert found == {*NAMES, "run.jsonl"}
    kept = {path.name for path in fleet.results.glob("gpu-*/*")}
    assert kept == {f"{verb}.json" for verb in DOCUMENTS}
    assert (fleet.results / "run.jsonl").stat().st_size < EVENT_BYTES * len(NAMES)
