"""docs/diagnose.md: the commands of its three cases print what the page shows; the files are the published cases."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from docpages import sessions, shown

from hosttune.cli import run
from hosttune.model.measured import Measured

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sessions((ROOT / "docs" / "diagnose.md").read_text())
PUBLISHED = {case["id"]: case for case in json.loads((ROOT / "tests/cases/diagnosis/published.json").read_text())}
FILES = {"nccl-949": "nccl-949", "rtx6kpro": "rtx6kpro-p2p-level", "a100-235": "ml-eng-a100-235"}


@pytest.mark.parametrize(("command", "lines"), COMMANDS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_command_of_the_page_prints_what_it_shows(
    command: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run(shlex.split(command)[1:])
    printed = capsys.readouterr().out
    assert re.fullmatch(shown(lines), printed), printed


def test_the_page_has_three_cases() -> None:
    assert len(COMMANDS) == 3


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_published_case(name: str) -> None:
    ours = Measured.from_yaml((ROOT / "examples" / "diagnosis" / f"{name}.yaml").read_text())
    assert ours == Measured.from_yaml(json.dumps(PUBLISHED[FILES[name]]["measured"]))
