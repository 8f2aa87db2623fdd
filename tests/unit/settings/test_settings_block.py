"""Queues of NVMe namespaces on a scratch root, and on one that resets the depth with the scheduler as the kernel does.

Kernel: block/elevator.c (a new scheduler brings its own depth), block/blk-mq.c (without one, no more than the tags).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import hosttune
from hosttune.errors import BadInput, WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.model.values import FrozenMap
from hosttune.transaction.kinds import setting_of

ADDRESS = "0000:c1:00.0"
TARGET = f"{ADDRESS} n1"
WANT = FrozenMap({"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2})
QUEUE = {"scheduler": "[mq-deadline] kyber none\n", "nr_requests": "256\n", "rq_affinity": "1\n"}


class Elevator(Scratch):
    """A scratch root whose kernel sets the depth anew with the scheduler; `depth` is what the drive's queue holds."""

    depth = 1023

    def write(self, path: str, text: str) -> None:
        folder, _, name = path.rpartition("/")
        none = "[none]" in (self.read(f"{folder}/scheduler") or "")
        if name == "nr_requests" and none and int(text) > self.depth:
            raise WriteFailed(path, "Invalid argument", errno.EINVAL)
        super().write(path, text)
        if name == "scheduler":
            anew = self.depth if text == "none" else 2 * min(self.depth, 128)
            super().write(f"{folder}/nr_requests", str(anew))


def drive(root: Path, disk: str = "nvme3n1", sqsize: int | None = None, **queue: str) -> str:
    """A drive with one namespace; gives the queue's path inside the root."""
    controller = f"sys/devices/pci0000:c0/0000:c0:01.0/{ADDRESS}/nvme/nvme3"
    folder = root / controller / disk / "queue"
    folder.mkdir(parents=True)
    for name, text in {**QUEUE, **queue}.items():
        (folder / name).write_text(text)
    if sqsize is not None:
        (root / controller / "sqsize").write_text(f"{sqsize}\n")
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / ADDRESS).symlink_to(f"../../../devices/pci0000:c0/0000:c0:01.0/{ADDRESS}")
    (devices.parent.parent.parent / "block").mkdir()
    (root / "sys/block" / disk).symlink_to(f"../devices/pci0000:c0/0000:c0:01.0/{ADDRESS}/nvme/nvme3/{disk}")
    (root / f"sys/devices/pci0000:c0/0000:c0:01.0/{ADDRESS}/class").write_text("0x010802\n")
    (root / ".hosttune").mkdir()
    (root / ".hosttune/scratch").touch()
    return f"/{controller}/{disk}/queue"


def held(root: Path, queue: str) -> dict[str, str]:
    return {name: (root / queue[1:] / name).read_text() for name in QUEUE}


@pytest.mark.parametrize("kernel", [Scratch, Elevator])
def test_there_and_back(tmp_path: Path, kernel: type[Scratch]) -> None:
    queue = drive(tmp_path)
    system = kernel(str(tmp_path))
    setting = setting_of("nvme-queue", TARGET)
    old = setting.read(system)
    assert old == FrozenMap({"scheduler": "mq-deadline", "nr_requests": 256, "rq_affinity": 1})
    setting.check(WANT)
    assert setting.write(system, WANT) is None
    assert setting.read(system) == WANT
    setting.write(system, old)
    assert held(tmp_path, queue) == QUEUE


@pytest.mark.parametrize("requests", ["64\n", "250\n", "2046\n"])
def test_a_depth_that_somebody_chose_survives_the_scheduler_and_comes_back(tmp_path: Path, requests: str) -> None:
    queue = drive(tmp_path, nr_requests=requests, sqsize=127)
    system = Elevator(str(tmp_path))
    system.depth = 127
    setting = setting_of("nvme-queue", TARGET)
    old = setting.read(system)
    setting.write(system, WANT)
    assert setting.read(system)["scheduler"] == "none"
    setting.write(system, old)
    assert held(tmp_path, queue) == {**QUEUE, "nr_requests": requests}


def test_more_than_the_drive_holds_is_clamped_and_said(tmp_path: Path) -> None:
    drive(tmp_path, sqsize=127)
    system = Elevator(str(tmp_path))
    system.depth = 127
    setting = setting_of("nvme-queue", TARGET)
    assert setting.write(system, WANT) == "the drive's own queue holds 127"
    assert setting.read(system) == FrozenMap({"scheduler": "none", "nr_requests": 127, "rq_affinity": 2})


