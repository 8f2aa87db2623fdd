"""docs/apply.md and docs/tutorial.md, whose ninth step is docs/second-day.md: every command is run, on a scratch root,
and prints what the page shows. What only a real machine can do stands below the words "On the machine".

The first hosttune of a line runs here; what it prints and its exit code go to the rest of the line.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from docpages import files, sessions, shown, story

from hosttune.cli import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"apply.md": 14, "tutorial.md": 42}  # at least so many commands


def not_run(text: str) -> list[str]:
    """Indented blocks without a command to run, unless the paragraph above says that they are for the machine."""
    blocks = re.findall(r"((?:^\S.*\n)*)\n((?:^    .*\n)+)", text, re.MULTILINE)
    there = re.compile(r"\*\*[Oo]n the\s+machine\*\*")
    return [block for above, block in blocks if not block.startswith("    $ ") and not there.search(above)]


# A command without a variable: its words, and what the shell does with its streams and its exit code.
HERE = re.compile(r"hosttune ([^|;$>]+?)((?: 2?>| \||;).*)?")


def printed(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Both streams of a command."""
    if here := HERE.fullmatch(command):
        words, rest = here.groups(default="")
        out = io.StringIO()
        err = io.StringIO() if rest else out
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(shlex.split(words))
        (folder / "out").write_text(out.getvalue())
        (folder / "err").write_text(err.getvalue() if rest else "")
        command = f"(cat err >&2; cat out; exit {code}){rest}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_prints_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOSTTUNE_STATE", raising=False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    binary = tmp_path / "bin" / "hosttune"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from hosttune.cli import main; main()" "$@"\n')
    binary.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "HOSTTUNE_STATE")}
    environment["PATH"] = f"{binary.parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    text = story(page)
    for name, file in files(text):
        (tmp_path / name).write_text(file)
    commands = sessions(text)
    assert len(commands) > PAGES[page]
    for command, lines in commands:
        text = printed(command, tmp_path, environment).replace(str(tmp_path), "/root")
        assert re.fullmatch(shown(lines), text), f"$ {command}\n{text}"


def test_the_tutorial_says_of_each_block_that_is_not_run_that_it_needs_the_machine() -> None:
    assert not_run(story("tutorial.md")) == []
    assert not_run("**On the machine**:\n\n    a\n\nHere:\n\n    b\n") == ["    b\n"]


def test_a_page_that_shows_something_else_is_found() -> None:
    assert sessions("    $ a\n    b\n    ...\n\ntext\n\n    no command\n") == [("a", ["b", "..."])]
    assert re.fullmatch(shown(["b", "..."]), "b\nc\nd\n")
    assert not re.fullmatch(shown(["b"]), "c\n")
