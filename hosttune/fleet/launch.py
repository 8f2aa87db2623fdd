"""Start ansible-playbook so that it ends with the run that started it, and so that it can be seen while it lasts.

Run as a file, not imported: `python -P launch.py PARENT LOCKFILE ANSIBLE-PLAYBOOK ARGUMENTS…`; the standard library
only. A run that is killed takes its ansible along (SIGTERM, on which ansible ends its workers); as long as one of them
is still there it holds the lock, shared, and no other run begins to ask the same hosts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, lock: str, argv: list[str]) -> None:
    """Become ansible-playbook. Ends with 1 where the run is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.set_inheritable(fd, True)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
