"""Figures → results: the median of the runs against floors, the host's own history and what is physically possible.

Never a pass out of nothing: too few runs, a figure above the peak or none at all are unknown, and a figure with
nothing to hold it against is a skip that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hosttune.bench.baselines import Baseline, Standard
from hosttune.bench.metrics import Metric, metric_of
from hosttune.bench.parse.answer import Lost
from hosttune.model.validation import CheckResult, Sample, Validation

FEWEST_RUNS = 5
UNSTEADY = 0.10  # spread of the middle half, of the median, above which a figure is no basis for a verdict
_SLACK = 1.01  # timers round
_HISTORY = 0.05  # below the host's own median by more than this: worth a look
_TELEMETRY = "load-"
_HINT = "measure again with the host idle; then compare link, clocks and NUMA node with a host that reaches it"


@dataclass(frozen=True)
class Scene:
    """What figures are judged by: floors and peaks, device ids by subject's first address, GPUs at once, history."""

    standard: Standard
    devices: Mapping[str, str]
    gpus: int
    history: tuple[Validation, ...] = ()

    def device(self, subject: str) -> str | None:
        """The kind of device that a subject is about: an address, a way between two, or all GPUs of one kind."""
        first = subject.partition("->")[0]
        if first in self.devices:
            return self.devices[first]
        kinds = {kind for name, kind in self.devices.items() if ":" in name}  # GPUs by address, not RDMA devices
        return kinds.pop() if subject.endswith(" GPUs") and len(kinds) == 1 else None


def judge(samples: Iterable[Sample], scene: Scene) -> tuple[CheckResult, ...]:
    """One result for each metric and subject that was measured; telemetry (clocks, power) is not judged."""
    return tuple(
        _result(metric, subject, values, scene)
        for (metric, subject), values in grouped(samples).items()
        if not metric.startswith(_TELEMETRY)
    )


def grouped(samples: Iterable[Sample]) -> dict[tuple[str, str], list[float]]:
    """Runs by metric and subject, in order; samples without a value are left out."""
    found: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        if sample.value is not None:
            found.setdefault((sample.metric, sample.subject), []).append(sample.value)
    return found


def missing(lost: Iterable[Lost]) -> tuple[CheckResult, ...]:
    """An unknown result for each figure that did not come, one a metric and subject."""
    found = {(row.metric, row.subject): row for row in lost}
    return tuple(
        CheckResult(
            check=f"bench-{row.metric}",
            subject=row.subject,
            outcome="unknown",
            expected="a figure",
            actual=row.why,
            hint="run it again; the kernel log (dmesg) may say more",
        )
        for row in found.values()
    )


def spread(values: Sequence[float]) -> float:
    """The width of the middle half of the runs, as a part of their median."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = median(ordered)
    return (ordered[-1 - quarter] - ordered[quarter]) / middle if middle else 0.0


def _result(metric: str, subject: str, values: list[float], scene: Scene) -> CheckResult:
    family = metric_of(metric)
    if family is None:
        return _unknown(metric, subject, "a metric of ours", f"{metric} is none", "report this")
    if family.unit == "count":
        return _count(metric, subject, values)
    device = scene.device(subject)
    middle = median(values)
    actual = f"median {middle:.4g} {family.unit} of {len(values)} runs, {min(values):.4g} to {max(values):.4g}"
    if len(values) < FEWEST_RUNS:
        return _unknown(metric, subject, f"{FEWEST_RUNS} runs", f"{actual}: too few", "measure again")
    peak = scene.standard.most(metric, device)
    if peak is not None and middle > peak * _SLACK:
        expected = f"at most {peak:.4g} {family.unit}, the physical peak"
        return _unknown(metric, subject, expected, f"{actual}: not believed", "measure again")
    rows = scene.standard.of(metric, device, scene.gpus)
    own = _own(metric, subject, scene)
    if not rows and own is None:
        return CheckResult(
            check=f"bench-{metric}", subject=subject, outcome="skip",
            actual=f"{actual}; no floor is published for this device, and this host has no history",
        )  # fmt: skip
    return _judged(metric, subject, family, values, actual, rows, own)


def _judged(
    metric: str,
    subject: str,
    family: Metric,
    values: list[float],
    actual: str,
    rows: Sequence[Baseline],
    own: float | None,
) -> CheckResult:
    middle = median(values)
    expected = "; ".join([*(_words(row) for row in rows), *([f"{own:.4g} {family.unit} before"] if own else [])])
    source = "; ".join([*(row.source for row in rows), *(["this host's history"] if own else [])])
    floors = [row for row in rows if row.kind == "floor" and not _reached(middle, row)]
    weaker = [row for row in rows if row.kind != "floor" and not _reached(middle, row)]
    behind = own is not None and _behind(middle, own, family)
    uneven = spread(values) > UNSTEADY
    outcome = "fail" if floors else "warn" if weaker or behind or uneven else "pass"
    words = actual + (f"; unsteady: the middle half spreads {spread(values):.0%}" if uneven else "")
    return CheckResult(
        check=f"bench-{metric}",
        subject=subject,
        outcome=outcome,  # type: ignore[arg-type]  # one of the three words above
        expected=expected,
        actual=words,
        source=source,
        hint=None if outcome == "pass" else _HINT,
    )


def _words(row: Baseline) -> str:
    sign = ">=" if row.direction == "higher" else "<="
    kind = {"floor": "floor", "reference": "as measured elsewhere", "fleet": "fleet's median"}[row.kind]
    return f"{sign} {row.limit:.4g} {row.unit} ({kind})"


def _reached(value: float, row: Baseline) -> bool:
    return value >= row.limit if row.direction == "higher" else value <= row.limit


def _behind(value: float, own: float, family: Metric) -> bool:
    part = value / own - 1
    return part < -_HISTORY if family.direction == "higher" else part > _HISTORY


def _own(metric: str, subject: str, scene: Scene) -> float | None:
    """The median of the medians of this host's stored runs of the same figure."""
    found = [
        median(values)
        for validation in scene.history
        if (values := grouped(validation.samples).get((metric, subject))) and len(values) >= FEWEST_RUNS
    ]
    return median(found) if found else None


def _count(metric: str, subject: str, values: list[float]) -> CheckResult:
    """Counts of errors: none is the only good one."""
    total = sum(values)
    return CheckResult(
        check=f"bench-{metric}",
        subject=subject,
        outcome="pass" if total == 0 else "fail",
        expected="0",
        actual=f"{total:g}",
        source="the same product computed again and again",
        hint=None if total == 0 else "the GPU computes wrongly: take the host out of service and run dcgmi diag -r 4",
    )


def _unknown(metric: str, subject: str, expected: str, actual: str, hint: str) -> CheckResult:
    return CheckResult(
        check=f"bench-{metric}", subject=subject, outcome="unknown", expected=expected, actual=actual, hint=hint
    )
