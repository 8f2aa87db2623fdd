"""One HTML page per host, in the folder of its results: RESULTS/HOST/PHASE.html.

Documents are read one host at a time. A page takes about 20 ms and 200 KB, because it has a picture of the host. So by
default only hosts with problems get one, and a page that is newer than its source documents is not written again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.overview import judge_of
from hosttune.fleet.results import answer_path, read_file, remove_file, replace_file
from hosttune.model.check import check_counts
from hosttune.model.fleet import FleetReport
from hosttune.model.host import HOST_SCHEMA, Host
from hosttune.model.jsontext import typed_json
from hosttune.model.validation import Validation

Renderer = Callable[[Validation, Host | None], str]


class _Page(msgspec.Struct, frozen=True):
    """The page of one host and the documents that it is made from."""

    path: str
    place: str  # the path relative to the results folder
    sources: tuple[str, str]

    @property
    def made(self) -> bool:
        """Whether the page is newer than all of its source documents."""
        try:
            page = os.lstat(self.path)
            newest = max((os.lstat(path).st_mtime_ns for path in self.sources if os.path.lexists(path)), default=0)
        except OSError:
            return False
        return stat.S_ISREG(page.st_mode) and newest < page.st_mtime_ns


def with_pages(report: FleetReport, results: str, render: Renderer) -> FleetReport:
    """Write the pages of hosts, and return the report with their paths relative to the results folder.

    Pages are written for hosts that failed, are unknown or got worse. A host without a validation of this run gets no
    page. A page of an earlier run is removed, so that it is not mistaken for one of this run. `render` makes the page.
    Raises BadInput if a page cannot be written.
    """
    judge = judge_of(report.verb)
    if judge is None:
        return report
    lines = []
    for line in report.hosts:
        source = answer_path(results, line.host, judge)
        name = f"{os.path.basename(source).removesuffix('.json')}.html"
        sources = (source, answer_path(results, line.host, "discover"))
        page = _Page(os.path.join(os.path.dirname(source), name), f"{line.folder}/{name}", sources)
        wanted = bool(line.worse) or line.verdict in ("fail", "unknown")
        answer = read_answer(results, line.host, judge, report.run)
        there = wanted and answer.outcome in ("ok", "no") and _written(page, render)
        if not there and not page.made:
            remove_file(page.path)
        lines.append(msgspec.structs.replace(line, page=page.place if there else None))
    return msgspec.structs.replace(report, hosts=tuple(lines))


def _written(page: _Page, render: Renderer) -> bool:
    """Write a page if it is missing or out of date. Returns False if its documents are missing or cannot be read."""
    if page.made:
        return True
    source, discovered = page.sources
    try:
        data = read_file(source)
        validation = Validation.from_json(data, where=source) if data is not None else None
    except BadInput:
        return False  # the host is unknown for the same reason, and the report says so
    if validation is None:
        return False
    replace_file(page.path, render(validation, _host(discovered)).encode("utf-8", "replace"))
    return True


def _host(path: str) -> Host | None:
    """Return the host document for the picture; None if it is missing or cannot be read."""
    try:
        data = read_file(path)
        return _decoded(data, path) if data is not None else None
    except BadInput:
        return None


def _decoded(data: bytes, path: str) -> Host:
    """Return the host document in `data`. Raises BadInput.

    Decoding the JSON text directly to a Host is ten times as fast as `Host.from_json`, which first decodes it to plain
    values. `Host.from_json` also accepts nulls and gives better errors, so it is used if direct decoding fails.
    """
    try:
        host = typed_json(data, Host)
    except BadInput:
        return Host.from_json(data, where=path)
    if host.schema != HOST_SCHEMA:
        return Host.from_json(data, where=path)
    check_counts(host, path)
    return host
