"""The validation document as text: the verdict, then the problems with their remedies, then the measurements."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hosttune.model.listing import some
from hosttune.model.validation import Validation
from hosttune.report.branch import count, printable, say
from hosttune.report.changes import Changes, changes, verdict_words
from hosttune.report.measures import Measure, by_metric, figure_rows, measures
from hosttune.report.outcomes import SIGNS, WORDS, Group, groups, headline, meaning, occasion, subjects_by_check

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 100  # columns: longer lines are harder to read than wrapped ones
MANY = 12  # subjects named before "and N more"; the other formats name all
WIDEST = 40  # characters of a first column
_STYLES = {"fail": "error", "unknown": "warn", "warn": "warn", "pass": "plain", "skip": "dim"}
_LEAD = 4


def print_validation(validation: Validation, console: Console, *, before: Validation | None = None) -> None:
    """Print what a person must know before handing over a host: worst first, similar results together.

    Lines have at most 100 columns. fail, unknown and warn are shown in full, passed checks as one line each, and checks
    that do not apply with their reason. `before` is an earlier validation: changes since then come before the
    measurements.
    """
    style = {"fail": "error", "unknown": "warn", "warn": "warn"}.get(validation.verdict, "strong")
    host = validation.host or "unnamed host"
    prose(f"{validation.verdict.upper()}  {host}: {headline(validation)}", 0, console, style)
    prose(meaning(validation), 0, console)
    prose(", ".join(occasion(validation)), 0, console, "dim")
    found = groups(validation.results)
    for outcome in ("fail", "unknown", "warn"):
        _print_outcome(outcome, [group for group in found if group.outcome == outcome], console)
    _print_passed([group for group in found if group.outcome == "pass"], console)
    _print_skipped([group for group in found if group.outcome == "skip"], console)
    _print_changes(changes(before, validation), console)
    _print_measures(by_metric(measures(validation.samples)), console)
    _print_facts(validation, console)


def _print_outcome(outcome: str, found: Iterable[Group], console: Console) -> None:
    found = tuple(found)
    if not found:
        return
    _heading(outcome, sum(len(group.subjects) for group in found), console)
    for group in found:
        prose(f"{SIGNS[outcome]} {group.check}: {some(group.subjects, MANY)}", 2, console, _STYLES[outcome], hang=2)
        for label, text in (("expected", group.expected), ("actual", group.actual), ("source", group.source)):
            if text:
                _labelled(label, text, console, "dim" if label == "source" else "plain")
        if group.hint:
            _labelled("do", group.hint, console)


def _print_passed(found: Iterable[Group], console: Console) -> None:
    subjects = subjects_by_check(found)
    if not subjects:
        return
    _heading("pass", sum(map(len, subjects.values())), console)
    width = min(max(map(len, subjects)), WIDEST)
    for check, names in subjects.items():
        shown = names[0] if len(names) == 1 else count(len(names), "subject")
        prose(f"{SIGNS['pass']} {check:{width}}  {shown}", 2, console, hang=width + 4)


def _print_skipped(found: Iterable[Group], console: Console) -> None:
    found = tuple(found)
    if not found:
        return
    _heading("skip", sum(len(group.subjects) for group in found), console)
    for group in found:
        who = "" if group.subjects == ("host",) else f" ({some(group.subjects)})"
        prose(f"{SIGNS['skip']} {group.check}{who}: {group.actual or 'no reason given'}", 2, console, "dim", hang=2)


def _print_measures(found: Mapping[str, Sequence[Measure]], console: Console) -> None:
    if not found:
        return
    say("", console)
    say("measured: median of the runs, lowest to highest", console, "strong")
    for metric, subjects in found.items():
        prose(f"{metric} ({subjects[0].unit})", 2, console)
        _print_rows(figure_rows(subjects), _LEAD, console)


def _print_changes(found: Changes | None, console: Console) -> None:
    if found is None:
        return
    say("", console)
    say(f"compared with {found.before}", console, "strong")
    prose(found.headline, 2, console)
    for one in found.outcomes:
        prose(f"{one.check} {one.subject}: {one.before} -> {one.after}", 2, console, "warn" if one.worse else "plain")
    for figure in found.changed:
        text = f"{figure.metric} {figure.subject}: {figure.before} -> {figure.after} {figure.unit}, {figure.effect}"
        style = "warn" if figure.verdict == "worse" else "plain"
        prose(f"{verdict_words(figure)}: {text}", 2, console, style, hang=2)
    for doubt in found.doubts:
        prose(f"? {doubt}", 2, console, "warn", hang=2)


def _print_facts(validation: Validation, console: Console) -> None:
    if not validation.facts:
        return
    say("", console)
    say("measured with", console, "strong")
    _print_rows(tuple(validation.facts.items()), 2, console)


def _heading(outcome: str, number_of: int, console: Console) -> None:
    say("", console)
    say(f"{WORDS[outcome]}: {number_of}", console, "strong")


def _labelled(label: str, text: str, console: Console, style: str = "plain") -> None:
    prose(f"{label:8}  {text}", _LEAD, console, style, hang=10)


def _print_rows(rows: Iterable[tuple[str, str]], indent: int, console: Console) -> None:
    """Print two columns. The second one wraps below itself."""
    rows = tuple(rows)
    width = min(max((len(label) for label, _ in rows), default=0), WIDEST)
    for label, text in rows:
        prose(f"{label:{width}}  {text}", indent, console, hang=width + 2)


def prose(text: str, indent: int, console: Console, style: str = "plain", *, hang: int = 0) -> None:
    """Print a paragraph, wrapped between words within the console and NARROW. A longer word (a path) is broken."""
    width = min(console.width, NARROW)
    lead = " " * indent
    text = printable(text)
    for line in textwrap.wrap(
        printable(text),
        max(width, 60),
        initial_indent=lead,
        subsequent_indent=lead + " " * hang,
        break_on_hyphens=False,
    ):
        say(line, console, style)
