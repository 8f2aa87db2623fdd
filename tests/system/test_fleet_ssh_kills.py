"""Hosts, cables and controllers that go while hosts are changed: nothing is lost, nothing passes, the run goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from applyroots import GPU, STATE, Root
from namespaces import kill_tree, until
from sshhosts import on_controller, ssh_fleet
from sshruns import IMPATIENT, Runs, copy_root
from sweeps import FULL, examples

NAMES = tuple(f"gpu-{number:02}" for number in range(1, examples(5, full=10) + 1))
CANARY, REST = NAMES[0], NAMES[1:]
FEW, SOME = NAMES[:4], NAMES[1:4]
WIDTH = "sys/bus/pci/devices/0000:18:00.0/current_link_width"
FIRST = ("--limit", ",".join(FEW))
SECRET = "of the controller's environment"
# Without ssh, a canary that fails and a controller that is killed are in test_fleet_cli and test_fleet_course.
whole_sweep = pytest.mark.skipif(not FULL, reason="part of the full sweep (HOSTTUNE_SWEEP=full)")
HALF_WAY = 60  # of the changes of files that an apply of the example makes: steps are done, and steps are left


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> Iterator[Runs]:
    """The hosts: ten in a full sweep."""
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_fleet(folder) as fleet:
        for name in NAMES:
            fleet.host(name, copy_root(pristine, folder / f"{name}-root").path)
        yield Runs(fleet, folder)


@pytest.fixture
def runs(ten: Runs, pristine: Path, tmp_path: Path) -> Iterator[Runs]:
    """These hosts as new, with results of this test's own."""
    for host in ten.fleet.hosts:
        if (host.root / STATE).exists():
            copy_root(pristine, host.root)
        for name in ("hold.json", "held", "began"):
            (host.folder / name).unlink(missing_ok=True)
        if host.space is None:
            host.start()
    ten.fleet.forget()
    runs = Runs(ten.fleet, tmp_path)
    runs.inventory({name: runs.held(name) for name in NAMES}, **IMPATIENT)
    yield runs
    ten.fleet.end_commands()


def applied(root: Root) -> bool:
    """Whether an apply of the intent is in force, whole."""
    journals = root.journals()
    return root.driver(GPU) == "vfio-pci" and bool(journals) and journals[-1][-1].get("state") == "applied"


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    """Verdict by host."""
    return {host["host"]: host["verdict"] for host in report["hosts"]}


