"""Tables that the checks use, as TOML with their sources: loaded once, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hosttune.assets import read_table


@cache
def table(name: str) -> Mapping[str, Any]:
    """Return the table with this name (`xids`, `boards`, `limits`)."""
    return read_table(Path(__file__).parent / f"{name}.toml")
