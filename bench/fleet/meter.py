"""A process and all its children measured: wall, CPU, memory; and the medians of commands run in turn."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.2


class Failed(Exception):
    """A command that must succeed did not."""


@dataclass(frozen=True)
class Cost:
    """Of a process and every child that it waited for: seconds of wall and CPU (user and system), the largest resident
    size of one of them, and of all of them together (`together`, sampled: shared pages count in each; 0: not asked)."""

    wall: float
    cpu: float
    largest: int = 0
    together: int = 0
    processes: int = 0


def measure(
    command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    codes: tuple[int, ...] = (0,), memory: bool = False, output: Path | None = None,
) -> Cost:  # fmt: skip
    """Run a command to its end and say what it took. Raises Failed with its last lines for any other exit code."""
    sink = output or Path(os.devnull)
    with sink.open("wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})}, cwd=cwd,
        )  # fmt: skip
        watch = Watch(process.pid) if memory else None
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if watch:
        watch.stop()
    if process.returncode not in codes:
        told = sink.read_text("utf-8", "replace")[-2000:] if output else ""
        raise Failed(f"exit {process.returncode}: {' '.join(map(str, command))}\n{told}")
    return Cost(
        wall, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, watch.most if watch else 0,
        watch.processes if watch else 0,
    )  # fmt: skip


class Watch:
    """Samples the resident size of a tree of processes until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.most = self.processes = 0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more samples; `most` (bytes) and `processes` stand."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            sizes = [resident(pid) for pid in tree(self._pid)]
            self.most, self.processes = max(self.most, sum(sizes)), max(self.processes, len(sizes))


def tree(pid: int) -> list[int]:
    """A process and all its descendants; what has ended meanwhile is left out."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def resident(pid: int) -> int:
    """Bytes that a process has in memory; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def in_turn(rounds: int, *calls: Callable[[], Cost]) -> list[Cost]:
    """The median cost of each call, all of them run in turn `rounds` times: a slow moment hits every one."""
    costs: list[list[Cost]] = [[] for _ in calls]
    for _ in range(rounds):
        for row, call in zip(costs, calls, strict=True):
            row.append(call())
    return [median(row) for row in costs]


def median(costs: Sequence[Cost]) -> Cost:
    """Field by field."""
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
        max(cost.largest for cost in costs),
        max(cost.together for cost in costs),
        max(cost.processes for cost in costs),
    )
