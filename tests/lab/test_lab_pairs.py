"""`hosttune fleet pairs` with a real `ib_write_bw`: two hosts, five links with software RDMA, two of them bad."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sweeps import FULL

from lab.fleet import Asked, Controller
from lab.linked import RAILS, two_linked
from lab.machine import LabMachine

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not FULL, reason="two more machines, minutes: part of the full sweep (HOSTTUNE_SWEEP=full)"),
]
LIMITED, LOSSY = RAILS[3], RAILS[4]
LIMIT = f"tc qdisc add dev {LIMITED} root tbf rate 10mbit burst 32kb latency 2s"
LOSS = f"tc qdisc add dev {LOSSY} root netem loss 5%"


class Measured(NamedTuple):
    """What the fleet command answered, and what was left on each host afterwards."""

    asked: Asked
    left: dict[str, str]


@pytest.fixture(scope="module")
def measured(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with two_linked(image) as machines:
        yield measure(machines, tmp_path_factory.mktemp("pairs"))


def measure(machines: tuple[LabMachine, LabMachine], folder: Path) -> Measured:
    """Spoil two of the links, and let the fleet command measure all of them."""
    hosts = dict(zip(("first", "second"), machines, strict=True))
    for machine in machines:
        machine.shell(f"{LIMIT}; {LOSS}")
    with tempfile.TemporaryDirectory(prefix="ansible-") as home:
        fleet = Controller(folder, Path(home), hosts)
        fleet.set_up({})
        (folder / "ports.json").write_text(json.dumps({"hosttune_ports": RAILS}))
        words = ("--tool", "rdma", "--seconds", "6", "--against", "median", "--floor", "0.5", "--wait", "60")
        asked = fleet.ask("pairs", *words, "-e", "@ports.json")
    return Measured(asked, {name: left_behind(machine) for name, machine in hosts.items()})


def left_behind(machine: LabMachine) -> str:
    """Programs of measurements that still run, and the ports that they would listen at."""
    return machine.shell("ps -eo args | grep -E '^(timeout|ib_write_bw)' || true; ss -Hltn 'sport >= :5201'")


def pairs(measured: Measured) -> dict[str, dict[str, Any]]:
    return {pair["rail"]: pair for pair in measured.asked.report["pairs"]}


def test_every_good_link_is_measured_by_ib_write_bw(measured: Measured) -> None:
    found = pairs(measured)
    assert set(found) == set(RAILS), measured.asked.errors
    for rail in RAILS[:3]:
        assert (found[rail]["outcome"], found[rail]["state"]) == ("measured", "good"), found
        assert found[rail]["gbps"] > 0


def test_the_limited_and_the_lossy_link_are_named(measured: Measured) -> None:
    found = pairs(measured)
    assert found[LIMITED]["state"] == "low", found
    assert found[LIMITED]["gbps"] < 0.02  # few messages of 1 MiB: a rough figure
    assert found[LOSSY]["state"] in ("low", "cut"), found
    told = {(fault["kind"], tuple(fault["hosts"]), fault["rail"]) for fault in measured.asked.report["faults"]}
    assert told == {("pair", ("first", "second"), LIMITED), ("pair", ("first", "second"), LOSSY)}
    assert (measured.asked.status, measured.asked.report["verdict"]) == (1, "fail")


def test_nothing_stays_behind(measured: Measured) -> None:
    assert measured.left == {"first": "", "second": ""}
