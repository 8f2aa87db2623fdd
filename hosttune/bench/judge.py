"""Figures → results: compare the median of the runs with floors, the host's own history and the physical peak.

A pass needs evidence. Too few runs, a figure above the peak, or a missing figure is unknown. A figure without a floor
or a history is a skip with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low

import msgspec

from hosttune.bench.baselines import ABOVE_PEAK, Baseline, Standard
from hosttune.bench.compare import runs_of
from hosttune.bench.link import SPEED, WIDTH
from hosttune.bench.metrics import Metric, metric_of
from hosttune.bench.modelled import Model, Modelled, against_model, no_model
from hosttune.bench.parse.answer import Lost
from hosttune.gpu import maker_of
from hosttune.gpu.vendor import Hints
from hosttune.model.validation import CheckResult, Outcome, Sample, Validation
from hosttune.model.values import number

FEWEST_RUNS = 5
UNSTEADY = 0.10  # if the middle half of the runs is wider than this fraction of the median, the figure cannot pass
_HISTORY = 0.05  # a figure that is worse than the host's own median by more than this fraction gives a warning
_TELEMETRY = "load-"
# The fraction of an RDMA port's rate that a write from host memory must reach. Azure requires 0.9 for writes to GPU
# memory (360 of 400 Gb/s, 180 of 200), and 0.975 for writes from host memory.
PORT_PART = 0.9
_PORT_SOURCE = (
    "{part:g} of the port's rate (/sys/class/infiniband/{port}/ports/1/rate), as Azure/azurehpc-health-checks asks:"
    " conf/nd96asr_v4.conf, line 65 (180 of 200), nd96isr_h200_v5.conf, line 61 (360 of 400), both of GPU memory;"
    " nd96isr_mi300x_v5.conf, line 56 (390 of 400 of host memory). Measured: ib_write_bw, host memory, 1 MiB messages"
)


class RatedPort(msgspec.Struct, frozen=True):
    """An RDMA port: its rate, and the rate of the PCIe slot of its NIC, in Gb/s; None is unknown."""

    rate: float | None = None
    slot: float | None = None


class JudgingContext(msgspec.Struct, frozen=True):
    """The data that figures are compared with.

    `standard`: floors and peaks. `devices`: device ids by the first address of a subject. `gpus`: number of GPUs that
    are measured at once. `links`: NVLinks of each pair of GPUs, as far as known, 0 on PCIe. `ports`: RDMA ports by
    name. `pieces`: for subjects that are a part of a GPU, the device id of that GPU. The peak of the whole GPU limits
    the figures of a part, but the floors of the whole GPU do not apply to it. `model`: what figures of a machine of
    this shape are like; it is not asked about a part of a GPU.
    """

    standard: Standard
    devices: Mapping[str, str]
    gpus: int
    history: tuple[Validation, ...] = ()
    links: Mapping[str, int] = msgspec.field(default_factory=dict)
    ports: Mapping[str, RatedPort] = msgspec.field(default_factory=dict)
    pieces: Mapping[str, str] = msgspec.field(default_factory=dict)
    model: Model = no_model

    def at_once(self, subject: str) -> int:
        """Return how many GPUs were measured at once for a subject.

        A subject such as "7 GPUs" gives the number itself, even if 8 GPUs were requested.
        """
        count, _, rest = subject.partition(" ")
        named = number(count) if rest == "GPUs" else None
        return self.gpus if named is None else named

    def device(self, subject: str) -> str | None:
        """Return the device id of a subject, None if unknown.

        A subject is an address, a path between two devices ("A->B"), or several GPUs of one kind ("8 GPUs").
        """
        first = subject.partition("->")[0]
        if first in self.devices:
            return self.devices[first]
        kinds = {kind for name, kind in self.devices.items() if ":" in name}  # GPUs by address, not RDMA devices
        return kinds.pop() if subject.endswith(" GPUs") and len(kinds) == 1 else None


def judge(samples: Iterable[Sample], context: JudgingContext) -> tuple[CheckResult, ...]:
    """Return a result for each metric and subject that was measured. Telemetry (clocks, power) is not judged."""
    return tuple(
        _result(metric, subject, values, context)
        for (metric, subject), values in runs_of(samples).items()
        if not metric.startswith(_TELEMETRY)
    )


def missing(lost: Iterable[Lost]) -> tuple[CheckResult, ...]:
    """Return an unknown result for each missing figure, one per metric and subject."""
    lost_rows = {(row.metric, row.subject): row for row in lost}
    return tuple(
        CheckResult(
            check=f"bench-{row.metric}",
            subject=row.subject,
            outcome="unknown",
            expected="a figure",
            actual=row.why,
            hint="run it again; the kernel log (dmesg) may say more",
        )
        for row in lost_rows.values()
    )


def spread(values: Sequence[float]) -> float:
    """Return the width of the middle half of the runs, as a fraction of their median."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = median(ordered)
    return (ordered[-1 - quarter] - ordered[quarter]) / middle if middle else 0.0


