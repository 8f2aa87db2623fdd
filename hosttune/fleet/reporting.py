"""A run that has ended → its report. The hosts and the results of the gates come from the record."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.errors import BadInput
from hosttune.fleet.inventory import Inventory
from hosttune.fleet.monitored import Monitored
from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.record import RecordedRun
from hosttune.fleet.results import hosts_in
from hosttune.fleet.rollout import Rollout
from hosttune.fleet.run import FleetRun, read_past
from hosttune.model.fleet import FleetReport, Wave


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
