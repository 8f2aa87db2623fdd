"""A rehearsal: a System whose reads are real and whose changes are only written down, byte for byte."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.system import Folder, System

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rehearsal(System):
    """The System behind it, with every change noted in `changes` instead of made."""

    def __init__(self, behind: System) -> None:
        self._behind = behind
        self.captured, self.complete = behind.captured, behind.complete
        self.scratch, self.origin = behind.scratch, behind.origin
        self.changes: list[str] = []

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

    # --- what is noted ---------------------------------------------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """See System."""
        self.changes.append(f"write {path} <- {shown(text.encode())}")

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """See System."""
        self.changes.append(f"write {path} at {offset:#x} <- {data.hex(' ')}")

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See System."""
        self.changes.append(f"file  {path} (mode {mode:o}, {len(data)} bytes)" + block(data))

    def remove(self, path: str) -> None:
        """See System."""
        self.changes.append(f"unlink {path}")

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
    """Bytes as a quoted text in which every byte can be told."""
    text = data.decode("utf-8", "backslashreplace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def block(data: bytes) -> str:
    """The contents of a file below its line: text as it is, anything else by its digest."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        from hashlib import sha256

        return f" (binary, sha256 {sha256(data).hexdigest()})"
    return "".join(f"\n  | {line}" for line in text.splitlines()) + ("" if text.endswith("\n") else "\n  (no line end)")


def rehearse(system: System, writes: Sequence[Callable[[System], object]]) -> tuple[str, ...]:
    """Every change that these writes would make, in order."""
    rehearsal = Rehearsal(system)
    for write in writes:
        try:
            write(rehearsal)
        except (WriteFailed, CommandFailed, Unreadable) as error:
            said = "cannot be told here" if isinstance(error, Unreadable) else "would be refused"
            rehearsal.changes.append(f"({said}: {error.what})")
    return tuple(rehearsal.changes)
