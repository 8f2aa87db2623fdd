"""How much a command writes to stderr: -q only errors, -v also each step and what is read; stdout is the same."""

from __future__ import annotations

from pathlib import Path

import applyroots
import pytest
from applyroots import Root

from hosttune.cli import run

plan = applyroots.plan
root = applyroots.root

PLAN = ("plan", "--root", "@example", "--gpu", "0000:41:00.0", "--disk", "/guest.qcow2", "-o", "xml")


@pytest.fixture(scope="module")
def document() -> list[str]:
    """What the first command printed, to compare the others with."""
    return []


@pytest.mark.parametrize("flag", ["", "-q", "--quiet", "-v", "--verbose"])
@pytest.mark.parametrize("first", [True, False])
def test_what_goes_to_stderr(
    flag: str, first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], document: list[str]
) -> None:
    out = tmp_path / "plan.json"
    words = [*PLAN, "--out", str(out)]
    flags = [flag] if flag else []
    assert run([*flags, *words] if first else [*words, *flags]) == 0
    found = capsys.readouterr()
    saved, read = f"plan saved: {out}\n", "reading the host: @example\n"
    assert found.err == {"": saved, "-q": "", "--quiet": "", "-v": read + saved, "--verbose": read + saved}[flag]
    document.append(found.out)
    assert set(document) == {found.out}


def test_errors_are_written_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-q", "plan", "--root", "/nowhere", "--gpus", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot be read")


def test_both_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-q", *PLAN, "--verbose"]) == 2
    assert capsys.readouterr().err.startswith("error: both --quiet and --verbose")


def test_the_question_of_apply_shows_its_changes(root: Root, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody must answer a question about changes that are not shown."""
    words = ("apply", str(plan), "--root", str(root.path), "--no-guests")
    assert run(["-q", *words]) == 3
    shown = capsys.readouterr().err.split("error: cannot ask")[0]
    assert "driver 0000:41:00.0: nvidia -> vfio-pci" in shown
    assert run(["-q", *words, "--yes"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["-v", "revert", "--yes", "--root", str(root.path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [f"reading the host: {root.path}", f"state: {root.path}/var/lib/hosttune"]
    assert any("driver 0000:41:00.0" in line for line in lines[2:])
