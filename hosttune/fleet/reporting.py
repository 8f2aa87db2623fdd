"""A run that has ended → its report. The hosts and the results of the gates come from the record."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.fleet.inventory import Inventory
from hosttune.fleet.monitored import Monitored
from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.record import RecordedRun
from hosttune.fleet.results import hosts_in, read_file, replace_file
from hosttune.fleet.rollout import Rollout
from hosttune.fleet.run import FleetRun, read_past
from hosttune.model.fleet import FleetReport, HostLine, Wave
from hosttune.model.validation import severity
from hosttune.model.values import to_json


def report_of_run(done: FleetRun) -> FleetReport:
    """Return the report of a run that has just ended."""
    from hosttune import __version__

    rollout = done.rollout
    asked = RunContext(
        verb=rollout.verb,
        run=rollout.run,
        check=rollout.check,
        waves=done.outcome.waves if rollout.gated else (),
        wave_of=_wave_of(dict(enumerate(rollout.waves, 1))) if rollout.gated else {},
        groups=done.inventory.groups,
        stopped=done.outcome.stopped,
        at=done.at,
        version=__version__,
        declared=rollout.declared,
        record=_record_of(rollout),
    )
    return report_of(rollout.order.results, rollout.hosts, asked)


def _record_of(rollout: Rollout) -> RecordedRun | None:
    """Return what a run has recorded; None if it cannot be read any more: the report must not fail by it."""
    try:
        return read_past(rollout.order.results, None, rollout.run)
    except BadInput:
        return None


def report_of_past(results: str, run: str | None = None, metrics: Monitored | None = None) -> FleetReport:
    """Return the report of a run in the record (default: the last). Raises BadInput if there is no such run.

    `metrics`: what Prometheus knows of the hosts now.
    """
    past = read_past(results, None, run)
    if past is None:
        what = f"no run {run}" if run is not None else "no run"
        raise BadInput(f"{what} in its record", where=results, hint="name the results folder of a run, or give --verb")
    gated = bool(past.began.waves)
    waves = [_wave(past, number) for number in sorted(past.members)]
    asked = RunContext(
        verb=past.began.verb,
        run=past.run,
        check=past.began.check,
        waves=waves if gated else (),
        wave_of=_wave_of(past.members) if gated else {},
        stopped=past.stopped or (None if past.exit_code is not None else "the run has no end in its record"),
        at=past.began.at,
        version=past.began.version,
        metrics=metrics,
        declared=past.began.declared,
        record=past,
    )
    return report_of(results, [host for number in sorted(past.members) for host in past.members[number]], asked)


def report_of_last(
    results: str, verb: str, inventory: Inventory | None = None, metrics: Monitored | None = None
) -> FleetReport:
    """Return the report of the last answer of each host to a verb, from any source.

    A source can be a playbook that was run by hand, or a host that validates itself. The report covers every host of
    the inventory; a host without an answer is unknown. Without an inventory it covers every host that has a folder in
    the results. Raises BadInput if there is no host.
    """
    hosts = inventory.hosts if inventory is not None else hosts_in(results)
    if not hosts:
        raise BadInput("no host has answered", where=results, hint="name the results folder of a run with --results")
    groups = inventory.groups if inventory is not None else {}
    return report_of(results, hosts, RunContext(verb=verb, groups=groups, metrics=metrics))


def _wave(past: RecordedRun, number: int) -> Wave:
    gate = past.gates.get(number)
    hosts = len(past.members[number])
    return Wave(number=number, hosts=hosts, passed=gate.passed if gate else None, why=gate.why if gate else ())


def _wave_of(members: Mapping[int, tuple[str, ...]]) -> dict[str, int]:
    return {host: number for number, hosts in members.items() for host in hosts}


# --- compared with an earlier run -----------------------------------------------------------------------------

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
