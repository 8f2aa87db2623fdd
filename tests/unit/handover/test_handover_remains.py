"""What a tenant has left of a device or of its guest's memory: it keeps the device from being clean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cutshort import put
from handovers import DRIVE, GPU, host

from hosttune.errors import Unreadable
from hosttune.handover.cleaning import memory_left, parts_left
from hosttune.handover.targets import Target
from hosttune.machine.opening import open_system
from hosttune.machine.system import System
from hosttune.model.gpu import Gpu, Mig, MigInstance
from hosttune.model.host import Host

SEARCHED = Target(address=GPU, kind="gpu", identity=GPU, search="a.program")
MOUNTS = "proc /proc proc rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw 0 0\nnodev /mnt/1G hugetlbfs rw 0 0\n"


@pytest.fixture
def system(tmp_path: Path) -> System:
    put(tmp_path, "/.hosttune/scratch", "")
    put(tmp_path, "/proc/self/mounts", MOUNTS)
    return open_system(str(tmp_path))


def with_gpu(**facts: object) -> Host:
    return msgspec.structs.replace(host(), gpus=(Gpu(address=GPU, vendor="nvidia", **facts),))  # type: ignore[arg-type]


def test_virtual_functions_and_mediated_devices(system: System, tmp_path: Path) -> None:
    drive = Target(address=DRIVE, kind="nvme", identity=DRIVE)
    assert parts_left(system, host(), drive) == ([], [])
    found = host()
    pci = tuple(
        msgspec.structs.replace(one, virtfns=("0000:c1:00.1",)) if one.address == DRIVE else one for one in found.pci
    )
    assert parts_left(system, msgspec.structs.replace(found, pci=pci), drive) == (
        ["virtual functions 0000:c1:00.1: set their number to 0"], [],
    )  # fmt: skip
    folder = tmp_path / "sys/bus/mdev/devices"
    folder.mkdir(parents=True)
    (folder / "u1").symlink_to(f"../../../devices/pci0000:40/0000:40:01.0/{GPU}/u1")
    system.forget()
    left, unknown = parts_left(system, with_gpu(mig=Mig(mode="disabled")), SEARCHED)
    assert (left[0].split(":")[0], unknown) == ("mediated device u1", [])
    assert parts_left(system, host(), drive) == ([], [])  # it is of the other device


@pytest.mark.parametrize(
    ("facts", "left", "unknown"),
    [
        ({"mig": Mig(mode="disabled")}, 0, 0),
        ({"mig": Mig(mode="enabled", instances=())}, 0, 0),
        ({"mig": Mig(mode="enabled", instances=(MigInstance(id=1),))}, 1, 0),
        ({"mig": Mig(mode="enabled")}, 0, 1),
        ({"mig": Mig(profiles=())}, 0, 1),  # it can have some, and whether it has them was not read
        ({}, 0, 1),
        ({"lacks": ("mig",)}, 0, 0),
    ],
)
def test_mig_instances(system: System, facts: dict[str, object], left: int, unknown: int) -> None:
    found = parts_left(system, with_gpu(**facts), SEARCHED)
    assert (len(found[0]), len(found[1])) == (left, unknown)


def test_memory_that_a_file_keeps(system: System, tmp_path: Path) -> None:
    for place in ("/dev/hugepages/libvirt/qemu/3-vm", "/mnt/1G/libvirt/qemu/12-vm", "/var/lib/libvirt/qemu/ram/4-vm2"):
        (tmp_path / place[1:]).mkdir(parents=True)
    assert memory_left(system, "vm") == ["/dev/hugepages/libvirt/qemu/3-vm", "/mnt/1G/libvirt/qemu/12-vm"]
    assert memory_left(system, "vm2") == ["/var/lib/libvirt/qemu/ram/4-vm2"]
    assert memory_left(system, "other") == []
    long = "a-name-of-more-than-twenty-characters"
    (tmp_path / f"dev/hugepages/libvirt/qemu/5-{long[:20]}").mkdir()
    system.forget()
    assert memory_left(system, long) == [f"/dev/hugepages/libvirt/qemu/5-{long[:20]}"]
    (tmp_path / "proc/self/mounts").unlink()
    system.forget()
    with pytest.raises(Unreadable):
        memory_left(system, "vm")


def test_memory_that_libvirt_saved_or_dumped(system: System, tmp_path: Path) -> None:
    folder = "/var/lib/libvirt/qemu"
    for name in ("save/vm.save", "dump/3-vm-2026-01-31-12:00:59", "dump/4-vm-2-2026-01-31-12:00:59", "dump/notes"):
        put(tmp_path, f"{folder}/{name}", "")
    assert memory_left(system, "vm") == [f"{folder}/save/vm.save", f"{folder}/dump/3-vm-2026-01-31-12:00:59"]
    assert memory_left(system, "vm-2") == [f"{folder}/dump/4-vm-2-2026-01-31-12:00:59"]
    assert memory_left(system, "notes") == []
