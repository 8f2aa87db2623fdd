"""The roofline: the maximum of a GPU for each amount of work per byte of memory traffic, and the measured products.

Model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. Both axes
are logarithmic. A square product of side n does 2n³ operations and transfers its three matrices once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from statistics import median

from msgspec.structs import replace

from hosttune.bench.baselines import Standard
from hosttune.bench.measures import Measure, device_kinds
from hosttune.model.host import Host
from hosttune.model.text import number
from hosttune.model.values import Closed, Value
from hosttune.report.judged import OWN_WORDS

# Bytes of one element of the two inputs and of the result.
_ELEMENTS = {
    "bf16": (2, 2, 2), "fp16": (2, 2, 2), "fp8": (1, 1, 2), "tf32": (4, 4, 4), "fp32": (4, 4, 4), "fp64": (8, 8, 8),
}  # fmt: skip
KINDS = tuple(_ELEMENTS)
_GEMM = re.compile(rf"gemm-({'|'.join(KINDS)})")
WIDTH, HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 18, 46
COPY = "device-copy"
MEASURED, BY_MODEL = OWN_WORDS["measured"], OWN_WORDS["model"]
_LABEL = 14.0  # between the base lines of two labels


class Roof(Closed, frozen=True, kw_only=True):
    """The maximum of a device: memory in GB/s (10^9), dense products in TFLOP/s by number type.

    `own`: what this host's device reaches ("memory" in GB/s, number types in TFLOP/s); `own_is` says how that is known.
    """

    device: str
    memory_gb_per_s: float | None = None
    compute: Mapping[str, float] = {}
    source: str | None = None
    own: Mapping[str, float] = {}
    own_is: str = ""

    MAPPINGS = ("compute", "own")


class RooflineRun(Value, frozen=True, kw_only=True):
    """Other work than a product: operations per byte (None: drawn at the right end), TFLOP/s of a GPU, words."""

    intensity: float | None
    tflops: float
    text: str


class Dot(Value, frozen=True, kw_only=True):
    """A measured product or a run: its position in the plot, its description, and words beside it."""

    x: float
    y: float
    text: str
    label: str = ""


class RooflineLine(Value, frozen=True, kw_only=True):
    """A line from (x1, y1) to (x2, y2) with a label at its end. `kind` is its class in the style sheet."""

    kind: str
    x1: float
    y1: float
    x2: float
    y2: float
    text: str = ""
    tx: float = 0.0
    ty: float = 0.0
    anchor: str = "start"


class RooflineRow(Value, frozen=True, kw_only=True):
    """One row of the plot as text: number type, operations per byte, median over the GPUs, part of the peak."""

    work: str
    intensity: str
    measured: str
    peak: str
    part: str


class Plot(Value, frozen=True, kw_only=True):
    """A drawn roofline. `own_is` says how the host's own roof is known; `ridge`: where it bends, in words."""

    title: str
    lines: tuple[RooflineLine, ...]
    dots: tuple[Dot, ...]
    rows: tuple[RooflineRow, ...]
    source: str | None = None
    own_is: str = MEASURED
    ridge: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    middle: float = (_LEFT + WIDTH - _RIGHT) / 2  # of the horizontal axis


class _Axes(Value, frozen=True, kw_only=True):
    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, intensity: float) -> float:
        part = math.log(intensity / self.low_x) / math.log(self.high_x / self.low_x)
        return round(_LEFT + part * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, tflops: float) -> float:
        part = math.log(tflops / self.low_y) / math.log(self.high_y / self.low_y)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 1)


def rooflines(measures: Iterable[Measure], roofs: Mapping[str, Roof], sides: Mapping[str, int]) -> tuple[Plot, ...]:
    """Return a plot for each GPU model: `roofs` by measured subject, `sides` of the products by number type."""
    measures = tuple(measures)
    plots = (
        roofline([measure for measure in measures if roofs.get(measure.subject) == roof], roof, sides)
        for roof in dict.fromkeys(roofs.values())
    )
    return tuple(plot for plot in plots if plot)


