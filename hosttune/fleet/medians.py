"""What a fleet measures: of each metric and device model the median and the median absolute deviation (MAD), figures
that lie far from them, and floors made of them for `hosttune validate --fleet`. Pure.

One figure is the median of the runs of one subject (a GPU, a pair of GPUs) on one host. Far is a modified z-score
|0.6745 x (value - median) / MAD| above 3.5: B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", ASQC
Quality Press 1993; NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.17. Half of the figures may be bad before
either number moves. A difference too small to matter is none, however alike the others are.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hosttune.bench.baselines import Peaks, read_baselines, shipped
from hosttune.bench.compare import LEAST
from hosttune.bench.metrics import converted, metric_of
from hosttune.errors import BadInput
from hosttune.model.fleet import Median, Outlier
from hosttune.model.validation import Sample
from hosttune.report.branch import printable

FAR = 3.5  # modified z-score
_CONSISTENT = 0.6745  # of a normal distribution the MAD is so many standard deviations
FEWEST_HOSTS = 5  # with fewer there is no telling who is the odd one
LEAST_WITHOUT_SPREAD = 0.05  # MAD 0 (over half alike): as far as a host may fall behind its own history
LEAST_TOLERANCE = 0.05  # of a floor: a fleet that is very alike today must not warn of tomorrow's noise
_TELEMETRY = "load-"  # clocks and power are told, never judged
_TOGETHER = re.compile(r"([0-9]{1,3}) GPUs?")


@dataclass(frozen=True)
class Hardware:
    """What a host's figures belong to: (model, vendor:device) of each GPU by address, and the machine's product."""

    gpus: Mapping[str, tuple[str, str | None]]
    product: str | None = None


@dataclass(frozen=True)
class Kind:
    """What may be compared with one another: one metric, in its own unit, on one model."""

    model: str
    device: str | None
    metric: str
    unit: str
    gpus: int | None = None
    subject: str | None = None


@dataclass(frozen=True)
class Row:
    """The figures of one kind on one host: a value for each subject, in order."""

    kind: Kind
    subjects: tuple[str, ...]
    values: array[float]


def rows_of(samples: Iterable[Sample], hardware: Hardware) -> tuple[Row, ...]:
    """The medians of a host's runs, by kind. Runs without a figure and subjects of an unknown model give none."""
    runs: dict[tuple[str, str, str], list[float]] = {}
    for sample in samples:
        if sample.value is not None and math.isfinite(sample.value):
            runs.setdefault((sample.metric, sample.subject, sample.unit), []).append(sample.value)
    found: dict[Kind, dict[str, float]] = {}
    for (metric, subject, unit), values in runs.items():
        kind = _kind(metric, subject, unit, hardware)
        if kind is not None:
            found.setdefault(kind, {})[subject] = _in_unit(median(values), unit, kind.unit)
    return tuple(Row(kind, tuple(figures), array("d", figures.values())) for kind, figures in found.items())


def fleet_medians(hosts: Iterable[tuple[str, Sequence[Row]]]) -> tuple[tuple[Median, ...], tuple[Outlier, ...]]:
    """(the median and MAD of every kind, the figures far from them: the bad side first, the farthest first)."""
    by_kind: dict[Kind, list[tuple[str, Row]]] = {}
    for host, rows in hosts:
        for row in rows:
            by_kind.setdefault(row.kind, []).append((host, row))
    medians, outliers = [], []
    for kind in sorted(by_kind, key=_order):
        one = _median(kind, by_kind[kind])
        medians.append(one)
        if one.hosts >= FEWEST_HOSTS:
            outliers += _outliers(one, by_kind[kind])
    return tuple(medians), tuple(sorted(outliers, key=_far_first))


def floors_toml(medians: Iterable[Median], *, run: str | None = None, at: str | None = None) -> str:
    """Baselines of kind "fleet" in TOML, as `hosttune validate --fleet` reads them.

    A host warns where it is so far behind that it would be an outlier, at least LEAST_TOLERANCE. What makes no floor
    (too few hosts, no device id, not judged, not believed) stands as a comment with its reason.
    """
    source = "median of our fleet" + (f", run {run}" if run else "") + (f", {at}" if at else "")
    peaks = shipped().peaks
    blocks = ["# Medians of a fleet for `hosttune validate --fleet`: a host that lags behind them warns."]
    rows = [_floor(one, source, peaks) for one in medians if one.device is not None]
    blocks += rows or [
        "# Nothing was measured on a known device: hosttune fleet discover, then fleet validate --level 1."
    ]
    return "\n\n".join(blocks) + "\n"


# --- figures -------------------------------------------------------------------------------------------------


