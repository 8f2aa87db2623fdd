"""Signals during a transaction: one asks for a rollback, and a rollback is not interrupted."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (a lost connection) into KeyboardInterrupt, as Ctrl-C does, to cause a rollback."""
    asked: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        if len(asked) == 1:  # SIGTERM and SIGHUP come together: the second must not stop the rollback
            raise KeyboardInterrupt

    heard = (number for number in _INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN)  # nohup ignores SIGHUP
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block signals during a rollback, so that it is complete. They are delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
