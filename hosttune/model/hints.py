"""Hints for input that is almost right: the most similar known names, and sizes whose unit is missing or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hosttune.model.text import either

_LONGEST = 80  # characters of a word that are compared: no name of a command, key, device or guest is longer
_UNITS = r"(?i)\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([kmgt])(?:i?b|bytes?)?\s*"
_GIB_UP_TO = 8192  # a number above it without a unit is more likely MiB, in which other tools count memory


def did_you_mean(word: str, names: Iterable[str], hint: str, *, alike: float = 0.6) -> str:
    """Return the hint, preceded by the names that are most similar to the word: "did you mean plan? give one of ...".

    `alike`: the least similarity, from 0 to 1 (difflib's ratio, whose own default is 0.6).
    """
    from difflib import get_close_matches  # here: only what is wrong needs it

    known = {name.casefold(): name for name in names}
    near = [known[close_match] for close_match in get_close_matches(word.casefold()[:_LONGEST], known, cutoff=alike)]
    return f"did you mean {either(near)}? {hint}" if near else hint


def did_you_mean_address(address: str, known: Iterable[str], hint: str) -> str:
    """Return the hint, preceded by the PCI addresses that differ in one digit, or in two that are exchanged."""
    return did_you_mean(address, known, hint, alike=0.9)  # one digit of twelve characters: 11/12


def size_hint(text: str, hint: str) -> str:
    """Return the hint for a text that is not a size, preceded by the size with the unit that was probably meant."""
    match = re.fullmatch(_UNITS, text)
    unit = "" if match is None else {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}[match[2].lower()]
    meant = "" if match is None else f"{match[1]}{unit}"
    return hint if not meant or meant == text.replace(" ", "") else f"did you mean {meant}? {hint}"


def too_few_bytes_hint(size: int | str) -> str:
    """Return the hint for a size of memory below 1 MiB. Usually its unit was forgotten."""
    text = str(size).strip()
    if not text.isdecimal():
        return "give 1MiB or more"
    unit = "GiB" if int(text) <= _GIB_UP_TO else "MiB"
    return f"did you mean {text}{unit}? a number without a unit is bytes"
