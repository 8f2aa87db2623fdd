"""The report on pairs of hosts as one self-contained HTML page: what is at fault, and a heat map for each rail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosttune.assets import folder
from hosttune.model.pairs import Pair, PairsReport
from hosttune.report.heatmaps import STEPS, Cell, Matrix, cell_step, colour_range
from hosttune.report.page import page_templates
from hosttune.report.pairs_text import counted, headline, measured_hosts, occasion, rail_lines, unmeasured

MOST_IN_MAP = 128  # hosts; above, only those with a pair that is not good, as many as fit
_SIGNS = {"cut": "cut", "unknown": "?"}


def html(report: PairsReport) -> str:
    """Return the page. Rows of a map send, columns receive; a pair that is not in a round has no figure."""
    from markupsafe import Markup

    environment = page_templates(STEPS=STEPS)
    return environment.get_template("pairs.html.j2").render(
        report=report,
        title=headline(report),
        occasion=tuple(occasion(report)),
        matrices=maps(report),
        rails=tuple(rail_lines(report)),
        unmeasured=(*counted(report), *unmeasured(report), *report.notes),
        style=Markup((folder("templates") / "report" / "style.css").read_text()),
    )


def maps(report: PairsReport) -> tuple[Matrix, ...]:
    """Return the heat map of each rail."""
    names = _shown(report)
    rails: dict[str, dict[tuple[str, str], Pair]] = {}
    for pair in report.pairs:
        rails.setdefault(pair.rail, {})[pair.sender, pair.receiver] = pair
    return tuple(_map(rail, names, found) for rail, found in sorted(rails.items()))


def _shown(report: PairsReport) -> tuple[str, ...]:
    hosts = measured_hosts(report)
    if len(hosts) <= MOST_IN_MAP:
        return tuple(hosts)
    of_faults = [host for fault in report.faults for host in fault.hosts]
    bad = [host for pair in report.pairs if pair.state != "good" for host in (pair.sender, pair.receiver)]
    return tuple(dict.fromkeys((*of_faults, *bad, *hosts)))[:MOST_IN_MAP]


def _map(rail: str, names: tuple[str, ...], found: Mapping[tuple[str, str], Pair]) -> Matrix:
    figures = [pair.gbps for pair in found.values() if pair.gbps is not None]
    ramp = colour_range(figures, lower_is_better=False)
    return Matrix(
        title=f"rail {rail}",
        words="from a host to another",
        unit="Gb/s",
        names=names,
        columns=names,
        rows=tuple(tuple(_cell(found.get((row, column)), ramp) for column in names) for row in names),
        best=f"{ramp[0]:.3g}" if figures else "",
        worst=f"{ramp[1]:.3g}" if figures else "",
    )


def _cell(pair: Pair | None, ramp: Sequence[float]) -> Cell:
    if pair is None:
        return Cell(text="–", note="not in a round this way")
    if pair.gbps is None:
        note = f"{pair.outcome}: {pair.why or ''}"
        return Cell(text=_SIGNS.get(pair.state, "?"), below_floor=pair.state == "cut", note=note)
    step = cell_step(pair.gbps, (ramp[0], ramp[1]))
    return Cell(text=f"{pair.gbps:.3g}", step=step, below_floor=pair.state == "low", note=pair.state)
