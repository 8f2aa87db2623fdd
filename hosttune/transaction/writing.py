"""One setting, written: in a child process if the kernel may hang, and what is known of it after a failure."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hosttune.errors import CommandFailed, HosttuneError, Unreadable
from hosttune.machine.child import in_child
from hosttune.machine.system import System
from hosttune.model.values import freeze
from hosttune.settings.setting import Setting

# --- signals -------------------------------------------------------------------------------------------------


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


# --- one write -----------------------------------------------------------------------------------------------


Say = Callable[[str], None]


class Made(msgspec.Struct, frozen=True):
    """The result of one step: outcome, value read back, and reason. `untouched`: it failed before any write."""

    outcome: str
    after: Any = None
    why: str | None = None
    untouched: bool = False


def write(system: System, setting: Setting, value: Any) -> str | None:
    """Write a setting, in a child process if it has a time limit. Return what the setting says of it, if anything.

    Raises what the setting raises, and Stuck if it did not end in time.
    """
    if setting.limit_seconds is None:
        return setting.write(system, value)
    note = in_child(lambda: setting.write(system, value), setting.limit_seconds, f"{setting.kind} {setting.target}")
    system.forget()
    return note


def value_or_none(system: System, setting: Setting) -> Any:
    """Return the value after a failure; None also if it cannot be read. The outcome tells these apart."""
    system.forget()
    try:
        return freeze(setting.read(system))
    except Unreadable:
        return None


def reason_of(error: HosttuneError | OSError) -> str:
    """Return what failed, in one line; of a command also the last line that it printed."""
    if isinstance(error, CommandFailed):
        said = error.output.strip().splitlines()
        return f"{' '.join(error.argv)}: {error.reason}{f': {said[-1]}' if said else ''}"
    return error.what if isinstance(error, HosttuneError) else str(error)
