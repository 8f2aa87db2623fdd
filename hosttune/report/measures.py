"""Samples as reports show them: runs of one metric and subject together, with their median and what they stand beside.

Whether more or less is better is told by the scale, else by the metric's family.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from hosttune.bench.metrics import metric_of
from hosttune.model.validation import Sample
from hosttune.model.values import Value


class Scale(Value, frozen=True, kw_only=True):
    """What a metric's figures stand beside, in the metric's own unit; None is unknown. `subject` None: every subject's.

    `floor` is the least (of a latency the most) that is accepted, `typical` what a good one measures, as `typical_is`
    says: a fleet's median, this host's own history, a reference. `peak` is what the hardware can do at most. `source`
    says where the floor comes from.
    """

    metric: str
    subject: str | None = None
    floor: float | None = None
    typical: float | None = None
    typical_is: str = "typical"
    peak: float | None = None
    lower_is_better: bool | None = None
    source: str | None = None


class Measure(Value, frozen=True, kw_only=True):
    """All runs of one metric and subject, in order; a run without a figure is None and counts as missing."""

    metric: str
    subject: str
    unit: str
    runs: tuple[float | None, ...]
    scale: Scale | None = None

    @property
    def figures(self) -> tuple[float, ...]:
        """The runs that gave a finite figure."""
        return tuple(run for run in self.runs if run is not None and math.isfinite(run))

    @property
    def missing(self) -> int:
        """Runs that gave none."""
        return len(self.runs) - len(self.figures)

    @property
    def median(self) -> float | None:
        """Of the figures; None where there is none."""
        return median(self.figures) if self.figures else None

    @property
    def lowest(self) -> float | None:
        """Of the figures."""
        return min(self.figures, default=None)

    @property
    def highest(self) -> float | None:
        """Of the figures."""
        return max(self.figures, default=None)

    @property
    def lower_is_better(self) -> bool:
        """As the scale says, else the metric's family; of a metric that nobody knows more is better."""
        if self.scale and self.scale.lower_is_better is not None:
            return self.scale.lower_is_better
        family = metric_of(self.metric)
        return family is not None and family.direction == "lower"

    @property
    def below_floor(self) -> bool | None:
        """The median is on the wrong side of the floor; None where either is unknown."""
        if self.median is None or self.scale is None or self.scale.floor is None:
            return None
        return self.median > self.scale.floor if self.lower_is_better else self.median < self.scale.floor


def measures(samples: Iterable[Sample], scales: Iterable[Scale] = ()) -> tuple[Measure, ...]:
    """Samples by metric, subject and unit, metrics and subjects in the order in which they first appear."""
    beside = {(scale.metric, scale.subject): scale for scale in scales}
    runs: dict[str, dict[tuple[str, str], list[float | None]]] = {}
    for sample in samples:
        runs.setdefault(sample.metric, {}).setdefault((sample.subject, sample.unit), []).append(sample.value)
    return tuple(
        Measure(
            metric=metric,
            subject=subject,
            unit=unit,
            runs=tuple(values),
            scale=beside.get((metric, subject)) or beside.get((metric, None)),
        )
        for metric, subjects in runs.items()
        for (subject, unit), values in subjects.items()
    )


def by_metric(found: Iterable[Measure]) -> dict[str, Sequence[Measure]]:
    """Measures of each metric, in order."""
    metrics: dict[str, list[Measure]] = {}
    for measure in found:
        metrics.setdefault(measure.metric, []).append(measure)
    return dict(metrics)


def title_of(metric: str) -> str:
    """What a metric is in words; empty for one that nobody knows."""
    family = metric_of(metric)
    return family.title if family else ""


def number(value: float | None) -> str:
    """A figure for people: three significant digits at least, thousands parted, "unknown" for None."""
    if value is None or not math.isfinite(value):
        return "unknown"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or value == 0 else f"{value:.3g}"


MANY = 16  # subjects of one metric that a text lists one by one


def figure_rows(found: Sequence[Measure]) -> tuple[tuple[str, str], ...]:
    """(subject, figure) of the measures of one metric, as text; of more than MANY only the ends and the middle."""
    known = sorted((one for one in found if one.median is not None), key=lambda one: one.median or 0.0)
    if len(found) <= MANY or not known:
        return tuple((one.subject, figure(one)) for one in found)
    rows = [("lowest: " + known[0].subject, figure(known[0])), ("highest: " + known[-1].subject, figure(known[-1]))]
    middle = median(one.median for one in known if one.median is not None)
    rows.insert(1, (f"median of {len(known)}", number(middle)))
    missing = len(found) - len(known)
    return (*rows, *((("no figure", f"{missing} of {len(found)}"),) if missing else ()))


def figure(measure: Measure) -> str:
    """The median of a measure, and of several runs their range; runs without a figure are counted, never dropped."""
    runs = f"{len(measure.runs)} run{'' if len(measure.runs) == 1 else 's'}"
    if measure.median is None:
        return f"unknown: no figure from {runs}"
    missing = f", {measure.missing} without a figure" if measure.missing else ""
    if len(measure.runs) == 1:
        return number(measure.median)
    return f"{number(measure.median)}  ({number(measure.lowest)} to {number(measure.highest)}, {runs}{missing})"
