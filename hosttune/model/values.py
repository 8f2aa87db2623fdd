"""Small exact types that every document is made of: CPU sets, PCI addresses, sizes, and JSON both ways."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from hosttune.errors import BadInput

T = TypeVar("T")

_BDF = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def parse_address(text: str, *, where: str = "PCI address") -> str:
    """Return a PCI address in the kernel's form, "0000:41:00.0" (domain of 4 to 8 digits, lower case).

    The domain may be left out (0000 is meant, as in lspci). Raises BadInput for anything else.
    """
    match = _BDF.fullmatch(text.strip())
    if not match or int(match[3], 16) > 0x1F:
        raise BadInput(
            f"{text!r} is not a PCI address",
            where=where,
            hint="write it as DOMAIN:BUS:DEVICE.FUNCTION in hex, for example 0000:41:00.0",
        )
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def slot_of(address: str) -> str:
    """The slot of a function: its address without the function number ("0000:41:00")."""
    return address.rpartition(".")[0]


class CpuSet(frozenset[int]):
    """A set of CPU (or node) ids with the kernel's list format as its text form."""

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Read "0-3,8" or the kernel's list format ("0-3,8"); empty text is the empty set. Raises ValueError."""
        ids: set[int] = set()
        for part in text.split(","):
            part = part.strip()
            if not part:
                continue
            first, dash, last = part.partition("-")
            low = int(first)
            high = int(last) if dash else low
            if low < 0 or high < low or high > 1 << 20:
                raise ValueError(f"{part!r} is no CPU range")
            ids.update(range(low, high + 1))
        return cls(ids)

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """Read a kernel mask: comma-separated groups of 32 bits in hex, most significant group first."""
        bits = 0
        for group in text.strip().split(","):
            bits = bits << 32 | int(group, 16)
        return cls(i for i in range(bits.bit_length()) if bits >> i & 1)

    def __str__(self) -> str:
        ranges: list[str] = []
        ordered = sorted(self)
        start = 0
        for i, cpu in enumerate(ordered):
            if i + 1 < len(ordered) and ordered[i + 1] == cpu + 1:
                continue
            low = ordered[start]
            ranges.append(str(low) if low == cpu else f"{low}-{cpu}")
            start = i + 1
        return ",".join(ranges)

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"

    def __or__(self, other: Iterable[int]) -> CpuSet:  # type: ignore[override]
        return CpuSet(frozenset.union(self, other))

    def __and__(self, other: Iterable[int]) -> CpuSet:  # type: ignore[override]
        return CpuSet(frozenset.intersection(self, other))

    def __sub__(self, other: Iterable[int]) -> CpuSet:  # type: ignore[override]
        return CpuSet(frozenset.difference(self, other))


def parse_cpus(cpus: str | Iterable[int] | None) -> CpuSet:
    """A CPU list of a document, where text and list of ids are both allowed, as a set."""
    if cpus is None:
        return CpuSet()
    return CpuSet.parse(cpus) if isinstance(cpus, str) else CpuSet(cpus)


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every document part: frozen and built by keyword."""


def close_mappings(value: Value, *names: str) -> None:
    """Make the named mapping fields of a value read-only; called from `__post_init__` of values that have any."""
    for name in names:
        field = getattr(value, name)
        if isinstance(field, dict):
            msgspec.structs.force_setattr(value, name, MappingProxyType(field))


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB)")
_UNIT = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(size: int | str, *, where: str) -> int:
    """Bytes of a SIZE: a whole number of bytes, or a number with KiB, MiB, GiB or TiB. Raises BadInput."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    text = str(size).strip()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    match = _SIZE.fullmatch(text)
    value = float(match[1]) * _UNIT[match[2]] if match else 0.0
    if value < 1 or value != int(value):
        raise BadInput(
            f"{size!r} is not a size", where=where, hint="write bytes, or a number with KiB, MiB, GiB or TiB"
        )
    return int(value)


def format_size(size_bytes: int | None) -> str:
    """A size for people: the largest binary unit that keeps it short ("1.5 TiB"); "?" for unknown."""
    if size_bytes is None:
        return "?"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _UNIT[unit]:
            return f"{size_bytes / _UNIT[unit]:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} B"


def _encode_other(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, CpuSet):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: object) -> str:
    """Encode any document value, indented; key order is the field order, so equal values give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_encode_other), indent=2).decode() + "\n"


def to_builtins(value: object) -> Any:
    """A document value as plain dicts and lists."""
    return msgspec.to_builtins(value, enc_hook=_encode_other)


def from_json(kind: type[T], text: str | bytes, *, schema: str, where: str) -> T:
    """Decode a document of one schema version. Raises BadInput naming `where`, the version or the offending field."""
    try:
        head = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not a JSON document: {error}", where=where, hint=f"give a {schema} document") from error
    found = head.get("schema") if isinstance(head, dict) else None
    if found != schema:
        raise BadInput(
            f"not a {schema} document" if found is None else f"a document of schema {found!r}, not {schema!r}",
            where=where,
            hint="write it again with this version of hosttune",
        )
    try:
        return msgspec.convert(head, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, path = str(error).partition(" - at ")
        raise BadInput(problem, where=f"{where}: {path.strip('`') or '$'}", hint="correct the field") from error
