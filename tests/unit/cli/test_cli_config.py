"""The configuration file: defaults of options, overridden by them; what is wrong in it is named, and nothing runs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import click
import pytest

from hosttune.cli import commands, config, run

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs/configuration.md").read_text()
PLAN = ("--gpus", "1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv(config.VARIABLE, str(path))
    return path


def command(*names: str) -> click.Command:
    found: click.Command = commands.cli
    for name in names:
        assert isinstance(found, click.Group)
        resolved = found.resolve_command(click.Context(found), [name])[1]
        assert resolved is not None
        found = resolved
    return found


def asked(names: str, *words: str) -> dict[str, object]:
    """The options of a command as it gets them."""
    words_of = ["hosttune", *names.split()]
    parent = click.Context(commands.cli, info_name="hosttune", **commands.cli.context_settings)
    for name in words_of[1:-1]:
        parent = click.Context(command(name), parent=parent, info_name=name)
    return command(*words_of[1:]).make_context(words_of[-1], list(words), parent=parent).params


def test_every_key_is_a_default_and_its_option_overrides_it(file: Path) -> None:
    """With the example of the page, which names every key."""
    text = re.search(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert text is not None
    example = tomllib.loads(text[1])
    assert {table: set(keys) for table, keys in example.items()} == {
        one: set(config.TABLES[one]) for one in config.TABLES
    }
    file.write_text(text[1])
    for table, names, words in (("plan", "plan", PLAN), ("fleet", "fleet validate", ())):
        found = asked(names, *words)
        for key, value in example[table].items():
            param = config.option(command(*names.split()), key)
            assert param is not None
            name = param.name or ""
            assert found[name] == (tuple(value) if isinstance(value, list) else value)
            other = {"profile": "none", "smt": "threads", "hugepages": "none", "firmware": "bios"}.get(key, "7")
            overridden = asked(names, *words, f"--{key}", other)[name]
            assert overridden in (other, (other,), 7)


@pytest.mark.parametrize(
    "words", ["--root @example", "--root=@example", "--host h.json", "-f i.yaml", "-fi.yaml", "--check-xml g.xml"]
)
def test_what_is_the_same_everywhere_does_not_read_it(file: Path, words: str) -> None:
    file.write_text("broken [")
    assert asked("plan", *words.split())["profile"] is None


def test_commands_that_change_a_machine_do_not_read_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("broken [")
    assert run(["status", "--root", "@example"]) == 1  # a capture keeps no state
    for words in (["validate", "--list"], ["plan", "--help"], ["fleet", "--help"]):
        assert run(words) == 0
    assert capsys.readouterr().err == ""


def test_the_inventory_of_what_changes_hosts_must_be_given(file: Path) -> None:
    file.write_text('[fleet]\ninventory = ["a"]\nforks = 3\n')
    assert asked("fleet plan")["inventories"] == ("a",)
    for verb in ("apply", "revert"):
        assert asked(f"fleet {verb}", "-i", "b")["inventories"] == ("b",)
        assert asked(f"fleet {verb}", "-i", "b")["forks"] == 3
        with pytest.raises(click.MissingParameter):
            asked(f"fleet {verb}")
    assert asked("fleet report")["inventories"] == ()


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("broken [", "not valid TOML: ", ""),
        ("a = 1\n[plan]\nsmt = = 3", "line 3", ""),
        ("[apply]\nyes = true", "unknown key 'apply'", ""),
        ("[plan]\nyes = true", "unknown key 'yes'", ": plan.yes"),
        ("[fleet]\nreboot = true", "unknown key 'reboot'", ": fleet.reboot"),
        ("plan = 3", "plan is not a table", ""),
        ("[plan]\nsmt = 3", "3 is not a text", ": plan.smt"),
        ("[plan]\nsmt = ''", "an empty value", ": plan.smt"),
        ("[plan]\nsmt = 'fast'", "'fast' is not one of", ": plan.smt"),
        ("[plan]\nnetwork = 'default'", "'default' is not a list of texts", ": plan.network"),
        ("[fleet]\nforks = true", "True is not a whole number", ": fleet.forks"),
        ("x = " + "[" * 60000, "not valid TOML: ", ""),
        ("#" * (65 << 10), "larger than 64 KiB", ""),
    ],
)
def test_what_is_wrong_is_named(
    file: Path, text: str, what: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert run(["plan", *PLAN]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert what in lines[0]
    assert lines[1] == f"where: {file}{where}"
    assert len(lines) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses the files of others")
@pytest.mark.parametrize(("owner", "mode"), [(1000, 0o644), (0, 0o666), (0, 0o664)])
def test_root_refuses_a_file_that_others_can_change(
    file: Path, owner: int, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("[plan]\n")
    os.chown(file, owner, 0)
    file.chmod(mode)
    assert run(["plan", *PLAN]) == 2
    assert capsys.readouterr().err.startswith("error: another user can change this file")


def test_a_missing_file_is_an_error_only_if_it_was_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *PLAN]) == 2
    assert capsys.readouterr().err.startswith("error: no such file")
    assert config.read(str(file), needed=False) == {}
    monkeypatch.setenv(config.VARIABLE, "")
    assert asked("plan", *PLAN)["smt"] is None
