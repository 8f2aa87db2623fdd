"""The first command works wherever hosttune is installed, without a checkout: `--root @example`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import hosttune
from hosttune.cli import run

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "examples/hgx-h200-8.tar.xz"
README = "hosttune plan --root @example --gpu 0000:41:00.0 --disk /images/guest.qcow2 --network default"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_the_readme_begins_with_it() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(line for line in lines if line.startswith("    hosttune")).strip() == README


def test_an_installed_wheel_runs_it_as_a_module(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    words = [sys.executable, "-P", "-m", *README.split()]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("plan for example-hgx-h200: 1 guest placed")


def test_it_is_the_shipped_archive_and_no_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "@example").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hosttune.discover("@example").to_json() == hosttune.discover(str(ARCHIVE)).to_json()
    with pytest.raises(hosttune.BadInput, match="neither sys/ nor proc/"):
        hosttune.discover("./@example")


def test_it_is_read_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run([*README.split()[1:], "--out", str(plan)]) == 0
    assert run(["apply", str(plan), "--root", "@example", "--yes"]) == 3
    assert "where: @example" in capsys.readouterr().err
