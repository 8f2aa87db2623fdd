"""All metrics of a host as one text, of at most MOST_SERIES series: what matters most first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from hosttune import __version__
from hosttune.bench.baselines import with_fleet
from hosttune.bench.measures import measures, scales
from hosttune.metrics import families as f
from hosttune.metrics.hardware import (
    aer_groups,
    device_groups,
    expects,
    info_group,
    kernel_groups,
    link_groups,
    pci_known,
)
from hosttune.metrics.writing import Group, Point, written
from hosttune.model.evidence import STATE, UNREAD_STATEMENT, Evidence
from hosttune.model.quarantine import DeviceRecord, HandoverState
from hosttune.model.result import Drift, Result
from hosttune.model.starts import unread_register
from hosttune.model.validation import CheckResult, Validation
from hosttune.model.values import Closed, Value, grouped
from hosttune.rules.checks.facts import guests_known
from hosttune.transaction.applied import UNREAD

# --- what hosttune manages -----------------------------------------------------------------------------------


STATES = ("none", "applied", "pending-reboot", "unfinished", "needs-person", "unknown")
_TELEMETRY = "load-"
_NEEDS_PERSON = ("conflict", "failed", "stuck")


SOURCES = ("pci", "guests", "kernel-log", "aer", "state", "handover", "expected-devices", "checks")


def state_of(evidence: Evidence) -> Result | None:
    """Return what is applied here; None if hosttune's own state cannot be read, or was not recorded."""
    return None if any(problem.what == STATE for problem in evidence.problems) else evidence.applied_state


# --- what is applied -----------------------------------------------------------------------------------------


def apply_groups(evidence: Evidence | None) -> tuple[Group, ...]:
    """Return the state of what is applied, the number of settings as applied and not, and those that have drifted."""
    result = state_of(evidence) if evidence is not None else None
    now = _state(result)
    drifted = [drift for drift in result.drift if not _unread(drift)] if result is not None else []
    unread = [drift for drift in result.drift if _unread(drift)] if result is not None else []
    counts: dict[str, int | None] = dict.fromkeys(("as-applied", "drifted", "unknown"))
    if result is not None:
        applied = [entry for entry in result.entries if entry.outcome in ("done", "already", "clamped")]
        off = {drift.action for drift in result.drift}
        kept = sum(entry.action not in off for entry in applied)
        counts = {"as-applied": kept, "drifted": len(drifted), "unknown": len(unread)}
    return (
        (f.APPLY_STATE, tuple(Point(labels={"state": state}, value=int(state == now)) for state in STATES)),
        (f.SETTINGS, tuple(Point(labels={"state": one}, value=n) for one, n in counts.items())),
        (f.SETTING_DRIFT, (*_drifts(drifted, 1), *_drifts(unread, None))),
    )


def _drifts(drifts: Iterable[Drift], value: float | None) -> Iterable[Point]:
    for drift in drifts:
        kind, _, subject = drift.action.partition(":")
        yield Point(labels={"kind": kind, "subject": subject}, value=value)


def _unread(drift: Drift) -> bool:
    return (drift.why or "").startswith(UNREAD)


def _state(result: Result | None) -> str:
    """Return the state that needs attention most."""
    if result is None:
        return "unknown"
    if result.exit_code == 4 or any(entry.outcome in _NEEDS_PERSON or entry.is_unstaged for entry in result.entries):
        return "needs-person"
    if result.open_transaction is not None:
        return "unfinished"
    if result.reboot_required:
        return "pending-reboot"
    return "applied" if result.entries or result.drift else "none"


# --- devices between two tenants -----------------------------------------------------------------------------


def handover_group(evidence: Evidence) -> Group:
    """Return whether each device of the register is still as clean as when it was returned."""
    state = evidence.host.handover or HandoverState()
    points = [
        Point(labels={"device": record.address}, value=_clean(record, evidence.host.boot_id, state))
        for record in state.devices
    ]
    if evidence.host.handover is None and unread_register(evidence.host.problems):
        known = dict.fromkeys(address for verification in evidence.statements or () for address in verification.devices)
        points = [Point(labels={"device": address}, value=None) for address in known or ("unknown",)]
    return f.HANDOVER_VALID, tuple(sorted(points, key=lambda point: point.value == 1))


