"""Text from any source, made safe for a terminal and for people who read it.

Unsafe are the control characters (U+0000 to U+001F except tab and line end, U+007F to U+009F), the marks that change
the direction of text (U+200E, U+200F, U+061C, U+202A to U+202E, U+2066 to U+2069; Unicode Technical Report 36, 3.1.1),
the line and paragraph separators (U+2028, U+2029), and lone surrogates. Reports show a "?" or an escape in their place
(`printable`, `visible`); JSON uses escapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from hosttune.errors import BadInput

_ABOVE_ASCII = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
UNSAFE = f"[\x00-\x08\x0b-\x1f{_ABOVE_ASCII}]"  # a pattern
_UNSAFE_IN_JSON = f"[{_ABOVE_ASCII}]"  # JSON has its own escapes below U+0020
_SURROGATE = "[\ud800-\udfff]"
_CONTROL = f"[\x00-\x1f{_ABOVE_ASCII}]"


def visible(text: str) -> str:
    """Return the text with an escape ("\\x9b", "\\u202e") for each unsafe character. Tab and line end stay."""
    return re.sub(UNSAFE, _escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def json_escaped(text: str) -> str:
    """Return a JSON text in which unsafe characters are JSON escapes. It decodes to the same value."""
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_UNSAFE_IN_JSON, lambda match: f"\\u{ord(match[0]):04x}", text)


def refuse_unwritable(value: object, where: str) -> None:
    """Raise BadInput, with the path, if a text of a plain value has an unsafe character, a tab or a line end."""
    for path, text in _texts(value, ""):
        if not text.isprintable() and (match := re.search(_CONTROL, text)):
            what = f"{text[:80]!r} holds the control character U+{ord(match[0]):04X}"
            raise BadInput(what, where=f"{where}: {path}", hint="take it out")


def refuse_surrogates(value: object, where: str) -> None:
    """Raise BadInput, with the path, if a text of a plain value has a lone surrogate: no encoding can write it."""
    for path, text in _texts(value, ""):
        if not text.isascii() and (match := re.search(_SURROGATE, text)):
            what = f"{text[:80]!r} cannot be written in UTF-8: it holds half a character, U+{ord(match[0]):04X}"
            raise BadInput(what, where=f"{where}: {path}", hint="correct the text")


def unescaped(name: str) -> str:
    """Return a name from a file of /proc as it is: the kernel writes blanks, tabs and line ends in octal ("\\040")."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), name)


def _texts(value: object, at: str) -> list[tuple[str, str]]:
    """Yield every text in a plain value, keys too, with its path."""
    if isinstance(value, str):
        return [(at, value)]
    if isinstance(value, Mapping):
        parts = [(f"{at}.{key}".lstrip("."), part) for key, part in value.items()]
        keys = [(at or "key", str(key)) for key in value]
        return keys + [text for path, part in parts for text in _texts(part, path)]
    if isinstance(value, list | tuple):
        return [text for n, part in enumerate(value) for text in _texts(part, f"{at}[{n}]")]
    return []


_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
          "object": "a mapping", "null": "nothing"}  # fmt: skip


_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def either(words: Sequence[str]) -> str:
    """Return words as a choice: "a, b or c"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def decoding_fault(error: Exception) -> tuple[str, str, str | None]:
    """Return what msgspec says of a document, the path from its root (`$`), and the key if it is not known."""
    problem, _, path = str(error).partition(" - at ")
    unknown = _UNKNOWN_KEY.fullmatch(problem)
    return problem, path.strip("`") or "$", unknown and unknown[1]


def below_root(path: str) -> str:
    """Return a path of `decoding_fault` without the root: "" for the whole document."""
    return path.removeprefix("$").removeprefix(".")


def decoding_problem(message: str) -> str:
    """Return msgspec's message about a value of the wrong kind in words that need no knowledge of Python's types."""
    match = re.fullmatch(r"Expected `([\w |]+)`, got `(\w+)`", message)
    if match:
        kinds = [_KINDS.get(kind, kind) for kind in match[1].split(" | ") if kind != "null"] or ["nothing"]
        return f"expected {either(kinds)}, found {_KINDS.get(match[2], match[2])}"
    match = re.fullmatch(r"Object missing required field `(\w+)`", message)
    return f"no {match[1]!r}" if match else message.replace("Invalid enum value", "invalid value")


def printable(text: str) -> str:
    """Return text from a document, safe for a terminal: control characters (a capture may have any) become "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)


def duration(seconds: float) -> str:
    """Return a duration as text: "40 s", "12 min", "3 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 switch", "4 switches"."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def number(value: float | None) -> str:
    """Return a figure for people: at least three significant digits, with thousands separators, "unknown" for None."""
    if value is None or not math.isfinite(value):
        return "unknown"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or value == 0 else f"{value:.3g}"
