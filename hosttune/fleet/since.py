"""What became worse since the run before: the outcomes of the last validation, kept in the fleet's results folder."""

from __future__ import annotations

import os

from msgspec.structs import replace

from hosttune.fleet.results import read_file, replace_file
from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.validation import severity
from hosttune.model.values import to_json

KEPT = ".before.json"


def with_worse(report: FleetReport, results: str, *, keep: bool) -> FleetReport:
    """Return the report of a validation with what is worse than in the run before; `keep` it for the next run.

    Raises BadInput for a kept file that cannot be read or written.
    """
    path = os.path.join(results, KEPT)
    data = read_file(path) if report.verb == "validate" else None
    before = FleetReport.from_json(data, where=path) if data is not None else FleetReport(verb="validate")
    known = {line.host: line for line in before.hosts}
    if before.run == report.run:
        told = {host: line.worse for host, line in known.items()}
    elif keep:
        told = {line.host: worse(known[line.host], line) for line in report.hosts if line.host in known}
    else:
        return report
    hosts = tuple(
        replace(line, worse=tuple(dict.fromkeys((*line.worse, *told.get(line.host, ()))))) for line in report.hosts
    )
    if keep and report.verb == "validate":
        lines = tuple(
            HostLine(host=line.host, folder=line.folder, verdict=line.verdict, checks=line.checks, worse=line.worse)
            for line in hosts
        )
        asked = {line.host for line in hosts}  # a run of some hosts forgets none of the others
        lines += tuple(line for line in before.hosts if line.host not in asked)
        replace_file(path, to_json(FleetReport(verb="validate", run=report.run, hosts=lines)).encode())
    return replace(report, hosts=hosts)


def worse(before: HostLine, now: HostLine) -> tuple[str, ...]:
    """Return what is worse of a host than before, a line each: its checks, or its verdict if no check tells it."""
    pairs = ((check, before.checks.get(check), outcome) for check, outcome in now.checks.items())
    lines = tuple(
        f"{check}: {was} -> {became}" for check, was, became in pairs if was and severity(became) < severity(was)
    )
    if not lines and severity(now.verdict) < severity(before.verdict):
        return (f"verdict: {before.verdict} -> {now.verdict}",)
    return lines
