"""Small exact types that all documents use: CPU sets, PCI addresses, sizes, and documents as JSON."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import inspect

from hosttune.errors import BadInput
from hosttune.model.hints import size_hint
from hosttune.model.jsontext import plain_json
from hosttune.model.limits import check_size
from hosttune.model.sysfs import is_function
from hosttune.model.text import decoding_fault, decoding_problem, json_escaped

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_BDF = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def parse_address(text: str, *, where: str = "PCI address") -> str:
    """Return a PCI address in the kernel's form, "0000:41:00.0" (domain of 4 to 8 digits, lower case).

    The domain may be omitted and is then 0000, as in lspci. Raises BadInput for anything else.
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


def check_address(text: str, where: str) -> None:
    """Raise BadInput for a text that is not a PCI address in the kernel's form: two spellings would be two devices."""
    canonical = parse_address(text, where=where)
    if canonical != text:
        what = f"{text!r} is not the kernel's spelling of an address"
        raise BadInput(what, where=where, hint=f"write {canonical}")


def is_address(text: str) -> bool:
    """Return whether a text is a PCI address in the kernel's form.

    The device is below 32, and a domain of more than four digits does not begin with a zero.
    """
    if not is_function(text):
        return False
    domain, _, rest = text.partition(":")
    return int(rest[3:5], 16) < 32 and (len(domain) == 4 or domain[0] != "0")


def addresses_in(target: str) -> set[str]:
    """Return the PCI functions that the target of a setting names ("7@0000:41:00.0+0000:43:00.0")."""
    return {word for word in re.split(r"[\s@,+/]", target) if is_address(word)}


@cache
def address_key(address: str) -> tuple[int, ...]:
    """Return the sort key of a PCI address. Domains may have more than four digits."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function)


def slot_of(address: str) -> str:
    """Return the slot of a function: its address without the function number ("0000:41:00")."""
    return address.rpartition(".")[0]


INTERFACE = re.compile(r"[^/\s:]{1,15}")  # a network interface's name: dev_valid_name, net/core/dev.c
MAX_ID = (1 << 20) - 1  # of a CPU, a node, a group…: far above any number that a kernel assigns
MAX_SET = 1 << 16  # ids in one set: eight times 8192, the most CPUs that x86 kernels are built for
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


class CpuSet(frozenset[int]):
    """A set of CPU (or node) ids. Its text form is the kernel's list format."""

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Parse the kernel's list format ("0-3,8"). Empty text is the empty set.

        Raises ValueError, also for more than MAX_SET ids: a few bytes of text must not fill the memory.
        """
        if len(text) < 7 and text.isascii() and text.isdecimal():  # most are the one CPU of a pin
            return cls((int(text),))
        ids: set[int] = set()
        named = 0
        for part in text.split(","):
            part = part.strip()
            if not part:
                continue
            match = _RANGE.fullmatch(part)
            low = int(match[1]) if match else 0
            high = int(match[2] or low) if match else -1
            if high < low or high > MAX_ID:
                raise ValueError(f"{part[:40]!r} is not a CPU range")
            named += high - low + 1  # Count before creating the ids: overlapping ranges take time too.
            if named > MAX_SET:
                raise ValueError(f"more than {MAX_SET} ids")
            ids.update(range(low, high + 1))
        return cls(ids)

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """Parse a kernel mask: comma-separated groups of 32 bits in hex, most significant group first."""
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


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key; keys and values in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def parse_cpus(cpus: str | Iterable[int] | None) -> CpuSet:
    """Return a CPU list of a document as a set. The list may be text or a list of ids."""
    if cpus is None:
        return CpuSet()
    return CpuSet.parse(cpus) if isinstance(cpus, str) else CpuSet(cpus)


class FrozenMap(Mapping[K, V]):
    """An immutable mapping. It is hashable if its values are, and equal to any mapping with the same items.

    Keeps the given order. A copy of it is the same object. It can be pickled.
    """

    __slots__ = ("_items",)
    _items: dict[K, V]

    def __init__(self, items: Mapping[K, V]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # The views of a dict cannot change it either, and are much faster than those of Mapping.
    def keys(self) -> KeysView[K]:
        """See Mapping."""
        return self._items.keys()

    def values(self) -> ValuesView[V]:
        """See Mapping."""
        return self._items.values()

    def items(self) -> ItemsView[K, V]:
        """See Mapping."""
        return self._items.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def __copy__(self) -> FrozenMap[K, V]:
        return self

    def __deepcopy__(self, memo: object) -> FrozenMap[K, V]:
        return self

    def __reduce__(self) -> tuple[type[FrozenMap[K, V]], tuple[dict[K, V]]]:
        return type(self), (dict(self._items),)


def freeze(value: Any) -> Any:
    """Return the same plain value with tuples for lists and FrozenMaps for mappings, at every depth."""
    if isinstance(value, Mapping):
        return FrozenMap({name: freeze(part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return tuple([freeze(part) for part in value])
    return value


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of every part of a document: frozen, and created with keyword arguments only."""


