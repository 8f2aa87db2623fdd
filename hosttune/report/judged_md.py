"""A prediction and a diagnosis as Markdown, for a ticket or a pull request. Every text of a document is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hosttune.model.devicepath import DevicePath
from hosttune.model.diagnosis import Cause, Diagnosis, JudgedFigure
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.roof import GpuRoof
from hosttune.report.judged import GRADE_WORDS, VERDICT_SIGNS, VERDICTS, alike, headline, named, roof_rows
from hosttune.report.measures import number
from hosttune.report.prediction_text import sources_of
from hosttune.report.validation_md import escaped, table

MOST_CAUSED = 16  # figures that a cause names before "and N more"


def prediction_md(found: Sequence[Prediction]) -> str:
    """Return the predictions as CommonMark with tables, ending in a newline."""
    return "\n\n".join(block for one in found for block in _prediction(one)) + "\n"


def _prediction(found: Prediction) -> Iterator[str]:
    yield f"# What to expect of {escaped(found.of or 'this host')}"
    groups = alike(found.figures)
    names = ("metric", "of", "typical", "at most", "unit", "inputs")
    if any(rows[0].value is not None for _, rows in groups):
        names = ("metric", "of", "value", "at most", "unit", "inputs")
    rows = tuple(_row(words, members[0]) for words, members in groups)
    yield table(names, rows) if rows else "Nothing is known of this host's devices."
    yield from roofs_md(found.roofs)
    yield from paths_md(found.paths)
    if found.notes:
        yield "## Notes"
        yield _items(found.notes)
    sources = sources_of(found.figures)
    if sources:
        yield "## Formulas and sources"
        yield table(("metric", "formula", "source"), sources)


def _row(words: str, one: PredictedFigure) -> tuple[str, ...]:
    shown = one.value if one.value is not None else one.typical
    return (one.metric, words, number(shown), number(one.bound), one.unit, "; ".join(one.because))


def roofs_md(roofs: Iterable[GpuRoof]) -> Iterator[str]:
    """Yield a table of this host's own roof beside the data sheet's."""
    rows = roof_rows(roofs)
    if rows:
        yield "## Roofline"
        yield table(("GPU", "what", "this host", "data sheet", "this host's figure is"), rows)


def paths_md(paths: Iterable[DevicePath], level: int = 2) -> Iterator[str]:
    """Yield a heading, a table of links and the notes of each path."""
    for path in paths:
        most = "not known" if path.at_most_gb_per_s is None else f"at most {path.at_most_gb_per_s:g} GB/s"
        yield f"{'#' * level} Path {escaped(path.start)} to {escaped(path.end)}: {most}"
        rows = tuple(
            (hop.start, hop.end, hop.words, number(hop.gb_per_s), "slowest" if hop.slowest else "") for hop in path.hops
        )
        if rows:
            yield table(("from", "to", "link", "GB/s", ""), rows)
        if path.notes:
            yield _items(path.notes)


def diagnosis_md(found: Diagnosis) -> str:
    """Return the diagnosis as CommonMark with tables, ending in a newline."""
    blocks = [f"# Diagnosis: {headline(found)}", *cause_lines(found.causes, 2)]
    if found.figures:
        blocks += ["## Figures", figure_table(found.figures)]
    blocks += [*roofs_md(found.roofs), *paths_md(found.paths)]
    if found.next:
        blocks += ["## What is not known, and what to do next", _items(found.next)]
    if found.problems:
        rows = tuple((doubt.where, doubt.what, doubt.why) for doubt in found.problems)
        blocks += ["## Not used", table(("where", "what", "why"), rows)]
    return "\n\n".join(blocks) + "\n"


def figure_table(figures: Iterable[JudgedFigure]) -> str:
    """Return a table of figures with their verdicts, worst first."""
    ordered = sorted(figures, key=lambda one: VERDICTS.index(one.verdict))
    rows = tuple(
        (
            f"{VERDICT_SIGNS[one.verdict]} {one.verdict}",
            one.metric,
            named(one),
            number(one.value),
            number(one.typical),
            number(one.bound),
            one.unit,
            one.why,
        )
        for one in ordered
    )
    return table(("verdict", "metric", "of", "figure", "typical", "bound", "unit", "why"), rows)


def cause_lines(causes: Iterable[Cause], level: int = 3) -> list[str]:
    """Return a heading and a list for each cause, best first."""
    blocks = []
    for cause in causes:
        explained = cause.explains[:MOST_CAUSED]
        more = f" and {len(cause.explains) - len(explained)} more" if len(cause.explains) > len(explained) else ""
        facts = [
            *(("evidence", words) for words in cause.evidence),
            *([("explains", ", ".join(explained) + more)] if explained else []),
            ("do", cause.remedy),
            ("to confirm", cause.confirm),
            ("source", cause.source),
        ]
        blocks.append(f"{'#' * level} {cause.rank}. {escaped(cause.cause)} ({cause.grade}: {GRADE_WORDS[cause.grade]})")
        blocks.append("\n".join(f"- **{what}**: {escaped(words)}" for what, words in facts))
    return blocks


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)
