"""The kernel log as a source: /dev/kmsg, from now on (Documentation/ABI/testing/dev-kmsg).

One read returns one record: "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE". EPIPE: records were overwritten before they
were read. Programs can write to the log too: only records of the kernel itself count. A line only says that something
should be looked at; what it means is judged by the checks, which read the whole log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Sequence

from hosttune.discovery.kernellog import parse_events
from hosttune.linux.kernellines import DRIVER_LOAD
from hosttune.machine.files import let_go
from hosttune.watch.core import LOST, Event, NoSource, OpenSource

NAME = "kernel-log"
PATH = "/dev/kmsg"
_LONGEST = 8192  # PRINTK_MESSAGE_MAX is at most 2048; a read with a shorter buffer fails (EINVAL)
_MOST = 2000  # records of one turn
_HEAD = re.compile(rb"([0-9]{1,10}),[0-9]+,([0-9]{1,18})[^;]{0,200};")
# Lines that are no event to the checks, but after which a device may have changed: links, drives, NICs.
_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_PORT_LINK = rf"pcieport (?P<address>{_ADDRESS}): (?:pciehp: )?(?:Slot\([^)]{{0,20}}\): )?(?:Link|Card) "
_NIC_LINK = rf"(?i:\S{{1,20}} (?P<address>{_ADDRESS})(?: \S{{1,32}})?: (?:NIC )?link (?:is )?(?:up|down)\b)"
_NARROW = rf"pci (?P<address>{_ADDRESS}): [0-9.]+ Gb/s available PCIe bandwidth, limited by "
_DRIVE = r"nvme nvme[0-9]{1,4}: (?:resetting|failed|frozen)"
_OTHER = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        ("link", _PORT_LINK),
        ("link", _NIC_LINK),
        ("link", _NARROW),
        ("nvme", _DRIVE),
        ("nvme", rf"nvme (?P<address>{_ADDRESS}): "),
    )
)


def event_of_record(record: bytes) -> Event | None:
    """Return the event of one record of /dev/kmsg; None if it is none, or not the kernel's."""
    head = _HEAD.match(record)
    if head is None or int(head[1]) >> 3:  # the facility: 0 is the kernel
        return None
    return event_of_line(record[head.end() :].split(b"\n", 1)[0].decode("utf-8", "replace"))


def event_of_line(text: str) -> Event | None:
    """Return the event of one message of the kernel; None if it is none."""
    text = text[:1000]
    for event in parse_events([(None, text)]):
        subject = f"device {event.address}" if event.address else "host"
        what = "link" if event.kind == "link-down" else event.kind
        return None if event.kind in ("edac-mc", DRIVER_LOAD) else Event(NAME, what, subject)
    for what, pattern in _OTHER:
        if match := pattern.match(text):
            address = match.groupdict().get("address")
            return Event(NAME, what, f"device {address.lower()}" if address else "host")
    return None


class KmsgSource(OpenSource):
    """See the module."""

    name = NAME

    def __init__(self, path: str = PATH, read: Callable[[int, int], bytes] = os.read) -> None:
        self._read = read
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NoSource(NAME, f"{path}: {error.strerror}") from error
        with contextlib.suppress(OSError):
            os.lseek(self._fd, 0, os.SEEK_END)

    def fileno(self) -> int:
        """See Source."""
        return self._fd

    def take(self) -> Sequence[Event]:
        """See Source."""
        events: list[Event] = []
        for _ in range(_MOST):
            try:
                record = self._read(self._fd, _LONGEST)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    events.append(Event(NAME, LOST))
                    continue
                if error.errno == errno.EINVAL:
                    continue  # a record that is longer than any that the kernel writes
                raise NoSource(NAME, error.strerror or str(error)) from error
            if not record:
                break
            event = event_of_record(record)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> None:
        """See Source."""
        let_go(self._fd)
