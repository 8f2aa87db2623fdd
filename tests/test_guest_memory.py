"""The memory of a guest: its text, what has to move, and which mappings of QEMU it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.discovery.guestram import ram_by_cell
from hosttune.model.guestmemory import (
    MemoryPlaces,
    Pages,
    Step,
    after_step,
    read_memory,
    read_step,
    transfers,
)
from hosttune.model.values import FrozenMap

CASES = Path(__file__).parent / "cases" / "guestram"
MIB, GIB = 1 << 20, 1 << 30
PROCESS = "1000.4711"

COUNTS = st.dictionaries(st.integers(0, 3), st.integers(1, 9)).map(FrozenMap)


def placed(cells: Mapping[int, Mapping[int, int]], page_bytes: int = 4096) -> MemoryPlaces:
    pages = {cell: Pages(page_bytes=page_bytes, on=FrozenMap(on)) for cell, on in cells.items()}
    return MemoryPlaces(process=PROCESS, pages=FrozenMap(pages))


# --- text --------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 200), COUNTS, min_size=1), st.sampled_from([4096, 2 << 20, 1 << 30]))
def test_the_text_reads_back(cells: dict[int, Mapping[int, int]], page_bytes: int) -> None:
    now = placed(cells, page_bytes)
    assert read_memory(str(now)) == now
    want = MemoryPlaces(process=PROCESS, nodes=FrozenMap(dict.fromkeys(cells, 1)))
    assert read_memory(str(want)) == want


def test_the_form() -> None:
    assert str(placed({1: {1: 16384, 0: 12}, 0: {}})) == "cell.0=4KiB@none cell.1=4KiB@0:12,1:16384 process=1000.4711"
    step = Step(0x7F00, 0x9F00, 0, 1, 2)
    assert (str(step), read_step(str(step))) == ("7f00-9f00 0->1 2", step)


@pytest.mark.parametrize(
    "text",
    [
        "", "cell.0=1", "cell.0=1 process=1000.?", "cell.0= process=1.2", "cell.00=1 process=1.2",
        "cell.0=01 process=1.2",
        "cell.1=0 cell.0=0 process=1.2", "cell.0=1 cell.0=1 process=1.2", "cell.0=1 cell.1=4KiB@0:1 process=1.2",
        "cell.0=4KiB@ process=1.2", "cell.0=4KiB@1:1,0:1 process=1.2", "cell.0=4KiB@0:0 process=1.2", "process=1.2",
        "cell.0=1 process=1.2 process=1.2", "cell.0=1\nprocess=1.2", "cell.0=all process=1.2",
        "cell.0=4KiB@none,0:1 process=1.2",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a cell|not in their order|not the number of pages"):
        read_memory(text)


# --- what has to move --------------------------------------------------------------------------------------------


def moved(now: MemoryPlaces, want: MemoryPlaces) -> MemoryPlaces:
    """After all transfers."""
    cells = {cell: dict(pages.on) for cell, pages in now.pages.items()}
    for one in transfers(now, want):
        cells[one.cell][one.source] -= one.pages
        cells[one.cell][one.target] = cells[one.cell].get(one.target, 0) + one.pages
    return placed({cell: {node: count for node, count in on.items() if count} for cell, on in cells.items()})


@given(COUNTS, COUNTS, st.integers(0, 3))
def test_pages_go_to_their_node_and_as_many_go_back(
    first: FrozenMap[int, int], came: FrozenMap[int, int], node: int
) -> None:
    before = placed({0: first})
    there = moved(before, MemoryPlaces(process=PROCESS, nodes=FrozenMap({0: node})))
    assert there.pages[0].on == ({node: sum(first.values())} if first else {})
    assert moved(there, before) == before
    grown = {n: there.pages[0].on.get(n, 0) + came.get(n, 0) for n in {*there.pages[0].on, *came}}
    back = moved(placed({0: grown}), before)
    assert all(back.pages[0].on[n] >= count for n, count in first.items())
    assert transfers(back, before) == ()


def test_pages_that_came_or_went_need_not_move() -> None:
    before = placed({0: {0: 10}})
    assert transfers(placed({0: {0: 7}}), before) == ()
    assert transfers(placed({0: {0: 10, 1: 3}}), before) == ()
    assert [tuple(one) for one in transfers(placed({0: {0: 8, 1: 3}}), before)] == [(0, 1, 0, 2)]
    assert transfers(placed({1: {1: 3}}), before) == ()


def test_a_step_changes_the_counts_of_its_mapping() -> None:
    text = "7f00 default anon=9 dirty=9 N0=4 N1=5 kernelpagesize_kB=4\n9f00 bind:0 huge N1=1 kernelpagesize_kB=2048\n"
    after = after_step(text, Step(0x8000, 0x9000, 1, 0, 9))
    assert after.splitlines()[0] == "7f00 default anon=9 dirty=9 N0=9 kernelpagesize_kB=4"
    assert after_step(after, Step(0x8000, 0x9000, 0, 1, 5)) == text


# --- which mapping is which cell ---------------------------------------------------------------------------------


def ram(
    name: str, cells: Mapping[int, int], *, maps: str | None = None, numa_maps: str | None = None
) -> dict[int, str]:
    """The pages of each cell of a recorded process, and the MiB of its mappings."""
    text = (CASES / f"{name}.maps").read_text() if maps is None else maps
    numa = (CASES / f"{name}.numa_maps").read_text() if numa_maps is None else numa_maps
    found = ram_by_cell(text, numa, cells)
    return {cell: f"{one.pages} {sum(end - start for start, end in one.ranges) >> 20}" for cell, one in found.items()}


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        ("ram", {0: 96 * MIB}, {0: "4KiB@0:24576 96"}),
        ("memfd", {0: 96 * MIB}, {0: "4KiB@0:24576 96"}),
        ("two", {0: 64 * MIB, 1: 128 * MIB}, {0: "4KiB@0:16384 64", 1: "4KiB@none 128"}),
        ("file", {0: 64 * MIB, 1: 128 * MIB}, {0: "4KiB@0:16384 64", 1: "4KiB@none 128"}),
        ("gmem", {0: 40 * GIB}, {0: "4KiB@2:582,3:1405 40960"}),
        ("gigantic", {0: GIB, 1: GIB}, {0: "1048576KiB@0:1 1024", 1: "1048576KiB@1:1 1024"}),
        ("gigantic-moved", {0: GIB, 1: GIB}, {0: "1048576KiB@0:1 1024", 1: "1048576KiB@0:1 1024"}),
    ],
)
def test_the_ram_of_recorded_processes(name: str, cells: Mapping[int, int], expected: Mapping[int, str]) -> None:
    assert ram(name, cells) == expected


LIBVIRT = """\
2aaac0000000 bind:0 file={} huge dirty=4 N0=4 kernelpagesize_kB=2048
"""


@pytest.mark.parametrize(("named", "cell"), [("1.Ab", 1), ("10.Ab", 10)])
def test_the_name_of_a_file_names_the_cell(named: str, cell: int) -> None:
    file = f"/dev/hugepages/libvirt/qemu/3-vm/qemu_back_mem._objects_ram-node{named}"
    maps = f"2aaac0000000-2aaac0800000 rw-s 0 00:0f 7   {file}\n"
    assert ram("", {cell: 8 * MIB}, maps=maps, numa_maps=LIBVIRT.format(file)) == {cell: "2048KiB@0:4 8"}


def test_a_mapping_that_madvise_has_cut_is_one() -> None:
    first, second = "7efcefe00000-7efcf1e00000", "7efcf1e00000-7efcf3e00000"
    maps = (CASES / "two.maps").read_text()
    assert "7efcefe00000-7efcf3e00000 rw-p" in maps
    maps = maps.replace(
        "7efcefe00000-7efcf3e00000 rw-p 00000000 00:00 0",
        f"{first} rw-p 00000000 00:00 0 \n{second} rw-p 00000000 00:00 0",
    )
    numa = (CASES / "two.numa_maps").read_text()
    old = "7efcefe00000 default anon=16384 dirty=16384 active=0 N0=16384 kernelpagesize_kB=4"
    assert old in numa
    half = "default anon=8192 dirty=8192 active=0 N{0}=8192 kernelpagesize_kB=4"
    numa = numa.replace(old, f"7efcefe00000 {half.format(0)}\n7efcf1e00000 {half.format(1)}")
    cells = {0: 64 * MIB, 1: 128 * MIB}
    assert ram("two", cells, maps=maps, numa_maps=numa)[0] == "4KiB@0:8192,1:8192 64"


def alike(name: str, old: str, new: str, *, numa: bool = False) -> str:
    text = (CASES / f"{name}.{'numa_maps' if numa else 'maps'}").read_text()
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("name", "cells", "change", "why"),
    [
        ("two", {0: 65 * MIB, 1: 128 * MIB}, {}, "no mapping has the size of cell 0, 65 MiB"),
        ("ram", {0: 96 * MIB, 1: 96 * MIB}, {}, "no name says which it is"),
        ("file", {0: 64 * MIB, 1: 64 * MIB}, {}, "the mappings of cell 1 have 128 MiB, and it has 64 MiB"),
        ("memfd", {0: 96 * MIB}, {"numa_maps": ""}, "numa_maps cannot be read"),
        (
            "memfd", {0: 96 * MIB},
            {"numa_maps": alike("memfd", "N0=24576", "N0=24575", numa=True)}, "numa_maps cannot be read",
        ),
        (
            "memfd", {0: 96 * MIB},
            {"maps": alike("memfd", "7f5e8dfff000-", "7f5e8dffe000-")}, "changed while they were read",
        ),
        ("memfd", {0: 96 * MIB}, {"maps": "garbled\n"}, "not a line of maps"),
        (
            "memfd", {0: 96 * MIB},
            {"numa_maps": alike("memfd", "N0=24576 kernelpagesize_kB=4", "N0=24576", numa=True)}, "unknown ones",
        ),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_refused(
    name: str, cells: Mapping[int, int], change: Mapping[str, str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ram(name, cells, **change)
