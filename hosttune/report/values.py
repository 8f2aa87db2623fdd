"""A setting's value as words, the same wherever one is told: in a plan, before the prompt, in a result, in a reason."""

from __future__ import annotations

from typing import Any

from hosttune.model.values import format_size


def setting_value(kind: str, value: Any) -> Any:
    """The value of a kind of setting as people read it: the pages of a mount by their size."""
    return f"{format_size(value)} pages" if kind == "mount" and isinstance(value, int) else value
