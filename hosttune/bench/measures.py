"""Samples as reports show them: runs of one metric and subject together, with their median and what to compare it with.

The scale says whether higher or lower is better; otherwise the metric's family does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hosttune.bench.baselines import Baseline, Standard, pair_links
from hosttune.bench.metrics import metric_of
from hosttune.model.host import Host
from hosttune.model.text import count, number
from hosttune.model.validation import Sample, Validation
from hosttune.model.values import Value, grouped


class Scale(Value, frozen=True, kw_only=True):
    """The figures that a metric is compared with, in the metric's unit. None is unknown. `subject` None: every subject.

    `floor` is the lowest accepted figure (for a latency, the highest). `typical` is a good figure; `typical_is` says
    which: a fleet's median, this host's own history, or a reference. `peak` is the hardware's maximum. `source` says
    where the floor comes from.
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
    """All runs of one metric and subject, in order. A run without a figure is None and counts as missing."""

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
        """The number of runs without a finite figure."""
        return len(self.runs) - len(self.figures)

    @property
    def median(self) -> float | None:
        """The median of the figures; None if there are none."""
        return median(self.figures) if self.figures else None

    @property
    def lowest(self) -> float | None:
        """The lowest figure; None if there are none."""
        return min(self.figures, default=None)

    @property
    def highest(self) -> float | None:
        """The highest figure; None if there are none."""
        return max(self.figures, default=None)

    @property
    def lower_is_better(self) -> bool:
        """Whether lower figures are better, by the scale or else by the metric's family.

        False for an unknown metric.
        """
        if self.scale and self.scale.lower_is_better is not None:
            return self.scale.lower_is_better
        family = metric_of(self.metric)
        return family is not None and family.direction == "lower"

    @property
    def below_floor(self) -> bool | None:
        """Whether the median is on the wrong side of the floor; None if either is unknown."""
        if self.median is None or self.scale is None or self.scale.floor is None:
            return None
        return self.median > self.scale.floor if self.lower_is_better else self.median < self.scale.floor


def measures(samples: Iterable[Sample], scales: Iterable[Scale] = ()) -> tuple[Measure, ...]:
    """Group samples by metric, subject and unit. Metrics and subjects are in the order in which they first appear."""
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
    """Return the measures of each metric, in order."""
    metrics = grouped((measure.metric, measure) for measure in found)
    return dict(metrics)


def title_of(metric: str) -> str:
    """Return a metric's name in words; empty for an unknown metric."""
    family = metric_of(metric)
    return family.title if family else ""


def percent(value: float | None, axis: float) -> float | None:
    """Return how long the bar of a value is, in percent of its axis; None if it has none."""
    if value is None or axis <= 0:
        return None
    return round(min(max(value / axis, 0.0), 1.0) * 100, 2)


MANY = 16  # subjects of one metric that a text lists one by one


def figure_rows(found: Sequence[Measure]) -> tuple[tuple[str, str], ...]:
    """Return (subject, figure) of the measures of one metric, as text.

    Of more than MANY: only the lowest, the median and the highest, and how many have no figure.
    """
    known = sorted(
        (measure for measure in found if measure.median is not None), key=lambda measure: measure.median or 0.0
    )
    if len(found) <= MANY or not known:
        return tuple((measure.subject, figure(measure)) for measure in found)
    rows = [("lowest: " + known[0].subject, figure(known[0])), ("highest: " + known[-1].subject, figure(known[-1]))]
    middle = median(measure.median for measure in known if measure.median is not None)
    rows.insert(1, (f"median of {len(known)}", number(middle)))
    missing = len(found) - len(known)
    return (*rows, *((("no figure", f"{missing} of {len(found)}"),) if missing else ()))


def figure(measure: Measure) -> str:
    """Return the median of a measure, and for several runs their range.

    Runs without a figure are counted, never dropped.
    """
    runs = count(len(measure.runs), "run")
    if measure.median is None:
        return f"unknown: no figure from {runs}"
    missing = f", {measure.missing} without a figure" if measure.missing else ""
    if len(measure.runs) == 1:
        return number(measure.median)
    return f"{number(measure.median)}  ({number(measure.lowest)} to {number(measure.highest)}, {runs}{missing})"


