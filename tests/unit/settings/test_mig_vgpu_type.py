"""The vGPU type of a virtual function as a setting: there and back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.settings.virtual import VgpuTypeSetting
from hosttune.transaction.kinds import setting_of

VF = "0000:41:00.4"


def root(tmp_path: Path, text: str | None = "0\n") -> Scratch:
    (tmp_path / ".hosttune").mkdir()
    (tmp_path / ".hosttune/scratch").touch()
    folder = tmp_path / "sys/bus/pci/devices" / VF
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "nvidia").mkdir()
        (folder / "nvidia/current_vgpu_type").write_text(text)
        (folder / "nvidia/creatable_vgpu_types").write_text("1414 : NVIDIA H200X-1-18C\n")
    return Scratch(str(tmp_path))


def test_there_and_back(tmp_path: Path) -> None:
    system, setting = root(tmp_path), setting_of("vgpu-type", VF)
    assert isinstance(setting, VgpuTypeSetting)
    assert setting.read(system) == "0"
    assert setting.waits_for(system) is None
    setting.write(system, "1414")
    assert setting.read(system) == "1414"
    setting.write(system, "1414")
    setting.write(system, "0")
    assert setting.read(system) == "0"


@pytest.mark.parametrize("listed", ["", "1420 : NVIDIA H200X-7-141C\n"])
def test_a_type_that_the_driver_does_not_offer_is_not_written(tmp_path: Path, listed: str) -> None:
    system = root(tmp_path)
    (tmp_path / "sys/bus/pci/devices" / VF / "nvidia/creatable_vgpu_types").write_text(listed)
    with pytest.raises(WriteFailed, match=r"type 1414 cannot be made now.*restart nvidia-vgpud"):
        VgpuTypeSetting(VF).write(system, "1414")
    assert VgpuTypeSetting(VF).read(system) == "0"


def test_a_vgpu_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    system = root(tmp_path, "1428\n")
    with pytest.raises(WriteFailed, match="carries vGPU type 1428: it is in use"):
        VgpuTypeSetting(VF).write(system, "1414")
    assert VgpuTypeSetting(VF).read(system) == "1428"


def test_a_function_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    system = root(tmp_path, None)
    assert VgpuTypeSetting(VF).read(system) is None
    assert "sriov-manage -e" in (VgpuTypeSetting(VF).waits_for(system) or "")
    with pytest.raises(WriteFailed, match="not there"):
        VgpuTypeSetting(VF).write(system, "1414")


def test_nonsense_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="reads 'NVIDIA'"):
        VgpuTypeSetting(VF).read(root(tmp_path, "NVIDIA\n"))


@pytest.mark.parametrize("value", [None, 0, 1414, "0", "", "01", "-1", "1414\n", "NVIDIA H200X-1-18C", "9" * 10, True])
def test_a_plan_can_want_a_number_only(value: object) -> None:
    with pytest.raises(BadInput, match="not a vGPU type"):
        VgpuTypeSetting(VF).check(value)


@pytest.mark.parametrize("target", ["", "41:00.4", "0000:41:00.4/../..", "all", "0000:41:00.8"])
def test_a_target_is_an_address(target: str) -> None:
    with pytest.raises(BadInput):
        setting_of("vgpu-type", target)
