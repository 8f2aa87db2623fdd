"""The hosts of a group meet before anything is measured: over TCP, at one address of the first host, by name.

Each other host connects to the first one and says who it is: the group's name, its own, its identity. When all are
there, the first says so, and keeps the connections: who loses one knows that the others are gone, and stops at once.
The listening socket, bound to one address, is then the one that PyTorch's store listens on, so one port is enough.

Messages are lines of JSON of at most 4 KiB. A stranger is told why it is not wanted, and costs nobody else anything.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hosttune.errors import BadInput
from hosttune.model.collective import MemberOutcome, Task
from hosttune.model.jsontext import plain_json

_MOST_BYTES = 4096
_MOST_STRANGERS = 64
_RETRY_SECONDS = 0.3
_FREE_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_WHO_SECONDS = 2.0  # a stranger that says nothing costs so much of the wait


class NotMet(Exception):
    """The group is not together: the outcome's word, why, and the hosts that it is about."""

    def __init__(self, outcome: MemberOutcome, why: str, accused: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.outcome: MemberOutcome = outcome
        self.accused = accused


class Met(msgspec.Struct):
    """The hosts of a group, together. `links`: open connections by the other host's name; at the first host, all.

    `listening`: the first host's socket, None at the others.
    """

    links: dict[str, socket.socket] = msgspec.field(default_factory=dict)
    listening: socket.socket | None = None

    def say(self, message: Mapping[str, Any]) -> None:
        """Tell everybody on the other side; who does not hear is found by `lost`."""
        for link in self.links.values():
            with contextlib.suppress(OSError):
                _send(link, message)

    def close(self) -> None:
        """Close all connections."""
        for link in (*self.links.values(), *([self.listening] if self.listening else [])):
            link.close()


def meet(task: Task, machine: str | None) -> Met:
    """Meet the other hosts of the group, within its wait. Raises NotMet."""
    deadline = time.monotonic() + task.wait
    return _receive(task, deadline) if task.index == 0 else _join(task, machine, deadline)


# --- the first host --------------------------------------------------------------------------------------------


def listen(address: str, port: int, waiting: int) -> socket.socket:
    """Return a socket that listens at one address. Raises NotMet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(waiting + 16)
    except OSError as error:
        server.close()
        outcome: MemberOutcome = "tool-failed"
        if error.errno == errno.EADDRINUSE:
            outcome = "port-busy"
        elif error.errno == errno.EADDRNOTAVAIL:
            outcome = "wrong-fabric"
        raise NotMet(outcome, f"cannot listen at {address} port {port}: {error.strerror}") from error
    return server


def _listen_soon(task: Task, deadline: float) -> socket.socket:
    """Listen as soon as the port is free: ranks of the step before may still be ending. Raises NotMet."""
    while True:
        try:
            return listen(task.address, task.port, len(task.hosts))
        except NotMet as error:
            if error.outcome != "port-busy" or time.monotonic() + _RETRY_SECONDS >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _receive(task: Task, deadline: float) -> Met:
    met = Met(listening=_listen_soon(task, min(deadline, time.monotonic() + _FREE_SECONDS)))
    assert met.listening is not None
    strangers: list[str] = []
    try:
        while len(met.links) < len(task.hosts) - 1:
            connection, there = _next(task, met, deadline, strangers)
            _admit(task, met, connection, there, strangers)
        met.say({"go": task.group})
    except BaseException as error:
        met.say({"refused": str(error) or "the first host stopped"})
        met.close()
        raise
    return met


def _next(task: Task, met: Met, deadline: float, strangers: list[str]) -> tuple[socket.socket, str]:
    """Return the next connection and where it comes from. Raises NotMet when the wait is over."""
    assert met.listening is not None
    ready, _, _ = select.select([met.listening], [], [], max(0.0, deadline - time.monotonic()))
    if not ready or len(strangers) > _MOST_STRANGERS:
        missing = tuple(host for host in task.hosts[1:] if host not in met.links)
        more = f"; others came: {'; '.join(strangers[:3])}" if strangers else ""
        outcome: MemberOutcome = "other-member" if strangers else "nobody-came"
        raise NotMet(outcome, f"{', '.join(missing[:5])} did not come within {task.wait} s{more}", missing)
    connection, there = met.listening.accept()
    return connection, str(there[0])


def _admit(task: Task, met: Met, connection: socket.socket, there: str, strangers: list[str]) -> None:
    """Take a connection into the group, or tell it why not."""
    try:
        said = _hear(connection, _WHO_SECONDS)
    except (OSError, ValueError, BadInput):
        connection.close()
        strangers.append(f"{there} did not say who it is")
        return
    why = _stranger(task, met, said)
    if why is None:
        host = task.hosts[said["index"]]
        if host in met.links:  # it lost its connection, and came again
            met.links[host].close()
        met.links[host] = connection
        return
    strangers.append(f"{there}: {why}")
    with contextlib.suppress(OSError):
        _send(connection, {"refused": why})
    connection.close()


def _stranger(task: Task, met: Met, said: Mapping[str, Any]) -> str | None:
    index = said.get("index")
    if said.get("group") != task.group:
        return "it belongs to another group"
    if not isinstance(index, int) or not 0 < index < len(task.hosts) or said.get("host") != task.hosts[index]:
        return f"{str(said.get('host'))[:60]!r} is not a host of this group"
    host, machine = task.hosts[index], said.get("machine")
    wanted = task.machines[index] if task.machines else None
    if wanted is not None and wanted != machine:
        return f"{host} was restarted, or another machine answers in its place, since it was listed"
    if said.get("ranks") != task.ranks:
        return f"{host} comes with {said.get('ranks')} ranks, not {task.ranks}"
    return None


# --- the others ------------------------------------------------------------------------------------------------


def _join(task: Task, machine: str | None, deadline: float) -> Met:
    """Connect, say who this is, and wait until all are there. A connection that ends before that is made again."""
    first = task.hosts[0]
    while True:
        link = _connect(task, deadline)
        try:
            name = task.hosts[task.index]
            who = {"group": task.group, "host": name, "index": task.index, "machine": machine, "ranks": task.ranks}
            _send(link, who)
            said = _hear(link, max(1.0, deadline - time.monotonic()) + _ANSWER_SECONDS)
        except (OSError, ValueError, BadInput) as error:
            link.close()
            if time.monotonic() + _RETRY_SECONDS < deadline:
                time.sleep(_RETRY_SECONDS)
                continue
            why = f"{first} was there, and the group did not connect: {error}"
            raise NotMet("nobody-came", why, (first,)) from error
        break
    if said.get("go") != task.group:
        link.close()
        refused = said.get("refused")
        why = f"{first}: {str(refused)[:200]}" if refused else f"somebody else is at {task.address} port {task.port}"
        raise NotMet("nobody-came" if refused else "other-member", why, () if refused else (first,))
    return Met(links={first: link})


def _connect(task: Task, deadline: float) -> socket.socket:
    """Connect from the host's own address, again and again until the wait is over. Raises NotMet."""
    while True:
        try:
            left = max(0.5, deadline - time.monotonic())
            return socket.create_connection((task.address, task.port), timeout=left, source_address=(task.own, 0))
        except OSError as error:
            outcome, again = _why(error)
            if not again or time.monotonic() + _RETRY_SECONDS >= deadline:
                place = f"{task.hosts[0]} at {task.address} port {task.port}"
                accused = () if outcome == "wrong-fabric" else (task.hosts[0],)
                raise NotMet(outcome, f"no connection to {place}: {error.strerror or error}", accused) from error
        time.sleep(_RETRY_SECONDS)


def _why(error: OSError) -> tuple[MemberOutcome, bool]:
    """Return (the outcome's word, whether to try again)."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "no-connection", True
    if error.errno == errno.ECONNREFUSED:
        return "connection-refused", True
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "no-route", True
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL):
        return "wrong-fabric", False
    return "no-connection", True


# --- lines of JSON -----------------------------------------------------------------------------------------------


def _send(link: socket.socket, message: Mapping[str, Any]) -> None:
    link.settimeout(_ANSWER_SECONDS)
    link.sendall(json.dumps(message).encode() + b"\n")


def _hear(link: socket.socket, seconds: float) -> dict[str, Any]:
    """Return the next line. Raises OSError, also for a connection that ends, and ValueError or BadInput for none."""
    deadline = time.monotonic() + seconds
    data = b""
    while not data.endswith(b"\n"):
        link.settimeout(max(0.1, deadline - time.monotonic()))
        chunk = link.recv(1)  # a byte at a time: what follows belongs to the next message
        if not chunk:
            raise ConnectionResetError("the connection ended")
        data += chunk
        if len(data) > _MOST_BYTES or time.monotonic() > deadline:
            raise ValueError("no line of at most 4 KiB")
    said = plain_json(data, where="member")
    return said if isinstance(said, dict) else {}


def hear(link: socket.socket) -> dict[str, Any] | None:
    """Return what the other side says; None if it is gone."""
    try:
        return _hear(link, _ANSWER_SECONDS)
    except (OSError, ValueError, BadInput):
        return None
