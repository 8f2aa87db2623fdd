"""The errors that a user can see: each says what is wrong, where, and what to do about it.

Bottom layer. `cli` prints one of these as a single block on stderr and exits with the documented code. Any other
exception is a defect of hosttune (exit 70).
"""

from __future__ import annotations

import errno


class HosttuneError(Exception):
    """An error with a cause that a person can correct.

    `what` is wrong, `where` it was found (a file, an option, a document path), `hint` says what to do.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str, hint: str) -> None:
        super().__init__(f"{what} ({where}): {hint}")
        self.what = what
        self.where = where
        self.hint = hint


class BadInput(HosttuneError):
    """Wrong usage or bad input: malformed, unknown or duplicate. Nothing was written."""

    exit_code = 2


class Refused(HosttuneError):
    """A check refused: the request is valid, but must not be carried out here and now."""

    exit_code = 3


class Declined(HosttuneError):
    """The administrator answered no to the prompt. Nothing was changed."""


_TO_READ = "run as root, or check the device's health"


class Unreadable(HosttuneError):
    """A file exists but the kernel refused to read it (EACCES, EIO…). It is unknown, which is not the same as absent.

    A reader records it as a problem. If this error reaches the user, the machine or capture cannot be read at all.
    """

    exit_code = 2

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        hint = hint or ("start libvirt's daemon, or run as root" if path.startswith("virsh ") else _TO_READ)
        super().__init__(f"cannot read {path}: {reason}", where=path, hint=hint)
        self.path = path
        self.reason = reason


class CommandFailed(HosttuneError):
    """An external command is missing, timed out or exited non-zero; `output` has its output."""

    def __init__(self, argv: tuple[str, ...], reason: str, output: str = "") -> None:
        super().__init__(
            f"{argv[0]}: {reason}", where=" ".join(argv), hint=output.strip() or "run it by hand to see why"
        )
        self.argv = argv
        self.reason = reason
        self.output = output


class WriteFailed(HosttuneError):
    """The kernel, a file system or a tool refused a change. `errno`: the kernel's number, or None."""

    def __init__(self, path: str, reason: str, errno: int | None = None) -> None:
        super().__init__(
            f"cannot change {path}: {reason}", where=path, hint="see the kernel log (dmesg) for its reason"
        )
        self.path = path
        self.reason = reason
        self.errno = errno


class ChildDied(WriteFailed):
    """A child process ended before it had answered; `cause` says how it ended."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.what = f"{path}: {cause}"


class Stuck(HosttuneError):
    """A change did not finish in time: the child that makes it may hang in the kernel forever."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"no answer within {seconds:g} s", where=path, hint="see the kernel log (dmesg) for what it waits for"
        )
        self.seconds = seconds


class InUse(WriteFailed):
    """Something that should be removed is in use: it was left unchanged."""

    def __init__(self, path: str, users: str) -> None:
        super().__init__(path, f"in use: {users}")
        self.hint = "stop what uses it, then try again"


def state_remedy(error: OSError) -> str:
    """Return what to do if the state directory cannot be read or written."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "run as root"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on that disk"
    if error.errno == errno.EROFS:
        return "mount its file system writable: mount -o remount,rw"
    return "correct what is at this path"  # not another state directory: it would not know what is in force