def expiry_group(evidence: Evidence) -> Group:
    """Return when the statement about each device expires: void and unknown ones first, then the soonest.

    A device without one that is kept here has no point.
    """
    expiries = {
        address: 0.0 if verification.verdict == "void" else _seconds(verification.expires_at)
        for verification in evidence.statements or ()
        for address in verification.devices
    }
    lost = [problem for problem in evidence.problems if problem.what == UNREAD_STATEMENT]
    unknown = [record.address for record in (evidence.host.handover or HandoverState()).devices if lost]
    points = dict.fromkeys(unknown) | expiries
    soonest_first = sorted(points.items(), key=lambda row: (row[1] or 0.0, row[0]))
    return f.HANDOVER_EXPIRY, tuple(Point(labels={"device": one}, value=value) for one, value in soonest_first)


def _clean(record: DeviceRecord, boot_id: str | None, state: HandoverState) -> float | None:
    """Return 0 if it was used since, by what is recorded; None if a start may not have been recorded."""
    if record.state != "clean":
        return 0
    now = (boot_id, (state.epochs or {}).get(record.address))
    then = (record.boot_id, record.epoch)
    if any(None not in pair and pair[0] != pair[1] for pair in zip(now, then, strict=True)):
        return 0
    return None if None in (*now, *then) or state.counted(record) is None else 1


# --- measurements --------------------------------------------------------------------------------------------


def bench_groups(evidence: Evidence, validation: Validation | None) -> tuple[Group, ...]:
    """Return the medians of the last measurement, those nearest to their floor first, their floors, and its time."""
    runs = [one for one in (*evidence.history, validation) if one is not None and one.samples]
    if not runs:
        return ()
    last = runs[-1]
    floors = {(s.metric, s.subject): s.floor for s in scales(last.samples, evidence.host, with_fleet(None))}
    values, limits = [], []
    for measure in measures(last.samples):
        if measure.metric.startswith(_TELEMETRY):
            continue
        floor = floors.get((measure.metric, measure.subject))
        labels = {"metric": measure.metric, "subject": measure.subject, "unit": measure.unit}
        values.append(
            (_margin(measure.median, floor, lower=measure.lower_is_better), Point(labels=labels, value=measure.median))
        )
        limits.append((values[-1][0], Point(labels=labels, value=floor)))
    return (
        (f.BENCH_TIMESTAMP, (Point(value=_seconds(last.at)),)),
        (f.BENCH_VALUE, tuple(point for _, point in sorted(values, key=lambda row: row[0]))),
        (f.BENCH_FLOOR, tuple(point for _, point in sorted(limits, key=lambda r: r[0]) if point.value is not None)),
    )


def _margin(value: float | None, floor: float | None, *, lower: bool) -> float:
    """Return how far a figure is from its floor: below 1 it misses it. 0: no figure; infinite: no floor."""
    if value is None:
        return 0.0
    if not floor or not value:
        return float("inf") if not floor else 0.0
    return floor / value if lower else value / floor


def _seconds(at: str | None) -> float | None:
    try:
        return datetime.fromisoformat(at or "").timestamp()
    except (ValueError, OverflowError):
        return None


# --- results of checks ---------------------------------------------------------------------------------------

# Series of the results of a validation: the verdict, counts for each check, and the results that need attention.


VERDICTS = ("pass", "warn", "fail", "unknown")
MOST_STATUS = 30  # results in hosttune_check_status
_WORST_FIRST = ("fail", "unknown", "warn")
_GUEST = "guest-"


def count_group(validation: Validation | None) -> Group:
    """Return the number of results by check and status."""
    results = validation.results if validation is not None else ()
    counted = Counter((result.check, result.standing) for result in results)
    points = (Point(labels={"check": check, "status": status}, value=n) for (check, status), n in counted.items())
    return f.CHECK_RESULTS, tuple(points)


