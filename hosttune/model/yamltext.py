"""YAML → plain values (dict, list, text, number, truth value, None), for documents that people write.

Plain words mean what YAML 1.2's core schema says: 0000:41:00.0 is text (YAML 1.1 reads it as a number to base 60), and
so are off, no and yes. Refused are aliases (a few bytes can expand to gigabytes), tags that name other types, and keys
given twice. The values are built from the parser's events. If PyYAML was built with libyaml, libyaml's parser is used:
it is about twenty times as fast as PyYAML's own. JSON is read as JSON: its escapes of characters above U+FFFF
(a surrogate pair) are errors in YAML.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml import events as kinds

from hosttune.errors import BadInput
from hosttune.model.jsontext import MAX_DEPTH, check_version, plain_json, refuse_long
from hosttune.model.limits import check_size, limit
from hosttune.model.text import refuse_surrogates

_PLAIN = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    # Python refuses to convert more digits than 4,300; `refuse_long` then names the place.
    (re.compile(r"[-+]?[0-9]+"), lambda text: int(text) if len(text) < 4000 else 1 << 64),
    (re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"), float),
)
_STANDARD = "tag:yaml.org,2002:"
_TEXT = f"{_STANDARD}str"


class _NotAllowed(Exception):
    """Valid YAML that hosttune's documents do not allow."""


def load_yaml(text: str | bytes, where: str, *, fast: bool = True) -> Any:
    """Return the one document of a YAML text; None for an empty text.

    `fast`: use libyaml if PyYAML was built with it. Raises BadInput, also for a text above its limits.
    """
    size = len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    check_size(size, "intent", where)
    if text.lstrip()[:1] in ("{", b"{"):
        with contextlib.suppress(BadInput):  # YAML also begins so, and its errors name the line
            return plain_json(text, where=where, most_values=limit("values of an intent"), once=True)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if fast else yaml.SafeLoader
    try:
        document = _document(yaml.parse(text, Loader=loader), limit("values of an intent"))
    except (yaml.YAMLError, _NotAllowed, UnicodeError, ValueError) as error:
        why = " ".join(re.sub(r'in "<[a-z ]+>", ', "at ", str(error)).split())
        raise BadInput(f"not a YAML document: {why}", where=where, hint="correct the syntax") from error
    refuse_long(document, where)
    return document


def load_versioned(text: str | bytes, version: int, what: str, where: str) -> dict[str, Any]:
    """Return the mapping of a YAML text that a person wrote, of this version. `what`: what it is, and where to read.

    Raises BadInput.
    """
    document = load_yaml(text, where)
    if not isinstance(document, dict):
        raise BadInput("not a mapping", where=where, hint=f"begin with `version: {version}`")
    check_version(document, version, what, where)
    refuse_surrogates(document, where)
    return document


def _document(events: Iterator[Any], most: int) -> Any:
    reader = _Values(events, most)
    document: Any = None
    documents = 0
    for event in events:
        if isinstance(event, kinds.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _NotAllowed("a second document")
            document = reader.value(next(events), 0)
    return document


class _Values:
    """Builds values from events and counts them."""

    def __init__(self, events: Iterator[Any], most: int) -> None:
        self._events = events
        self._left = most

    def value(self, event: Any, depth: int) -> Any:
        """Return the value that begins with this event."""
        self._left -= 1
        if self._left < 0:
            raise _NotAllowed(f"more than {limit('values of an intent'):,} keys and values")
        if isinstance(event, kinds.AliasEvent) or event.anchor is not None:
            raise _NotAllowed(f"aliases are not accepted in an intent, at line {event.start_mark.line + 1}")
        if isinstance(event, kinds.ScalarEvent):
            return _scalar(event)
        kind = "seq" if isinstance(event, kinds.SequenceStartEvent) else "map"
        if event.tag not in (None, "!", _STANDARD + kind):
            raise _NotAllowed(f"tag {event.tag!r} is not accepted, at line {event.start_mark.line + 1}")
        if depth >= MAX_DEPTH:
            raise _NotAllowed(f"nested deeper than {MAX_DEPTH}, at line {event.start_mark.line + 1}")
        return self._list(depth + 1) if kind == "seq" else self._mapping(depth + 1)

    def _list(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), kinds.SequenceEndEvent):
            items.append(self.value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), kinds.MappingEndEvent):
            key = self.value(event, depth)
            line = event.start_mark.line + 1
            if not isinstance(key, str):
                raise _NotAllowed(f"key {key!r} is not a text, at line {line}")
            if key in mapping:
                raise _NotAllowed(f"key {key!r} is there twice, at line {line}")
            mapping[key] = self.value(next(self._events), depth)
        return mapping


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag in ("!", _TEXT) or (event.tag is None and not event.implicit[0]):
        return text
    if event.tag is not None:
        raise _NotAllowed(f"tag {event.tag!r} is not accepted, at line {event.start_mark.line + 1}")
    for pattern, make in _PLAIN:
        if pattern.fullmatch(text):
            return make(text)
    return text
