"""The fleet report as Markdown, short enough for a ticket: similar problems together, healthy hosts counted."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.listing import some
from hosttune.report.draw.md import escaped, table
from hosttune.report.fleet_causes import cause_size, cause_title
from hosttune.report.fleet_groups import (
    ANSWERS,
    VERDICT_WORDS,
    Trouble,
    answer_of,
    answers_worst_first,
    headline,
    hosts_worst_first,
    meaning,
    median_name,
    occasion,
    outlier_words,
    results_left_out,
    summary,
    troubles,
    verdicts,
    wave_outcome,
    wave_words,
)
from hosttune.report.fleet_uniform import (
    SIGN_OF,
    fact_words,
    few_without,
    group_words,
    holders_words,
    machine_words,
    majority_words,
    notable,
    others,
    some_unknown,
    uniform_heading,
)
from hosttune.report.measures import number
from hosttune.report.outcomes import SIGNS

MANY = 12  # hosts named in a cell before "and N more"
MOST = 40  # rows of a table: a ticket takes about 60,000 characters
MOST_WHY = 10


def markdown(report: FleetReport) -> str:
    """Return the report as CommonMark with tables, ending in a newline. The same report gives the same bytes.

    Every text of a host is escaped: it cannot become a link, an image, HTML, a mention or another cell. Tables are cut
    after MOST rows, and say so.
    """
    blocks = [
        f"# {SIGNS[report.verdict]} {report.verdict.upper()}: {headline(report)}",
        meaning(report),
        escaped(", ".join(occasion(report))),
    ]
    blocks += [f"**Stopped:** {escaped(report.stopped)}"] if report.stopped else []
    blocks += _counts(report) + _troubles(troubles(report), results_left_out(report)) + _waves(report)
    blocks += _causes(report) + _uniformity(report) + _outliers(report) + _medians(report)
    blocks += _hosts(hosts_worst_first(report.hosts))
    blocks += ["\n".join(f"- {escaped(note)}" for note in report.notes)] if report.notes else []
    return "\n\n".join(blocks) + "\n"


def _counts(report: FleetReport) -> list[str]:
    number_of = verdicts(report)
    blocks = [table(tuple(VERDICT_WORDS[one] for one in number_of), (tuple(map(str, number_of.values())),))]
    answers = answers_worst_first(report)
    if not set(answers) <= {"ok", "no"}:
        rows = tuple((word, ANSWERS[word], str(hosts)) for word, hosts in answers.items())
        blocks += ["## Answers", table(("answer", "meaning", "hosts"), rows)]
    return blocks


def _troubles(found: Sequence[Trouble], left_out: str | None) -> list[str]:
    rows = [
        (
            f"{SIGNS.get(one.outcome, '?')} {one.outcome}",
            one.title,
            f"{one.size}: {some(one.hosts, MANY)}",
            f"{one.actual or ''}{'' if one.alike else ' (the first of them)'}",
            one.hint,
        )
        for one in found
    ]
    blocks = _table("## What to do next", ("outcome", "check", "hosts", "actual", "do"), rows)
    return [*blocks, left_out] if left_out else blocks


def _waves(report: FleetReport) -> list[str]:
    rows = [
        (
            str(wave.number),
            str(wave.hosts),
            f"{SIGNS[wave_outcome(wave)]} {wave_words(wave)}",
            "; ".join(wave.why[:MOST_WHY]),
        )
        for wave in report.waves
    ]
    return _table("## Waves", ("wave", "hosts", "gate", "why"), rows)


def _causes(report: FleetReport) -> list[str]:
    rows = [
        (
            cause_title(one),
            f"{cause_size(one)}: {some(one.hosts, MANY)}",
            one.example,
            "; ".join(one.evidence),
            one.remedy,
        )
        for one in report.causes
    ]
    return _table("## Hosts that are low, by cause", ("cause", "hosts", "for example", "evidence", "do"), rows)


def _uniformity(report: FleetReport) -> list[str]:
    if not report.uniformity:
        return []
    rows = []
    for one in notable(report):
        values = [f"{group_words(one, group)}: {holders_words(group.holders, MANY)}" for group in others(one)[:MANY]]
        values += [f"unknown: {holders_words(some_unknown(one), MANY)}"] if some_unknown(one) else []
        values += [f"no such device: {some(one.without, MANY)}"] if few_without(one) else []
        fact = f"{SIGN_OF[one.state]} {fact_words(one)}"
        rows.append((fact, machine_words(one), majority_words(one), "; ".join(values)))
    heading = ["## Uniformity", escaped(uniform_heading(report))]
    return [*heading, *_table("", ("fact", "machines", "majority", "others"), rows)[1:]]


def _outliers(report: FleetReport) -> list[str]:
    rows = [
        (one.host, one.subject, one.model, one.metric, outlier_words(one), "worse" if one.worse else "better")
        for one in report.outliers
    ]
    return _table("## Outliers", ("host", "subject", "model", "metric", "figure", "side"), rows)


def _medians(report: FleetReport) -> list[str]:
    rows = [
        (one.model, median_name(one), number(one.median), number(one.mad), one.unit, str(one.hosts), str(one.subjects))
        for one in report.medians
    ]
    return _table("## Medians of the fleet", ("model", "metric", "median", "MAD", "unit", "hosts", "figures"), rows)


def _hosts(lines: Sequence[HostLine]) -> list[str]:
    rows = [
        (f"{SIGNS[line.verdict]} {line.verdict}", line.host, answer_of(line), summary(line, warnings=False))
        for line in lines
        if line.verdict in ("fail", "unknown") or line.worse
    ]
    return _table("## Hosts with problems", ("verdict", "host", "answer", "what"), rows)


def _table(heading: str, names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[str]:
    if not rows:
        return []
    more = (
        [f"and {len(rows) - MOST} more: every one is in the HTML, JSON and JUnit reports"] if len(rows) > MOST else []
    )
    return [heading, table(names, rows[:MOST]), *more]