def test_hosts_that_die_while_they_are_changed(runs: Runs, pristine: Path) -> None:
    """One loses its power, one its sshd and all below, one its cable. The others are done; none of the three passes."""
    power, killed, cable = lost = REST[0], REST[len(REST) // 2], REST[-1]
    for name in lost:
        runs.hold(name, "apply", HALF_WAY)
    process = runs.start("apply", "--waves", "1,100%")
    runs.wait_held(*lost)
    runs.host(power).stop(silently=True)
    runs.host(killed).kill_sshd()
    runs.host(cable).unplug()
    report = runs.ended(process, 1)

    assert {name: word for name, word in runs.outcomes("apply").items() if word != "ok"} == dict.fromkeys(lost, "died")
    assert {name for name, verdict in verdicts(report).items() if verdict not in ("pass", "warn")} == {*lost}
    assert [wave["passed"] for wave in report["waves"]] == [True, False]
    assert {line["host"]: line["outcome"] for line in runs.lines("host")} == runs.outcomes("apply")
    assert all(not (runs.results / name / "validate.json").exists() for name in lost)

    runs.let_go(*lost)  # the host whose cable was cut goes on by itself; the two others are half-way
    until(partial(applied, runs.root(cable)), f"the end of apply on {cable}")
    assert [applied(runs.root(name)) for name in (power, killed)] == [False, False]

    for name in (power, killed):
        runs.host(name).stop()
        runs.host(name).start()
    runs.host(cable).plug()
    asked = runs.executions(lambda: runs.command("apply", "--resume", code=1))
    assert {name: count for name, count in asked.items() if count} == {power: 1, killed: 1, cable: 2}  # before is kept
    assert {name: runs.answer(name, "apply")["outcome"] for name in lost} == {
        power: "refused", killed: "refused", cable: "ok",
    }  # fmt: skip
    assert all("was not finished" in runs.answer(name, "apply")["why"] for name in (power, killed))
    assert runs.answer(cable, "apply")["changed"] is False

    report = runs.command("apply", "--resume", "--recover")
    assert {name: runs.answer(name, "recover")["changed"] for name in (power, killed)} == {power: True, killed: True}
    assert [wave["passed"] for wave in report["waves"]] == [True, True]
    assert set(verdicts(report).values()) <= {"pass", "warn"}
    assert [applied(runs.root(name)) for name in NAMES] == [True] * len(NAMES)
    runs.command("revert", "--waves", "100%", "--limit", ",".join(lost))
    assert {name: runs.root(name).differences(pristine) for name in lost} == {name: set() for name in lost}


@whole_sweep
def test_the_playbook_alone_stops_behind_a_host_that_died(runs: Runs) -> None:
    """Its wave is finished, the next one does not begin."""
    died, beside = FEW[0], FEW[1]
    untouched = {name: runs.host(name).tree() for name in NAMES[2:]}
    runs.hold(died, "apply", HALF_WAY)
    process = runs.start_playbook("apply", "-e", '{"hosttune_waves": [2, "100%"]}')
    runs.wait_held(died)
    runs.host(died).stop(silently=True)
    recap = runs.recap(process, 2)
    assert {host for host, counts in recap.items() if counts["failed"]} == {died}
    assert runs.outcomes("apply") == {died: "died", beside: "ok"}
    assert runs.outcomes("validate") == {beside: "ok"}
    assert {name: runs.host(name).tree() for name in NAMES[2:]} == untouched


@whole_sweep
def test_a_host_that_got_worse_does_not_pass_by_being_asked_again(runs: Runs) -> None:
    """The connection is lost while apply makes it worse: what it is compared with is what it was before the run."""
    runs.hold(CANARY, "apply", 0)
    process = runs.start("apply", "--waves", "1,100%", "--gate", "worse", *FIRST)
    runs.wait_held(CANARY)
    runs.host(CANARY).unplug()
    runs.ended(process, 1)
    worse(runs)
    runs.let_go(CANARY)
    until(partial(applied, runs.root(CANARY)), "the end of apply")
    runs.host(CANARY).plug()
    untouched = {name: runs.host(name).tree() for name in SOME}
    report = runs.command("apply", "--resume", code=1)
    assert (runs.answer(CANARY, "apply")["outcome"], runs.answer(CANARY, "validate")["outcome"]) == ("ok", "no")
    assert [wave["passed"] for wave in report["waves"]] == [False, None]
    assert {name: runs.host(name).tree() for name in SOME} == untouched


def worse(runs: Runs) -> None:
    """A link of the canary trains with fewer lanes."""
    runs.root(CANARY).put(WIDTH, "4\n")


@whole_sweep
def test_a_broken_canary_stops_the_run(runs: Runs) -> None:
    """The first host is worse after its change: no other host is asked, not a byte of theirs is written."""
    untouched = {name: runs.host(name).tree() for name in SOME}
    runs.hold(CANARY, "apply", HALF_WAY)
    process = runs.start("apply", "--waves", "1,30%,100%", *FIRST)
    runs.wait_held(CANARY)
    worse(runs)
    runs.let_go(CANARY)
    before = {name: runs.host(name).executions for name in SOME}
    report = runs.ended(process, 1)
    assert runs.answer(CANARY, "apply")["outcome"] == "ok"
    assert any("pcie-link" in line for line in runs.document(CANARY, "validate")["worse"])
    assert [wave["passed"] for wave in report["waves"]] == [False, None, None]
    assert report["stopped"] == "the gate after wave 1 of 3 did not open"
    assert {host["verdict"] for host in report["hosts"] if host["host"] != CANARY} == {"unknown"}
    assert {name: runs.host(name).executions for name in SOME} == before
    assert {name: runs.host(name).tree() for name in SOME} == untouched
    assert all(not (runs.results / name).exists() for name in SOME)

    runs.root(CANARY).put(WIDTH, "16\n")
    report = runs.command("apply", "--resume")
    assert [wave["passed"] for wave in report["waves"]] == [True, True, True]
    assert [applied(runs.root(name)) for name in FEW] == [True] * len(FEW)


@whole_sweep
@pytest.mark.parametrize("everything", [True, False], ids=["with all below it", "alone"])
def test_a_controller_that_is_killed(runs: Runs, everything: bool) -> None:
    """SIGKILL while hosts are changed: they are unknown, not passed; the run goes on and asks only their wave again."""
    held = SOME[:1]
    for name in held:
        runs.hold(name, "apply", HALF_WAY)
    process = runs.start("apply", "--waves", "1,70%,100%", *FIRST, TOKEN=SECRET)
    runs.wait_held(*held)
    if everything:
        kill_tree(process.pid)
    else:
        os.kill(on_controller(process), signal.SIGKILL)
    process.communicate(timeout=60)
    left = [path for path in runs.fleet.temporary.rglob("*") if path.is_file()]
    assert [path for path in left if SECRET in path.read_text(errors="replace")] == []
    told = runs.verdicts()
    assert {name: told[name] for name in held} == dict.fromkeys(held, "unknown")
    assert told[CANARY] in ("pass", "warn")
    runs.let_go(*held)
    for name in held:
        until(partial(applied, runs.root(name)), f"the end of apply on {name}")
    report = runs.command("apply", "--resume")
    assert [wave["passed"] for wave in report["waves"]] == [True, True, True]
    again = SOME[:2]  # the wave that it was in: the other one had been changed, and not yet validated
    assert {name for name in FEW if runs.began(name).count("apply") == 2} == {*again}
    assert {runs.began(name).count("validate") for name in FEW} == {2}  # of before and after; before was kept
    assert [applied(runs.root(name)) for name in FEW] == [True] * len(FEW)
