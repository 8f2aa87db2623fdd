"""What tests ask of a scratch root: what an overlay says, by what was written alone, is what a walk over all finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from applyroots import Root, copied

FOLDER, FILE = "sys/a/b", "sys/a/b/file"


def remade(root: Path) -> None:
    shutil.rmtree(root / FOLDER)
    (root / FOLDER).mkdir()
    (root / FOLDER / "other").write_text("x")


def renamed_and_remade(root: Path) -> None:
    os.rename(root / "sys/a", root / "sys/moved")
    (root / FOLDER).mkdir(parents=True)
    (root / FILE).write_text("1\n")


def a_file_in_its_place(root: Path) -> None:
    shutil.rmtree(root / "sys/a")
    (root / "sys/a").write_text("x")


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "written": lambda root: (root / FILE).write_text("2\n"),
    "written as it was": lambda root: (root / FILE).write_text("1\n"),
    "new": lambda root: (root / "sys/a/new").write_text("x"),
    "gone": lambda root: (root / FILE).unlink(),
    "folder gone": lambda root: shutil.rmtree(root / "sys/a"),
    "folder renamed": lambda root: os.rename(root / "sys/a", root / "sys/moved"),
    "folder remade": remade,
    "folder renamed and remade": renamed_and_remade,
    "a file in its place": a_file_in_its_place,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_what_a_walk_finds(tmp_path: Path, change: str) -> None:
    (tmp_path / "below" / FOLDER).mkdir(parents=True)
    (tmp_path / "below" / FILE).write_text("1\n")
    (tmp_path / "below/sys/link").symlink_to("a")
    before = Root(tmp_path / "below").contents()
    with copied(tmp_path / "below", tmp_path / "root") as root:
        untouched = root.tree()
        if root.upper is None:
            pytest.skip("no overlay may be mounted here")
        CHANGES[change](root.path)
        after = Root(root.path).contents()
        names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert root.contents() == {name: after.get(name) for name in names}
        assert (root.tree() == untouched) == (change == "nothing")
