"""The times that hosttune writes, in one format, and the clock that nobody sets."""

from __future__ import annotations

import time


def now_text() -> str:
    """Return the time as ISO 8601 in UTC, in whole seconds: 2026-01-31T12:00:00+00:00."""
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


def seconds_of(text: str) -> float | None:
    """Return the seconds since the epoch of a time of `now_text`; None if the text is no time.

    Journals of earlier versions have Z in place of +00:00; so has libvirt's hook.
    """
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def since_boot() -> float:
    """Return the seconds since the boot, those of a suspend too. Nobody sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
