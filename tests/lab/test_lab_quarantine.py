"""A hand-over on a real kernel that is killed while it erases: the drive is quarantined, and a second one ends it.

A sample of test_lab_handover.py, on the machine that other tests share: without the hook of libvirt the drive is still
quarantined in the end, and a person releases it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.machine import LabMachine
from lab.product import STATE, install
from lab.tenancy import STEPS, Tenancy, cut_off

pytestmark = pytest.mark.lab

DRIVE, SERIAL, OWNER = "0000:c4:00.0", "LAB1", "leaver"
WORDS = f"--device {DRIVE} --erase {SERIAL}"


def test_killed_while_it_erases_and_ended_by_a_second_one(lab: LabMachine, tmp_path: Path) -> None:
    found = Tenancy(lab, {DRIVE: lab.folder / "nvme1.raw"}, tmp_path)
    install(lab)
    lab.shell(f"modprobe vfio-pci; blockdev --flushbufs {found.device(DRIVE)}")
    try:
        found.own(OWNER, DRIVE)
        found.put_pattern(DRIVE)
        cut_off(lab, WORDS, "erased")
        assert registered(lab)["state"] == "quarantined"
        code, statement, errors = found.hand_over(WORDS)
        assert code == 1, errors
        assert statement is not None
        (device,) = statement["predicate"]["devices"]
        assert [(one["step"], one["outcome"]) for one in device["steps"]] == [(name, "done") for name in STEPS]
        assert found.with_pattern(DRIVE) == 0
        held = registered(lab)
        assert (held["state"], "not recorded" in held["why"]) == ("quarantined", True), held
        assert lab.shell(f"basename $(readlink /sys/bus/pci/devices/{DRIVE}/driver)").strip() == "nvme"
        assert lab.shell("ls /etc/udev/rules.d | grep hosttune-handover", check=False) == ""
    finally:
        lab.shell(f"virsh undefine {OWNER}; rm -rf {STATE}", check=False)


def registered(lab: LabMachine) -> dict[str, str]:
    """The record of the drive in the register."""
    (record,) = json.loads(lab.fetch(f"{STATE}/handover/register.json"))["devices"]
    assert record["address"] == DRIVE
    assert isinstance(record, dict)
    return record
