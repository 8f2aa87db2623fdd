"""The commands of a page of docs/, in its order: run on a scratch root and, of the tutorial, on the emulated host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LINK = "[the second day](second-day.md)"


class Command(NamedTuple):
    """A command line, and the lines that it is shown to print. `here`: on a scratch root; it begins with `$`."""

    line: str
    shown: list[str]
    here: bool


def story(page: str) -> str:
    """The text of a page, the second day in its place."""
    text = (ROOT / "docs" / page).read_text()
    return text.replace(LINK, f"{LINK}\n\n{(ROOT / 'docs/second-day.md').read_text()}\n\n", 1)


def commands(text: str) -> list[Command]:
    """Every command of the page."""
    found: list[Command] = []
    for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        lines = [line[4:] for line in block.splitlines()]
        here = lines[0].startswith("$ ")
        for line in lines:
            if line.startswith("$ ") or not here:
                found.append(Command(line.removeprefix("$ "), [], here))
            else:
                found[-1].shown.append(line)
    return found


def sessions(text: str) -> list[tuple[str, list[str]]]:
    """(command, the lines that it is shown to print) of those that run on a scratch root."""
    return [(command.line, command.shown) for command in commands(text) if command.here]


def files(text: str) -> list[tuple[str, str]]:
    """(name, content) of the files that the page has its reader write."""
    return re.findall(r"^```yaml\n# (\S+)\n((?:.*\n)*?)```$", text, re.MULTILINE)


def shown(lines: list[str]) -> str:
    """A pattern of these lines; a line of three dots stands for any."""
    return "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in lines)
