"""Hosts whose figures are low, by cause, in words."""

from __future__ import annotations

from hosttune.model.diagnosis import JudgedFigure
from hosttune.model.fleet import CauseGroup, FleetReport
from hosttune.report.branch import count
from hosttune.report.measures import number

NO_CAUSE = "no cause found"
GRADE_WORDS = {
    "proven": "proven: the fault was seen, and the figure keeps to the bound that it sets",
    "observed": "observed: the fault was seen, and it acts on such figures",
    "fits": "fits: the figure keeps to the bound that the fault sets",
    "indirect": "indirect: the fault was seen; no source says what it costs such figures",
    "default": "default: such machines have it unless it was removed",
    "possible": "possible: it acts on such figures, and nothing speaks against it",
}


def low_words(one: JudgedFigure) -> str:
    """Return a figure with what it should be: "h2d 0000:18:00.0 27.5 GB/s, low: typical 55.45, bound 63.02"."""
    value = "no value" if one.value is None else f"{number(one.value)} {one.unit}".rstrip()
    known = [("typical", one.typical), ("bound", one.bound)]
    about = ", ".join(f"{word} {number(figure)}" for word, figure in known if figure is not None)
    return f"{one.metric} {one.subject} {value}, {one.verdict}" + (f": {about}" if about else "")


def cause_title(one: CauseGroup) -> str:
    """Return the cause with its grade."""
    return f"{one.cause} ({one.grade})" if one.cause is not None else NO_CAUSE


def cause_size(one: CauseGroup) -> str:
    """Return how many figures of how many hosts."""
    hosts = count(len(one.hosts), "host")
    return f"{count(one.figures, 'low figure')} of {hosts}" if one.figures else f"{hosts}, no figure low"


def causes_heading(report: FleetReport) -> str:
    """Return the heading of the section."""
    return f"hosts that are low, by cause: {sum(len(one.hosts) for one in report.causes)} of {len(report.hosts)}"
