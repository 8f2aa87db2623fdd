"""A file of a capture that was changed later is unreadable at that one place, until the folder is sealed again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.machine.test_manifest import FILES, GPU, LINKS, live, repacked, unpacked

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.discovery.recording import write_capture
from hosttune.errors import Unreadable
from hosttune.machine import manifest
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_root
from hosttune.machine.sealing import seal
from hosttune.machine.system import COMPLETE, SCRATCH, System
from hosttune.model.host import Problem


def changed(tmp_path: Path) -> Path:
    """A capture's folder in which the device id of the GPU is another one."""
    root = unpacked(tmp_path)
    (root / GPU[1:] / "device").write_text("0x2336\n")
    return root


def unreadable(system: System) -> list[Problem]:
    return [problem for problem in discover(system).problems if problem.what == "unreadable"]


@pytest.mark.parametrize("archive", [False, True])
def test_a_changed_file_is_unreadable_at_that_one_place(archive: bool, tmp_path: Path) -> None:
    root = changed(tmp_path)
    found = open_root(str(repacked(root) if archive else root))
    (problem,) = unreadable(found)
    assert problem.where.endswith("/device")
    assert "digest differs" in problem.why
    assert "hosttune capture --seal DIR" in problem.why
    with pytest.raises(Unreadable, match="digest differs"), found.folder(GPU) as folder:
        folder.read("device")
    assert found.read(f"{GPU}/vendor") == "0x10de"


def test_a_folder_that_is_sealed_again_is_as_it_lies(tmp_path: Path) -> None:
    root = changed(tmp_path)
    (root / "proc/uptime").write_text("1 1\n")
    assert seal(str(root)) == len(FILES) + 1
    assert unreadable(open_root(str(root))) == []
    assert discover(open_root(str(repacked(root)))).pci[0].device_id == "2336"
    (root / "proc/uptime").write_text("2 2\n")
    with pytest.raises(Unreadable, match="digest differs"):
        open_root(str(root)).read("/proc/uptime")


def test_sealing_changes_nothing_but_digests(tmp_path: Path) -> None:
    root = unpacked(tmp_path, f"{GPU}/class")
    before = (root / COMPLETE[1:]).read_text()
    seal(str(root))
    after = (root / COMPLETE[1:]).read_text()
    assert manifest.seal(before, {}) == manifest.seal(after, {})
    assert [problem.why for problem in unreadable(open_root(str(root)))] == [
        "lost: it was in this capture when it was made"
    ]


def test_without_digests_and_in_a_scratch_root_nothing_is_checked(tmp_path: Path) -> None:
    root = changed(tmp_path)
    (root / SCRATCH[1:]).touch()
    assert unreadable(open_root(str(root))) == []
    (root / SCRATCH[1:]).unlink()
    text = (root / COMPLETE[1:]).read_text()
    (root / COMPLETE[1:]).write_text(manifest.seal(text, {}))
    assert unreadable(open_root(str(root))) == []
    for own in (b"", b"1\n", manifest.seal(manifest.write(FILES, (), ()), {}).encode()):
        assert unreadable(Archive({**FILES, COMPLETE: own}, LINKS, "x")) == []


def test_names_of_all_kinds_have_digests(tmp_path: Path) -> None:
    names = ("/a=b", "/sys/a:b c", "/sys/x=", "/sys/line\nbreak", "/sys/tab\there")
    text = manifest.seal(manifest.write(names, (), ()), dict.fromkeys(names, "0" * 64))
    found = manifest.read(text)
    assert [found.changed(name, b"") for name in names] == [True, True, True, False, False]


def test_a_capture_of_a_changed_capture_records_what_was_unreadable(tmp_path: Path) -> None:
    write_capture(open_root(str(changed(tmp_path))), str(tmp_path / "again.tar.gz"))
    (problem,) = unreadable(open_root(str(tmp_path / "again.tar.gz")))
    assert "digest differs" in problem.why


def test_what_cannot_be_sealed_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpacked(tmp_path)
    (tmp_path / "empty").mkdir()
    scratch = unpacked(tmp_path / "empty")
    (scratch / SCRATCH[1:]).touch()
    linked, old = unpacked(tmp_path / "empty/root"), unpacked(tmp_path / "empty/root/root")
    (linked / COMPLETE[1:]).rename(tmp_path / "elsewhere")
    (linked / COMPLETE[1:]).symlink_to(tmp_path / "elsewhere")
    (old / COMPLETE[1:]).write_text("1\n")
    cases = {
        (str(tmp_path / "none"),): "no folder",
        (str(tmp_path / "x.tar.gz"),): "not a folder",
        (str(root / "sys"),): "no capture of hosttune",
        (str(scratch),): "a scratch root: its files may change",
        (str(linked),): "a link among hosttune's own files",
        (str(old),): "a capture without a manifest",
        (str(root), "file.tar.gz"): "--seal takes its folder and nothing else",
        (str(root), "--root", str(root)): "--seal takes its folder and nothing else",
    }
    for words, what in cases.items():
        assert run(["capture", "--seal", *words]) == 2
        assert capsys.readouterr().err.splitlines()[0] == f"error: {what}", words


def test_a_folder_that_may_not_be_written_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = changed(tmp_path)
    (root / COMPLETE[1:]).parent.chmod(0o500)
    if os.access(root / ".hosttune", os.W_OK):
        pytest.skip("root may write everywhere")
    assert run(["capture", "--seal", str(root)]) == 2
    assert "cannot be sealed: Permission denied" in capsys.readouterr().err


def test_the_command_says_what_it_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = changed(tmp_path)
    assert run(["capture", "--seal", str(root)]) == 0
    assert capsys.readouterr().err == f"sealed: {root}, {len(FILES)} files\n"
    assert live().read(f"{GPU}/device") == "0x2335"
