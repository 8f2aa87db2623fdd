"""The time that others ran on the CPUs of a guest: each CPU's busy time less the vCPU threads' own. Pure.

A CPU that is pinned to a vCPU should run nothing else. /proc/stat has the busy seconds of each CPU (proc(5): user,
nice, system, irq, softirq; the time of guests is in the first two), /proc/PID/task/TID/stat those of each thread.
Interrupts of the host count as others. Both count in ticks, and not at the same moments, so a single difference can be
a little too small or too large; the sum is counted on, and a counter shows the largest sum so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hosttune.errors import Unreadable
from hosttune.machine.system import System
from hosttune.model.affinity import thread_of
from hosttune.model.values import Value

_CPU = re.compile(r"^cpu([0-9]{1,6}) ([0-9 ]+)$", re.MULTILINE)
_COUNTED = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
TICKS = 100.0  # USER_HZ, which /proc uses on x86-64


class Watched(Value, frozen=True, kw_only=True):
    """A running guest whose vCPUs are all pinned: its process, and the CPUs of its vCPUs."""

    name: str
    pid: int
    cpus: tuple[int, ...]


class ProcSample(Value, frozen=True, kw_only=True):
    """What /proc showed at one moment. `busy`: seconds by CPU. `own`: by guest, its process and its threads' time."""

    at: float
    busy: Mapping[int, float]
    own: Mapping[str, tuple[str, float]]


class Counter(Value, frozen=True, kw_only=True):
    """The seconds of one guest: the sum of all differences, its largest value so far, and the last share of a CPU."""

    total: float = 0.0
    shown: float = 0.0
    share: float = 0.0


def sample(system: System, guests: Iterable[Watched], now: float) -> ProcSample | None:
    """Read /proc; None if the busy time of CPUs cannot be read. A guest whose threads cannot be read is left out."""
    try:
        text = system.read("/proc/stat") or ""
    except Unreadable:
        return None
    busy = {int(number): _busy(words.split()) for number, words in _CPU.findall(text)}
    if not busy:
        return None
    own = {guest.name: found for guest in guests if (found := _own(system, guest)) is not None}
    return ProcSample(at=now, busy=busy, own=own)


def advance(
    counters: Mapping[str, Counter], guests: Iterable[Watched], before: ProcSample | None, now: ProcSample | None
) -> dict[str, Counter | None]:
    """Return the counters after one more sample; None for a guest whose time is unknown."""
    found: dict[str, Counter | None] = {}
    for guest in guests:
        old = counters.get(guest.name) or Counter()
        if now is None or guest.name not in now.own or not set(guest.cpus) <= now.busy.keys():
            found[guest.name] = None
        elif before is None or not _same(before, now, guest):
            found[guest.name] = old
        else:
            busy = sum(now.busy[cpu] - before.busy[cpu] for cpu in guest.cpus)
            more = busy - (now.own[guest.name][1] - before.own[guest.name][1])
            total = old.total + more
            seconds = max(now.at - before.at, 0.001)
            found[guest.name] = Counter(total=total, shown=max(old.shown, total), share=max(more, 0.0) / seconds)
    return found


def _same(before: ProcSample, now: ProcSample, guest: Watched) -> bool:
    """Return whether both samples are of the same process and the same CPUs, without one that was offline between."""
    old = before.own.get(guest.name)
    whole = all(cpu in before.busy and now.busy[cpu] >= before.busy[cpu] for cpu in guest.cpus)
    return whole and old is not None and old[0] == now.own[guest.name][0] and old[1] <= now.own[guest.name][1]


def _busy(words: list[str]) -> float:
    return sum(int(words[n]) for n in _COUNTED if n < len(words)) / TICKS


def _own(system: System, guest: Watched) -> tuple[str, float] | None:
    """Return (process and its start, seconds of all vCPU threads); None if a thread could not be read."""
    folder = f"/proc/{guest.pid}"
    try:
        start = _fields(system.read(f"{folder}/stat"))
        seconds, count = 0.0, 0
        for thread in system.list(f"{folder}/task"):
            name = system.read(f"{folder}/task/{thread}/comm")
            if name is None or not (thread_of(name) or "").startswith("vcpu."):
                continue
            fields = _fields(system.read(f"{folder}/task/{thread}/stat"))
            if fields is None:
                return None
            seconds += (int(fields[11]) + int(fields[12])) / TICKS
            count += 1
    except (Unreadable, ValueError):
        return None
    return (f"{guest.pid}.{start[19]}", seconds) if start is not None and count else None


def _fields(text: str | None) -> list[str] | None:
    """Return the fields of a `stat` file after the name, the state first; None if they are not all there."""
    fields = (text or "").rpartition(")")[2].split()
    return fields if len(fields) > 19 else None
