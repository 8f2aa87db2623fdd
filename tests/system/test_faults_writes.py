"""The nth change fails, for every n: all is taken back. One on the way back fails too: told, and `recover` ends it."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import stat
from collections import Counter
from pathlib import Path

import pytest
from faultkills import Lab, applying, back_at_original, lab_of, recovering, reverting, shut_off, whole_host
from faultkinds import EXAMPLES
from faultlab import AFTER, BEFORE, FILE, Ended, Faults, Job, applied_state, refuse, run_forked, site_on, transactions
from sweeps import FULL, sample

from hosttune.errors import Refused
from hosttune.model.result import Result
from hosttune.transaction.site import Site

MOST = 1  # failures of one sweep in a sample
# What these settings may be refused without harm: they say so instead (an interrupt that the kernel keeps; a daemon
# that finds the change by itself).
TOLERATED = ("smp_affinity_list", "udevadm", "systemctl")


def failing(at: int, number: int = errno.EIO, kind: str = BEFORE, **more: int | bool) -> Faults:
    return Faults(at=at, kinds=frozenset((kind,)), act=refuse(number), **more)  # type: ignore[arg-type]  # its fields


def run(lab: Lab, job: Job, faults: Faults) -> tuple[Result, int]:
    return job(site_on(lab.root, faults))


def changes_of(lab: Lab, job: Job, kind: str = BEFORE) -> int:
    """How many changes a job makes, from where the root stands now."""
    faults = failing(0, kind=kind)
    _, code = run(lab, job, faults)
    assert code == 0
    return faults.count


def places(name: str, count: int, *, every: int = 1, most: int = MOST) -> list[int]:
    """Which of so many changes are to fail: each `every`th, in a sample at most so many of them."""
    return sample(name, range(1, count + 1, every), most)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Most kinds in one transaction."""
    return lab_of(whole_host(), tmp_path_factory.mktemp("host") / "root")


def failed_and_taken_back(lab: Lab, result: Result, code: int, faults: Faults) -> None:
    """Exit 1; every entry says what became of it; the machine is as before; the journal is closed."""
    outcomes = Counter(entry.outcome for entry in result.entries)
    assert code == 1, (faults.fired, outcomes)
    assert list(back_at_original(lab)) == [], faults.fired
    ends = {"failed", "clamped"} if any(word in faults.fired for word in TOLERATED) else {"failed"}  # it is needed
    assert set(outcomes) - {"reverted"} <= ends, faults.fired
    assert set(outcomes) & ends, faults.fired
    assert all(entry.why for entry in result.entries if entry.outcome in ends), faults.fired
    assert (result.changed, result.open_transaction) == (False, None), faults.fired
    assert transactions(lab.root)[-1].state == "reverted"


# --- one failure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "every"),
    [(errno.EIO, BEFORE, 1), (errno.ENOSPC, BEFORE, 2), (errno.EIO, AFTER, 2)],
    ids=["EIO", "ENOSPC", "done, then an error"],
)
def test_the_nth_change_fails(host: Lab, number: int, kind: str, every: int) -> None:
    host.anew()
    count = changes_of(host, applying(host.example), kind)
    assert count > 40
    for at in places(f"{kind} {number}", count, every=every):
        host.anew()
        faults = failing(at, number, kind)
        result, code = run(host, applying(host.example), faults)
        assert faults.fired, at
        failed_and_taken_back(host, result, code, faults)


@pytest.mark.sweep(most=14)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_nth_change_of_every_kind_fails(name: str, number: int, tmp_path: Path) -> None:
    lab = lab_of(EXAMPLES[name], tmp_path / "root")
    lab.anew()
    for at in places(f"{name} {number}", changes_of(lab, applying(lab.example)), most=2):
        lab.anew()
        faults = failing(at, number)
        result, code = run(lab, applying(lab.example), faults)
        assert faults.fired, at
        if any(word in faults.fired for word in TOLERATED) and code == 0:
            assert any(entry.why for entry in result.entries), faults.fired  # told
            shut_off(lab.root)
            _, code = reverting(lab.example)(site_on(lab.root))
            assert (code, list(back_at_original(lab))) == (0, [])
        else:
            failed_and_taken_back(lab, result, code, faults)


