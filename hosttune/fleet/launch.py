"""Start ansible-playbook so that it ends when the run that started it ends, and holds a lock while it is running.

This file is run as a script, not imported: `python -P launch.py PARENT LOCKFILE ANSIBLE-PLAYBOOK ARGUMENTS…`. It uses
only the standard library. If the run is killed, the kernel sends SIGTERM to ansible, which then ends its workers. While
one of these processes is still running, it holds a shared lock, and no other run starts on the same hosts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, lock: str, argv: list[str]) -> None:
    """Replace this process with ansible-playbook. Exits with 1 if the run has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.set_inheritable(fd, True)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
