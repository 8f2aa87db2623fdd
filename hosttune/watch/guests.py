"""Guests as a source: libvirt's events, received by a child process.

A call of libvirt cannot be cancelled, and a daemon that hangs would block it for ever; in a child it blocks nothing
else. With libvirt-python the child runs libvirt's own event loop, with keepalive, and connects again when the daemon is
back; kinds of event that an older libvirt lacks are left out. Without libvirt-python the child becomes `virsh event`,
which ends with the connection, and is started again by the agent. Both connections are read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from hosttune.discovery.libvirtd import DEFAULT_URI, URI_VARIABLE
from hosttune.errors import BadInput
from hosttune.machine.child import start_child
from hosttune.machine.files import let_go
from hosttune.model.jsontext import plain_json
from hosttune.watch.core import HOST, LOST, Event, NoSource, OpenSource

NAME = "libvirt"
OPENED, CLOSED = "opened", "closed"
# virDomainEventType, in this order.
LIFECYCLE = (
    *("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed"),
)
_CHANGES = ("DEVICE_ADDED", "DEVICE_REMOVED", "TUNABLE", "REBOOT", "MEMORY_DEVICE_SIZE_CHANGE")
_KEEPALIVE = (5, 3)  # seconds between questions, and how many may stay without an answer
_SOON_SECONDS, _LATER_SECONDS, _SOON = 1.0, 5.0, 60  # a daemon that restarts is back soon; one that is not there, not
_VIRSH_SECONDS = 1.5  # after which a virsh that still runs is connected
_MOST_BYTES = 1 << 20  # of one turn
_END = re.compile(r"events received: [0-9]+$|event loop (interrupted|timed out)$")
_VIRSH = re.compile(r"event '([a-z-]{1,40})' for domain '?(.{1,255}?)'?: ?(.{0,200})")


class Guests(OpenSource):
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        uri = os.environ.get(URI_VARIABLE) or DEFAULT_URI
        library = find_spec("libvirt") is not None
        if not library and shutil.which("virsh") is None:  # discovery takes this for a host without libvirt, too
            raise NoSource(NAME, "neither libvirt-python nor virsh is installed", absent=True)
        self._connected = False
        self._since = None if library else time.monotonic()
        self._reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.set_blocking(writer, True)
            self._child, held = start_child(lambda: (listen if library else _virsh)(writer, uri), (writer,))
        except OSError as error:
            let_go(self._reader)
            raise NoSource(NAME, error.strerror or str(error)) from error
        finally:
            let_go(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        self._rest = b""

    @property
    def up(self) -> bool:
        """See Source. `virsh event` says nothing when it is connected: it ends if it is not."""
        return self._connected or (self._since is not None and time.monotonic() - self._since > _VIRSH_SECONDS)

    def fileno(self) -> int:
        """See Source."""
        return self._reader

    def take(self) -> Sequence[Event]:
        """See Source."""
        taken, ended = self._read()
        *lines, self._rest = (self._rest + taken).split(b"\n")
        if len(self._rest) > _MOST_BYTES:
            self._rest = b""
            lines.append(b"a line that is too long")
        read = (event_of_line(line.decode("utf-8", "replace")) for line in lines if line)
        events = [event for event in read if event is not None]
        for event in events:
            self._connected = event.what != CLOSED if event.what in (OPENED, CLOSED) else self._connected
        if ended and not events:
            self._since = None
            raise NoSource(NAME, "neither libvirt-python nor virsh has a connection")
        return events

    def _read(self) -> tuple[bytes, bool]:
        data = b""
        while len(data) < _MOST_BYTES:
            try:
                more = os.read(self._reader, 65536)
            except BlockingIOError:
                return data, False
            if not more:
                return data, True
            data += more
        return data, False

    def close(self) -> None:
        """See Source. The child is killed and reaped, unless the kernel does not let go of it."""
        let_go(self._reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        for _ in range(100):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._child, os.WNOHANG) == (0, 0):
                    time.sleep(0.01)
                    continue
            return


def event_of_line(text: str) -> Event | None:
    """Return the event of a line: `listen`'s JSON, or one of `virsh event`. A line that is neither counts as lost.

    None for the line with which virsh ends.
    """
    if _END.match(text):
        return None
    if text.startswith("["):
        with contextlib.suppress(BadInput, ValueError, TypeError):
            what, name = plain_json(text, where="event")
            return Event(NAME, str(what)[:40], f"guest {name}" if name else HOST)
    if match := _VIRSH.match(text):
        kind, name, rest = match.groups()
        words = rest.split() if kind == "lifecycle" else []
        return Event(NAME, words[0].lower() if words else kind, f"guest {name}")
    return Event(NAME, LOST)


def listen(writer: int, uri: str) -> None:
    """Write a line for each event until the process ends. The life of the child where libvirt-python is installed."""
    import libvirt

    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    libvirt.virEventRegisterDefaultImpl()
    tries = 0
    while True:
        try:
            connection = libvirt.openReadOnly(uri)
        except libvirt.libvirtError:
            if tries == 0:
                _tell(writer, CLOSED)
            time.sleep(_SOON_SECONDS if tries < _SOON else _LATER_SECONDS)
            tries += 1
            continue
        tries = 0
        _until_closed(libvirt, connection, writer)
        _tell(writer, CLOSED)
        time.sleep(_SOON_SECONDS)
        tries = 1  # CLOSED is told


def _until_closed(libvirt: Any, connection: Any, writer: int) -> None:
    """Forward the events of one connection until it ends."""
    ended: list[int] = []

    def lifecycle(_connection: Any, domain: Any, event: int, _detail: int, _given: Any) -> None:
        _tell(writer, LIFECYCLE[event] if 0 <= event < len(LIFECYCLE) else "lifecycle", domain.name())

    def changed(_connection: Any, domain: Any, *rest: Any) -> None:
        _tell(writer, str(rest[-1]), domain.name())

    try:
        with contextlib.suppress(libvirt.libvirtError):  # a driver or a daemon without keepalive
            connection.setKeepAlive(*_KEEPALIVE)
        with contextlib.suppress(libvirt.libvirtError):
            connection.registerCloseCallback(lambda _connection, why, _given: ended.append(why), None)
        wanted = {"LIFECYCLE": lifecycle, **dict.fromkeys(_CHANGES, changed)}
        for name, callback in wanted.items():
            number = getattr(libvirt, f"VIR_DOMAIN_EVENT_ID_{name}", None)
            if number is not None:
                with contextlib.suppress(libvirt.libvirtError):  # this daemon does not know it
                    connection.domainEventRegisterAny(None, number, callback, name.lower().replace("_", "-"))
        _tell(writer, OPENED)
        while not ended and connection.isAlive():
            libvirt.virEventRunDefaultImpl()
    except libvirt.libvirtError:
        pass
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            connection.close()


def _tell(writer: int, what: str, name: str = "") -> None:
    os.write(writer, json.dumps([what, name]).encode() + b"\n")


def _virsh(writer: int, uri: str) -> None:
    """Become `virsh event`, which writes a line for each event. The life of the child without libvirt-python."""
    os.dup2(writer, 1)
    with contextlib.suppress(OSError):  # not installed: the child ends
        os.execvp("virsh", ("virsh", "--readonly", "--quiet", "--connect", uri, "event", "--all", "--loop"))
