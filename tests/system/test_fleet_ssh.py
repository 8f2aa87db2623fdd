"""The fleet's whole story over real ssh, by hosttune's own command and by ansible-playbook alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from applyroots import GPU, STATE, Root
from sshhosts import BIN, ssh_fleet
from sshruns import Runs, copy_root

NAMES = tuple(f"gpu-{number}" for number in (1, 2))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> Iterator[Runs]:
    """Two hosts, all well."""
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_fleet(folder) as fleet:
        for name in NAMES:
            fleet.host(name, copy_root(pristine, folder / f"{name}-root").path)
        yield Runs(fleet, folder)


def each(number: int) -> dict[str, int]:
    """The same number for every host."""
    return dict.fromkeys(NAMES, number)


def asked_once(runs: Runs, verb: str, *options: str) -> dict[str, int]:
    """Run a verb of the command; sessions by host. At most one connection a host was made for it."""
    before = [host.connections for host in runs.fleet.hosts]
    report = {}
    found = runs.executions(lambda: report.update(runs.command(verb, *options)))
    assert [host["verdict"] for host in report["hosts"]] == [report["verdict"]] * len(NAMES)
    assert report["verdict"] in ("pass", "warn")
    assert all(now <= then + 1 for now, then in zip((h.connections for h in runs.fleet.hosts), before, strict=True))
    return found


def pristine_again(runs: Runs, pristine: Path) -> bool:
    """Whether every host's root holds what it held before anything was applied."""
    return not any(Root(host.root).differences(pristine) for host in runs.fleet.hosts)


def the_command_discovers_plans_and_applies(runs: Runs, pristine: Path) -> None:
    """By `hosttune fleet`, in waves of one host each; a rehearsal by ansible-playbook writes nothing before."""
    runs.inventory()
    assert asked_once(runs, "discover") == each(1)
    local = [str(BIN / "hosttune"), "discover", "-o", "json", "--root"]
    for host in runs.fleet.hosts:  # the document is what the command prints, its own keys untouched
        found = runs.document(host.name, "discover")
        assert found.pop("fleet")["outcome"] == "ok"
        assert found == json.loads(subprocess.run([*local, host.root], capture_output=True, check=True).stdout)

    assert asked_once(runs, "plan") == each(1)
    for host in runs.fleet.hosts:
        found = runs.document(host.name, "plan")
        assert found.pop("fleet")["changed"] is True
        assert found == json.loads((host.root / STATE / "plan.json").read_text())
    assert pristine_again(runs, pristine)

    trees = [host.tree() for host in runs.fleet.hosts]
    waves = ("-e", '{"hosttune_waves": ["100%"]}')
    assert runs.executions(lambda: runs.playbook("apply", "--check", "--diff", *waves)) == each(2)  # before, apply
    assert [host.tree() for host in runs.fleet.hosts] == trees
    for name in NAMES:
        rehearsed = json.loads((runs.results / name / "apply.check.json").read_text())["fleet"]
        assert (rehearsed["outcome"], rehearsed["check"], rehearsed["changed"]) == ("ok", True, True)

    assert asked_once(runs, "apply", "--waves", "1,100%") == each(3)  # before, apply, validate
    assert [wave["hosts"] for wave in runs.lines("members")[-2:]] == [[name] for name in NAMES]
    assert [line["passed"] for line in runs.lines("gate")] == [True] * 2
    for name in NAMES:
        assert runs.answer(name, "apply")["changed"] is True
        assert runs.root(name).driver(GPU) == "vfio-pci"
        assert len(runs.root(name).journals()) == 1


def the_playbooks_find_nothing_to_do_and_revert(runs: Runs, pristine: Path) -> None:
    """A second apply, by ansible-playbook, changes nothing; a revert everything."""
    recap = {}
    assert runs.executions(lambda: recap.update(runs.playbook("apply", "-e", '{"hosttune_waves": ["100%"]}'))) == each(
        3
    )
    assert {host: recap[host]["failed"] for host in NAMES} == each(0)
    assert {name: runs.answer(name, "apply")["changed"] for name in NAMES} == dict.fromkeys(NAMES, False)
    assert not pristine_again(runs, pristine)
    assert runs.executions(lambda: runs.playbook("revert", "-e", '{"hosttune_waves": [1, "100%"]}')) == each(3)
    assert {name: runs.answer(name, "revert")["changed"] for name in NAMES} == dict.fromkeys(NAMES, True)
    assert pristine_again(runs, pristine)


def nothing_was_copied_to_a_host_and_nothing_stays(runs: Runs) -> None:
    """Neither modules nor temporary files, on a host or here."""
    for host in runs.fleet.hosts:
        assert host.transfers == 0
        assert host.connections < host.executions  # one connection carried several phases
        assert [path.name for path in host.folder.glob("*/*") if path.parent.name in ("home", "tmp")] == []
    assert list(runs.fleet.temporary.iterdir()) == []


def test_the_whole_story(runs: Runs, pristine: Path) -> None:
    """One test, for each step stands on the one before: pytest's processes share out single tests."""
    the_command_discovers_plans_and_applies(runs, pristine)
    the_playbooks_find_nothing_to_do_and_revert(runs, pristine)
    nothing_was_copied_to_a_host_and_nothing_stays(runs)
