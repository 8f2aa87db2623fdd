"""The fleet report as one self-contained HTML page: what to do next, every host, the heat map, waves and outliers.

Nothing is loaded from elsewhere. A content security policy names the page's one script and one style by their hashes,
so that nothing else runs, whatever a host's texts contain. The page is complete without its script, which filters and
sorts the hosts and draws the heat map. Without the script, the table of checks has the facts of the map.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hosttune.assets import shipped_text
from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.values import Value
from hosttune.report.branch import count, printable
from hosttune.report.fleet_causes import GRADE_WORDS, NO_CAUSE, cause_size, low_words
from hosttune.report.fleet_groups import (
    ANSWERS,
    VERDICT_WORDS,
    VERDICTS,
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
from hosttune.report.outcomes import OUTCOMES, SIGNS, WORDS, Group, groups, severity
from hosttune.report.page import digest, page_templates

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_GROUPS = 12  # for one host's row: its own page and its result file have all of them
MOST_TROUBLES = 200
MOST_WHY = 20  # reasons of one wave
STEPS_SHOWN = 8  # shown at once, the others on request; failures and hosts without an answer are always shown
MOST_OUTLIERS = 300
MOST_MEDIANS = 300
MOST_SPREADS = 200  # facts that are not alike
MOST_NAMED = 200  # hosts of one value
_LOST = "x"  # in the map: the host did not answer
_NOT_MADE = "-"  # in the map: the host answered, and this check was not made on it
_LETTERS = {"fail": "f", "unknown": "u", "warn": "w", "pass": "p", "skip": "s"}


class Row(Value, frozen=True, kw_only=True):
    """One host as its row of the table."""

    line: HostLine
    answer: str
    machine: str
    seconds: float | None
    summary: str
    groups: tuple[Group, ...]
    more: int
    page: str | None

    @property
    def unfolds(self) -> bool:
        """Whether there is anything to show below the row."""
        return bool(self.groups or self.line.worse or self.line.low or self.page)


class CheckRow(Value, frozen=True, kw_only=True):
    """One check over the fleet: hosts by outcome, hosts that did not answer, and hosts on which it was not made."""

    check: str
    counts: dict[str, int]
    lost: int
    not_made: int


def html(report: FleetReport) -> str:
    """Return the page, ending in a newline. The same report gives the same bytes. Every text of a host is escaped.

    Links to hosts' own pages are relative to the results folder, so they work if the page is in that folder.
    """
    lines = hosts_worst_first(report.hosts)
    checks = tuple(dict.fromkeys(check for line in report.hosts for check in line.checks))
    found = troubles(report)
    cells = [_cells(line, checks) for line in lines]
    rows = [_row(line) for line in lines]
    views = {
        "report": report,
        "title": f"{report.verdict.upper()}: hosttune fleet {report.verb}, {count(len(lines), 'host')}",
        "headline": headline(report),
        "meaning": meaning(report),
        "occasion": " · ".join(occasion(report)),
        "verdicts": verdicts(report),
        "answers": answers_worst_first(report),
        "silent": not set(answers_worst_first(report)) <= {"ok", "no"},
        "steps": found[:MOST_TROUBLES],
        "steps_shown": max(STEPS_SHOWN, sum(one.outcome != "warn" for one in found[:MOST_TROUBLES])),
        "more_steps": max(0, len(found) - MOST_TROUBLES),
        "left_out": results_left_out(report),
        "rows": rows,
        "groups": sorted({name for line in lines for name in line.groups}),
        "machines": sorted({row.machine for row in rows if row.machine}),
        "checks": _check_rows(checks, cells),
        "data": _data(lines, checks, cells, rows, found),
    }
    return _environment().get_template("fleet.html.j2").render(**views, **_assets())


def _row(line: HostLine) -> Row:
    seconds = [answer.seconds for answer in line.answers if answer.seconds is not None]
    found = groups(line.told)
    return Row(
        line=line,
        answer=answer_of(line),
        machine=line.devices or line.product or "",
        seconds=sum(seconds) if seconds else None,
        summary=summary(line),
        groups=found[:MOST_GROUPS],
        more=sum(len(group.subjects) for group in found[MOST_GROUPS:]) + line.untold,
        page=quote(line.page, safe="/") if line.page else None,
    )


def _cells(line: HostLine, checks: Sequence[str]) -> str:
    """Return a letter for each check. For a host that did not answer, every cell means unknown; none is empty."""
    nothing = _NOT_MADE if answer_of(line) in ("ok", "no") else _LOST
    return "".join(_LETTERS.get(line.checks[check], "u") if check in line.checks else nothing for check in checks)


def _check_rows(checks: Sequence[str], cells: Sequence[str]) -> list[CheckRow]:
    """Return the checks worst first: by the worst outcome of any host, then by the number of hosts with it."""
    rows = []
    for n, check in enumerate(checks):
        found = Counter(row[n] for row in cells)
        counts = {outcome: found[_LETTERS[outcome]] for outcome in OUTCOMES}
        rows.append(CheckRow(check=check, counts=counts, lost=found[_LOST], not_made=found[_NOT_MADE]))
    return sorted(rows, key=lambda row: tuple(-row.counts[outcome] for outcome in OUTCOMES[:3]))


def _data(
    lines: Sequence[HostLine],
    checks: Sequence[str],
    cells: Sequence[str],
    rows: Sequence[Row],
    found: Sequence[Trouble],
) -> Any:
    """Return the script's data as JSON that cannot end its HTML element. Rows are in the order of the table."""
    from markupsafe import Markup

    place = {line.host: n for n, line in enumerate(lines)}
    document = {
        "checks": [printable(check) for check in checks],
        "cells": list(cells),
        "hosts": [printable(line.host) for line in lines],
        "verdicts": [VERDICTS.index(line.verdict) for line in lines],
        "words": list(ANSWERS),
        "answers": [row.answer for row in rows],
        "counts": [[line.counts.get(outcome, 0) for outcome in OUTCOMES[:3]] for line in lines],
        "waves": [line.wave for line in lines],
        "groups": [[printable(name) for name in line.groups] for line in lines],
        "machines": [printable(row.machine) for row in rows],
        "seconds": [row.seconds for row in rows],
        "troubles": [[place[host] for host in one.hosts] for one in found[:MOST_TROUBLES]],
    }
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _assets() -> dict[str, Any]:
    """Return style and script as they are inlined, and their hashes for the content security policy."""
    from markupsafe import Markup

    style = "".join(shipped_text("templates", f"report/{name}.css") for name in ("style", "fleet"))
    script = shipped_text("templates", "report/fleet.js")
    hashes = {"style_hash": digest(style), "script_hash": digest(script)}
    return {"style": Markup(style), "script": Markup(script), **hashes}


@cache
def _environment() -> Environment:
    environment = page_templates(
        ANSWERS=ANSWERS,
        OUTCOMES=OUTCOMES,
        SIGNS=SIGNS,
        GRADE_WORDS=GRADE_WORDS,
        VERDICT_WORDS=VERDICT_WORDS,
        WORDS=WORDS,
        MOST_MEDIANS=MOST_MEDIANS,
        NO_CAUSE=NO_CAUSE,
        MOST_OUTLIERS=MOST_OUTLIERS,
        MOST_NAMED=MOST_NAMED,
        MOST_SPREADS=MOST_SPREADS,
        MOST_WHY=MOST_WHY,
        cause_size=cause_size,
        fact_words=fact_words,
        few_without=few_without,
        some_unknown=some_unknown,
        group_words=group_words,
        holders_words=holders_words,
        low_words=low_words,
        machine_words=machine_words,
        majority_words=majority_words,
        median_name=median_name,
        notable=notable,
        number=number,
        others=others,
        outlier_words=outlier_words,
        severity=severity,
        uniform_heading=uniform_heading,
        wave_outcome=wave_outcome,
        wave_words=wave_words,
    )
    environment.filters["listed"] = _listed
    return environment


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
