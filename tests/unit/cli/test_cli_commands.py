"""The table of commands: what it says is what the commands themselves say, and it imports none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from hosttune.cli import commands, run

ROOT = Path(__file__).resolve().parents[3]
CHILD = "from hosttune.cli import run; run({!r}); import sys; sys.stderr.write(' '.join(sys.modules))"


def modules_of(*arguments: str) -> set[str]:
    """The modules under `hosttune.cli` that running a command imports."""
    code = CHILD.format(list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT, timeout=60)
    loaded = done.stderr.decode().splitlines()[-1].split()
    return {name.removeprefix("hosttune.cli.") for name in loaded if name.startswith("hosttune.cli.")}


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_command_is_listed_as_its_own_help_begins(name: str) -> None:
    found = commands.command(name)
    listed = commands.cli.commands[name]
    assert isinstance(found, commands.Command)
    assert found.name == name
    assert listed.get_short_help_str(limit=1000) == found.get_short_help_str(limit=1000)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_an_option_of_a_command_is_resolved_through_the_group(name: str) -> None:
    context = click.Context(commands.cli)
    found, real, rest = commands.cli.resolve_command(context, [name, "--help"])
    assert (found, real, rest) == (name, commands.command(name), ["--help"])


def test_a_command_is_imported_when_it_is_called() -> None:
    shared = {"commands", "output", "process"}
    assert modules_of("--version") == shared
    assert modules_of("--help") == shared
    assert modules_of("schema", "host") == shared | {"schema"}
    assert modules_of("plan", "--help") == shared | {"plan", "planned", "config"}


@pytest.mark.parametrize("name", ["plan", "apply"])
def test_grouped_help_lists_every_option_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, group = ([name], commands.cli) if name == "plan" else (["fleet", name], commands.command("fleet"))
    assert isinstance(group, click.Group)
    found = group.resolve_command(click.Context(group), [name])[1]
    assert isinstance(found, commands.Command)
    assert found.groups
    assert run([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.removesuffix(":") in found.groups] == [
        f"{heading}:" for heading in found.groups
    ]
    first = [line.split()[0].strip(",") for line in lines if line.startswith("  -")]
    shown = [option for option in found.params if isinstance(option, click.Option) and not option.hidden]
    assert sorted(first) == sorted(["-h", *(option.opts[0] for option in shown)])


def test_the_help_of_the_group_shows_each_line_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert [line for _, line in commands.COMMANDS.values() if line not in text] == []
