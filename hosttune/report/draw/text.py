"""Any report as text for a terminal or a pipe: lines of at most 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosttune.report.blocks import Lines, Report, Table, cut
from hosttune.report.branch import draw_rows, say
from hosttune.report.validation_text import prose

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"fail": "error", "unknown": "warn", "warn": "warn"}


def draw(report: Report, console: Console) -> None:
    """Print a report."""
    prose(report.headline, 0, console, _STYLES.get(report.verdict, "strong"))
    for line in report.occasion:
        prose(line, 0, console, "dim")
    if report.stopped:
        prose(f"stopped: {report.stopped}", 0, console, "error", hang=2)
    for block in report.of("text"):
        say("", console)
        say(block.heading, console, "strong")
        more = ""
        if isinstance(block, Lines):
            lines, more = cut(block.parts, "text")
            for line in lines:
                prose(line, 2, console, block.style, hang=2)
        elif isinstance(block, Table):
            rows, more = cut(block.rows, "text")
            draw_rows((block.columns, *rows), console)
        if more:
            prose(more, 2, console)