class Closed(Value, frozen=True, kw_only=True):
    """Base class of what programs make too: its lists become tuples, and the fields named in `MAPPINGS` are frozen.

    Only the value's own fields are changed. A decoder already makes tuples at every depth, and there are too many parts
    to look at each.
    """

    MAPPINGS: ClassVar[tuple[str, ...]] = ()  # mappings, or of any type

    def __post_init__(self) -> None:
        close_mappings(self, *self.MAPPINGS)
        close_lists(self)


class Part(Closed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of every part of a document that a person writes: a key that is not known is an error, by its name."""


class Document(Closed, frozen=True, kw_only=True):
    """Base class of a whole document."""

    def to_json(self) -> str:
        """Return the document as indented JSON, with every field (null if unknown)."""
        return to_json(self)


def close_mappings(value: Value, *names: str) -> None:
    """Freeze the named fields of a value, which are mappings or of any type. Called from `__post_init__`."""
    for name in names:
        field = getattr(value, name)
        if isinstance(field, Mapping | list | tuple) and not isinstance(field, FrozenMap):
            msgspec.structs.force_setattr(value, name, freeze(field))


def close_lists(value: Value) -> None:
    """Replace the lists in a value's own fields by tuples. Called from `__post_init__`."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, list):
            msgspec.structs.force_setattr(value, name, tuple(field))


_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*(KiB|MiB|GiB|TiB)")
_HUGE = re.compile(r"[0-9]{20,}(?:\.[0-9]+)?\s*(?:KiB|MiB|GiB|TiB)?")  # more digits than any size has
_UNIT = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
MAX_SIZE = (1 << 63) - 1  # bytes, and every other count of a document: the largest number that the kernel can report


def number(text: str, most: int = MAX_SIZE) -> int | None:
    """Parse a decimal number from 0 to `most`; None for any other text."""
    if len(text) > len(str(most)) or not (text.isascii() and text.isdecimal()):
        return None
    value = int(text)
    return value if value <= most else None


def parse_size(size: int | str, *, where: str) -> int:
    """Return the bytes of a SIZE: a whole number of bytes, or a number with KiB, MiB, GiB or TiB. Raises BadInput."""
    parsed = size if isinstance(size, int) and not isinstance(size, bool) else _bytes_of(str(size).strip())
    if (parsed or 0) > MAX_SIZE or (parsed is None and _HUGE.fullmatch(str(size).strip())):
        raise BadInput(f"{size!r} is too large", where=where, hint=f"give at most {MAX_SIZE >> 40}TiB")
    if parsed is None or parsed <= 0:
        hint = "write bytes, or a number with KiB, MiB, GiB or TiB"
        raise BadInput(f"{size!r} is not a size", where=where, hint=size_hint(str(size), hint))
    return parsed


def _bytes_of(text: str) -> int | None:
    """Return the exact number of bytes; None if the text is not a size or not a whole number of bytes."""
    if len(text) < 20 and text.isascii() and text.isdecimal():
        return int(text)
    match = _SIZE.fullmatch(text)
    if not match:
        return None
    fraction = match[2] or ""
    whole, rest = divmod(int(match[1] + fraction) * _UNIT[match[3]], 10 ** len(fraction))
    return None if rest else whole


def format_size(size_bytes: int | None) -> str:
    """Return a size for people, in the largest binary unit that is exact to a tenth.

    Examples: "1.5 TiB", "1033 GiB"; "?" for unknown.
    """
    if size_bytes is None:
        return "?"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole = _UNIT[unit]
        if size_bytes >= whole and (size_bytes * 10 % whole == 0 or size_bytes >= 100 * whole or unit != "TiB"):
            return f"{size_bytes / whole:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} B"


def _encode_other(value: object) -> object:
    if isinstance(value, FrozenMap):
        return dict(value)
    if isinstance(value, CpuSet):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: object) -> str:
    """Encode any document value as indented JSON. Keys are in field order, so equal values give equal bytes.

    Characters that act on a terminal or change the order of the text are written as escapes, which decode to the same
    text.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=_encode_other)
    except UnicodeEncodeError:  # A file name may be any bytes. What is not text is shown as U+FFFD.
        data = msgspec.json.encode(_as_text(to_builtins(value)))
    return json_escaped(msgspec.json.format(data, indent=2).decode() + "\n")


def _as_text(value: Any) -> Any:
    """Return a plain value without lone surrogates in its texts."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, list | tuple) else value


