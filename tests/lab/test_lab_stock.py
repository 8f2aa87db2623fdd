"""Guests on the distribution's own libvirt: its qemu.conf, its mounts, AppArmor, QEMU's own user, and umask 077.

One story. A guest of 1 GiB pages by the options of `plan`, nothing prepared for it by hand; a second one with a seed, a
disk and a kernel, first behind a folder that QEMU may not search; then everything taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sweeps import FULL

from lab import facts
from lab.machine import DISTRIBUTIONS, LabMachine, booted_by_grub
from lab.product import STATE, Ran, document_of, install, run

# Its own machine and up to three boots of it are more than the 25 minutes of `make lab-test` have room for.
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]

GUEST, SECOND = "gpu-guest", "seeded"
OWN_DISK = "/var/lib/libvirt/images/stock.qcow2"
PLAN = f"hosttune plan --gpu 0000:41:00.0 --accelerator tcg --vcpus 2 --memory 1GiB --disk {OWN_DISK} -o json"
UMASK = "umask 077;"
MOUNT, UNIT = "/dev/hugepages1G", "/etc/systemd/system/dev-hugepages1G.mount"
LINK = "/etc/systemd/system/sysinit.target.wants/dev-hugepages1G.mount"
GUESTS = f"{STATE}/guests"
FILES = "/var/lib/hosttune-lab"
DISK = "/var/lib/libvirt/images/seeded.qcow2"
INTENT: dict[str, Any] = {
    "version": 1,
    "guests": [
        {
            "name": SECOND,
            "gpus": ["0000:c1:00.0"],
            "vcpus": 2,
            "memory": "256MiB",
            "hugepages": "2MiB",
            "firmware": "bios",
            "accelerator": "tcg",
            "seed": True,
            "disk": DISK,
            "boot": {
                "kernel": f"{FILES}/vmlinux",
                "initrd": f"{FILES}/initramfs.cpio",
                "cmdline": "console=ttyS0 quiet",
            },
        }
    ],
}
# What libvirt writes for a guest and leaves there (src/security/security_apparmor.c), and its own numbers of files.
LIBVIRTS = ("/etc/apparmor.d/libvirt/", "/etc/libvirt/qemu", "/etc/apparmor.d/cache")


class Process(NamedTuple):
    """QEMU of a guest as the kernel shows it: its user, AppArmor's label, its huge mappings."""

    user: str
    label: str
    pages: list[dict[str, int]]


class Story(NamedTuple):
    """What was asked in this order, and the machine at each stage."""

    before: dict[str, str]
    planned: dict[str, Any]
    ran: Ran
    first: Process
    unit: str
    mounts: str
    status: Ran
    closed: Ran
    opened: Ran
    second: Process
    modes: dict[str, str]
    in_use: Ran
    reverted: Ran
    after: dict[str, str]


@pytest.fixture(scope="module")
def host(image: Path) -> Iterator[LabMachine]:
    """A host of its own, with every file of libvirt's as its packages brought it.

    A node of 4 GiB may have no whole gigabyte left after a boot; a server's has hundreds.
    """
    with booted_by_grub(image, node_mib=8192) as machine:
        machine.shell(f"cp -a {DISTRIBUTIONS}/libvirtd /etc/default/")
        with machine.confining():
            install(machine)
            yield machine


def look(host: LabMachine) -> dict[str, str]:
    """Names below /etc, /boot, /usr/local and /dev with mode, owner and contents or target; mounts; pools of pages."""
    files = facts.files_below(host, "/etc", "/boot", "/usr/local")
    named = host.shell(
        "find /etc /boot /usr/local /dev -xdev \\( -path /dev/pts -o -path /dev/shm -o -path /dev/vfio \\) -prune -o"
        " -printf '%p\\t%y %m %u %g %l\\n'"
    ).splitlines()
    found = dict(line.split("\t", 1) for line in named if "/dev/char/" not in line)
    found |= {f"{path} holds": digest for path, digest in files.items()}
    found |= {"mounts": host.shell("grep -v ' /run/user/' /proc/mounts | sort")}
    found |= dict(
        line.split(":", 1) for line in host.shell("grep -H . /sys/devices/system/node/*/hugepages/*/nr_*").split()
    )
    return {path: value for path, value in found.items() if not path.startswith(LIBVIRTS)}


def process_of(host: LabMachine, name: str) -> Process:
    """A guest's QEMU; AssertionError where it has none."""
    process = int(host.shell(f"cat /run/libvirt/qemu/{name}.pid"))
    user = host.shell(f"ps -o user:32= -p {process}").strip()
    label = host.shell(f"cat /proc/{process}/attr/current").strip("\0\n ")
    return Process(user, label, facts.huge_pages_of(host, process))


