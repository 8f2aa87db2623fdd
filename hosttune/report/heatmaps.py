"""Matrices as heat maps: figures between pairs (GPU to GPU, node to node), with a colour for each of seven steps.

The number is always in its cell. The colour only helps to find the unusual one: the worse, the darker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.bench.measures import Measure, by_metric, pair_of, title_of
from hosttune.model.host import Host
from hosttune.model.text import number
from hosttune.model.values import Value

STEPS = 7  # colours from best to worst
_WITHIN = 0.1  # the colour range covers at least this part of its best figure, so that noise does not look like a fault


class HeatCell(Value, frozen=True, kw_only=True):
    """One figure: its text, its colour step (None: no figure), and whether it is on the wrong side of its floor."""

    text: str
    step: int | None = None
    below_floor: bool = False
    note: str = ""


class Matrix(Value, frozen=True, kw_only=True):
    """A matrix of figures. Rows are where a transfer starts (the reader, the CPU), columns where it ends.

    The colours go from `best` to `worst`.
    """

    title: str
    words: str
    unit: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[HeatCell, ...], ...]
    best: str
    worst: str
    lower_is_better: bool = False

    @property
    def flagged(self) -> bool:
        """Whether any cell is on the wrong side of its floor."""
        return any(cell.below_floor for row in self.rows for cell in row)


def matrices(measures: Iterable[Measure]) -> tuple[Matrix, ...]:
    """Return a matrix for each metric whose subjects are all pairs."""
    return tuple(
        _matrix(metric, subjects)
        for metric, subjects in by_metric(measures).items()
        if all(pair_of(measure.subject) for measure in subjects)
    )


def distances(host: Host) -> Matrix | None:
    """Return the firmware's distances between nodes (SLIT; 10 is local).

    None if no node reports distances or there is only one node.
    """
    nodes = [node for node in host.numa_nodes if node.distances]
    if len(nodes) < 2:
        return None
    names = tuple(f"node {node.id}" for node in nodes)
    figures = {
        (f"node {node.id}", f"node {other}"): float(far)
        for node in nodes
        for other, far in (node.distances or {}).items()
    }
    ramp = colour_range(figures.values(), lower_is_better=True)
    return Matrix(
        title="numa-distances",
        words="distances between nodes as the firmware says",
        unit="10 is local",
        names=names,
        columns=names,
        rows=_rows(names, names, figures, {}, ramp),
        best=f"{ramp[0]:.0f}",
        worst=f"{ramp[1]:.0f}",
        lower_is_better=True,
    )


def _matrix(metric: str, subjects: Sequence[Measure]) -> Matrix:
    ends = [(pair_of(measure.subject) or ("", ""), measure) for measure in subjects]
    names = tuple(dict.fromkeys(start for (start, _), _ in ends))
    columns = tuple(dict.fromkeys(end for (_, end), _ in ends))
    same = set(names) == set(columns)
    figures = {pair: measure.median for pair, measure in ends if measure.median is not None}
    ramp = colour_range(figures.values(), lower_is_better=subjects[0].lower_is_better)
    return Matrix(
        title=metric,
        words=title_of(metric),
        unit=subjects[0].unit,
        names=names,
        columns=names if same else columns,
        rows=_rows(names, names if same else columns, figures, dict(ends), ramp),
        best=number(ramp[0]) if figures else "",
        worst=number(ramp[1]) if figures else "",
        lower_is_better=subjects[0].lower_is_better,
    )


def colour_range(figures: Iterable[float], *, lower_is_better: bool) -> tuple[float, float]:
    """Return the figures of the lightest and the darkest colour."""
    known = tuple(figures) or (0.0,)
    low, high = min(known), max(known)
    return (low, max(high, low * (1 + _WITHIN))) if lower_is_better else (high, min(low, high * (1 - _WITHIN)))


def _rows(
    names: Sequence[str],
    columns: Sequence[str],
    figures: dict[tuple[str, str], float],
    measured: dict[tuple[str, str], Measure],
    ramp: tuple[float, float],
) -> tuple[tuple[HeatCell, ...], ...]:
    return tuple(
        tuple(_cell(figures.get((name, column)), measured.get((name, column)), ramp) for column in columns)
        for name in names
    )


def _cell(value: float | None, measure: Measure | None, ramp: tuple[float, float]) -> HeatCell:
    if value is None:
        return HeatCell(text="?" if measure else "–", note="no figure" if measure else "not measured")
    text = number(value) if measure else f"{value:.0f}"
    return HeatCell(text=text, step=cell_step(value, ramp), below_floor=bool(measure and measure.below_floor))


def cell_step(value: float, ramp: tuple[float, float]) -> int:
    """Return the colour step of a figure between the figures of the lightest and the darkest colour."""
    best, worst = ramp
    return round((value - best) / (worst - best) * (STEPS - 1)) if worst != best else 0
