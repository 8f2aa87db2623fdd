"""The report on collectives over several hosts faults, scaling, groups, and what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosttune.model.collective import CollectiveReport, GroupState, HostGroup, Member, Scaling
from hosttune.model.listing import some
from hosttune.model.text import count
from hosttune.model.values import format_size, grouped
from hosttune.report.blocks import Lines, Report, Table
from hosttune.report.outcomes import unmeasured_hosts

_STATES: tuple[GroupState, ...] = ("good", "low", "failed", "unknown")
_WORST_FIRST = ("failed", "low", "unknown", "good")
_SCALING = ("hosts", "ranks", "groups", "median", "lowest", "predicted", "bound", "efficiency", "of one host")
_GROUPS = ("step", "for", "hosts", "state", "outcome", "why")


def collective_report(report: CollectiveReport) -> Report:
    """Return the report of a run of `collective`."""
    groups = sorted(report.groups, key=lambda group: (group.repeated, _WORST_FIRST.index(group.state), group.step))
    bad = [group for group in groups if group.state in ("low", "failed") and not group.repeated]
    return Report(
        kind="Collectives over several hosts",
        verdict=report.verdict,
        headline=headline(report),
        occasion=tuple(occasion(report)),
        stopped=report.stopped,
        blocks=(
            Lines(
                heading="What explains low and failed groups",
                lines=tuple(fault.words for fault in report.faults),
                style="error",
                empty="" if report.check else "Nothing is named.",
            ),
            *(
                Table(
                    heading=f"{kind}, {format_size(size)}: bus bandwidth in GB/s",
                    columns=_SCALING,
                    rows=tuple(
                        scaling_row(row) for row in report.scaling if (row.kind, row.size_bytes) == (kind, size)
                    ),
                )
                for kind, size in dict.fromkeys((row.kind, row.size_bytes) for row in report.scaling)
            ),
            Lines(
                heading="Low and failed groups",
                lines=tuple(f"{group.state}: {group_text(group)}" for group in bad),
                style="warn",
                forms=("text",),
            ),
            Lines(heading="Not measured, or unknown", lines=(*unmeasured(report), *report.notes), style="warn"),
            Table(
                heading="Groups",
                columns=_GROUPS,
                rows=tuple(
                    (
                        str(group.step),
                        group.purpose,
                        some(group.hosts, 8),
                        f"{group.state}, repeated later" if group.repeated else group.state,
                        group.outcome,
                        group.why or "",
                    )
                    for group in groups
                ),
                forms=("md", "html"),
            ),
        ),
    )


def headline(report: CollectiveReport) -> str:
    """Return the verdict in one line."""
    if report.check:
        hosts = sum(host.outcome == "ok" for host in report.hosts)
        numbers = " → ".join(map(str, report.series)) or "none"
        return f"PLAN  {count(hosts, 'host')}, groups of {numbers} hosts; nothing was measured"
    states = Counter(group.state for group in report.groups if not group.repeated)
    counts = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
    kinds = Counter(fault.kind for fault in report.faults)
    told = ", ".join(f"{number} × {kind}" for kind, number in kinds.items())
    return f"{report.verdict.upper()}  groups of hosts: {counts or 'none'}" + (f"; at fault: {told}" if told else "")


def occasion(report: CollectiveReport) -> Iterator[str]:
    """Yield what was measured, how, and against what."""
    how = "PyTorch with NCCL or RCCL on the GPUs" if report.device == "gpu" else "PyTorch with gloo on the CPUs"
    versions = {host.library for host in report.hosts if host.outcome == "ok" and host.library}
    yield (
        f"{how} ({some(sorted(versions), 2) or 'versions unknown'}),"
        f" {count(report.ranks_per_host or 0, 'rank')} a host,"
        f" run {report.run}; the series takes at most {report.minutes:g} minutes"
    )
    yield f"low: {'; or '.join(_against(report))}"
    names = sorted({name for host in report.hosts if host.outcome == "ok" for name in host.environment})
    if names:
        yield f"set in the environment, and kept: {some(names, 12)}"


def _against(report: CollectiveReport) -> Iterator[str]:
    if "prediction" in report.against:
        yield "below the prediction of this shape (hosttune predict)"
    if "fleet" in report.against:
        yield f"below {report.floor:g} of the median of groups of as many hosts"
    if report.least is not None:
        yield f"below {report.least:g} GB/s at the largest size"


def scaling_row(row: Scaling) -> tuple[str, ...]:
    """Return a row of the table of scaling."""

    def number(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.4g}"

    efficiency = "" if row.efficiency is None else f"{row.efficiency:.0%} of {row.base_hosts} hosts"
    alone = "" if row.of_one_host is None else f"{row.of_one_host:.0%}"
    return (
        *(str(row.hosts), str(row.ranks), str(row.groups), number(row.busbw), number(row.lowest)),
        *(number(row.typical), number(row.bound), efficiency, alone),
    )


def group_text(group: HostGroup) -> str:
    """Return a group with its hosts and reason in one line."""
    outcome = "" if group.outcome == "measured" else f"{group.outcome}: "
    return f"step {group.step}, {some(group.hosts, 6)}: {outcome}{group.why or 'no reason is known'}"


def unmeasured(report: CollectiveReport) -> Iterator[str]:
    """Yield the hosts that were not measured, and the reasons of unknown groups, alike ones together."""
    yield from unmeasured_hosts(report)
    unknown = (group for group in report.groups if group.state == "unknown" and not group.repeated)
    for (outcome, why), groups in grouped(((group.outcome, group.why), group) for group in unknown).items():
        what = f"{outcome}, not judged" if outcome == "measured" else outcome
        steps = [f"step {step}" for step in dict.fromkeys(group.step for group in groups)]
        reason = f": {why}" if why else ""
        yield f"unknown: {what}{reason}: {count(len(groups), 'group')} ({some(steps, 4)})"


def member_report(member: Member) -> Report:
    """Return what a host has, and its part of a collective if it took part."""
    guests = "unknown" if member.guests is None else ", ".join(member.guests) or "none"
    has = []
    if member.library is not None:
        has.append(f"{member.library.words}; GPUs that it sees: {member.library.gpus} of {member.gpus_present}")
    if member.place is not None:
        rate = "rate unknown" if member.place.rate_gbps is None else f"{member.place.rate_gbps:g} Gb/s"
        has.append(f"meets others at {member.place.interface}, {member.place.address or 'no address'}, {rate}")
    has += [f"{name}={value}" for name, value in member.environment.items()]
    part = [f"group {member.group}: {member.outcome} {member.why or ''}".rstrip()] if member.group is not None else []
    part += [
        f"{timing.kind}, {timing.size_bytes} bytes, {timing.ranks} ranks: {min(timing.seconds):.4g} s"
        for timing in member.timings
    ]
    return Report(
        kind="A host's part in collectives",
        headline=f"{member.host or 'host'}: running guests: {guests}",
        blocks=(
            Lines(heading="What it has", lines=(*has, *member.settings), whole=True),
            Lines(heading="Its part", lines=tuple(part), whole=True),
            Lines(heading="Notes", lines=member.notes, style="warn", whole=True),
        ),
    )
