"""The time limits of an erasure hold, whatever a drive does, and `handover status` shows them while it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from coursekills import DRIVE, root_of
from fakedrive import ADDRESS, SERIAL, FakeDrive, order
from unit.handover.test_handover_drives import GuestsDrive, handed, place

from hosttune.cli import run
from hosttune.handover import calls
from hosttune.handover.erasing import SPARE_SECONDS, erase, hold_back, survey

STEP_SECONDS = 30.0  # of a read that the kernel gives up


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def taking(drive: FakeDrive, what: str, seconds: float) -> Callable[[tuple[str, ...]], None]:
    def hook(words: tuple[str, ...]) -> None:
        if what in words[:2]:
            drive.time.now += seconds

    return hook


def test_a_drive_that_takes_long_for_each_read_is_unknown_in_time(tmp_path: Path, state: str) -> None:
    drive = FakeDrive(tmp_path / "host", blocks=2048)
    hold_back(drive, ADDRESS, SERIAL)
    began, limit = drive.time.now, survey(drive, order()).limit_seconds
    drive.hook = taking(drive, "read", STEP_SECONDS)
    step = erase(drive, state, order(), drive.time)
    assert step.outcome == "unknown"
    assert str(step.why).endswith("blocks cannot be read, first namespace 1 at 86016")  # after 600 s, 21 of them
    assert len(drive.starts) == 1
    assert drive.time.now - began < limit + SPARE_SECONDS


def test_formats_share_one_limit_and_go_on_with_the_next_call(tmp_path: Path, state: str) -> None:
    drive = FakeDrive(tmp_path / "host", namespaces=3)
    drive.sanicap = 0
    drive.hook = taking(drive, "admin-passthru", 9000.0)
    step = erase(drive, state, order(), drive.time)
    assert (step.outcome, [start[-1] for start in drive.starts]) == (
        "unknown",
        ["--timeout=14400000", "--timeout=5400000"],
    )
    assert "namespace 3 is not formatted" in str(step.why)
    step = erase(drive, state, order(), drive.time)
    assert (step.outcome, [start[4] for start in drive.starts]) == ("done", [f"--namespace-id={n}" for n in (1, 2, 3)])


def test_status_shows_when_a_step_began_its_times_and_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = GuestsDrive(root_of(tmp_path / "small"))
    texts: list[str] = []
    began = drive.time.now

    def look(words: tuple[str, ...]) -> None:
        if words[1] == "sanitize-log" and drive.time.now >= began + drive.seconds / 2 and not texts:
            course = calls.status(place(drive)).course
            assert course is not None
            (step,) = (one for one in course.steps if (one.address, one.step) == (DRIVE, "erased"))
            assert (course.running, step.percent, step.limit_seconds) == (True, 47, 600.0 + SPARE_SECONDS)
            assert run(["handover", "status", "--root", str(drive.root)]) == 0
            texts.append(" ".join(capsys.readouterr().out.split()))
            assert f"since {step.began}, about 40 s, at most 2400 s, 47 % done" in texts[0]

    drive.hook = look
    assert handed(drive).clean
    assert texts
