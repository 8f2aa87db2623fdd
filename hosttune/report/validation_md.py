"""The validation document as Markdown, for a ticket or a pull request: problems in full, everything else counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hosttune.model.listing import some
from hosttune.model.validation import Validation
from hosttune.report.branch import printable
from hosttune.report.changes import Changes, changes, verdict_words
from hosttune.report.measures import by_metric, figure_rows, measures
from hosttune.report.outcomes import (
    OUTCOMES,
    SIGNS,
    WORDS,
    Group,
    Step,
    counts,
    groups,
    headline,
    meaning,
    next_steps,
    occasion,
    subjects_by_check,
)

MANY = 16  # subjects named in a cell before "and N more"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")
_BLOCK = re.compile(r"^([0-9]*)([-+=.)])")  # characters that would begin a list or underline a heading


def markdown(validation: Validation, *, before: Validation | None = None) -> str:
    """Return the report as CommonMark with tables, ending in a newline. The same document gives the same bytes.

    `before` is an earlier validation to compare with. Every text of the document is escaped: it cannot become a link,
    an image, HTML, a mention or another cell.
    """
    found = groups(validation.results)
    blocks = [*_top(validation), _counts(validation)]
    blocks += _steps(next_steps(validation.results))
    for outcome in ("fail", "unknown", "warn"):
        blocks += _outcome(outcome, [group for group in found if group.outcome == outcome])
    blocks += _passed([group for group in found if group.outcome == "pass"])
    blocks += _skipped([group for group in found if group.outcome == "skip"])
    blocks += _changed(changes(before, validation))
    blocks += _measured(validation)
    if validation.facts:
        blocks += ["## Measured with", table(("fact", "value"), tuple(validation.facts.items()))]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str | None) -> str:
    """Return one line of text that has no meaning in Markdown or HTML; "–" for an empty text.

    A web address stays as it is: programs that make a link of it show where it leads.
    """
    if not text:
        return "–"
    line = _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))
    return _BLOCK.sub(r"\1\\\2", line)


def _top(validation: Validation) -> tuple[str, ...]:
    title = f"# {SIGNS.get(validation.verdict, '?')} {validation.verdict.upper()}: {escaped(validation.host or '')}"
    return (
        title if validation.host else title.replace("–", "unnamed host"),
        f"**{headline(validation)}.** {meaning(validation)}",
        escaped(", ".join(occasion(validation))),
    )


def _counts(validation: Validation) -> str:
    number_of = counts(validation.results)
    names = tuple(WORDS[outcome] for outcome in OUTCOMES)
    return table(names, (tuple(str(number_of[outcome]) for outcome in OUTCOMES),))


def _steps(steps: Sequence[Step]) -> list[str]:
    lines = [f"{n}. {escaped(step.hint)}  \n   {SIGNS[step.outcome]} {_mends(step)}" for n, step in enumerate(steps, 1)]
    return ["## What to do next", "\n".join(lines)] if lines else []


def _mends(step: Step) -> str:
    return escaped("; ".join(f"{check}: {some(subjects, MANY)}" for check, subjects in step.mends))


def _outcome(outcome: str, found: Sequence[Group]) -> list[str]:
    rows = tuple(
        (group.check, some(group.subjects, MANY), group.expected, group.actual, group.source) for group in found
    )
    heading = f"## {SIGNS[outcome]} {WORDS[outcome].capitalize()}"
    return [heading, table(("check", "subject", "expected", "actual", "source"), rows)] if rows else []


def _passed(found: Iterable[Group]) -> list[str]:
    rows = tuple((check, some(names, MANY)) for check, names in subjects_by_check(found).items())
    return [f"## {SIGNS['pass']} Passed", table(("check", "subject"), rows)] if rows else []


def _skipped(found: Iterable[Group]) -> list[str]:
    rows = tuple((group.check, some(group.subjects, MANY), group.actual) for group in found)
    return [f"## {SIGNS['skip']} Not applicable", table(("check", "subject", "why"), rows)] if rows else []


def _changed(found: Changes | None) -> list[str]:
    if found is None:
        return []
    blocks = [f"## Compared with {escaped(found.before)}", escaped(found.headline)]
    outcomes = tuple((one.check, one.subject, one.before, one.after, one.actual) for one in found.outcomes)
    if outcomes:
        blocks.append(table(("check", "subject", "before", "after", "actual"), outcomes))
    figures = tuple(
        (one.metric, one.subject, one.before, one.after, one.unit, one.effect, verdict_words(one))
        for one in found.changed
    )
    if figures:
        names = ("metric", "subject", "before", "after", "unit", "effect (95 %)", "verdict")
        blocks.append(table(names, figures))
    if found.doubts:
        blocks.append("\n".join(f"- ? {escaped(doubt)}" for doubt in found.doubts))
    return blocks


def _measured(validation: Validation) -> list[str]:
    rows = tuple(
        (metric, subject, figure, found[0].unit)
        for metric, found in by_metric(measures(validation.samples)).items()
        for subject, figure in figure_rows(found)
    )
    return ["## Measured", table(("metric", "subject", "median (lowest to highest)", "unit"), rows)] if rows else []


def table(names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Return a table with every cell escaped."""
    lines = [names, ["---"] * len(names), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