@pytest.fixture(scope="module")
def story(host: LabMachine) -> Story:
    """The whole of it."""
    host.shell(f"modprobe vfio-pci; {UMASK} qemu-img create -q -f qcow2 {DISK} 64M")
    host.shell(f"{UMASK} qemu-img create -q -f qcow2 {OWN_DISK} 64M")
    before = look(host)
    planned = document_of(host.shell(f"{UMASK} {PLAN}"))
    ran = run(host, "apply", "--start", "--yes", before=UMASK)
    if ran.document and ran.document["reboot_required"]:
        host.reboot()
        ran = run(host, "apply", "--start", "--yes", before=UMASK)
    assert ran.status == 0, ran.errors or json.dumps(ran.document)
    first, unit, mounts = (
        process_of(host, GUEST),
        host.shell(f"cat {UNIT}; readlink {LINK}"),
        host.shell("cat /proc/mounts"),
    )
    status = run(host, "status")
    host.shell(f"{UMASK} hosttune plan -f - -o json", stdin=json.dumps(INTENT))
    made = run(host, "apply", "--yes", before=UMASK)
    assert made.status == 0, made.errors or json.dumps(made.document)
    modes = dict(line.split() for line in host.shell(f"cd {STATE}; find . guests -printf '%p %m\\n'").splitlines())
    host.shell(f"chmod o-x {GUESTS}")
    closed = run(host, "apply", "--start", "--yes", before=UMASK)
    host.shell(f"chmod o+x {GUESTS}")
    opened = run(host, "apply", "--start", "--yes", before=UMASK)
    second = process_of(host, SECOND)
    in_use = run(host, "revert", "--yes")
    host.shell(f"virsh destroy {GUEST}; virsh destroy {SECOND}")
    reverted = run(host, "revert", "--yes")
    if reverted.document and reverted.document["reboot_required"]:
        host.reboot()
    host.shell("modprobe vfio-pci")
    return Story(
        before, planned, ran, first, unit, mounts, status, closed, opened, second, modes, in_use, reverted, look(host)
    )  # fmt: skip


def test_the_stack_is_the_distributions(host: LabMachine, story: Story) -> None:
    assert host.shell("grep -Ev '^ *(#|$)' /etc/libvirt/qemu.conf", check=False) == ""
    changed = host.shell("dpkg --verify libvirt-daemon-system libvirt-daemon apparmor | grep ' /etc/'", check=False)
    assert changed == ""
    assert "pagesize=1024M" not in story.before["mounts"]


def test_the_plan_mounts_what_its_pages_need_and_says_so(story: Story) -> None:
    actions = {action["id"]: action for action in story.planned["actions"]}
    mount, restart = actions[f"mount:{MOUNT}"], actions[f"libvirt-restart:{MOUNT}"]
    assert (mount["want"], mount["current"], mount["needed"], mount["effect"]) == (1 << 30, None, True, "now")
    assert "running guests go on running" in restart["why"]
    assert [guest["page_bytes"] for guest in story.planned["guests"]] == [1 << 30]


def test_the_guest_runs_with_1_gib_pages(story: Story) -> None:
    outcomes = story.ran.outcomes
    assert outcomes[f"guest-state:{GUEST}"] == "done", story.ran.doubts_found
    assert outcomes[f"mount:{MOUNT}"] in ("done", "already")
    assert [(row["kernelpagesize_kB"], row["N0"]) for row in story.first.pages] == [(1 << 20, 1)]
    assert story.ran.document is not None
    assert f"guest {GUEST} runs: pins, pages and devices in /proc are as planned" in story.ran.document["notes"]


def test_it_runs_as_qemus_user_and_confined(story: Story) -> None:
    assert {story.first.user, story.second.user} == {"libvirt-qemu"}
    labels = [re.fullmatch(r"libvirt-[0-9a-f-]{36} \(enforce\)", one.label) for one in (story.first, story.second)]
    assert all(labels), (story.first.label, story.second.label)


def test_the_mount_is_a_unit_that_every_boot_starts(story: Story) -> None:
    assert "Where=/dev/hugepages1G\n" in story.unit
    assert story.unit.splitlines()[-1] == UNIT
    assert re.search(r"^hugetlbfs /dev/hugepages1G hugetlbfs \S*pagesize=1024M", story.mounts, re.MULTILINE)
    assert story.status.status == 0, story.status.errors


def test_a_folder_that_qemu_may_not_search_is_named_and_nothing_is_started(story: Story) -> None:
    assert story.closed.outcomes[f"guest-state:{SECOND}"] == "pending"
    why = story.closed.doubts_found[f"guest-state:{SECOND}"] or ""
    assert f"it may not search {GUESTS}: chmod o+x {GUESTS}" in why, why


def test_under_umask_077_qemu_reads_its_seed_disk_and_kernel(story: Story) -> None:
    assert story.opened.outcomes[f"guest-state:{SECOND}"] == "done", story.opened.doubts_found
    assert story.modes[f"guests/{SECOND}/seed.iso"] == "644"
    assert story.modes[f"guests/{SECOND}/user-data"] == "600"


def test_a_mount_in_use_is_left(story: Story) -> None:
    assert story.in_use.status == 3
    assert GUEST in story.in_use.errors


def test_after_the_revert_the_host_is_as_before(host: LabMachine, story: Story) -> None:
    assert story.reverted.status == 0, story.reverted.errors or json.dumps(story.reverted.document)
    changed = {
        path for path in story.before.keys() | story.after.keys() if story.before.get(path) != story.after.get(path)
    }
    assert changed == set(), {path: (story.before.get(path), story.after.get(path)) for path in sorted(changed)[:9]}
    assert host.shell("virsh list --all --name").split() == []
