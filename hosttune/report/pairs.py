"""The report on pairs of hosts: what is at fault, rails with a heat map each, and what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hosttune.model.listing import some
from hosttune.model.pairs import GPU_RAIL, Ends, Fault, Pair, PairsReport, Port
from hosttune.model.text import count
from hosttune.model.values import grouped
from hosttune.report.blocks import Lines, Maps, Report, Table
from hosttune.report.heatmaps import HeatCell, Matrix, cell_step, colour_range
from hosttune.report.outcomes import unmeasured_hosts

MOST_IN_MAP = 128  # hosts; above, only those with a pair that is not good, as many as fit
_SIGNS = {"cut": "cut", "unknown": "?"}
_FAULT = "✗"
_READING = (
    "Each cell is one pair: the row's host sent, the column's host received. The stronger the colour, the slower. ✗ in"
    " a cell: low or cut; ✗ before a name: the host, or its port on this rail, is at fault; ?: unknown; empty: not"
    " measured in this direction."
)


def pairs_report(report: PairsReport) -> Report:
    """Return the report of a run of `pairs`."""
    explained = "" if report.check else "No measured pair is low or cut."
    return Report(
        kind="Pairs of hosts",
        verdict=report.verdict,
        headline=headline(report),
        occasion=tuple(occasion(report)),
        stopped=report.stopped,
        blocks=(
            Lines(
                heading="What explains low and cut pairs",
                lines=tuple(fault.words for fault in report.faults),
                style="error",
                empty=explained,
            ),
            Lines(
                heading="Not measured, unknown, or with errors",
                lines=(*counted(report), *smaller_paths(report), *unmeasured(report), *report.notes),
                style="warn",
            ),
            Lines(heading="Rails", lines=tuple(rail_lines(report))),
            Maps(heading="Heat maps of rails", parts=maps(report), reading=_READING),
        ),
    )


def headline(report: PairsReport) -> str:
    """Return the verdict in one line."""
    if report.check:
        hosts = count(len(measured_hosts(report)), "host")
        return f"PLAN  {hosts}, {count(report.rounds, 'round')}; nothing was measured"
    kinds = Counter(fault.kind for fault in report.faults)
    told = ", ".join(count(number, kind) for kind, number in kinds.items())
    states = Counter(pair.state for pair in report.pairs)
    counts = ", ".join(f"{states[state]} {state}" for state in ("good", "low", "cut", "unknown") if states[state])
    return f"{report.verdict.upper()}  pairs: {counts or 'none'}" + (f"; at fault: {told}" if told else "")


def occasion(report: PairsReport) -> Iterator[str]:
    """Yield what was measured, how, and against what."""
    extent = "all pairs" if report.all_pairs else "not all pairs: each host with as many others as there are rounds"
    how = "iperf3 (TCP)" if report.tool == "tcp" else "ib_write_bw (RDMA)"
    yield f"{how}, {count(report.rounds, 'round')} ({extent}), estimated {report.minutes:g} minutes, run {report.run}"
    median = "the median of pairs of the same rate, or of the same rail"
    against = {"rate": "the lower active rate of the two ports", "median": median}
    yield f"low: below {report.floor:g} of {' or of '.join(against[kind] for kind in report.against)}"
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
    by_reason = grouped(
        ((pair.outcome, pair.why), f"{pair.sender} to {pair.receiver} on {pair.rail}")
        for pair in report.pairs
        if pair.state == "unknown"
    )
    for (outcome, why), names in by_reason.items():
        yield f"unknown: {outcome}{f': {why}' if why else ''}: {count(len(names), 'pair')} ({some(names, 4)})"


def counted(report: PairsReport) -> Iterator[str]:
    """Yield what ports counted while their pair was measured, worst pairs first."""
    with_errors = [(pair, pair.errors) for pair in report.pairs if pair.errors]
    with_errors.sort(key=lambda row: -len(row[1]))
    for pair, errors in with_errors:
        yield f"errors: {pair.sender} to {pair.receiver} on {pair.rail}: {some(errors, 4)}"


def smaller_paths(report: PairsReport) -> Iterator[str]:
    """Yield the paths that do not carry packets as large as the sender's MTU, alike ones together."""
    by_rail = grouped(
        ((pair.rail, pair.path_mtu.why), f"{pair.sender} to {pair.receiver}")
        for pair in report.pairs
        if pair.path_mtu.state == "smaller"
    )
    for (rail, why), names in by_rail.items():
        yield f"MTU of the path on {rail}: {why}: the peer's port or a switch has less ({some(names, 8)})"


