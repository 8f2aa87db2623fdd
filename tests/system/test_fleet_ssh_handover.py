"""A controller that is killed while a host hands devices over: nothing is free and unproven, the next run ends it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from coursekills import DRIVE, NIC, neither, root_of
from courses import states
from fleethandovers import signing
from namespaces import kill_tree, until
from sshhosts import BIN, ssh_fleet
from sshruns import IMPATIENT, Runs
from sweeps import FULL, sample
from system.test_fleet_playbooks_waves import hook, logged

HOST = "gpu-01"
COMMAND = Path(__file__).resolve().parents[1] / "support" / "handedcommand.py"
POINTS = (20, 45, 70, 90)  # of the changes of files that this hand-over makes
QUARANTINED, CLEAN = ({DRIVE: word, NIC: word} for word in ("quarantined", "clean"))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """One host over ssh, whose two devices are handed over."""
    with ssh_fleet(tmp_path) as fleet:
        host = fleet.host(HOST, root_of(tmp_path / "root"))
        runs = Runs(fleet, tmp_path / "controller")
        runs.folder.mkdir()
        own: dict[str, Any] = {
            "hosttune_command": [str(BIN / "python"), str(COMMAND), str(host.folder)],
            "hosttune_handover": [DRIVE, NIC], "hosttune_erase": ["S1"],
            "hosttune_undrain": hook(runs.folder, "undrain"), **signing(runs.folder),
        }  # fmt: skip
        runs.inventory({HOST: own}, **IMPATIENT)
        yield runs
        fleet.end_commands()


@pytest.mark.parametrize("at", sample("a controller killed in a hand-over", POINTS, 1))
def test_a_controller_that_is_killed_while_a_host_hands_over(runs: Runs, at: int) -> None:
    """The host goes on by itself; the next run signs and gives back. A full sweep: no second one begins meanwhile."""
    root = runs.host(HOST).root
    runs.hold(HOST, "handover", at)
    process = runs.start("handover")
    runs.wait_held(HOST)
    kill_tree(process.pid)
    process.communicate(timeout=60)
    assert (states(root), neither(root)) == (QUARANTINED, [])
    assert runs.verdicts() == {HOST: "unknown"}
    assert (logged(runs.folder), list(runs.results.glob("*/statement*"))) == ([], [])

    if FULL:
        runs.command("handover", "--resume", code=1)
        assert runs.answer(HOST, "course")["outcome"] == "refused"
        assert "another hosttune" in runs.answer(HOST, "course")["why"]
        assert (states(root), logged(runs.folder)) == (QUARANTINED, [])

    runs.let_go(HOST)
    until(partial(_ended, root), "the end of the hand-over")
    assert neither(root) == []
    runs.command("handover", "--resume")
    assert (states(root), neither(root)) == (CLEAN, [])
    assert runs.document(HOST, "verify")["verdict"] == "valid"
    assert logged(runs.folder) == [f"undrain {HOST}"]
    assert (runs.results / HOST / "statement.json.sig").is_file()


@pytest.mark.skipif(not FULL, reason="a full sweep: a second run over ssh")
def test_a_host_that_loses_its_power_while_it_hands_over(runs: Runs) -> None:
    """It is quarantined when it is back, and the next run hands over anew."""
    root = runs.host(HOST).root
    runs.hold(HOST, "handover", POINTS[1])
    process = runs.start("handover")
    runs.wait_held(HOST)
    runs.host(HOST).stop(silently=True)
    runs.ended(process, 1)
    assert runs.answer(HOST, "course")["outcome"] == "died"
    runs.let_go(HOST)
    runs.host(HOST).start()
    assert (states(root), neither(root), logged(runs.folder)) == (QUARANTINED, [], [])
    runs.command("handover", "--resume")
    assert (states(root), neither(root), logged(runs.folder)) == (CLEAN, [], [f"undrain {HOST}"])


def _ended(root: Path) -> bool:
    return states(root) == CLEAN
