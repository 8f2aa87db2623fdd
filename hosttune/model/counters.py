"""Counters of errors, which count since boot or since a driver was loaded, and how much they grew. Pure.

One table says which there are. A validation keeps them (`Validation.counted`), and a later one of the same boot
compares with them. Without an earlier one they are read twice, some seconds apart (`Evidence.counted_later`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.validation import Counted, Validation
from hosttune.model.values import Value

_Counters = Mapping[str, Mapping[str, int]]
_Reading = tuple[_Counters, _Counters, float, str]  # before and after, seconds between them, and in words
T = TypeVar("T")
_Row = tuple[str, Mapping[str, int | None]]
LATER = "counted-later"  # name of the query of the second reading
NOT_ERRORS = ("rx_bytes", "carrier_down_count", "rx_dropped", "rx_missed_errors")  # what any port in use counts


class Growth(Value, frozen=True, kw_only=True):
    """How much each counter grew in `seconds`, and since when in words. No entry: not read twice."""

    counts: Mapping[str, int]
    seconds: float
    words: str


def _of_ports(evidence: Evidence) -> Iterable[_Row]:
    for nic in (evidence.ports or {}).values():
        yield from ((port.name, port.counters) for port in nic.rdma or ())
        yield from ((net.name, net.counters) for net in nic.interfaces or ())


def _health(evidence: Evidence) -> Health:
    return evidence.health or Health()


_TABLE: Mapping[str, Callable[[Evidence], Iterable[_Row]]] = {
    "aer": lambda evidence: (
        (end, {kind: n for kind, n in counts.items() if ":" not in kind})
        for end, counts in (_health(evidence).aer or {}).items()
    ),
    "edac": lambda evidence: (_health(evidence).edac or {}).items(),
    "replays": lambda evidence: ((gpu.address, {"replays": gpu.pcie_replays}) for gpu in evidence.host.gpus),
    "nvlink": lambda evidence: (
        (f"{gpu.address} {link.link}", link.counters) for gpu in evidence.host.gpus for link in gpu.nvlinks or ()
    ),
    "port": _of_ports,
}


# The record of the kernel log that these counters begin anew. Where it is not known, growth is at least what it says.
_BEGINS_ANEW = {"replays": "driver-load", "nvlink": "driver-load", "edac": "edac-mc"}


def _read(evidence: Evidence, kind: str) -> dict[str, dict[str, int]]:
    """Return the counters of one row of the table that were read."""
    rows = ((f"{kind} {name}", counts) for name, counts in _TABLE[kind](evidence))
    known = {name: {word: n for word, n in counts.items() if n is not None} for name, counts in rows}
    return {name: counts for name, counts in known.items() if counts}


def counted(evidence: Evidence) -> Counted | None:
    """Return all counters that were read; None if it is not known when that was."""
    up = _health(evidence).uptime_seconds
    if up is None:
        return None
    counters = {name: counts for kind in _TABLE for name, counts in _read(evidence, kind).items()}
    return Counted(boot_id=evidence.host.boot_id, uptime_seconds=up, counters=counters)


def errors_in(reading: Counted | None) -> bool:
    """Return whether a counter of errors is not 0."""
    counters = reading.counters.values() if reading is not None else ()
    return any(n for counts in counters for word, n in counts.items() if word not in NOT_ERRORS)


def of_this_boot(evidence: Evidence) -> Iterator[tuple[Validation, Counted]]:
    """Yield the kept validations of this boot with what was counted then, the last first."""
    up, boot = _health(evidence).uptime_seconds, evidence.host.boot_id
    for old in reversed(evidence.history) if None not in (up, boot) else ():
        if old.counted is not None and old.counted.boot_id == boot and old.counted.uptime_seconds < (up or 0):
            yield old, old.counted


def last_reading(evidence: Evidence) -> tuple[str, Counted] | None:
    """Return the last validation of this boot, by its date, with what was counted then."""
    return next(((old.at or "an unknown date", seen) for old, seen in of_this_boot(evidence)), None)


def growth(evidence: Evidence, kind: str, *names: str) -> Growth | None:
    """Return how much the counters of these subjects grew since the last validation, else between two readings.

    None: a counter that is not 0 has one reading alone.
    """
    return growths(evidence, kind, {kind: names})[kind]


def growths(evidence: Evidence, kind: str, subjects: Mapping[T, Sequence[str]]) -> dict[T, Growth | None]:
    """Return the growth of several things of one kind, each with the names of its subjects (see `growth`)."""
    up, now, last = _health(evidence).uptime_seconds, _read(evidence, kind), last_reading(evidence)
    readings: list[_Reading] = []
    if up is not None and last is not None:
        starts = [event for event in _health(evidence).events or () if event.kind == _BEGINS_ANEW.get(kind)]
        anew = any((event.last_seconds or 0) > last[1].uptime_seconds for event in starts)
        was = {name: dict.fromkeys(n, 0) for name, n in last[1].counters.items()} if anew else last[1].counters
        readings.append((was, now, up - last[1].uptime_seconds, f"since the look of {last[0]}"))
    if up is not None and (later := evidence.counted_later) is not None:
        readings.append((now, later.counters, later.uptime_seconds - up, ""))
    return {thing: _growth(now, readings, [f"{kind} {name}" for name in names]) for thing, names in subjects.items()}


def _growth(now: _Counters, readings: Iterable[_Reading], keys: list[str]) -> Growth | None:
    for before, after, seconds, words in readings:
        more = [(key, grew(before.get(key, {}), after.get(key, {}))) for key in keys]
        if all(grown and all(word in grown for word, n in now[key].items() if n) for key, grown in more):
            counts = {word: sum(grown.get(word, 0) for _, grown in more) for _, one in more for word in one}
            return Growth(counts=counts, seconds=seconds, words=words or f"within {seconds:.2g} s")
    return None


def grew(before: Mapping[str, int | None], after: Mapping[str, int | None]) -> dict[str, int]:
    """Return how much each counter grew that both readings have.

    One that is smaller than before began anew: with its device's reset, its driver, or because it was cleared.
    """
    both = ((word, was, after.get(word)) for word, was in before.items())
    return {word: now - was if now >= was else now for word, was, now in both if was is not None and now is not None}


def may_be_new(evidence: Evidence, event: KernelEvent) -> bool:
    """Return whether a line of the kernel log may be from after the last validation."""
    last = last_reading(evidence)
    return last is None or event.last_seconds is None or event.last_seconds > last[1].uptime_seconds
