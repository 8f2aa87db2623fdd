"""Files of JSON lines that are only ever added to: the journals of transactions, the record of a fleet's runs.

A line counts once its newline is written. A crash may leave a last line without one: readers leave it out, and it is
cut off before the next line is written. Any other line that cannot be read is an error that names the line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from hosttune.descriptors import let_go
from hosttune.errors import HosttuneError

T = TypeVar("T")
_BLOCK = 1 << 16


class JsonLines:
    """Such a file, open for writing (O_APPEND). `failed` makes the error that is raised where the disk refuses.

    `synced`: each line is on the disk when `add` returns; else it is on its way, and `sync` waits for it. `fsync` is
    os.fsync, but for tests that end the process there.
    """

    def __init__(
        self,
        fd: int,
        failed: Callable[[OSError], HosttuneError],
        *,
        synced: bool = True,
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        self._fd = fd
        self._failed = failed
        self._synced = synced
        self._fsync = fsync

    def add(self, line: bytes) -> None:
        """Add one line (without its newline). Where that fails, the file ends with its last whole line."""
        data = line + b"\n"
        end = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            if self._synced:
                self._fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, end)
            raise self._failed(error) from error

    def sync(self) -> None:
        """All lines so far are on the disk when this returns."""
        try:
            self._fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; an error of close(2) would be about no line that `add` has promised."""
        let_go(self._fd)


def cut_torn(fd: int) -> None:
    """Cut off a last line that has no end. Raises OSError."""
    size = kept = os.fstat(fd).st_size
    while kept:
        start = max(0, kept - _BLOCK)
        found = os.pread(fd, kept - start, start).rfind(b"\n")
        if found >= 0:
            kept = start + found + 1
            break
        kept = start
    if kept != size:
        os.ftruncate(fd, kept)


def whole_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(its number, from 1; the line) of each line that has its end."""
    yield from enumerate(data.split(b"\n")[:-1], 1)


def decoded(line: bytes, decode: Callable[[bytes], T], broken: Callable[[str], HosttuneError]) -> T:
    """A line's value. Raises what `broken` makes of the reason why it cannot be read."""
    try:
        return decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise broken(str(error)) from error
