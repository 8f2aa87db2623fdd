"""Events of a captured host or a scratch root, from its file `.hosttune/events`: to try the agent, and to test it.

One event a line, read while the file grows: `udev ACTION SUBSYSTEM DEVPATH`, `kmsg RECORD` (as /dev/kmsg has it),
`libvirt WHAT NAME`, `lost SOURCE`. Any other line is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hosttune.errors import BadInput, Unreadable
from hosttune.machine.system import System
from hosttune.watch import kmsg, udev
from hosttune.watch.core import HOST, LOST, Event, NoSource, OpenSource
from hosttune.watch.guests import NAME as LIBVIRT

PATH = "/.hosttune/events"


def event_of_text(line: str) -> Event | None:
    """Return the event of a line; None if it is one that the real source would drop. Raises ValueError."""
    source, _, rest = line.partition(" ")
    words = rest.split()
    if source == "kmsg" and rest:
        return kmsg.event_of_record(rest.encode())
    if source == "udev" and len(words) == 3:
        return udev.event_of_device(dict(zip(("ACTION", "SUBSYSTEM", "DEVPATH"), words, strict=True)))
    if source == "libvirt" and len(words) in (1, 2):
        return Event(LIBVIRT, words[0], f"guest {words[1]}" if len(words) == 2 else HOST)
    if source == LOST and len(words) == 1:
        return Event(words[0], LOST)
    raise ValueError(line)


class Replay(OpenSource):
    """See the module. `opened`: returns the root anew, because a capture may remember what it has read."""

    name = "replay"

    def __init__(self, opened: Callable[[], System]) -> None:
        self._opened = opened
        self._seen = 0
        if self._text() is None:
            raise NoSource(self.name, f"this capture has no file {PATH[1:]}", named=False)

    def fileno(self) -> None:
        """See Source."""

    def take(self) -> Sequence[Event]:
        """See Source. Raises BadInput for a line that is no event."""
        text = (self._text() or "")[self._seen :]
        whole = text[: text.rfind("\n") + 1]
        self._seen += len(whole)
        events: list[Event] = []
        for line in whole.splitlines():
            try:
                event = event_of_text(line) if line.strip() else None
            except ValueError as error:
                hint = "write udev ACTION SUBSYSTEM DEVPATH, kmsg RECORD, libvirt WHAT NAME or lost SOURCE"
                raise BadInput(f"not an event: {line[:100]!r}", where=PATH, hint=hint) from error
            if event is not None:
                events.append(event)
        return events

    def _text(self) -> str | None:
        try:
            data = self._opened().read_bytes(PATH)
        except Unreadable:
            return None
        return None if data is None else data.decode("utf-8", "replace")
