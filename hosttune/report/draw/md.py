"""Any report as CommonMark with tables, for a ticket or a pull request. Every text of a document is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hosttune.model.listing import some
from hosttune.model.text import printable
from hosttune.model.validation import ACCEPTED, CheckResult
from hosttune.report.blocks import AnyBlock, Entries, Exact, Facts, Findings, Lines, Report, Table, cut, told
from hosttune.report.draw.text import words
from hosttune.report.outcomes import SIGNS, WORDS, subjects_by_check

MANY = 16  # subjects named in a cell before "and N more"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")
_BLOCK = re.compile(r"^([0-9]*)([-+=.)])")  # characters that would begin a list or underline a heading


def markdown(report: Report) -> str:
    """Return a report, ending in a newline. The same report gives the same bytes."""
    sign = f"{SIGNS[report.verdict]} " if report.word else ""
    parts = [f"# {sign}{escaped(report.title)}", *map(escaped, (report.meaning,) if report.meaning else ())]
    parts += map(escaped, report.occasion)
    parts += [f"**Stopped:** {escaped(report.stopped)}"] if report.stopped else []
    for section in report.sections("md"):
        if not isinstance(section.blocks[0], Findings):  # these have a heading for each outcome
            parts += [f"## {escaped(section.heading)}", *([escaped(section.lead)] if section.lead else [])]
        for block in section.blocks:
            if block.heading and block.heading != section.heading:
                parts.append(f"### {escaped(block.heading)}")
            shown, more = cut(block, block.parts, "md")
            parts += [_block(block, shown), *([more] if more else [])]
    parts += [f"**{escaped(report.after)}**"] if report.after else []
    return "\n\n".join(parts) + "\n"


def _block(block: AnyBlock, parts: Any) -> str:
    if isinstance(block, Lines):
        return "\n".join(f"{f'{n}.' if block.numbered else '-'} {escaped(line)}" for n, line in enumerate(parts, 1))
    if isinstance(block, Table):
        used = block.used
        names = [block.columns[n] for n in used]
        return table(names, ([words(row[n]) if n < len(row) else "" for n in used] for row in parts))
    if isinstance(block, Exact):
        return "\n".join(f"    {printable(line)}" for line in parts)
    if isinstance(block, Facts):
        return table(("fact", "value"), parts)
    if isinstance(block, Findings):
        return "\n\n".join(text for outcome, members in block.sections for text in _findings(block, outcome, members))
    assert isinstance(block, Entries)
    lines = []
    for number, entry in enumerate(parts, 1):
        mark = f" ({escaped(entry.mark.signed)})" if entry.mark else ""
        lead = f"{number}." if block.numbered else "-"
        lines.append(f"{lead} **{escaped(entry.title)}**{mark}{f': {escaped(entry.note)}' if entry.note else ''}")
        facts = ((f"**{escaped(label)}**: " if label else "", told(text, "md")) for label, text in entry.facts)
        lines += [f"   - {label}{escaped(text)}" for label, text in facts]
    return "\n".join(lines)


def _findings(block: Findings, outcome: str, members: Sequence[CheckResult]) -> Iterator[str]:
    yield f"## {SIGNS[outcome]} {WORDS[outcome].capitalize()}"
    alike = block.groups(members)
    if outcome == "pass":
        yield table(("check", "subject"), ((check, some(n, MANY)) for check, n in subjects_by_check(alike).items()))
    elif outcome == "skip":
        yield table(
            ("check", "subject", "why"), ((group.check, some(group.subjects, MANY), group.actual) for group in alike)
        )
    else:
        labels = [label for label, _ in alike[0].facts if label != ACCEPTED or any(group.accepted for group in alike)]
        rows = (
            [group.check, some(group.subjects, MANY), *(dict(group.facts)[label] for label in labels)]
            for group in alike
        )
        yield table(("check", "subject", *labels), rows)


def escaped(text: str | None) -> str:
    """Return one line of text that has no meaning in Markdown or HTML; "–" for an empty text.

    A web address stays as it is: programs that make a link of it show where it leads.
    """
    if not text:
        return "–"
    line = _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))
    return _BLOCK.sub(r"\1\\\2", line)


def table(names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Return a table with every cell escaped."""
    lines = [
        [escaped(name) if name else "" for name in names],
        ["---"] * len(names),
        *([escaped(cell) for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
