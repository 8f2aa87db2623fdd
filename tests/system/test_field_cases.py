"""Reports of people who do this job: tests/cases/field/NAME/case.toml says what hosttune must answer to each."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hosttune.cli import run

CASES = Path(__file__).parents[1] / "cases" / "field"
RUNS = [
    pytest.param(file.parent, trial, id=f"{file.parent.name}: {trial['do']}")
    for file in sorted(CASES.glob("*/case.toml"))
    for trial in tomllib.loads(file.read_text())["run"]
]


@pytest.mark.parametrize(("folder", "trial"), RUNS)
def test_what_hosttune_answers(
    folder: Path,
    trial: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path))
    code = run(shlex.split(trial["do"]))
    out, err = capsys.readouterr()
    words = " ".join((out + err).split())  # lines are wrapped where the terminal wants
    assert code == trial["exit"], words
    assert [text for text in trial.get("says", []) if text not in words] == [], words
    assert [text for text in trial.get("omits", []) if text in words] == [], words
