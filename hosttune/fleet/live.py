"""Progress of a run on stderr: a live display on a terminal, plain lines elsewhere.

Between results it shows ansible's events, which decide nothing. The outcome of a host is shown after its files were
read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from hosttune.fleet.gate import ONLY_IF_ASKED, PHASES, HostStatus
from hosttune.fleet.playbook import TaskEvent
from hosttune.model.text import duration, printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_FEW = 48  # without a terminal, each host has its own line if there are at most this many
_EVERY_SECONDS = 10.0
_MOST_TROUBLES = 8
_MOST_TEXT = 500  # characters of a line


class Progress:
    """The progress of a run: counted from events, corrected by the result files."""

    def __init__(self, verb: str, total: int, waves: int, earlier: str = "") -> None:
        self.verb = verb
        self.earlier = earlier  # how long an earlier run took: all that is known before the first host is finished
        self.total = total
        self.waves = waves
        self.wave = 1
        self.begun = time.monotonic()
        self.now_in: dict[str, str] = {}
        self.seen: set[str] = set()  # hosts that are finished according to events, but whose files are not read yet
        self.done: Counter[str] = Counter()
        self.troubles: list[str] = []

    def hear(self, event: TaskEvent) -> bool:
        """Process one event of ansible. Returns whether this event finishes the host."""
        if event.kind == "start":
            if event.host not in self.seen:
                self.now_in[event.host] = event.task
            return False
        ends = [phase for phase in PHASES[self.verb] if phase not in ONLY_IF_ASKED][-1]
        last = event.phase == ends and event.outcome is not None
        if event.kind in ("unreachable", "failed") or last:
            self.now_in.pop(event.host, None)
            new = event.host not in self.seen
            self.seen.add(event.host)
            return new
        return False

    def count(self, wave: int, host_status: HostStatus) -> None:
        """Record the status of a host as read from its files."""
        self.wave = wave
        self.now_in.pop(host_status.host, None)
        self.seen.discard(host_status.host)
        self.done[host_status.outcome] += 1
        if not host_status.good:
            self.troubles = [*self.troubles[1 - _MOST_TROUBLES :], host_status.line]

    @property
    def finished(self) -> int:
        """The number of finished hosts; those without read files are counted by their events."""
        return self.done.total() + len(self.seen)

    @property
    def eta_seconds(self) -> float | None:
        """The remaining time in seconds at the average speed so far; None before the first host is finished."""
        if not self.finished:
            return None
        return (time.monotonic() - self.begun) / self.finished * max(0, self.total - self.finished)

    def line(self) -> str:
        """Return the whole progress as one line."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.done.items()))
        parts = [f"{self.verb}: {self.finished} of {self.total} hosts"]
        if self.waves > 1:
            parts[0] += f", wave {self.wave} of {self.waves}"
        eta = self.eta_seconds
        left = f", about {duration(eta)} left" if eta is not None else f"; {self.earlier}" if self.earlier else ""
        spent = f"{duration(time.monotonic() - self.begun)} so far{left}"
        tail = spent if self.finished < self.total else ""
        return "; ".join(part for part in (*parts, outcomes, tail) if part)


class PlainProgress:
    """Plain lines for a log: one line per host for up to _FEW hosts, else the progress every _EVERY_SECONDS."""

    def __init__(self, progress: Progress, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._write = write
        self._written_at = time.monotonic()

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._write(self._progress.line())

    def heard(self, event: TaskEvent) -> None:
        """Show an event of ansible."""
        if self._progress.hear(event):
            self._now_and_then()

    def host_done(self, wave: int, host_status: HostStatus) -> None:
        """Show the status of a host whose files were read."""
        self._progress.count(wave, host_status)
        if not host_status.good or self._progress.total <= _FEW:
            self._write(host_status.line if not host_status.good else f"{host_status.host}: ok")
        self._now_and_then()

    def _now_and_then(self) -> None:
        if self._progress.total > _FEW and time.monotonic() - self._written_at >= _EVERY_SECONDS:
            self._written_at = time.monotonic()
            self._write(self._progress.line())


class Display:
    """The live display on a terminal: hosts by phase, outcomes, the last failures, and the remaining time."""

    def __init__(self, progress: Progress, output: TextIO) -> None:
        self._progress = progress
        self._output = output
        self._live: Live | None = None

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.live import Live

        screen = Console(file=self._output, highlight=False, markup=False, emoji=False)
        self._live = Live(get_renderable=self._table, console=screen, refresh_per_second=4, transient=True)
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        print(self._progress.line(), file=self._output)

    def heard(self, event: TaskEvent) -> None:
        """Show an event of ansible."""
        self._progress.hear(event)

    def host_done(self, wave: int, host_status: HostStatus) -> None:
        """Show the status of a host whose files were read."""
        self._progress.count(wave, host_status)

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(progress.line()))
        table.add_row(ProgressBar(total=progress.total, completed=progress.finished, width=60))
        for task, hosts in Counter(list(progress.now_in.values())).most_common(6):
            table.add_row(Text(f"{hosts:6} {_line(task)}"))
        for trouble in progress.troubles:
            table.add_row(Text(_line(trouble), style="red", overflow="ellipsis", no_wrap=True))
        return table


Watch = PlainProgress | Display


def watch(progress: Progress, output: TextIO, write: Callable[[str], None]) -> AbstractContextManager[Watch]:
    """Return what shows the progress: a live display if `output` is a terminal, else lines through `write`."""
    if output.isatty():
        return Display(progress, output)
    return PlainProgress(progress, lambda text: write(_line(text)))


def _line(text: str) -> str:
    """Return text that is safe to print on a terminal, and short: host names and answers are untrusted data."""
    return printable(text[:_MOST_TEXT])
