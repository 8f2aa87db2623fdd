"""The report on pairs of hosts as text: verdict, faults, rails, and what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hosttune.model.listing import some
from hosttune.model.pairs import GPU_RAIL, PairsReport
from hosttune.report.between_text import first_lines, print_rest, print_top, unmeasured_hosts
from hosttune.report.branch import count
from hosttune.report.validation_text import prose

if TYPE_CHECKING:
    from rich.console import Console


def print_pairs(report: PairsReport, console: Console) -> None:
    """Print what explains low pairs first. Lines have at most 100 columns."""
    print_top(report, headline(report), occasion(report), console)
    for line in rail_lines(report):
        prose(line, 0, console)
    print_rest((*counted(report), *smaller_paths(report), *unmeasured(report), *report.notes), console)


def headline(report: PairsReport) -> str:
    """Return the verdict in one line."""
    if report.check:
        hosts = count(len(measured_hosts(report)), "host")
        return f"PLAN  {hosts}, {count(report.rounds, 'round')}; nothing was measured"
    kinds = Counter(fault.kind for fault in report.faults)
    told = ", ".join(count(number, kind) for kind, number in kinds.items())
    states = Counter(pair.state for pair in report.pairs)
    found = ", ".join(f"{states[state]} {state}" for state in ("good", "low", "cut", "unknown") if states[state])
    return f"{report.verdict.upper()}  pairs: {found or 'none'}" + (f"; at fault: {told}" if told else "")


def occasion(report: PairsReport) -> Iterator[str]:
    """Yield what was measured, how, and against what."""
    extent = "all pairs" if report.all_pairs else "not all pairs: each host with as many others as there are rounds"
    how = "iperf3 (TCP)" if report.tool == "tcp" else "ib_write_bw (RDMA)"
    yield f"{how}, {count(report.rounds, 'round')} ({extent}), estimated {report.minutes:g} minutes, run {report.run}"
    median = "the median of pairs of the same rate, or of the same rail"
    against = {"rate": "the lower active rate of the two ports", "median": median}
    yield f"low: below {report.floor:g} of {' or of '.join(against[one] for one in report.against)}"
    if any(pair.memory == "gpu" for pair in report.pairs):
        rails = f"rails with {GPU_RAIL.strip()} behind their name: both ends with the memory of GPUs (GPUDirect RDMA)"
        yield f"{rails}; low there also below {report.floor:g} of the same pair with host memory"


def rail_lines(report: PairsReport) -> Iterator[str]:
    """Yield a line a rail: its median and how many pairs in which state."""
    for rail in report.rails:
        median = "no figure" if rail.median is None else f"median {rail.median:.4g} Gb/s"
        yield f"rail {rail.rail}: {median}; {rail.good} good, {rail.low} low, {rail.cut} cut, {rail.unknown} unknown"


def unmeasured(report: PairsReport) -> Iterator[str]:
    """Yield the hosts that were not measured, and the reasons of unknown pairs, alike ones together."""
    yield from unmeasured_hosts(report)
    found: dict[tuple[str, str | None], list[str]] = {}
    for pair in report.pairs:
        if pair.state == "unknown":
            found.setdefault((pair.outcome, pair.why), []).append(f"{pair.sender} to {pair.receiver} on {pair.rail}")
    lines = [
        f"unknown: {outcome}{f': {why}' if why else ''}: {count(len(names), 'pair')} ({some(names, 4)})"
        for (outcome, why), names in found.items()
    ]
    yield from first_lines(lines, "reasons")


def counted(report: PairsReport) -> Iterator[str]:
    """Yield what ports counted while their pair was measured, worst pairs first."""
    found = [(pair, pair.errors) for pair in report.pairs if pair.errors]
    found.sort(key=lambda one: -len(one[1]))
    lines = [f"errors: {one.sender} to {one.receiver} on {one.rail}: {some(errors, 4)}" for one, errors in found]
    yield from first_lines(lines, "pairs with errors")


def smaller_paths(report: PairsReport) -> Iterator[str]:
    """Yield the paths that do not carry packets as large as the sender's MTU, alike ones together."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for pair in report.pairs:
        if pair.path_mtu.state == "smaller":
            found.setdefault((pair.rail, pair.path_mtu.why), []).append(f"{pair.sender} to {pair.receiver}")
    lines = [
        f"MTU of the path on {rail}: {why}: the peer's port or a switch has less ({some(names, 8)})"
        for (rail, why), names in found.items()
    ]
    yield from first_lines(lines, "paths")


def measured_hosts(report: PairsReport) -> list[str]:
    """Return the hosts that are in rounds."""
    return [host.host for host in report.hosts if host.outcome == "ok"]
