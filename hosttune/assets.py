"""Where the files shipped with hosttune are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the shipped folder `templates`, `examples` or `baselines`."""
    shipped = _PACKAGE / "_assets" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def read_table(path: Path) -> Mapping[str, Any]:
    """Read a TOML table that is shipped beside the code."""
    import tomllib

    with path.open("rb") as file:
        return tomllib.load(file)
