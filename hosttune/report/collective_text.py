"""The report on collectives over several hosts as text: verdict, faults, scaling, and what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hosttune.model.collective import CollectiveReport, GroupState, HostGroup, Scaling
from hosttune.model.listing import some
from hosttune.report.between_text import first_lines, print_rest, print_top, unmeasured_hosts
from hosttune.report.branch import count
from hosttune.report.validation_text import prose

if TYPE_CHECKING:
    from rich.console import Console

_STATES: tuple[GroupState, ...] = ("good", "low", "failed", "unknown")


def print_collective(report: CollectiveReport, console: Console) -> None:
    """Print what explains bad groups first. Lines have at most 100 columns."""
    print_top(report, headline(report), occasion(report), console)
    for kind, size in sections(report):
        prose(f"{kind}, {size_words(size)}, bus bandwidth:", 0, console)
        for row in report.scaling:
            if (row.kind, row.size_bytes) == (kind, size):
                prose(scaling_line(row), 2, console, hang=2)
    print_rest((*bad_lines(report), *unmeasured(report), *report.notes), console)


def headline(report: CollectiveReport) -> str:
    """Return the verdict in one line."""
    if report.check:
        hosts = sum(host.outcome == "ok" for host in report.hosts)
        numbers = " → ".join(map(str, report.series)) or "none"
        return f"PLAN  {count(hosts, 'host')}, groups of {numbers} hosts; nothing was measured"
    states = Counter(group.state for group in report.groups if not group.repeated)
    found = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
    kinds = Counter(fault.kind for fault in report.faults)
    told = ", ".join(f"{number} × {kind}" for kind, number in kinds.items())
    return f"{report.verdict.upper()}  groups of hosts: {found or 'none'}" + (f"; at fault: {told}" if told else "")


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


def sections(report: CollectiveReport) -> list[tuple[str, int]]:
    """Return the kinds and sizes of the report, in its order."""
    return list(dict.fromkeys((row.kind, row.size_bytes) for row in report.scaling))


def size_words(size: int) -> str:
    """Return a size for people: "256 MiB"; bytes that are no whole unit with two decimals."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def scaling_line(row: Scaling) -> str:
    """Return a row of the scaling in one line."""
    said = [f"{count(row.hosts, 'host')}, {count(row.ranks, 'rank')}: {row.busbw:.4g} GB/s"]
    if row.groups > 1:
        said.append(f"median of {row.groups} groups, lowest {row.lowest:.4g}")
    if row.typical is not None or row.bound is not None:
        typical = "unknown" if row.typical is None else f"{row.typical:.4g}"
        bound = "unknown" if row.bound is None else f"{row.bound:.4g}"
        said.append(f"predicted {typical}, bound {bound}")
    else:
        said.append("no prediction")
    if row.efficiency is not None:
        said.append(f"efficiency {row.efficiency:.0%} of {row.base_hosts} hosts")
    if row.of_one_host is not None:
        said.append(f"{row.of_one_host:.0%} of one host")
    return ", ".join(said)


def bad_lines(report: CollectiveReport) -> Iterator[str]:
    """Yield the groups that are low or failed, with their reasons."""
    bad = [group for group in report.groups if group.state in ("low", "failed") and not group.repeated]
    yield from first_lines([f"{group.state}: {group_words(group)}" for group in bad], "groups")


def group_words(group: HostGroup) -> str:
    """Return a group with its hosts and reason in one line."""
    outcome = "" if group.outcome == "measured" else f"{group.outcome}: "
    return f"step {group.step}, {some(group.hosts, 6)}: {outcome}{group.why or 'no reason is known'}"


def unmeasured(report: CollectiveReport) -> Iterator[str]:
    """Yield the hosts that were not measured, and the reasons of unknown groups, alike ones together."""
    yield from unmeasured_hosts(report)
    found: dict[tuple[str, str | None], list[HostGroup]] = {}
    for group in report.groups:
        if group.state == "unknown" and not group.repeated:
            found.setdefault((group.outcome, group.why), []).append(group)
    lines = []
    for (outcome, why), groups in found.items():
        what = f"{outcome}, not judged" if outcome == "measured" else outcome
        steps = [f"step {step}" for step in dict.fromkeys(group.step for group in groups)]
        reason = f": {why}" if why else ""
        lines.append(f"unknown: {what}{reason}: {count(len(groups), 'group')} ({some(steps, 4)})")
    yield from first_lines(lines, "reasons")
