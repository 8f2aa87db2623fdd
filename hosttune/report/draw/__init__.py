"""Reports in the formats that people read: one module a format, which draws any `Report`."""

from __future__ import annotations

from importlib import import_module

from hosttune.report.blocks import Report

DRAWERS = {"text": "printed", "md": "markdown", "html": "page", "junit": "junit"}  # format and module -> its function


def drawn(report: Report, output: str) -> str:
    """Return a report in a format of DRAWERS, ending in a newline."""
    text: str = getattr(import_module(f"{__name__}.{output}"), DRAWERS[output])(report)
    return text
