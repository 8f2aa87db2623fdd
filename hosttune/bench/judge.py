"""Figures → results: the median of the runs against floors, the host's own history and what is physically possible.

Never a pass out of nothing: too few runs, a figure above the peak or none at all are unknown, and a figure with
nothing to hold it against is a skip that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from hosttune.bench.baselines import Baseline, Standard
from hosttune.bench.link import SPEED, WIDTH
from hosttune.bench.metrics import Metric, metric_of
from hosttune.bench.parse.answer import Lost
from hosttune.model.validation import CheckResult, Sample, Validation

FEWEST_RUNS = 5
UNSTEADY = 0.10  # spread of the middle half, of the median, above which a figure is no basis for a verdict
_SLACK = 1.01  # timers round
_HISTORY = 0.05  # below the host's own median by more than this: worth a look
_TELEMETRY = "load-"
# The part of an RDMA port's rate that a write from host memory must reach. Azure asks for 0.9 of it where a GPU's
# memory is written (360 of 400 Gb/s, 180 of 200), and for 0.975 from host memory.
PORT_PART = 0.9
_PORT_SOURCE = (
    "{part:g} of the port's rate (/sys/class/infiniband/{port}/ports/1/rate), as Azure/azurehpc-health-checks asks:"
    " conf/nd96asr_v4.conf, line 65 (180 of 200), nd96isr_h200_v5.conf, line 61 (360 of 400), both of GPU memory;"
    " nd96isr_mi300x_v5.conf, line 56 (390 of 400 of host memory). Measured: ib_write_bw, host memory, 1 MiB messages"
)
_NO_FLOOR_OF_A_PART = "no floor is published for a part of a GPU, and this host has no history of it"
_HINT = "measure again with the host idle; then compare link, clocks and NUMA node with a host that reaches it"


@dataclass(frozen=True)
class Port:
    """An RDMA port: its rate, and what the PCIe slot of its NIC carries, in Gb/s; None is unknown."""

    rate: float | None = None
    slot: float | None = None


@dataclass(frozen=True)
class JudgingContext:
    """What figures are judged by: floors and peaks, device ids by subject's first address, GPUs at once, history.

    `links`: NVLinks of each pair of GPUs as far as they are known, 0 on PCIe. `ports`: RDMA ports by name.
    `pieces`: kinds of GPUs that subjects are a part of: the whole's peak bounds them, its floors are none of theirs.
    """

    standard: Standard
    devices: Mapping[str, str]
    gpus: int
    history: tuple[Validation, ...] = ()
    links: Mapping[str, int] = field(default_factory=dict)
    ports: Mapping[str, Port] = field(default_factory=dict)
    pieces: Mapping[str, str] = field(default_factory=dict)

    def at_once(self, subject: str) -> int:
        """With how many GPUs at once a subject was measured: "7 GPUs" says it, even where 8 were to be measured."""
        count, _, rest = subject.partition(" ")
        return int(count) if rest == "GPUs" and count.isdecimal() else self.gpus

    def device(self, subject: str) -> str | None:
        """The kind of device that a subject is about: an address, a way between two, or all GPUs of one kind."""
        first = subject.partition("->")[0]
        if first in self.devices:
            return self.devices[first]
        kinds = {kind for name, kind in self.devices.items() if ":" in name}  # GPUs by address, not RDMA devices
        return kinds.pop() if subject.endswith(" GPUs") and len(kinds) == 1 else None


def judge(samples: Iterable[Sample], scene: JudgingContext) -> tuple[CheckResult, ...]:
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


def _result(metric: str, subject: str, values: list[float], scene: JudgingContext) -> CheckResult:
    family = metric_of(metric)
    if family is None:
        return _unknown(metric, subject, "a metric that hosttune knows", f"{metric} is unknown", "report this")
    if family.unit == "count":
        return _count(metric, subject, values)
    device = scene.device(subject)
    middle = median(values)
    actual = f"median {middle:.4g} {family.unit} of {len(values)} runs, {min(values):.4g} to {max(values):.4g}"
    if len(values) < FEWEST_RUNS:
        return _unknown(metric, subject, f"{FEWEST_RUNS} runs", f"{actual}: too few", "measure again")
    port = scene.ports.get(subject.partition("->")[0]) if family.peak == "network" else None
    links = scene.links.get(subject)
    bound = device or scene.pieces.get(subject)
    peak = scene.standard.most(metric, bound, links) if port is None or port.rate is None else port.rate
    if peak is not None and middle > peak * _SLACK:
        expected = f"at most {peak:.4g} {family.unit}, the physical peak"
        return _unknown(metric, subject, expected, f"{actual}: not credible", "measure again")
    rows = scene.standard.of(metric, device, scene.at_once(subject), links)
    if port is not None:
        rows = (*rows, *_of_port(metric, subject, device, port))
    own = _own(metric, subject, scene)
    doubt = _doubt(rows, middle, links, port)
    if doubt is not None:
        what, hint = doubt
        expected = "; ".join(map(_words, rows)) or "a floor"
        return _unknown(metric, subject, expected, f"{actual}; {what}", hint)
    if not rows and own is None:
        why = _NO_FLOOR_OF_A_PART if subject in scene.pieces else _no_floor(links, port)
        return CheckResult(check=f"bench-{metric}", subject=subject, outcome="skip", actual=f"{actual}; {why}")
    return _judged(metric, subject, family, values, actual, rows, own)


def _of_port(metric: str, subject: str, device: str | None, port: Port) -> tuple[Baseline, ...]:
    """The floor of an RDMA port, by its own rate; none where that is not known, or where the slot carries less."""
    if port.rate is None or (port.slot is not None and port.slot < port.rate):
        return ()
    source = _PORT_SOURCE.format(part=PORT_PART, port=subject.partition("->")[0])
    return (Baseline(metric, device or "", port.rate, 1 - PORT_PART, "higher", "Gb/s", source),)


def _doubt(rows: Sequence[Baseline], middle: float, links: int | None, port: Port | None) -> tuple[str, str] | None:
    """(why a figure that was taken cannot be judged, what to do): what its floor depends on is not known."""
    if port is not None and port.rate is None:
        return "the rate of the port is not known", "read it: cat /sys/class/infiniband/*/ports/1/rate"
    if links is None and any(row.nvlinks is not None and not _reached(middle, row) for row in rows):
        return "how many NVLinks join the two is not known", "nvidia-smi topo -m shows it (NV18, NV6, …)"
    return None


def _no_floor(links: int | None, port: Port | None) -> str:
    if port is not None:
        return "the PCIe slot carries less than the port: no floor is published for that"
    if links == 0:
        return "no NVLink joins the two: no floor is published for copies over PCIe"
    return "no floor is published for this device, and this host has no history"


def loaded_links(samples: Iterable[Sample]) -> dict[str, tuple[float, int]]:
    """Speed (GT/s) and width of each link as it was read under load, the medians; of too few readings: left out."""
    found = grouped(samples)
    links = {}
    for (metric, subject), speeds in found.items():
        widths = found.get((WIDTH, subject), [])
        if metric == SPEED and min(len(speeds), len(widths)) >= FEWEST_RUNS:
            links[subject] = (median_low(speeds), int(median_low(widths)))
    return links


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


def _own(metric: str, subject: str, scene: JudgingContext) -> float | None:
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