def _result(metric: str, subject: str, values: list[float], context: JudgingContext) -> CheckResult:
    family = metric_of(metric)
    if family is None:
        return _unknown(metric, subject, "a metric that hosttune knows", f"{metric} is unknown", "report this")
    if family.unit == "count":
        return _count(metric, subject, values, context.device(subject))
    device = context.device(subject)
    middle = median(values)
    actual = f"median {middle:.4g} {family.unit} of {len(values)} runs, {min(values):.4g} to {max(values):.4g}"
    if len(values) < FEWEST_RUNS:
        return _unknown(metric, subject, f"{FEWEST_RUNS} runs", f"{actual}: too few", "measure again")
    port = context.ports.get(subject.partition("->")[0]) if family.peak == "network" else None
    links = context.links.get(subject)
    bound = device or context.pieces.get(subject)
    peak = context.standard.most(metric, bound, links) if port is None or port.rate is None else port.rate
    modelled = Modelled() if subject in context.pieces else context.model(metric, subject)
    expected = _exceeded(middle, family, peak, modelled)
    if expected is not None:
        return _unknown(metric, subject, expected, f"{actual}: not credible", "measure again")
    rows = context.standard.of(metric, device, context.at_once(subject), links)
    rows = against_model(rows, modelled, modelled.row is not None and _reached(middle, modelled.row))
    if port is not None:
        rows = (*rows, *_of_port(metric, subject, device, port))
    own = _own(metric, subject, context)
    doubt = _doubt(rows, middle, links, port)
    if doubt is not None:
        what, hint = doubt
        expected = "; ".join(map(_baseline_text, rows)) or "a floor"
        return _unknown(metric, subject, expected, f"{actual}; {what}", hint)
    if not rows and own is None:
        why = (
            "no floor is published for a part of a GPU, and this host has no history of it"
            if subject in context.pieces
            else _no_floor(links, port)
        )
        if modelled.why and modelled.most is not None:
            why += f"; no typical figure of this shape has a source ({modelled.why})"
        return CheckResult(check=f"bench-{metric}", subject=subject, outcome="skip", actual=f"{actual}; {why}")
    return _judge_figure(metric, subject, family, values, actual, rows, own)


def _exceeded(middle: float, family: Metric, peak: float | None, modelled: Modelled) -> str | None:
    """Return what a figure exceeds, if it is more than the device or the shape of this machine can give, else None."""
    most = modelled.most
    if peak is not None and middle > peak * ABOVE_PEAK:
        return f"at most {peak:.4g} {family.unit}, the physical peak"
    if most is not None and middle > most * ABOVE_PEAK:
        return f"at most {most:.4g} {family.unit}, the bound of this machine ({modelled.why})"
    return None


def _of_port(metric: str, subject: str, device: str | None, port: RatedPort) -> tuple[Baseline, ...]:
    """Return the floor of an RDMA port, from its rate.

    Empty if the rate is unknown, or if the PCIe slot is slower than the port.
    """
    if port.rate is None or (port.slot is not None and port.slot < port.rate):
        return ()
    source = _PORT_SOURCE.format(part=PORT_PART, port=subject.partition("->")[0])
    return (Baseline(metric, device or "", port.rate, 1 - PORT_PART, "higher", "Gb/s", source),)


def _doubt(
    rows: Sequence[Baseline], middle: float, links: int | None, port: RatedPort | None
) -> tuple[str, str] | None:
    """Return (why a figure cannot be judged, what to do) if a fact that its floor depends on is unknown, else None."""
    if port is not None and port.rate is None:
        return "the rate of the port is not known", "read it: cat /sys/class/infiniband/*/ports/1/rate"
    if links is None and any(row.nvlinks is not None and not _reached(middle, row) for row in rows):
        return "how many NVLinks join the two is not known", "nvidia-smi topo -m shows it (NV18, NV6, …)"
    return None


