"""Systems that wrap another System: reads go through, misses noted; changes are counted, or only recorded."""

from __future__ import annotations

import mmap
import shlex
import struct
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any

from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.machine.system import Folder, System
from hosttune.settings.setting import GONE, Setting


class _PassThrough(System):
    """Base class: every read is passed to the wrapped System."""

    def __init__(self, behind: System) -> None:
        self._behind = behind
        self.captured, self.complete = behind.captured, behind.complete
        self.scratch, self.origin = behind.scratch, behind.origin

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        return self._behind.read_bytes(path)

    def list(self, path: str) -> list[str]:
        """See System."""
        return self._behind.list(path)

    def link(self, path: str) -> str | None:
        """See System."""
        return self._behind.link(path)

    def exists(self, path: str) -> bool:
        """See System."""
        return self._behind.exists(path)

    def lacks(self, path: str) -> bool:
        """See System."""
        return self._behind.lacks(path)

    def folder(self, path: str) -> Folder:
        """See System."""
        return self._behind.folder(path)

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System."""
        return self._behind.query(name, live)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        return self._behind.run(argv, timeout=timeout)

    def forget(self) -> None:
        """See System."""
        self._behind.forget()


class MissesNoted(_PassThrough):
    """Notes in `missed` whether something was looked for and not found. Only for reads."""

    missed = False

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        data = super().read_bytes(path)
        self.missed |= data is None
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        names = super().list(path)
        self.missed |= not names
        return names

    def link(self, path: str) -> str | None:
        """See System."""
        target = super().link(path)
        self.missed |= target is None
        return target

    def exists(self, path: str) -> bool:
        """See System."""
        there = super().exists(path)
        self.missed |= not there
        return there

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System."""
        answer = super().query(name, live)
        self.missed |= answer is None
        return answer


class CountingSystem(_PassThrough):
    """Passes changes through and counts them. `changes` includes those made by child processes forked since then."""

    def __init__(self, behind: System) -> None:
        super().__init__(behind)
        self._count = mmap.mmap(-1, mmap.PAGESIZE)  # shared memory, so that children count too

    @property
    def changes(self) -> int:
        """Return how many changes were requested.

        A refused change counts too, because part of it may have been made.
        """
        return int(struct.unpack_from("q", self._count)[0])

    def _one_more(self) -> System:
        struct.pack_into("q", self._count, 0, self.changes + 1)
        return self._behind

    def write(self, path: str, text: str) -> None:
        """See System."""
        self._one_more().write(path, text)

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """See System."""
        self._one_more().write_register(path, offset, data)

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See System."""
        self._one_more().replace(path, data, mode)

    def remove(self, path: str) -> None:
        """See System."""
        self._one_more().remove(path)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        return self._one_more().change(argv, timeout=timeout, stdin=stdin)

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """See System."""
        self._one_more().tell(name, value, live)


class Rehearsal(_PassThrough):
    """Records every change in `changes` instead of making it.

    `brief`: show only the digest of a file's contents.
    """

    rehearses = True

    def __init__(self, behind: System, *, brief: bool = False) -> None:
        super().__init__(behind)
        self.changes: list[str] = []
        self._brief = brief

    def write(self, path: str, text: str) -> None:
        """See System."""
        self.changes.append(f"write {path} <- {shown(text.encode())}")

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """See System."""
        self.changes.append(f"write {path} at {offset:#x} <- {data.hex(' ')}")

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See System."""
        contents = f" (sha256 {sha256(data).hexdigest()})" if self._brief else block(data)
        self.changes.append(f"file  {path} (mode {mode:o}, {len(data)} bytes)" + contents)

    def remove(self, path: str) -> None:
        """See System."""
        self.changes.append(f"unlink {path}")

    def tidy(self, path: str) -> None:
        """See System. A rehearsal leaves nothing behind."""

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        self.changes.append(f"run   {shlex.join(argv)}" + (block(stdin.encode()) if stdin is not None else ""))
        return ""

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """See System."""
        several = "\n" in value
        self.changes.append(
            f"call  {name} <- "
            + (f"{len(value.encode())} bytes" + block(value.encode()) if several else shown(value.encode()))
        )


def shown(data: bytes) -> str:
    """Return bytes as quoted text in which every byte can be identified."""
    text = data.decode("utf-8", "backslashreplace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def block(data: bytes) -> str:
    """Return the contents of a file as lines below its entry: text as it is, anything else as a digest."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f" (binary, sha256 {sha256(data).hexdigest()})"
    return "".join(f"\n  | {line}" for line in text.splitlines()) + ("" if text.endswith("\n") else "\n  (no line end)")


def rehearse(
    system: System, setting: Setting, value: Any, undone: Collection[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], str | None]:
    """Return every change that a write of this value would make, in order, and why there are no more of them.

    Secrets of the value are left out. `undone`: see System.

    The reason is None if the write would succeed. Otherwise the write would be refused in the host's present state, or
    this is unknown, or it would have nothing to change.
    """
    if setting.is_gone(system):
        return (), GONE
    rehearsal = Rehearsal(system, brief=setting.rehearsed_briefly)
    rehearsal.undone = undone
    why = None
    try:
        setting.write(rehearsal, setting.shown(value))
    except (WriteFailed, CommandFailed) as error:
        why = f"would be refused: {error.what}"
    except Unreadable as error:
        why = f"unknown here: {error.what}"
    if not rehearsal.changes and why is None:
        why = "nothing would be written"
    return tuple(rehearsal.changes), why
