"""Matrices of figures between devices, as several makers' tools print them below a title."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hosttune.errors import BadInput
from hosttune.model.measured import Figure

_MOST = 64  # devices of a host, CPUs among them
_TOUCHING = re.compile(r"(\.\d\d)(?=\d{1,6}\.\d\d\b)")  # cells of a fixed width that large figures fill
Cells = dict[tuple[int, int], float | None]


def matrices(text: str, title: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Cells]]:
    """Yield each title and the cells below it by (row, column), None for N/A.

    A matrix with a row cut short is left out; raises BadInput if that was the only one.
    """
    match: re.Match[str] | None = None
    whole = 0
    cut: BadInput | None = None
    columns: list[int] = []
    cells = Cells()
    for line in text.split("\n"):
        words = _TOUCHING.sub(r"\1 ", line).split()
        if not words:
            continue
        if match and cells and not _is_row(words):
            whole += 1
            yield match, cells
            match = None
        if found := title.match(line):
            match, columns, cells = found, [], Cells()
        elif match and not columns:
            columns = [int(word) for word in words[1:] if word.isdecimal() and len(word) < 5]
            if len(columns) > _MOST:
                raise BadInput(f"a matrix of {len(columns)} devices", where=match[0].strip(), hint="give one of a host")
        elif match and _is_row(words):
            if len(words) != len(columns) + 1:
                what = f"a row has {len(words) - 1} cells of {len(columns)}"
                cut, match = BadInput(what, where=match[0].strip(), hint="save its whole output"), None
                continue
            row = zip(columns, words[1:], strict=True)
            cells |= {(int(words[0]), column): None if word == "N/A" else float(word) for column, word in row}
    if match and cells:
        yield match, cells
    elif cut and not whole:
        raise cut


def _is_row(words: list[str]) -> bool:
    number = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?|N/A")
    return words[0].isdecimal() and len(words[0]) < 5 and all(map(number.fullmatch, words[1:]))


def between(cells: Cells, names: dict[int, str], both: bool) -> Iterator[Figure]:
    """Yield the copies between different devices; `both`: the sum of both directions."""
    for (here, there), value in cells.items():
        if value is not None and here != there and here in names and there in names:
            subject = f"{names[here]}->{names[there]}" + (", both directions" if both else "")
            yield Figure(metric="p2p", subject=subject, value=value, unit="GB/s")


def within(cells: Cells, names: dict[int, str]) -> Iterator[Figure]:
    """Yield the copies within a device: both tools count what is read and what is written."""
    for (here, there), value in cells.items():
        if value is not None and here == there and here in names:
            yield Figure(metric="device-copy", subject=names[here], value=value, unit="GB/s")


def named_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs of GPUs in words, both directions as one: "gpu0-gpu2, gpu1-gpu2"."""
    return ", ".join(dict.fromkeys("-".join(sorted(pair)) for pair in pairs))
