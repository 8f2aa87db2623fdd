"""A partition as a setting: what it refuses, whatever the Fabric Manager says, and that it writes what is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from hosttune.errors import BadInput, InUse, Unreadable, WriteFailed
from hosttune.hypervisor.partition import FabricPartitionState
from hosttune.machine.scratch import Scratch
from hosttune.transaction.rehearsal import rehearse

A, B = "0000:41:00.0", "0000:42:00.0"
LIST = ".hosttune/commands/fabric-manager-partitions"
PAIR = FabricPartitionState.of(f"3@{A}+{B}")
WANT = "active: modules 1, 3"
TABLE = {0: {1, 2, 3, 4}, 3: {1, 3}, 7: {1}}


def board(folder: Path, table: Mapping[int, Iterable[int]] = TABLE, active: Iterable[int] = ()) -> Scratch:
    """Two GPUs on nvidia, and a Fabric Manager with these partitions."""
    for name, text in ((".hosttune/scratch", ""), (LIST, listed(table, active))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for address in (A, B):
        (folder / "sys/bus/pci/devices" / address).mkdir(parents=True)
    return Scratch(str(folder))


def listed(table: Mapping[int, Iterable[int]], active: Iterable[int]) -> str:
    rows = [
        {
            "partitionId": n,
            "isActive": int(n in active),
            "numGpus": len(set(m)),
            "gpuInfo": [{"physicalId": i} for i in m],
        }
        for n, m in table.items()
    ]
    return json.dumps({"partitionInfo": rows})


def used(folder: Path, address: str) -> None:
    """A guest's QEMU that has a GPU open."""
    device = folder / "sys/bus/pci/devices" / address
    (folder / "sys/kernel/iommu_groups/9").mkdir(parents=True)
    (folder / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/vfio-pci")
    (device / "iommu_group").symlink_to("../../../../kernel/iommu_groups/9")
    process = folder / "proc/1000"
    (process / "fd").mkdir(parents=True)
    (folder / "dev/vfio").mkdir(parents=True)
    (folder / "dev/vfio/9").touch()
    (process / "fd/7").symlink_to("/dev/vfio/9")
    (process / "comm").write_text("qemu-system-x86\n")
    (process / "cmdline").write_text("qemu-system-x86_64\0-name\0guest=vm\0")


def test_it_is_activated_and_deactivated_with_the_client(tmp_path: Path) -> None:
    system = board(tmp_path)
    assert PAIR.read(system) == "inactive"
    for value, word in ((WANT, "-a"), ("inactive", "-d")):
        PAIR.write(system, value)
        assert PAIR.read(system) == value
        assert system.ran()[-1] == ("fmpm", word, "3")
        PAIR.write(system, value)  # nothing is left to do
    assert len(system.ran()) == 2


def test_a_dry_run_shows_each_reset_before_the_activation(tmp_path: Path) -> None:
    """GPUs of NVLink 5 are reset by their bus first, also where the kernel knows more methods than that one."""
    system = board(tmp_path)
    for driver in ("vfio-pci", "nvidia"):
        (tmp_path / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
    for address in (A, B):
        device = tmp_path / "sys/bus/pci/devices" / address
        texts = {"vendor": "0x10de\n", "device": "0x2901\n", "reset_method": "flr bus\n", "reset": ""}
        for name, text in texts.items():
            (device / name).write_text(text)
        (device / "config").write_bytes(bytes.fromhex("de100129 00001000") + bytes(56))
        (device / "driver").symlink_to("../../drivers/vfio-pci")
    changes, why = rehearse(system, PAIR, WANT)
    assert why is None
    resets = [f'write /sys/bus/pci/devices/{address}/reset <- "1"' for address in (A, B)]
    assert [change for change in changes if change in resets or change.startswith("run ")] == [
        *resets,
        "run   fmpm -a 3",
    ]


def test_a_dry_run_knows_what_is_deactivated_before(tmp_path: Path) -> None:
    """One GPU of a guest becomes two: the partition of one is in the way, and goes back first."""
    system = board(tmp_path, active=[7])
    assert "partition 7 is active" in (rehearse(system, PAIR, WANT)[1] or "")
    assert rehearse(system, PAIR, WANT, [("fabric-partition", f"7@{A}")]) == (("run   fmpm -a 3",), None)


def test_a_dry_run_of_a_live_host_waits_for_nothing(tmp_path: Path) -> None:
    system = board(tmp_path)
    system.captured = False
    before = time.monotonic()
    assert rehearse(system, PAIR, WANT) == (("run   fmpm -a 3",), None)
    assert time.monotonic() - before < 1.0  # the list cannot show what was only recorded


@pytest.mark.parametrize(
    ("table", "active", "why"),
    [
        (TABLE, [0], "partition 0 is active and has GPUs of it"),
        (TABLE, [7], "partition 7 is active and has GPUs of it"),
        ({3: {2, 4}}, [], "it has module ids 2, 4 now, not 1, 3"),
        ({3: {2, 4}}, [3], "it has module ids 2, 4 now, not 1, 3"),
        ({4: {1, 3}}, [], "no such partition"),
    ],
)
def test_a_partition_that_is_not_as_planned_is_left_alone(
    tmp_path: Path, table: Mapping[int, Iterable[int]], active: list[int], why: str
) -> None:
    system = board(tmp_path, table, active)
    with pytest.raises(WriteFailed) as refused:
        PAIR.write(system, WANT)
    assert why in refused.value.reason
    assert system.ran() == []


@pytest.mark.parametrize(("active", "value"), [([], WANT), ([3], "inactive")])
@pytest.mark.parametrize("gpu", [A, B])
def test_it_does_not_change_under_a_guest(tmp_path: Path, active: list[int], value: str, gpu: str) -> None:
    system = board(tmp_path, active=active)
    used(tmp_path, gpu)
    with pytest.raises(InUse) as refused:
        PAIR.write(system, value)
    assert "virsh shutdown vm" in refused.value.reason
    assert "virsh shutdown vm, then hosttune apply" in (PAIR.waits_for(system) or "")
    assert system.ran() == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"partitionInfo": [{"partitionId": 3}]}', listed({}, []) * 2])
def test_a_list_that_is_none_is_unreadable(tmp_path: Path, text: str) -> None:
    system = board(tmp_path)
    (tmp_path / LIST).write_text(text)
    with pytest.raises(Unreadable):
        PAIR.read(system)


@pytest.mark.parametrize(
    "target", ["", "3", "3@", f"-3@{A}", f"3@{A}+{A}", f"3@{B}+{A}", f"3 @{A}", "3@41:00.0", f"3@{A}\n", f"03@{A}"]
)
def test_a_target_that_no_plan_writes_is_refused(target: str) -> None:
    with pytest.raises(BadInput):
        FabricPartitionState.of(target)


@pytest.mark.parametrize(
    "value", [None, "inactive", True, "active", "active: modules 1", "active: modules 3, 1", "1, 3"]
)
def test_a_value_that_no_plan_wants_is_refused(value: object) -> None:
    with pytest.raises(BadInput):
        PAIR.check(value)
