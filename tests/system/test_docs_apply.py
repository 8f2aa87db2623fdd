"""docs/apply.md and docs/second-day.md: every command is run, on a scratch root, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"apply.md": 15, "second-day.md": 30}  # at least so many commands


def sessions(text: str) -> list[tuple[str, list[str]]]:
    """(command, the lines that it is shown to print), in the order of the page."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        lines = [line[4:] for line in block.splitlines()]
        if not lines[0].startswith("$ "):
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def shown(lines: list[str]) -> str:
    """A pattern of these lines; a line of three dots stands for any."""
    return "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in lines)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    binary = tmp_path / "bin" / "hosttune"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from hosttune.cli import main; main()" "$@"\n')
    binary.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "HOSTTUNE_STATE")}
    environment["PATH"] = f"{binary.parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    text = (ROOT / "docs" / page).read_text()
    for name, file in re.findall(r"^```yaml\n# (\S+)\n((?:.*\n)*?)```$", text, re.MULTILINE):
        (tmp_path / name).write_text(file)
    commands = sessions(text)
    assert len(commands) > PAGES[page]
    for command, lines in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed = done.stdout.replace(str(tmp_path), "/root")
        assert re.fullmatch(shown(lines), printed), f"$ {command}\n{printed}"


def test_a_page_that_shows_something_else_is_found() -> None:
    assert sessions("    $ a\n    b\n    ...\n\ntext\n\n    no command\n") == [("a", ["b", "..."])]
    assert re.fullmatch(shown(["b", "..."]), "b\nc\nd\n")
    assert not re.fullmatch(shown(["b"]), "c\n")
