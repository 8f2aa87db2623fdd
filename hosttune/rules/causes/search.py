"""Patterns in long texts: most match nowhere, which the fixed letters of a match tell ten times as fast."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_ATOM = re.compile(r"(\\.|\[\^?(?:\\.|[^\]\\])*\]|\(\?(?:<?[!=]|:|[a-z]+[:)])|.)([?*+]|\{[0-9,]+\})?[?+]?")
_FEWEST = 4  # letters; fewer are in every text


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Return the first match, as re.search does."""
    return re.search(pattern, text) if _possible(pattern, text) else None


def findall(pattern: str, text: str) -> list[Any]:
    """Return all matches, as re.findall does."""
    return re.findall(pattern, text) if _possible(pattern, text) else []


def _possible(pattern: str, text: str) -> bool:
    letters = letters_of(pattern)
    return not letters or any(letter in text for letter in letters)


@cache
def letters_of(pattern: str) -> tuple[str, ...]:
    """Return of each alternative the longest fixed letters outside of groups; () if one has none."""
    alternatives, depth = [[""]], 0
    for atom, repeated in _ATOM.findall(pattern):
        depth += (atom[0] == "(" and atom[-1] != ")") - (atom == ")")
        plain = atom[1:] if re.match(r"\\\W", atom) else atom if re.match(r"[^.^$|()\[\\]", atom) else ""
        if atom == "|" and not depth:
            alternatives.append([""])
        elif plain and not depth and not repeated:
            alternatives[-1][-1] += plain
        else:
            alternatives[-1].append("")
    longest = [max(runs, key=len) for runs in alternatives]
    return tuple(longest) if all(len(run) >= _FEWEST for run in longest) else ()
