"""Hand-overs on a real kernel, on the machine that other tests share.

One is killed while it erases, the next one before its second reset: the drive is quarantined, and a third one ends it
(a sample of test_lab_handover_cuts.py, which cuts the host's power, too; without the hook of libvirt the drive is still
quarantined in the end, and a person releases it). One is of a NIC that libvirt gave to a guest, with the hook: a
stand-in for its maker's tool says what its firmware is set to.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import FULL

from hosttune.settings.hook import PLACE, hook_text
from lab.machine import LabMachine
from lab.product import STATE, install
from lab.tenancy import STEPS, Tenancy, cut_off

pytestmark = pytest.mark.lab

DRIVE, SERIAL, OWNER = "0000:c4:00.0", "LAB1", "leaver"
NIC, MAC, TABLE, TOOL = "0000:c3:00.0", "52:54:00:00:c3:01", "/run/mstconfig", "/usr/bin/mstconfig"
RECORD, KEPT = f"{STATE}/handover/start-{NIC}", "/run/start-record"
ROW = "Configurations:               Default     Current     Next Boot\n        SRIOV_EN    {0}  {0}  {0}\n"
WORDS = f"--device {DRIVE} --erase {SERIAL}"


def test_killed_twice_and_ended_by_a_third_one(lab: LabMachine, tmp_path: Path) -> None:
    found = Tenancy(lab, {DRIVE: lab.folder / "nvme1.raw"}, tmp_path)
    install(lab)
    lab.shell(f"modprobe vfio-pci; blockdev --flushbufs {found.device(DRIVE)}")
    try:
        found.own(OWNER, DRIVE)
        found.put_pattern(DRIVE)
        cut_off(lab, WORDS, "erased")
        assert registered(lab)["state"] == "quarantined"
        cut_off(lab, WORDS, "reset", 2)
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


def test_what_a_nic_was_like_before_its_first_start_is_recorded_once(lab: LabMachine, tmp_path: Path) -> None:
    found = Tenancy(lab, {}, tmp_path)
    with hooked(lab):
        for name in (OWNER, "second"):
            found.own(name, NIC)
        lab.shell(f"virsh start {OWNER}")
        first = lab.shell(f"stat -c '%a %U' {RECORD}; cat {RECORD}")
        assert first.startswith("600 root\nhosttune-start 1\n")
        assert first.endswith("\nend\n")
        named = f"\nguest {OWNER}\n", f'"address":"{MAC}"', f"\n Permanent address: {MAC}\n", " SRIOV_EN    False(0)"
        assert [text for text in named if text not in first] == [], first

        # A second guest cannot have it; libvirt calls the hook before it finds that out, and the first one has it open.
        lab.shell(f"mv {RECORD} {KEPT}")
        refused = lab.shell("virsh start second", check=False)
        assert (refused.status, "in use" in refused.errors) == (1, True), refused.errors
        assert lab.shell(f"stat -c %s {RECORD}").strip() == "0"
        look = f"rm {RECORD}; virsh dumpxml {OWNER} | sh {PLACE} {OWNER} look begin -; tail -n 1 {RECORD}"
        assert lab.shell(look) == ""
        lab.shell(f"virsh destroy {OWNER}")
        assert lab.shell(look) == "end\n"  # so it was not the time limit

        if not FULL:
            return

        # What the tenant changed is no record when it starts again, and the hand-over finds it.
        lab.shell(f"cp -p {KEPT} {RECORD}; cat >{TABLE}", stdin=ROW.format("True(1)"))
        lab.shell(f"virsh start {OWNER}; virsh destroy {OWNER}; cmp {RECORD} {KEPT}")
        code, statement, errors = found.hand_over(f"--device {NIC} --to-vfio")
        assert code == 1, errors
        assert statement is not None
        (device,) = statement["predicate"]["devices"]
        erased = next(one for one in device["steps"] if one["step"] == "erased")
        assert erased["outcome"] == "failed", erased
        assert f"changed (as it was before guest {OWNER} was started at 20" in erased["why"]
        assert "SRIOV_EN was False(0), and is True(1)" in erased["why"]
        assert lab.shell(f"ls {RECORD}", check=False) == ""


@contextlib.contextmanager
def hooked(lab: LabMachine) -> Iterator[None]:
    """The machine with the hook of libvirt and a stand-in for the NIC maker's tool, and without them afterwards."""
    install(lab)
    lab.shell(f"mkdir -p $(dirname {PLACE}); cat >{PLACE}; chmod 755 {PLACE}", stdin=hook_text(STATE) or "")
    lab.shell(f"cat >{TOOL}; chmod 755 {TOOL}", stdin=f"#!/bin/sh\ncat {TABLE}\n")
    lab.shell(f"cat >{TABLE}; systemctl restart libvirtd", stdin=ROW.format("False(0)"))
    try:
        yield
    finally:
        guests = f"for guest in {OWNER} second; do virsh destroy $guest; virsh undefine $guest; done"
        lab.shell(f"{guests}; rm -rf {STATE} {PLACE} {TOOL} {TABLE} {KEPT}; systemctl restart libvirtd", check=False)
        back = f"cd /sys/bus/pci; echo >devices/{NIC}/driver_override; echo {NIC} >devices/{NIC}/driver/unbind"
        lab.shell(f"{back}; echo {NIC} >drivers_probe", check=False)
    assert lab.shell(f"basename $(readlink /sys/bus/pci/devices/{NIC}/driver)").strip() == "e1000e"
