"""The report on pairs of hosts as one self-contained HTML page: what is at fault, and a heat map for each rail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosttune.assets import folder
from hosttune.model.pairs import Fault, Pair, PairsReport
from hosttune.report.heatmaps import STEPS, Cell, Matrix, cell_step, colour_range
from hosttune.report.page import page_templates
from hosttune.report.pairs_text import (
    counted,
    headline,
    measured_hosts,
    occasion,
    rail_lines,
    smaller_paths,
    unmeasured,
)

MOST_IN_MAP = 128  # hosts; above, only those with a pair that is not good, as many as fit
DENSE = 10  # hosts; above, cells are small and names of columns stand upright
_SIGNS = {"cut": "cut", "unknown": "?"}
_FAULT = "✗"


def html(report: PairsReport) -> str:
    """Return the page. Rows of a map send, columns receive; a pair that is not in a round has no figure."""
    from markupsafe import Markup

    style = "".join((folder("templates") / "report" / name).read_text() for name in ("style.css", "pairs.css"))
    return (
        page_templates(STEPS=STEPS, DENSE=DENSE)
        .get_template("pairs.html.j2")
        .render(
            report=report,
            title=headline(report),
            occasion=tuple(occasion(report)),
            matrices=maps(report),
            rails=tuple(rail_lines(report)),
            unmeasured=(*counted(report), *smaller_paths(report), *unmeasured(report), *report.notes),
            style=Markup(style),
        )
    )


def maps(report: PairsReport) -> tuple[Matrix, ...]:
    """Return the heat map of each rail. A host that is at fault there has a mark before its name."""
    names = _shown(report)
    short = _short(names)
    rails: dict[str, dict[tuple[str, str], Pair]] = {}
    for pair in report.pairs:
        rails.setdefault(pair.rail, {})[pair.sender, pair.receiver] = pair
    return tuple(_map(rail, names, short, found, report.faults) for rail, found in sorted(rails.items()))


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without the domain that all of them have in common."""
    domains = {name.partition(".")[2] for name in names}
    return tuple(name.partition(".")[0] for name in names) if len(names) > 1 and len(domains) == 1 else tuple(names)


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


def _cell(pair: Pair | None, ramp: Sequence[float]) -> Cell:
    if pair is None:
        return Cell(text="")
    way = f"{pair.sender} to {pair.receiver}"
    if pair.gbps is None:
        note = f"{way}: {pair.outcome}{f': {pair.why}' if pair.why else ''}"
        return Cell(text=_SIGNS.get(pair.state, "?"), below_floor=pair.state == "cut", note=note)
    step = cell_step(pair.gbps, (ramp[0], ramp[1]))
    expected = f", expected {pair.expected:.3g} or more" if pair.expected is not None else ""
    note = f"{way}: {pair.state}{expected}" if pair.state != "good" else ""
    return Cell(text=f"{pair.gbps:.3g}", step=step, below_floor=pair.state == "low", note=note)
