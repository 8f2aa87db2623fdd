"""The templates of HTML pages: every value of a document is printable and escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hosttune.assets import folder
from hosttune.report.branch import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def page_environment() -> Environment:
    """Return a new environment for the templates of `templates/report`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder("templates") / "report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Return a printed value without control characters. None would be a defect of the program."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return value
