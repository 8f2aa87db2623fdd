"""The README begins with what the tool prints: it must still print that. `--regenerate` writes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COMMAND = "hosttune plan --root examples/hgx-h200-8.tar.xz --gpu 0000:41:00.0"
GUEST = ("discover", "--root", "tests/hosts/h200/vm-x4.tar.gz")


def printed(*arguments: str) -> str:
    command = [sys.executable, "-c", "from hosttune.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment, timeout=60)
    return "".join(f"    {line}" if line.strip() else line for line in done.stdout.decode().splitlines(keepends=True))


def blocks(text: str) -> list[str]:
    """The indented blocks of a Markdown text; blank lines inside one belong to it."""
    found: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.startswith("    "):
            found.append(line) if not inside else found.__setitem__(-1, found[-1] + line)
            inside = True
        elif inside and not line.strip():
            found[-1] += line
        else:
            inside = False
    return [block.rstrip("\n") + "\n" for block in found]


def test_the_transcripts_are_what_is_printed(request: pytest.FixtureRequest) -> None:
    text = README.read_text()
    shown = blocks(text)
    plan = next(block for block in shown if COMMAND in block)
    host = next(block for block in shown if block.startswith("    scrubbed-host") or "vm-x" in block)
    wanted = {plan: f"    $ {COMMAND}\n" + printed(*COMMAND.split()[1:]), host: printed(*GUEST)}
    if request.config.getoption("--regenerate"):
        for old, new in wanted.items():
            text = text.replace(old, new)
        README.write_text(text)
        return
    for old, new in wanted.items():
        assert old == new


def test_every_command_of_the_readme_is_one() -> None:
    from hosttune.cli.commands import cli

    named = {line.split()[1] for line in README.read_text().splitlines() if line.startswith("    hosttune ")}
    assert named >= {"discover", "capture", "plan", "schema"}
    assert named <= set(cli.commands)
