"""Definitions of other tools are adopted: planned, changed, started and put back, on a real kernel and libvirt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.hardware import TREE
from lab.machine import LabMachine
from lab.product import Ran, install, run

pytestmark = pytest.mark.lab

CASES = Path(TREE) / "tests" / "cases" / "lint"
RUNS, OFF = "virt-install-plain", "terraform-plain"
NAMES = (RUNS, OFF)

Pins = dict[str, dict[str, str]]  # CPUs of each vCPU's thread, by guest


class Adopted(NamedTuple):
    """What each command said; the vCPUs' threads before the apply, after it, after a start by the new definition."""

    plan: Ran
    applied: Ran
    again: Ran
    alone: Ran
    reverted: Ran
    before: Pins
    repaired: Pins
    started: Pins
    runs: list[str]
    definitions: tuple[dict[str, str], ...]


def vcpu_threads(lab: LabMachine, *names: str) -> Pins:
    """CPUs that the kernel allows each vCPU's thread of these guests."""
    found: Pins = {}
    for name in names:
        threads = facts.threads_of(lab, int(lab.shell(f"cat /run/libvirt/qemu/{name}.pid")))
        found[name] = {one[1]: cpus for thread, cpus in threads if (one := re.fullmatch("CPU ([0-9]+)/TCG", thread))}
    return found


def definitions(lab: LabMachine) -> dict[str, str]:
    """What libvirt keeps of each guest, secrets included."""
    return {name: lab.shell(f"virsh dumpxml --inactive --security-info {name}") for name in NAMES}


@pytest.fixture(scope="module")
def adopted(lab: LabMachine) -> Adopted:
    """One guest is started on any CPU, the other one is off; both are adopted, started as defined, and put back.

    They are paused until they have been looked at: a firmware without a disk would use the emulated CPUs for nothing.
    """
    install(lab)
    try:
        for name in NAMES:
            lab.shell("virsh define /dev/stdin", stdin=(CASES / f"{name}.xml").read_text())
        lab.shell(f"virsh start {RUNS} --paused")
        kept, before = definitions(lab), vcpu_threads(lab, RUNS)
        plan = run(lab, "plan", "--adopt-all")
        applied, repaired = run(lab, "apply", "--yes"), vcpu_threads(lab, RUNS)
        again, changed = run(lab, "apply", "--yes"), definitions(lab)
        lab.shell(f"virsh destroy {RUNS}; virsh start {RUNS} --paused; virsh start {OFF} --paused")
        started = vcpu_threads(lab, *NAMES)
        runs = [lab.shell(f"virsh resume {name} >/dev/null; virsh domstate {name}").strip() for name in NAMES]
        lab.shell(f"virsh destroy {RUNS}; virsh destroy {OFF}")
        alone, between = run(lab, "revert", "--guest", OFF, "--yes"), definitions(lab)
        reverted = run(lab, "revert", "--yes")
        texts = (kept, changed, between, definitions(lab))
    except BaseException:
        lab.shell(f"for name in {' '.join(NAMES)}; do virsh destroy $name; done", check=False)
        lab.shell("hosttune revert --yes --force", check=False)
        raise
    finally:
        lab.shell(f"for name in {' '.join(NAMES)}; do virsh undefine $name; done", check=False)
    return Adopted(plan, applied, again, alone, reverted, before, repaired, started, runs, texts)


def planned_pins(plan: dict[str, Any]) -> Pins:
    """CPUs of each vCPU, by guest, as the plan's adoptions have them."""
    return {one["name"]: {str(pin["vcpu"]): pin["cpus"] for pin in one["pins"]} for one in plan["adoptions"]}


def test_definitions_of_other_tools_start_where_they_are_planned(adopted: Adopted) -> None:
    assert adopted.plan.document is not None, adopted.plan.errors
    want = planned_pins(adopted.plan.document)
    assert set(want) == set(NAMES)
    cpus = [cpu for pins in want.values() for cpu in pins.values()]
    assert len(set(cpus)) == len(cpus) == 3
    assert adopted.applied.status == 0, adopted.applied.errors
    assert adopted.started == want
    assert adopted.runs == ["running", "running"]


def test_the_guest_that_runs_is_repaired_without_a_restart(adopted: Adopted) -> None:
    assert adopted.plan.document is not None
    assert set(adopted.before[RUNS].values()) == {"0-7"}
    assert adopted.repaired[RUNS] == planned_pins(adopted.plan.document)[RUNS]
    assert adopted.applied.outcomes[f"live-affinity:{RUNS}"] == "done"


def test_the_second_apply_changes_nothing_and_a_revert_puts_the_definitions_back(adopted: Adopted) -> None:
    assert set(adopted.again.outcomes.values()) == {"already"}, adopted.again.doubts_found
    kept, changed, between, after = adopted.definitions
    assert all(changed[name] != kept[name] for name in NAMES)
    assert adopted.alone.status == 0, adopted.alone.errors
    assert between == {RUNS: changed[RUNS], OFF: kept[OFF]}, "one of them by its name"
    assert adopted.reverted.status == 0, adopted.reverted.errors
    assert after == kept
