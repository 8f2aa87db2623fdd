"""A drive whose last sanitize has failed can be sanitized again, and its old failure is never taken for the new one."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from fakedrive import FakeDrive, order
from msgspec.structs import replace
from sweeps import FULL

from hosttune.handover.erasing import erase
from hosttune.handover.erasing.nvme import AUSE, BLOCK_ERASE, CRYPTO_ERASE, SanitizeLog, command_dword
from hosttune.handover.erasing.progress import Sanitize, after, move_of

FAILED = SanitizeLog(status=3, erased=False, progress=65535, cdw10=BLOCK_ERASE)
LOGS = tuple(
    SanitizeLog(status=status, erased=erased, progress=0, cdw10=cdw10)
    for status in range(6)
    for erased in (False, True)
    for cdw10 in (BLOCK_ERASE, BLOCK_ERASE | AUSE, CRYPTO_ERASE)
)


def outcomes(drive: FakeDrive, state: str, *numbers: str) -> list[str]:
    return [erase(drive, state, order(handover=number), drive.time).outcome for number in numbers]


@pytest.fixture
def drive(tmp_path: Path) -> FakeDrive:
    return FakeDrive(tmp_path / "host")


def test_a_drive_whose_sanitize_failed_is_erased_by_later_hand_overs(drive: FakeDrive, tmp_path: Path) -> None:
    """It reads nothing until it is sanitized again, and aborts a command that is not restricted."""
    state = str(tmp_path / "state")
    drive.ends_as, drive.sets_erased = 3, 0
    assert outcomes(drive, state, "7", "8") == ["failed", "failed"]
    drive.ends_as, drive.sets_erased = 1, 1
    assert outcomes(drive, state, "9", "10") == ["unknown", "done"]
    assert [start[3:] for start in drive.starts] == [("--sanact=2",)] * 3 + [("--sanact=2", "--ause")]


def test_a_drive_that_ends_before_it_is_asked_again_is_believed_too(drive: FakeDrive, tmp_path: Path) -> None:
    drive.sstat, drive.scdw10, drive.seconds = 3, BLOCK_ERASE, 0
    drive.ends_as = 4
    assert outcomes(drive, str(tmp_path / "state"), "7", "8") == ["unknown", "done"]


def test_after_a_failure_every_command_is_restricted() -> None:
    for action, last in product((BLOCK_ERASE, CRYPTO_ERASE), range(1 << 4)):
        assert command_dword(action, replace(FAILED, cdw10=last)) == action


def test_every_order_of_answers_after_a_failure() -> None:
    """The oracle: completed, all erased, and the drive has left the failure with this command."""
    done = stale = 0
    for logs in product(LOGS, repeat=3 if FULL else 2):
        run, sent, move, read = Sanitize(before=FAILED, cdw10=BLOCK_ERASE), 0, "wait", list[SanitizeLog]()
        for log in logs:
            read.append(log)
            run = after(run, log)
            move = move_of(run, log)
            if move == "send":
                sent, run = sent + 1, replace(run, sent=True)
            elif move in ("done", "failed", "other"):
                break
        assert sent <= 1
        last = read[-1]
        if move == "done":
            done += 1
            assert last.status in (1, 4)
            assert last.erased
            running = [log.cdw10 for log in read[:-1] if log.status == 2]
            assert last.cdw10 == BLOCK_ERASE or (running and last.cdw10 == running[0])
        if all(log.shown == FAILED.shown for log in read):
            stale += 1
            assert move == ("send" if len(read) == 1 else "stale")
    assert done > 20
    assert stale
