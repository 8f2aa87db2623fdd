"""GPU instances, virtual functions and mediated devices as settings: there and back, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faultkinds import EXAMPLES
from faultlab import fresh_root

from hosttune.errors import BadInput, CommandFailed, InUse, Unreadable, WriteFailed
from hosttune.gpu.settings import GpuMigMode
from hosttune.gpu.vgpu_set import LEFT, MediatedDevice, MigInstanceSetting, VgpuFunctions, instances_of
from hosttune.handover.cleaning import Cleaning
from hosttune.handover.targets import Target
from hosttune.machine.scratch import Scratch
from hosttune.settings.setting import Setting
from hosttune.transaction.rehearsal import rehearse
from hosttune.transaction.site import Site

GPU, VF = "0000:41:00.0", "0000:41:00.4"
LIST = f".hosttune/commands/mig-lgi-{GPU}"
NONE = "No GPU instances found: Not Found\n"
# The table of the MIG user guide ("Creating GPU Instances"), with a profile that has a suffix.
TABLE = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.10gb+me      20        7          6:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        1          4:4     |
+-------------------------------------------------------+
"""


def board(folder: Path, listed: str = NONE, driver: str = "nvidia") -> Scratch:
    device = folder / "sys/bus/pci/devices" / GPU
    for path, text in (
        (folder / ".hosttune/scratch", ""),
        (folder / LIST, listed),
        (device / "sriov_numvfs", "0\n"),
        (device / "sriov_totalvfs", "16\n"),
        (folder / "sys/bus/pci/drivers" / driver / "bind", ""),
        (folder / f"sys/bus/pci/devices/{VF}/mdev_supported_types/nvidia-474/create", ""),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (device / "driver").symlink_to(f"../../drivers/{driver}")
    return Scratch(str(folder))


def test_the_table_of_the_guide(tmp_path: Path) -> None:
    found = [(one.profile, one.id, one.start, one.size) for one in instances_of(board(tmp_path, TABLE), GPU)]
    assert found == [("1g.10gb+me", 7, 6, 1), ("3g.20gb", 1, 4, 4)]


@pytest.mark.parametrize("text", ["", "Segmentation fault\n"])
def test_a_table_that_is_none_is_unreadable(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unreadable):
        instances_of(board(tmp_path, text), GPU)


def test_an_instance_is_made_at_its_place_and_destroyed_by_its_id(tmp_path: Path) -> None:
    system = board(tmp_path, TABLE)
    setting = MigInstanceSetting.of(f"{GPU} 1g.10gb:0")
    assert setting.read(system) is False
    setting.write(system, True)
    assert setting.read(system) is True
    setting.write(system, True)
    setting.write(system, False)
    smi = ("nvidia-smi", "mig", "-i", GPU)
    assert system.ran() == [(*smi, "-cgi", "1g.10gb:0"), (*smi, "-dci", "-gi", "8"), (*smi, "-dgi", "-gi", "8")]
    assert [one.profile for one in instances_of(system, GPU)] == ["1g.10gb+me", "3g.20gb"]


def test_an_instance_of_another_profile_at_the_place_is_not_it(tmp_path: Path) -> None:
    assert MigInstanceSetting.of(f"{GPU} 4g.20gb:4").read(board(tmp_path, TABLE)) is False
    assert MigInstanceSetting.of(f"{GPU} 3g.20gb:0").read(board(tmp_path / "b", TABLE)) is False


def test_a_gpu_on_vfio_has_no_instances_and_no_functions_here(tmp_path: Path) -> None:
    system = board(tmp_path, driver="vfio-pci")
    assert MigInstanceSetting.of(f"{GPU} 1g.10gb:0").read(system) is None
    assert VgpuFunctions.of(GPU).read(system) is None


class Refusing(Scratch):
    """A machine whose tools end with an error."""

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        raise CommandFailed(argv, "exit status 19", "Unable to destroy GPU instance ID 1: In use by another client\n")


def test_an_instance_in_use_stays(tmp_path: Path) -> None:
    board(tmp_path, TABLE)
    with pytest.raises(WriteFailed, match="In use by another client"):
        MigInstanceSetting.of(f"{GPU} 3g.20gb:4").write(Refusing(str(tmp_path)), False)


def test_functions_are_made_by_the_makers_tool(tmp_path: Path) -> None:
    system, setting = board(tmp_path), VgpuFunctions.of(GPU)
    for value, word in ((True, "-e"), (False, "-d")):
        setting.write(system, value)
        assert setting.read(system) is value
        assert system.ran()[-1] == ("/usr/lib/nvidia/sriov-manage", word, GPU)
    assert len(system.ran()) == 2


@pytest.mark.parametrize("bare", [True, False])
def test_functions_go_before_a_reset_also_if_one_has_no_driver(tmp_path: Path, bare: bool) -> None:
    system = board(tmp_path)
    VgpuFunctions.of(GPU).write(system, True)
    device = tmp_path / "sys/bus/pci/devices" / GPU
    own = (device.parent / VF).rename(tmp_path / "sys/bus/pci" / VF)
    (device.parent / VF).symlink_to(f"../{VF}")
    (device / "virtfn0").symlink_to(f"../../{VF}")
    if not bare:
        (own / "driver").symlink_to("../drivers/nvidia")
    system.forget()
    assert VgpuFunctions.of(GPU).read(system) == (LEFT if bare else True)
    target = Target(address=GPU, kind="gpu", identity=f"{GPU} 10de:2335", methods=(), driver="nvidia")
    Cleaning().before_reset(Site(system, None, None, None), target)
    assert (device / "sriov_numvfs").read_text().strip() == "0"
    assert not own.exists()


@pytest.mark.parametrize("value", [True, False])
def test_functions_do_not_change_while_there_are_instances(tmp_path: Path, value: bool) -> None:
    system = board(tmp_path, TABLE)
    (tmp_path / "sys/bus/pci/devices" / GPU / "sriov_numvfs").write_text("0\n" if value else "16\n")
    with pytest.raises(InUse, match="2 GPU instances would end"):
        VgpuFunctions.of(GPU).write(system, value)
    assert system.ran() == []


def test_a_mediated_device_there_and_back(tmp_path: Path) -> None:
    uuid = "6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e"
    system, setting = board(tmp_path), MediatedDevice.of(f"{uuid} {VF}")
    assert (setting.read(system), setting.waits_for(system)) == (None, None)
    setting.write(system, "nvidia-474")
    assert setting.read(system) == "nvidia-474"
    with pytest.raises(InUse):
        setting.write(system, "nvidia-475")
    setting.write(system, None)
    assert setting.read(system) is None


def test_a_change_of_mode_that_was_cut_off_is_seen_and_brings_the_functions_back(tmp_path: Path) -> None:
    system = board(tmp_path)
    (tmp_path / f"var/lib/hosttune/mig-mode-{GPU}").parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / f"var/lib/hosttune/mig-mode-{GPU}").touch()
    (tmp_path / f".hosttune/commands/nvmlDeviceSetMigMode-{GPU}").write_text("1")
    setting = GpuMigMode.of(GPU)
    assert setting.read(system) == "enabled, without its functions"
    setting.write(system, "enabled")
    assert (setting.read(system), VgpuFunctions.of(GPU).read(system)) == ("enabled", True)
    assert not os.path.exists(tmp_path / f"var/lib/hosttune/mig-mode-{GPU}")


