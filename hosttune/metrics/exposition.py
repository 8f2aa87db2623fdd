"""All metrics of a host as one text, of at most MOST_SERIES series: what matters most first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hosttune import __version__
from hosttune.metrics import families as f
from hosttune.metrics.hardware import aer_groups, device_groups, info_group, kernel_groups, link_groups
from hosttune.metrics.management import apply_groups, bench_groups, expiry_group, handover_group, source_group
from hosttune.metrics.results import count_group, placement_group, status_groups, verdict_group
from hosttune.metrics.writing import Group, Point, written
from hosttune.model.evidence import Evidence
from hosttune.model.validation import Validation
from hosttune.model.values import Value, close_lists, close_mappings

MOST_SERIES = 300  # in one text, whatever the host
_MOST = {  # series of a family, where a sick host could have very many
    f.SETTING_DRIFT.name: 16,
    f.PLACEMENT.name: 16,
    f.XID_EVENTS.name: 16,
    f.HANDOVER_VALID.name: 16,
    f.HANDOVER_EXPIRY.name: 16,
    f.BENCH_VALUE.name: 16,
    f.BENCH_FLOOR.name: 16,
    f.FOREIGN_CPU.name: 16,
    f.DEVICE_INFO.name: 64,
}


class Run(Value, frozen=True, kw_only=True):
    """The run of a command. `at`: seconds since 1970 when the host was read; `seconds`: how long it took."""

    verb: str
    at: float
    exit_code: int | None = None
    seconds: float | None = None


class Observed(Value, frozen=True, kw_only=True):
    """What is known of a host now. Anything that is missing is unknown.

    `foreign_cpu_seconds`: by guest, time of others on its pinned CPUs. `extra`: further families of the caller, with
    their points; they count in MOST_SERIES and are never left out.
    """

    run: Run
    evidence: Evidence | None = None
    validation: Validation | None = None
    foreign_cpu_seconds: Mapping[str, float | None] | None = None
    extra: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)
        close_mappings(self, "foreign_cpu_seconds")


def exposition(observed: Observed) -> str:
    """Return the metrics of a host in Prometheus' text format. Pure: the same values give the same text."""
    always = (*_of_run(observed.run), verdict_group(observed.validation), *observed.extra)
    # One series is for that number.
    kept: list[Group] = list(always)
    left = MOST_SERIES - 1 - sum(len(points) for _, points in always)
    omitted = 0
    for family, points in _groups(observed):
        most = max(0, min(left, _MOST.get(family.name, left)))
        kept.append((family, points[:most]))
        left -= len(points[:most])
        omitted += len(points) - len(points[:most])
    return written((*kept, (f.SERIES_OMITTED, (Point(value=omitted),))))


def _of_run(run: Run) -> tuple[Group, ...]:
    labels = {"verb": run.verb}
    return (
        (f.BUILD_INFO, (Point(labels={"version": __version__}, value=1),)),
        (f.RUN_TIMESTAMP, (Point(labels=labels, value=round(run.at, 3)),)),
        (f.RUN_EXIT_CODE, (Point(labels=labels, value=run.exit_code),)),
        (f.RUN_DURATION, (Point(labels=labels, value=None if run.seconds is None else round(run.seconds, 3)),)),
    )


def _groups(observed: Observed) -> Iterable[Group]:
    """Yield the groups, the one that is left out last first."""
    evidence, validation = observed.evidence, observed.validation
    yield source_group(evidence, validation)
    yield from status_groups(validation)
    yield from apply_groups(evidence)
    if evidence is None:
        yield count_group(validation)
        return
    guests = {guest.name for guest in evidence.host.guests or ()} | {g.name for p in evidence.plans for g in p.guests}
    gpus, others = link_groups(evidence, validation)
    above, rest = aer_groups(evidence)
    yield from device_groups(evidence)
    yield from kernel_groups(evidence)
    yield handover_group(evidence)
    yield expiry_group(evidence)
    yield placement_group(validation, guests)
    yield _foreign(observed.foreign_cpu_seconds or {})
    yield count_group(validation)
    yield from gpus
    yield info_group(evidence)
    yield above
    yield from bench_groups(evidence, validation)
    yield from others
    yield rest


def _foreign(seconds: Mapping[str, float | None]) -> Group:
    most_first = sorted(seconds.items(), key=lambda row: (-(math.inf if row[1] is None else row[1]), row[0]))
    return f.FOREIGN_CPU, tuple(Point(labels={"guest": guest}, value=value) for guest, value in most_first)
