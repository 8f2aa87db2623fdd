"""Names of PCI ids from the system's pci.ids, found by searching its bytes: a full parse costs more than discovery.

Names only decorate the host document, but a replayed capture must give the same document everywhere. So `pci` uses only
the file of the machine (or capture) that it reads. A caller that wants this machine's names for a capture without a
file passes `load(Machine())` explicitly.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from hosttune.errors import Unreadable
from hosttune.machine.system import System

# A capture must hold one of these files, so that its own names are used.
PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
    "/var/lib/pciutils/pci.ids",
)

_VENDOR_LINE = re.compile(rb"\n[0-9a-f]")
_DEVICE_LINE = re.compile(rb"\n\t[0-9a-f]")
_NEAR = 512  # size of the range, in bytes, that is searched line by line after the binary search

Names = tuple[str | None, str | None]


def load(system: System) -> bytes | None:
    """Return the system's pci.ids, uncompressed; None if there is none that can be read (names are not needed)."""
    for path in PATHS:
        for suffix in ("", ".gz"):
            try:
                data = system.read_bytes(path + suffix)
            except Unreadable:
                continue  # readable by everyone where it exists; without it, devices only have no names
            if data:
                text = _inflate(data) if suffix else data
                if text:
                    return text
    return None


def lookup(data: bytes | None, ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Names]:
    """Return (vendor name, device name) for each (vendor id, device id) of four hex digits each.

    None where not listed.
    """
    if data is None:
        return {}
    # The offset where the vendors end and the classes ("C 00 …") begin.
    classes = data.rfind(b"\nC 00 ")
    end = len(data) if classes < 0 else classes
    named: dict[tuple[str, str], Names] = {}
    last, start, stop, after = "", end, end, 0
    for vendor, device in sorted(set(ids)):
        if vendor != last:
            start = _vendor(data, vendor.encode(), after, end)
            stop = _next(data, start + 4, end, _VENDOR_LINE)
            after = start if start < end else after
            last = vendor
        at = _find(data, start, stop, device.encode(), _DEVICE_LINE)
        named[vendor, device] = (_name(data, start, end), _name(data, at, stop))
    return named


def _inflate(data: bytes) -> bytes | None:
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(data, 16 << 20)
    except zlib.error:
        return None
    return text if inflater.eof else None


def _vendor(data: bytes, vendor: bytes, after: int, end: int) -> int:
    """Return the offset of the id in a vendor's line, searching from offset `after`; `end` if it is not listed.

    This is not a binary search, because for a vendor with thousands of devices the next vendor's line is far from the
    middle.
    """
    if data.startswith(vendor):
        return 0
    at = data.find(b"\n" + vendor, after, end)
    return end if at < 0 else at + 1


def _find(data: bytes, start: int, end: int, key: bytes, line: re.Pattern[bytes]) -> int:
    """Return the offset of the id `key` in a device's line; `end` if it is not listed.

    pci.ids is sorted, so this is a binary search. In a file that someone has edited out of order, a device may stay
    without a name. A full search for every id that is not listed would take longer than all the rest, and names decide
    nothing.
    """
    low, high = start, end
    while high - low > _NEAR:
        middle = (low + high) // 2
        at = _next(data, middle, end, line)
        if at < end and data[at : at + 4] < key:
            low = at
        else:
            high = middle
    at = _next(data, low, end, line)
    while at < end and data[at : at + 4] < key:
        at = _next(data, at + 4, end, line)
    return at if at < end and data[at : at + 4] == key else end


def _next(data: bytes, at: int, end: int, line: re.Pattern[bytes]) -> int:
    """Return the offset of the id in the first line of its kind at or after `at`, or else `end`."""
    match = line.search(data, max(at - 2, 0), end)
    while match and match.end() - 1 < at:
        match = line.search(data, match.end(), end)
    return match.end() - 1 if match else end


def _name(data: bytes, at: int, end: int) -> str | None:
    """Return the name after the id at `at`; None if `at` is the end of the list."""
    if at >= end:
        return None
    stop = data.find(b"\n", at)
    return data[at + 4 : stop if stop >= 0 else len(data)].decode("utf-8", "replace").strip()
