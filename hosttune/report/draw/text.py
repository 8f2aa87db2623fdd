"""Any report as text for a terminal or a pipe: lines of at most 100 columns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hosttune.model.listing import some
from hosttune.model.text import count, printable
from hosttune.report.blocks import AnyBlock, Cell, Entries, Exact, Facts, Findings, Lines, Report, Table, cut, told
from hosttune.report.branch import NARROW, page_text, prose, say, wrap
from hosttune.report.outcomes import SIGNS, WORDS, Mark, subjects_by_check

if TYPE_CHECKING:
    from hosttune.report.branch import Page

STYLES = {"fail": "error", "unknown": "warn", "warn": "warn"}
MANY = 12  # subjects named before "and N more"; other formats name all
WIDEST = 40  # characters of a first column
_LEAST = 30  # columns that a cell is wrapped in; with less room it goes below its row


def printed(report: Report) -> str:
    """Return a report as standard output shows it: with its width and colours."""
    return page_text(sys.stdout, lambda page: draw(report, page))


def draw(report: Report, console: Page) -> None:
    """Print a report."""
    prose(report.title, 0, console, STYLES.get(report.verdict, "strong"))
    if report.meaning:
        prose(report.meaning, 0, console)
    for line in report.occasion:
        prose(line, 0, console, "dim")
    if report.stopped:
        prose(f"stopped: {report.stopped}", 0, console, "error", hang=2)
    for section in report.sections("text"):
        if not isinstance(section.blocks[0], Findings):  # these have a heading for each outcome
            say("", console)
            prose(section.heading, 0, console, "strong")
            if section.lead:
                prose(section.lead, 0, console, "dim")
        for block in section.blocks:
            indent = 2
            if block.heading and block.heading != section.heading:
                prose(block.heading, 2, console, "strong")
                indent = 4
            parts, more = cut(block, block.parts, "text")
            _block(block, parts, indent, console)
            if more:
                prose(more, indent, console)
    if report.after:
        say("", console)
        prose(report.after, 2, console, hang=2)


def _block(block: AnyBlock, parts: Any, indent: int, console: Page) -> None:
    if isinstance(block, Lines):
        for number, line in enumerate(parts, 1):
            prose(f"{number}. {line}" if block.numbered else line, indent, console, block.style, hang=2)
    elif isinstance(block, Table):
        _table(block, parts, indent, console)
    elif isinstance(block, Facts):
        width = min(max((len(name) for name, _ in parts), default=0), WIDEST)
        for name, value in parts:
            prose(f"{name:{width}}  {value}", indent, console, hang=width + 2)
    elif isinstance(block, Exact):
        for line in parts:
            exact = (mark if mark.isprintable() else repr(mark)[1:-1] for mark in line)
            say(" " * indent + "".join(exact), console)
    elif isinstance(block, Findings):
        _findings(block, console)
    elif isinstance(block, Entries):
        _entries(block, parts, indent, console)


def _entries(block: Entries, parts: Any, indent: int, console: Page) -> None:
    width = max((len(entry.mark.word) for entry in parts if entry.mark), default=0)
    for number, entry in enumerate(parts, 1):
        word = entry.mark.word if entry.mark else ""
        about = ": ".join(part for part in (word, entry.note) if part)
        title = f"{number}. {entry.title}{f' ({about})' if about else ''}"
        if not block.numbered:
            title = f"{word:{width}}  {entry.title}" if width else entry.title
        style = STYLES.get(entry.mark.outcome, "plain") if entry.mark else "plain"
        hang = width + 2 if width and not block.numbered else 3
        prose(title, indent, console, style, hang=hang)
        for label, text in entry.facts:
            said = told(text, "text")
            prose(f"{label}: {said}" if label else said, indent + hang + 1, console, hang=2)


def _findings(block: Findings, console: Page) -> None:
    """Print what did not pass in full, passed checks as one line each, and checks that do not apply with the reason."""
    for outcome, members in block.sections:
        say("", console)
        say(f"{WORDS[outcome]}: {len(members)}", console, "strong")
        alike = block.groups(members)
        if outcome == "pass":
            subjects = subjects_by_check(alike)
            width = min(max(map(len, subjects)), WIDEST)
            for check, names in subjects.items():
                who = names[0] if len(names) == 1 else count(len(names), "subject")
                prose(f"{SIGNS[outcome]} {check:{width}}  {who}", 2, console, hang=width + 4)
            continue
        for group in alike:
            if outcome == "skip":
                of = some(group.subjects) if block.each else count(len(group.subjects), "subject")
                who = "" if group.subjects == ("host",) else f" ({of})"
                why = group.actual or "no reason given"
                said = f"{group.check}{who}: {why}" if block.each else f"{why}: {group.check}{who}"
                prose(f"{SIGNS[outcome]} {said}", 2, console, "dim", hang=2)
                continue
            prose(
                f"{SIGNS[outcome]} {group.check}: {some(group.subjects, MANY)}",
                2,
                console,
                STYLES.get(outcome, "plain"),
                hang=2,
            )
            for label, text in group.facts:
                if text:
                    prose(f"{label:8}  {text}", 4, console, "dim" if label == "source" else "plain", hang=10)


def words(cell: Cell) -> str:
    """Return a cell as text."""
    return cell.signed if isinstance(cell, Mark) else printable(cell)


def _table(block: Table, parts: Any, indent: int, console: Page) -> None:
    """Print aligned columns. The last that fits wraps below itself; those behind it go below the row, with names."""
    used = block.used
    names = [block.columns[n] for n in used]
    rows = [[row[n] if n < len(row) else "" for n in used] for row in parts]
    widths = [max(len(words(row[n])) for row in (names, *rows)) for n in range(len(names))]
    room = min(console.width, NARROW) - indent
    kept = 1
    while kept < len(widths) and sum(widths[:kept]) + 2 * kept + min(widths[kept], _LEAST) <= room:
        kept += 1
    for number, row in enumerate((names, *rows)):
        lead = " " * indent
        for n in range(kept - 1):
            side = ">" if block.styles.get(names[n]) == "num" else "<"
            lead += f"{words(row[n]):{side}{widths[n]}}  "
        style = next(
            (STYLES[cell.outcome] for cell in row if isinstance(cell, Mark) and cell.outcome in STYLES), "plain"
        )
        first, *rest = wrap(words(row[kept - 1]), room + indent - len(lead))
        say(f"{lead}{first}".rstrip(), console, style if number else "dim")
        for line in rest:
            say(" " * len(lead) + line, console, style)
        if number:
            for name, cell in zip(names[kept:], row[kept:], strict=True):
                if cell:
                    prose(f"{name}: {words(cell)}", indent + 4, console, hang=2)
