"""Lines of text that hang in a tree: pure values that the text reports build, and the one place that draws them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hosttune.model.values import CpuSet, Value

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

STYLES = {"plain": "", "strong": "bold", "dim": "dim", "warn": "yellow", "error": "bold red"}


LONG_LIST = 32  # characters of a CPU list that fit a line without a second thought
PLACES = 4  # names given of a long list before "and N more"


class Branch(Value, frozen=True, kw_only=True):
    """A line and what hangs below it. `style` is a key of STYLES; colour only repeats what the words say."""

    text: str
    style: str = "plain"
    children: tuple[Branch, ...] = ()


def draw(branches: Iterable[Branch], console: Console) -> None:
    """Print each branch as a tree of its own."""
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, children: tuple[Branch, ...]) -> None:
        for child in children:
            grow(tree.add(Text(child.text, style=STYLES[child.style])), child.children)

    for branch in branches:
        tree = Tree(Text(branch.text, style=STYLES[branch.style]), guide_style="dim")
        grow(tree, branch.children)
        console.print(tree, highlight=False)


def draw_rows(rows: Iterable[tuple[str, ...]], console: Console, *, indent: int = 2) -> None:
    """Print rows as aligned columns; the last column wraps at the console's width, below itself."""
    rows = tuple(rows)
    widths = [
        max((len(row[n]) for row in rows), default=0) for n in range(max((len(row) for row in rows), default=1) - 1)
    ]
    for row in rows:
        lead = " " * indent + "".join(f"{cell:{width}}  " for cell, width in zip(row, widths, strict=False))
        lines = textwrap.wrap(row[-1], max(console.width - len(lead), 20), break_on_hyphens=False) or [""]
        say(f"{lead}{lines[0]}".rstrip(), console)
        for line in lines[1:]:
            say(" " * len(lead) + line, console)


def say(text: str, console: Console, style: str = "plain") -> None:
    """Print one line in a style, wrapped at the console's width, without markup."""
    from rich.text import Text

    console.print(Text(text, style=STYLES[style]), highlight=False)


def some(names: Iterable[str], most: int = PLACES) -> str:
    """The first few of many names, and how many more there are."""
    names = tuple(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def short_list(ids: Iterable[int]) -> str:
    """CPU ids for people: the kernel's list format, and "0,2..222" for even steps, where that list would be long."""
    plain = str(CpuSet(ids))
    if len(plain) <= LONG_LIST:
        return plain
    ordered = sorted(set(CpuSet.parse(plain)))
    runs: list[list[int]] = []
    for cpu in ordered:
        if runs and (len(runs[-1]) < 2 or cpu - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(_run(run) for run in runs)


def _run(run: list[int]) -> str:
    if len(run) < 3:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}" if run[1] == run[0] + 1 else f"{run[0]},{run[1]}..{run[-1]}"


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 switch", "4 switches"."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"
