"""Patterns in long texts: most match nowhere, which the fixed letters of a match tell ten times as fast."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache
from typing import Any

_ATOM = re.compile(r"(\\.|\[\^?(?:\\.|[^\]\\])*\]|\(\?(?:<?[!=]|:|[a-z]+[:)])|.)([?*+]|\{[0-9,]+\})?[?+]?")
_FEWEST = 4  # letters; fewer are in every text
_LONG, _ALIKE = 1 << 20, 50  # characters of a text; lines of one form


@lru_cache(maxsize=1)
def distinct(text: str) -> str:
    """Return a long text without the lines before which there are many that differ from them in numbers only."""
    if len(text) < _LONG:
        return text
    forms: Counter[int] = Counter()
    kept = []
    for line in text.split("\n"):
        form = hash(re.sub(r"[\dabcdefx]+", "", line))
        forms[form] += 1
        if forms[form] <= _ALIKE:
            kept.append(line)
    return "\n".join(kept)


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
    """Return letters of which a match has one at least: of each alternative the longest run, or those of a group.

    () if an alternative has none.
    """
    letters: list[str] = []
    for runs, groups in _alternatives(pattern):
        inner = next(filter(None, map(letters_of, groups)), ())
        longest = max(runs, key=len)
        if len(longest) < _FEWEST and not inner:
            return ()
        letters += [longest] if len(longest) >= _FEWEST else inner
    return tuple(dict.fromkeys(letters))


def _alternatives(pattern: str) -> list[tuple[list[str], list[str]]]:
    """Return of each alternative its runs of fixed letters, and the groups that are in every match of it."""
    alternatives: list[tuple[list[str], list[str]]] = [([""], [])]
    depth = start = 0
    for match in _ATOM.finditer(pattern):
        atom, repeated = match[1], match[2]
        runs, groups = alternatives[-1]
        depth -= atom == ")"
        if atom == ")" and not depth and not repeated and start:
            groups.append(pattern[start : match.start()])
        if atom[0] == "(" and atom[-1] != ")":
            start = match.end() if not depth and atom in ("(", "(?:") else 0 if not depth else start
            depth += 1
        plain = atom[1:] if re.match(r"\\\W", atom) else atom if re.match(r"[^.^$|()\[\\]", atom) else ""
        if atom == "|" and not depth:
            alternatives.append(([""], []))
        elif plain and not depth and not repeated:
            runs[-1] += plain
        else:
            runs.append("")
    return alternatives
