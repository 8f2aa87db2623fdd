"""A setting's value as words, the same wherever one is told: in a plan, before the prompt, in a result, in a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosttune.model.values import format_size


def value_text(value: Any, *, nothing: str) -> str:
    """A value in one piece, whole: text as it is, parts by name; `nothing` for None, which is told from empty."""
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value_text(part, nothing=nothing)}" for name, part in value.items()) or "none"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    return str(value) or '""'


def setting_value(kind: str, value: Any) -> Any:
    """The value of a kind of setting as people read it: the pages of a mount by their size."""
    return f"{format_size(value)} pages" if kind == "mount" and isinstance(value, int) else value
