"""psutil: what the agent itself costs, and which processes ran on CPUs that are pinned to a guest.

Only the live host is asked. Names of processes go to the journal and never into a metric: they are unbounded, and
anyone can choose them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

_MOST = 3


class Footprint(NamedTuple):
    """CPU seconds since the start and resident bytes now, of the agent and its children; None: unknown."""

    cpu_seconds: float | None
    resident_bytes: int | None


class ProcessUse(NamedTuple):
    """A process at one moment: its name and its CPU seconds. `cpu`: where it ran last."""

    name: str
    seconds: float
    cpu: int


def footprint() -> Footprint:
    """Return what the agent costs. Children that have ended count with their CPU time."""
    try:
        import psutil
    except ImportError:
        return Footprint(None, None)
    try:
        own = psutil.Process()
        times = own.cpu_times()
        seconds = times.user + times.system + times.children_user + times.children_system
        resident = own.memory_info().rss
        for child in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                more = child.cpu_times()
                seconds += more.user + more.system
                resident += child.memory_info().rss
    except psutil.Error:
        return Footprint(None, None)
    return Footprint(seconds, resident)


def processes(cpus: Collection[int]) -> Mapping[int, ProcessUse] | None:
    """Return the processes that may run on some of these CPUs, by id; None without psutil.

    A process whose CPUs or times cannot be read is left out.
    """
    try:
        import psutil
    except ImportError:
        return None
    wanted = frozenset(cpus)
    uses: dict[int, ProcessUse] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not wanted.isdisjoint(process.cpu_affinity()):
                uses[process.pid] = _seen(process)
    return uses


def _seen(process: Any) -> ProcessUse:
    with process.oneshot():
        times = process.cpu_times()
        return ProcessUse(process.name(), times.user + times.system, process.cpu_num())


def suspects(
    before: Mapping[int, ProcessUse], now: Mapping[int, ProcessUse], cpus: Collection[int], own: Collection[int]
) -> tuple[str, ...]:
    """Return the processes that used most time between the two moments and were last on one of the CPUs. Pure.

    `own`: processes that are not meant: the guest's. A suspect only: its time may have been spent on other CPUs.
    """
    used = [
        (now[pid].seconds - before[pid].seconds, pid)
        for pid in now.keys() & before.keys()
        if pid not in own and now[pid].cpu in cpus and now[pid].name == before[pid].name
    ]
    most = sorted((row for row in used if row[0] > 0), key=lambda row: (-row[0], row[1]))[:_MOST]
    return tuple(
        f"{now[pid].name[:40]!r} (process {pid}, {seconds:.1f} s, CPU {now[pid].cpu})" for seconds, pid in most
    )
