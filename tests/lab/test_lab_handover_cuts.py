"""Hand-overs that are cut off at each of their steps, on a real kernel: killed (-9), and with the host's power.

The drive is quarantined, nobody gets it, and the next hand-over goes on. The data is put there in a guest's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import FULL

from lab.tenancy import AGAIN, BALANCING, CUTS, STATEMENT, TAKEN, TENANT, Tenancy, cut_off, tenancy

# Its own machine, and a boot for each step.
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]


@pytest.fixture(scope="module")
def found(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenancy]:
    with tenancy(image, tmp_path_factory.mktemp("drives")) as made:
        made.own(TENANT, TAKEN)
        yield made


def test_killed_at_every_step(found: Tenancy) -> None:
    """Each hand-over is killed one step later than the one before; the last one ends it."""
    found.put_pattern(TAKEN)
    for step, nth in CUTS:
        cut_off(found.host, AGAIN, step, nth)
        held(found, step)
    ended(found)


def test_without_power_at_every_step(found: Tenancy) -> None:
    """As above, and the whole host is off."""
    found.put_pattern(TAKEN)
    for step, nth in CUTS:
        cut_off(found.host, AGAIN, step, nth, signal="STOP")
        found.host.power_cut()
        found.host.start()
        found.host.shell(f"modprobe vfio-pci; echo 0 >{BALANCING}")
        held(found, step)
    ended(found)


def held(found: Tenancy, step: str) -> None:
    """It is quarantined, and no guest gets it."""
    assert found.state(TAKEN) == "quarantined", step
    found.refuses_to_start(TENANT, TAKEN)


def ended(found: Tenancy) -> None:
    """One more hand-over ends it: the drive is clean, the statement is signed and valid, and the data is gone."""
    code, statement, errors = found.hand_over(f"{AGAIN} --out {STATEMENT}")
    assert code == 0, (errors, statement)
    assert found.with_pattern(TAKEN) == 0
    assert found.state(TAKEN) == "clean"
    found.sign("24h")
    assert found.verify() == (0, set())
