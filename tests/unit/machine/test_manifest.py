"""What a capture lists of itself: by it a file that was lost is told from one that the machine does not have."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.discovery import discover
from hosttune.discovery.recording import write_capture
from hosttune.errors import BadInput, Unreadable
from hosttune.machine import manifest
from hosttune.machine.capture import Archive
from hosttune.machine.live import LiveMachine
from hosttune.machine.opening import open_root
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import COMPLETE

GPU = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0"
LINKS = {"/sys/bus/pci/devices/0000:02:00.0": GPU, f"{GPU}/driver": "/sys/bus/pci/drivers/nvidia"}
FILES = {
    f"{GPU}/vendor": b"0x10de\n",
    f"{GPU}/device": b"0x2335\n",
    f"{GPU}/class": b"0x030200\n",
    "/proc/version": b"Linux version 6.1.0\n",
    "/sys/bus/pci/drivers/nvidia/uevent": b"",
}


class Live(Archive):
    """Files that stand for a machine: what is not there is not there."""

    complete = True

    def lacks(self, path: str) -> bool:
        return not self.exists(path) and self.link(path) is None


def live() -> Live:
    machine = Live(FILES, LINKS, "a machine")
    machine.complete = True
    return machine


def unpacked(tmp_path: Path, *lost: str) -> Path:
    """A capture of the machine in a directory, without the lost paths."""
    write_capture(live(), str(tmp_path / "x.tar.gz"))
    root = tmp_path / "root"
    with tarfile.open(tmp_path / "x.tar.gz") as tar:
        tar.extractall(root, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(root)
    for path in lost:
        (root / path[1:]).unlink()
    return root


def packed(tmp_path: Path, *lost: str) -> Path:
    """The same as a tar."""
    root, path = unpacked(tmp_path, *lost), tmp_path / "lost.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(root, ".")
    return path


Form = Callable[..., Path]


@pytest.mark.parametrize("form", [unpacked, packed])
@pytest.mark.parametrize("lost", [f"{GPU}/class", f"{GPU}/driver", "/sys/bus/pci/devices/0000:02:00.0"])
def test_what_was_lost_is_unreadable_and_not_absent(form: Form, lost: str, tmp_path: Path) -> None:
    host = discover(open_root(str(form(tmp_path, lost))))
    assert [device.address for device in host.pci] == ["0000:02:00.0"], "its name is still listed"
    assert any(p.what == "unreadable" and "lost" in p.why for p in host.problems), host.problems


@pytest.mark.parametrize("form", [unpacked, packed])
def test_of_a_whole_capture_nothing_is_unreadable(form: Form, tmp_path: Path) -> None:
    host = discover(open_root(str(form(tmp_path))))
    assert (host.pci[0].driver, host.pci[0].class_code) == ("nvidia", "030200")
    assert [p.where for p in host.problems if p.what == "unreadable"] == []


@pytest.mark.parametrize("form", [unpacked, packed])
def test_only_what_was_looked_for_is_proven_to_be_absent(form: Form, tmp_path: Path) -> None:
    found = open_root(str(form(tmp_path, f"{GPU}/class")))
    assert found.lacks("/sys/kernel/mm/ksm/run")
    assert found.lacks(f"{GPU}/iommu_group"), "its folder was listed"
    assert found.lacks("/sys/bus/pci/devices/0000:02:00.0/iommu_group")
    assert not found.lacks(f"{GPU}/vendor")
    assert not found.lacks(f"{GPU}/class"), "lost is not absent"
    assert not found.lacks("/sys/never/looked/for")
    with pytest.raises(Unreadable, match="lost"):
        found.read_bytes(f"{GPU}/class")
    assert "class" in found.list(GPU)


def test_a_capture_without_a_list_proves_nothing_and_one_that_was_added_to_is_as_it_lies() -> None:
    for text in (b"", b"1\n", b"2\n", b"\xff\x00", b"2\n/sys\tall\n"):
        assert not Archive({COMPLETE: text}, {}, "x").lacks("/sys/x"), text
    listed = manifest.write((), (), ["/sys/x"]).encode()
    assert Archive({COMPLETE: listed}, {}, "x").lacks("/sys/x")
    assert not Archive({COMPLETE: listed, "/sys/x": b"1"}, {}, "x").lacks("/sys/x"), "somebody put it there"
    assert not Archive({COMPLETE: listed[:-1]}, {}, "x").lacks("/sys/x"), "a line that is cut off"


def test_a_machine_and_what_stands_for_one_have_what_they_have(tmp_path: Path) -> None:
    assert LiveMachine().lacks(str(tmp_path / "none"))
    assert not LiveMachine().lacks(str(tmp_path))
    root = unpacked(tmp_path, f"{GPU}/class")
    (root / ".hosttune/scratch").touch()
    assert Scratch(str(root)).lacks(f"{GPU}/class")
    assert Scratch(str(root)).read_bytes(f"{GPU}/class") is None


PATHS = st.lists(st.sampled_from("ab\tc\n"), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.sets(PATHS), st.sets(PATHS), st.sets(PATHS))
def test_a_list_says_nothing_else_than_was_written(present: set[str], listed: set[str], absent: set[str]) -> None:
    found = manifest.read(manifest.write(present, listed, absent))
    there = {path[: end or None] for path in present for end in (0, *(n for n, c in enumerate(path) if c == "/" and n))}
    for path in present | listed | absent:
        if found.had(path):
            assert path in there
        if found.lacked(path):
            assert path not in there
            above = [path, *(path[:n] for n, c in enumerate(path) if c == "/")]
            assert any(one in absent or (one.rpartition("/")[0] or "/") in listed for one in above)


@pytest.mark.parametrize("form", [unpacked, packed])
@pytest.mark.parametrize("place", [f"{GPU}/class", "/sys/bus/pci/drivers/nvidia"])
def test_a_link_in_the_place_of_a_file_or_a_folder_is_a_lost_one(form: Form, place: str, tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    there = root / place[1:]
    shutil.rmtree(there) if there.is_dir() else there.unlink()
    there.symlink_to("vendor")
    (there.parent / "vendor").touch()
    found = open_root(str(root if form is unpacked else repacked(root)))
    with pytest.raises(Unreadable, match="a link is in its place"):
        found.link(place)
    with pytest.raises(Unreadable, match="a link is in its place"):
        found.exists(place)
    assert found.link(f"{GPU}/driver") == "/sys/bus/pci/drivers/nvidia", "what was a link is one"


@pytest.mark.parametrize("form", [unpacked, packed])
def test_a_link_among_what_hosttune_writes_is_refused(form: Form, tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    (root / ".hosttune/commands").mkdir(exist_ok=True)
    (root / ".hosttune/commands/kernel-log").symlink_to("../../proc/version")
    with pytest.raises(BadInput, match="link"):
        open_root(str(root if form is unpacked else repacked(root))).read_bytes("/.hosttune/commands/kernel-log")


def repacked(root: Path) -> Path:
    path = root.parent / "changed.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(root, ".")
    return path
