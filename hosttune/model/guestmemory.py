"""The memory of a running guest by cell as one line of text, and what has to move between nodes. Pure.

Wanted: "cell.0=1 cell.1=0 process=1000.4711", the node of each cell, and the process of which it is: its id and when it
started, in clock ticks. Read: "cell.0=4KiB@0:12,1:16384 process=1000.4711", the size of the cell's pages and how many
of them are on each node ("4KiB@none": none is in memory). A guest without cells has all its memory in cell 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hosttune.model.values import FrozenMap, Value

_CELL, _PROCESS, _NONE = "cell.", "process=", "none"
_WORD = re.compile(r"cell\.(0|[1-9][0-9]{0,3})=(?:(?P<node>0|[1-9][0-9]{0,3})|(?P<kib>[1-9][0-9]{0,8})KiB@(?P<on>.+))")
_ON = re.compile(r"(0|[1-9][0-9]{0,3}):([1-9][0-9]{0,14})")
_IDENTITY = re.compile(r"[1-9][0-9]{0,6}\.[0-9]{1,19}")
_STEP = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([0-9]{1,4})->([0-9]{1,4}) ([0-9]{1,15})")
_COUNT = re.compile(r"N([0-9]{1,4})=([0-9]{1,15})")


class Pages(Value, frozen=True, kw_only=True):
    """The pages of one cell that are in memory: their size and their number by node."""

    page_bytes: int
    on: Mapping[int, int]

    def __str__(self) -> str:
        counts = ",".join(f"{node}:{self.on[node]}" for node in sorted(self.on))
        return f"{self.page_bytes >> 10}KiB@{counts or _NONE}"


class MemoryPlaces(Value, frozen=True, kw_only=True):
    """A text as values: `nodes` (wanted) or `pages` (read) by cell, and the process ("PID.START"). See the module."""

    process: str
    nodes: Mapping[int, int] = FrozenMap({})
    pages: Mapping[int, Pages] = FrozenMap({})

    def __str__(self) -> str:
        cells: Mapping[int, int | Pages] = {**self.nodes, **self.pages}
        return " ".join([*(f"{_CELL}{cell}={cells[cell]}" for cell in sorted(cells)), f"{_PROCESS}{self.process}"])


class RunningMemory(Value, frozen=True, kw_only=True):
    """The memory of a running guest. `places`: a text as above; None: it is not known where it is.

    `stays`: why it cannot move while the guest runs. `allowed`: the nodes that the kernel allows the process.
    """

    places: str | None = None
    stays: str | None = None
    allowed: str = ""


class Transfer(NamedTuple):
    """So many pages of a cell are to leave a node for another one."""

    cell: int
    source: int
    target: int
    pages: int


class Step(NamedTuple):
    """At most `pages` pages at these addresses go from one node to another: one call, whose text it is."""

    start: int
    end: int
    source: int
    target: int
    pages: int

    def __str__(self) -> str:
        return f"{self.start:x}-{self.end:x} {self.source}->{self.target} {self.pages}"


def read_memory(text: str) -> MemoryPlaces:
    """Return the parts of a text. Raises ValueError for one that is not as this module writes it."""
    words = text.split(" ")
    process = words.pop().removeprefix(_PROCESS) if words[-1].startswith(_PROCESS) else ""
    nodes: dict[int, int] = {}
    pages: dict[int, Pages] = {}
    for word in words:
        found = _WORD.fullmatch(word)
        if found is None:
            raise ValueError(f"{word[:40]!r} is not a cell and where its memory is")
        if found["node"] is not None:
            nodes[int(found[1])] = int(found["node"])
        else:
            pages[int(found[1])] = Pages(page_bytes=int(found["kib"]) << 10, on=_counts(found["on"]))
    read = MemoryPlaces(process=process, nodes=FrozenMap(nodes), pages=FrozenMap(pages))
    if bool(nodes) == bool(pages) or not _IDENTITY.fullmatch(process) or str(read) != text:
        raise ValueError("the words are not in their order and form")
    return read


def _counts(text: str) -> Mapping[int, int]:
    if text == _NONE:
        return FrozenMap({})
    parts = [_ON.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text[:40]!r} is not the number of pages by node")
    return FrozenMap({int(part[1]): int(part[2]) for part in parts if part})


def transfers(now: MemoryPlaces, want: MemoryPlaces) -> tuple[Transfer, ...]:
    """Return what has to move. `want` may be a wanted text, or one that was read: then each node gets as many again.

    Pages that came into memory since, or left it, need not move: only where one node has more than wanted and another
    one less. A cell that only one of the two has is left out.
    """
    found: list[Transfer] = []
    for cell in sorted(now.pages):
        on = now.pages[cell].on
        if cell in want.nodes:
            target = want.nodes[cell]
            found += [Transfer(cell, node, target, on[node]) for node in sorted(on) if node != target]
        elif cell in want.pages:
            found += _back(cell, on, want.pages[cell].on)
    return tuple(found)


def _back(cell: int, on: Mapping[int, int], wanted: Mapping[int, int]) -> Iterator[Transfer]:
    """Yield what brings each node to its number, as far as there are pages to spare elsewhere."""
    lack = {node: count - on.get(node, 0) for node, count in sorted(wanted.items()) if count > on.get(node, 0)}
    for source in sorted(on):
        spare = on[source] - wanted.get(source, 0)
        for target in lack:
            count = min(spare, lack[target])
            if count > 0:
                yield Transfer(cell, source, target, count)
                spare -= count
                lack[target] -= count


def read_step(text: str) -> Step:
    """Return the step of a call's text. Raises ValueError."""
    found = _STEP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:60]!r} is not a step")
    return Step(int(found[1], 16), int(found[2], 16), *map(int, found.groups()[2:]))


def after_step(numa_maps: str, step: Step) -> str:
    """Return a process' numa_maps after a step of which every page moved, as the kernel would show it."""
    lines = numa_maps.splitlines()
    starts = [int(line.split()[0], 16) for line in lines]
    number = max(n for n, start in enumerate(starts) if start <= step.start)
    words = lines[number].split()
    on = {int(found[1]): int(found[2]) for word in words if (found := _COUNT.fullmatch(word))}
    moved = min(step.pages, on.get(step.source, 0))
    on[step.source] = on.get(step.source, 0) - moved
    on[step.target] = on.get(step.target, 0) + moved
    counts = [f"N{node}={on[node]}" for node in sorted(on) if on[node]]
    others = [word for word in words if not _COUNT.fullmatch(word)]
    size = [others.pop()] if others[-1].startswith("kernelpagesize_kB=") else []
    lines[number] = " ".join([*others, *counts, *size])
    return "\n".join(lines) + "\n"
