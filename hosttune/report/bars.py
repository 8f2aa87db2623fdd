"""Bars of each measure: its median from zero, its range of runs, and its floor, typical figure and peak on one axis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hosttune.bench.measures import Measure, pair_of, percent, title_of
from hosttune.model.text import count, number
from hosttune.model.values import Value
from hosttune.report.outcomes import Mark

_SIZED = re.compile(
    r"(.+)-([0-9]+(?:[kmg]i)?b)", re.IGNORECASE
)  # "all-reduce-64mib": one chart for all sizes of a metric


class BarRow(Value, frozen=True, kw_only=True):
    """One row: texts, and positions in percent of the axis (None: unknown). `mark`: whether the figure is as it should
    be; `low`, `high`: the range of the runs; `why`: said below the row.
    """

    name: str
    figure: str
    beside: str = ""
    mark: Mark | None = None
    why: str = ""
    width: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    typical: float | None = None
    bound: float | None = None


class Chart(Value, frozen=True, kw_only=True):
    """All subjects of a metric, or all sizes of one.

    `axis` is the value at 100 percent; `notes` are about all bars.
    """

    title: str
    words: str
    unit: str
    axis: str
    bars: tuple[BarRow, ...]
    notes: tuple[str, ...] = ()
    lower_is_better: bool = False


def charts(measures: Iterable[Measure]) -> tuple[Chart, ...]:
    """Return a chart for each metric whose subjects are single things. Pairs are shown in heat maps."""
    together: dict[tuple[str, str], list[Measure]] = {}
    for measure in measures:
        if pair_of(measure.subject) is None:
            sized = _SIZED.fullmatch(measure.metric)
            title = f"{sized[1]}, {measure.subject}" if sized else measure.metric
            together.setdefault((title, measure.unit), []).append(measure)
    return tuple(_chart(title, unit, members) for (title, unit), members in together.items())


def _chart(title: str, unit: str, members: Sequence[Measure]) -> Chart:
    scales = [measure.scale for measure in members if measure.scale]
    peaks = [scale.peak for scale in scales if scale.peak]
    known = [measure.highest for measure in members if measure.highest is not None]
    floors = [scale.floor for scale in scales if scale.floor]
    usual = [scale.typical for scale in scales if scale.typical]
    axis = max((*peaks, *known, *floors, *usual), default=0.0)
    texts: dict[tuple[str, ...], None] = {}
    for measure in members:
        scale = measure.scale
        if scale is None:
            continue
        least = "at most" if measure.lower_is_better else "at least"
        facts = [f"floor: {least} {number(scale.floor)} {measure.unit}"] if scale.floor is not None else []
        facts += [f"{scale.typical_is}: {number(scale.typical)} {measure.unit}"] if scale.typical is not None else []
        facts += [f"peak: {number(scale.peak)} {measure.unit}"] if scale.peak is not None else []
        facts += [f"source: {scale.source}"] if scale.source else []
        texts[tuple(facts)] = None
    notes = [facts for facts in texts if not any(set(facts) < set(more) for more in texts)]
    return Chart(
        title=title,
        words=title_of(members[0].metric),
        unit=unit,
        axis=number(axis),
        bars=tuple(_bar(measure, axis) for measure in members),
        notes=tuple(map(", ".join, notes)) if len(notes) <= 3 else (),
        lower_is_better=members[0].lower_is_better,
    )


def _bar(measure: Measure, axis: float) -> BarRow:
    scale = measure.scale
    sized = _SIZED.fullmatch(measure.metric)
    runs = count(len(measure.runs), "run")
    missing = f", {measure.missing} without a figure" if measure.missing else ""
    several = len(measure.figures) > 1
    part = measure.median / scale.peak if measure.median is not None and scale and scale.peak else None
    beside = "" if part is None else f"{part:.0%} of peak; "
    beside += f"{number(measure.lowest)}–{number(measure.highest)}, {runs}{missing}" if several else f"{runs}{missing}"
    side = "above floor" if measure.lower_is_better else "below floor"
    return BarRow(
        name=sized[2] if sized else measure.subject,
        figure=number(measure.median),
        beside=beside,
        mark=Mark("fail", side) if measure.below_floor else None,
        width=percent(measure.median, axis),
        low=percent(measure.lowest, axis) if several else None,
        high=percent(measure.highest, axis) if several else None,
        floor=percent(scale.floor, axis) if scale else None,
        typical=percent(scale.typical, axis) if scale else None,
    )
