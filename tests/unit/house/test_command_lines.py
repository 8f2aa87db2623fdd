"""Every `hosttune …` in any text of the product parses: messages, hints, pages, runbooks, playbooks, alerts, manual."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from trees import tree_of

from hosttune.cli.commands import COMMANDS, cli, command

ROOT = Path(__file__).resolve().parents[3]
TEXTS = (
    "README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**/*.md", "playbooks/**/*",
    "hosttune/**/*", "templates/**/*", "monitoring/**/*", "inventories/**/*", "examples/**/*", "baselines/**/*",
)  # fmt: skip
KINDS = {".py", ".md", ".yml", ".yaml", ".toml", ".j2", ".sh", ".service", ".timer", ".json", ".html", ".conf"}
_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'`;|&<>(){}“”,]+)"""
_COMMAND = re.compile(rf"(?:(?<![\w./@:=+-])|(?<=bin/))hosttune((?: {_WORD})+)")
_NAMED = re.compile("hosttune[ \"']")  # the word, or the end of a literal that goes on in another one
_VALUE = re.compile(r"\{\{[^}]*\}\}|\{\w*\}")  # of a template
_SPAN = re.compile(r"`[^`]*`|\\\n")  # where a line may be broken within a command


def texts() -> Iterator[tuple[str, str]]:
    """(where, text) of all that people can read: whole files, of Python each literal with X for its values."""
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            if path.suffix not in KINDS or not path.is_file():
                continue
            name = str(path.relative_to(ROOT))
            text = path.read_text()
            if path.suffix != ".py":
                yield name, text.replace("\\", "") if path.name == "rules.md" else text  # made: each mark is escaped
                continue
            for line, literal in literals(tree_of(path)) if _NAMED.search(text) else ():
                yield f"{name}:{line}", literal


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each literal, in no order; a value of an f-string is X."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        todo.extend(ast.iter_child_nodes(node))


def commands(text: str) -> Iterator[list[str]]:
    """The words after `hosttune` of each command in a text; the sentence may go on behind them."""
    if "hosttune" not in text:  # nearly all literals
        return
    whole = _SPAN.sub(lambda span: " ".join(span[0].strip("\\").split()), _VALUE.sub("X", text))
    for match in _COMMAND.finditer(whole):
        words = shlex.split(match[1])
        ends = [n for n, word in enumerate(words, 1) if word[-1] in ".:!?" and word != "..."]
        words = words[: ends[0]] if ends else words
        words[-1] = words[-1].rstrip(".:!?")
        if words[0] in COMMANDS:
            yield words


def fault(words: list[str]) -> str | None:
    """What is wrong with a command line; None if it parses. Words of the sentence after it are arguments."""
    name, *rest = words
    asked = command(name)
    # Below the program itself: a command keeps the names of its help option, which are inherited.
    context = click.Context(
        asked, parent=click.Context(cli, info_name="hosttune", **cli.context_settings), info_name=name
    )
    if isinstance(asked, click.Group) and rest and (inner := asked.get_command(context, rest[0])) is not None:
        asked, context, rest = inner, click.Context(inner, parent=context, info_name=rest[0]), rest[1:]
    parser = asked.make_parser(context)
    parser.allow_interspersed_args = True
    try:
        parsed, _, _ = parser.parse_args(list(rest))
    except click.UsageError as error:
        return error.format_message()
    for option in asked.params:
        value = parsed.get(option.name or "")
        known = option.type.choices if isinstance(option.type, click.Choice) else (value,)
        if isinstance(option, click.Option) and isinstance(value, str) and value not in known and not value.isupper():
            return f"{value} is no value of {option.opts[0]}"
    return None


def test_every_command_line_parses() -> None:
    wrong, seen = [], 0
    for where, text in texts():
        for words in commands(text):
            seen += 1
            if (why := fault(words)) is not None:
                wrong.append(f"{where}: hosttune {' '.join(words)}: {why}")
    assert not wrong, "\n".join(wrong)
    assert seen > 900


def test_an_option_that_is_not_there_is_found() -> None:
    assert [*commands("see `hosttune plan --adpot NAME`, or hosttune revert --guest bob: then")] == [
        ["plan", "--adpot", "NAME"], ["revert", "--guest", "bob"]
    ]  # fmt: skip
    assert "--adpot" in (fault(["plan", "--adpot", "NAME"]) or "")
    assert fault(["plan", "--adopt", "NAME", "plans", "it", "anew"]) is None
    assert "pdf" in (fault(["plan", "--gpus", "1", "-o", "pdf"]) or "")
    assert "requires" in (fault(["apply", "--disrupt"]) or "")
