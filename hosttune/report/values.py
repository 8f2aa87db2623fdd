"""A setting's value in words, the same in all places: in a plan, in the prompt, in a result, in a reason."""

from __future__ import annotations

from typing import Any

from hosttune.model.values import format_size


def setting_value(kind: str, value: Any) -> Any:
    """Return a setting's value as people read it: of a mount, the pages by their size."""
    return f"{format_size(value)} pages" if kind == "mount" and isinstance(value, int) else value
