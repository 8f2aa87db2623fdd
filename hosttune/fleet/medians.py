"""Statistics over a fleet: medians, outliers, and floors for `hosttune validate --fleet FILE`. Pure.

For each metric and device model: the median and the median absolute deviation (MAD). One figure is the median of the
runs of one subject (a GPU, a pair of GPUs) on one host. A figure is an outlier if its modified z-score
|0.6745 x (value - median) / MAD| is above 3.5: B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", ASQC
Quality Press 1993; NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.17. Median and MAD stay meaningful while
fewer than half of the figures are bad. A difference that is too small to matter is not an outlier, even if all other
figures are equal.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from hosttune.bench.baselines import Peaks, read_baselines, shipped
from hosttune.bench.compare import LEAST
from hosttune.bench.metrics import converted, metric_of
from hosttune.errors import BadInput
from hosttune.model.fleet import Median, Outlier
from hosttune.model.text import printable
from hosttune.model.validation import Sample
from hosttune.model.values import grouped

FAR = 3.5  # modified z-score
_CONSISTENT = 0.6745  # the MAD of a normal distribution, in standard deviations
FEWEST_HOSTS = 5  # with fewer hosts it is not clear which one is the outlier
LEAST_WITHOUT_SPREAD = 0.05  # for a MAD of 0 (over half are equal): as much as a host may fall behind its own history
LEAST_TOLERANCE = 0.05  # of a floor: hosts that are almost equal today must not cause warnings about later noise
_TELEMETRY = "load-"  # clocks and power are reported, but not judged
_TOGETHER = re.compile(r"([0-9]{1,3}) GPUs?")


class Hardware(msgspec.Struct, frozen=True):
    """The hardware of a host: (model, vendor:device) of each GPU by address, and the product name of the machine."""

    gpus: Mapping[str, tuple[str, str | None]]
    product: str | None = None


class FigureKind(msgspec.Struct, frozen=True):
    """Identifies figures that can be compared with each other: one metric, in its own unit, on one model."""

    model: str
    device: str | None
    metric: str
    unit: str
    gpus: int | None = None
    subject: str | None = None


class HostFigures(msgspec.Struct, frozen=True):
    """The figures of one kind on one host: one value per subject, in the same order."""

    kind: FigureKind
    subjects: tuple[str, ...]
    values: array[float]


def rows_of(samples: Iterable[Sample], hardware: Hardware) -> tuple[HostFigures, ...]:
    """Return the medians of a host's runs, by kind.

    Runs without a figure and subjects of an unknown model are left out.
    """
    runs = grouped(
        ((sample.metric, sample.subject, sample.unit), sample.value)
        for sample in samples
        if sample.value is not None and math.isfinite(sample.value)
    )
    rows: dict[FigureKind, dict[str, float]] = {}
    for (metric, subject, unit), values in runs.items():
        kind = _kind(metric, subject, unit, hardware)
        if kind is not None:
            value = median(values)
            rows.setdefault(kind, {})[subject] = (
                value if unit == kind.unit else converted(value, unit, kind.unit, "sample")
            )
    return tuple(HostFigures(kind, tuple(figures), array("d", figures.values())) for kind, figures in rows.items())


def fleet_medians(hosts: Iterable[tuple[str, Sequence[HostFigures]]]) -> tuple[tuple[Median, ...], tuple[Outlier, ...]]:
    """Return (the median and MAD of every kind, the outliers).

    Outliers on the bad side come first, and on each side those with the largest score.
    """
    by_kind = grouped((row.kind, (host, row)) for host, rows in hosts for row in rows)
    medians, outliers = [], []
    for kind in sorted(by_kind, key=_order):
        kind_median = _median(kind, by_kind[kind])
        medians.append(kind_median)
        if kind_median.hosts >= FEWEST_HOSTS:
            outliers += [
                _outlier(host, subject, value, kind_median)
                for host, row in by_kind[kind]
                for subject, value in zip(row.subjects, row.values, strict=True)
                if is_far(value, kind_median.median, kind_median.mad)
            ]
    return tuple(medians), tuple(sorted(outliers, key=_far_first))


class FleetFigures:
    """The figures of a fleet, host by host. `medians` compares them, `notes` says of how many hosts they are not."""

    def __init__(self) -> None:
        self._hosts: list[tuple[str, tuple[HostFigures, ...]]] = []
        self._strange = 0

    def add(self, host: str, samples: Sequence[Sample], hardware: Hardware | None) -> None:
        """Add a host. `hardware` None: it is not known, so that no figure has a model. Nothing measured: left out."""
        if samples:
            self._strange += hardware is None
            self._hosts.append((host, rows_of(samples, hardware or Hardware({}))))

    def medians(self) -> tuple[tuple[Median, ...], tuple[Outlier, ...]]:
        """Return (the median and MAD of every kind, the outliers), as `fleet_medians`."""
        return fleet_medians(self._hosts)

    def notes(self) -> Iterator[str]:
        """Yield what cannot be compared, and why."""
        if self._strange:
            yield (
                f"{self._strange} of {len(self._hosts)} measured hosts have no host document beside their results, so "
                "that their figures are not compared: run `hosttune fleet discover` into the same folder"
            )


def floors_toml(medians: Iterable[Median], *, run: str | None = None, at: str | None = None) -> str:
    """Return baselines of kind "fleet" in TOML, as `hosttune validate --fleet FILE` reads them.

    The tolerance of a floor is the distance from the median at which a figure becomes an outlier, at least
    LEAST_TOLERANCE. A median that gives no floor (too few hosts, not judged, above the device's peak) is a comment with
    the reason. Medians without a device id are left out.
    """
    source = "median of our fleet" + (f", run {run}" if run else "") + (f", {at}" if at else "")
    peaks = shipped().peaks
    blocks = ["# Medians of a fleet for `hosttune validate --fleet FILE`: a host that lags behind them warns."]
    rows = [_floor(fleet_median, source, peaks) for fleet_median in medians if fleet_median.device is not None]
    blocks += rows or [
        "# Nothing was measured on a known device: hosttune fleet discover, then fleet validate --level 1."
    ]
    return "\n\n".join(blocks) + "\n"


# --- figures -------------------------------------------------------------------------------------------------


def _kind(metric: str, subject: str, unit: str, hardware: Hardware) -> FigureKind | None:
    family = metric_of(metric)
    if family is None or not _convertible(unit, family.unit):
        return None
    together = _TOGETHER.fullmatch(subject)
    if together:
        models = set(hardware.gpus.values())
        return FigureKind(*models.pop(), metric, family.unit, gpus=int(together[1])) if len(models) == 1 else None
    ends = subject.split("->")
    models = {hardware.gpus[end] for end in ends if end in hardware.gpus}
    if models:
        known = len(models) == 1 and all(end in hardware.gpus for end in ends)
        return FigureKind(*models.pop(), metric, family.unit) if known else None
    if ":" in subject or hardware.product is None:
        return None
    return FigureKind(hardware.product, None, metric, family.unit, subject=subject)


def _convertible(unit: str, wanted: str) -> bool:
    try:
        converted(1.0, unit, wanted, "sample")
    except BadInput:
        return False
    return True


def _order(kind: FigureKind) -> tuple[str, str, str, int, str]:
    return (kind.model, kind.device or "", kind.metric, kind.gpus or 0, kind.subject or "")


def _median(kind: FigureKind, rows: Sequence[tuple[str, HostFigures]]) -> Median:
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


def is_far(value: float, middle: float, mad: float) -> bool:
    """Return whether a figure is an outlier. If the MAD is 0, only the relative difference decides."""
    away = abs(value - middle)
    if mad == 0:
        return away > LEAST_WITHOUT_SPREAD * abs(middle)
    return _CONSISTENT * away / mad > FAR and away > LEAST * abs(middle)


def _outlier(host: str, subject: str, value: float, fleet_median: Median) -> Outlier:
    family = metric_of(fleet_median.metric)
    low_is_bad = family is None or family.direction == "higher"
    return Outlier(
        host=host,
        subject=subject,
        model=fleet_median.model,
        metric=fleet_median.metric,
        unit=fleet_median.unit,
        value=value,
        median=fleet_median.median,
        mad=fleet_median.mad,
        score=_CONSISTENT * (value - fleet_median.median) / fleet_median.mad if fleet_median.mad else None,
        worse=(value < fleet_median.median) == low_is_bad,
    )


def _far_first(outlier: Outlier) -> tuple[bool, float, float, str, str, str]:
    score = math.inf if outlier.score is None else abs(outlier.score)
    return (
        not outlier.worse,
        -score,
        -abs(outlier.value - outlier.median),
        outlier.host,
        outlier.metric,
        outlier.subject,
    )


# --- floors --------------------------------------------------------------------------------------------------


def _floor(fleet_median: Median, source: str, peaks: Mapping[str, Peaks]) -> str:
    family = metric_of(fleet_median.metric)
    fields = [
        f"metric = {_text(fleet_median.metric)}",
        f"device = {_text(fleet_median.device or '')}",
        'kind = "fleet"',
        f"expected = {fleet_median.median!r}",
        f"tolerance = {_tolerance(fleet_median)!r}",
        f"direction = {_text(family.direction if family else 'higher')}",
        f"unit = {_text(fleet_median.unit)}",
        "source = "
        + _text(
            f"{source}: {fleet_median.subjects} figures of {fleet_median.hosts} hosts, "
            f"MAD {fleet_median.mad:.4g} {fleet_median.unit}"
        ),
    ]
    fields += [f"gpus = {fleet_median.gpus}"] if fleet_median.gpus is not None else []
    text = "\n".join((f"# {printable(fleet_median.model)}", "[[baseline]]", *fields))
    name = f"{fleet_median.metric} of {fleet_median.model} ({fleet_median.device})" + (
        f", {fleet_median.gpus} GPUs" if fleet_median.gpus else ""
    )
    why = _no_floor(fleet_median)
    if why is None:
        try:
            read_baselines(text, peaks, "fleet's median")
        except BadInput as error:
            why = error.what
    return text if why is None else f"# no floor for {printable(name)}: {printable(why)}"


def _no_floor(fleet_median: Median) -> str | None:
    if fleet_median.metric.startswith(_TELEMETRY):
        return "it is reported, not judged"
    if fleet_median.hosts < FEWEST_HOSTS:
        return f"{fleet_median.hosts} hosts, fewer than {FEWEST_HOSTS}"
    if fleet_median.median <= 0:
        return "the median is 0"
    return None if _tolerance(fleet_median) < 1 else "the hosts have nothing in common"


def _tolerance(fleet_median: Median) -> float:
    """Return how far below the median a figure becomes an outlier, as a fraction of the median."""
    far = FAR * fleet_median.mad / _CONSISTENT / fleet_median.median if fleet_median.median > 0 else 1.0
    return max(LEAST_TOLERANCE, math.ceil(far * 1000) / 1000)


def _text(value: str) -> str:
    """Return a TOML basic string: TOML accepts all of JSON's escapes (https://toml.io/en/v1.0.0#string)."""
    return json.dumps(printable(value), ensure_ascii=False)
