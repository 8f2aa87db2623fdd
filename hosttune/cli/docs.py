"""`hosttune docs`: the pages of the documentation, which are in the package, by the paths that messages have."""

from __future__ import annotations

import os
import re

import click

from hosttune.assets import folder, shipped_text
from hosttune.cli.commands import Command
from hosttune.cli.output import emit
from hosttune.errors import BadInput
from hosttune.model.hints import did_you_mean


@click.command(cls=Command)
@click.argument("page", metavar="[PAGE]", default="README")
def docs(page: str) -> None:
    """Print a page of the documentation, or the index of its pages.

    PAGE is a name of the index, or a path as messages have it; one with #SECTION prints that section.

    \b
    hosttune docs tutorial
    hosttune docs docs/apply.md#exit-codes
    """
    name, _, wanted = page.removeprefix("docs/").partition("#")
    name = name.removesuffix(".md")
    pages = names()
    if name not in pages:
        hint = did_you_mean(name, pages, "hosttune docs lists the pages")
        raise BadInput(f"no page {name!r}", where="command line", hint=hint)
    text = shipped_text("docs", f"{name}.md")
    parts = {"": text, **sections(text)}
    if wanted not in parts:
        hint = did_you_mean(wanted, parts, f"hosttune docs {name} prints the whole page")
        raise BadInput(f"no section {wanted!r} in {name}", where="command line", hint=hint)
    emit(parts[wanted])


def names() -> list[str]:
    """Return the names of all pages, those in folders as FOLDER/NAME."""
    top = folder("docs")
    paths = (os.path.relpath(f"{where}/{file}", top) for where, _, files in os.walk(top) for file in files)
    return sorted(path.removesuffix(".md") for path in paths if path.endswith(".md"))


def sections(text: str) -> dict[str, str]:
    """Return the sections of a page by their anchors (as GitHub makes them), each up to the next of its level."""
    heads: list[tuple[int, int, str]] = []
    at, code = 0, False
    for line in text.splitlines(keepends=True):
        code ^= line.startswith("```")
        if line.startswith("#") and not code:
            heads.append((at, len(line) - len(line.lstrip("#")), line.strip("# \n")))
        at += len(line)
    parts = {}
    for number, (begin, level, title) in enumerate(heads):
        end = next((at for at, other, _ in heads[number + 1 :] if other <= level), len(text))
        anchor = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", title)).lower().replace(" ", "-")
        parts[anchor] = text[begin:end].rstrip()
    return parts
