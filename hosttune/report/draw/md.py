"""Any report as CommonMark with tables, for a ticket or a pull request. Every text of a document is escaped."""

from __future__ import annotations

from hosttune.report.blocks import Lines, Report, Table, cut
from hosttune.report.validation_md import escaped, table


def markdown(report: Report) -> str:
    """Return a report, ending in a newline. The same report gives the same bytes."""
    parts = [f"# {escaped(report.headline)}", *map(escaped, report.occasion)]
    parts += [f"**Stopped:** {escaped(report.stopped)}"] if report.stopped else []
    for block in report.of("md"):
        parts.append(f"## {block.heading}")
        more = ""
        if isinstance(block, Lines):
            lines, more = cut(block.parts, "md")
            parts.append("\n".join(f"- {escaped(line)}" for line in lines))
        elif isinstance(block, Table):
            rows, more = cut(block.rows, "md")
            parts.append(table(block.columns, rows))
        parts += [more] if more else []
    return "\n\n".join(parts) + "\n"