def _no_floor(links: int | None, port: RatedPort | None) -> str:
    if port is not None:
        return "the PCIe slot carries less than the port: no floor is published for that"
    if links == 0:
        return "no NVLink joins the two: no floor is published for copies over PCIe"
    return "no floor is published for this device, and this host has no history"


def loaded_links(samples: Iterable[Sample]) -> dict[str, tuple[float, int]]:
    """Return the median speed (GT/s) and width of each link, read under load. Too few readings: left out."""
    runs = runs_of(samples)
    links = {}
    for (metric, subject), speeds in runs.items():
        widths = runs.get((WIDTH, subject), [])
        if metric == SPEED and min(len(speeds), len(widths)) >= FEWEST_RUNS:
            links[subject] = (median_low(speeds), int(median_low(widths)))
    return links


def _judge_figure(
    metric: str,
    subject: str,
    family: Metric,
    values: list[float],
    actual: str,
    rows: Sequence[Baseline],
    own: float | None,
) -> CheckResult:
    middle = median(values)
    expected = "; ".join(
        [*(_baseline_text(row) for row in rows), *([f"{own:.4g} {family.unit} before"] if own else [])]
    )
    source = "; ".join([*(row.source for row in rows), *(["this host's history"] if own else [])])
    floors = [row for row in rows if row.kind == "floor" and not _reached(middle, row)]
    weaker = [row for row in rows if row.kind != "floor" and not _reached(middle, row)]
    behind = own is not None and _behind(middle, own, family)
    uneven = spread(values) > UNSTEADY
    outcome: Outcome = "fail" if floors else "warn" if weaker or behind or uneven else "pass"
    words = actual + (f"; unsteady: the middle half spreads {spread(values):.0%}" if uneven else "")
    return CheckResult(
        check=f"bench-{metric}",
        subject=subject,
        outcome=outcome,
        expected=expected,
        actual=words,
        source=source,
        hint=None
        if outcome == "pass"
        else "measure again with the host idle; then compare link, clocks and NUMA node with a host that reaches it",
    )


def _baseline_text(row: Baseline) -> str:
    sign = ">=" if row.direction == "higher" else "<="
    kind = {
        "floor": "floor",
        "reference": "as measured elsewhere",
        "fleet": "fleet's median",
        "typical": f"typical of this shape is {row.expected:.4g}: {row.why}",
        "least": f"a part of the bound of this shape, {row.expected:.4g}: {row.why}",
    }[row.kind]
    return f"{sign} {row.limit:.4g} {row.unit} ({kind})"


def _reached(value: float, row: Baseline) -> bool:
    return value >= row.limit if row.direction == "higher" else value <= row.limit


def _behind(value: float, own: float, family: Metric) -> bool:
    part = value / own - 1
    return part < -_HISTORY if family.direction == "higher" else part > _HISTORY


def _own(metric: str, subject: str, context: JudgingContext) -> float | None:
    """Return the median of the medians of this figure in the host's stored validations; None without any."""
    medians = [
        median(values)
        for validation in context.history
        if (values := runs_of(validation.samples).get((metric, subject))) and len(values) >= FEWEST_RUNS
    ]
    return median(medians) if medians else None


def _count(metric: str, subject: str, values: list[float], device: str | None) -> CheckResult:
    """Return the result for a count of errors on a device with these ids: only 0 passes."""
    total = sum(values)
    maker = maker_of((device or "").partition(":")[0])
    test = (maker.hints if maker else Hints()).diagnose
    return CheckResult(
        check=f"bench-{metric}",
        subject=subject,
        outcome="pass" if total == 0 else "fail",
        expected="0",
        actual=f"{total:g}",
        source="the same product computed again and again",
        hint=None if total == 0 else f"the GPU computes wrongly: take the host out of service and {test}",
    )


def _unknown(metric: str, subject: str, expected: str, actual: str, hint: str) -> CheckResult:
    return CheckResult(
        check=f"bench-{metric}", subject=subject, outcome="unknown", expected=expected, actual=actual, hint=hint
    )