def test_a_rehearsal_of_a_change_of_mode_shows_that_the_functions_are_made_again(tmp_path: Path) -> None:
    example = EXAMPLES["gpu-mig-mode"]
    root = fresh_root(tmp_path / "root", example.files, example.links)
    (root / f"sys/bus/pci/devices/{GPU}/virtfn0").symlink_to(f"../{VF}")
    (root / f"sys/bus/pci/devices/{VF}").mkdir()
    (root / f"sys/bus/pci/devices/{VF}/driver").symlink_to("../../drivers/nvidia")
    changes, why = rehearse(Scratch(str(root)), GpuMigMode.of(GPU), "enabled")
    note, manage = f"/var/lib/hosttune/mig-mode-{GPU}", "run   /usr/lib/nvidia/sriov-manage"
    assert ([line.split(" <- ")[0].split(" (mode")[0] for line in changes], why) == (
        [
            f"file  {note}",
            f"{manage} -d {GPU}",
            f"call  nvmlDeviceSetMigMode-{GPU}",
            f"{manage} -e {GPU}",
            f"unlink {note}",
        ],
        None,
    )


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (MigInstanceSetting, GPU),
        (MigInstanceSetting, f"{GPU} 1g.10gb"),
        (MigInstanceSetting, f"{GPU} $(reboot):0"),
        (MigInstanceSetting, f"{GPU} 1g.10gb:0 "),
        (MigInstanceSetting, "0 1g.10gb:0"),
        (VgpuFunctions, "41:00.0"),
        (VgpuFunctions, "ALL"),
        (MediatedDevice, VF),
        (MediatedDevice, f"../../x {VF}"),
    ],
)
def test_a_target_that_no_plan_writes_is_refused(kind: type[Setting], target: str) -> None:
    with pytest.raises(BadInput):
        kind.of(target)
