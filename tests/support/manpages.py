"""Makes the manual pages of share/man/man1 from the help of the commands: one page for each command, as git does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from hosttune.cli import commands

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "share/man/man1"


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    found = {}
    for context in contexts(click.Context(commands.cli, info_name="hosttune", **commands.cli.context_settings)):
        words = context.command_path.split()
        found["-".join(words) + ".1"] = page(context, " ".join(words))
    return found


def contexts(context: click.Context) -> Iterator[click.Context]:
    """The context of a command and those of the commands below it."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            found = group.resolve_command(context, [name])[1]
            assert found is not None
            yield from contexts(click.Context(found, parent=context, info_name=name))


def page(context: click.Context, name: str) -> str:
    """One page, in the man macros of groff and mandoc (man(7))."""
    command = context.command
    title = name.replace(" ", "-")
    lines = [
        f'.TH {escaped(title.upper())} 1 "" hosttune "hosttune"',
        ".SH NAME",
        f"{escaped(title)} \\- {escaped(command.get_short_help_str(limit=1000))}",
        ".SH SYNOPSIS",
        f".B {escaped(name)}",
        *usage(" ".join(breakable(escaped(piece)) for piece in command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *description(inspect.cleandoc(command.help or "")),
        *options(command, context),
    ]
    if isinstance(command, click.Group):
        lines += listed("COMMANDS", below(command, context))
    lines += listed("EXIT STATUS", exit_codes())
    others = sorted(
        {"hosttune", "hosttune-fleet", title, *(f"{title}-{one}" for one in names(command, context))} - {title}
    )
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{escaped(other)}\\fR(1)" for other in others)]
    return "\n".join(lines) + "\n"


def description(text: str) -> Iterator[str]:
    """The paragraphs of a help text. One that begins with \\b is printed line by line."""
    for number, paragraph in enumerate(text.split("\n\n")):
        exact = paragraph.startswith("\b")
        body = escaped(paragraph.removeprefix("\b").strip("\n"))
        if number:
            yield ".PP"
        yield from (".nf", body, ".fi") if exact else (" ".join(body.split()),)


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """The options, under the headings of the help."""
    formatter = Sections()
    command.format_options(context, formatter)
    for heading, rows in formatter.found.items():
        if heading != "Commands":
            yield from listed(heading.upper(), rows)


class Sections(click.HelpFormatter):
    """Keeps the rows that a command writes, by heading, instead of wrapping them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[tuple[str, str]]] = {}

    def write_heading(self, heading: str) -> None:
        self.found[heading] = []

    def write_dl(self, rows: object, col_max: int = 30, col_spacing: int = 2) -> None:
        assert isinstance(rows, list)
        self.found[next(reversed(self.found))] += rows


def names(command: click.Command, context: click.Context) -> list[str]:
    return command.list_commands(context) if isinstance(command, click.Group) else []


def below(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    """The commands of a group, with their lines."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield name, found.get_short_help_str(limit=1000)


def exit_codes() -> list[tuple[str, str]]:
    """The table of docs/commands.md."""
    text = (ROOT / "docs/commands.md").read_text().split("## Exit codes")[1].split("\n## ")[0]
    return [
        (code, meaning.replace("`", "")) for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    ]


def listed(heading: str, rows: object) -> list[str]:
    """A section with one tagged paragraph for each row."""
    assert isinstance(rows, list | Iterator)
    lines = [f".SH {escaped(heading)}"]
    for tag, text in rows:
        lines += [".TP", f".B {escaped(tag)}", escaped(" ".join(text.split()))]
    return lines


def usage(text: str) -> tuple[str, ...]:
    """Options and arguments. Lines with nothing but a part of a word cannot be adjusted: groff would complain."""
    return (".na", text, ".ad") if "\\:" in text else (text,)


def breakable(word: str) -> str:
    """A word of choices; one that is longer than a line may be broken after each bar (groff(7), \\:)."""
    return word.replace("|", "|\\:") if len(word) > 70 else word


def escaped(text: str) -> str:
    """Text for roff: its own characters escaped, hyphens as they are typed, no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)
