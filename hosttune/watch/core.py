"""When the agent looks at the host: events in, due looks out. Pure: the time is a value that the caller passes in.

A look reads the whole host again (0.1 s of CPU time on one of 517 functions), so no event can be about something that
its look leaves out. What an event concerns decides when the look is due, and how a storm is slowed down:

- the first event of a concern: `SETTLE` seconds later, but not within `GAP` seconds of the last look;
- a concern that causes more than `QUICK` looks in a row: each further one after twice the time, at most `LONGEST_GAP`.
  Others are not slowed down by it, and after its last event there is always one more look;
- a guest that has started: once more after `AFTER_START` seconds, because its pages and interrupts come with its
  drivers;
- nothing at all: every interval.

The caller's clock must not stop in a suspend and must not be set by people (CLOCK_BOOTTIME). If it goes back anyway, it
is taken to stand still.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hosttune.errors import HosttuneError
from hosttune.model.values import Value, grouped

SETTLE, GAP, LONGEST_GAP = 0.3, 1.0, 30.0
QUICK = 5
AFTER_START = 10.0
MOST_CONCERNS = 500  # more at once are the host's
HOST = "host"
LOST = "lost"  # `what` of an event that stands for events that were not received
STARTED = ("started", "resumed", "opened")


class Event(Value, frozen=True):
    """Something that a source has seen. `what`: one word ("unbind", "started", "xid", LOST).

    `subject`: "device ADDRESS", "guest NAME", or HOST.
    """

    source: str
    what: str
    subject: str = HOST

    @property
    def text(self) -> str:
        """Return it for people."""
        return f"{self.source}: {self.what}{'' if self.subject == HOST else f' {self.subject}'}"


class DueLook(NamedTuple):
    """A look that is due now. `events`: those that it answers, by text, and how often each came; none: the interval."""

    at: float
    events: tuple[tuple[str, int], ...]


class _DueTexts(NamedTuple):
    due: float
    texts: dict[str, int]


class _Looked(NamedTuple):
    """The last look of a concern. `gap`: how long the next one waits. `times`: how many there were in a row."""

    at: float
    gap: float
    times: int

    @property
    def quiet_from(self) -> float:
        return self.at + 2 * self.gap + SETTLE


_MOST_TEXTS = 8  # kinds of event that one concern keeps for its message


class Schedule:
    """The looks of one agent. Not a value: it is what the agent remembers, and its size is limited."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._longest = min(LONGEST_GAP, interval)
        self._now = now
        self._regular = now  # the first look is due at once
        self._last: float | None = None
        self._waiting: dict[str, _DueTexts] = {}
        self._again: dict[str, float] = {}
        self._looked: dict[str, _Looked] = {}

    def add(self, now: float, event: Event) -> None:
        """Take an event that was received at `now`."""
        now = self._clock(now)
        concern = HOST if event.what == LOST else event.subject
        if concern not in self._waiting and len(self._waiting) >= MOST_CONCERNS:
            concern = HOST
        if event.what in STARTED and (concern in self._again or len(self._again) < MOST_CONCERNS):
            self._again[concern] = now + AFTER_START
        waiting = self._waiting.get(concern)
        if waiting is None:
            looked = self._looked.get(concern)
            waiting = self._waiting[concern] = _DueTexts(
                max(now + SETTLE, looked.at + looked.gap if looked is not None else now), {}
            )
        if event.text in waiting.texts or len(waiting.texts) < _MOST_TEXTS:
            waiting.texts[event.text] = waiting.texts.get(event.text, 0) + 1

    def next_due(self) -> float:
        """Return when the next look is due."""
        dues = [self._regular, *(waiting.due for waiting in self._waiting.values()), *self._again.values()]
        return max(min(dues), self._last + GAP if self._last is not None else self._now)

    def take(self, now: float) -> DueLook | None:
        """Return the look that is due, None if there is none. Every event that was added before is then answered."""
        now = self._clock(now)
        if self.next_due() > now:
            return None
        for concern in self._waiting:
            self._looked[concern] = self._next(concern, now)
        counts = grouped(row for waiting in self._waiting.values() for row in waiting.texts.items())
        self._waiting.clear()
        self._again = {concern: at for concern, at in self._again.items() if at > now}
        kept = sorted(self._looked.items(), key=lambda row: row[1].at)[-2 * MOST_CONCERNS :]
        self._looked = {concern: looked for concern, looked in kept if looked.quiet_from > now}
        self._last, self._regular = now, now + self._interval
        return DueLook(now, tuple((text, sum(numbers)) for text, numbers in counts.items()))

    @property
    def size(self) -> int:
        """Return how many concerns are remembered: 0 some time after the last event."""
        return len(self._waiting) + len(self._again) + len(self._looked)

    def _clock(self, now: float) -> float:
        self._now = max(self._now, now)
        return self._now

    def _next(self, concern: str, now: float) -> _Looked:
        before = self._looked.get(concern)
        if before is None or now > before.quiet_from:
            return _Looked(now, min(GAP, self._longest), 1)
        gap = min(2 * before.gap, self._longest) if before.times >= QUICK else before.gap
        return _Looked(now, gap, before.times + 1)


# --- where events come from ------------------------------------------------------------------------------------
# Where events come from. A source has one file descriptor to wait on, and never blocks.


class NoSource(HosttuneError):
    """A source cannot be opened here, or has ended: what it would show is found at the next interval.

    `absent`: the host has nothing that it could show, so that nothing is missed. `named` False: the name of the source
    means nothing to the reader.
    """

    def __init__(self, name: str, why: str, *, absent: bool = False, named: bool = True) -> None:
        super().__init__(
            f"no events{f' of {name}' if named else ''}: {why}",
            where=name,
            hint="changes are found at the next interval",
        )
        self.why = why
        self.absent = absent


class OpenSource(ABC):
    """An open source. `name`: its word in metrics and messages (udev, kernel-log, libvirt, replay)."""

    name: str = ""

    @property
    def up(self) -> bool:
        """Return whether events are received now; False while it is open and still waits for a daemon."""
        return True

    @abstractmethod
    def fileno(self) -> int | None:
        """Return the descriptor to wait on; None: ask several times a second."""

    @abstractmethod
    def take(self) -> Sequence[Event]:
        """Return the events that have come, oldest first, without waiting. Raises NoSource if it has ended.

        A `core.LOST` event stands for events that were dropped.
        """

    def close(self) -> None:  # noqa: B027  (some hold nothing)
        """Let go of what it holds open."""


Opener = Callable[[], OpenSource]  # raises NoSource
