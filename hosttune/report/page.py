"""What the HTML pages have in common: their templates, and the digests for their content security policies."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from hosttune.assets import templates
from hosttune.model.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def page_templates(**names: Any) -> Environment:
    """Return jinja2 for the templates of pages, which can use these names."""
    environment = templates("report", finalize=_shown)
    environment.globals.update(names)
    return environment


def _shown(value: Any) -> Any:
    """Return a printed value: None as "unknown", which it means in every document, and no control characters."""
    if value is None:
        return "unknown"
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def digest(text: str) -> str:
    """Return the SHA-256 of a script or a style as a content security policy has it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
