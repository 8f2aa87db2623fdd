"""Tables of rates between hosts as people write them: a row for each pair, or a square with a row for each host."""

from __future__ import annotations

import re

from hosttune.bench.parse.answer import NotUnderstood
from hosttune.model.measured import Figure, Measured

_NAME = r"(?:[A-Za-z][\w.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3})"
_UNIT = r"[KMG]i?(?:[Bb]/s|[bB]ps|bits?/s(?:ec)?|B/sec)"
_ROW = (
    rf"[ \t|*>-]{{0,8}}({_NAME})[ \t]*(?:<?[-=]{{1,2}}>|[→↔|,:/]|[ \t](?:to|and|vs\.?|--?)[ \t]|[ \t])[ \t|]*({_NAME})"
    rf"[ \t|:=,]+(\d{{1,6}}(?:\.\d{{1,4}})?)[ \t]*({_UNIT})?[ \t|]*(?:#[^\n]{{0,80}})?"
)
_SQUARE = (
    rf"[ \t|]{{0,40}}(?:[^\s|]{{1,20}}[ \t|]+)?{_NAME}(?:[ \t|]+{_NAME}){{2,64}}[ \t|]*\n(?:[-:|+ \t]+\n)?"
    rf"(?:[ \t|]*{_NAME}(?:[ \t|]+(?:[\d.]+|[-xX])){{3,65}}[ \t|]*\n?){{3,64}}"
)
# Deeper lines are sections of a report, such as "Active Sessions : 0" of nvidia-smi -q.
PAIRS = rf"(?m)(?:^(?![ \t]{{6}}){_ROW}(?:\n|\Z)){{3}}|^{_SQUARE}"


def pairs(text: str) -> Measured:
    """Return a figure for each pair; they are compared with each other. Raises NotUnderstood."""
    rows = [(one, other, cell, unit) for one, other, cell, unit in re.findall(rf"(?m)^{_ROW}$", text)]
    for square in re.finditer(rf"(?m)^{_SQUARE}", text):
        head, *body = [re.findall(r"[^\s|]+", line) for line in square[0].splitlines() if re.search(r"\w", line)]
        if any(len(line) > len(head) + 1 for line in body):
            raise NotUnderstood("a table of pairs", "its rows are longer than its heading: it was cut")
        for line in body:
            rows += [(line[0], to, cell, "") for to, cell in zip(head[1 - len(line) :], line[1:], strict=True)]
    rows = [row for row in rows if row[0] != row[1] and re.fullmatch(r"[\d.]+", row[2])]
    names = {name for row in rows for name in row[:2]}
    alike = {re.sub(r"\d+|(?<=[-_.])[a-z]$", "", name) for name in names}  # node01, gpu-a, 192.0.2.1
    unit = next(iter(re.findall(_UNIT, text)), "")
    if len(rows) != len({row[:2] for row in rows}) or len(names) == 2 * len(rows) or len(alike) != 1:
        raise NotUnderstood("a table of pairs", "its names are not those of hosts, each in several pairs")
    if not unit:
        raise NotUnderstood("a table of pairs", "its unit is not said (GB/s, Gb/s …)")
    metric = "all-reduce-busbw" if re.search(r"(?i)busbw|all.?reduce|nccl", text) else "rdma-write"
    figures = tuple(
        Figure(metric=metric, subject=f"host {one} to host {other}", value=float(cell), unit=own or unit)
        for one, other, cell, own in rows
    )
    return Measured(version=1, figures=figures)
