"""Work in a forked child, so that what hangs in the kernel for good does not take the engine with it."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

from hosttune.descriptors import let_go
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
    child, held = start_child(lambda: _tell(writer, work), (writer,))
    let_go(writer)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)  # heard from here on, where the child is ended with it
        answer = _answer(reader, seconds)
    finally:
        let_go(reader)
        _end(child)
    if answer is None:
        raise Stuck(what, seconds)
    return _unpacked(answer)


def start_child(life: Callable[[], None], keep: Collection[int]) -> tuple[int, Iterable[int]]:
    """Fork a child that lives `life` and ends, at the latest with its parent; of our files it has those of `keep`.

    Returns its process id, and the mask of signals to be set again once an interrupt would find the child where it can
    be ended: until then interrupts wait, for within a fork Python would lose one. Raises OSError where none is had.
    """
    parent = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        raise
    if child == 0:
        _be_child(life, sorted(keep), parent, held)
    return child, held


def _be_child(life: Callable[[], None], keep: Collection[int], parent: int, held: Iterable[int]) -> NoReturn:
    """The child's whole life."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            os.setpgid(0, 0)  # a Ctrl-C is for the parent, which decides what becomes of this
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # one that hangs for good must not keep whoever reads our output waiting
                os.dup2(null, stream)
            for last, kept in itertools.pairwise((2, *keep, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(last + 1, kept)
            life()
    finally:
        os._exit(0)  # also from an interrupt: nothing of the parent's may be undone twice


def _tell(writer: int, work: Callable[[], str | None]) -> None:
    with contextlib.suppress(OSError):
        os.write(writer, _packed(work))


def _packed(work: Callable[[], str | None]) -> bytes:
    import json

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
    import json

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
