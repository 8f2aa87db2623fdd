"""Devices as a source: the kernel's own events through pyudev (libudev, a netlink socket).

The source is the kernel, not the udev daemon, so that it works where no daemon runs and before rules have ended: what
rules change (a driver) is an event of its own. ENOBUFS: the socket's buffer was full, and events were dropped.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hosttune.model import sysfs
from hosttune.watch.core import HOST, LOST, Event, NoSource, OpenSource

NAME = "udev"
SUBSYSTEMS = ("pci", "nvme", "net", "infiniband")
_ACTIONS = frozenset(("add", "remove", "bind", "unbind", "change", "move", "online", "offline"))
_BUFFER_BYTES = 8 << 20
_MOST = 2000  # events of one turn


def event_of_device(properties: Mapping[str, str]) -> Event | None:
    """Return the event of a device, from its properties; None for one that is not hardware (a guest's tap)."""
    action, path = properties.get("ACTION", ""), properties.get("DEVPATH", "")
    if action not in _ACTIONS or properties.get("SUBSYSTEM") not in SUBSYSTEMS:
        return None
    if "/virtual/" in path and properties.get("SUBSYSTEM") == "net":
        return None
    functions = sysfs.functions_in(path)
    return Event(NAME, action, f"device {functions[-1]}" if functions else HOST)


class Udev(OpenSource):
    """See the module. `opened`: returns a monitor as pyudev's."""

    name = NAME

    def __init__(self, opened: Callable[[], Any] | None = None) -> None:
        try:
            self._monitor: Any = (opened or _monitor)()
            for subsystem in SUBSYSTEMS:
                self._monitor.filter_by(subsystem)
            with contextlib.suppress(OSError):  # needs CAP_NET_ADMIN; a smaller buffer works too
                self._monitor.set_receive_buffer_size(_BUFFER_BYTES)
            self._monitor.start()
        except ImportError as error:  # pyudev, or the library that it loads
            raise NoSource(NAME, f"{error} (pip install pyudev; libudev.so.1 is systemd's)") from error
        except (OSError, ValueError) as error:
            raise NoSource(NAME, str(error)) from error

    def fileno(self) -> int:
        """See Source."""
        return int(self._monitor.fileno())

    def take(self) -> Sequence[Event]:
        """See Source."""
        events: list[Event] = []
        for _ in range(_MOST):
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise NoSource(NAME, str(error)) from error
                events.append(Event(NAME, LOST))
                continue
            if device is None:
                break
            named = {"ACTION": device.action, "SUBSYSTEM": device.subsystem, "DEVPATH": device.device_path}
            event = event_of_device({name: str(value or "") for name, value in named.items()})
            if event is not None:
                events.append(event)
        return events

    def close(self) -> None:
        """See Source."""
        self._monitor = None


def _monitor() -> Any:
    import pyudev

    return pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