def measured_hosts(report: PairsReport) -> list[str]:
    """Return the hosts that are in rounds."""
    return [host.host for host in report.hosts if host.outcome == "ok"]


def maps(report: PairsReport) -> tuple[Matrix, ...]:
    """Return the heat map of each rail. A host that is at fault there has a mark before its name."""
    names = _shown(report)
    domains = {name.partition(".")[2] for name in names}
    short = tuple(name.partition(".")[0] for name in names) if len(names) > 1 and len(domains) == 1 else tuple(names)
    rails: dict[str, dict[tuple[str, str], Pair]] = {}
    for pair in report.pairs:
        rails.setdefault(pair.rail, {})[pair.sender, pair.receiver] = pair
    return tuple(_map(rail, names, short, found, report.faults) for rail, found in sorted(rails.items()))


def _shown(report: PairsReport) -> tuple[str, ...]:
    hosts = measured_hosts(report)
    if len(hosts) <= MOST_IN_MAP:
        return tuple(hosts)
    of_faults = [host for fault in report.faults for host in fault.hosts]
    bad = [host for pair in report.pairs if pair.state != "good" for host in (pair.sender, pair.receiver)]
    return tuple(dict.fromkeys((*of_faults, *bad, *hosts)))[:MOST_IN_MAP]


def _map(
    rail: str,
    names: Sequence[str],
    short: Sequence[str],
    found: Mapping[tuple[str, str], Pair],
    faults: Sequence[Fault],
) -> Matrix:
    figures = [pair.gbps for pair in found.values() if pair.gbps is not None]
    ramp = colour_range(figures, lower_is_better=False)
    blamed = {fault.hosts[0] for fault in faults if fault.kind in ("host", "port") and fault.rail in (None, rail)}
    marked = tuple(f"{_FAULT} {text}" if name in blamed else text for name, text in zip(names, short, strict=True))
    return Matrix(
        title=f"rail {rail}",
        words="",
        unit="Gb/s",
        names=marked,
        columns=marked,
        rows=tuple(tuple(_cell(found.get((row, column)), ramp) for column in names) for row in names),
        best=f"{ramp[0]:.3g}" if figures else "",
        worst=f"{ramp[1]:.3g}" if figures else "",
    )


def _cell(pair: Pair | None, ramp: Sequence[float]) -> HeatCell:
    if pair is None:
        return HeatCell(text="")
    way = f"{pair.sender} to {pair.receiver}"
    if pair.gbps is None:
        note = f"{way}: {pair.outcome}{f': {pair.why}' if pair.why else ''}"
        return HeatCell(text=_SIGNS.get(pair.state, "?"), below_floor=pair.state == "cut", note=note)
    step = cell_step(pair.gbps, (ramp[0], ramp[1]))
    expected = f", expected {pair.expected:.3g} or more" if pair.expected is not None else ""
    note = f"{way}: {pair.state}{expected}" if pair.state != "good" else ""
    return HeatCell(text=f"{pair.gbps:.3g}", step=step, below_floor=pair.state == "low", note=note)


def ends_report(found: Ends) -> Report:
    """Return the ports of a host, and its ends if it has measured."""
    guests = "unknown" if found.guests is None else ", ".join(found.guests) or "none"
    ends = tuple(
        (end.rail, end.role, end.outcome, f"{end.gbps:.4g} Gb/s" if end.gbps is not None else end.why or "")
        for end in found.ends
    )
    return Report(
        kind="A host's part in measuring between hosts",
        headline=f"{found.host or 'host'}: tools: {', '.join(found.tools) or 'none'}; running guests: {guests}",
        blocks=(
            Lines(heading="Ports", lines=tuple(line for port in found.ports for line in _port(port)), whole=True),
            Table(heading="Measured", columns=("rail", "as", "outcome", "figure"), rows=ends, whole=True),
            Lines(heading="Notes", lines=found.notes, style="warn", whole=True),
        ),
    )


def _port(port: Port) -> Iterator[str]:
    rate = "rate unknown" if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s"
    device = f"{port.rdma}/{port.rdma_port}" if port.rdma and port.rdma_port else port.rdma
    facts = (device, port.link_layer, port.state, port.address or "no address", rate)
    gpu = f"with the memory of GPU {port.gpu.address}" if port.gpu else None
    yield f"{port.rail}: {', '.join(fact for fact in (*facts, gpu) if fact)}"
    if port.gpu_why:
        yield f"{port.rail}: not with the memory of its GPU: {port.gpu_why}"