def test_a_close_that_fails_is_a_write_that_failed(tmp_path: Path) -> None:
    """A quota or a network file system may say so only then (close(2)): of what was only read it means nothing."""
    lab = lab_of(whole_host(), tmp_path / "root")
    start = tmp_path / "start"
    lab.anew()
    lab.root.rename(start)
    shared = mmap.mmap(-1, mmap.PAGESIZE)

    def run_with(at: int) -> Ended:
        shutil.rmtree(lab.root, ignore_errors=True)
        shutil.copytree(start, lab.root, symlinks=True)
        shared[:8] = bytes(8)
        return run_forked(lab.root, closing(at, shared, applying(lab.example)), Faults(), watch=False)

    assert run_with(0).code == 0
    closes = int.from_bytes(shared[:8], "little")
    assert closes > 40
    codes = set()
    for at in sample("closes", range(1, closes + 1), 5):
        code = run_with(at).code
        assert code in (0, 1), at
        codes.add(code)
        if code == 1:
            assert list(back_at_original(lab)) == [], at
            assert not any(one.is_open for one in transactions(lab.root)), at
    assert codes == {0, 1}


def closing(at: int, count: mmap.mmap, job: Job) -> Job:
    """A job in which the nth close of a file fails, in its own process or a child of it. Only for a forked run."""
    close = os.close

    def fail(fd: int) -> None:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        close(fd)
        if regular:
            now = int.from_bytes(count[:8], "little") + 1
            count[:8] = now.to_bytes(8, "little")
            if now == at:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def work(site: Site) -> tuple[Result, int]:
        os.close = fail
        return job(site)

    return work


# --- and one on the way back ---------------------------------------------------------------------------------


def needs_a_person(lab: Lab, result: Result, code: int, faults: Faults) -> None:
    """Exit 4, the rest taken back, told, the journal open; nothing else begins before `recover`, which ends it."""
    assert code == 4, faults.fired
    left = [
        record for record, now in zip(lab.records, applied_state(lab.root, lab.records), strict=True) if now != "old"
    ]
    failed = {
        record.target for record in transactions(lab.root)[-1].records if "failed" in (record.undone, record.outcome)
    }
    # With MIG on there is no compute mode to put back; with an instance left, no functions.
    assert len(left) <= 1 or re.search("MigMode|'mig'", faults.fired), faults.fired
    assert {record.target for record in left} <= failed, faults.fired
    assert result.open_transaction is not None
    assert any(entry.outcome == "failed" and entry.why for entry in result.entries), faults.fired
    for job in (applying(lab.example), reverting(lab.example)):
        with pytest.raises(Refused, match="was not finished") as refused:
            job(site_on(lab.root))
        assert "hosttune recover" in refused.value.hint
        assert result.open_transaction.journal == refused.value.where
    settled, code = recovering(lab.example)(site_on(lab.root))
    assert (code, settled.open_transaction) == (0, None), faults.fired
    assert list(back_at_original(lab)) == [], faults.fired


def test_a_change_fails_and_one_of_the_way_back_too(host: Lab) -> None:
    host.anew()
    last = changes_of(host, applying(host.example))
    host.anew()
    faults = failing(last)
    run(host, applying(host.example), faults)
    codes = []
    for again in sample("way back", range(last + 1, faults.count + 1, 2), MOST):
        host.anew()
        faults = failing(last, again=again)
        result, code = run(host, applying(host.example), faults)
        assert faults.count >= again
        if code == 1:
            assert any(word in faults.fired for word in TOLERATED), faults.fired
        else:
            needs_a_person(host, result, code, faults)
        codes.append(code)
    assert codes.count(4) > (17 if FULL else 0)


