"""What the service manager is told: readiness, the watchdog, a status line (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


class Notifier:
    """Sends to the socket that systemd names in NOTIFY_SOCKET; without one it does nothing."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        known = dict(os.environ) if environment is None else environment
        address = known.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.ping_seconds = _half(known.get("WATCHDOG_USEC"), known.get("WATCHDOG_PID"))

    def send(self, *lines: str) -> None:
        """Send lines such as READY=1. A manager that does not listen is no error."""
        if not self._address.startswith(("/", "\0")):
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.setblocking(False)
            door.sendto("\n".join(lines).encode(), self._address)


def _half(microseconds: str | None, process: str | None) -> float | None:
    """Return half the watchdog's time in seconds; None if no watchdog asks this process (sd_watchdog_enabled(3))."""
    if microseconds is None or not microseconds.isdecimal() or process not in (None, str(os.getpid())):
        return None
    return max(int(microseconds) / 2e6, 0.05)
