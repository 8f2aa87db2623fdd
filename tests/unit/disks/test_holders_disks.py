"""Disks that the host uses without a mount of their own: members of btrfs, bcachefs and ZFS."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutshort import put

from hosttune.disks import block_uses, disk_uses
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader

ZFS_LABEL = "E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank\n"


def uses(root: Path, disk: str = "nvme1n1") -> list[str]:
    reader = Reader(Capture(str(root)))
    return disk_uses(reader, disk, block_uses(reader))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "/proc/self/mounts", "/dev/nvme0n1 /srv btrfs rw 0 0\n")
    put(tmp_path, "/sys/class/block/nvme1n1/dev", "259:1\n")
    put(tmp_path, "/sys/class/block/nvme1n1/nvme1n1p1/dev", "259:2\n")
    put(tmp_path, "/sys/class/block/nvme1n1p1/dev", "259:2\n")
    return tmp_path


def test_the_second_disk_of_a_mounted_btrfs(root: Path) -> None:
    assert uses(root) == []
    put(root, "/sys/fs/btrfs/features/raid56", "")
    put(root, "/sys/fs/btrfs/6b1f/devices/nvme0n1/size", "1")
    put(root, "/sys/fs/btrfs/6b1f/devices/nvme1n1p1/size", "1")
    assert uses(root) == ["nvme1n1p1 part of a btrfs file system"]


def test_every_disk_of_a_mounted_bcachefs(root: Path) -> None:
    put(root, "/proc/self/mounts", "/dev/nvme0n1:/dev/nvme1n1 /srv bcachefs rw 0 0\n")
    assert uses(root, "nvme0n1") == ["nvme0n1 mounted on /srv"]
    assert uses(root) == ["nvme1n1 mounted on /srv"]


def test_a_member_of_an_imported_pool(root: Path) -> None:
    put(root, "/run/udev/data/b259:2", ZFS_LABEL)
    assert uses(root) == []  # an exported pool, or one of a guest's own
    put(root, "/proc/spl/kstat/zfs/arcstats", "")
    put(root, "/proc/spl/kstat/zfs/tank/state", "ONLINE\n")
    assert uses(root) == ["nvme1n1p1 part of the ZFS pool tank"]
    put(root, "/run/udev/data/b259:2", ZFS_LABEL.replace("tank", "theirs"))
    assert uses(root) == []
    put(root, "/run/udev/data/b259:2", "E:ID_FS_TYPE=ext4\nE:ID_FS_LABEL=tank\n")
    assert uses(root) == []


def test_a_loop_device_over_a_disk(root: Path) -> None:
    """The kernel keeps the disk open for it, and O_EXCL on the disk succeeds (Linux 6.18, losetup of util-linux)."""
    put(root, "/sys/class/block/loop0/dev", "7:0\n")
    assert uses(root) == []
    put(root, "/sys/class/block/loop1/loop/backing_file", "/dev/nvme1n1p1\n")
    assert uses(root) == ["nvme1n1p1 is behind loop1"]
    put(root, "/sys/class/block/loop1/loop/backing_file", "/dev/nvme1n1 (deleted)\n")
    assert uses(root) == ["nvme1n1 is behind loop1"]
    put(root, "/sys/class/block/loop1/loop/backing_file", "/srv/nvme1n1\n")
    assert uses(root) == []


def test_a_disk_that_the_kernel_exports(root: Path) -> None:
    """Source of the files: drivers/nvme/target/configfs.c."""
    folder = "/sys/kernel/config/nvmet/subsystems/backup"
    link = root / "dev/disk/by-id/nvme-A"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../nvme1n1")
    put(root, f"{folder}/namespaces/10/device_path", "/dev/disk/by-id/nvme-A\n")
    put(root, f"{folder}/namespaces/10/enable", "0\n")
    put(root, f"{folder}/passthru/enable", "0\n")
    assert uses(root) == []
    put(root, f"{folder}/namespaces/10/enable", "1\n")
    assert uses(root) == ["nvme1n1 exported over NVMe-oF as backup"]
    put(root, f"{folder}/namespaces/10/enable", "0\n")
    put(root, "/sys/class/nvme/nvme4/nvme1c4n1/size", "1\n")
    put(root, f"{folder}/passthru/device_path", "/dev/nvme4\n")
    assert uses(root) == []
    put(root, f"{folder}/passthru/enable", "1\n")
    assert uses(root) == ["nvme1n1 exported over NVMe-oF as backup"]


def test_a_disk_behind_a_file_of_the_kernels_scsi_target(root: Path) -> None:
    """Source of the text: drivers/target/target_core_file.c, fd_show_configfs_dev_params."""
    text = "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 16384\n"
    text += "        TCM FILEIO ID: 0        File: /dev/nvme1n1  Size: 1073741824  Mode: O_DSYNC Async: 0\n"
    put(root, "/sys/kernel/config/target/core/alua/lu_gps", "")
    put(root, "/sys/kernel/config/target/core/fileio_0/disk1/info", text)
    assert uses(root) == ["nvme1n1 exported over SCSI as disk1"]
