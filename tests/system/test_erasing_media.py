"""Reading a medium past the cache, and holding a block device alone, on the kernel's own loop devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.errors import InUse, Refused, Unreadable
from hosttune.machine.capture import Capture
from hosttune.machine.live import LiveMachine


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A loop device and its file, of 4 MiB."""
    backing = tmp_path / "disk"
    backing.write_bytes(os.urandom(4 << 20))
    try:
        made = subprocess.run(["losetup", "-f", "--show", str(backing)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root, losetup and a free loop device")
    device = made.stdout.strip()
    yield device, backing
    subprocess.run(["losetup", "-d", device], check=True)


def test_a_medium_is_read_past_the_cache(loop: tuple[str, Path]) -> None:
    device, backing = loop
    system = LiveMachine()
    assert system.read_medium(device, 4096, 8192) == backing.read_bytes()[4096:12288]
    with system.claim(device), open(device, "rb") as held:
        held.read(8192)  # the kernel's cache has it
        with backing.open("r+b") as file:
            file.write(b"\0" * (1 << 20))
        assert system.read_medium(device, 0, 4096) == bytes(4096)
    for offset, size in (((4 << 20) - 4096, 8192), (8 << 20, 4096)):
        with pytest.raises(Unreadable, match=r"of .* bytes at"):
            system.read_medium(device, offset, size)


def test_a_device_is_held_alone(loop: tuple[str, Path]) -> None:
    device, _ = loop
    system = LiveMachine()
    with system.claim(device), pytest.raises(InUse, match="part of an array"), system.claim(device):
        raise AssertionError
    with system.claim(device):  # free again
        pass


def test_what_is_no_block_device(tmp_path: Path) -> None:
    """A file at /dev/nvme0n1, left by a tool that wrote while the drive was away, is not read as the drive."""
    file = tmp_path / "nvme0n1"
    file.write_bytes(bytes(4096))
    for path in (str(file), str(tmp_path), "/dev/null", str(tmp_path / "absent")):
        with pytest.raises(Unreadable):
            LiveMachine().read_medium(path, 0, 4096)
        with pytest.raises(Unreadable), LiveMachine().claim(path):
            raise AssertionError


def test_a_capture_has_no_media(tmp_path: Path) -> None:
    system = Capture(str(tmp_path))
    with pytest.raises(Refused):
        system.read_medium("/dev/nvme0n1", 0, 4096)
    with pytest.raises(Refused):
        system.claim("/dev/nvme0n1")
