"""README, docs/plan.md and docs/discover.md show what the tool prints. `--regenerate` writes the transcripts anew."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
COMMANDS = ROOT / "docs/commands.md"
PLAN = "hosttune plan --root @example --gpu 0000:41:00.0 --disk /images/guest.qcow2 --network default"
GUEST = "hosttune discover --root tests/hosts/h200/vm-h200x4.tar.gz"
# The README has room for the first lines; docs/plan.md shows all of it.
LINES = 12
SHOWN = {
    "README.md": f"{PLAN} | head -{LINES}",
    "docs/plan.md": PLAN,
    "docs/discover.md": GUEST,
}


@cache
def printed(command: str) -> list[str]:
    """The lines that a command of hosttune prints, indented as in a Markdown block."""
    code = [sys.executable, "-c", "from hosttune.cli import main; main()", *command.split()[1:]]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    done = subprocess.run(code, capture_output=True, check=True, cwd=ROOT, env=environment, timeout=60)
    return [f"    {line}" if line.strip() else line for line in done.stdout.decode().splitlines(keepends=True)]


def transcript(command: str) -> str:
    base, _, head = command.partition(" | head -")
    return f"    $ {command}\n" + "".join(printed(base)[: int(head) if head else None])


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


@pytest.mark.parametrize("page", SHOWN)
def test_the_transcripts_are_what_is_printed(page: str, request: pytest.FixtureRequest) -> None:
    path, command = ROOT / page, SHOWN[page]
    text = path.read_text()
    old = next(block for block in blocks(text) if block.startswith(f"    $ {command}\n"))
    if request.config.getoption("--regenerate"):
        path.write_text(text.replace(old, transcript(command)))
        return
    assert old == transcript(command)


def test_every_command_of_the_pages_is_one() -> None:
    from hosttune.cli.commands import cli

    lines = (README.read_text() + COMMANDS.read_text()).splitlines()
    assert {line.split()[1] for line in lines if line.startswith("    hosttune ")} == set(cli.commands)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    assert len(text.split()) <= 900
    targets = [part.split(")")[0] for part in text.split("](")[1:]]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
