"""The time of others on pinned CPUs, from files of /proc, and who psutil says that was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.machine.opening import open_system
from hosttune.watch.footprint import ProcessUse, footprint, processes, suspects
from hosttune.watch.foreign import Counter, ProcSample, Watched, advance, sample

VM = Watched(name="vm", pid=700, cpus=(2, 3))
STAT = "{pid} ({name}) S 1 " + "0 " * 9 + "{user} {system} 0 0 20 0 3 0 {start} 0 0\n"


def write(
    root: Path, busy: dict[int, tuple[int, ...]], threads: dict[int, tuple[str, int, int]], start: int = 99
) -> None:
    """A root's /proc/stat, and the threads of process 700: name, user and system ticks."""
    lines = [
        "cpu  1 1 1 1 1 1 1 0 0 0",
        *(f"cpu{cpu} {' '.join(map(str, row))}" for cpu, row in busy.items()),
        "intr 1",
    ]
    (root / "proc/700/task").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text("\n".join(lines) + "\n")
    (root / "proc/700/stat").write_text(STAT.format(pid=700, name="qemu) (x", user=0, system=0, start=start))
    for thread, (name, user, system) in threads.items():
        folder = root / f"proc/700/task/{thread}"
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "stat").write_text(STAT.format(pid=thread, name=name, user=user, system=system, start=start))


def look(root: Path, at: float) -> ProcSample | None:
    return sample(open_system(str(root)), [VM], at)


def test_others_are_what_the_cpus_did_less_what_the_vcpus_did(tmp_path: Path) -> None:
    """User, nice, system, irq and softirq count; idle, iowait and stolen time do not; neither does the emulator's."""
    write(
        tmp_path,
        {2: (100, 0, 50, 9, 9, 0, 0, 9, 90, 0), 3: (0,) * 10},
        {700: ("qemu", 5, 5), 701: ("CPU 0/KVM", 90, 40)},
    )
    before = look(tmp_path, 10.0)
    write(
        tmp_path,
        {2: (200, 10, 60, 999, 999, 5, 5, 999, 190, 10), 3: (50, 0, 0, 9, 9, 0, 0, 0, 50, 0)},
        {700: ("qemu", 500, 500), 701: ("CPU 0/KVM", 180, 45), 702: ("IO iothread1", 70, 70)},
    )
    after = look(tmp_path, 20.0)
    # CPU 2: 100 + 10 + 10 + 5 + 5 ticks, CPU 3: 50; the vCPU: 95
    found = advance({}, [VM], before, after)["vm"]
    assert found is not None
    assert found.shown == pytest.approx((130 + 50 - 95) / 100)
    assert found.share == pytest.approx(found.shown / 10)


def test_a_first_sample_another_process_or_another_cpu_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, {2: (100,) * 10, 3: (100,) * 10}, {701: ("CPU 0/KVM", 1, 1)})
    first = look(tmp_path, 1.0)
    old = {"vm": Counter(total=3.0, shown=4.0)}
    assert advance(old, [VM], None, first) == {"vm": old["vm"]}
    write(tmp_path, {2: (900,) * 10, 3: (900,) * 10}, {701: ("CPU 0/KVM", 1, 1)}, start=100)
    second = look(tmp_path, 2.0)
    assert advance(old, [VM], first, second) == {"vm": old["vm"]}, "the guest was restarted"
    write(tmp_path, {2: (901,) * 10}, {701: ("CPU 0/KVM", 1, 1)}, start=100)
    assert advance(old, [VM], second, look(tmp_path, 3.0)) == {"vm": None}, "CPU 3 is offline: unknown"


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert look(tmp_path, 1.0) is None
    assert advance({}, [VM], None, None) == {"vm": None}
    write(tmp_path, {2: (1,) * 10, 3: (1,) * 10}, {700: ("qemu", 5, 5)})
    found = look(tmp_path, 1.0)
    assert found is not None
    assert found.own == {}, "no vCPU thread is seen: not a guest whose vCPUs did nothing"
    write(tmp_path, {2: (1,) * 10, 3: (1,) * 10}, {701: ("CPU 0/KVM", 1, 1)})
    (tmp_path / "proc/700/task/701/stat").write_text("701 (CPU 0/KVM) S 1 2\n")
    found = look(tmp_path, 1.0)
    assert found is not None
    assert found.own == {}


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=30))
def test_the_counter_never_falls_and_ticks_that_are_late_are_not_added_twice(rows: list[tuple[int, int]]) -> None:
    guest = Watched(name="vm", pid=1, cpus=(0,))
    busy = own = 0.0
    before = ProcSample(at=0.0, busy={0: 0.0}, own={"vm": ("1.1", 0.0)})
    counter, last = Counter(), 0.0
    for number, (more, mine) in enumerate(rows, 1):
        busy, own = busy + more / 100, own + mine / 100
        now = ProcSample(at=float(number), busy={0: busy}, own={"vm": ("1.1", own)})
        found = advance({"vm": counter}, [guest], before, now)["vm"]
        assert found is not None
        assert found.shown >= last
        assert found.shown >= busy - own - 1e-6
        assert found.total == pytest.approx(busy - own, abs=1e-6)
        counter, last, before = found, found.shown, now


# --- psutil --------------------------------------------------------------------------------------------------


def test_suspects_are_those_that_ran_there_most() -> None:
    rows = [(1, "init", 1.0, 2), (7, "stress", 0.0, 2), (8, "backup", 5.0, 3), (700, "qemu", 1.0, 2)]
    rows += [(9, "reused", 1.0, 2), (10, "elsewhere", 0.0, 9), (11, "a", 0.0, 2), (12, "b", 0.0, 2)]
    before = {pid: ProcessUse(name, seconds, cpu) for pid, name, seconds, cpu in rows}
    rows = [(7, "stress", 9.0, 2), (8, "backup", 6.0, 3), (700, "qemu", 99.0, 2), (9, "another", 50.0, 2)]
    rows += [(10, "elsewhere", 80.0, 9), (11, "a", 0.5, 2), (12, "b", 0.4, 2), (13, "new", 70.0, 2)]
    now = before | {pid: ProcessUse(name, seconds, cpu) for pid, name, seconds, cpu in rows}
    assert suspects(before, now, {2, 3}, {700}) == (
        "'stress' (process 7, 9.0 s, CPU 2)", "'backup' (process 8, 1.0 s, CPU 3)", "'a' (process 11, 0.5 s, CPU 2)",
    )  # fmt: skip


def test_psutil_sees_this_process_and_what_it_costs() -> None:
    pytest.importorskip("psutil")
    before = footprint()
    first = processes(os.sched_getaffinity(0))
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = footprint()
    assert first is not None
    assert os.getpid() in first
    assert before.cpu_seconds is not None
    assert after.cpu_seconds is not None
    assert after.cpu_seconds > before.cpu_seconds
    assert (after.resident_bytes or 0) > 1 << 20
    assert processes(()) == {}
