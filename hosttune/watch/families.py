"""The agent's own metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.metrics import Family, Point
from hosttune.model.values import Value

_MOST_GIVEN_UP = 8

INTERVAL = Family(name="hosttune_watch_interval_seconds", kind="gauge", help="Seconds between two looks at the host.")
LOOKS = Family(
    name="hosttune_watch_looks_total", kind="counter", help="Looks at the host since the agent started, by cause.",
    labels=("cause",),
)  # fmt: skip
FAILED = Family(
    name="hosttune_watch_look_failed", kind="gauge",
    help="1 if the last look did not end, so that the state of the host is unknown; else 0.",
)  # fmt: skip
EVENTS = Family(
    name="hosttune_watch_events_total", kind="counter", help="Events received since the agent started, by source.",
    labels=("source",),
)  # fmt: skip
EVENTS_LOST = Family(
    name="hosttune_watch_events_lost_total", kind="counter",
    help="How often events were dropped before the agent received them; everything is then read again.",
    labels=("source",),
)  # fmt: skip
SOURCE_UP = Family(
    name="hosttune_watch_source_up", kind="gauge",
    help="1 if events of this source are received, 0 if its changes are found only at the next interval.",
    labels=("source",),
)  # fmt: skip
CPU = Family(name="hosttune_watch_cpu_seconds_total", kind="counter", help="CPU time of the agent and its children.")
MEMORY = Family(
    name="hosttune_watch_resident_bytes", kind="gauge", help="Memory of the agent and its children between two looks."
)
CORRECTIONS = Family(
    name="hosttune_watch_keep_corrections_total", kind="counter",
    help="Settings that --keep has set again since the agent started, by outcome.", labels=("outcome",)
)  # fmt: skip
GIVEN_UP = Family(
    name="hosttune_watch_keep_given_up", kind="gauge",
    help="1 for a drifted setting that --keep leaves alone, because it was corrected too often.",
    labels=("kind", "subject"),
)  # fmt: skip
IDLE = Family(
    name="hosttune_watch_keep_refused", kind="gauge",
    help="1 if --keep could do nothing in its last turn (lock held, unfinished transaction, after a revert), else 0.",
)  # fmt: skip


class AgentState(Value, frozen=True, kw_only=True):
    """What the agent knows about itself; a figure that is None is unknown. `keeping`: it runs with --keep."""

    interval: float
    looks: Mapping[str, int]
    failed: bool
    events: Mapping[str, int]
    lost: Mapping[str, int]
    up: Mapping[str, bool]
    cpu_seconds: float | None = None
    resident_bytes: int | None = None
    keeping: bool = False
    corrections: Mapping[str, int] = {}
    given_up: tuple[tuple[str, str], ...] = ()
    refused: bool = False


def families(state: AgentState) -> tuple[tuple[Family, tuple[Point, ...]], ...]:
    """Return the agent's families with their points, at most 30."""
    groups = [
        (INTERVAL, _point(state.interval)),
        (LOOKS, _by("cause", state.looks)),
        (FAILED, _point(float(state.failed))),
        (EVENTS, _by("source", state.events)),
        (EVENTS_LOST, _by("source", state.lost)),
        (SOURCE_UP, _by("source", state.up)),
        (CPU, _point(state.cpu_seconds)),
        (MEMORY, _point(state.resident_bytes)),
    ]
    if state.keeping:
        given_up = (
            Point(labels={"kind": kind, "subject": target}, value=1.0)
            for kind, target in state.given_up[:_MOST_GIVEN_UP]
        )
        groups += [
            (CORRECTIONS, _by("outcome", state.corrections)),
            (GIVEN_UP, tuple(given_up)),
            (IDLE, _point(float(state.refused))),
        ]
    return tuple(groups)


def _point(value: float | None) -> tuple[Point, ...]:
    return (Point(labels={}, value=None if value is None else float(value)),)


def _by(label: str, values: Mapping[str, int | bool]) -> tuple[Point, ...]:
    rows: Iterable[tuple[str, int | bool]] = sorted(values.items())
    return tuple(Point(labels={label: name}, value=float(value)) for name, value in rows)