def _kind(metric: str, subject: str, unit: str, hardware: Hardware) -> Kind | None:
    family = metric_of(metric)
    if family is None or not _convertible(unit, family.unit):
        return None
    together = _TOGETHER.fullmatch(subject)
    if together:
        models = set(hardware.gpus.values())
        return Kind(*models.pop(), metric, family.unit, gpus=int(together[1])) if len(models) == 1 else None
    ends = subject.split("->")
    models = {hardware.gpus[end] for end in ends if end in hardware.gpus}
    if models:
        known = len(models) == 1 and all(end in hardware.gpus for end in ends)
        return Kind(*models.pop(), metric, family.unit) if known else None
    if ":" in subject or hardware.product is None:
        return None
    return Kind(hardware.product, None, metric, family.unit, subject=subject)


def _convertible(unit: str, wanted: str) -> bool:
    try:
        converted(1.0, unit, wanted, "sample")
    except BadInput:
        return False
    return True


def _in_unit(value: float, unit: str, wanted: str) -> float:
    return value if unit == wanted else converted(value, unit, wanted, "sample")


def _order(kind: Kind) -> tuple[str, str, str, int, str]:
    return (kind.model, kind.device or "", kind.metric, kind.gpus or 0, kind.subject or "")


def _median(kind: Kind, rows: Sequence[tuple[str, Row]]) -> Median:
    values = [value for _, row in rows for value in row.values]
    middle = median(values)
    return Median(
        model=kind.model,
        device=kind.device,
        metric=kind.metric,
        unit=kind.unit,
        gpus=kind.gpus,
        subject=kind.subject,
        median=middle,
        mad=median(abs(value - middle) for value in values),
        hosts=len({host for host, _ in rows}),
        subjects=len(values),
    )


# --- outliers ------------------------------------------------------------------------------------------------


def _outliers(one: Median, rows: Sequence[tuple[str, Row]]) -> list[Outlier]:
    return [
        _outlier(host, subject, value, one)
        for host, row in rows
        for subject, value in zip(row.subjects, row.values, strict=True)
        if is_far(value, one.median, one.mad)
    ]


def is_far(value: float, middle: float, mad: float) -> bool:
    """Whether a figure is an outlier. Where the MAD is 0 only the relative size decides."""
    away = abs(value - middle)
    if mad == 0:
        return away > LEAST_WITHOUT_SPREAD * abs(middle)
    return _CONSISTENT * away / mad > FAR and away > LEAST * abs(middle)


def _outlier(host: str, subject: str, value: float, one: Median) -> Outlier:
    family = metric_of(one.metric)
    low_is_bad = family is None or family.direction == "higher"
    return Outlier(
        host=host,
        subject=subject,
        model=one.model,
        metric=one.metric,
        unit=one.unit,
        value=value,
        median=one.median,
        mad=one.mad,
        score=_CONSISTENT * (value - one.median) / one.mad if one.mad else None,
        worse=(value < one.median) == low_is_bad,
    )


def _far_first(one: Outlier) -> tuple[bool, float, float, str, str, str]:
    score = math.inf if one.score is None else abs(one.score)
    return (not one.worse, -score, -abs(one.value - one.median), one.host, one.metric, one.subject)


# --- floors --------------------------------------------------------------------------------------------------


def _floor(one: Median, source: str, peaks: Mapping[str, Peaks]) -> str:
    text = _table(one, source)
    name = f"{one.metric} of {one.model} ({one.device})" + (f", {one.gpus} GPUs" if one.gpus else "")
    why = _no_floor(one)
    if why is None:
        try:
            read_baselines(text, peaks, "fleet's median")
        except BadInput as error:
            why = error.what
    return text if why is None else f"# no floor for {printable(name)}: {printable(why)}"


def _no_floor(one: Median) -> str | None:
    if one.metric.startswith(_TELEMETRY):
        return "it is reported, not judged"
    if one.hosts < FEWEST_HOSTS:
        return f"{one.hosts} hosts, fewer than {FEWEST_HOSTS}"
    if one.median <= 0:
        return "the median is 0"
    return None if _tolerance(one) < 1 else "the hosts have nothing in common"


def _tolerance(one: Median) -> float:
    """How far below the median a host would be an outlier, as a part of the median."""
    far = FAR * one.mad / _CONSISTENT / one.median if one.median > 0 else 1.0
    return max(LEAST_TOLERANCE, math.ceil(far * 1000) / 1000)


def _table(one: Median, source: str) -> str:
    family = metric_of(one.metric)
    fields = [
        f"metric = {_text(one.metric)}",
        f"device = {_text(one.device or '')}",
        'kind = "fleet"',
        f"expected = {one.median!r}",
        f"tolerance = {_tolerance(one)!r}",
        f"direction = {_text(family.direction if family else 'higher')}",
        f"unit = {_text(one.unit)}",
        f"source = {_text(f'{source}: {one.subjects} figures of {one.hosts} hosts, MAD {one.mad:.4g} {one.unit}')}",
    ]
    fields += [f"gpus = {one.gpus}"] if one.gpus is not None else []
    return "\n".join((f"# {printable(one.model)}", "[[baseline]]", *fields))


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's (https://toml.io/en/v1.0.0#string)."""
    return json.dumps(printable(value), ensure_ascii=False)
