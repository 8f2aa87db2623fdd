"""Reboots through GRUB: what is staged, what the boot unit sets again before libvirt starts, and what a revert leaves.

Then the plug is pulled in the middle of an apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.inside import PAUSED
from lab.machine import LabMachine
from lab.product import STATE, Ran, install, plan, run

pytestmark = pytest.mark.lab

Document = dict[str, Any]
GPU = "0000:c1:00.0"
UNIT, DROP_IN = "hosttune-boot.service", "/etc/default/grub.d/zz-hosttune.cfg"
POOL = "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages"
PLAN = "/root/plan.json"
PAUSE_SECONDS = 400
STAGED = ["hugepagesz=1G", "hugepages=1:1", "iommu=pt"]
FOLDERS = ("/etc", "/boot")
# What no file of the distribution sets and so every boot must set again: value by path.
RUNTIME = {
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/proc/sys/kernel/numa_balancing": "0",
    "/proc/sys/vm/compaction_proactiveness": "0",
    "/sys/devices/system/cpu/cpu6/power/pm_qos_resume_latency_us": "10",
    "/sys/devices/system/cpu/cpu7/power/pm_qos_resume_latency_us": "10",
}
# On node 1, where the running kernel can still find a whole gigabyte; on node 0 it has none.
INTENT: Document = {
    "version": 1,
    "profile": "host",
    "guests": [
        {
            "name": "staged",
            "gpus": [GPU],
            "vcpus": 2,
            "memory": "1GiB",
            "hugepages": "1GiB",
            "firmware": "bios",
            "accelerator": "tcg",
        }
    ],
}


class Boot(NamedTuple):
    """A machine as one boot shows it."""

    arguments: list[str]
    values: dict[str, str]
    pages: int
    driver: str | None
    files: dict[str, str]


class Story(NamedTuple):
    """The commands in their order, and the machine at each stage."""

    planned: Document
    before: Boot
    applied: Ran
    staged: Boot
    rebooted: Boot
    unit: dict[str, str]
    libvirtd: dict[str, str]
    report: str
    confirmed: Ran
    second: Ran
    reverted: Ran
    taken: Boot
    cut: Ran
    settled: Ran
    end: Boot
    last: Ran


def look(lab: LabMachine) -> Boot:
    """The machine now."""
    values = lab.shell(f"grep -H . {' '.join(RUNTIME)}").splitlines()
    return Boot(
        arguments=facts.arguments_of_kernel(lab),
        values=dict(line.split(":", 1) for line in values),
        pages=int(lab.shell(f"cat {POOL}")),
        driver=facts.functions_of_lspci(lab)[GPU].get("Driver"),
        files=facts.files_below(lab, *FOLDERS),
    )


def times_of(lab: LabMachine, unit: str) -> dict[str, str]:
    """systemd's facts of a service in this boot."""
    names = "ActiveState,Result,ExecMainStatus,ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic"
    lines = lab.shell(f"systemctl show {unit} -p {names}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def cut_off(lab: LabMachine) -> None:
    """The plug is pulled while an apply stands between the rules of udev, which last, and the pages, which do not."""
    lab.shell(f"cat >{PLAN}", stdin=json.dumps(plan(lab, {**INTENT, "settings": {"iommu_passthrough": "keep"}})))
    # Runtime settings come first; the point is after the first file of ours that lasts.
    pause = f"setsid python3 /mnt/tree/tests/lab/inside.py pause {PLAN} /etc/ >/run/pause.log 2>&1 </dev/null &"
    wait = f"while kill -0 $! && ! [ -s {PAUSED} ]; do sleep 0.2; done; [ -s {PAUSED} ] || cat /run/pause.log"
    said = lab.shell(f"{pause} {wait}", timeout=PAUSE_SECONDS)
    assert said == "", said
    lab.power_cut()
    lab.start()


@pytest.fixture(scope="module")
def story(grub_lab: LabMachine) -> Iterator[Story]:
    """Applied, rebooted, applied again, reverted, applied and cut off, recovered. All of it is told below."""
    lab = grub_lab
    install(lab)
    before = look(lab)
    planned = plan(lab, INTENT)
    applied, staged = run(lab, "apply", "--yes"), look(lab)
    try:
        lab.reboot()
        rebooted, unit, libvirtd = look(lab), times_of(lab, UNIT), times_of(lab, "libvirtd.service")
        report = lab.shell(f"journalctl -b -o cat -u {UNIT}")
        confirmed, second = run(lab, "status"), run(lab, "apply", "--yes")
        reverted, taken = run(lab, "revert"), look(lab)
        cut_off(lab)
        cut, settled = run(lab, "status"), run(lab, "recover")
        yield Story(
            planned, before, applied, staged, rebooted, unit, libvirtd, report, confirmed, second, reverted, taken,
            cut, settled, look(lab), run(lab, "status"),
        )  # fmt: skip
    finally:
        lab.shell(f"hosttune recover --force; hosttune revert --force; rm -rf {STATE} {PLAN}", check=False)


# --- staged ---------------------------------------------------------------------------------------------------


def test_what_needs_a_boot_is_staged_and_pending(story: Story) -> None:
    assert story.applied.status == 0, story.applied.errors
    assert story.applied.document is not None
    outcomes = story.applied.outcomes
    assert (outcomes["kernel-argument:iommu"], outcomes["kernel-argument:hugepages"]) == ("pending", "pending")
    assert story.applied.document["reboot_required"] is True
    assert story.staged.arguments == story.before.arguments
    assert DROP_IN in story.staged.files.keys() - story.before.files.keys()


def test_pages_are_there_now_and_after_the_boot(story: Story) -> None:
    assert (story.before.pages, story.staged.pages, story.rebooted.pages) == (0, 1, 1)


def test_runtime_settings_are_set_at_once(story: Story) -> None:
    assert story.staged.values == RUNTIME
    assert story.staged.driver == "vfio-pci"
    assert story.before.values.keys() == RUNTIME.keys()
    assert story.before.values != RUNTIME


# --- booted ---------------------------------------------------------------------------------------------------


def test_the_next_boot_has_the_staged_arguments(story: Story) -> None:
    assert [word for word in story.rebooted.arguments if word not in story.before.arguments] == STAGED
    assert [word for word in story.before.arguments if word not in story.rebooted.arguments] == []


def test_the_boot_unit_sets_again_what_the_boot_undid(story: Story) -> None:
    assert (story.unit["ActiveState"], story.unit["Result"], story.unit["ExecMainStatus"]) == ("active", "success", "0")
    assert story.rebooted.values == RUNTIME
    assert "done" in story.report, story.report


def test_the_boot_unit_has_ended_when_libvirt_starts(story: Story) -> None:
    ended, started = "ExecMainExitTimestampMonotonic", "ExecMainStartTimestampMonotonic"
    assert 0 < int(story.unit[ended]) <= int(story.libvirtd[started])


def test_the_device_is_bound_from_boot_on(story: Story) -> None:
    """By the rule of udev, not by the boot unit: that found it done."""
    assert story.rebooted.driver == "vfio-pci"
    assert f"driver:{GPU}" not in story.report
    assert f"driver {GPU}" not in story.report


def test_status_confirms_the_boot(story: Story) -> None:
    assert story.confirmed.status == 0, story.confirmed.errors
    assert story.confirmed.document is not None
    assert "pending" not in story.confirmed.outcomes.values()
    assert (story.confirmed.document["reboot_required"], story.confirmed.document["drift"]) == (False, [])


def test_a_second_apply_has_nothing_to_do(story: Story) -> None:
    assert story.second.status == 0, story.second.errors
    assert story.second.document is not None
    assert (story.second.document["changed"], story.second.document["reboot_required"]) == (False, False)
    waiting = story.second.outcomes
    assert waiting.pop(f"irq-affinity:{GPU}") == "pending"
    assert set(waiting.values()) == {"already"}


# --- reverted -------------------------------------------------------------------------------------------------


def test_a_revert_unstages_and_asks_for_a_reboot(story: Story) -> None:
    assert story.reverted.status == 0, story.reverted.errors
    assert story.reverted.document is not None
    assert set(story.reverted.outcomes.values()) == {"reverted"}
    assert story.reverted.document["reboot_required"] is True
    assert story.taken.files == story.before.files
    assert story.taken.values == story.before.values
    assert story.taken.arguments == story.rebooted.arguments
    assert story.taken.driver is None


# --- the plug -------------------------------------------------------------------------------------------------


def test_an_apply_that_lost_its_power_is_told(story: Story) -> None:
    assert story.cut.status == 1
    assert story.cut.document is not None
    assert story.cut.document["open_transaction"]["state"] == "applying"


def test_recover_puts_right_what_the_power_cut_left(story: Story) -> None:
    assert story.settled.status == 0, story.settled.errors
    assert set(story.settled.outcomes.values()) == {"reverted"}
    assert story.end == story.before
    assert story.last.status == 0
    assert story.last.document is not None
    assert (story.last.document["reboot_required"], story.last.document["entries"]) == (False, [])