def status_groups(validation: Validation | None) -> tuple[Group, ...]:
    """Return the results that are neither pass nor skip, at most MOST_STATUS, and how many are left out.

    Fails come first, then unknowns, then warnings; within these each check in turn, so that a check with very many
    subjects does not hide the others.
    """
    results = validation.results if validation is not None else ()
    chosen = [result for status in _WORST_FIRST for result in _in_turn([r for r in results if r.standing == status])]
    points = tuple(
        Point(labels={"check": result.check, "subject": result.subject, "status": result.outcome}, value=1)
        for result in chosen[:MOST_STATUS]
    )
    return (f.CHECK_STATUS, points), (f.CHECK_OMITTED, (Point(value=len(chosen) - len(points)),))


def _in_turn(results: Sequence[CheckResult]) -> list[CheckResult]:
    by_check = grouped((result.check, result) for result in results)
    places = {id(result): place for group in by_check.values() for place, result in enumerate(group)}
    return sorted(results, key=lambda result: places[id(result)])


def placement_group(validation: Validation | None, guests: Collection[str]) -> Group:
    """Return, for each guest and each check of guests, 1 if it is violated, 0 if not, None if unknown.

    A check that does not apply (the guest does not run) has no series. `guests`: the names of this host's guests.
    """
    results = validation.results if validation is not None else ()
    return f.PLACEMENT, tuple(sorted(_placements(results, guests), key=lambda point: point.value == 0))


def _placements(results: Iterable[CheckResult], guests: Collection[str]) -> Iterable[Point]:
    values = {"pass": 0, "warn": 1, "fail": 1, "unknown": None}
    for result in results:
        if result.check.startswith(_GUEST) and result.subject in guests and result.outcome in values:
            labels = {"guest": result.subject, "kind": result.check.removeprefix(_GUEST)}
            yield Point(labels=labels, value=values[result.outcome])


# --- all metrics ---------------------------------------------------------------------------------------------


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


class CommandRun(Value, frozen=True, kw_only=True):
    """The run of a command. `at`: seconds since 1970 when the host was read; `seconds`: how long it took."""

    verb: str
    at: float
    exit_code: int | None = None
    seconds: float | None = None


class Observed(Closed, frozen=True, kw_only=True):
    """What is known of a host now. Anything that is missing is unknown.

    `foreign_cpu_seconds`: by guest, time of others on its pinned CPUs. `extra`: further families of the caller, with
    their points; they count in MOST_SERIES and are never left out.
    """

    run: CommandRun
    evidence: Evidence | None = None
    validation: Validation | None = None
    foreign_cpu_seconds: Mapping[str, float | None] | None = None
    extra: tuple[Group, ...] = ()

    MAPPINGS = ("foreign_cpu_seconds",)


def exposition(observed: Observed) -> str:
    """Return the metrics of a host in Prometheus' text format. Pure: the same values give the same text."""
    now = observed.validation.verdict if observed.validation is not None else "unknown"
    always = (
        *_of_run(observed.run),
        (f.VERDICT, tuple(Point(labels={"verdict": verdict}, value=int(verdict == now)) for verdict in VERDICTS)),
        *observed.extra,
    )
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


def _of_run(run: CommandRun) -> tuple[Group, ...]:
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
    if evidence is None:
        readable = dict.fromkeys(SOURCES, False)
    else:
        health = evidence.health
        readable = {
            "pci": pci_known(evidence),
            "guests": guests_known(evidence) is not None,
            "kernel-log": health is not None and health.events is not None and not health.events_unread,
            "aer": health is not None and health.aer is not None,
            "state": state_of(evidence) is not None,
            "handover": evidence.host.handover is not None,
            "expected-devices": expects(evidence),
            "checks": validation is not None,
        }
    yield (
        f.SOURCE_READABLE,
        tuple(Point(labels={"source": source}, value=int(read)) for source, read in readable.items()),
    )
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
