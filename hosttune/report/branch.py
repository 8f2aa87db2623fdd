"""Lines of text in a tree: pure values that the text reports build, and the one place that draws them."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO, TypeAlias

from hosttune.model.text import printable
from hosttune.model.values import Value

if TYPE_CHECKING:
    from rich.console import Console

    Page: TypeAlias = "Console | Pipe"

STYLES = {"plain": "", "strong": "bold", "dim": "dim", "warn": "yellow", "error": "bold red"}


PIPE_WIDTH = 110  # columns of text that does not go to a terminal
NARROW = 100  # columns: longer lines are harder to read than wrapped ones
FACT = 45  # characters: a longer part between commas is prose


class Pipe:
    """What a report is printed on that goes to no terminal: lines without colours."""

    def __init__(self, encoding: str | None) -> None:
        self.width = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdecimal() else PIPE_WIDTH
        self.ascii_only = not (encoding or "utf-8").lower().startswith("utf")
        self.lines: list[str] = []


def page_text(output: TextIO | None, print_page: Callable[[Page], None]) -> str:
    """Return what is printed on a page with the encoding, width and colours of `output`. None: a pipe.

    Only a terminal needs rich, which respects NO_COLOR and FORCE_COLOR.
    """
    terminal = output is not None and output.isatty()
    if not terminal and "FORCE_COLOR" not in os.environ:
        pipe = Pipe(output.encoding if output else None)
        print_page(pipe)
        return "".join(f"{line}\n" for line in pipe.lines)
    from rich.console import Console

    sheet = io.TextIOWrapper(io.BytesIO(), encoding=(output and output.encoding) or "utf-8")
    width = None if terminal or "COLUMNS" in os.environ else PIPE_WIDTH
    page = Console(file=sheet, force_terminal=True, width=width, highlight=False, markup=False, emoji=False)
    with page.capture() as captured:
        print_page(page)
    return captured.get()


class Branch(Value, frozen=True, kw_only=True):
    """A line and the lines below it. `style` is a key of STYLES; colour only repeats what the text says."""

    text: str
    style: str = "plain"
    children: tuple[Branch, ...] = ()


def draw(branches: Iterable[Branch], console: Page) -> None:
    """Print each branch as a tree. Long lines wrap, preferably after a comma, and continue below their own text."""
    for branch in branches:
        _draw(branch, "", "", console)


def _draw(branch: Branch, lead: str, below: str, console: Page) -> None:
    ascii_only = console.ascii_only if isinstance(console, Pipe) else console.options.ascii_only
    fork, end, bar = ("|-- ", "`-- ", "|   ") if ascii_only else ("├── ", "└── ", "│   ")
    first, *rest = wrap(branch.text, console.width - len(lead) - len(bar))
    _print_branch(lead, first, branch.style, console)
    for line in rest:
        _print_branch(below + (bar if branch.children else "    "), line, branch.style, console)
    for number, child in enumerate(branch.children, 1):
        final = number == len(branch.children)
        _draw(child, below + (end if final else fork), below + ("    " if final else bar), console)


def _print_branch(lead: str, text: str, style: str, console: Page) -> None:
    if isinstance(console, Pipe):
        console.lines.append(lead + printable(text))
        return
    from rich.text import Text

    words = Text.assemble((lead, "dim"), (printable(text), STYLES[style]))
    console.print(words, highlight=False, soft_wrap=True)


def draw_rows(rows: Iterable[tuple[str, ...]], console: Page, *, indent: int = 2) -> None:
    """Print rows as aligned columns. The last column wraps at the console's width, below itself."""
    rows = tuple(rows)
    columns = max((len(row) for row in rows), default=1) - 1
    widths = [max(len(row[n]) for row in rows if len(row) > n + 1) for n in range(columns)]
    for row in rows:
        lead = " " * indent + "".join(f"{cell:{width}}  " for cell, width in zip(row[:-1], widths, strict=False))
        first, *rest = wrap(row[-1], console.width - len(lead))
        say(f"{lead}{first}".rstrip(), console)
        for line in rest:
            say(" " * len(lead) + line, console)


def wrap(text: str, width: int) -> list[str]:
    """Return lines of at most `width` columns (20 at least): facts are split at their commas, prose between words,
    a list that is longer than a line after its commas.
    """
    width = max(width, 20)
    lines = [""]
    for part in text.replace(", ", ",\0 ").split("\0 "):
        joined = f"{lines[-1]} {part}" if lines[-1] else part
        if len(joined) <= width:
            lines[-1] = joined
        elif len(part) <= min(width, FACT):
            lines.append(part)
        else:
            # A text with spaces inside lists that are longer than a line, after commas: no number is cut in two.
            words: list[str] = []
            for word in joined.split(" "):
                if len(word) <= width:
                    words.append(word)
                    continue
                line, *parts = word.replace(",", ",\0").split("\0")
                for part_of_word in parts:
                    if len(line) + len(part_of_word) > width:
                        words.append(line)
                        line = part_of_word
                    else:
                        line += part_of_word
                words.append(line)
            lines[-1:] = textwrap.wrap(" ".join(words), width, break_on_hyphens=False)
    return lines


def say(text: str, console: Page, style: str = "plain") -> None:
    """Print one line in a style unchanged, without markup and without wrapping."""
    if isinstance(console, Pipe):
        console.lines.append(printable(text))
        return
    from rich.text import Text

    console.print(Text(printable(text), style=STYLES[style]), highlight=False, soft_wrap=True)


def prose(text: str, indent: int, console: Page, style: str = "plain", *, hang: int = 0) -> None:
    """Print a paragraph, wrapped between words within the console and NARROW. A longer word (a path) is broken."""
    width = min(console.width, NARROW)
    lead = " " * indent
    for line in textwrap.wrap(
        printable(text),
        max(width, 60),
        initial_indent=lead,
        subsequent_indent=lead + " " * hang,
        break_on_hyphens=False,
    ):
        say(line, console, style)