def test_what_the_kernel_refuses_is_said_and_the_rest_is_set(tmp_path: Path) -> None:
    drive(tmp_path)
    system = Elevator(str(tmp_path))
    system.depth = 127
    setting = setting_of("nvme-queue", TARGET)
    assert "does not take 1023" in (setting.write(system, WANT) or "")
    assert setting.read(system) == FrozenMap({"scheduler": "none", "nr_requests": 127, "rq_affinity": 2})


class Failing(Scratch):
    """The drive answers nothing but errors."""

    def write(self, path: str, text: str) -> None:
        raise WriteFailed(path, "Input/output error", errno.EIO)


def test_another_error_is_one(tmp_path: Path) -> None:
    queue = drive(tmp_path, scheduler="[none] mq-deadline\n")
    with pytest.raises(WriteFailed, match="Input/output") as error:
        setting_of("nvme-queue", TARGET).write(Failing(str(tmp_path)), WANT)
    assert error.value.path.endswith("queue/nr_requests")
    assert held(tmp_path, queue) == {**QUEUE, "scheduler": "[none] mq-deadline\n"}


def test_only_what_is_wanted_is_set(tmp_path: Path) -> None:
    drive(tmp_path)
    system = Elevator(str(tmp_path))
    setting = setting_of("nvme-queue", TARGET)
    setting.write(system, {"rq_affinity": 2})
    assert setting.read(system) == FrozenMap({"scheduler": "mq-deadline", "nr_requests": 256, "rq_affinity": 2})
    setting.write(system, {"scheduler": "none"})
    assert setting.read(system)["nr_requests"] == 256  # not the 1023 that come with it
    assert setting.agrees(setting.read(system), {"scheduler": "none"})
    assert not setting.agrees(setting.read(system), WANT)


@pytest.mark.parametrize(
    "first", [{"scheduler": "none"}, {"nr_requests": 1023}, {"scheduler": "none", "nr_requests": 7}]
)
def test_going_back_works_from_every_state_between(tmp_path: Path, first: dict[str, Any]) -> None:
    queue = drive(tmp_path)
    system = Elevator(str(tmp_path))
    setting = setting_of("nvme-queue", TARGET)
    old = setting.read(system)
    for name, part in first.items():
        system.write(f"{queue}/{name}", str(part))
    setting.write(system, old)
    assert held(tmp_path, queue) == QUEUE


def test_a_path_of_a_namespace_with_several_is_found(tmp_path: Path) -> None:
    drive(tmp_path, "nvme0c3n1")
    system = Scratch(str(tmp_path))
    assert setting_of("nvme-queue", TARGET).read(system)["scheduler"] == "mq-deadline"
    assert setting_of("nvme-queue", f"{ADDRESS} n2").read(system) is None
    assert setting_of("nvme-queue", "0000:c2:00.0 n1").read(system) is None


def test_a_drive_that_is_gone_is_an_error_of_the_write(tmp_path: Path) -> None:
    drive(tmp_path)
    with pytest.raises(WriteFailed, match="no such namespace"):
        setting_of("nvme-queue", "0000:c2:00.0 n1").write(Scratch(str(tmp_path)), WANT)


def test_values_are_those_of_the_host_document(tmp_path: Path) -> None:
    drive(tmp_path)
    settings = hosttune.discover(str(tmp_path)).settings or {}
    read = setting_of("nvme-queue", TARGET).effective(Scratch(str(tmp_path)))
    assert {f"/sys/block/nvme3n1/queue/{name}": str(part) for name, part in read.items()} == settings


@pytest.mark.parametrize(
    "target",
    [
        "",
        "nvme0n1",
        ADDRESS,
        f"{ADDRESS} n0",
        f"{ADDRESS} n01",
        f"{ADDRESS}  n1",
        "c1:00.0 n1",
        f"{ADDRESS}/.. n1",
        "/ n1",
    ],
)
def test_a_target_is_an_address_and_a_number(target: str) -> None:
    with pytest.raises(BadInput) as error:
        setting_of("nvme-queue", target)
    assert error.value.where == f"action nvme-queue:{target}"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "none",
        {},
        {"wbt_lat_usec": 0},
        {"scheduler": "none\nx"},
        {"scheduler": "../x"},
        {"scheduler": 1},
        {"nr_requests": 3},
        {"nr_requests": True},
        {"nr_requests": "1023"},
        {"nr_requests": 1 << 20},
        {"rq_affinity": 3},
        {"rq_affinity": False},
        {**WANT, "rq_affinity": None},
    ],
)
def test_a_value_that_it_cannot_have(value: object) -> None:
    with pytest.raises(BadInput) as error:
        setting_of("nvme-queue", TARGET).check(value)
    assert error.value.where == f"action nvme-queue:{TARGET}"
