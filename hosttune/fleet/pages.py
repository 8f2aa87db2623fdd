"""The hosts' own pages, written beside their results: RESULTS/HOST/PHASE.html, one host's documents at a time.

A page costs some 20 ms and 200 KB (it draws the host), so by default only hosts with something to mend get one, and one
that is newer than the documents it is made of is left as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.overview import judge_of
from hosttune.fleet.results import answer_path, read_file, remove_file, replace_file
from hosttune.model.check import check_counts
from hosttune.model.fleet import FleetReport
from hosttune.model.host import HOST_SCHEMA, Host
from hosttune.model.validation import Validation

Renderer = Callable[[Validation, Host | None], str]


@dataclass(frozen=True)
class _Page:
    """One host's page and the documents that it is made of."""

    path: str
    place: str  # from the results folder
    sources: tuple[str, str]

    @property
    def made(self) -> bool:
        """Whether it was written after all that it is made of."""
        try:
            page = os.lstat(self.path)
            newest = max((os.lstat(path).st_mtime_ns for path in self.sources if os.path.lexists(path)), default=0)
        except OSError:
            return False
        return stat.S_ISREG(page.st_mode) and newest < page.st_mtime_ns


def with_pages(report: FleetReport, results: str, *, every: bool = False, check: bool = False) -> FleetReport:
    """Write hosts' pages into their folders and give the report with the paths to them, from the results folder.

    Of hosts that failed, are unknown or got worse; `every`: of all. A host without a validation of this run has none;
    a page of an earlier one is removed, so that nobody takes it for this one's. Raises BadInput where a page cannot be
    written.
    """
    judge = judge_of(report.verb, check=check)
    if judge is None:
        return report
    render = _renderer()
    lines = []
    for line in report.hosts:
        source = answer_path(results, line.host, judge, check=check)
        name = f"{os.path.basename(source).removesuffix('.json')}.html"
        sources = (source, answer_path(results, line.host, "discover"))
        page = _Page(os.path.join(os.path.dirname(source), name), f"{line.folder}/{name}", sources)
        wanted = every or bool(line.worse) or line.verdict in ("fail", "unknown")
        answer = read_answer(results, line.host, judge, report.run, check=check)
        there = wanted and answer.outcome in ("ok", "no") and _written(page, render)
        if not there and not page.made:
            remove_file(page.path)
        lines.append(msgspec.structs.replace(line, page=page.place if there else None))
    return msgspec.structs.replace(report, hosts=tuple(lines))


def _written(page: _Page, render: Renderer) -> bool:
    """Write a page where it is not there as it should be; False where its documents do not read."""
    if page.made:
        return True
    source, discovered = page.sources
    try:
        data = read_file(source)
        validation = Validation.from_json(data, where=source) if data is not None else None
    except BadInput:
        return False  # its host is unknown for this very reason, and the report says so
    if validation is None:
        return False
    replace_file(page.path, render(validation, _host(discovered)).encode("utf-8", "replace"))
    return True


def _host(path: str) -> Host | None:
    """The host document that lies beside, for the picture; None where there is none that reads."""
    try:
        data = read_file(path)
        return _decoded(data, path) if data is not None else None
    except BadInput:
        return None


def _decoded(data: bytes, path: str) -> Host:
    """Raises BadInput. Straight from its text is ten times as fast as by way of plain values, which may be null."""
    try:
        found = msgspec.json.decode(data, type=Host)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Host.from_json(data, where=path)
    if found.schema != HOST_SCHEMA:
        return Host.from_json(data, where=path)
    check_counts(found, path)
    return found


def _renderer() -> Renderer:
    """The page of one host, with what is the same for all of them looked up once."""
    from hosttune.bench.baselines import shipped
    from hosttune.checks import checks
    from hosttune.report.svg import host_svg
    from hosttune.report.validation_html import html

    standard, explained = shipped(), checks(False)

    def render(validation: Validation, host: Host | None) -> str:
        svg = host_svg(host, results=validation.results) if host is not None else None
        return html(validation, host=host, svg=svg, baselines=standard, checks=explained)

    return render
