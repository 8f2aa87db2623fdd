"""Progress of a run on stderr: a display that is kept up to date on a terminal, plain lines elsewhere.

It shows what ansible's events tell, which decides nothing: what became of a host is said once its files were read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from hosttune.fleet.gate import ONLY_IF_ASKED, PHASES, HostStatus
from hosttune.fleet.runner import Event

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_FEW = 48  # up to so many hosts each has a line of its own where nobody watches a terminal
_EVERY_SECONDS = 10.0
_MOST_TROUBLES = 8


class Progress:
    """What a run has come to: counted from events, corrected by what the files said."""

    def __init__(self, verb: str, total: int, waves: int) -> None:
        self.verb = verb
        self.total = total
        self.waves = waves
        self.wave = 1
        self.begun = time.monotonic()
        self.now_in: dict[str, str] = {}
        self.seen: set[str] = set()  # finished by their events, files not yet read
        self.settled: Counter[str] = Counter()
        self.troubles: list[str] = []

    def hear(self, event: Event) -> bool:
        """Take one event of ansible in; whether the host is finished by it."""
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

    def settle(self, wave: int, standing: HostStatus) -> None:
        """Take in how a host stands by its files."""
        self.wave = wave
        self.now_in.pop(standing.host, None)
        self.seen.discard(standing.host)
        self.settled[standing.outcome] += 1
        if not standing.good:
            self.troubles = [*self.troubles[1 - _MOST_TROUBLES :], standing.line]

    @property
    def finished(self) -> int:
        """How many hosts are done, as far as is known."""
        return self.settled.total() + len(self.seen)

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest takes at the pace so far; None before the first host is done."""
        if not self.finished:
            return None
        return (time.monotonic() - self.begun) / self.finished * max(0, self.total - self.finished)

    def line(self) -> str:
        """All of it in one line."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.settled.items()))
        parts = [f"{self.verb}: {self.finished} of {self.total} hosts"]
        if self.waves > 1:
            parts[0] += f", wave {self.wave} of {self.waves}"
        eta = self.eta_seconds
        tail = f"about {duration(eta)} left" if eta is not None and self.finished < self.total else ""
        return "; ".join(part for part in (*parts, outcomes, tail) if part)


def duration(seconds: float) -> str:
    """A length of time for people: "40 s", "12 min", "3 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


class Lines:
    """Plain lines, for a log: each host's where they are few, the state every some seconds where they are many."""

    def __init__(self, progress: Progress, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._write = write
        self._told = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._write(self._progress.line())

    def heard(self, event: Event) -> None:
        """An event of ansible."""
        if self._progress.hear(event):
            self._now_and_then()

    def settled(self, wave: int, standing: HostStatus) -> None:
        """A host whose files were read."""
        self._progress.settle(wave, standing)
        if not standing.good or self._progress.total <= _FEW:
            self._write(standing.line if not standing.good else f"{standing.host}: ok")
        self._now_and_then()

    def _now_and_then(self) -> None:
        if self._progress.total > _FEW and time.monotonic() - self._told >= _EVERY_SECONDS:
            self._told = time.monotonic()
            self._write(self._progress.line())


class Display:
    """The display of a terminal: hosts by phase, outcomes, the last troubles, and how long it will take."""

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

    def heard(self, event: Event) -> None:
        """An event of ansible."""
        self._progress.hear(event)

    def settled(self, wave: int, standing: HostStatus) -> None:
        """A host whose files were read."""
        self._progress.settle(wave, standing)

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(progress.line()))
        table.add_row(ProgressBar(total=progress.total, completed=progress.finished, width=60))
        for task, hosts in Counter(list(progress.now_in.values())).most_common(6):
            table.add_row(Text(f"{hosts:6} {printable(task)}"))
        for trouble in progress.troubles:
            table.add_row(Text(printable(trouble), style="red", overflow="ellipsis", no_wrap=True))
        return table


Watch = Lines | Display


def watch(progress: Progress, output: TextIO, write: Callable[[str], None]) -> AbstractContextManager[Watch]:
    """Who shows the progress: a display where `output` is a terminal, else lines through `write`."""
    if output.isatty():
        return Display(progress, output)
    return Lines(progress, lambda text: write(printable(text)))


def printable(text: str) -> str:
    """One line that is safe for a terminal: hosts' names and answers are data."""
    return "".join(character if character.isprintable() else "?" for character in text)[:500]
