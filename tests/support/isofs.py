"""A second reader of ISO 9660 images, from ECMA-119 and IEEE P1282 (Rock Ridge): names and bytes of the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SECTOR = 2048


@dataclass(frozen=True)
class Descriptor:
    kind: int
    volume: str
    root: bytes  # the directory record, 34 bytes


def descriptors(image: bytes) -> list[Descriptor]:
    """Volume descriptors from sector 16 up to the terminator (ECMA-119 8.1)."""
    found: list[Descriptor] = []
    for sector in range(16, len(image) // SECTOR):
        raw = image[sector * SECTOR : (sector + 1) * SECTOR]
        assert raw[1:6] == b"CD001", f"sector {sector}"
        if raw[0] == 255:
            return found
        encoding = "utf-16-be" if raw[0] == 2 else "ascii"
        found.append(Descriptor(raw[0], raw[40:72].decode(encoding).rstrip(), raw[156:190]))
    raise AssertionError("no terminator")


def both(raw: bytes) -> int:
    """A number in both byte orders (7.3.3), which must agree."""
    little, big = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "big")
    assert little == big
    return little


def records(image: bytes, root: bytes) -> Iterator[bytes]:
    extent, length = both(root[2:10]) * SECTOR, both(root[10:18])
    at = 0
    while at < length:
        size = image[extent + at]
        if not size:
            at += SECTOR - at % SECTOR
            continue
        yield image[extent + at : extent + at + size]
        at += size


def files(image: bytes, kind: int) -> dict[str, bytes]:
    """Name → bytes of the root directory of a descriptor: Rock Ridge names of the primary, Joliet of the second."""
    (descriptor,) = [d for d in descriptors(image) if d.kind == kind]
    found = {}
    for record in records(image, descriptor.root):
        name = record[33 : 33 + record[32]]
        if name in (b"\0", b"\1"):
            continue
        text = rock_ridge(record) if kind == 1 else name.decode("utf-16-be").partition(";")[0]
        start = both(record[2:10]) * SECTOR
        found[text] = image[start : start + both(record[10:18])]
    return found


def rock_ridge(record: bytes) -> str:
    """The NM entry (4.1.4) of a record's system use area."""
    at = 33 + record[32] + (record[32] + 1) % 2
    while at + 4 <= len(record) and record[at + 2]:
        if record[at : at + 2] == b"NM":
            return record[at + 5 : at + record[at + 2]].decode()
        at += record[at + 2]
    raise AssertionError("no Rock Ridge name")
