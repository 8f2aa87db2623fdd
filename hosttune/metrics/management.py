"""Series of what hosttune manages: sources, applied settings, hand-overs, and the last measurement."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from hosttune.bench.baselines import with_fleet
from hosttune.bench.measures import measures
from hosttune.bench.standards import scales
from hosttune.metrics import families as f
from hosttune.metrics.hardware import expects, pci_known
from hosttune.metrics.writing import Group, Point
from hosttune.model.evidence import STATE, UNREAD_STATEMENT, Evidence
from hosttune.model.quarantine import DeviceRecord, HandoverState
from hosttune.model.result import Drift, Result
from hosttune.model.starts import unread_register
from hosttune.model.validation import Validation
from hosttune.rules.checks.facts import guests_known
from hosttune.transaction.applied import UNREAD

STATES = ("none", "applied", "pending-reboot", "unfinished", "needs-person", "unknown")
_TELEMETRY = "load-"
_NEEDS_PERSON = ("conflict", "failed", "stuck")


def source_group(evidence: Evidence | None, validation: Validation | None) -> Group:
    """Return whether each source of facts could be read completely."""
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
    return f.SOURCE_READABLE, tuple(Point(labels={"source": one}, value=int(read)) for one, read in readable.items())


SOURCES = ("pci", "guests", "kernel-log", "aer", "state", "handover", "expected-devices", "checks")


def state_of(evidence: Evidence) -> Result | None:
    """Return what is applied here; None if hosttune's own state cannot be read, or was not recorded."""
    return None if any(problem.what == STATE for problem in evidence.problems) else evidence.applied_state


# --- what is applied -----------------------------------------------------------------------------------------


def apply_groups(evidence: Evidence | None) -> tuple[Group, ...]:
    """Return the state of what is applied, the number of settings as applied and not, and those that have drifted."""
    result = state_of(evidence) if evidence is not None else None
    now = _state(result)
    drifted = [one for one in result.drift if not _unread(one)] if result is not None else []
    unread = [one for one in result.drift if _unread(one)] if result is not None else []
    counts: dict[str, int | None] = dict.fromkeys(("as-applied", "drifted", "unknown"))
    if result is not None:
        applied = [one for one in result.entries if one.outcome in ("done", "already", "clamped")]
        off = {one.action for one in result.drift}
        kept = sum(one.action not in off for one in applied)
        counts = {"as-applied": kept, "drifted": len(drifted), "unknown": len(unread)}
    return (
        (f.APPLY_STATE, tuple(Point(labels={"state": one}, value=int(one == now)) for one in STATES)),
        (f.SETTINGS, tuple(Point(labels={"state": one}, value=n) for one, n in counts.items())),
        (f.SETTING_DRIFT, (*_drifts(drifted, 1), *_drifts(unread, None))),
    )


def _drifts(found: Iterable[Drift], value: float | None) -> Iterable[Point]:
    for one in found:
        kind, _, subject = one.action.partition(":")
        yield Point(labels={"kind": kind, "subject": subject}, value=value)


def _unread(drift: Drift) -> bool:
    return (drift.why or "").startswith(UNREAD)


def _state(result: Result | None) -> str:
    """Return the state that needs attention most."""
    if result is None:
        return "unknown"
    if result.exit_code == 4 or any(one.outcome in _NEEDS_PERSON or one.is_unstaged for one in result.entries):
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
        Point(labels={"device": one.address}, value=_clean(one, evidence.host.boot_id, state)) for one in state.devices
    ]
    if evidence.host.handover is None and unread_register(evidence.host.problems):
        known = dict.fromkeys(address for one in evidence.statements or () for address in one.devices)
        points = [Point(labels={"device": address}, value=None) for address in known or ("unknown",)]
    return f.HANDOVER_VALID, tuple(sorted(points, key=lambda point: point.value == 1))


def expiry_group(evidence: Evidence) -> Group:
    """Return when the statement about each device expires: void and unknown ones first, then the soonest.

    A device without one that is kept here has no point.
    """
    found = {
        address: 0.0 if one.verdict == "void" else _seconds(one.expires_at)
        for one in evidence.statements or ()
        for address in one.devices
    }
    lost = [one for one in evidence.problems if one.what == UNREAD_STATEMENT]
    unknown = [one.address for one in (evidence.host.handover or HandoverState()).devices if lost]
    points = dict.fromkeys(unknown) | found
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
    for one in measures(last.samples):
        if one.metric.startswith(_TELEMETRY):
            continue
        floor = floors.get((one.metric, one.subject))
        labels = {"metric": one.metric, "subject": one.subject, "unit": one.unit}
        values.append((_margin(one.median, floor, lower=one.lower_is_better), Point(labels=labels, value=one.median)))
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
