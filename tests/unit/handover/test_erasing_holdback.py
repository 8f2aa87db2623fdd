"""Nothing assembles what the last tenant left on a drive: our rules before the real ones of udev, LVM, md and ZFS."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutshort import Noted, put
from udevrules import Device, process

from hosttune.errors import BadInput, CommandFailed, WriteFailed
from hosttune.handover.erasing import held_back, hold_back, let_go

ADDRESS, SERIAL = "0000:c1:00.0", "S6CKNE0T100123"
PATH = f"/etc/udev/rules.d/00-hosttune-handover-{ADDRESS}.rules"
REAL = {path.name: path.read_text() for path in (Path(__file__).parents[2] / "cases/udev").glob("*.rules")}
Parents = tuple[tuple[str, dict[str, str]], ...]
PCI: Parents = (("nvme0", {"serial": SERIAL}), (ADDRESS, {"vendor": "0x144d"}), ("pci0000:c0", {}))
MULTIPATH: Parents = (("nvme-subsys0", {"serial": SERIAL}),)  # below /sys/devices/virtual, of a drive with two ports
CONTENTS = {
    "LVM2_member": "pvscan",
    "linux_raid_member": "mdadm --incremental",
    "zfs_member": "modprobe zfs",
    "btrfs": "btrfs ready",
    "bcache": "bcache-register",
}


@pytest.fixture
def system(tmp_path: Path) -> Noted:
    put(tmp_path, "/.hosttune/scratch", "")
    put(tmp_path, "/run/udev/control", "")
    return Noted(tmp_path)


def rules(system: Noted) -> dict[str, str]:
    hold_back(system, ADDRESS, SERIAL)
    return {**REAL, PATH.rpartition("/")[2]: system.read(PATH) or ""}


@pytest.mark.parametrize(("content", "program"), CONTENTS.items())
@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("action", ["add", "change"])
def test_nothing_is_assembled(system: Noted, content: str, program: str, part: bool, action: str) -> None:
    """A volume group, an array member, a pool, on the drive and in its partition table."""
    held = rules(system)
    name = "nvme0n1p1" if part else "nvme0n1"
    found = {"ID_FS_TYPE": content, "ID_FS_USAGE": "raid", "ID_FS_UUID_ENC": "a", "ID_PART_TABLE_TYPE": "gpt"}
    for parents in (PCI, MULTIPATH):
        above = (("nvme0n1", {}), *parents) if part else parents
        free = process(Device(name, found, above, part=part, action=action), REAL)
        assert "blkid" in free.ran  # or the test proves nothing
        if action == "add" or content != "LVM2_member":
            assert any(program in one for one in free.ran), free.ran
        ours = process(Device(name, found, above, part=part, action=action), held)
        assert ours.ran == []
        assert ours.env["SYSTEMD_READY"] == "0"
        assert ours.env["UDISKS_IGNORE"] == "1"
        assert ours.env["HOSTTUNE_HANDOVER"] == "1"
        assert "ID_FS_TYPE" not in ours.env


def test_other_drives_are_left_alone(system: Noted) -> None:
    held = rules(system)
    found = {"ID_FS_TYPE": "LVM2_member"}
    others: tuple[Parents, ...] = (
        (("nvme1", {"serial": "S6CKNE0T100124"}), ("0000:c2:00.0", {})),
        (("nvme-subsys1", {"serial": "S6CKNE0T100124"}),),
        (("sda", {"serial": SERIAL}), ("0000:00:17.0", {})),  # the number of another maker's drive
    )
    for parents in others:
        free, ours = (process(Device("nvme1n1", found, parents), files) for files in (REAL, held))
        assert (free.ran, free.env) == (ours.ran, ours.env)
        assert any("pvscan" in one for one in ours.ran)


def test_hold_back_and_let_go(system: Noted) -> None:
    reload = ("change", "udevadm", "control", "--reload")
    hold_back(system, ADDRESS, f"{SERIAL}   ")
    assert [change[:2] if change[0] == "replace" else change for change in system.changes] == [
        ("replace", PATH),
        reload,
    ]
    assert held_back(system) == (ADDRESS,)
    hold_back(system, ADDRESS, SERIAL)
    assert len(system.changes) == 3  # udev is told again: it may not have been before a crash
    let_go(system, ADDRESS)
    assert system.changes[3:] == [("remove", PATH), reload]
    assert held_back(system) == ()
    let_go(system, ADDRESS)
    assert len(system.changes) == 5


def test_without_udev(tmp_path: Path) -> None:
    put(tmp_path, "/.hosttune/scratch", "")
    system = Noted(tmp_path)
    hold_back(system, ADDRESS, SERIAL)
    assert [change[0] for change in system.changes] == ["replace"]


def test_udev_that_cannot_be_told(system: Noted) -> None:
    system.failing["udevadm"] = "exit status 1"
    with pytest.raises(CommandFailed, match="exit status 1"):
        hold_back(system, ADDRESS, SERIAL)


def test_a_file_that_does_not_stay(system: Noted) -> None:
    class Lost(Noted):
        def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
            """Change nothing."""

    with pytest.raises(WriteFailed, match="reads differently"):
        hold_back(Lost(Path(system.root)), ADDRESS, SERIAL)


@pytest.mark.parametrize("serial", ["", "*", 'a"b', "a|b", "[a]", "$env{A}", "a\\b", "%k", "x" * 21, "a\nb", "é"])
def test_a_serial_number_that_is_no_text_for_a_rule(system: Noted, serial: str) -> None:
    with pytest.raises(BadInput, match="not a serial number"):
        hold_back(system, ADDRESS, serial)
    assert system.changes == []


def test_an_address_that_is_none(system: Noted) -> None:
    with pytest.raises(BadInput, match="not a PCI address"):
        hold_back(system, "../../x", SERIAL)
    put(Path(system.root), "/etc/udev/rules.d/00-hosttune-handover-x.rules", "")
    system.forget()
    assert held_back(system) == ()
