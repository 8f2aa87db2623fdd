"""Open files by their file descriptors."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def let_go(fd: int) -> None:
    """Close a file that was only read. An error here (a quota, a network disk) does not concern hosttune's data.

    Do not use it for a written file: there a close that fails is a write that failed.
    """
    try:  # noqa: SIM105 - thousands of times a discovery: `suppress` takes longer than the close
        os.close(fd)
    except OSError:
        pass


def drop(stream: TextIO) -> None:
    """Discard what a failed stream still holds; otherwise Python would fail on it again at exit (exit code 120)."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file descriptor, as in tests
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
