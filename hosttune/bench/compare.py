"""Compare figures before and after, and separate real changes from noise; what got worse. Pure functions.

The effect is the ratio of the medians. It is real only if both conditions hold:

- the runs before and after differ more than by chance: exact two-sided rank test (Mann-Whitney, with midranks; the
  normal approximation above 40 runs) at 1 %. With five runs each, every run after must be on the same side of every
  run before;
- the effect is at least 1 %. Runs of one process differ less than runs of different processes, and figures were
  measured to differ by 1 % from boot to boot.

`low` and `high` are the bounds of the effect: the 95 % percentile interval of a bootstrap of the ratio of medians, with
a fixed seed, so that the same documents always give the same result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

import msgspec

from hosttune.bench.metrics import metric_of
from hosttune.model.validation import CheckResult, Sample, Validation
from hosttune.model.values import grouped

# These checks judge every device, in a guest or not. If a subject is missing now, the device is gone.
_EVERY_DEVICE = ("pcie-link", "numa-affinity")
_SEVERITY = {"pass": 0, "skip": 0, "warn": 1, "unknown": 2, "fail": 3}


def got_worse(check: str, old: CheckResult | None, new: CheckResult | None, *, made: bool) -> bool:
    """Return whether the result of one subject is worse. `made`: whether the check gave any result this time.

    Worse is: a fail or unknown that was less severe or absent before; a pass that is now a warning; a device that is
    gone; a check that is no longer made. Not worse is: a warning for a subject that did not apply before, and a result
    that no longer applies.
    """
    if new is None:
        return old is not None and (not made or (old.outcome != "skip" and check in _EVERY_DEVICE))
    if new.outcome == "warn":
        return old is not None and old.outcome == "pass"
    return _SEVERITY[new.outcome] > (_SEVERITY[old.outcome] if old is not None else 0)


def regressions(before: Validation, after: Validation) -> tuple[str, ...]:
    """Return a line for each outcome and each figure that is worse in `after`, in its order.

    A gate between waves closes on any of them. So they contain what a change of the host must not cause, but no
    expected effects of a change: the temperature of a GPU that now belongs to a guest is no longer read, and the checks
    of a guest appear and disappear with the guest.

    Among outcomes, those that `after` no longer has come last; figures come after all outcomes.
    """
    old, new = ({(result.check, result.subject): result for result in side.results} for side in (before, after))
    keys = [*new, *(key for key in old if key not in new)]
    made = {check for check, _ in new}
    pairs = [(key, old.get(key), new.get(key)) for key in keys]
    outcomes = [_line(key, was, now) for key, was, now in pairs if got_worse(key[0], was, now, made=key[0] in made)]
    figures = [
        f"{change.metric} {change.subject}: {change.before:g} -> {change.after:g} {change.unit}, {change.change:+.1%}"
        for change in compare(before, after)
        if change.verdict == "worse"
        and change.before is not None
        and change.after is not None
        and change.change is not None
    ]
    return (*outcomes, *figures)


def _line(key: tuple[str, str], old: CheckResult | None, new: CheckResult | None) -> str:
    was, now = (result.outcome if result is not None else "not there" for result in (old, new))
    return f"{key[0]} {key[1]}: {was} -> {now}" + (f", {new.actual}" if new is not None and new.actual else "")


LEVEL = 0.01
LEAST = 0.01
FEWEST = 5
_RESAMPLES = 1000
_EXACT = 40

Trend = Literal["better", "worse", "within noise", "unknown"]


class FigureChange(msgspec.Struct, frozen=True):
    """One figure before and after. `change`, `low` and `high` are fractions of the median before; None is unknown.

    `why` is the reason if the change is unknown.
    """

    metric: str
    subject: str
    unit: str
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    runs: tuple[int, int]
    verdict: Trend
    why: str = ""


def compare(before: Validation, after: Validation) -> tuple[FigureChange, ...]:
    """Return the changes of all figures, in the order of `after`; then the figures that only `before` has."""
    old, new = runs_of(before.samples), runs_of(after.samples)
    units = [{(row.metric, row.subject): row.unit for row in side.samples} for side in (before, after)]
    keys = [*new, *(key for key in old if key not in new)]
    return tuple(
        _change(key, old.get(key, []), new.get(key, []), units[0].get(key), units[1].get(key))
        for key in keys
        if not key[0].startswith("load-")
    )


def _change(
    key: tuple[str, str], old: Sequence[float], new: Sequence[float], unit: str | None, new_unit: str | None
) -> FigureChange:
    metric, subject = key
    first, second = (median(values) if values else None for values in (old, new))
    why = _doubt(metric, old, new, unit, new_unit)
    if why or first is None or second is None:
        shown = new_unit or unit or ""
        return FigureChange(
            metric, subject, shown, first, second, None, None, None, (len(old), len(new)), "unknown", why
        )
    effect = second / first - 1
    source = random.Random(20261120)
    differences = sorted(
        median(source.choices(new, k=len(new))) / median(source.choices(old, k=len(old))) - 1 for _ in range(_RESAMPLES)
    )
    cut = _RESAMPLES // 40  # 2.5 %
    low, high = differences[cut], differences[-1 - cut]
    verdict: Trend = "within noise"
    if abs(effect) >= LEAST and rank_test(old, new) <= LEVEL:
        family = metric_of(metric)
        rises = family is None or family.direction == "higher"
        verdict = "better" if (effect > 0) == rises else "worse"
    return FigureChange(metric, subject, unit or "", first, second, effect, low, high, (len(old), len(new)), verdict)


def _doubt(metric: str, old: Sequence[float], new: Sequence[float], unit: str | None, new_unit: str | None) -> str:
    if metric_of(metric) is None:
        return "not a metric that hosttune knows"
    if not old or not new:
        return "measured only " + ("after" if new else "before")
    if unit != new_unit:
        return f"in {unit} before, in {new_unit} after"
    if min(*old, *new) <= 0 or not all(map(math.isfinite, (*old, *new))):
        return "a figure is not positive"
    if min(len(old), len(new)) < FEWEST:
        return f"fewer than {FEWEST} runs"
    return ""


def rank_test(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the p-value of the two-sided rank test, exact up to 40 runs in total.

    It is the probability that the ranks are at least this far apart if nothing changed.
    """
    values = [*old, *new]
    ordered = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(ordered)))}
    last = {value: index for index, value in enumerate(ordered)}
    ranks = [first[value] + last[value] + 2 for value in values]
    count, all_runs = len(old), len(ranks)
    centre = count * (all_runs + 1)
    distance = abs(sum(ranks[:count]) - centre)
    if distance == 0:
        return 1.0
    if all_runs > _EXACT:
        others = all_runs - count
        mean = sum(ranks) / all_runs
        variance = count * others / (all_runs * (all_runs - 1)) * sum((rank - mean) ** 2 for rank in ranks)
        return math.erfc(distance / math.sqrt(2 * variance)) if variance else 1.0
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(count))]
    for rank in ranks:
        for size in range(count, 0, -1):
            for total, number in ways[size - 1].items():
                ways[size][total + rank] = ways[size].get(total + rank, 0) + number
    far = sum(number for total, number in ways[count].items() if abs(total - centre) >= distance)
    return far / math.comb(all_runs, count)


# --- runs -----------------------------------------------------------------------------------------------------


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
