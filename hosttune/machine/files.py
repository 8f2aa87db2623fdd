"""Writes files completely or not at all, and reads whole files. Only this module makes temporary files and renames
them.

Programs outside hosttune's package (Ansible's modules, the pull timer) have their own writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from typing import TextIO


def write_whole(
    path: str,
    data: bytes,
    mode: int | None,
    *,
    replace: bool = True,
    sync: bool = True,
    temporary: str | None = None,
) -> None:
    """Write a file so that a crash leaves the old or the new one: write a temporary file beside it, then rename.

    `mode`: set whatever the umask is; None: 0644 without the umask's bits. `replace` False: raises FileExistsError if
    the file exists. `sync`: the contents reach the disk before the name does; False for data that can be made again.
    `temporary`: its path, if the caller must be able to find what a crash leaves; by default its name has the process
    id. Raises OSError and then leaves nothing behind.
    """
    temporary = temporary or f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a crash
    write_new(temporary, data, mode, sync=sync)
    try:
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, this never replaces a file
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was renamed, so it no longer exists
            os.unlink(temporary)


def remove_abandoned(folder: str, of: str | None = None) -> None:
    """Remove temporary files of `write_whole` whose process has ended: it was killed. Raises OSError.

    `of`: only those of the file with this name, in a folder that others write to as well.
    """
    begin = ".+" if of is None else re.escape(of)
    for name in os.listdir(folder):
        match = re.fullmatch(begin + r"\.([0-9]{1,10})\.tmp", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def write_new(path: str, data: bytes, mode: int | None, *, sync: bool = True) -> None:
    """Create a file that does not exist yet, write and sync it; on failure it is removed. Raises OSError."""
    fd = open_new(path, mode)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:  # also for an interrupt
        os.unlink(path)
        raise


def remove_file(path: str) -> None:
    """Remove a file, if it is there, and sync its folder. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        sync_folder(os.path.dirname(path))


def append_line(path: str, line: bytes, mode: int) -> None:
    """Add a short line to the end of a file, in one write, and sync it; a missing file is made. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        written = os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_new(path: str, mode: int | None, flags: int = 0) -> int:
    """Create a file that does not exist yet, with a mode as for `write_whole`; open for writing. Raises OSError."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o644 if mode is None else mode)
    try:
        if mode is not None and os.fstat(fd).st_mode & 0o777 != mode:
            os.fchmod(fd, mode)  # before it has contents to read
    except BaseException:
        let_go(fd)
        os.unlink(path)
        raise
    return fd


def make_folder(path: str, mode: int = 0o755) -> None:
    """Make a folder and the missing ones above it, with this mode whatever the umask is. Raises OSError."""
    if os.path.isdir(path):
        return
    make_folder(os.path.dirname(path) or "/", mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    if os.stat(path).st_mode & 0o777 != mode:
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Sync a folder, so that its names survive a power cut. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        let_go(fd)


def read_start(path: str, size: int) -> bytes:
    """Return at most `size` bytes from the start of a regular file; of anything else b"". Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.read(fd, size) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        let_go(fd)


def names_ending(folder: str, suffix: str) -> list[str]:
    """Return the names in a folder that end so, sorted. Raises OSError."""
    return sorted(name for name in os.listdir(folder) if name.endswith(suffix))


def read_whole(path: str) -> bytes:
    """Return the bytes of a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_all(fd)
    finally:
        let_go(fd)


def read_all(fd: int, taken: Callable[[int], None] = lambda size: None) -> bytes:
    """Read to the end. `taken` gets the number of bytes read so far and may raise to stop. Raises OSError."""
    chunks = []
    size = 0
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        taken(size)
    return b"".join(chunks)


# --- descriptors ----------------------------------------------------------------------------------------------


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
