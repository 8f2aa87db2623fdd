"""What discovery says after the host changed under it, and that discovery itself changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import by_address, discover, document_of

pytestmark = pytest.mark.lab

DRIVE = "0000:47:00.0"


@contextlib.contextmanager
def changed(lab: LabMachine, do: str, undo: str) -> Iterator[None]:
    """The host after `do`; `undo` follows whatever happens."""
    try:
        lab.shell(do)
        yield
    finally:
        lab.shell(undo)


def test_discovery_changes_nothing(lab: LabMachine, document: dict[str, Any]) -> None:
    """Of the values that stand still by themselves, none moves; nothing is logged by the kernel or written to disk."""
    lab.shell("touch /run/before")
    first, second = facts.snapshot(lab), facts.snapshot(lab)
    log = lab.shell("dmesg").splitlines()
    discover(lab)
    new_log = lab.shell("dmesg").splitlines()[len(log) :]
    third = facts.snapshot(lab)
    still = {path for path in first.keys() & second.keys() if first[path] == second[path]}
    assert len(still) > 2000
    assert f"/sys/bus/pci/devices/{DRIVE}/driver" in still
    assert f"/sys/devices/pci0000:40/0000:40:03.0/{DRIVE}/config" in still
    assert {path for path in still if third.get(path) != second[path]} == set()
    assert third.keys() - second.keys() == set()
    assert new_log == []
    written = lab.shell("find /etc /root /usr /home /opt /srv /var/lib /boot -xdev -newer /run/before -type f").split()
    assert [path for path in written if not path.startswith("/var/lib/systemd/")] == []


def test_virtual_functions_appear(lab: LabMachine, document: dict[str, Any]) -> None:
    device = f"/sys/bus/pci/devices/{DRIVE}"
    before = by_address(document)
    enable = f"echo 0 >{device}/sriov_drivers_autoprobe; echo 2 >{device}/sriov_numvfs; udevadm settle"
    disable = f"echo 0 >{device}/sriov_numvfs; echo 1 >{device}/sriov_drivers_autoprobe; udevadm settle"
    with changed(lab, enable, disable):
        after = by_address(discover(lab))
        listed = facts.functions_of_lspci(lab)
        linked = lab.shell(f"for f in {device}/virtfn*; do basename $(readlink $f); done").split()
        groups = facts.groups_of_kernel(lab)
    assert set(after) == set(listed)
    new = sorted(set(after) - set(before))
    assert new == linked == after[DRIVE]["virtfns"]
    assert len(new) == after[DRIVE]["sriov_vfs"] == 2
    for address in new:
        function = after[address]
        assert function["physfn"] == DRIVE
        assert (function["numa_node"], function["numa_source"]) == (0, "device")
        assert function["driver"] is None
        assert address in groups[function["iommu_group"]]
    assert by_address(discover(lab))[DRIVE]["virtfns"] == []


def test_an_offline_cpu_has_no_place(lab: LabMachine) -> None:
    control = "/sys/devices/system/cpu/cpu3/online"
    with changed(lab, f"echo 0 >{control}", f"echo 1 >{control}"):
        document = discover(lab)
        online = facts.online_of_lscpu(lab)
        nodes = facts.nodes_of_numactl(lab)
    assert {cpu["id"]: cpu["online"] for cpu in document["cpus"]} == online
    gone = document["cpus"][3]
    assert gone["online"] is False
    assert {gone[field] for field in ("core", "package", "die", "numa_node", "llc", "l2")} == {None}
    assert document["numa_nodes"][0]["cpus"] == "0-2"
    assert {cpu["id"] for cpu in document["cpus"] if cpu["numa_node"] == 0} == nodes[0]["cpus"] == {0, 1, 2}


def test_a_mounted_drive_is_in_use(lab: LabMachine, document: dict[str, Any]) -> None:
    name = by_address(document, "nvme")["0000:c4:00.0"]["namespaces"][0]
    ask = "hosttune plan --gpu 0000:c1:00.0 --nvme 1 -o json"
    make = f"mkfs.ext4 -q /dev/{name} && mkdir /mnt/drive && mount /dev/{name} /mnt/drive"
    with changed(lab, make, f"umount /mnt/drive; rmdir /mnt/drive; wipefs -q -a /dev/{name}"):
        drives = by_address(discover(lab), "nvme")
        while_mounted = document_of(lab.shell(ask))
    assert "/mnt/drive" in drives["0000:c4:00.0"]["in_use"]
    assert drives[DRIVE]["in_use"] is None
    # The near drive when it is free, the far one while the host needs the near one.
    assert _devices(while_mounted) == {"0000:c1:00.0", DRIVE}
    free = document_of(lab.shell(ask))
    assert _devices(free) == {"0000:c1:00.0", "0000:c4:00.0"}


def _devices(planned: dict[str, Any]) -> set[str]:
    (guest,) = planned["guests"]
    return {device["address"] for device in guest["devices"]}
