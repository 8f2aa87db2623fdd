"""validate on a real kernel, before and after apply: what failed or warned passes, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import STATE, plan

pytestmark = pytest.mark.lab

Outcomes = dict[tuple[str, str], str]
THP, KSM, BALANCING = (
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/ksm/run",
    "/proc/sys/kernel/numa_balancing",
)
# A host that is made ready for a guest, with its pages and device: to one without either, no setting matters.
READY: dict[str, Any] = {
    "version": 1,
    "profile": "none",
    "guests": [
        {
            "name": "checked",
            "gpus": ["0000:c1:00.0"],
            "vcpus": 2,
            "memory": "256MiB",
            "hugepages": "2MiB",
            "firmware": "bios",
            "accelerator": "tcg",
        }
    ],
}
TUNED = {**READY, "settings": {"thp": "madvise", "ksm": 2, "numa_balancing": 0}}
SET = {("thp", "host"), ("ksm", "host"), ("numa-balancing", "host")}


class Seen(NamedTuple):
    """What validate said: on the ready host, once tuned, after somebody's change, and after the revert."""

    before: Outcomes
    applied: Outcomes
    drifted: Outcomes
    drifted_status: int
    reverted: Outcomes


def outcomes(lab: LabMachine) -> tuple[Outcomes, int]:
    """Each check and subject with its outcome, and the exit status."""
    answer = lab.shell("hosttune validate -o json", check=False)
    assert answer.status in (0, 1), answer.errors
    results = json.loads(answer)["results"]
    return {(result["check"], result["subject"]): result["outcome"] for result in results}, answer.status


@pytest.fixture(scope="module")
def seen(lab: LabMachine) -> Seen:
    """The whole course, with the machine as it was in the end."""
    values = {path: lab.shell(f"cat {path}").strip() for path in (THP, KSM, BALANCING)}
    lab.shell(f"echo always >{THP}; echo 1 >{KSM}; echo 1 >{BALANCING}; rm -rf {STATE}")
    try:
        plan(lab, READY)
        lab.shell("hosttune apply --yes --no-guests")
        before, _ = outcomes(lab)
        planned = plan(lab, TUNED)
        assert {action["kind"] for action in planned["actions"]} == {"thp", "ksm", "numa-balancing"}
        lab.shell("hosttune apply --yes --no-guests")
        applied, _ = outcomes(lab)
        lab.shell(f"echo always >{THP}")
        drifted, status = outcomes(lab)
        lab.shell("hosttune revert --yes --force")
        reverted, _ = outcomes(lab)
    except BaseException:
        lab.shell("hosttune revert --yes --force", check=False)
        raise
    finally:
        word = values[THP].partition("[")[2].partition("]")[0]
        lab.shell(
            f"echo {word} >{THP}; echo {values[KSM]} >{KSM}; echo {values[BALANCING]} >{BALANCING}; rm -rf {STATE}"
        )
    return Seen(before, applied, drifted, status, reverted)


def changed(one: Outcomes, other: Outcomes) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    return {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_what_was_amiss_passes_after_apply_and_nothing_else_changes(seen: Seen) -> None:
    assert {seen.before[key] for key in SET} <= {"warn", "fail"}
    moved = changed(seen.before, seen.applied)
    assert {key for key in moved if key[0] != "settings-in-force"} == SET
    assert {seen.applied[key] for key in SET} == {"pass"}
    in_force = {key: outcome for key, outcome in seen.applied.items() if key[0] == "settings-in-force"}
    assert set(in_force.values()) == {"pass"}


def test_a_change_by_somebody_fails_the_host(seen: Seen) -> None:
    moved = {key: outcome for key, (_, outcome) in changed(seen.applied, seen.drifted).items()}
    assert {key[0] for key in moved} <= {"thp", "settings-in-force"}
    assert "fail" in {outcome for key, outcome in moved.items() if key[0] == "settings-in-force"}
    assert seen.drifted_status == 1


def test_after_a_revert_nothing_is_in_force(seen: Seen) -> None:
    assert {outcome for key, outcome in seen.reverted.items() if key[0] == "settings-in-force"} == {"skip"}


IDLE = ("0000:c3:00.0", "0000:c4:00.0")  # a NIC and an NVMe drive


def test_what_vfio_lets_rest_in_d3hot_is_judged_as_it_was_awake(lab: LabMachine) -> None:
    """vfio-pci suspends an idle function. Its registers are read there, and reading does not wake it."""
    awake, _ = outcomes(lab)
    drivers = {address: facts.functions_of_lspci(lab)[address]["Driver"] for address in IDLE}
    try:
        lab.shell("modprobe vfio-pci")
        for address in IDLE:
            bind(lab, address, "vfio-pci")
            lab.shell(f"until grep -q D3hot /sys/bus/pci/devices/{address}/power_state; do sleep 0.1; done", timeout=60)
        resting, _ = outcomes(lab)
        states = [lab.shell(f"cat /sys/bus/pci/devices/{address}/power_state").strip() for address in IDLE]
    finally:
        for address, driver in drivers.items():
            bind(lab, address, driver)
    assert states == ["D3hot", "D3hot"]
    moved = {key: outcome for key, (_, outcome) in changed(awake, resting).items()}
    assert not {"unknown", "fail"} & set(moved.values()), moved
    assert [resting["pcie-link", address] for address in IDLE] == [awake["pcie-link", address] for address in IDLE]
    assert {resting["pcie-link", address] for address in IDLE} <= {"pass", "skip"}


def bind(lab: LabMachine, address: str, driver: str) -> None:
    """Give a function to a driver; to another than vfio-pci without an override, as after a boot."""
    override = "vfio-pci" if driver == "vfio-pci" else ""
    lab.shell(
        f"cd /sys/bus/pci/devices/{address}; echo {override} >driver_override; echo {address} >driver/unbind;"
        f" echo {address} >/sys/bus/pci/drivers/{driver}/bind"
    )
