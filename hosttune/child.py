"""Work in a forked child, so that a write that hangs in the kernel for good does not take the engine with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from hosttune.errors import CommandFailed, HosttuneError, Stuck, WriteFailed

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE_SECONDS = 1.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def in_child(work: Callable[[], str | None], seconds: float, what: str) -> str | None:
    """What `work` returns, done in a child of its own. Raises what it raises, and Stuck after `seconds`.

    The child is killed with its parent and with the wait: a kernel that heeds signals then leaves off, and one that
    does not is left alone. It holds none of our files: neither lock nor journal outlives us in it.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)  # within a fork Python would lose an interrupt
    child = os.fork()
    if child == 0:
        _be_child(work, writer, parent, held)
    os.close(writer)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)  # heard from here on, where the child is ended with it
        answer = _answer(reader, seconds)
    finally:
        os.close(reader)
        _end(child)
    if answer is None:
        raise Stuck(what, seconds)
    return _unpacked(answer)


def _be_child(work: Callable[[], str | None], writer: int, parent: int, held: Iterable[int]) -> NoReturn:
    """The child's whole life."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            os.setpgid(0, 0)  # a Ctrl-C is for the engine, which decides what becomes of this write
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # one that hangs for good must not keep whoever reads our output waiting
                os.dup2(null, stream)
            os.closerange(3, writer)
            os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
            with contextlib.suppress(OSError):
                os.write(writer, _packed(work))
    finally:
        os._exit(0)  # also from an interrupt: nothing of the parent's may be undone twice


def _packed(work: Callable[[], str | None]) -> bytes:
    try:
        answer: dict[str, Any] = {"note": work()}
    except WriteFailed as error:
        answer = {"write": [error.path, error.reason, error.errno]}
    except CommandFailed as error:
        answer = {"command": [list(error.argv), error.reason, error.output[-2000:]]}
    except HosttuneError as error:
        answer = {"other": [error.where, error.what]}
    except Exception as error:  # told to the parent, where it is the defect that it is
        answer = {"internal": f"{type(error).__name__}: {error}"}
    return json.dumps(answer).encode() + b"\n"


def _answer(reader: int, seconds: float) -> bytes | None:
    """The child's line; None when it did not come in time."""
    deadline = time.monotonic() + seconds
    chunks = b""
    while not chunks.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        chunks += chunk
    return chunks


def _end(child: int) -> None:
    """Kill the child and take it off the list of processes, without waiting for one that the kernel holds."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                return
        time.sleep(0.005)


def _unpacked(answer: bytes) -> str | None:
    if not answer:
        raise WriteFailed("child", "ended without an answer")
    said = json.loads(answer)
    if "write" in said:
        raise WriteFailed(*said["write"])
    if "command" in said:
        argv, reason, output = said["command"]
        raise CommandFailed(tuple(argv), reason, output)
    if "other" in said:
        raise WriteFailed(*said["other"])
    if "internal" in said:
        raise RuntimeError(said["internal"])
    note = said["note"]
    return note if note is None else str(note)
