"""The journal under attack: a full disk, a torn end, a foreign or broken file, clocks that jump, another boot."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faultkills import Lab, applying, back_at_original, killed_at, lab_of, recovering, reverting
from faultkinds import EXAMPLES, together
from faultlab import (
    BOOT_ID,
    SYNC,
    Faults,
    Job,
    applied_state,
    quiet,
    run_forked,
    site_on,
    transactions,
    tree_of,
)
from sweeps import sample

from hosttune.cli.process import run
from hosttune.journal import JournalFailed
from hosttune.model.result import Result
from hosttune.report.result import verdict
from hosttune.transaction import recover, revert, status
from hosttune.transaction.site import Site

FEW = together(EXAMPLES["thp"], EXAMPLES["ksm"], EXAMPLES["sysctl"])
JOURNALS = "var/lib/hosttune/transactions"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """THP, KSM, two sysctls and the boot unit; each test makes its root anew."""
    return lab_of(FEW, tmp_path_factory.mktemp("journal") / "root")


def journal_of(lab: Lab) -> Path:
    return lab.root / JOURNALS / "000001.jsonl"


def recovered(lab: Lab) -> None:
    """`recover` with no fault ends it, with everything as it was."""
    _, code = recovering(lab.example)(site_on(lab.root))
    assert code == 0
    assert list(back_at_original(lab)) == []


# --- a full disk ---------------------------------------------------------------------------------------------


def limited(size: int, job: Job) -> Job:
    """A job on a disk where no file can grow beyond a size (EFBIG; Python ignores SIGXFSZ)."""

    def limit(site: Site) -> tuple[Result, int]:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        return job(site)

    return limit


def saying_so(job: Job) -> Job:
    """An apply whose headline says that everything was rolled back."""

    def told(site: Site) -> tuple[Result, int]:
        result, code = job(site)
        assert ": FAILED, the host is as it was" in verdict(result, code)
        return result, code

    return told


def sizes(journal: bytes) -> list[int]:
    """Where to stop it: before, in, and just before the end of every line."""
    found: set[int] = set()
    start = 0
    for line in journal.splitlines(keepends=True):
        found |= {start, start + 1, start + len(line) // 2, start + len(line) - 1}
        start += len(line)
    return sorted(found)


def test_a_full_disk_at_every_line_of_an_apply(lab: Lab) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    codes = []
    for size in sample("full disk", sizes(journal_of(lab).read_bytes()), 16):
        lab.anew()
        ended = run_forked(lab.root, limited(size, saying_so(applying(FEW))), Faults(), watch=False)
        assert ended.code == 1, size
        assert set(applied_state(lab.root, lab.records)) == {"old"}, size
        codes.append(len(transactions(lab.root)))
        recovered(lab)
        _, code = applying(FEW)(site_on(lab.root))
        assert code == 0, size
    assert 0 in codes
    assert 1 in codes


@pytest.mark.parametrize("again", ["recover", "revert"])
def test_a_full_disk_on_the_way_back(lab: Lab, again: str) -> None:
    """No line fits: everything is taken back all the same, and the journal says so once there is room."""
    points = run_forked(_anew(lab), applying(FEW), Faults()).count
    lab.anew()
    if again == "recover":
        killed_at(lab, points - 2)(site_on(lab.root))
        job = recovering(FEW)
    else:
        applying(FEW)(site_on(lab.root))
        job = reverting(FEW)
    size = journal_of(lab).stat().st_size if again == "recover" else 700  # the first line fits
    ended = run_forked(lab.root, limited(size, job), Faults(), watch=False)
    assert ended.code == 1
    assert set(applied_state(lab.root, lab.records)) == {"old"}
    _, code = recovering(FEW)(site_on(lab.root))
    assert (code, list(back_at_original(lab))) == (0, [])
    _, code = reverting(FEW)(site_on(lab.root))
    assert (code, list(back_at_original(lab))) == (0, [])


def _anew(lab: Lab) -> Path:
    lab.anew()
    return lab.root


def disk_error(number: int) -> Callable[[Faults, str], None]:
    def act(faults: Faults, what: str) -> None:
        raise OSError(number, os.strerror(number))

    return act


@pytest.mark.parametrize(
    "number", sample("fsync", [errno.EIO, errno.ENOSPC, errno.EDQUOT], 1), ids=errno.errorcode.__getitem__
)
def test_the_nth_fsync_of_the_journal_fails(lab: Lab, number: int) -> None:
    """Also one that comes back late: what was written then is cut away again, so that nothing half-known is left."""
    for at in range(1, 100):
        lab.anew()
        faults = Faults(at=at, kinds=frozenset((SYNC,)), act=disk_error(number))
        if at == 1:
            with pytest.raises(JournalFailed, match=os.strerror(number)) as failed:
                applying(FEW)(site_on(lab.root, faults))
            code = failed.value.exit_code
        else:
            result, code = applying(FEW)(site_on(lab.root, faults))
            assert result.changed is (faults.fired == "")
        if not faults.fired:
            assert code == 0
            break
        assert code == 1
        recovered(lab)
    assert at > 9


# --- a torn end ----------------------------------------------------------------------------------------------


def saved_copy(lab: Lab) -> Path:
    copy = lab.root.with_name("copy")
    shutil.copytree(lab.root, copy, symlinks=True)
    return copy


def restored(lab: Lab, copy: Path) -> None:
    shutil.rmtree(lab.root)
    shutil.copytree(copy, lab.root, symlinks=True)


@pytest.mark.parametrize("tail", [b"", b"\0" * 512, b"\xff\xfe{"], ids=["cut", "zeros", "rubbish"])
def test_a_torn_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    """At every byte of the last two lines, and what a file system may show after a power cut in their place."""
    lab = lab_of(EXAMPLES["sysctl"], tmp_path / "root")
    whole = journal_of(lab).read_bytes()
    lines = whole.splitlines(keepends=True)
    copy = saved_copy(lab)
    first = len(whole) - len(lines[-1]) - len(lines[-2])
    for end in sample(f"torn {tail!r}", range(first, len(whole)), 8):
        restored(lab, copy)
        journal_of(lab).write_bytes(whole[:end] + tail)
        found, code = status(site_on(lab.root))
        assert (found.open_transaction is not None, code) == (True, 1)
        recovered(lab)
        lines_left = journal_of(lab).read_bytes().splitlines()
        assert all(json.loads(line) for line in lines_left), end  # nothing of the torn line is left
    assert len(whole) - first > 100


def test_a_journal_without_its_first_line_never_began(lab: Lab) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    first = journal_of(lab).read_bytes().splitlines(keepends=True)[0]
    for end in sample("first line", range(0, len(first), 7), 6):
        lab.anew()
        journal_of(lab).parent.mkdir(parents=True)
        journal_of(lab).write_bytes(first[:end])
        assert transactions(lab.root) == ()
        _, code = applying(FEW)(site_on(lab.root))
        assert code == 0
        _, code = reverting(FEW)(site_on(lab.root))
        assert (code, list(back_at_original(lab))) == (0, [])


# --- foreign and broken --------------------------------------------------------------------------------------


def change_line(number: int, **fields: Any) -> Callable[[bytes], bytes]:
    """The journal with some fields of a line, counted from 1, changed."""

    def change(journal: bytes) -> bytes:
        lines = journal.splitlines()
        lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), **fields}).encode()
        return b"\n".join(lines) + b"\n"

    return change


def line_as(number: int, text: bytes) -> Callable[[bytes], bytes]:
    """The journal with a line in place of another."""

    def change(journal: bytes) -> bytes:
        lines = journal.splitlines()
        lines[number - 1] = text
        return b"\n".join(lines) + b"\n"

    return change


NOT_KNOWN = ("a kind that is unknown", "a target that its kind cannot have")
BROKEN: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "a later schema": (1, change_line(1, schema="hosttune.journal/v2")),
    "an older schema": (1, change_line(1, schema="hosttune.journal/v0")),
    "no header": (1, lambda journal: b"".join(journal.splitlines(keepends=True)[1:])),
    "a field that is unknown": (2, change_line(2, colour="red")),
    "an event that is unknown": (3, change_line(3, event="maybe")),
    "a field of the wrong type": (2, change_line(2, step="one")),
    "a second intent": (4, change_line(4, step=1)),
    "an intent without its kind": (2, change_line(2, kind=None)),
    "done without an intent": (3, change_line(3, step=77)),
    "no step": (3, change_line(3, step=None)),
    "an end that is unknown": (12, change_line(12, state="fine")),
    "rubbish in the middle": (4, line_as(4, b"\0\0\0\0\0\0")),
    "no UTF-8": (4, line_as(4, b'{"event": "\xff\xfe"}')),
    "an empty line": (4, line_as(4, b"")),
    "a line cut in the middle of the file": (4, line_as(4, b'{"event":"inte')),
    "nested beyond all measure": (4, line_as(4, b'{"old":' + b"[" * 100_000)),
    NOT_KNOWN[0]: (4, change_line(4, kind="warp-drive")),
    NOT_KNOWN[1]: (4, change_line(4, target="../../etc/passwd")),
}


@pytest.mark.parametrize("ended", [True, False], ids=["finished", "cut off"])
def test_a_journal_that_cannot_be_believed_is_refused(
    ended: bool, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3, of `status` 1 (unknown), the file and its line named, nothing written."""
    lab.anew()
    applying(FEW)(site_on(lab.root))
    journal = journal_of(lab).read_bytes()
    lines = journal.splitlines(keepends=True)
    (lab.root / "var/lib/hosttune/plan.json").write_text(FEW.plan.to_json())
    for name, (number, change) in BROKEN.items():
        if not ended and number == len(lines):  # it has no such line
            continue
        journal_of(lab).write_bytes(change(journal if ended else b"".join(lines[:-1])))
        before = tree_of(lab.root), journal_of(lab).read_bytes()
        for verb in (("apply", "--yes"), ("revert",), ("recover",), ("status",)):
            code = run([*verb, "--root", str(lab.root)])
            printed, errors = capsys.readouterr()
            place = f"{journal_of(lab)}, " + (f"step {number // 2}" if name in NOT_KNOWN else f"line {number}")
            if verb == ("status",):
                assert (code, errors) == (1, ""), (name, verb)
                assert place in "".join(printed.split("\n")).replace("  ", ""), (name, verb, printed)
                continue
            assert code == 3, (name, verb, errors)
            assert f"where: {place}\n" in errors, (name, verb)
            other = name in (*NOT_KNOWN, "a later schema", "an older schema")
            assert ("use the version" in errors) == other, (name, verb, errors)
            assert "\n   do: " in errors, (name, verb)
            assert (tree_of(lab.root), journal_of(lab).read_bytes()) == before, (name, verb)


