"""Where the files shipped with hosttune are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = os.path.dirname(os.path.realpath(__file__))


def folder(name: str) -> str:
    """Return the shipped folder `templates`, `examples` or `baselines`."""
    shipped = f"{_PACKAGE}/_assets/{name}"
    return shipped if os.path.isdir(shipped) else f"{os.path.dirname(_PACKAGE)}/{name}"


def shipped_names(name: str) -> list[str]:
    """Return the names of the files in a shipped folder, sorted."""
    return sorted(os.listdir(folder(name)))


def shipped_text(room: str, name: str) -> str:
    """Return the text of a file in a shipped folder."""
    with open(f"{folder(room)}/{name}", encoding="utf-8") as file:
        return file.read()


def templates(name: str = "", *, autoescape: bool = True, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Return jinja2 for the shipped templates, or those in the folder `name` of them. An unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(os.path.join(folder("templates"), name)),
        undefined=StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )


def read_table(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read a TOML table that is shipped beside the code."""
    import tomllib

    with open(path, "rb") as file:
        return tomllib.load(file)