_PAIR = re.compile(r"(\S.*?)\s*(?:->|→|>|\bto\b)\s*(.*\S)")


def pair_of(subject: str) -> tuple[str, str] | None:
    """Return the two ends of a subject such as "0000:18:00.0>0000:29:00.0" or "node 0 to node 1".

    None for a single thing.
    """
    match = _PAIR.fullmatch(subject)
    return (match[1], match[2]) if match else None


# The figures that measurements are compared with: floors, references, peaks and this host's own history.
# hosttune.bench.baselines has the figures and their sources.


_GPUS = re.compile(r"([0-9]{1,3}) GPUs?")


def scales(
    samples: Iterable[Sample], host: Host | None, standard: Standard, history: Iterable[Validation] = ()
) -> tuple[Scale, ...]:
    """Return a scale for each metric and subject of the samples about which anything is known.

    The typical figure is a fleet's median if one is given, else the median of this host's earlier validations, else a
    reference. `typical_is` says which.
    """
    kinds = device_kinds(host)
    links = pair_links(host, list(kinds)) if host is not None else {}
    medians = grouped(
        ((measure.metric, measure.subject), measure.median)
        for validation in history
        for measure in measures(validation.samples)
        if measure.median is not None
    )
    before = {key: median(values) for key, values in medians.items()}
    known_scales = (
        _scale(metric, subject, kinds, standard, before, links.get(subject))
        for metric, subject in dict.fromkeys((sample.metric, sample.subject) for sample in samples)
    )
    return tuple(scale for scale in known_scales if scale)


def device_kinds(host: Host | None) -> dict[str, str]:
    """Return vendor:device of each GPU by address. Displays of other makers are left out."""
    if host is None:
        return {}
    gpus = {gpu.address for gpu in host.index.accelerators}
    return {device.address: device.ids for device in host.pci if device.address in gpus and device.ids}


def _scale(
    metric: str,
    subject: str,
    kinds: Mapping[str, str],
    standard: Standard,
    before: Mapping[tuple[str, str], float],
    links: int | None,
) -> Scale | None:
    kind, gpus = _measured_on(subject, kinds)
    rows = standard.of(metric, kind, gpus, links) if kind else ()
    by_kind: dict[str, Baseline] = {row.kind: row for row in reversed(rows)}  # the first of each kind
    floor, peak = by_kind.get("floor"), standard.peak(metric, kind, links)
    typical, words = _typical(by_kind, before.get((metric, subject)))
    family = metric_of(metric)
    if floor is None and typical is None and peak is None:
        return None
    return Scale(
        metric=metric,
        subject=subject,
        floor=floor.limit if floor else None,
        typical=typical,
        typical_is=words,
        peak=peak,
        lower_is_better=None if family is None else family.direction == "lower",
        source=floor.source if floor else None,
    )


def _typical(by_kind: Mapping[str, Baseline], before: float | None) -> tuple[float | None, str]:
    if "fleet" in by_kind:
        return by_kind["fleet"].expected, "fleet's median"
    if before is not None:
        return before, "this host before"
    if "reference" in by_kind:
        return by_kind["reference"].expected, "reference"
    return None, ""


def _measured_on(subject: str, kinds: Mapping[str, str]) -> tuple[str | None, int]:
    """Return (vendor:device, GPUs at once) of a subject.

    A subject is a GPU, a pair of the same model, or "8 GPUs" if all are of the same model.
    """
    together = _GPUS.fullmatch(subject)
    if together:
        alike = set(kinds.values())
        return (alike.pop() if len(alike) == 1 else None), int(together[1])
    ends = {kinds.get(name) for name in pair_of(subject) or (subject,)}
    return (ends.pop() if len(ends) == 1 else None), 1
