"""The erasure of a drive: one that behaves, and ones that refuse, lie, repeat an old log, change, or are shared."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from cutshort import KilledError, put
from fakedrive import ADDRESS, BLOCK, OTHER, SERIAL, FakeDrive, order
from sweeps import sample

from hosttune.errors import BadInput, CommandFailed, Refused
from hosttune.handover.erasing import erase, erasing, forget_erasing, hold_back, survey
from hosttune.model.handover import HandoverStep

NOTHING_TO_READ = "it has no namespace, so that nothing could be read back: make one (nvme create-ns)"


@pytest.fixture
def drive(tmp_path: Path) -> FakeDrive:
    return FakeDrive(tmp_path / "host")


@pytest.fixture
def state(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir()
    return str(tmp_path / "state")


def run(drive: FakeDrive, state: str, **changes: Any) -> HandoverStep:
    return erase(drive, state, order(**changes), drive.time)


def evidence(step: HandoverStep, name: str) -> Any:
    assert step.evidence is not None
    return step.evidence[name]


# --- drives that behave ------------------------------------------------------------------------------------------


def test_a_sanitize_with_its_evidence(tmp_path: Path, state: str) -> None:
    drive = FakeDrive(tmp_path / "host", blocks=2048)
    hold_back(drive, ADDRESS, SERIAL)
    step = run(drive, state)
    assert (step.step, step.outcome, step.method, step.why) == ("erased", "done", "sanitize, block erase", None)
    assert drive.starts == [("nvme", "sanitize", "/dev/nvme0", "--sanact=2")]
    assert evidence(step, "log_before") == {"status": 0, "global_data_erased": False, "command": 0}
    assert evidence(step, "log_after") == {"status": 1, "global_data_erased": True, "command": 2}
    assert evidence(step, "read_back") == {"places": 1536, "with_data": 1536, "same": 0, "unread": 0}
    assert evidence(step, "namespaces") == ({"id": 1, "bytes": 2048 * BLOCK},)
    assert evidence(step, "seen_running") is True
    assert evidence(step, "udev_held_back") is True
    assert (evidence(step, "serial"), evidence(step, "owner")) == (SERIAL, "guest a, from its definition")
    assert run(drive, state) == step  # kept: nothing is done twice
    assert len(drive.starts) == 1
    forget_erasing(state, ADDRESS)
    assert erasing(state, ADDRESS) is None


def test_the_record_is_private_and_has_no_data_of_the_tenant(drive: FakeDrive, state: str) -> None:
    run(drive, state)
    path = Path(state, "handover", f"erase-{ADDRESS}.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = erasing(state, ADDRESS)
    assert found is not None
    again = FakeDrive(Path(drive.root).with_name("again"))
    run(again, state, handover="8")
    other = erasing(state, ADDRESS)
    assert other is not None
    assert found.before != other.before  # the same data, another key


@pytest.mark.parametrize(
    ("last", "words"), [(0, ("--sanact=2",)), (2, ("--sanact=2", "--ause")), (2 | 8, ("--sanact=2",))]
)
def test_a_second_sanitize_differs_from_the_last_one(
    drive: FakeDrive, state: str, last: int, words: tuple[str, ...]
) -> None:
    drive.sstat, drive.erased, drive.scdw10 = (1, 1, last) if last else (0, 0, 0)
    assert run(drive, state).outcome == "done"
    assert [start[3:] for start in drive.starts] == [words]


@pytest.mark.parametrize(
    ("sanicap", "method"),
    [(1, "sanitize, cryptographic erase"), (4, "sanitize, overwrite"), (7, "sanitize, block erase")],
)
def test_what_the_drive_has_is_used(drive: FakeDrive, state: str, sanicap: int, method: str) -> None:
    drive.sanicap = sanicap
    step = run(drive, state)
    assert (step.outcome, step.method) == ("done", method)


def test_a_format_of_every_namespace_in_its_own_format(tmp_path: Path, state: str) -> None:
    drive = FakeDrive(tmp_path / "host", namespaces=2)
    drive.sanicap = 0
    step = run(drive, state)
    assert (step.outcome, step.method) == ("done", "format, cryptographic erase")
    assert evidence(step, "formatted") == (1, 2)
    assert [start[1:] for start in drive.starts] == [
        ("admin-passthru", "/dev/nvme0", "--opcode=0x80", f"--namespace-id={n}", "--cdw10=0x401", "--timeout=14400000")
        for n in (1, 2)
    ]
    assert survey(drive, order(handover="8")).estimate_seconds is None


def test_times_come_from_the_drive_s_own_log(drive: FakeDrive) -> None:
    drive.seconds = 3000
    found = survey(drive, order())
    assert (found.estimate_seconds, found.limit_seconds) == (3000.0, 9000.0)
    drive.sanicap = 1  # its time is not reported
    found = survey(drive, order())
    assert (found.estimate_seconds, found.limit_seconds) == (None, 14400.0)


@pytest.mark.parametrize("version", ["1.16", "2.8", "2.16"])
def test_forms_of_nvme_cli(drive: FakeDrive, state: str, version: str) -> None:
    drive.version = version
    assert run(drive, state).outcome == "done"


# --- drives that do not ------------------------------------------------------------------------------------------


def test_a_drive_that_lies(drive: FakeDrive, state: str) -> None:
    drive.lies = True
    step = run(drive, state)
    assert step.outcome == "failed"
    assert step.why == "16 of 16 blocks still have their old data, first namespace 1 at 0"
    drive.sanicap = 0
    assert run(drive, state, handover="8").outcome == "failed"  # a format that lies


def test_one_old_block_is_enough_and_constant_ones_are_none(drive: FakeDrive, state: str) -> None:
    drive.media[1][:8] = [b"\xff" * BLOCK] * 8  # constant before
    kept = drive.media[1][15]
    wipe = drive._wipe

    def leave(*nsids: int) -> None:
        wipe(*nsids)
        drive.media[1] = [b"\xff" * BLOCK] * 15 + [kept]

    drive._wipe = leave  # type: ignore[method-assign]
    step = run(drive, state)
    assert (step.outcome, step.why) == ("failed", "1 of 8 blocks still have their old data, first namespace 1 at 61440")


def test_a_drive_that_repeats_an_old_log(drive: FakeDrive, state: str) -> None:
    drive.stale, drive.sstat, drive.erased, drive.scdw10 = True, 1, 1, 2
    step = run(drive, state)
    assert step.outcome == "unknown"
    assert step.why is not None
    assert "its log does not show it" in step.why
    assert len(drive.starts) == 1


@pytest.mark.parametrize(
    ("ends", "erased", "outcome", "why"),
    [
        (4, 1, "done", None),
        (3, 0, "failed", "the drive reports that the sanitize failed (status 3)"),
        (1, 0, "failed", "the drive reports status 1 without Global Data Erased"),
    ],
)
def test_how_a_sanitize_ends(
    drive: FakeDrive, state: str, ends: int, erased: int, outcome: str, why: str | None
) -> None:
    drive.ends_as, drive.sets_erased = ends, erased
    step = run(drive, state)
    assert (step.outcome, step.why) == (outcome, why)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("NVMe status: Invalid Command Opcode: A reserved coded value (0x1)", "not-supported"),
        ("NVMe status: INVALID_OPCODE: The associated command opcode field is not valid(0x2001)", "not-supported"),
        ("NVMe status: Access Denied: Access to the namespace is denied (0x286)", "failed"),
    ],
)
def test_a_drive_that_refuses(drive: FakeDrive, state: str, said: str, outcome: str) -> None:
    for sanicap, handover in ((2, "1"), (0, "2")):
        drive.refuses, drive.sanicap = said, sanicap
        step = run(drive, state, handover=handover)
        assert (step.outcome, step.why) == (outcome, f"the drive refused the command: exit status 1: {said}")
    assert drive.starts == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"oacs": 0b1000}, "it has no sanitize (SANICAP 0x0), and no format (OACS 0x8)"),
        (
            {"unvmcap": 4096},
            "it has no sanitize (SANICAP 0x0), and a format does not reach 4096 bytes of it that no namespace has "
            "(UNVMCAP)",
        ),
        ({"media": {}}, NOTHING_TO_READ),
        ({"media": {}, "sanicap": 2}, NOTHING_TO_READ),  # its log alone could not be checked
    ],
)
def test_what_a_drive_cannot_do(drive: FakeDrive, state: str, facts: dict[str, Any], why: str) -> None:
    drive.sanicap = 0
    for name, value in facts.items():
        setattr(drive, name, value)
    step = run(drive, state)
    assert (step.outcome, step.why, step.method) == ("not-supported", why, None)
    assert drive.starts == []


def test_a_read_error_is_unknown(drive: FakeDrive, state: str) -> None:
    drive.bad = {3 * BLOCK}
    step = run(drive, state)
    assert (step.outcome, step.why) == ("unknown", "1 of 16 blocks cannot be read, first namespace 1 at 12288")


def test_a_block_that_could_not_be_read_before_is_unknown(drive: FakeDrive, state: str) -> None:
    drive.bad = {3 * BLOCK}
    drive.hook = lambda words: drive.bad.clear() if words[1] == "sanitize" else None
    step = run(drive, state)
    assert (step.outcome, evidence(step, "read_back")["unread"]) == ("unknown", 1)


def test_the_time_limit_and_waiting_on(drive: FakeDrive, state: str) -> None:
    drive.seconds = 1000
    drive.hook = lambda words: (
        setattr(drive, "seconds", 5000) if words[1] == "sanitize" else None
    )  # slower than it said
    step = run(drive, state)
    assert (step.outcome, step.why) == ("unknown", "not ended within 3000 s (60 % done): call again to wait on")
    standing = erasing(state, ADDRESS)
    assert standing is not None
    assert (standing.phase, standing.percent, standing.step) == ("running", 60, None)
    assert run(drive, state).outcome == "done"
    assert len(drive.starts) == 1


def test_a_command_without_an_answer_is_never_sent_again(drive: FakeDrive, state: str) -> None:
    drive.hangs = True
    assert run(drive, state).outcome == "done"  # the drive had taken it
    assert len(drive.starts) == 1
    drive.stale = True
    step = run(drive, state, handover="8")
    assert step.outcome == "unknown"
    assert len(drive.starts) == 2


def test_a_log_that_is_lost_half_way(drive: FakeDrive, state: str) -> None:
    def lost(words: tuple[str, ...]) -> None:
        if words[1] == "sanitize-log" and drive.starts and drive.time.now < 1020:
            raise CommandFailed(words, "exit status 1", "NVMe status: Internal Error(0x6)")

    drive.hook = lost
    step = run(drive, state)
    assert step.outcome == "unknown"
    assert step.why is not None
    assert "log cannot be read" in step.why
    drive.time.now = 1030
    assert run(drive, state).outcome == "done"
    assert len(drive.starts) == 1


# --- the wrong drive -------------------------------------------------------------------------------------------


def refused(drive: FakeDrive, state: str, why: str, **changes: Any) -> None:
    """The drive is refused with this reason, by the survey and by the erasure, and has had no erasing command."""
    for call in (lambda: survey(drive, order(**changes)), lambda: run(drive, state, **changes)):
        with pytest.raises(Refused, match=why):
            call()
    assert drive.starts == []
    assert drive.media[1][0][:1] == b"\x01"


def test_another_serial_number(drive: FakeDrive, state: str) -> None:
    refused(drive, state, f"serial number '{SERIAL}', not 'S6CKNE0T100124'", serial="S6CKNE0T100124")
    assert run(drive, state, serial=f" {SERIAL} ").outcome == "done"


def test_a_drive_that_was_not_the_guest_s(drive: FakeDrive, state: str) -> None:
    refused(drive, state, "not known to have been the guest's", owner=None)
    refused(drive, state, "not part of this hand-over", belonging=(OTHER,))


@pytest.mark.parametrize("method", ["sanitize", "format"])
def test_a_serial_number_that_changes_before_the_command(drive: FakeDrive, state: str, method: str) -> None:
    drive.sanicap = 2 if method == "sanitize" else 0

    def swap(words: tuple[str, ...]) -> None:
        if words[0] == "read":  # after the survey: another drive is plugged in
            drive.serial = "S6CKNE0T999999"

    drive.hook = swap
    with pytest.raises(Refused, match="S6CKNE0T999999"):
        run(drive, state)
    assert drive.starts == []
    with pytest.raises(Refused, match="S6CKNE0T999999"):
        run(drive, state)


def test_a_serial_number_that_changes_after_it(drive: FakeDrive, state: str) -> None:
    def swap(words: tuple[str, ...]) -> None:
        if words[1] == "sanitize-log" and drive.sstat == 2:
            drive.serial = "S6CKNE0T999999"

    drive.hook = swap
    step = run(drive, state)
    assert (step.outcome, step.why) == ("unknown", "another drive is there now: serial number 'S6CKNE0T999999'")


def test_an_erasure_of_another_serial_number_was_begun(drive: FakeDrive, state: str) -> None:
    run(drive, state)
    with pytest.raises(Refused, match="was begun"):
        run(drive, state, serial="S6CKNE0T100124")


def test_a_drive_in_use(drive: FakeDrive, state: str, tmp_path: Path) -> None:
    put(tmp_path / "host", "/proc/self/mounts", "/dev/nvme0n1p2 /srv ext4 rw 0 0\n")
    refused(drive, state, "nvme0n1p2 mounted on /srv")
    put(tmp_path / "host", "/proc/self/mounts", "proc /proc proc rw 0 0\n")
    put(tmp_path / "host", "/sys/class/block/nvme0n1/holders/md127/size", "1")
    drive.forget()
    refused(drive, state, "nvme0n1 held by md127")


def test_a_drive_that_something_unseen_has_claimed(drive: FakeDrive, state: str) -> None:
    drive.claimed.add("/dev/nvme0n1")  # mounted in another mount namespace, or of a ZFS pool
    refused(drive, state, "cannot be held alone: /dev/nvme0n1")


def test_a_drive_that_a_process_has_open(drive: FakeDrive, state: str, tmp_path: Path) -> None:
    put(tmp_path / "host", "/proc/77/comm", "fio\n")
    put(tmp_path / "host", "/dev/nvme0n1", "")
    (tmp_path / "host/proc/77/fd").mkdir()
    (tmp_path / "host/proc/77/fd/3").symlink_to("/dev/nvme0n1")
    drive.forget()
    refused(drive, state, r"fio \(process 77\) has /dev/nvme0n1 open")


def test_namespaces_are_held_while_the_drive_is_erased(drive: FakeDrive, state: str) -> None:
    seen = []
    drive.hook = lambda words: seen.append(set(drive.claimed)) if words[1] in ("sanitize", "/dev/nvme0n1") else None
    run(drive, state)
    assert len(seen) == 33  # 16 blocks, the command, 16 blocks
    assert all(held == {"/dev/nvme0n1"} for held in seen)
    assert drive.claimed == set()


def test_a_namespace_that_another_controller_shares(drive: FakeDrive, state: str) -> None:
    drive.cmic, drive.controllers = 0b10, (1, 2)
    refused(drive, state, "controllers that are not on this host's nvme driver: 2")
    drive.add_controller("nvme1", 2, OTHER)
    refused(drive, state, f"shares its NVM subsystem with {OTHER}")
    assert run(drive, state, belonging=(ADDRESS, OTHER)).outcome == "done"


def test_another_drive_in_the_place_of_a_second_controller_gets_no_command(tmp_path: Path, state: str) -> None:
    """A namespace is formatted through the controller that has it: that one is asked, not only the first."""
    drive = FakeDrive(tmp_path / "host", namespaces=2)
    drive.cmic, drive.controllers, drive.sanicap = 0b10, (1, 2), 0
    drive.add_controller("nvme1", 2, OTHER)
    drive._list_ns = lambda argv: {"nsid_list": [{"nsid": int(argv[2][-1]) + 1}]}  # type: ignore[method-assign]

    def swap(words: tuple[str, ...]) -> None:
        if words[1] == "id-ctrl":
            drive.serial = "S6CKNE0T999999" if words[2] == "/dev/nvme1" else SERIAL

    drive.hook = swap
    with pytest.raises(Refused, match="S6CKNE0T999999"):
        run(drive, state, belonging=(ADDRESS, OTHER))
    assert [words[2] for words in drive.starts] == ["/dev/nvme0"]


def test_a_controller_of_another_subsystem_does_not_matter(drive: FakeDrive, state: str) -> None:
    drive.add_controller("nvme1", 2, OTHER, nqn="nqn.2014.08.org:b")
    assert run(drive, state).outcome == "done"


def test_a_virtual_function(drive: FakeDrive, state: str, tmp_path: Path) -> None:
    drive.cmic, drive.oacs, drive.controllers = 0b10, 0b10001010, (1, 5)
    row = {"secondary-controller-identifier": 5, "virtual-function-number": 1, "secondary-controller-state": 0}
    drive.secondaries = (row,)
    assert run(drive, state).outcome == "done"  # offline, no function
    drive.secondaries = ({**row, "secondary-controller-state": 1},)
    with pytest.raises(Refused, match="not on this host's nvme driver: 5"):
        run(drive, state, handover="8")
    virtual = "0000:c1:00.1"
    (tmp_path / f"host/sys/bus/pci/devices/{ADDRESS}/virtfn0").symlink_to(f"../{virtual}")
    put(tmp_path / "host", f"/sys/bus/pci/devices/{virtual}/class", "0x010802\n")
    drive.forget()
    with pytest.raises(Refused, match=f"shares its NVM subsystem with {virtual}"):
        run(drive, state, handover="8")
    assert len(drive.starts) == 1
    assert run(drive, state, handover="8", belonging=(ADDRESS, virtual)).outcome == "done"


def test_a_drive_that_does_not_list_its_controllers(drive: FakeDrive, state: str) -> None:
    drive.cmic = 0b10

    def missing(words: tuple[str, ...]) -> None:
        if words[1] == "list-ctrl":
            raise CommandFailed(words, "exit status 1", "NVMe status: Invalid Field in Command(0x2)")

    drive.hook = missing
    refused(drive, state, "may have other controllers, and does not list them")


def test_a_namespace_that_no_controller_has(drive: FakeDrive, state: str) -> None:
    drive.loose = (9,)
    refused(drive, state, "attached to no controller here: 9")


def test_a_drive_that_is_not_on_the_nvme_driver(drive: FakeDrive, state: str, tmp_path: Path) -> None:
    link = tmp_path / f"host/sys/bus/pci/devices/{ADDRESS}/driver"
    link.unlink()
    link.symlink_to("../../drivers/vfio-pci")
    drive.forget()
    refused(drive, state, "not on the host's nvme driver")


def test_a_sanitize_of_somebody_else(drive: FakeDrive, state: str) -> None:
    drive.sstat, drive.scdw10, drive.ends_at = 2, 4, 5000.0
    refused(drive, state, "being sanitized by another command")


def test_another_sanitize_between_the_survey_and_the_command(drive: FakeDrive, state: str) -> None:
    def begin(words: tuple[str, ...]) -> None:
        if words[1] == "sanitize" and not drive.starts:
            drive.sstat, drive.erased, drive.scdw10, drive.ends_at = 2, 0, 4, drive.time.now + 40

    drive.hook = begin
    step = run(drive, state)
    assert step.outcome == "failed"
    assert step.why is not None
    assert "Sanitize In Progress" in step.why


def test_without_nvme_cli(drive: FakeDrive, state: str) -> None:
    def missing(words: tuple[str, ...]) -> None:
        raise CommandFailed(words, "not installed")

    drive.hook = missing
    with pytest.raises(CommandFailed) as failed:
        run(drive, state)
    assert failed.value.hint == "install nvme-cli, 1.13 or newer (package nvme-cli)"


def test_a_damaged_record(drive: FakeDrive, state: str) -> None:
    put(Path(state), f"handover/erase-{ADDRESS}.json", "{")
    with pytest.raises(BadInput, match="JSON"):
        run(drive, state)
    assert drive.starts == []


# --- cut off -----------------------------------------------------------------------------------------------------


def steps_of(tmp_path: Path, sanicap: int) -> int:
    drive = FakeDrive(tmp_path / "whole", namespaces=2)
    (tmp_path / "whole-state").mkdir()
    drive.sanicap = sanicap
    assert run(drive, str(tmp_path / "whole-state")).outcome == "done"
    return drive.steps


@pytest.mark.parametrize("sanicap", [2, 0])
def test_cut_off_at_every_step(tmp_path: Path, sanicap: int) -> None:
    """A kill before and after every command: the next call ends it; a sanitize is started once."""
    last = steps_of(tmp_path, sanicap)
    for n in sample(f"erasing {sanicap}", range(2 * last), 24):
        drive = FakeDrive(tmp_path / f"host{n}", namespaces=2)
        drive.sanicap, drive.cut, drive.after = sanicap, n // 2, bool(n % 2)
        folder = tmp_path / f"state{n}"
        folder.mkdir()
        with pytest.raises(KilledError):
            run(drive, str(folder))
        drive.cut = -1
        drive.claimed.clear()
        drive.time.now += 3  # the drive goes on meanwhile
        step = run(drive, str(folder))
        assert step.outcome == "done", (n, step.why)
        if sanicap:
            assert len(drive.starts) == 1, n
        else:
            assert [start[4] for start in drive.starts] in (
                ["--namespace-id=1", "--namespace-id=2"],
                ["--namespace-id=1"] * 2 + ["--namespace-id=2"],
                ["--namespace-id=1"] + ["--namespace-id=2"] * 2,
            ), n


def test_cut_off_and_the_old_data_are_still_found(drive: FakeDrive, state: str) -> None:
    """The digests from before survive a kill: a drive that lies is found after it."""
    drive.lies = True
    drive.hook = lambda words: (_ for _ in ()).throw(KilledError) if drive.starts else None
    with pytest.raises(KilledError):
        run(drive, state)
    drive.hook = lambda words: None
    drive.claimed.clear()
    assert run(drive, state).outcome == "failed"


def test_a_command_that_was_taken_is_not_sent_again_after_a_kill(drive: FakeDrive, state: str) -> None:
    """Even to a drive whose log does not show it."""
    drive.stale, drive.sstat, drive.erased, drive.scdw10 = True, 1, 1, 2
    drive.hook = lambda words: (_ for _ in ()).throw(KilledError) if drive.starts else None
    with pytest.raises(KilledError):
        run(drive, state)
    drive.hook = lambda words: None
    drive.claimed.clear()
    drive.ends_at = None
    assert run(drive, state).outcome == "unknown"
    assert len(drive.starts) == 1


def test_another_hand_over_needs_a_proof_of_its_own(drive: FakeDrive, state: str) -> None:
    assert run(drive, state).outcome == "done"
    assert run(drive, state, handover="8").outcome == "done"
    assert len(drive.starts) == 2
