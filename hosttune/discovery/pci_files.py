"""The files of one PCI function in sysfs, and the forms in which the kernel writes values there."""

from __future__ import annotations

import re
from functools import lru_cache

from hosttune.errors import Unreadable
from hosttune.machine.reader import Reader, number
from hosttune.machine.system import Folder

_DIGITS = re.compile(r"[0-9a-f]+")


class FunctionFiles:
    """The files of one function, each as bytes; None if absent or unreadable (unreadable also adds a problem)."""

    def __init__(self, reader: Reader, path: str, folder: Folder) -> None:
        self.reader = reader
        self.path = path
        self.names = folder.names
        self._folder = folder

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a file."""
        try:
            return self._folder.read(name)
        except Unreadable as error:
            self.reader.problem("unreadable", f"{self.path}/{name}", error.reason)
            return None

    def link_name(self, name: str) -> str | None:
        """Return the last part of a link's target."""
        return self.reader.link_name(f"{self.path}/{name}") if name in self.names else None

    def runtime_status(self) -> str | None:
        """The status of runtime power management: "active", "suspended"…"""
        return line(self.reader.data(f"{self.path}/power/runtime_status")) if "power" in self.names else None


@lru_cache(maxsize=128)
def line(data: bytes | None) -> str | None:
    """Return the text of a file with one line; None if the file is absent or empty."""
    return data.decode("utf-8", "replace").strip() or None if data else None


@lru_cache(maxsize=128)
def hex_digits(data: bytes | None, digits: int) -> str | None:
    """Return the digits of a text such as "0x10de".

    The kernel writes exactly `digits` of them. None for a text that is not such a number or is cut off.
    """
    text = (line(data) or "").removeprefix("0x").lower()
    return text if len(text) == digits and _DIGITS.fullmatch(text) else None


@lru_cache(maxsize=128)
def decimal(data: bytes | None, most: int) -> int | None:
    """Return a number from 0 to `most`, written in decimal digits only as the kernel does; None for anything else."""
    return number((data or b"").decode("ascii", "replace").rstrip("\n"), most)


def is_whole(data: bytes | None) -> bool:
    """Return whether a file with one line was read to its end.

    The kernel ends each with a line break, even an empty list.
    """
    return data is not None and data.endswith(b"\n")
