"""Reboots through GRUB: what is staged, what the boot unit sets again before libvirt starts, and what a revert leaves.

The two hosts of the rollout show it. Then the plug is pulled in the middle of an apply, of an update, of a removal.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from sweeps import FULL

from lab import facts
from lab.inside import PAUSED
from lab.machine import LabMachine
from lab.product import STATE, Ran, install, plan, run
from lab.rollout import CANARY, GPU, INTENT, RUNTIME, SECOND, Boot, Rollout, look
from lab.secondday import definitions

pytestmark = pytest.mark.lab

DROP_IN = "/etc/default/grub.d/zz-hosttune.cfg"
PLAN = "/root/plan.json"
PAUSE_SECONDS = 400
STAGED = ["hugepagesz=1G", "hugepages=1:1", "iommu=pt"]
# fsync of the file and of the folder that names it, then a second file that nobody flushes.
WRITE = """
import os
with open("/root/flushed", "w") as file:
    file.write("kept")
    file.flush()
    os.fsync(file.fileno())
folder = os.open("/root", os.O_RDONLY)
os.fsync(folder)
with open("/root/cached", "w") as file:
    file.write("lost")
"""
WRITTEN = "/root/flushed /root/cached"


# The second day: one guest stays, another gets more memory and then goes.
STAYS, EDITED, OTHER_GPU = "stays", "edited", "0000:41:00.0"
GUEST = {"vcpus": 2, "memory": "256MiB", "hugepages": "2MiB", "firmware": "bios", "accelerator": "tcg"}
TWO = ({"name": STAYS, "gpus": [GPU], **GUEST}, {"name": EDITED, "gpus": [OTHER_GPU], **GUEST})
FIRST_DAY: dict[str, Any] = {"version": 1, "guests": [*TWO]}
UPDATE = {**FIRST_DAY, "settings": {"numa_balancing": 0}, "guests": [TWO[0], {**TWO[1], "memory": "384MiB"}]}
REMOVAL = {**FIRST_DAY, "guests": [TWO[0], {"name": EDITED, "state": "absent"}]}
# Where the power goes: libvirt was told, the journal does not say so yet; and before and after that.
DEFINED = f"after tell virsh-dumpxml-{EDITED}"
DEFINING, RULED = f"before tell virsh-dumpxml-{EDITED}", "after replace /etc/udev/"
SET = "before write /proc/sys/kernel/numa_balancing"
CUTS = [(DEFINED, DEFINED), (SET, DEFINING), (DEFINING, RULED), (DEFINED, RULED)]  # in the update, in the removal


class Cut(NamedTuple):
    """An apply that lost its power: the machine before, what is told of it afterwards, and the machine once settled."""

    before: Boot
    written: str
    told: Ran
    settled: Ran
    end: Boot
    last: Ran


class Later(NamedTuple):
    """An update or a removal that lost its power: what is told and refused then, and what libvirt has once settled."""

    told: Ran
    refused: Ran
    settled: Ran
    definitions: dict[str, str]


class SecondDay(NamedTuple):
    """Both, in this order, on a host with two guests; then the removal again and a revert."""

    before: Boot
    first: dict[str, str]
    update: Later
    removal: Later
    again: Ran
    left: dict[str, str]
    reverted: Ran
    end: Boot


def outcomes_of(document: dict[str, Any]) -> dict[str, str]:
    """Outcome by action of a result document."""
    return {entry["action"]: entry["outcome"] for entry in document["entries"]}


def test_grub_starts_the_distributions_kernel(grub_lab: LabMachine) -> None:
    arguments = facts.arguments_of_kernel(grub_lab)
    release = grub_lab.shell("uname -r").strip()
    partition = grub_lab.shell("findmnt -n -o UUID /").strip()
    assert arguments[:2] == [f"BOOT_IMAGE=/boot/vmlinuz-{release}", f"root=UUID={partition}"]
    assert grub_lab.shell("systemctl is-system-running").strip() == "running"


# --- staged ---------------------------------------------------------------------------------------------------


def test_what_needs_a_boot_is_staged_and_pending(rollout: Rollout) -> None:
    before, staged = rollout.before[CANARY], rollout.staged
    applied = rollout.guarded.files[CANARY]["apply"]
    outcomes = outcomes_of(applied)
    assert (outcomes["kernel-argument:iommu"], outcomes["kernel-argument:hugepages"]) == ("pending", "pending")
    assert applied["reboot_required"] is True
    assert staged.arguments == before.arguments
    assert DROP_IN in staged.files.keys() - before.files.keys()


def test_pages_are_there_now_and_after_the_boot(rollout: Rollout) -> None:
    assert (rollout.before[CANARY].pages, rollout.staged.pages) == (0, 1)
    assert [rollout.booted[host].pages for host in (CANARY, SECOND)] == [1, 1]


def test_runtime_settings_are_set_at_once(rollout: Rollout) -> None:
    before, staged = rollout.before[CANARY], rollout.staged
    assert staged.values == RUNTIME
    assert staged.driver == "vfio-pci"
    assert before.values.keys() == RUNTIME.keys()
    assert before.values != RUNTIME


# --- booted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [CANARY, SECOND])
def test_the_next_boot_has_the_staged_arguments(rollout: Rollout, host: str) -> None:
    before, booted = rollout.before[host], rollout.booted[host]
    assert booted.id != before.id
    assert [word for word in booted.arguments if word not in before.arguments] == STAGED
    assert [word for word in before.arguments if word not in booted.arguments] == []


def test_the_boot_unit_sets_again_what_the_boot_undid(rollout: Rollout) -> None:
    unit = rollout.unit
    assert (unit["ActiveState"], unit["Result"], unit["ExecMainStatus"]) == ("active", "success", "0")
    assert [rollout.booted[host].values for host in (CANARY, SECOND)] == [RUNTIME, RUNTIME]
    assert "done" in rollout.report, rollout.report


def test_the_boot_unit_has_ended_when_libvirt_starts(rollout: Rollout) -> None:
    ended, started = "ExecMainExitTimestampMonotonic", "ExecMainStartTimestampMonotonic"
    assert 0 < int(rollout.unit[ended]) <= int(rollout.libvirtd[started])


def test_the_device_is_bound_from_boot_on(rollout: Rollout) -> None:
    """By the rule of udev, not by the boot unit: that found it done."""
    assert rollout.booted[SECOND].driver == "vfio-pci"
    assert f"driver:{GPU}" not in rollout.report
    assert f"driver {GPU}" not in rollout.report


@pytest.mark.parametrize(("host", "asked"), [(CANARY, "broken"), (SECOND, "done")])
def test_status_confirms_the_boot(rollout: Rollout, host: str, asked: str) -> None:
    confirmed = getattr(rollout, asked).files[host]["status"]
    assert confirmed["exit_code"] == 0, confirmed
    assert "pending" not in outcomes_of(confirmed).values()
    assert (confirmed["reboot_required"], confirmed["drift"]) == (False, [])


def test_another_apply_has_nothing_to_do(rollout: Rollout) -> None:
    again = rollout.done.files[CANARY]["apply"]
    assert (again["exit_code"], again["changed"], again["reboot_required"]) == (0, False, False), again
    waiting = outcomes_of(again)
    assert waiting.pop(f"irq-affinity:{GPU}") == "pending"
    assert waiting.pop("guest-state:staged") == "pending"  # it has nothing to boot from
    assert set(waiting.values()) == {"already"}


# --- reverted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [CANARY, SECOND])
def test_a_revert_takes_all_back_by_a_reboot(rollout: Rollout, host: str) -> None:
    reverted = rollout.reverted.files[host]["revert"]
    outcomes = outcomes_of(reverted)
    assert set(outcomes.values()) == {"reverted"}
    assert reverted["reboot_required"] is True
    before, taken = rollout.before[host], rollout.taken[host]
    assert taken.id != before.id
    assert taken._replace(id=before.id, state=before.state) == before


# --- the plug -------------------------------------------------------------------------------------------------


def cut_off(lab: LabMachine, intent: dict[str, Any], point: str) -> None:
    """The plug is pulled while an apply stands at a point."""
    lab.shell(f"cat >{PLAN}", stdin=json.dumps(plan(lab, intent)))
    pause = f"setsid python3 /mnt/tree/tests/lab/inside.py pause {PLAN} '{point}' >/run/pause.log 2>&1 </dev/null &"
    wait = f"while kill -0 $! && ! [ -s {PAUSED} ]; do sleep 0.2; done; [ -s {PAUSED} ] || cat /run/pause.log"
    said = lab.shell(f"{pause} {wait}", timeout=PAUSE_SECONDS)
    assert said == "", said
    lab.shell("python3 -", stdin=WRITE)
    lab.power_cut()
    lab.start()


@pytest.fixture(scope="module")
def cut(grub_lab: LabMachine) -> Cut:
    """Applied and cut off, then recovered."""
    lab = grub_lab
    install(lab)
    before = look(lab)
    try:
        # Between the rules of udev, which last, and the pages, which do not.
        cut_off(lab, {**INTENT, "settings": {"iommu_passthrough": "keep"}}, "after replace /etc/")
        written = lab.shell(f"head -c 9 {WRITTEN} 2>/dev/null", check=False)
        told, settled = run(lab, "status"), run(lab, "recover")
        lab.shell(f"rm -f {WRITTEN}")
        return Cut(before, written, told, settled, look(lab), run(lab, "status"))
    except BaseException:
        lab.shell("hosttune recover --force; hosttune revert --yes --force", check=False)
        raise
    finally:
        lab.shell(f"rm -rf {STATE} {PLAN} {WRITTEN}", check=False)


def test_only_what_was_flushed_survives_a_power_cut(cut: Cut) -> None:
    """So the tests below are about a machine that lost its power, not about one that shut down."""
    assert "kept" in cut.written
    assert "lost" not in cut.written


def test_an_apply_that_lost_its_power_is_told(cut: Cut) -> None:
    assert cut.told.status == 1
    assert cut.told.document is not None
    assert cut.told.document["open_transaction"]["state"] == "applying"


def test_recover_puts_right_what_the_power_cut_left(cut: Cut) -> None:
    assert cut.settled.status == 0, cut.settled.errors
    outcomes, doubts_found = cut.settled.outcomes, cut.settled.doubts_found
    assert set(outcomes.values()) == {"reverted", "already"}
    assert all(
        "the reboot had undone it" in (doubts_found[name] or "") for name in outcomes if outcomes[name] == "already"
    )
    assert cut.end._replace(id=cut.before.id, state=cut.before.state) == cut.before
    assert cut.last.status == 0
    assert cut.last.document is not None
    assert (cut.last.document["reboot_required"], cut.last.document["entries"]) == (False, [])


# --- the plug, on the second day --------------------------------------------------------------------------------


def cut_later(lab: LabMachine, intent: dict[str, Any], point: str) -> Later:
    """An apply of an intent loses its power at a point, and is settled by what it is told."""
    cut_off(lab, intent, point)
    told, refused = run(lab, "status"), run(lab, "apply", "--yes")
    settled = run(lab, "recover")
    return Later(told, refused, settled, definitions(lab))


second_day = pytest.mark.skipif(not FULL, reason="make lab-full: two boots more for each pair of points")


@pytest.fixture(scope="module", params=CUTS, ids=" + ".join)
def later(grub_lab: LabMachine, request: pytest.FixtureRequest) -> SecondDay:
    """Two guests are applied; the power goes in an update of one, and in its removal."""
    lab, (in_update, in_removal) = grub_lab, request.param
    install(lab)
    before = look(lab)
    try:
        plan(lab, FIRST_DAY)
        done = run(lab, "apply", "--yes")
        assert done.status == 0, done.errors
        first = definitions(lab)
        update = cut_later(lab, UPDATE, in_update)
        removal = cut_later(lab, REMOVAL, in_removal)
        again = run(lab, "apply", PLAN, "--yes")
        left, reverted = definitions(lab), run(lab, "revert", "--yes")
        return SecondDay(before, first, update, removal, again, left, reverted, look(lab))
    except BaseException:
        lab.shell("hosttune recover --force; hosttune revert --yes --force", check=False)
        raise
    finally:
        lab.shell(f"rm -rf {STATE} {PLAN} {WRITTEN}", check=False)


@second_day
@pytest.mark.parametrize("what", ["update", "removal"])
def test_a_later_change_that_lost_its_power_is_told_and_undone(later: SecondDay, what: str) -> None:
    cut: Later = getattr(later, what)
    assert cut.told.status == 1
    assert cut.told.document is not None
    assert cut.told.document["open_transaction"]["state"] == "applying"
    assert (cut.refused.status, cut.refused.document) == (3, None)
    assert "hosttune recover" in cut.refused.errors
    assert cut.settled.status == 0, cut.settled.errors
    assert set(cut.settled.outcomes.values()) <= {"reverted", "already"}
    assert cut.definitions == later.first, "the guest that nobody changed, and the one that comes back"


@second_day
def test_the_same_removal_then_takes_one_guest_and_leaves_the_other(later: SecondDay) -> None:
    assert later.again.status == 0, later.again.errors
    assert later.left == {STAYS: later.first[STAYS]}
    assert later.reverted.status == 0, later.reverted.errors
    assert later.end._replace(id=later.before.id, state=later.before.state) == later.before
