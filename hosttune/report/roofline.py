"""The roofline: the maximum of a GPU for each amount of work per byte of memory traffic, and the measured products.

Model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. Both axes
are logarithmic. A square product of side n does 2n³ operations and transfers its three matrices once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hosttune.model.values import Value, close_mappings
from hosttune.report.measures import Measure, number

# Bytes of one element of the two inputs and of the result.
_ELEMENTS = {
    "bf16": (2, 2, 2), "fp16": (2, 2, 2), "fp8": (1, 1, 2), "tf32": (4, 4, 4), "fp32": (4, 4, 4), "fp64": (8, 8, 8),
}  # fmt: skip
KINDS = tuple(_ELEMENTS)
_GEMM = re.compile(rf"gemm-({'|'.join(KINDS)})")
WIDTH, HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 18, 46
COPY = "device-copy"


class Roof(Value, frozen=True, kw_only=True):
    """The maximum of a device: memory in GB/s (10^9), dense products in TFLOP/s by number type."""

    device: str
    memory_gb_per_s: float | None = None
    compute: Mapping[str, float] = {}
    source: str | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "compute")


class Dot(Value, frozen=True, kw_only=True):
    """A measured product: its position in the plot, and its description."""

    x: float
    y: float
    text: str


class Line(Value, frozen=True, kw_only=True):
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


class Row(Value, frozen=True, kw_only=True):
    """One row of the plot as text: number type, operations per byte, median over the GPUs, part of the peak."""

    work: str
    intensity: str
    measured: str
    peak: str
    part: str


class Plot(Value, frozen=True, kw_only=True):
    """A drawn roofline."""

    title: str
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    rows: tuple[Row, ...]
    source: str | None = None
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


def rooflines(found: Iterable[Measure], roofs: Mapping[str, Roof], sides: Mapping[str, int]) -> tuple[Plot, ...]:
    """Return a plot for each GPU model: `roofs` by measured subject, `sides` of the products by number type."""
    found = tuple(found)
    plots = (
        roofline([one for one in found if roofs.get(one.subject) == roof], roof, sides)
        for roof in dict.fromkeys(roofs.values())
    )
    return tuple(plot for plot in plots if plot)


def roofline(found: Iterable[Measure], roof: Roof, sides: Mapping[str, int]) -> Plot | None:
    """Return the plot of one GPU model. None if no memory bandwidth or no product is known.

    A product of unknown side is drawn at the right end, where compute limits every product.
    """
    found = tuple(found)
    products = [(one, match[1]) for one in found if (match := _GEMM.fullmatch(one.metric)) and one.median]
    if not roof.memory_gb_per_s or not products:
        return None
    memory = roof.memory_gb_per_s / 1000  # TFLOP/s at one operation a byte
    peaks = {kind: peak for kind, peak in roof.compute.items() if peak > 0}
    top = max((*peaks.values(), *(one.median or 0.0 for one, _ in products)))
    known = {kind: intensity(kind, sides[kind]) for _, kind in products if kind in sides}
    axes = _Axes(low_x=1.0, high_x=max((*known.values(), top / memory)) * 3, low_y=memory * 0.5, high_y=top * 2)
    copies = [one.median for one in found if one.metric == COPY and one.median]
    used = dict.fromkeys(kind for _, kind in products)
    lines = [*_grid(axes), *_roofs(axes, memory, {kind: peaks[kind] for kind in used if kind in peaks})]
    lines += _copy(axes, copies, top)
    return Plot(
        title=roof.device,
        lines=tuple(lines),
        dots=tuple(_dot(axes, one, kind, known.get(kind)) for one, kind in products),
        rows=(*_copy_row(copies, roof), *(_row(kind, products, peaks, sides) for kind in used)),
        source=roof.source,
    )


def intensity(kind: str, side: int) -> float:
    """Return operations per byte of a square product that transfers its matrices once: 2n³ ÷ (n² × bytes)."""
    return 2 * side / sum(_ELEMENTS[kind])


def _grid(axes: _Axes) -> Iterable[Line]:
    bottom, end = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in _decades(axes.low_x, axes.high_x):
        x = axes.x(value)
        yield Line(
            kind="grid", x1=x, y1=_TOP, x2=x, y2=bottom, text=f"{value:,.0f}", tx=x, ty=bottom + 18, anchor="middle"
        )
    for value in _decades(axes.low_y, axes.high_y):
        y = axes.y(value)
        words = f"{value:,.4g}"
        yield Line(kind="grid", x1=_LEFT, y1=y, x2=end, y2=y, text=words, tx=_LEFT - 8, ty=y + 4, anchor="end")


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _roofs(axes: _Axes, memory: float, peaks: Mapping[str, float]) -> Iterable[Line]:
    top = max(peaks.values(), default=axes.high_y / 2)
    x1, y1, x2, y2 = axes.x(1.0), axes.y(memory), axes.x(top / memory), axes.y(top)
    words = f"memory, peak {number(memory * 1000)} GB/s"
    tx, ty = round((x1 + x2) / 2 - 10, 1), round((y1 + y2) / 2 - 10, 1)
    yield Line(kind="peak", x1=x1, y1=y1, x2=x2, y2=y2, text=words, tx=tx, ty=ty, anchor="end")
    for kind, peak in peaks.items():
        y, end = axes.y(peak), WIDTH - _RIGHT
        words = f"{kind.upper()} peak {number(peak)}"
        yield Line(kind="peak", x1=axes.x(peak / memory), y1=y, x2=end, y2=y, text=words, tx=end + 8, ty=y + 4)


def _copy(axes: _Axes, copies: Sequence[float], top: float) -> Iterable[Line]:
    if not copies:
        return
    middle = median(copies) / 1000
    start = max(1.0, axes.low_y / middle)
    yield Line(
        kind="measured",
        x1=axes.x(start),
        y1=axes.y(middle * start),
        x2=axes.x(top / middle),
        y2=axes.y(top),
        text=f"copy, measured {number(middle * 1000)} GB/s",
        tx=axes.x(start) + 36,
        ty=axes.y(middle * start) - 2,
    )


def _dot(axes: _Axes, one: Measure, kind: str, at: float | None) -> Dot:
    value = one.median or axes.low_y
    text = f"{kind.upper()} on {one.subject}: {number(value)} {one.unit}"
    return Dot(x=axes.x(at or axes.high_x / 1.2), y=axes.y(max(value, axes.low_y)), text=text)


def _row(
    kind: str, products: Sequence[tuple[Measure, str]], peaks: Mapping[str, float], sides: Mapping[str, int]
) -> Row:
    medians = sorted(one.median for one, other in products if other == kind and one.median is not None)
    middle, peak, side = median(medians), peaks.get(kind), sides.get(kind)
    return Row(
        work=f"{kind.upper()} product" + (f", {side:,} × {side:,}" if side else ""),
        intensity=f"{number(intensity(kind, side))} FLOP/byte" if side else "size not recorded",
        measured=f"{number(middle)} TFLOP/s",
        peak="unknown" if peak is None else f"{number(peak)} TFLOP/s",
        part="unknown" if peak is None else f"{middle / peak:.0%}",
    )


def _copy_row(copies: Sequence[float], roof: Roof) -> tuple[Row, ...]:
    if not copies or not roof.memory_gb_per_s:
        return ()
    middle, peak = median(copies), roof.memory_gb_per_s
    measured, most = f"{number(middle)} GB/s", f"{number(peak)} GB/s"
    work = "copy in memory, read + write"
    return (Row(work=work, intensity="–", measured=measured, peak=most, part=f"{middle / peak:.0%}"),)