# --- of an earlier version ------------------------------------------------------------------------------------


def with_memory_moved(lab: Lab, *, ended: bool, outcome: str = "done") -> None:
    """A journal as an earlier version wrote it, which also moved the memory of a running guest, and its plan."""
    lab.anew()
    applying(FEW)(site_on(lab.root))
    plan = journal_of(lab).with_suffix(".plan.json")
    document = json.loads(plan.read_text())
    want, value = "cell.0=1 process=4000.4711", "cell.0=4KiB@0:12,1:500 process=4000.4711"
    action = {**document["actions"][0], "id": "live-memory:big", "kind": "live-memory", "target": "big", "want": want}
    plan.write_text(json.dumps({**document, "actions": [*document["actions"], action]}))
    lines = [json.loads(line) for line in journal_of(lab).read_text().splitlines()]
    step = {"step": 99, "at": lines[0]["at"]}
    moved: list[dict[str, Any]] = [
        {**step, "event": "intent", "kind": "live-memory", "target": "big", "actions": ["live-memory:big"],
         "scope": "runtime", "needed": False, "old": value.replace("1:500", "0:500"), "new": want},
        {**step, "event": "done", "outcome": outcome, "value": value},
    ]  # fmt: skip
    found = [*lines[:-1], *moved, *(lines[-1:] if ended else ())]
    journal_of(lab).write_text("".join(json.dumps(line) + "\n" for line in found))


