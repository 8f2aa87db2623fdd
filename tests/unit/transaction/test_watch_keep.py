"""`hosttune watch --keep`: what has drifted is set again through the journal, seldom, and never against a person."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from faultkinds import EXAMPLES, Content, Example, host
from faultlab import Faults, fresh_root, kill, quiet, run_forked, site_on, transactions
from msgspec.structs import replace

from hosttune.errors import Refused
from hosttune.journal import JournalFailed, Store
from hosttune.knobs.registry import all_knobs
from hosttune.model.result import Result
from hosttune.settings.setting import BOOT, GUEST_STAGE, START_STAGE, OfFunction
from hosttune.transaction import ApplyOptions, apply_plan, reapply, recover, revert, status
from hosttune.transaction.keeping import Keeping, Kept, keep, knob_to_keep
from hosttune.transaction.site import Site, writable_store

LATENCY = "sys/devices/system/cpu/cpu{}/power/pm_qos_resume_latency_us"
WANTS = (("0-3", "10"),)
START = 1000.0  # seconds since the boot
ANOTHER_BOOT = "22222222-0000-4000-8000-000000000000"
# Knobs that --keep may set again; docs/watch.md lists the same.
KEPT = {
    *("governor", "energy_preference", "resume_latency_us", "irq_affinity", "thp", "numa_balancing"),
    *("vm.zone_reclaim_mode", "vm.compaction_proactiveness", "vm.swappiness", "vm.max_map_count", "vm.stat_interval"),
    *("kernel.nmi_watchdog", "kernel.timer_migration"),
}


def latencies(*wants: tuple[str, str]) -> Example:
    files: dict[str, Content] = {LATENCY.format(cpu): "0\n" for cpu in range(8)}
    return Example("latencies", files, tuple(("resume-latency", f"cpus {cpus}", want) for cpus, want in wants))


def apply(root: Path, example: Example) -> None:
    result, code = apply_plan(
        site_on(root), example.plan, ApplyOptions(start=example.start), host, lambda todo: True, quiet
    )
    assert code == 0, result


def applied(folder: Path, example: Example) -> Path:
    root = fresh_root(folder / "root", example.files, example.links)
    apply(root, example)
    return root


def drift(root: Path, value: str = "99") -> None:
    (root / LATENCY.format(1)).write_text(f"{value}\n")


def values(root: Path) -> list[str]:
    return [(root / LATENCY.format(cpu)).read_text().strip() for cpu in range(4)]


def verbs(root: Path) -> list[str]:
    return [one.header.verb for one in transactions(root)]


def turn(root: Path, passed: float = 0.0, *, wall: float = 0.0, boot_id: str | None = None) -> Keeping:
    """A turn so many seconds later, after the wall clock was set by `wall`; in the boot of before, or another one."""
    site = site_on(root) if boot_id is None else site_on(root, boot_id=boot_id)
    return keep(site, quiet, lambda: time.time() + passed + wall, lambda: START + passed)


def kept(site: Site) -> tuple[Result, int]:
    keep(site, quiet)
    return Result(verb="keep"), 0


def cut_off(root: Path) -> None:
    """A correction of which the process is killed between its intent and its end."""
    for at in range(1, 20):
        drift(root)
        ended = run_forked(root, kept, Faults(at=at, act=kill))
        assert ended.code is None
        if any(one.is_open for one in transactions(root)):
            return
    pytest.fail("no kill left an open transaction")


def test_what_has_drifted_is_set_again_and_a_revert_still_restores_the_original(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    assert turn(root) == Keeping()  # nothing has drifted
    assert verbs(root) == ["apply"]
    drift(root)
    assert turn(root).settings == (Kept("resume-latency", "cpus 0-3", "corrected"),)
    assert values(root) == ["10"] * 4
    assert verbs(root) == ["apply", "keep"]
    assert status(site_on(root))[1] == 0
    assert revert(site_on(root), quiet)[1] == 0
    assert values(root) == ["0"] * 4
    assert verbs(root) == ["apply", "revert"]


def test_the_plan_in_force_counts_not_an_older_one(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(("0-3", "10")))
    apply(root, latencies(("2-7", "20")))
    (root / LATENCY.format(2)).write_text("5\n")
    (root / LATENCY.format(0)).write_text("5\n")
    assert [one.outcome for one in turn(root).settings] == ["corrected", "corrected"]
    assert [(root / LATENCY.format(cpu)).read_text() for cpu in range(8)] == ["10\n"] * 2 + ["20\n"] * 6


def test_after_two_corrections_in_ten_minutes_it_is_left_alone_across_restarts(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    for _ in range(2):
        drift(root)
        assert [one.outcome for one in turn(root).settings] == ["corrected"]
    drift(root)
    (left,) = turn(root).settings  # the count is read from the journal each time: this may be another process
    assert (left.outcome, left.why) == (
        "given-up", "corrected 2 times within 10 minutes: something else sets it too",
    )  # fmt: skip
    assert values(root)[1] == "99"
    assert [one.outcome for one in turn(root, 601).settings] == ["corrected"]


def test_six_a_day_are_the_last(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    outcomes = []
    for hours in range(8):
        drift(root)
        outcomes += [one.outcome for one in turn(root, hours * 3600).settings]
    assert outcomes == ["corrected"] * 6 + ["given-up"] * 2


@pytest.mark.parametrize("wall", [-1e9, -86400, 86400, 1e9])
def test_a_clock_that_is_set_neither_forgets_corrections_nor_keeps_them_for_ever(tmp_path: Path, wall: float) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    for _ in range(2):
        drift(root)
        turn(root)
    drift(root)
    assert [one.outcome for one in turn(root, wall=wall).settings] == ["given-up"]
    assert [one.outcome for one in turn(root, 601, wall=wall).settings] == ["corrected"]


def test_corrections_of_an_earlier_boot_count_and_a_wrong_clock_does_not_keep_them_for_ever(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    for _ in range(2):
        drift(root)
        turn(root, -START + 5)  # five seconds after a boot
    drift(root)
    early, late = -START + 60, -START + 601
    assert [one.outcome for one in turn(root, early, boot_id=ANOTHER_BOOT).settings] == ["given-up"]
    # That boot's clock was ten years ahead. This one runs for longer than ten minutes: so they are older than that.
    assert [one.outcome for one in turn(root, early, wall=-3e8, boot_id=ANOTHER_BOOT).settings] == ["given-up"]
    assert [one.outcome for one in turn(root, late, wall=-3e8, boot_id=ANOTHER_BOOT).settings] == ["corrected"]


def test_the_times_of_an_earlier_version_count_too(tmp_path: Path) -> None:
    """Its journals have Z where those of this one have +00:00."""
    root = applied(tmp_path, latencies(*WANTS))
    for _ in range(2):
        drift(root)
        turn(root, -START + 5)
    for path in (root / "var/lib/hosttune/transactions").glob("*.jsonl"):
        text = path.read_text()
        assert "+00:00" in text
        path.write_text(text.replace("+00:00", "Z"))
    drift(root)
    early = -START + 60
    assert [one.outcome for one in turn(root, early, boot_id=ANOTHER_BOOT).settings] == ["given-up"]
    assert [one.outcome for one in turn(root, early, wall=1600, boot_id=ANOTHER_BOOT).settings] == ["corrected"]


def test_old_corrections_are_removed_but_not_the_one_that_a_revert_needs(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    for _ in range(2):
        drift(root)
        turn(root)
    assert verbs(root) == ["apply", "keep", "keep"]
    turn(root, 90000)
    assert verbs(root) == ["apply", "keep"]
    turn(root, wall=90000, boot_id=ANOTHER_BOOT)
    assert verbs(root) == ["apply"]


def test_a_revert_that_left_something_alone_ends_it(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    drift(root)
    revert(site_on(root), quiet)  # the changed CPU is a conflict: a person wants 99 there
    assert turn(root) == Keeping(refused="a revert left settings alone that something else had changed")
    assert values(root) == ["0", "99", "0", "0"]


def test_after_a_whole_revert_nothing_is_kept(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    revert(site_on(root), quiet)
    drift(root)
    assert turn(root) == Keeping()
    assert values(root)[1] == "99"


def test_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    drift(root)
    with writable_store(site_on(root)).locked():
        found = turn(root)
    assert "another hosttune" in (found.refused or "")
    assert (found.settings, values(root)[1]) == ((), "99")


def test_an_unfinished_transaction_is_left_to_recover(tmp_path: Path) -> None:
    """Also a correction that was killed: recover puts the drifted value back, and the next turn corrects it."""
    root = applied(tmp_path, latencies(*WANTS))
    drift(root)
    cut_off(root)
    assert "was not finished" in (turn(root).refused or "")
    assert recover(site_on(root), quiet)[1] == 0
    assert [one.outcome for one in turn(root).settings] == ["corrected"]
    assert values(root) == ["10"] * 4


def test_a_correction_that_a_power_cut_ended_does_not_hold_up_the_next_boot(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    drift(root)
    cut_off(root)
    with pytest.raises(Refused, match="was not finished"):
        reapply(site_on(root), quiet)  # of the same boot: recover is for it
    for cpu in range(4):
        (root / LATENCY.format(cpu)).write_text("0\n")
    assert reapply(site_on(root, boot_id=ANOTHER_BOOT), quiet)[1] == 0
    assert values(root) == ["10"] * 4


def test_what_may_not_be_kept_is_left(tmp_path: Path) -> None:
    """A value of the same plan that drifted, but whose knob does not declare it."""
    example = EXAMPLES["aspm by registers"]
    root = applied(tmp_path, example)
    (kind, target, _), *_ = example.wants
    assert knob_to_keep(kind, target) is None
    assert turn(root) == Keeping()


def test_only_a_machine_or_a_scratch_root_can_be_kept(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    with pytest.raises(Refused, match="a captured host cannot be changed"):
        keep(replace(site_on(root), store=None), quiet)


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(*WANTS))
    drift(root)
    site = site_on(root)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(JournalFailed, match="No space left"):
        keep(replace(site, store=Store(writable_store(site).folder, sync=full)), quiet)
    assert values(root) == ["10", "99", "10", "10"]
    assert [one.outcome for one in turn(root).settings] == ["corrected"]


def test_the_knobs_that_may_be_kept_are_these_and_none_of_them_can_disturb() -> None:
    kept = {name: knob for name, knob in all_knobs().items() if knob.kept}
    assert set(kept) == KEPT
    for name, knob in kept.items():
        setting = knob.setting
        assert not setting.disruptive, name
        assert setting.limit_seconds is None, f"{name}: its write can hang in the kernel"
        assert setting.scope != BOOT, name
        assert setting.stage not in (GUEST_STAGE, START_STAGE), name
        if issubclass(setting, OfFunction):
            assert setting.kind == "irq-affinity", f"{name}: a register, a driver or a drive"
    for kind in ("driver", "pci-aspm", "nvme-queue", "gpu-power-limit", "guest", "live-affinity", "kernel-args"):
        assert knob_to_keep(kind, "0000:41:00.0") is None
