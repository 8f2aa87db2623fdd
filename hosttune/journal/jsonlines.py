"""Append-only files of JSON lines: the journals of transactions, the record of a fleet's runs.

A line counts when its newline is written. After a crash the last line may have none: readers ignore it, and it is cut
off before the next line is written. Any other line that cannot be read is an error that names the line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from hosttune.errors import BadInput, HosttuneError
from hosttune.machine.files import let_go
from hosttune.model.jsontext import typed_json

T = TypeVar("T")
_BLOCK = 1 << 16


class JsonLines:
    """Such a file, open for writing (O_APPEND). `failed` makes the error that is raised if a write fails.

    `synced`: each line is on the disk when `add` returns; otherwise `sync` waits for it. `fsync` is os.fsync, except in
    tests that end the process there.
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
        """Add one line (without its newline). If that fails, the file ends with its last whole line."""
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
        """Wait until all lines so far are on the disk."""
        try:
            self._fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file. An error of close(2) cannot concern a line that `add` has reported as written."""
        let_go(self._fd)


def drop_torn_line(fd: int) -> None:
    """Cut off a last line without a newline. Raises OSError."""
    size = kept = os.fstat(fd).st_size
    while kept:
        start = max(0, kept - _BLOCK)
        newline = os.pread(fd, kept - start, start).rfind(b"\n")
        if newline >= 0:
            kept = start + newline + 1
            break
        kept = start
    if kept != size:
        os.ftruncate(fd, kept)


def whole_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of each line that has its newline."""
    yield from enumerate(data.split(b"\n")[:-1], 1)


def decoded(line: bytes, kind: type[T], broken: Callable[[str], HosttuneError]) -> T:
    """Return a line's value. If it cannot be read, raises the error that `broken` makes from the reason."""
    try:
        return typed_json(line, kind)
    except BadInput as error:
        raise broken(error.what) from error