@pytest.mark.parametrize("ended", [True, False], ids=["revert", "recover"])
def test_memory_that_an_earlier_version_has_moved_does_not_keep_the_rest_from_going_back(lab: Lab, ended: bool) -> None:
    with_memory_moved(lab, ended=ended)
    found, code = status(site_on(lab.root))
    assert (code, found.drift) == (0 if ended else 1, ())
    assert [note for note in found.notes if note.startswith("live-memory big: this version does not move the memory")]
    assert not [note for note in found.notes if "cannot be read" in note]
    found, code = (revert if ended else recover)(site_on(lab.root), quiet)
    told = {entry.action: entry for entry in found.entries}
    moved = told.pop("live-memory:big")
    assert (code, moved.outcome, {entry.outcome for entry in told.values()}) == (1, "conflict", {"reverted"})
    assert (moved.why or "").endswith("until the guest is shut down and started again")
    assert list(back_at_original(lab)) == []
    assert transactions(lab.root)[-1].state == "reverted"
    for again in (revert, recover):  # it is said once
        found, code = again(site_on(lab.root), quiet)
        assert (code, found.entries, found.notes) == (0, (), ())
    assert status(site_on(lab.root))[0].notes == ()


@pytest.mark.parametrize("ended", [True, False], ids=["revert", "recover"])
def test_after_a_reboot_nothing_is_left_of_memory_that_was_moved(lab: Lab, ended: bool) -> None:
    with_memory_moved(lab, ended=ended)
    site = site_on(lab.root, boot_id=OTHER_BOOT)
    assert status(site)[0].notes == ()
    found, code = (revert if ended else recover)(site, quiet)
    assert (code, found.open_transaction) == (0, None)
    assert "live-memory:big" not in {entry.action for entry in found.entries}


