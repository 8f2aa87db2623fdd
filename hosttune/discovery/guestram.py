"""Which mappings of a QEMU process are the RAM of which guest cell, and on which nodes their pages are. Pure.

`/proc/PID/maps` has the addresses, `numa_maps` the pages by node (proc(5)). The memory of a cell is one RAM block of
QEMU, mapped as a whole behind a guard page (util/mmap-alloc.c, qemu_ram_mmap). The file behind it has the block's name:
"ram-node1" for cell 1, "pc.ram" without cells (libvirt, qemuBuildMemoryCellBackendStr; QEMU names a file in a folder
"qemu_back_mem.NAME.XXXXXX"). Memory without a name (anonymous, memfd) is told by its size alone: that of the cell, if
no other cell and no other mapping has the same. What is not certain is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from hosttune.discovery.maps import unread_line
from hosttune.model.guestmemory import Pages
from hosttune.model.values import FrozenMap, format_size

_LINE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) (\S{4}) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+ [0-9]+)(?: +(.*))?")
_NODE = re.compile(r"N([0-9]{1,4})=([0-9]{1,15})")
_SIZE = re.compile(r"kernelpagesize_kB=([1-9][0-9]{0,8})")
_OF_CELL = re.compile(r"ram-node([0-9]{1,4})(?![0-9])")
_WHOLE = re.compile(r"(?<![A-Za-z0-9])pc\.ram(?![A-Za-z0-9])")
# Memory whose name does not say which cell it is of: anonymous, memfd, shared anonymous, anonymous huge pages.
_NAMELESS = ("/memfd:memory-backend-memfd", "/dev/zero", "/anon_hugepage", "[anon:")
_ORDINARY = 4096


class Region(NamedTuple):
    """Addresses that follow each other, of one file or of none, and their pages in memory."""

    start: int
    end: int
    name: str
    of: str  # device and inode, and the rights
    page_bytes: int | None
    on: Mapping[int, int]


class CellRam(NamedTuple):
    """The memory of a cell: the addresses of its mappings, and its pages by node."""

    ranges: tuple[tuple[int, int], ...]
    pages: Pages


def ram_by_cell(maps: str, numa_maps: str, cells: Mapping[int, int]) -> dict[int, CellRam]:
    """Return the memory by cell. `cells`: the size of each in bytes; {0: size} for a guest without cells.

    Raises ValueError with the reason if it is not certain which memory is of which cell, or where it is.
    """
    mappings = _read(maps, numa_maps)
    found = {cell: _named(mappings, cell, alone=len(cells) == 1) for cell in cells}
    every = (*mappings, *_joined(mappings))
    runs = [one for one in every if not one.name or one.name.startswith(_NAMELESS)]
    for cell, size in cells.items():
        if not found[cell]:
            found[cell] = [_of_size(runs, cell, size, cells)]
    return {cell: _ram(cell, found[cell], size) for cell, size in cells.items()}


def _read(maps: str, numa_maps: str) -> list[Region]:
    bad = unread_line(numa_maps)
    if bad is not None or not numa_maps:
        raise ValueError(f"numa_maps cannot be read: {(bad or 'it is empty')[:60]!r}")
    places = {int(words[0], 16): words[2:] for line in numa_maps.splitlines() if (words := line.split())}
    found = []
    for line in maps.splitlines():
        part = _LINE.fullmatch(line.rstrip())
        if part is None:
            raise ValueError(f"not a line of maps: {line[:60]!r}")
        start, end = int(part[1], 16), int(part[2], 16)
        if not part[3].startswith("rw-"):
            continue
        if start not in places:
            raise ValueError("its mappings changed while they were read: try again")
        on = {int(one[1]): int(one[2]) for word in places[start] if (one := _NODE.fullmatch(word))}
        sizes = [int(one[1]) << 10 for word in places[start] if (one := _SIZE.fullmatch(word))]
        size = sizes[0] if sizes else None
        found.append(Region(start, end, part[5] or "", f"{part[4]} {part[3]}", size, FrozenMap(on)))
    return found


def _joined(mappings: Sequence[Region]) -> list[Region]:
    """Return what becomes of mappings that touch each other and are of the same file: madvise can have cut one up."""
    runs: list[list[Region]] = [[one] for one in mappings[:1]]
    for before, one in pairwise(mappings):
        if (before.end, before.name, before.of) == (one.start, one.name, one.of):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [_one(run) for run in runs if len(run) > 1]


def _one(run: Sequence[Region]) -> Region:
    return run[0]._replace(end=run[-1].end, page_bytes=_page_bytes(run), on=FrozenMap(_sum(run)))


def _named(mappings: Iterable[Region], cell: int, *, alone: bool) -> list[Region]:
    def is_of(name: str) -> bool:
        named = _OF_CELL.search(name)
        return int(named[1]) == cell if named else alone and _WHOLE.search(name) is not None

    return [one for one in mappings if is_of(one.name)]


def _of_size(runs: Iterable[Region], cell: int, size: int, cells: Mapping[int, int]) -> Region:
    fitting = {one.start: one for one in runs if one.end - one.start == size}
    alike = [other for other, theirs in cells.items() if theirs == size]
    if not fitting:
        raise ValueError(f"no mapping has the size of cell {cell}, {format_size(size)}")
    if len(fitting) > 1 or len(alike) > 1:
        what = (
            f"{len(fitting)} mappings have {format_size(size)}, the size of cell {cell}, and no name says which it is"
        )
        raise ValueError(what)
    return next(iter(fitting.values()))


def _ram(cell: int, mappings: Sequence[Region], size: int) -> CellRam:
    total = sum(one.end - one.start for one in mappings)
    if total != size:
        raise ValueError(f"the mappings of cell {cell} have {format_size(total)}, and it has {format_size(size)}")
    ranges = tuple((one.start, one.end) for one in mappings)
    return CellRam(ranges, Pages(page_bytes=_page_bytes(mappings) or _ORDINARY, on=FrozenMap(_sum(mappings))))


def _page_bytes(mappings: Iterable[Region]) -> int | None:
    """Return the size of their pages; None if none is in memory. Raises ValueError if they differ."""
    sizes = {one.page_bytes for one in mappings if one.on}
    if len(sizes) > 1 or (sizes and None in sizes):
        raise ValueError("the pages of one cell have several sizes, or unknown ones")
    return sizes.pop() if sizes else None


def _sum(mappings: Iterable[Region]) -> dict[int, int]:
    on: dict[int, int] = {}
    for one in mappings:
        for node, count in one.on.items():
            on[node] = on.get(node, 0) + count
    return on
