"""Open files by their numbers."""

from __future__ import annotations

import os


def let_go(fd: int) -> None:
    """Close a file that was only read: what the kernel says then (a quota, a network disk) is of no data of ours.

    Of a file that was written, a close that fails is a write that failed.
    """
    try:  # noqa: SIM105 - thousands of times a discovery: `suppress` takes longer than the close
        os.close(fd)
    except OSError:
        pass