@pytest.mark.parametrize(("kind", "every"), [(BEFORE, 1), (AFTER, 4)], ids=["not done", "done, then an error"])
def test_the_nth_change_of_a_revert_fails(host: Lab, kind: str, every: int) -> None:
    def applied() -> None:
        host.anew()
        applying(host.example)(site_on(host.root))
        shut_off(host.root)

    applied()
    codes = []
    for at in places(f"revert {kind}", changes_of(host, reverting(host.example), kind), every=every):
        applied()
        faults = failing(at, kind=kind)
        result, code = run(host, reverting(host.example), faults)
        assert faults.fired, at
        if code == 0:
            assert any(word in faults.fired for word in TOLERATED), faults.fired
        else:
            needs_a_person(host, result, code, faults)
        codes.append(code)
    assert codes.count(4) > (35 // every if FULL else 0)


@pytest.mark.parametrize("name", ["driver", "kernel-argument by kernel-install", "sysctl", "aspm by switches"])
def test_the_nth_change_of_a_recover_fails(name: str, tmp_path: Path) -> None:
    """From a transaction that was cut off when all was done: a crash stands for it."""
    lab = lab_of(EXAMPLES[name], tmp_path / "root")

    def cut_off() -> None:
        lab.anew()
        applying(lab.example)(site_on(lab.root))
        journal = next((lab.root / "var/lib/hosttune/transactions").iterdir())
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))

    cut_off()
    codes = []
    for at in places(f"recover {name}", changes_of(lab, recovering(lab.example))):
        cut_off()
        faults = failing(at)
        result, code = run(lab, recovering(lab.example), faults)
        assert faults.fired, at
        if code == 4:
            needs_a_person(lab, result, code, faults)
        else:
            assert code == 0
            assert any(word in faults.fired for word in TOLERATED), faults.fired
        codes.append(code)
    assert 4 in codes


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.__getitem__)
def test_from_the_nth_change_on_nothing_can_be_written(host: Lab, number: int) -> None:
    """A dying disk: the rest cannot be taken back either, and is told; once it is well, `recover` does it."""
    host.anew()
    count = changes_of(host, applying(host.example))
    assert count > 40
    for at in places(f"from then on {number}", count, every=5):
        host.anew()
        faults = failing(at, number, persistent=True)
        result, code = run(host, applying(host.example), faults)
        assert faults.fired, at
        if code == 1:  # nothing had been done yet
            assert list(back_at_original(host)) == [], faults.fired
            continue
        assert code == 4, faults.fired
        assert result.open_transaction is not None
        _, code = recovering(host.example)(site_on(host.root))
        assert code == 0, faults.fired
        assert list(back_at_original(host)) == [], faults.fired


def no_room(faults: Faults, what: str) -> None:
    """A full disk: nothing new can be made; what is there can be read and removed."""
    if what.startswith(("open", "os.mkdir", "os.symlink", "os.link")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what.partition(" ")[2])


@pytest.mark.sweep(most=8)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_disk_that_is_full_from_some_point_on_is_told(name: str, tmp_path: Path) -> None:
    """Also inside what a scratch root does for one write, in the child that makes it. Then `recover` ends it."""
    lab = lab_of(EXAMPLES[name], tmp_path / "root")

    def run(at: int) -> Ended:
        lab.anew()
        kinds, whole = frozenset((FILE,)), frozenset[str]()
        faults = Faults(at=at, kinds=kinds, act=no_room, persistent=True, whole=whole)
        return run_forked(lab.root, applying(lab.example), faults)

    for at in sample(f"full {name}", range(1, run(0).count + 1), 2):
        ended = run(at)
        assert ended.code in (0, 1, 3, 4), ended.fired
        code = recovering(lab.example)(site_on(lab.root))[1]
        assert code == 0, ended.fired
        assert list(back_at_original(lab)) == [] or ended.code == 0, ended.fired
