"""Where events come from. A source has one file descriptor to wait on, and never blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hosttune.errors import HosttuneError
from hosttune.watch.core import Event


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
