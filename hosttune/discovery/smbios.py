"""System → the memory modules that the firmware lists. Read only.

Source: SMBIOS, DMTF DSP0134 3.7: structures (6.1.2), end of the table (7.45), memory device (7.18). The kernel gives
the table to root only, and it has serial numbers, so that a capture holds this answer in its place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from hosttune.errors import Unreadable
from hosttune.machine.reader import Reader
from hosttune.machine.system import System

MEMORY_MODULES = "memory-modules"  # name of the query
_TABLE = "/sys/firmware/dmi/tables/DMI"
_MEMORY_DEVICE, _END = 17, 127
_ANSWER = re.compile(r"[0-9]{1,4} x [0-9]{1,9} MiB at (?:[0-9]{1,6} MT/s|unknown speed)")


def read_memory_modules(reader: Reader) -> str | None:
    """Return modules by size and configured speed ("16 x 65536 MiB at 5600 MT/s"), the most first.

    None if the table cannot be read, or if it lists no module.
    """
    answer = reader.query(MEMORY_MODULES, lambda: _live(reader.system))
    if not answer or len(answer) > 1000:
        return None
    text = " ".join(answer.split())
    return text if all(map(_ANSWER.fullmatch, text.split(", "))) else None


def _live(system: System) -> str | None:
    try:
        data = system.read_bytes(_TABLE)
    except Unreadable:
        return None  # for root only; the fact is then unknown
    return modules_of(data) if data is not None else None


def modules_of(table: bytes) -> str | None:
    """Return the memory modules of an SMBIOS table; None if it lists none, is cut, or has a module of unknown size."""
    found: Counter[tuple[int, int]] = Counter()
    ended = False
    for kind, area in _structures(table):
        ended = ended or kind == _END
        if kind == _MEMORY_DEVICE:
            size = _size(area)
            if size is None:
                return None
            speed = _number(area, 0x20, 2)
            found[size, _number(area, 0x58, 4) & 0x7FFFFFFF if speed == 0xFFFF else speed] += size > 0
    if not ended or not any(found.values()):
        return None
    rows = sorted(((count, *module) for module, count in found.items() if count), reverse=True)
    return ", ".join(
        f"{count} x {size} MiB at {f'{speed} MT/s' if speed else 'unknown speed'}" for count, size, speed in rows
    )


def _structures(table: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and formatted area of each structure; stops at one that is cut."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            return
        yield kind, table[at : at + length]
        if kind == _END:
            return
        at = end + 2


def _number(area: bytes, at: int, width: int) -> int:
    """Return a number of the formatted area; 0 if this version of SMBIOS does not have the field."""
    return int.from_bytes(area[at : at + width], "little") if at + width <= len(area) else 0


def _size(area: bytes) -> int | None:
    """Return the size in MiB; 0 for an empty slot, None if unknown."""
    size = _number(area, 0x0C, 2)
    if size == 0xFFFF or len(area) < 0x0E:
        return None
    if size == 0x7FFF:
        return _number(area, 0x1C, 4) & 0x7FFFFFFF or None
    return (size & 0x7FFF) >> 10 if size & 0x8000 else size
