"""Hosts, cables and controllers that go while hosts are changed: nothing is lost, nothing passes, the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from applyroots import EXAMPLE, GPU, Root, unpack
from namespaces import until
from sshhosts import ssh_fleet
from sshruns import IMPATIENT, Runs, copy_root

NAMES = tuple(f"gpu-{number:02}" for number in range(1, 11))
CANARY, REST = NAMES[0], NAMES[1:]
HALF_WAY = 60  # of the changes of files that an apply of the example makes: steps are done, and steps are left


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a scratch root, which nobody writes to."""
    return unpack(EXAMPLE, tmp_path_factory.mktemp("pristine") / "root")


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> Iterator[Runs]:
    """Ten hosts."""
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_fleet(folder) as fleet:
        for name in NAMES:
            fleet.host(name, copy_root(pristine, folder / f"{name}-root").path)
        yield Runs(fleet, folder)


@pytest.fixture
def runs(ten: Runs, pristine: Path, tmp_path: Path) -> Runs:
    """These hosts as new, with results of this test's own."""
    for host in ten.fleet.hosts:
        copy_root(pristine, host.root)
        for name in ("hold.json", "held", "began"):
            (host.folder / name).unlink(missing_ok=True)
        if host.space is None:
            host.start()
    ten.fleet.forget()
    runs = Runs(ten.fleet, tmp_path)
    runs.inventory({name: runs.held(name) for name in NAMES}, **IMPATIENT)
    return runs


def applied(root: Root) -> bool:
    """Whether an apply of the intent is in force, whole."""
    journals = root.journals()
    return root.driver(GPU) == "vfio-pci" and bool(journals) and journals[-1][-1].get("state") == "applied"


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    """Verdict by host."""
    return {host["host"]: host["verdict"] for host in report["hosts"]}


def test_hosts_that_die_while_they_are_changed(runs: Runs, pristine: Path) -> None:
    """One loses its power, one its sshd and all below, one its cable. The others are done; none of the three passes."""
    power, killed, cable = lost = REST[1], REST[4], REST[7]
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
    until(lambda: applied(runs.root(cable)), f"the end of apply on {cable}")
    assert not applied(runs.root(power))
    assert not applied(runs.root(killed))
