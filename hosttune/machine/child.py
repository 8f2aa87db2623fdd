"""Runs work in a forked child, so that a call that hangs in the kernel forever does not block the engine."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

from hosttune.errors import ChildDied, CommandFailed, HosttuneError, Stuck, WriteFailed
from hosttune.machine.files import let_go

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE_SECONDS = 1.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def in_child(work: Callable[[], str | None], seconds: float, what: str) -> str | None:
    """Run `work` in a child process and return its result (see `Child.answer`)."""
    return Child(work, what).answer(seconds)


class Child:
    """Runs `work` in a child process, while its parent goes on until it calls `answer`.

    The child is killed when its parent ends and when the wait ends. A kernel call that reacts to signals then stops;
    one that does not is left alone. The child has none of hosttune's files open, so neither lock nor journal stays open
    in it. Signals wait until `answer` is called, so that no interrupt leaves a child behind; `held` is the mask before.
    """

    def __init__(self, work: Callable[[], str | None], what: str) -> None:
        self._what = what
        self._reader, writer = os.pipe()
        self._child, self.held = start_child(lambda: _tell(writer, work), (writer,))
        let_go(writer)

    def answer(self, seconds: float) -> str | None:
        """Return the result of `work`, once.

        Raises what it raises, Stuck after `seconds`, and ChildDied if the child ended before it had answered.
        """
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.held)  # from here on a signal can end the child
            answer = _answer(self._reader, seconds)
        finally:
            let_go(self._reader)
            status = _end(self._child)
        if answer is None:
            raise Stuck(self._what, seconds)
        if not answer.endswith(b"\n"):
            killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status)
            end = f"was ended by {signal.Signals(killed).name}" if killed else "ended"
            raise ChildDied(self._what, f"the process for it {end} before it had answered")
        import json

        message = json.loads(answer)
        if "write" in message:
            raise WriteFailed(*message["write"])
        if "command" in message:
            argv, reason, output = message["command"]
            raise CommandFailed(tuple(argv), reason, output)
        if "other" in message:
            raise WriteFailed(*message["other"])
        if "os" in message:
            raise OSError(*message["os"])
        if "internal" in message:
            raise RuntimeError(message["internal"])
        note = message["note"]
        return note if note is None else str(note)


def start_child(life: Callable[[], None], keep: Collection[int]) -> tuple[int, Iterable[int]]:
    """Fork a child that runs `life` and then ends, at the latest with its parent. Of open files it keeps only `keep`.

    Return its process id, and the signal mask to restore as soon as the caller can end the child on a signal. Until
    then signals wait, because Python would lose a signal during a fork. Raises OSError if no child could be started.
    """
    import ctypes  # before the fork: in the child, each child would load it anew

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        raise
    if child == 0:
        _be_child(life, sorted(keep), parent, held, prctl)
    return child, held


def _be_child(
    life: Callable[[], None], keep: Collection[int], parent: int, held: Iterable[int], prctl: Callable[..., int]
) -> NoReturn:
    """Run the child from start to end."""
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            os.setpgid(0, 0)  # Ctrl-C is for the parent, which decides about this child
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # a child that hangs forever must not keep readers of hosttune's output waiting
                os.dup2(null, stream)
            for last, kept in itertools.pairwise((2, *keep, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(last + 1, kept)
            life()
    finally:
        os._exit(0)  # also after an interrupt: the parent's cleanup must not run twice


def _tell(writer: int, work: Callable[[], str | None]) -> None:
    with contextlib.suppress(OSError):
        import json

        try:
            answer: dict[str, Any] = {"note": work()}
        except WriteFailed as error:
            answer = {"write": [error.path, error.reason, error.errno]}
        except CommandFailed as error:
            answer = {"command": [list(error.argv), error.reason, error.output[-2000:]]}
        except HosttuneError as error:
            answer = {"other": [error.where, error.what]}
        except OSError as error:
            answer = {"os": [error.errno, error.strerror or str(error), error.filename]}
        except Exception as error:  # reported to the parent, which raises it as a defect
            answer = {"internal": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(answer).encode() + b"\n")


def _answer(reader: int, seconds: float) -> bytes | None:
    """Return the child's line; None if it did not come in time."""
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


def _end(child: int) -> int | None:
    """Kill the child and reap it, without waiting for one that the kernel does not let go. Return its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    deadline, pause = time.monotonic() + _GRACE_SECONDS, 0.0001  # almost always it is gone after the first
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            reaped, status = os.waitpid(child, os.WNOHANG)
            if reaped:
                return status
        time.sleep(pause)
        pause = min(2 * pause, 0.005)
    return None
