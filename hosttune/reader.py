"""Reading with doubts kept: a `Reader` gives typed values from a `System` and collects what could not be read.

Discovery and the GPU makers' modules read through it. A missing file is None; a file that the kernel
refuses, or whose text makes no sense, is None *and* a problem, so that nothing unknown looks like absent.
"""

from __future__ import annotations

from hosttune.errors import Unreadable
from hosttune.model.host import Problem
from hosttune.model.values import CpuSet
from hosttune.system import System


class Reader:
    """A System plus the list of problems met so far."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.problems: list[Problem] = []

    def problem(self, what: str, where: str, why: str) -> None:
        """Note a doubt (once)."""
        noted = Problem(what=what, where=where, why=why)
        if noted not in self.problems:
            self.problems.append(noted)

    def data(self, path: str) -> bytes | None:
        """The file's bytes, None when absent or unreadable."""
        try:
            return self.system.read_bytes(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None

    def text(self, path: str) -> str | None:
        """The file's text, stripped; None when absent or unreadable."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def integer(self, path: str, base: int = 10) -> int | None:
        """A whole number ("21", with base 16 also "0x10de")."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text, base)
        except ValueError:
            self.problem("not a number", path, f"reads {text[:40]!r}")
            return None

    def cpus(self, path: str) -> CpuSet | None:
        """A kernel CPU (or node) list; an empty file is the empty set."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return CpuSet.parse(text)
        except ValueError:
            self.problem("not a CPU list", path, f"reads {text[:40]!r}")
            return None

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when absent or unreadable."""
        try:
            return self.system.list(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return []

    def link(self, path: str) -> str | None:
        """Where a link leads (a path inside the machine), None when it is none."""
        try:
            return self.system.link(path)
        except Unreadable as error:
            self.problem("unreadable", path, error.reason)
            return None

    def link_name(self, path: str) -> str | None:
        """The last part of where a link leads: the driver's name behind `driver`, the number behind `iommu_group`."""
        target = self.link(path)
        return None if target is None else target.rpartition("/")[2]
