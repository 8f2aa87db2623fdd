"""Open files by their file descriptors."""

from __future__ import annotations

import os


def let_go(fd: int) -> None:
    """Close a file that was only read. An error here (a quota, a network disk) does not concern hosttune's data.

    Do not use it for a written file: there a close that fails is a write that failed.
    """
    try:  # noqa: SIM105 - thousands of times a discovery: `suppress` takes longer than the close
        os.close(fd)
    except OSError:
        pass
