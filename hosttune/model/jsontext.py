"""The plain value of a JSON or TOML text from an untrusted source, in bounded time and memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from hosttune.errors import BadInput
from hosttune.model.limits import limit
from hosttune.model.text import visible

_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?'  # a string in a JSON document; a key if a colon follows
_SURROGATES = rb"(?<!\\)\\u[dD](?:[89abAB]..\\u[dD][c-fC-F]|([89a-fA-F]))"  # a pair; group 1: a lone one
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")  # UTF-8, UTF-16
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_LONG = b"0" * 19  # digits of a number that may have more than 64 bits
MAX_DEPTH = 64  # of objects and lists in each other; hosttune's documents reach about 12
T = TypeVar("T")


def plain_json(
    text: str | bytes,
    *,
    where: str,
    hint: str = "correct the syntax",
    most_values: int | None = None,
    once: bool = False,
    bits: int = 64,
) -> Any:
    """Return the plain value of a JSON text.

    The values are counted before they are created, because a text of 16 MiB can hold five million of them. Counted are
    the characters that come before values (comma, opening brackets and braces), including those inside strings. A lone
    surrogate is not valid Unicode, whether written as itself or as an escape.

    `once`: refuse a key that occurs twice in an object. Raises BadInput if the text is not JSON, is not valid Unicode,
    has too many values or a whole number of more than `bits`, or is nested deeper than MAX_DEPTH.
    """
    most = limit("values of a document") if most_values is None else most_values
    try:
        data = text.encode() if isinstance(text, str) else text
        if sum(map(data.count, (b",", b"[", b"{"))) > most:
            raise BadInput(f"more than {most:,} values", where=where, hint="no such document has this many")
        document = msgspec.json.decode(data)
    except UnicodeError as error:
        raise BadInput(f"not valid Unicode: {error}", where=where, hint="write it in UTF-8") from error
    except RecursionError as error:
        raise BadInput(f"nested deeper than {MAX_DEPTH}", where=where, hint=hint) from error
    except msgspec.DecodeError as error:
        if data.startswith(_BYTE_ORDER_MARKS):
            what = "begins with a byte order mark"
            raise BadInput(what, where=where, hint="save it in UTF-8 without a byte order mark") from error
        lone = any(match[1] for match in re.finditer(_SURROGATES, data))
        why = "half of a surrogate pair (\\ud800 to \\udfff)" if lone else str(error)
        raise BadInput(f"not a JSON document: {why}", where=where, hint=hint) from error
    keys = _count_keys(document, where, hint)
    if once and keys != sum(1 for match in re.finditer(_TEXT, data.decode()) if match[1]):
        raise BadInput(f"key {_key_twice(data)} is there twice in an object", where=where, hint=hint)
    if _LONG in data.translate(_DIGITS):
        refuse_long(document, where, bits)
    return document


def typed_json(data: str | bytes, kind: type[T], *, where: str = "answer") -> T:
    """Return a JSON text as a value of a type; parts that the type lacks are skipped. Raises BadInput.

    Ten times as fast as `plain_json`, and values are not counted: for what hosttune has written, by lines or hosts.
    """
    try:
        document = msgspec.json.decode(data, type=kind)
        plain = data.encode() if isinstance(data, str) else data
        if _LONG in plain.translate(_DIGITS):
            refuse_long(msgspec.json.decode(plain), where)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadInput(str(error), where=where, hint="write it again with this version of hosttune") from error
    return document


def plain_toml(text: str | bytes, *, where: str, hint: str) -> dict[str, Any]:
    """Return the plain value of a TOML text. Raises BadInput, also for a whole number of more than 64 bits."""
    import tomllib

    try:
        document = tomllib.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not valid TOML: {error}", where=where, hint=hint) from error
    refuse_long(document, where)
    return document


def refuse_long(document: Any, where: str, bits: int = 64) -> None:
    """Raise BadInput for a whole number of more bits, with its path: no document means one, and sums with it fail."""
    left = [("$", document)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{key}", part) for key, part in value.items()]
        elif isinstance(value, list):
            left += [(f"{path}[{n}]", part) for n, part in enumerate(value)]
        elif isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits:
            at = f"{where}: {visible(path)}"
            raise BadInput(f"a whole number of more than {bits} bits", where=at, hint="check its digits and its unit")


def _key_twice(data: bytes) -> str:
    """Return the first key that occurs twice in an object of a JSON text, quoted."""
    import json  # here: only what is wrong needs it

    keys: list[str] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        counted = Counter(name for name, _ in pairs)
        keys.extend(name for name, times in counted.items() if times > 1)

    json.loads(data, object_pairs_hook=keep, parse_int=str, parse_float=str)
    return visible(repr(keys[0][:60])) if keys else "of one name"


def recorded_json(text: str, *, where: str) -> Any:
    """Return the plain value of a recorded answer in a capture.

    Raises BadInput as `plain_json` does, and for a key that occurs twice in an object: no tool writes that, and it is
    unknown which of the two values is true.
    """
    return plain_json(text, where=where, hint="record it again", once=True, bits=128)  # NVMe counts in 128 bits


def _count_keys(document: Any, where: str, hint: str) -> int:
    """Return how many keys the objects of a decoded text have. The decoder keeps one of two equal keys.

    Raises BadInput for a text that is nested too deep: the functions that walk through values are recursive.
    """
    kept, layer = 0, [document]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in layer:
            kept += len(value) if isinstance(value, dict) else 0
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            below += [part for part in parts if isinstance(part, dict | list)]
        if not below:
            return kept
        layer = below
    raise BadInput(f"nested deeper than {MAX_DEPTH}", where=where, hint=hint)


def check_version(document: Mapping[Any, Any], wanted: int, what: str, where: str) -> None:
    """Raise BadInput unless the document has this `version`. One that hosttune wrote for something else is named.

    `what`: the document that is wanted, with its article.
    """
    version, schema = document.get("version"), document.get("schema")
    if isinstance(schema, str) and schema.startswith("hosttune."):
        raise BadInput(f"a document {visible(schema[:60])}, not {what}", where=where, hint=f"give {what}")
    if version != wanted or isinstance(version, bool):
        told = "no version" if version is None else f"version {visible(repr(version)[:60])} is not known"
        raise BadInput(told, where=f"{where}: version", hint=f"write `version: {wanted}`")
