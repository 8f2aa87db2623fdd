"""Evidence with another reading of its counters: of a validation before it, or 3 s after it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hosttune.model.evidence import Evidence, Health
from hosttune.model.validation import Counted, Validation

LOOKED = "2026-11-28T12:00:00+00:00"
UP = 100_000.0
_Counters = Mapping[str, Mapping[str, int]]


def _up(found: Evidence) -> Evidence:
    health = msgspec.structs.replace(found.health or Health(), uptime_seconds=UP)
    return msgspec.structs.replace(found, health=health, host=msgspec.structs.replace(found.host, boot_id="b"))


def looked_at(found: Evidence, counters: _Counters, seconds: float = 1800.0) -> Evidence:
    """Return the evidence with a validation so long before it."""
    seen = Counted(boot_id="b", uptime_seconds=UP - seconds, counters=counters)
    return msgspec.structs.replace(_up(found), history=(Validation(at=LOOKED, counted=seen),))


def read_again(found: Evidence, counters: _Counters) -> Evidence:
    """Return the evidence with a second reading."""
    return msgspec.structs.replace(_up(found), counted_later=Counted(uptime_seconds=UP + 3, counters=counters))
