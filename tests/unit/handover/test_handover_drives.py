"""A hand-over of a drive: held back from udev, erased with evidence, and never begun twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from applyroots import STATE, Root
from coursekills import ASKED, DRIVE, NIC, passing_all, root_of
from courses import Wiped, states, steps
from cutshort import KilledError, put
from fakedrive import ADDRESS, FakeDrive
from sweeps import sample

from hosttune.discovery import discover
from hosttune.errors import HosttuneError
from hosttune.handover import calls
from hosttune.handover.cleaning import Cleaning, Erasure, Work
from hosttune.handover.erasing import erasing, held_back
from hosttune.handover.running import Handed, HandoverOptions, hand_over
from hosttune.handover.targets import Asked, Target
from hosttune.journal.register import read_register, record_devices
from hosttune.model.host import Host
from hosttune.transaction.site import Site, site_of

assert ADDRESS == DRIVE


class GuestsDrive(FakeDrive):
    """The drive of the small root: on vfio-pci, until a hand-over takes it back."""

    def _tree(self, root: Path, namespaces: int) -> None:
        self.serial = "S1"
        for n in range(1, namespaces + 1):
            put(root, f"/sys/bus/pci/devices/{DRIVE}/nvme/nvme0/nvme0n{n}/size", "1")
            put(root, f"/sys/class/block/nvme0n{n}/nsid", f"{n}\n")
            put(root, f"/sys/class/block/nvme0n{n}/dev", f"259:{n}\n")
        self.add_controller("nvme0", 1, DRIVE)


class WithNics(Cleaning):
    """Erases drives as always, and anything else at once."""

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""
        cleaning = Cleaning(self._clock) if target.kind == "nvme" else Wiped()
        return cleaning.erasure(work, target, back=back)


@pytest.fixture
def drive(tmp_path: Path) -> GuestsDrive:
    return GuestsDrive(root_of(tmp_path / "small"))


def place(drive: FakeDrive) -> tuple[Site, Callable[[], Host]]:
    def look() -> Host:
        drive.forget()
        return discover(drive)

    return site_of(drive), look


def handed(drive: FakeDrive, asked: Asked = ASKED) -> Handed:
    options = HandoverOptions(None, WithNics(drive.time), passing_all)
    return hand_over(place(drive), asked, options, lambda lines: True, lambda text: None)


def test_a_drive_that_erases(drive: GuestsDrive) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []
    drive.hook = lambda words: seen.append((Root(Path(drive.root)).driver(DRIVE), held_back(drive)))
    found = handed(drive)
    assert (found.clean, found.refused, states(Path(drive.root))) == (True, (), {DRIVE: "clean", NIC: "clean"})
    assert set(seen) == {("nvme", (DRIVE,))}  # nothing is asked of it before udev is kept from it
    assert (held_back(drive), erasing(f"{drive.root}/{STATE}", DRIVE)) == ((), None)
    (erased,) = (one for one in found.statement.predicate.devices[0].steps if one.step == "erased")
    assert (erased.method, len(drive.starts)) == ("sanitize, block erase", 1)
    assert erased.evidence is not None
    assert erased.evidence["log_after"]["global_data_erased"] is True
    assert erased.evidence["owner"] == "guest vm, from its definition"
    course = calls.status(place(drive)).course
    assert course is not None
    (times,) = (one for one in course.steps if (one.address, one.step) == (DRIVE, "erased"))
    assert (times.estimate_seconds, times.outcome) == (40.0, "done")


def test_drives_that_do_not(drive: GuestsDrive) -> None:
    drive.lies = True
    found = handed(drive)
    assert (dict(steps(found))["erased"], found.clean) == ("failed", False)
    assert states(Path(drive.root)) == {DRIVE: "quarantined", NIC: "clean"}
    drive.lies, drive.refuses = False, "NVMe status: Invalid Field in Command(0x4002)"
    assert dict(steps(handed(drive)))["erased"] == "failed"
    drive.refuses = None
    assert handed(drive).clean


@pytest.mark.parametrize("what", ["serial", "mounted"])
def test_a_drive_that_must_not_be_erased_gets_no_command(drive: GuestsDrive, what: str) -> None:
    if what == "serial":
        drive.serial = "S2"  # sysfs shows S1: another drive was put in, or the name is old
    else:
        drive.claimed.add("/dev/nvme0n1")
    found = handed(drive)
    assert (found.clean, drive.starts, dict(steps(found))["erased"]) == (False, [], "failed")
    assert found.refused[0].startswith(f"{DRIVE}: ")
    assert Root(Path(drive.root)).driver(DRIVE) == "vfio-pci"


def test_a_sanitize_that_was_cut_off_is_waited_for_and_never_sent_again(drive: GuestsDrive) -> None:
    whole = GuestsDrive(root_of(Path(drive.root).with_name("whole")))
    handed(whole)
    running = 0
    for at in sample("cut-off drives", range(whole.steps), 2):
        again = GuestsDrive(root_of(Path(drive.root).with_name(f"cut{at}")))
        again.cut, again.after = at, True
        with pytest.raises(KilledError):
            handed(again)
        assert states(Path(again.root))[DRIVE] == "quarantined"
        running, again.cut = running + (again.sstat == 2), -1
        assert handed(again).clean
        assert len(again.starts) == 1, at
    assert running


def test_a_drive_with_parts_of_a_tenant_gets_no_command(drive: GuestsDrive) -> None:
    parts = Path(drive.root) / "sys/bus/mdev/devices"
    parts.mkdir(parents=True)
    (parts / "u1").symlink_to(f"../../../devices/pci0000:c0/{DRIVE}/u1")
    found = handed(drive)
    assert (dict(steps(found))["erased"], drive.starts, states(Path(drive.root))[DRIVE]) == (
        "failed",
        [],
        "quarantined",
    )


def cut_before_the_test(drive: FakeDrive) -> None:
    """Carry out a hand-over that is cut off when the drive was erased."""

    def say(text: str) -> None:
        if text.startswith(f"{DRIVE}: tested"):
            raise KilledError

    with pytest.raises(KilledError):
        hand_over(
            place(drive), ASKED, HandoverOptions(None, WithNics(drive.time), passing_all), lambda lines: True, say
        )


def test_an_erasure_that_had_ended_counts_after_a_cut(drive: GuestsDrive) -> None:
    cut_before_the_test(drive)
    before = erasing(f"{drive.root}/{STATE}", DRIVE)
    assert before is not None
    assert (before.phase, len(drive.starts), states(Path(drive.root))[DRIVE]) == ("ended", 1, "quarantined")
    found = handed(drive)
    (device,) = (one for one in found.statement.predicate.devices if one.address == DRIVE)
    assert (found.clean, len(drive.starts)) == (True, 1)
    assert before.step in device.steps
    assert erasing(f"{drive.root}/{STATE}", DRIVE) is None


@pytest.mark.parametrize("how", ["sanitize", "format"])
def test_an_erasure_that_had_ended_does_not_count_after_a_write(drive: GuestsDrive, how: str) -> None:
    """A program of the host wrote: a sanitize shows it (NVM Express Base Specification, Global Data Erased)."""
    drive.sanicap = {"sanitize": 0b11, "format": 0}[how]
    cut_before_the_test(drive)
    drive.media[1][3] = b"the host's" * 409 + b"......"
    drive.erased = 0
    found = handed(drive)
    assert (found.clean, len(drive.starts), drive.media[1][3]) == (True, 2, bytes(4096))


def test_an_erasure_that_had_ended_says_nothing_of_another_drive(drive: GuestsDrive) -> None:
    cut_before_the_test(drive)
    drive.serial = "S2"
    found = handed(drive)
    assert (found.clean, dict(steps(found))["erased"], len(drive.starts)) == (False, "failed", 1)
    assert "has the serial number 'S2', not 'S1'" in found.refused[0]


def test_an_erasure_that_had_ended_does_not_count_after_a_start(drive: GuestsDrive) -> None:
    cut_before_the_test(drive)
    starts = Path(drive.root) / STATE / "handover/starts"
    starts.write_text(f"{starts.read_text()}{DRIVE} guest 2026-01-01T00:00:00Z vm\n")
    assert handed(drive).clean
    assert len(drive.starts) == 2


def test_an_erasure_that_had_ended_does_not_count_with_another_hook(drive: GuestsDrive) -> None:
    """It was taken out and installed again: a guest may have been started with the drive in between."""
    cut_before_the_test(drive)
    state = str(Path(drive.root) / STATE)
    known = read_register(state).record(DRIVE)
    assert known is not None
    record_devices(state, (msgspec.structs.replace(known, recorded_since="1700000000.5"),))
    assert handed(drive).clean
    assert len(drive.starts) == 2


def test_what_was_begun_does_not_count_after_a_start(drive: GuestsDrive) -> None:
    drive.cut, drive.after = 12, True
    with pytest.raises(KilledError):
        handed(drive)
    drive.cut = -1
    before = erasing(f"{drive.root}/{STATE}", DRIVE)
    assert before is not None
    starts = Path(drive.root) / STATE / "handover/starts"
    starts.write_text(f"{starts.read_text()}{DRIVE} guest 2026-01-01T00:00:00Z vm\n")
    drive.time.now += 1000
    found = handed(drive)
    assert found.clean
    (record,) = (one for one in found.statement.predicate.devices if one.address == DRIVE)
    assert record.epoch == 2


def test_a_sanitize_that_takes_longer_than_its_limit_is_waited_for(drive: GuestsDrive) -> None:
    real = drive._sanitize

    def sanitize(argv: tuple[str, ...], options: dict[str, str]) -> None:
        real(argv, options)
        drive.ends_at = drive.time.now + 10**6

    drive._sanitize = sanitize  # type: ignore[method-assign]
    found = handed(drive)
    assert (dict(steps(found))["erased"], states(Path(drive.root))[DRIVE]) == ("unknown", "quarantined")
    drive.time.now += 10**6
    assert handed(drive).clean
    assert (len(drive.starts), erasing(f"{drive.root}/{STATE}", DRIVE)) == (1, None)


def test_a_release_lets_udev_have_the_drive(drive: GuestsDrive) -> None:
    drive.cut = 3
    with pytest.raises(KilledError):
        handed(drive)
    assert held_back(drive) == (DRIVE,)
    calls.release(place(drive), DRIVE, "the next tenant is the same")
    assert held_back(drive) == ()
    document = json.loads(calls.status(place(drive)).to_json())
    assert [one["record"]["state"] for one in document["devices"]] == ["released", "quarantined"]


def test_a_damaged_record_of_an_erasure_fails_that_drive_alone(drive: GuestsDrive) -> None:
    """The hand-over ends, the other device is clean, and a release removes the file."""
    root = Path(drive.root)
    put(root, f"/{STATE}/handover/erase-{DRIVE}.json", "{")
    found = handed(drive)
    assert (dict(steps(found))["erased"], drive.starts, states(root)) == (
        "failed", [], {DRIVE: "quarantined", NIC: "clean"},
    )  # fmt: skip
    course = json.loads(calls.status(place(drive)).to_json())["course"]
    assert course["ended"] is True
    calls.release(place(drive), DRIVE, "handed over again")
    assert handed(drive).clean


def test_udev_that_cannot_be_told_keeps_the_driver_away(drive: GuestsDrive) -> None:
    put(Path(drive.root), "/run/udev/control", "")
    failing = drive.change

    def change(argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        if argv[:2] == ("udevadm", "control"):
            raise HosttuneError("udevadm: exit status 1", where="udevadm", hint="see its log")
        return failing(argv, timeout=timeout, stdin=stdin)

    drive.change = change  # type: ignore[method-assign]
    found = handed(drive)
    assert (dict(steps(found))["taken-back"], dict(steps(found))["erased"]) == ("failed", "unknown")
    assert (drive.starts, states(Path(drive.root))[DRIVE]) == ([], "quarantined")
