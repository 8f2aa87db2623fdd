"""The runs of a validation by metric and subject. Nothing else of this room is loaded with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.validation import Sample
from hosttune.model.values import grouped


def runs_of(samples: Iterable[Sample]) -> dict[tuple[str, str], list[float]]:
    """Return the runs by (metric, subject), in order. Samples without a value are left out."""
    return grouped(((sample.metric, sample.subject), sample.value) for sample in samples if sample.value is not None)


def loaded_clocks(samples: Iterable[Sample]) -> dict[str, tuple[float, float]]:
    """Return by GPU the highest SM clock (MHz) and the highest power (W) under load.

    A reading's power is no measure of its own clock: the driver tells the average of a second.
    """
    runs = runs_of(samples)
    clocks = {subject: max(values) for (metric, subject), values in runs.items() if metric == "load-sm-clock"}
    powers = {subject: max(values) for (metric, subject), values in runs.items() if metric == "load-power"}
    return {subject: (clock, powers[subject]) for subject, clock in clocks.items() if subject in powers}


def middle_of(runs: Sequence[float]) -> float:
    """Return the median of one run or more."""
    ordered = sorted(runs)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
