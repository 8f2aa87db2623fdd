"""Where the files that ship with hosttune are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The shipped folder `templates`, `examples` or `baselines`."""
    shipped = _PACKAGE / "_assets" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name
