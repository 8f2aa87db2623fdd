"""Figures beside what the model of their machine says, as bars and rows. Pure views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hosttune.bench.measures import Measure, pair_of, percent, title_of
from hosttune.model.devicepath import GpuRoof
from hosttune.model.diagnosis import Diagnosis, JudgedFigure
from hosttune.model.prediction import PredictedFigure
from hosttune.model.text import count, number
from hosttune.model.values import Value, format_size, grouped
from hosttune.report.outcomes import Mark

VERDICTS = ("impossible", "low", "unknown", "expected")  # worst first
BADGES: Mapping[str, str] = {"impossible": "fail", "low": "fail", "unknown": "unknown", "expected": "pass"}
GRADE_WORDS: Mapping[str, str] = {
    "proven": "the fault was seen, and the figure keeps to its bound",
    "observed": "the fault was seen, and acts on such figures",
    "fits": "the figures are as this fault makes them",
    "indirect": "the fault was seen; no source says how much it costs here",
    "default": "such machines have it unless it was removed",
    "possible": "nothing speaks against it",
}
# Metrics whose figures a subject of their own names are one chart each; words for people.
TITLES: Mapping[str, str] = {
    "h2d": "copies from host to GPU", "d2h": "copies from GPU to host", "p2p": "copies from GPU to GPU",
    "device-copy": "copies within a GPU, read + written", "gemm-bf16": "matrix products, BF16, burst",
    "gemm-fp8": "matrix products, FP8, burst", "gemm-bf16-sustained": "matrix products, BF16, sustained",
    "all-reduce-busbw": "all-reduce, bus bandwidth", "all-gather-busbw": "all-gather, bus bandwidth",
    "all-to-all-busbw": "all-to-all, bus bandwidth", "send-recv-busbw": "send and receive in a ring, bus bandwidth",
    "broadcast-busbw": "broadcast, bus bandwidth", "reduce-busbw": "reduce, bus bandwidth",
    "rdma-write": "RDMA writes of a port", "memory-copy": "copies between nodes' memory",
    "memory-latency": "latency of nodes' memory", "disk-read": "reads from a drive",
    "storage-read": "reads from storage", "mfu": "model FLOPs utilization (MFU)",
    "hfu": "hardware FLOPs utilization (HFU)", "gradient-all-reduce": "time of the gradients",
    "scaling-efficiency": "scaling efficiency", "ridge": "ridge of the roofline",
    "roofline": "place under the roofline",
    "tokens-per-second": "tokens per second", "sm-clock": "SM clock", "power": "power",
    "link-speed-gts": "speed of a PCIe link", "link-width": "width of a PCIe link",
}  # fmt: skip


OWN_WORDS: Mapping[str, str] = {"measured": "measured, median of the GPUs", "model": "by the model, not measured"}


def counted(diagnosis: Diagnosis) -> str:
    """Return one line: how many figures have which verdict, and how many causes are named."""
    counts = {verdict: sum(figure.verdict == verdict for figure in diagnosis.figures) for verdict in VERDICTS}
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    total, causes = len(diagnosis.figures), len(diagnosis.causes)
    figures = f"{count(total, 'figure')}: {', '.join(parts)}; " if parts else ""
    return f"{figures}{causes or 'no'} cause{'' if causes == 1 else 's'} named"


def figure_charts(figures: Iterable[JudgedFigure]) -> tuple[Chart, ...]:
    """Return one chart for each metric and unit, those with the worst figures first; in a chart the worst first."""
    ordered = sorted(figures, key=lambda figure: VERDICTS.index(figure.verdict))
    charts = []
    for (metric, unit), members in grouped(((figure.metric, figure.unit), figure) for figure in ordered).items():
        axis = _axis(value for figure in members for value in (figure.value, figure.bound, figure.typical))
        note = next((figure.why for figure in members if figure.verdict == "expected"), "")
        charts.append(_chart(metric, unit, axis, [_judged_bar(figure, axis) for figure in members], note))
    return tuple(charts)


def _judged_bar(figure: JudgedFigure, axis: float) -> BarRow:
    part = f"{figure.value / figure.typical:.0%} of typical" if figure.value is not None and figure.typical else ""
    marks = (
        f"typical {number(figure.typical)}" if figure.typical else "",
        f"bound {number(figure.bound)}" if figure.bound else "",
    )
    return BarRow(
        name=named(figure),
        figure="no value" if figure.value is None else number(figure.value),
        beside=", ".join(word for word in (part, *marks) if word),
        width=percent(figure.value, axis),
        typical=percent(figure.typical, axis),
        bound=percent(figure.bound, axis),
        mark=Mark(BADGES[figure.verdict], figure.verdict),
        why="" if figure.verdict == "expected" else figure.why,
    )


def named(figure: JudgedFigure) -> str:
    """Return what a figure is of: its subject and the size of its message."""
    size = format_size(int(figure.size_bytes)) if figure.size_bytes else ""
    return ", ".join(word for word in (figure.subject, size) if word) or figure.metric


def predicted_charts(figures: Iterable[PredictedFigure]) -> tuple[Chart, ...]:
    """Return one chart for each metric and unit; figures that are alike share a bar."""
    groups = grouped(((rows[0].metric, rows[0].unit), (words, rows[0])) for words, rows in alike(figures))
    charts = []
    for (metric, unit), members in groups.items():
        axis = _axis(value for _, figure in members for value in (figure.value, figure.bound, figure.typical))
        bars = [_predicted_bar(words, figure, axis) for words, figure in members]
        known = [row.why for row in bars]  # inputs that the bar above has too are not said again
        bars = [replace(row, why="") if n and known[n - 1] == row.why else row for n, row in enumerate(bars)]
        charts.append(_chart(metric, unit, axis, bars))
    return tuple(charts)


def _predicted_bar(words: str, figure: PredictedFigure, axis: float) -> BarRow:
    shown = figure.value if figure.value is not None else figure.typical
    unknown = shown is None and figure.bound is None
    no_bound = "" if unknown or figure.value is not None else "bound unknown"
    bound = no_bound if figure.bound is None else f"at most {number(figure.bound)}"
    typical = "" if figure.value is None or figure.typical is None else f"typical {number(figure.typical)}"
    return BarRow(
        name=words,
        figure="unknown" if unknown else "typical unknown" if shown is None else number(shown),
        beside=", ".join(word for word in (bound, typical) if word),
        width=percent(shown, axis),
        typical=percent(figure.typical, axis) if figure.value is not None else None,
        bound=percent(figure.bound, axis),
        why="; ".join(figure.because),
    )


def alike(figures: Iterable[PredictedFigure]) -> list[tuple[str, list[PredictedFigure]]]:
    """Return figures in groups that differ in their device alone, each with words for its subjects."""
    groups = grouped(((row.metric, _kind(row), row.bound, row.typical, row.value, row.because), row) for row in figures)
    return [(_subjects(rows), rows) for rows in groups.values()]


def _kind(figure: PredictedFigure) -> str:
    """Return what distinguishes a subject besides its device: rows of one kind may share a line."""
    if figure.metric in ("rdma-write", "memory-copy"):
        return ""
    address = ":" in figure.subject
    return figure.subject.partition(", ")[2] or ("" if address else figure.subject)


def _subjects(rows: Sequence[PredictedFigure]) -> str:
    kind = _kind(rows[0])
    names = [
        figure.subject.partition(", ")[0] if kind and ", " in figure.subject else figure.subject for figure in rows
    ]
    words = names[0] if len(names) == 1 else f"{len(names)} alike: {names[0]} to {names[-1]}"
    return f"{words}, {kind}" if kind and words != kind else words


def _chart(metric: str, unit: str, axis: float, bars: Sequence[BarRow], note: str = "") -> Chart:
    notes = (note,) if note else ()
    words = TITLES.get(metric, "")
    return Chart(title=metric, words=words, unit=unit, axis=number(axis) if axis else "", bars=tuple(bars), notes=notes)


def _axis(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def sources_of(figures: Iterable[PredictedFigure]) -> tuple[tuple[str, str, str], ...]:
    """Return (metrics, formula, source) of the figures that have any; metrics that share both are together."""
    known = (figure for figure in figures if figure.bound or figure.typical or figure.value)
    groups = grouped(((figure.formula, figure.source), figure.metric) for figure in known)
    return tuple((", ".join(dict.fromkeys(metrics)), *key) for key, metrics in groups.items())


def roof_rows(roofs: Iterable[GpuRoof]) -> list[tuple[str, str, str, str, str]]:
    """Return (GPU, what, this host's own, data sheet's peak, how the own is known, "" if it is not) of each roof."""
    rows = []
    for roof in roofs:
        how = OWN_WORDS.get(roof.own_is or "", "")
        for name, peak in roof.peaks.items():
            if name not in roof.own and name not in ("memory", "bf16", "fp8"):
                continue
            what, unit = ("memory, read + written", "GB/s") if name == "memory" else (name.upper(), "TFLOP/s")
            own = roof.own.get(name)
            known = (f"{number(own)} {unit}", how) if own else ("unknown", "")
            rows.append((roof.gpu, what, known[0], f"{number(peak)} {unit}", known[1]))
            ridge, memory = roof.ridge(name), roof.peaks.get("memory")
            if name != "memory" and ridge is not None and memory:
                sheet = f"{number(peak * 1000 / memory)} FLOP/byte"
                rows.append((roof.gpu, f"ridge of {name.upper()}", f"{number(ridge)} FLOP/byte", sheet, how))
    return rows


# --- bars of each measure --------------------------------------------------------------------------------------
# Bars of each measure: its median from zero, its range of runs, and its floor, typical figure and peak on one axis.

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
    return tuple(_measure_chart(title, unit, members) for (title, unit), members in together.items())


def _measure_chart(title: str, unit: str, members: Sequence[Measure]) -> Chart:
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