def to_builtins(value: object) -> Any:
    """Return a document value as plain dicts and lists."""
    return msgspec.to_builtins(value, enc_hook=_encode_other)


def from_json(kind: type[T], text: str | bytes, *, schema: str, where: str) -> T:
    """Decode a document of one schema version, in which null and absent mean the same (`without_nulls`).

    Raises BadInput with `where` and the version or the offending field, also for a key that occurs twice in an object.
    """
    check_size(len(text), "document", where)
    head = plain_json(text, where=where, hint=f"give a {schema} document", once=True)
    schema_there = head.get("schema") if isinstance(head, dict) else None
    if schema_there != schema:
        older = isinstance(schema_there, str) and schema_there.partition("/")[0] == schema.partition("/")[0]
        raise BadInput(
            f"not a {schema} document"
            if schema_there is None
            else f"a document of schema {schema_there!r}, not {schema!r}",
            where=where,
            hint="write it again with this version of hosttune" if older else f"give a {schema} document",
        )
    try:
        return msgspec.convert(without_nulls(head, kind), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, path, _ = decoding_fault(error)
        raise BadInput(decoding_problem(problem), where=f"{where}: {path}", hint="correct the field") from error


def without_nulls(document: object, kind: type) -> object:
    """Return the plain document of a type without the nulls that the type does not accept: they mean "left out".

    A null that the type accepts stays (an unknown `numa_node`). A null in a required field or in a list also stays, so
    that the decoder refuses it by name.
    """
    return _prune(document, _type_info(kind))


@cache
def _type_info(kind: type) -> msgspec.inspect.Type:
    """Return the description of a type. It takes 2 ms to make, and a fleet's answers are all of one type."""
    return inspect.type_info(kind)


def _prune(value: object, kind: msgspec.inspect.Type) -> object:
    if not isinstance(value, dict | list):
        return value
    shapes = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    for shape in shapes:
        if isinstance(value, list) and isinstance(shape, msgspec.inspect.VarTupleType):
            return [_prune(part, shape.item_type) for part in value]
        if isinstance(value, dict) and isinstance(shape, msgspec.inspect.DictType):
            takes = _takes_null(shape.value_type)
            return {name: part for name, part in value.items() if part is not None or takes}
        if isinstance(value, dict) and isinstance(shape, msgspec.inspect.StructType):
            kept = dict(value)
            for field in shape.fields:
                part = kept.get(field.name, msgspec.UNSET)
                if part is None and not field.required and not _takes_null(field.type):
                    del kept[field.name]
                elif isinstance(part, dict | list):
                    kept[field.name] = _prune(part, field.type)
            return kept
    return value


def _takes_null(kind: msgspec.inspect.Type) -> bool:
    shapes = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return any(isinstance(shape, msgspec.inspect.AnyType | msgspec.inspect.NoneType) for shape in shapes)


def value_text(value: Any, *, nothing: str) -> str:
    """Return a value as one text, not shortened: text unchanged, parts with their names, and `nothing` for None.

    Empty text is shown as two quotation marks, so that it differs from None.
    """
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value_text(part, nothing=nothing)}" for name, part in value.items()) or "none"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    return str(value) or '""'
