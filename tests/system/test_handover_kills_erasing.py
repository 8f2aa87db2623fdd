"""A hand-over that is killed anywhere while it erases a drive or searches a GPU: never free, never erased twice.

The kills of `test_handover_kills` stand in for the erasure; here its own code runs. The process "dies" by an error that
nothing in the product catches, and from then on every write and command of it fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import applyroots
import pytest
from applyroots import GPU, STATE, Cli, Root
from coursekills import ASKED, DRIVE, NIC, neither, passing_all, root_of
from courses import passing, states, with_guest
from cutshort import KilledError
from fabricroots import activate, active, exactly_of
from sweeps import FULL, sample
from unit.handover.test_handover_drives import GuestsDrive, WithNics

from hosttune.discovery import discover
from hosttune.handover.cleaning import Cleaning
from hosttune.handover.erasing import erasing, held_back
from hosttune.handover.running import Handed, HandoverOptions, hand_over
from hosttune.handover.targets import Asked
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.validation import Validation
from hosttune.transaction.site import Site, site_of

root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

MOST = 1  # `make test` is at its budget; a full sweep takes every point


class Mortal(Scratch):
    """Dies at the nth of its points: before each change that it makes itself, and at each step that it tells."""

    at, count, dead, where, home = -1, 0, False, "", 0

    def point(self, what: str) -> None:
        """A point at which it can be killed; afterwards nothing works any more. Its children are not counted."""
        if os.getpid() != self.home:
            return
        if self.dead or self.count == self.at:
            self.dead, self.where = True, self.where or what
            raise KilledError
        self.count += 1

    def write(self, path: str, text: str) -> None:
        self.point(f"write {path}")
        super().write(path, text)

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.point(f"replace {path}")
        super().replace(path, data, mode)

    def remove(self, path: str) -> None:
        self.point(f"remove {path}")
        super().remove(path)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        self.point(" ".join(argv[:3]))
        answer = super().change(argv, timeout=timeout, stdin=stdin)
        self.point(f"after {' '.join(argv[:3])}")
        return answer


class MortalDrive(Mortal, GuestsDrive):
    """The guest's drive, on such a host. The drive lives on."""


class MortalGpu(Mortal):
    """A GPU whose memory is searched: all of it is zeros."""

    searches: list[str]

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        if argv[2:4] != ("-m", "hosttune.gpu.nvidia_memory"):
            return super().change(argv, timeout=timeout, stdin=stdin)
        self.point(f"search {argv[4]}")
        self.searches.append(argv[4])
        size = discover(Scratch(self.root)).index.gpus[GPU].memory_bytes
        assert size is not None
        return json.dumps({"bytes": size, "total": size, "found": 0, "nonzero": 0, "seen": True})


def run(
    system: Mortal, asked: Asked, cleaning: Cleaning, validate: Callable[[int], Validation], at: int = -1
) -> Handed | None:
    """A hand-over that dies at its nth point; None if it did."""
    system.at, system.count, system.dead, system.where, system.home = at, 0, False, "", os.getpid()

    def look() -> Host:
        system.forget()
        return discover(system)

    def place() -> tuple[Site, Callable[[], Host]]:
        system.forget()
        return site_of(system), look

    try:
        return hand_over(place(), asked, HandoverOptions(None, cleaning, validate), lambda lines: True, system.point)
    except KilledError:
        return None


def test_killed_anywhere_a_drive_is_quarantined_or_covered_and_never_erased_twice(tmp_path: Path) -> None:
    def fresh(name: str) -> MortalDrive:
        return MortalDrive(root_of(tmp_path / name))

    whole = fresh("whole")
    done = run(whole, ASKED, WithNics(whole.time), passing_all)
    assert done is not None
    assert done.clean
    wrong = []
    for at in sample("drive erased", range(whole.count), MOST):
        drive = fresh(f"at{at}")
        assert run(drive, ASKED, WithNics(drive.time), passing_all, at) is None, at
        place = f"killed at {at} of {whole.count}, {drive.where}"
        folder = Path(drive.root)
        wrong += [f"{place}: {one} is neither quarantined nor covered" for one in neither(folder)]
        again = run(drive, ASKED, WithNics(drive.time), passing_all)
        if again is None or not again.clean or states(folder) != {DRIVE: "clean", NIC: "clean"}:
            wrong.append(f"{place}: a second hand-over ends with {states(folder)}")
        if len(drive.starts) > 1 and erased_once(drive):
            wrong.append(f"{place}: erased {len(drive.starts)} times")
        if held_back(drive) or erasing(f"{drive.root}/{STATE}", DRIVE) is not None:
            wrong.append(f"{place}: its rules of udev or its progress are left")
    assert wrong == []


def erased_once(drive: MortalDrive) -> bool:
    """Whether the first erasure was of a hand-over that the second one continued: its statement was not written."""
    return not (Path(drive.root) / STATE / "handover/statement-000001.json").exists()


@pytest.mark.skipif(not FULL, reason="minutes of CPU time: only in a full sweep")
def test_killed_anywhere_a_gpu_is_quarantined_or_covered(cli: Cli, plan: Path) -> None:
    with_guest(cli.root.path, plan)
    start = cli.root.path
    asked = Asked(devices=(GPU,))

    def fresh() -> MortalGpu:
        system = MortalGpu(str(start))
        system.searches = []
        return system

    partition = exactly_of(start, {1})
    activate(start, partition)
    whole = fresh()
    done = run(whole, asked, Cleaning(), passing)
    assert done is not None
    assert (done.clean, whole.searches) == (True, ["search", "write", "search"])
    wrong = []
    for at in sample("GPU searched", range(whole.count), MOST):
        system = fresh()
        activate(start, partition)
        assert run(system, asked, Cleaning(), passing, at) is None, at
        place = f"killed at {at} of {whole.count}, {system.where}"
        if states(start)[GPU] == "clean" and "statement" not in system.where:
            wrong.append(f"{place}: it is free")
        again = run(fresh(), asked, Cleaning(), passing)
        if again is None or not again.clean or Root(start).driver(GPU) != "vfio-pci":
            wrong.append(f"{place}: a second hand-over does not end it: {states(start)}, {Root(start).driver(GPU)}")
        if active(start) != [partition]:
            wrong.append(f"{place}: partitions {active(start)} are active")
    assert wrong == []


@pytest.fixture(autouse=True)
def _quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """What the apply that makes the guest prints is of no interest."""