def test_memory_that_did_not_move_is_no_news(lab: Lab) -> None:
    with_memory_moved(lab, ended=True, outcome="ignored")
    assert status(site_on(lab.root))[0].notes == ()
    assert revert(site_on(lab.root), quiet)[1] == 0


# --- clocks and boots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times", [["2031-01-01T00:00:00Z", "1970-01-01T00:00:00Z"], ["not a time"]], ids=["backwards", "no time at all"]
)
def test_times_are_for_people_only(lab: Lab, times: list[str]) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    lines = [json.loads(line) for line in journal_of(lab).read_text().splitlines()]
    for n, line in enumerate(lines):
        line["at"] = times[n % len(times)]
    journal_of(lab).write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    recovered(lab)


THP = "sys/kernel/mm/transparent_hugepage/enabled"
SWAPPINESS = "proc/sys/vm/swappiness"
OTHER_BOOT = "22222222-0000-4000-8000-000000000000"


def rebooted(lab: Lab) -> None:
    """What a reboot leaves: runtime values as the kernel has them (THP neither old nor new), files as they were."""
    (lab.root / THP).write_text("always [madvise] never\n")
    (lab.root / "sys/kernel/mm/ksm/run").write_text("0\n")


@pytest.mark.parametrize("cut_off", [True, False], ids=["recover", "revert"])
def test_what_went_with_a_reboot_is_no_conflict(lab: Lab, cut_off: bool) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    if cut_off:
        journal = journal_of(lab).read_bytes()
        journal_of(lab).write_bytes(b"".join(journal.splitlines(keepends=True)[:-1]))
    rebooted(lab)
    there = tree_of(lab.root)
    site = site_on(lab.root, boot_id=OTHER_BOOT)
    found, code = recover(site, quiet) if cut_off else revert(site, quiet)
    assert (code, found.open_transaction) == (0, None)
    told = {entry.action.partition(":")[0]: entry for entry in found.entries}
    assert {kind for kind, entry in told.items() if entry.outcome == "already"} == {"thp", "ksm"}
    assert "the reboot had undone it, it is madvise since" in (told["thp"].why or "")
    assert all(entry.outcome == "reverted" for kind, entry in told.items() if kind not in ("thp", "ksm"))
    for path in (THP, "sys/kernel/mm/ksm/run"):
        assert tree_of(lab.root)[f"/{path}"] == there[f"/{path}"]
    left = {text for text in _differing(lab) if not text.startswith(("/sys/kernel/mm",))}
    assert left == set()


def _differing(lab: Lab) -> set[str]:
    now = tree_of(lab.root)
    return {path for path in lab.original.keys() | now.keys() if lab.original.get(path) != now.get(path)}


def test_the_same_values_on_the_same_boot_are_somebody_elses(lab: Lab) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    rebooted(lab)
    found, code = revert(site_on(lab.root), quiet)
    assert code == 1
    conflicts = {entry.action for entry in found.entries if entry.outcome == "conflict"}
    assert {action.partition(":")[0] for action in conflicts} == {"thp", "ksm"}
    assert (lab.root / THP).read_text() == "always [madvise] never\n"
    _, code = revert(site_on(lab.root), quiet, force=True)
    assert (code, list(back_at_original(lab))) == (0, [])


def test_a_file_that_somebody_changed_is_left_alone_after_a_reboot_too(lab: Lab) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    drop_in = lab.root / "etc/sysctl.d/90-hosttune.conf"
    drop_in.write_text(drop_in.read_text().replace("vm.swappiness = 1", "vm.swappiness = 33"))
    found, code = revert(site_on(lab.root, boot_id=OTHER_BOOT), quiet)
    assert code == 1
    assert [entry.action for entry in found.entries if entry.outcome == "conflict"] == ["sysctl:vm.swappiness"]
    assert "vm.swappiness = 33" in drop_in.read_text()


def test_status_after_another_boot(lab: Lab) -> None:
    lab.anew()
    applying(FEW)(site_on(lab.root))
    found, code = status(site_on(lab.root, boot_id=OTHER_BOOT))
    assert (found.drift, code) == ((), 0)
    rebooted(lab)
    found, code = status(site_on(lab.root, boot_id=OTHER_BOOT))
    assert code == 1
    assert {drift.action.partition(":")[0] for drift in found.drift} == {"thp", "ksm"}
    assert BOOT_ID != OTHER_BOOT
