"""Baselines and peaks, read from TOML and refused if they cannot be correct.

Published floors had these mistakes: a memory bandwidth in MB/s that was read as GB/s (a host can never fail it), and a
bus bandwidth above what the network can carry (a host can never pass it). So a floor must lie between a fraction of
the physical peak and the peak, have a unit of the metric's dimension, and name its source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from hosttune.assets import shipped_names, shipped_text
from hosttune.bench.metrics import Direction, converted, metric_of
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.jsontext import plain_toml

ABOVE_PEAK = 1.01  # a figure may be above a peak by this factor, because timers are rounded
_DEVICE = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_PEAKS = {
    "pcie": "GB/s",
    "memory": "GB/s",
    "scale-up": "GB/s",
    "pair": "GB/s",
    "bf16": "TFLOP/s",
    "fp8": "TFLOP/s",
    "tf32": "TFLOP/s",
    "fp64": "TFLOP/s",
    "network": "Gb/s",
    "watts": "W",
}
_FIELDS = frozenset(
    ("metric", "device", "kind", "expected", "tolerance", "direction", "unit", "source", "gpus", "nvlinks")
)
_OPTIONAL = frozenset(("gpus", "kind", "nvlinks"))
_MOST_NVLINKS = 64
_KINDS = ("floor", "reference", "fleet")


class Peaks(msgspec.Struct, frozen=True):
    """The roofline of one device: dense rates, and link rates in one direction, in the units of `_PEAKS`.

    `nvlinks`: the number of links that make up "scale-up"; None if not stated. "pair" is the part of "scale-up" that
    connects two devices, if it is the same for every pair.
    """

    device: str
    model: str
    source: str
    values: Mapping[str, float]
    nvlinks: int | None = None


class Baseline(msgspec.Struct, frozen=True):
    """The value that a metric should reach on one kind of device, in the metric's own unit.

    `kind`: a host below a floor fails; below a fleet's median or a reference it warns. `gpus`: valid only if that many
    GPUs are measured at once. `nvlinks`: stated for a pair of GPUs connected by that many links; for another pair it is
    scaled by the number of links. `own`: from an operator's file. Two more kinds come from models and never from a file
    (`modelled`): "typical" and "least", both warn; `why` has their inputs.
    """

    metric: str
    device: str
    expected: float
    tolerance: float
    direction: Direction
    unit: str
    source: str
    kind: Literal["floor", "reference", "fleet", "typical", "least"] = "floor"
    gpus: int | None = None
    nvlinks: int | None = None
    own: bool = False
    why: str = ""

    def for_links(self, links: int) -> Baseline:
        """Return this baseline, scaled to a pair of GPUs connected by `links` links."""
        if self.nvlinks is None or links == self.nvlinks:
            return self
        source = f"{self.source}; stated for {self.nvlinks} NVLinks, here {links}"
        return replace(self, expected=self.expected * links / self.nvlinks, nvlinks=links, source=source)

    @property
    def limit(self) -> float:
        """The worst value that is still good."""
        part = -self.tolerance if self.direction == "higher" else self.tolerance
        return self.expected * (1 + part)


class Standard(msgspec.Struct, frozen=True):
    """The standard for figures: peaks by device id, and baselines."""

    peaks: Mapping[str, Peaks]
    baselines: tuple[Baseline, ...]

    def peak(self, metric: str, device: str | None, links: int | None = None) -> float | None:
        """Return the physical peak that a metric is compared with on a device; None if unknown.

        `links`: for a copy between two GPUs, the number of NVLinks between them; 0: it goes over PCIe; None: unknown.
        """
        family = metric_of(metric)
        if family is None or family.peak is None or device is None or device not in self.peaks:
            return None
        peaks = self.peaks[device]
        if family.pair and links == 0:
            return peaks.values.get("pcie")
        if family.pair and "pair" in peaks.values:
            return peaks.values["pair"]
        if not family.pair or links is None:
            return peaks.values.get(family.peak)
        most = peaks.values.get(family.peak)
        return most if most is None or peaks.nvlinks is None else most * min(links / peaks.nvlinks, 1.0)

    def most(self, metric: str, device: str | None, links: int | None = None) -> float | None:
        """Return the largest plausible figure of a metric on a device; None if unknown. Larger figures are rejected.

        It is the peak times the metric's `factor`, because some metrics count a byte more than once.
        """
        family, peak = metric_of(metric), self.peak(metric, device, links)
        return None if family is None or peak is None else peak * family.factor

    def of(self, metric: str, device: str | None, gpus: int, links: int | None = None) -> tuple[Baseline, ...]:
        """Return the baselines of a metric on a device, measured with `gpus` GPUs at once, scaled to a pair's `links`.

        A pair without links (0) gets no baseline that is stated for links. If the links are unknown (None), baselines
        are returned as stated.
        """
        family = metric_of(metric)
        linked = family is not None and family.pair
        rows = (
            row for row in self.baselines if row.metric == metric and row.device == device and row.gpus in (None, gpus)
        )
        return tuple(
            row if links is None else row.for_links(links)
            for row in rows
            if links != 0 or (row.nvlinks is None and not linked)
        )


def pair_links(host: Host, measured: Sequence[str]) -> dict[str, int]:
    """Return the number of NVLinks of each pair of GPUs ("A->B"), 0 for a pair on PCIe.

    Pairs with an unknown number of links are left out; for links of other makers the number is not known. The key
    "2 GPUs" is the pair that is `measured` together.
    """
    links_of: dict[str, int] = {}
    for gpu in host.gpus:
        for peer in gpu.peers or ():
            links = 0 if peer.kind == "pcie" else peer.links
            if links is not None:
                links_of[f"{gpu.address}->{peer.address}"] = links
    pair = "->".join(measured)
    return {**links_of, "2 GPUs": links_of[pair]} if pair in links_of else links_of


@cache
def shipped() -> Standard:
    """Return the peaks and baselines that are part of hosttune. Raises BadInput for a damaged file."""

    peaks = shipped_peaks().peaks
    names = (name for name in shipped_names("baselines") if name.endswith(".toml") and name != "roofline.toml")
    rows = (row for name in names for row in read_baselines(shipped_text("baselines", name), peaks, name))
    return Standard(peaks, tuple(rows))


@cache
def shipped_peaks() -> Standard:
    """Return the peaks alone: models need no baselines, and reading those takes longer. Raises BadInput."""

    return Standard(read_peaks(shipped_text("baselines", "roofline.toml"), "roofline.toml"), ())


def with_fleet(fleet: str | None, where: str = "fleet's baselines") -> Standard:
    """Return the shipped standard plus the baselines of a fleet's own file: its text, and its path for errors.

    Raises BadInput.
    """
    standard = shipped()
    if fleet is None:
        return standard
    rows = tuple(replace(row, own=True) for row in read_baselines(fleet, standard.peaks, where))
    return replace(standard, baselines=(*standard.baselines, *rows))


def read_peaks(text: str, where: str) -> dict[str, Peaks]:
    """Return the roofline table by PCI vendor:device. Raises BadInput that names the row and the field."""
    peaks: dict[str, Peaks] = {}
    for place, row in _rows(text, "device", where):
        _known(row, frozenset(_PEAKS) | {"id", "model", "source", "nvlinks"}, place)
        device, source, model = (_text(row, name, place) for name in ("id", "source", "model"))
        _device(device, f"{place}.id")
        if device in peaks:
            raise BadInput(f"{device} twice", where=place, hint="one row a device")
        values = {name: _positive(row, name, place) for name in _PEAKS if name in row}
        peaks[device] = Peaks(device, model, source, values, _nvlinks(row, place))
    return peaks


def read_baselines(text: str, peaks: Mapping[str, Peaks], where: str) -> tuple[Baseline, ...]:
    """Return the baselines of a TOML text.

    Raises BadInput that names the row and the field, also for implausible values.
    """
    rows = tuple(_baseline(row, place) for place, row in _rows(text, "baseline", where))
    standard = Standard(peaks, ())
    for number, row in enumerate(rows, 1):
        _plausible(row, standard, f"{where}: baseline {number}")
    return rows


def _baseline(row: Mapping[str, Any], place: str) -> Baseline:
    _known(row, _FIELDS, place)
    for name in sorted(_FIELDS - _OPTIONAL):
        if name not in row:
            raise BadInput(f"no {name}", where=place, hint="every baseline needs it, the source above all")
    metric, device, source = (_text(row, name, place) for name in ("metric", "device", "source"))
    family = metric_of(metric)
    if family is None:
        raise BadInput(f"unknown metric {metric!r}", where=f"{place}.metric", hint="docs/benchmarks.md lists them")
    _device(device, f"{place}.device")
    if row["direction"] != family.direction:
        raise BadInput(f"{metric} is better {family.direction}", where=f"{place}.direction", hint="correct it")
    kind = row.get("kind", "floor")
    if kind not in _KINDS:
        raise BadInput(f"unknown kind {kind!r}", where=f"{place}.kind", hint=f"one of {', '.join(_KINDS)}")
    expected = converted(_positive(row, "expected", place), _text(row, "unit", place), family.unit, f"{place}.unit")
    tolerance = row["tolerance"]
    if not _number(tolerance) or not 0 <= tolerance < 1:
        raise BadInput("tolerance is a fraction", where=f"{place}.tolerance", hint="0.05 for 5 %")
    gpus = row.get("gpus")
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1):
        raise BadInput("gpus is a number of GPUs", where=f"{place}.gpus", hint="1 or more")
    links = _nvlinks(row, place)
    if links is not None and not family.pair and (family.peak, gpus) != ("scale-up", 2):
        raise BadInput(f"{metric} is not measured between two GPUs", where=f"{place}.nvlinks", hint="leave it out")
    return Baseline(
        metric, device, expected, float(tolerance), family.direction, family.unit, source, kind, gpus, links
    )


def _plausible(row: Baseline, standard: Standard, where: str) -> None:
    """Check a floor. Raises BadInput if it is above the peak, or so far below the peak that no host could fail it."""
    family = metric_of(row.metric)
    if family is None or family.peak is None:
        return
    peak = standard.peak(row.metric, row.device)
    if peak is None:
        raise BadInput(
            f"no peak {family.peak!r} of {row.device} to compare {row.metric} with",
            where=where,
            hint="add it to roofline.toml, with its source",
        )
    most = peak * family.factor
    if row.expected > most or row.limit > most:
        raise BadInput(
            f"{row.expected:g} {row.unit} is above the physical peak of {most:g}", where=where, hint="check the unit"
        )
    if row.limit < family.least * peak:
        raise BadInput(
            f"{row.limit:g} {row.unit} is below {family.least:.0%} of the peak of {peak:g}: it could not fail",
            where=where,
            hint="check the unit: MB/s are not GB/s",
        )


# --- fields --------------------------------------------------------------------------------------------------


def _rows(text: str, table: str, where: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    document = plain_toml(text, where=where, hint="correct the file")
    _known(document, frozenset((table,)), where)
    rows = document.get(table, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{table} is not a list of tables", where=where, hint=f"write [[{table}]]")
    return [(f"{where}: {table} {number}", row) for number, row in enumerate(rows, 1)]


def _known(row: Mapping[str, Any], names: frozenset[str], where: str) -> None:
    for name in row:
        if name not in names:
            raise BadInput(f"unknown key {name!r}", where=where, hint=f"known: {', '.join(sorted(names))}")


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name} is missing or not a text", where=f"{where}.{name}", hint="give it")
    return value


def _device(value: str, where: str) -> None:
    if not _DEVICE.fullmatch(value):
        raise BadInput(f"{value!r} is not a PCI id", where=where, hint='vendor:device, "10de:2335"')


def _nvlinks(row: Mapping[str, Any], place: str) -> int | None:
    links = row.get("nvlinks")
    if links is None:
        return None
    if not isinstance(links, int) or isinstance(links, bool) or not 1 <= links <= _MOST_NVLINKS:
        raise BadInput("nvlinks is a number of links", where=f"{place}.nvlinks", hint=f"1 to {_MOST_NVLINKS}")
    return links


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row.get(name)
    if not _number(value) or value <= 0:  # type: ignore[operator]  # a number, as the line says
        raise BadInput(f"{name} is not a positive number", where=f"{where}.{name}", hint="give it")
    return float(value)  # type: ignore[arg-type]