def roofline(
    measures: Iterable[Measure], roof: Roof, sides: Mapping[str, int], runs: Iterable[RooflineRun] = ()
) -> Plot | None:
    """Return the plot of one GPU model. None if its memory bandwidth or any product is unknown.

    The host's own roof is what was measured, or `roof.own`. A product of unknown side is drawn at the right end, where
    compute limits every product.
    """
    measures, runs = tuple(measures), tuple(runs)
    products = [
        (measure, match[1]) for measure in measures if (match := _GEMM.fullmatch(measure.metric)) and measure.median
    ]
    own = measured_roof(measures) or {name: value for name, value in roof.own.items() if value > 0}
    kinds = dict.fromkeys([*(kind for _, kind in products), *(name for name in own if name in KINDS)])
    if not roof.memory_gb_per_s or not kinds:
        return None
    memory = roof.memory_gb_per_s / 1000  # TFLOP/s at one operation a byte
    peaks = {kind: roof.compute[kind] for kind in kinds if roof.compute.get(kind, 0) > 0}
    levels = [
        *peaks.values(),
        *(measure.median or 0.0 for measure, _ in products),
        *(own[kind] for kind in kinds if kind in own),
    ]
    top = max(*levels, *(run.tflops for run in runs), 0.0)
    known = {kind: intensity(kind, sides[kind]) for _, kind in products if kind in sides}
    # Axes that show the highest roof or figure, all operations per byte, and where the roofs bend.
    most = max([*known.values(), *(run.intensity for run in runs if run.intensity), top / memory])
    axes = _Axes(low_x=1.0, high_x=most * 3, low_y=memory * 0.5, high_y=top * 2)
    own_is = MEASURED if measured_roof(measures) else roof.own_is
    lines = [*_grid(axes), *_roofs(axes, memory, peaks), *_own(axes, memory, own, own_is, top)]
    return Plot(
        title=roof.device,
        lines=tuple(_apart(lines)),
        dots=(
            *(_dot(axes, measure, kind, known.get(kind)) for measure, kind in products),
            *(_run_dot(axes, run) for run in runs),
        ),
        rows=(
            *_copy_row(own, roof),
            *(_row(kind, own, peaks, sides if known else {}) for kind in kinds if kind in own),
        ),
        source=roof.source,
        own_is=own_is,
        ridge=_ridge(own, peaks, roof.memory_gb_per_s),
    )


def measured_roof(measures: Iterable[Measure]) -> dict[str, float]:
    """Return the host's own roof as measured: medians over the GPUs; empty if no product was measured."""
    groups: dict[str, list[float]] = {}
    for measure in measures:
        match = _GEMM.fullmatch(measure.metric)
        if measure.median and (match or measure.metric == COPY):
            groups.setdefault(match[1] if match else "memory", []).append(measure.median)
    return {name: median(values) for name, values in groups.items()} if set(groups) - {"memory"} else {}


def _ridge(own: Mapping[str, float], peaks: Mapping[str, float], memory: float) -> str:
    """Return where the roofs bend, in operations per byte."""
    parts = []
    for kind in own:
        if kind in KINDS and "memory" in own:
            sheet = f", data sheet {number(peaks[kind] * 1000 / memory)}" if kind in peaks else ""
            parts.append(f"{kind.upper()} {number(own[kind] * 1000 / own['memory'])}{sheet}")
    return f"Ridge of this host's own roof in FLOP/byte: {'; '.join(parts)}" if parts else ""


def intensity(kind: str, side: int) -> float:
    """Return operations per byte of a square product that transfers its matrices once: 2n³ ÷ (n² × bytes)."""
    return 2 * side / sum(_ELEMENTS[kind])


def _grid(axes: _Axes) -> Iterable[RooflineLine]:
    bottom, end = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in _decades(axes.low_x, axes.high_x):
        x = axes.x(value)
        yield RooflineLine(
            kind="grid", x1=x, y1=_TOP, x2=x, y2=bottom, text=f"{value:,.0f}", tx=x, ty=bottom + 18, anchor="middle"
        )
    for value in _decades(axes.low_y, axes.high_y):
        y = axes.y(value)
        words = f"{value:,.4g}"
        yield RooflineLine(kind="grid", x1=_LEFT, y1=y, x2=end, y2=y, text=words, tx=_LEFT - 8, ty=y + 4, anchor="end")


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _roofs(axes: _Axes, memory: float, peaks: Mapping[str, float]) -> Iterable[RooflineLine]:
    top = max(peaks.values(), default=axes.high_y / 2)
    x1, y1, x2, y2 = axes.x(1.0), axes.y(memory), axes.x(top / memory), axes.y(top)
    words = f"memory, peak {number(memory * 1000)} GB/s"
    tx, ty = round((x1 + x2) / 2 - 10, 1), round((y1 + y2) / 2 - 10, 1)
    yield RooflineLine(kind="peak", x1=x1, y1=y1, x2=x2, y2=y2, text=words, tx=tx, ty=ty, anchor="end")
    for kind, peak in peaks.items():
        y, end = axes.y(peak), WIDTH - _RIGHT
        words = f"{kind.upper()} peak {number(peak)}"
        yield RooflineLine(kind="peak", x1=axes.x(peak / memory), y1=y, x2=end, y2=y, text=words, tx=end + 8, ty=y + 4)


