"""Scratch roots that note every change that a setting makes, cut it off at any of them, or only rehearse it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.machine.scratch import Scratch

Change = tuple[str, ...]


class KilledError(Exception):
    """Stands for a SIGKILL: nothing in the product can catch it."""


class Noted(Scratch):
    """A scratch root whose `changes` are noted: "write PATH TEXT", "replace PATH", "remove PATH", "change ARGV"."""

    def __init__(self, root: Path, *, cut: int = -1, dry: bool = False) -> None:
        super().__init__(str(root))
        self.changes: list[Change] = []
        self.refused: dict[str, int] = {}  # path -> errno
        self.failing: dict[str, str] = {}  # command -> reason
        self._cut, self._dry = cut, dry

    def _do(self, change: Change, act: Callable[[], None]) -> None:
        """Cut 2n: before the nth change, 2n + 1: after it."""
        if len(self.changes) * 2 == self._cut:
            raise KilledError
        if not self._dry:
            act()
        self.changes.append(change)
        if len(self.changes) * 2 - 1 == self._cut:
            raise KilledError

    def write(self, path: str, text: str) -> None:
        if path in self.refused:
            number = self.refused[path]
            raise WriteFailed(path, os.strerror(number), number)
        self._do(("write", path, text), lambda: Scratch.write(self, path, text))

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if "/scratch/" in path:  # the scratch root's own notes
            Scratch.replace(self, path, data, mode)
        else:
            self._do(("replace", path, data.decode()), lambda: Scratch.replace(self, path, data, mode))

    def remove(self, path: str) -> None:
        if "/scratch/" in path:
            Scratch.remove(self, path)
        else:
            self._do(("remove", path), lambda: Scratch.remove(self, path))

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        if argv[0] in self.failing:
            raise CommandFailed(argv, self.failing[argv[0]])
        self._do(("change", *argv), lambda: None)
        return ""


EIO, EPERM, ENOSPC = errno.EIO, errno.EPERM, errno.ENOSPC


def scratch_root(root: Path, *, complete: bool = True) -> Path:
    """Mark a directory as a scratch root."""
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune/scratch").touch()
    if complete:
        (root / ".hosttune/capture").touch()
    return root


def put(root: Path, path: str, text: str) -> None:
    """A file of the root."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def put_link(root: Path, path: str, target: str) -> None:
    """A link of the root, as sysfs has them: relative."""
    link = root / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    inside = root / target.lstrip("/")
    link.symlink_to(os.path.relpath(inside, link.parent))
