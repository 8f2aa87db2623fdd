"""A `Reader` returns typed values from a `System` and collects what could not be read.

Discovery and the GPU makers' modules use it. A missing file is None. A file that the kernel refuses, or whose text is
invalid, is None *and* a problem, so that unknown never looks like absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from hosttune.errors import Unreadable
from hosttune.machine.system import Folder, System
from hosttune.model.host import Problem
from hosttune.model.values import MAX_ID, CpuSet
from hosttune.model.values import number as number  # what reads the machine also reads its numbers

# The form that the kernel prints; int() also accepts "+1", "1_2" and digits of other scripts.
_WHOLE = {10: re.compile(r"-?[0-9]{1,19}"), 16: re.compile(r"(?:0x)?[0-9a-fA-F]{1,16}")}


class Reader:
    """A System and the list of problems found so far."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.problems: list[Problem] = []
        self._noted: set[Problem] = set()
        self.sets: dict[tuple[str, bool], CpuSet] = {}  # parsed lists and masks: see discovery.sets
        self.ids_named = 0
        self._opened: dict[str, frozenset[str]] = {}  # the names in each opened folder
        self._texts: dict[str, str | None] = {}
        self.begun: dict[str, Any] = {}  # by name of the query: what a maker began to ask (Vendor.begin)

    def problem(self, what: str, where: str, why: str) -> None:
        """Add a problem, once."""
        noted = Problem(what=what, where=where, why=why)
        if noted not in self._noted:
            self._noted.add(noted)
            self.problems.append(noted)

    def data(self, path: str) -> bytes | None:
        """Return the file's bytes; None if absent or unreadable."""
        try:
            return self.system.read_bytes(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None

    def text(self, path: str) -> str | None:
        """Return the file's text, stripped; None if absent or unreadable.

        Some kernels include a terminating NUL: 2.6.32 in node/online, 5.16 in the lists of topology and nodes.
        """
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip().rstrip("\0 \n")

    def text_once(self, path: str) -> str | None:
        """As `text`, for a long file that several modules need: it is read only the first time."""
        if path not in self._texts:
            self._texts[path] = self.text(path)
        return self._texts[path]

    def integer(self, path: str, base: int = 10) -> int | None:
        """Return a whole number of at most 64 bits ("21", "-1"; base 16, without a sign: "0x10de")."""
        text = self.text(path)
        if not text:
            return None
        if _WHOLE[base].fullmatch(text) and -(1 << 63) <= (value := int(text, base)) < 1 << 64:
            return value
        self.problem("not a number", path, f"reads {text[:40]!r}")
        return None

    def count(self, path: str) -> int | None:
        """Return a number of things, or of bytes, from 0 to MAX_SIZE."""
        text = self.text(path)
        value = number(text) if text else None
        if text and value is None:
            self.problem("not a count", path, f"reads {text[:40]!r}")
        return value

    def identifier(self, path: str) -> int | None:
        """Return a number that the kernel assigned, from 0 to MAX_ID. Its -1 means "none", which is not a problem."""
        text = self.text(path)
        value = number(text, MAX_ID) if text else None
        if text and value is None and text != "-1":
            self.problem("not an id", path, f"reads {text[:40]!r}")
        return value

    def exists(self, path: str) -> bool | None:
        """Return whether a path exists; None if the kernel denies access."""
        try:
            return self.system.exists(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """Return the output of a read-only command (see System); None if it cannot run or its record cannot be read."""
        try:
            return self.system.query(name, live)
        except Unreadable as error:
            self.problem("unreadable", error.path, error.reason)
            return None

    def listing(self, path: str) -> list[str] | None:
        """Return the sorted names in a directory; None if unknown: unreadable, or not proven to be absent."""
        try:
            names = self.system.list(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None
        return names if names or self.lacks(path) or self.exists(path) else None

    def lacks(self, path: str) -> bool:
        """Return whether it is proven that the machine has no such path (see System)."""
        return self.system.lacks(path)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if absent or unreadable."""
        try:
            return self.system.list(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return []

    def folder(self, path: str) -> Folder:
        """Open a directory to read several files. If it is unreadable, it has no names, and a problem is added."""
        try:
            folder = self.system.folder(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            folder = Folder(self.system, path, ())
        self._opened[path] = folder.names
        return folder

    def names_of_open_folder(self, path: str) -> Collection[str]:
        """Return the names in a directory, unordered; a directory opened with `folder` is not read again."""
        known = self._opened.get(path)
        return self.names(path) if known is None else known

    def link(self, path: str) -> str | None:
        """Return where a link leads (a path inside the machine); None if it is not a link."""
        try:
            return self.system.link(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None

    def link_name(self, path: str) -> str | None:
        """Return the last part of where a link leads: the driver's name for `driver`, the number for `iommu_group`."""
        target = self.link(path)
        return None if target is None else target.rpartition("/")[2]
