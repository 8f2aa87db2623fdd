"""Files written whole or not at all, and read whole. No other module makes a temporary file and renames it.

What runs outside of hosttune's package (Ansible's modules, the pull timer) has a writer of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from hosttune.descriptors import let_go


def write_whole(
    path: str,
    data: bytes,
    mode: int | None,
    *,
    replace: bool = True,
    sync: bool = True,
    temporary: str | None = None,
) -> None:
    """Write a file so that a crash leaves the old one or the new one: a temporary one beside it, then renamed.

    `mode`: whatever the umask is; None: what the umask leaves of 0644. `replace` False raises FileExistsError where
    there is a file. `sync`: the contents are on the disk before the name is; False for what can be made again.
    `temporary`: its path, where somebody must find again what a crash leaves of it; else it has the process's number.
    Raises OSError; nothing is left behind then.
    """
    temporary = temporary or f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # what a crash has left
    write_new(temporary, data, mode, sync=sync)
    try:
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, this never replaces a file
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed: as it should be
            os.unlink(temporary)


def write_new(path: str, data: bytes, mode: int | None, *, sync: bool = True) -> None:
    """Make a file that is not there yet, written and synced; where that fails, it is gone again. Raises OSError."""
    fd = open_new(path, mode)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:  # an interrupt, too
        os.unlink(path)
        raise


def open_new(path: str, mode: int | None, flags: int = 0) -> int:
    """Make a file that is not there yet, with a mode as of `write_whole`; open for writing. Raises OSError."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o644 if mode is None else mode)
    try:
        if mode is not None and os.fstat(fd).st_mode & 0o777 != mode:
            os.fchmod(fd, mode)  # before there is anything to read in it
    except BaseException:
        let_go(fd)
        os.unlink(path)
        raise
    return fd


def make_folder(path: str, mode: int = 0o755) -> None:
    """Make a folder and those above it that are missing, with this mode whatever the umask is. Raises OSError."""
    if os.path.isdir(path):
        return
    make_folder(os.path.dirname(path) or "/", mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    if os.stat(path).st_mode & 0o777 != mode:
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Make the names in a folder last through a power cut. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        let_go(fd)


def read_whole(path: str) -> bytes:
    """The bytes of a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_all(fd)
    finally:
        let_go(fd)


def read_all(fd: int, taken: Callable[[int], None] = lambda size: None) -> bytes:
    """What is left to read; `taken` gets the number of bytes so far, and may raise to end it. Raises OSError."""
    chunks = []
    size = 0
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        taken(size)
    return b"".join(chunks)