def _own(axes: _Axes, memory: float, own: Mapping[str, float], own_is: str, top: float) -> Iterable[RooflineLine]:
    """Yield the host's own roof: its copies, and its products from where they meet the copies."""
    word = "by the model" if own_is == BY_MODEL else "measured"
    copied = own.get("memory")
    slope = copied / 1000 if copied else memory
    if copied:
        start = max(1.0, axes.low_y / slope)
        yield RooflineLine(
            kind="measured",
            x1=axes.x(start),
            y1=axes.y(slope * start),
            x2=axes.x(top / slope),
            y2=axes.y(top),
            text=f"copy, {word} {number(copied)} GB/s",
            tx=axes.x(start) + 36,
            ty=axes.y(slope * start) - 2,
        )
    for kind, value in own.items():
        if kind in KINDS:
            y, end = axes.y(value), WIDTH - _RIGHT
            text = f"{kind.upper()} {word} {number(value)}"
            yield RooflineLine(
                kind="measured", x1=axes.x(value / slope), y1=y, x2=end, y2=y, text=text, tx=end + 8, ty=y + 4
            )


def _apart(lines: Iterable[RooflineLine]) -> list[RooflineLine]:
    """Return the lines with the labels at the right end far enough from each other to be read."""
    lines = list(lines)
    right = sorted((line for line in lines if line.text and line.tx > WIDTH - _RIGHT), key=lambda line: line.ty)
    places: dict[int, float] = {}
    last = -_LABEL
    for line in right:
        last = places[id(line)] = max(line.ty, last + _LABEL)
    return [replace(line, ty=round(places[id(line)], 1)) if id(line) in places else line for line in lines]


def _dot(axes: _Axes, measure: Measure, kind: str, at: float | None) -> Dot:
    value = measure.median or axes.low_y
    text = f"{kind.upper()} on {measure.subject}: {number(value)} {measure.unit}"
    return Dot(x=axes.x(at or axes.high_x / 1.2), y=axes.y(max(value, axes.low_y)), text=text)


def _run_dot(axes: _Axes, run: RooflineRun) -> Dot:
    x, y = axes.x(run.intensity or axes.high_x / 1.2), axes.y(max(run.tflops, axes.low_y))
    return Dot(x=x, y=y, text=run.text, label=run.text)


def _row(kind: str, own: Mapping[str, float], peaks: Mapping[str, float], sides: Mapping[str, int]) -> RooflineRow:
    middle, peak, side = own[kind], peaks.get(kind), sides.get(kind)
    return RooflineRow(
        work=f"{kind.upper()} product" + (f", {side:,} × {side:,}" if side else ""),
        intensity=f"{number(intensity(kind, side))} FLOP/byte" if side else "–",
        measured=f"{number(middle)} TFLOP/s",
        peak="unknown" if peak is None else f"{number(peak)} TFLOP/s",
        part="unknown" if peak is None else f"{middle / peak:.0%}",
    )


def _copy_row(own: Mapping[str, float], roof: Roof) -> tuple[RooflineRow, ...]:
    if "memory" not in own or not roof.memory_gb_per_s:
        return ()
    middle, peak = own["memory"], roof.memory_gb_per_s
    measured, most = f"{number(middle)} GB/s", f"{number(peak)} GB/s"
    work = "copy in memory, read + write"
    return (RooflineRow(work=work, intensity="–", measured=measured, peak=most, part=f"{middle / peak:.0%}"),)


_SIDE = "gemm-{}-side"  # the fact that has the side of the products of a number type


def roofs(host: Host | None, standard: Standard) -> dict[str, Roof]:
    """Return a roof for each GPU by address, if the device's peaks are known."""
    known = {}
    for address, kind in device_kinds(host).items():
        peaks = standard.peaks.get(kind)
        if peaks is not None:
            known[address] = Roof(
                device=peaks.model,
                memory_gb_per_s=peaks.values.get("memory"),
                compute={name: value for name, value in peaks.values.items() if name in KINDS},
                source=peaks.source,
            )
    return known


def sides(facts: Mapping[str, str] | None) -> dict[str, int]:
    """Return the side of the square products by number type, from the facts of a validation."""
    texts = {kind: (facts or {}).get(_SIDE.format(kind), "") for kind in KINDS}
    return {kind: int(text) for kind, text in texts.items() if re.fullmatch(r"[1-9][0-9]{0,6}", text)}
