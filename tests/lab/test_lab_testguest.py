"""A device that no driver of the host can take is tested in a guest of an image, within the emulated host.

The image is a stand-in (`lab.testimage`), and so is the GPU: its memory cannot be searched, so it stays quarantined.
Shown is the way there and back: libvirt, QEMU, AppArmor, the hook, the boot from an overlay, the seed, the channel, and
that nothing is left, also after a kill.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import FULL

from lab.machine import LabMachine, booted
from lab.product import STATE, install, plan, run
from lab.tenancy import OWNER
from lab.testimage import IMAGE, build

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a guest boots, emulated twice")]

GPU, NAME = "0000:c1:00.0", "hosttune-test-guest"
GUEST = {"name": "any", "vcpus": 1, "memory": "256MiB", "hugepages": "none", "firmware": "bios", "accelerator": "tcg"}
COURSE_SECONDS = 1500
COURSE = "env PYTHONPATH=/mnt/tree hosttune handover --guest tenant"
COURSE += f" --test-guest {IMAGE} --test-firmware bios --to-vfio --yes -o json"


@pytest.fixture(scope="module")
def host(image: Path) -> Iterator[LabMachine]:
    with booted(image) as machine, machine.confining():
        install(machine)
        machine.shell("modprobe vfio-pci")
        # The guest is not made; what any planned guest needs of this host is (on Debian a rule of AppArmor).
        plan(machine, {"version": 1, "profile": "none", "settings": {"libvirt_hook": True}, "guests": [GUEST]})
        ran = run(machine, "apply", "--yes", "--no-guests")
        assert ran.status == 0, ran.errors or ran.document
        machine.shell("systemctl restart libvirtd")
        machine.shell("virsh define /dev/stdin", stdin=OWNER.format(name="tenant", bus=GPU[5:7]))
        build(machine)
        yield machine


def sha256(host: LabMachine, path: str) -> str:
    return hashlib.sha256(host.fetch(path)).hexdigest()


def left(host: LabMachine) -> str:
    """What is there of a test guest: domains, files, the note."""
    names = f"ls -d {STATE}/guests/* {STATE}/handover/test-guest /var/lib/libvirt/qemu/nvram/hosttune* 2>/dev/null"
    return host.shell(f"virsh list --all --name | grep hosttune; {names}; true").strip()


def test_killed_while_the_guest_runs_then_ended(host: LabMachine) -> None:
    """kill -9 with the guest running: quarantined, the hook refuses others; the next one removes it and goes on."""
    before = sha256(host, IMAGE), host.shell(f"stat -c '%U %a %Y' {IMAGE}")
    host.shell(f"setsid {COURSE} </dev/null >/run/first.json 2>/run/first.err & echo $! >/run/first.pid")
    deadline = time.monotonic() + 300
    while NAME not in host.shell("virsh list --name"):
        ended = host.shell("cat /run/first.json /run/first.err")
        assert time.monotonic() < deadline, ended
        assert '"tested"' not in ended, ended
        time.sleep(2)
    host.shell("kill -9 -$(cat /run/first.pid)")
    assert NAME in left(host)
    assert state_of(host) == "quarantined"
    refused = host.shell("virsh start tenant", check=False)
    assert (refused.status != 0, f"{GPU} is quarantined" in refused.errors) == (True, True), refused.errors

    ran = host.shell(COURSE, check=False, timeout=COURSE_SECONDS)
    assert ran.status == 1, ran.errors
    steps = steps_of(json.loads(ran))
    outcomes = [(one["step"], one["outcome"]) for one in steps]
    assert outcomes == [
        ("quarantined", "done"), ("reset", "done"), ("taken-back", "not-needed"), ("erased", "not-supported"),
        ("tested", "done"), ("reset", "done"), ("returned", "done"),
    ], (steps, ran.errors)  # fmt: skip
    tested = steps[4]
    assert tested["method"] == "validate --guest --level 1, in a test guest"
    assert tested["evidence"]["results"]["pass"] == ["bench-device-copy", "device-present"]
    assert tested["evidence"]["guest"]["hosttune"] == "stand-in"
    assert state_of(host) == "quarantined", "nothing has erased it"
    assert left(host) == ""
    assert (sha256(host, IMAGE), host.shell(f"stat -c '%U %a %Y' {IMAGE}")) == before
    assert host.shell(f"basename $(readlink /sys/bus/pci/devices/{GPU}/driver)").strip() == "vfio-pci"


def test_an_image_that_names_another_file_is_refused(host: LabMachine) -> None:
    """Nothing is opened: exit code 2, and the register is as before."""
    bad = "/var/lib/libvirt/images/bad.qcow2"
    host.shell(f"qemu-img create -q -f qcow2 -b /etc/shadow -F raw {bad}")
    ran = host.shell(COURSE.replace(IMAGE, bad), check=False)
    assert (ran.status, "backing file" in ran.errors) == (2, True), ran.errors


def state_of(host: LabMachine) -> str:
    found = json.loads(host.shell("hosttune handover status -o json"))
    (device,) = (one["record"] for one in found["devices"] if one["record"]["address"] == GPU)
    return str(device["state"])


def steps_of(statement: dict[str, Any]) -> list[dict[str, Any]]:
    (device,) = statement["predicate"]["devices"]
    steps = device["steps"]
    assert isinstance(steps, list)
    return steps
