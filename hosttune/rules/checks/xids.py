"""The meaning of an XID for a GPU that is to be given to a guest: NVIDIA's catalogue (data/xids.toml). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.model.evidence import KernelEvent
from hosttune.rules.checks.data import table

RANK = ("inform", "warn", "unknown", "fail")  # from the best to the worst
CATALOGUE = "docs.nvidia.com/deploy/xid-errors"
_LOST = "power-cycle the host; if it comes back, reseat or replace the GPU"
_SEE = f"NVIDIA's catalogue does not have it: ask NVIDIA's support with nvidia-bug-report.sh ({CATALOGUE})"
_UNREAD = f"read the record in the kernel log and decode it by NVIDIA's catalogue, {CATALOGUE} (XID 144-150 Decode)"
_RECOVERY_XID = 154


class Ruling(msgspec.Struct, frozen=True):
    """The judgement of one event: `outcome` of `RANK`, the event in words, and what to do about it."""

    outcome: str
    name: str
    hint: str


def rulings(events: Sequence[KernelEvent]) -> tuple[tuple[KernelEvent, Ruling], ...]:
    """Return the events of one GPU with their rulings, the worst first.

    Each XID 154 says what the driver asks for from then on; if there are several, the last one counts.
    """
    last = _last_recovery(events)
    rows = [
        (event, Ruling("inform", f"{_event_name(event)}, changed again later", "") if event in last else rule(event))
        for event in events
    ]
    return tuple(sorted(rows, key=lambda row: -RANK.index(row[1].outcome)))


def _last_recovery(events: Iterable[KernelEvent]) -> list[KernelEvent]:
    """Return each XID 154 that a later one has replaced; empty if the time of any of them is unknown."""
    asked = [event for event in events if event.code == _RECOVERY_XID]
    times = [event.last_seconds for event in asked if event.last_seconds is not None]
    if len(times) < len(asked):
        return []
    return [event for event in asked if (event.last_seconds or 0) < max(times)]


def rule(event: KernelEvent) -> Ruling:
    """Return the ruling of a single event. A GPU that is lost (no code) fails."""
    if event.code is None:
        return Ruling("fail", "lost or not started", _LOST)
    row: Sequence[str] | None = table("xids")["xid"].get(str(event.code))
    name = _event_name(event)
    if row is None:
        return Ruling("unknown", name, _SEE)
    _, action, then, _ = row
    if event.code == _RECOVERY_XID:
        outcome, hint = table("xids")["recovery"].get((event.recovery or "").casefold(), ("unknown", _SEE))
        return Ruling(outcome, name, hint)
    if action == "WORKFLOW_NVLINK5_ERR":
        return _nvlink5(event, name)
    outcome, hint = table("xids")["policy"].get(str(event.code)) or table("xids")["actions"][action or "NONE"]
    after = table("xids")["then"].get(then)
    return Ruling(outcome, name, f"{hint}; {after}" if after and hint else hint)


def _event_name(event: KernelEvent) -> str:
    row = table("xids")["xid"].get(str(event.code))
    if row is None:
        return f"XID {event.code}"
    words: str = row[0]
    if event.recovery:
        words += f" to {event.recovery}"
    if event.subcode:
        words += f": {event.subcode}"
    if event.severity:
        words += f", {event.severity}"
    return f"XID {event.code} ({words})"


# --- NVLink 5 ------------------------------------------------------------------------------------------------


def _nvlink5(event: KernelEvent, name: str) -> Ruling:
    """Return the ruling of XID 144 to 150 by severity, subcode and error status; unknown if it cannot be decoded."""
    actions: Mapping[str, Sequence[str]] = table("xids")["actions"]
    reset = Ruling("fail", name, actions["RESET_GPU"][1])
    if event.severity == "fatal":
        return reset
    subcode = (event.subcode or "").upper()
    rows = (row for row in table("xids")["nvlink5"] if row["xid"] == event.code and subcode in row["subcodes"])
    row = next(rows, None)
    decoded = None if event.severity is None or row is None else _decoded(row, event.registers)
    if decoded == "reset":
        return reset
    if decoded == "evaluate":
        return Ruling("warn", name, "do what the XID 154 beside it asks for; without one, restart the application")
    if decoded == "look":
        return Ruling("warn", name, f"no action is asked for; {table('xids')['then']['CONTACT_SUPPORT']}")
    return Ruling("inform", name, "") if decoded == "ignore" else Ruling("unknown", name, _UNREAD)


def _decoded(row: Mapping[str, Any], registers: Sequence[int]) -> str | None:
    """Return the worst of reset, evaluate, look and ignore in the status register; None if it has any other value."""
    if "any" in row:
        return str(row["any"])
    if len(registers) < 2:
        return None
    details, status = registers[:2]
    if any(details & ((1 << bits) - 1) == value for bits, value in row.get("promoted", ())):
        return "reset"
    kinds = ("reset", "evaluate", "look", "ignore")
    known = {value: kind for kind in reversed(kinds) for value in row.get(kind, ())}
    if status in known:
        return known[status]
    parts = {known.get(1 << bit) for bit in range(32) if status >> bit & 1}
    return None if None in parts else next((kind for kind in kinds if kind in parts), None)
