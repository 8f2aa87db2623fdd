"""Where the files shipped with hosttune are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the shipped folder `templates`, `examples` or `baselines`."""
    shipped = _PACKAGE / "_assets" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def templates(name: str = "", *, autoescape: bool = True, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Return jinja2 for the shipped templates, or those in the folder `name` of them. An unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder("templates") / name),
        undefined=StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )


def read_table(path: Path) -> Mapping[str, Any]:
    """Read a TOML table that is shipped beside the code."""
    import tomllib

    with path.open("rb") as file:
        return tomllib.load(file)
