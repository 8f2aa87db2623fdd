"""move_pages(2) on a small process of our own: where its pages are, moving them, and what the kernel refuses.

This machine may have one node: then pages move to the node where they are, which takes the same way.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hosttune.discovery.guestram import ram_by_cell
from hosttune.errors import WriteFailed
from hosttune.movepages import Moved, move_range, places

PAGE, SIZE, TOUCHED = 4096, 40 << 20, 36 << 20
CHILD = """
import ctypes, mmap, sys
# A guard page on both sides, as QEMU has it.
whole = mmap.mmap(-1, {size} + 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
protect = ctypes.CDLL(None).mprotect
for guard in (start, start + 4096 + {size}):
    assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(4096), 0) == 0
for page in range(4096, 4096 + {touched}, 4096):
    whole[page] = 1
print(start + 4096, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Child:
    """A process with anonymous memory like a guest's: where it begins, and the node of its first page."""

    pid: int
    start: int
    node: int

    @property
    def addresses(self) -> range:
        return range(self.start, self.start + SIZE, PAGE)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    code = CHILD.format(size=SIZE, touched=TOUCHED)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        start = int(process.stdout.readline())
        try:
            (node,) = places(process.pid, array("Q", [start]))
        except WriteFailed as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                pytest.skip(f"move_pages is not allowed here: {error.reason}")
            raise
        yield Child(process.pid, start, node)
        process.stdin.close()


def test_its_memory_is_found_and_counted(child: Child) -> None:
    maps, numa_maps = (Path(f"/proc/{child.pid}/{name}").read_text() for name in ("maps", "numa_maps"))
    ram = ram_by_cell(maps, numa_maps, {0: SIZE})[0]
    assert ram.ranges == ((child.start, child.start + SIZE),)
    assert (ram.pages.page_bytes, sum(ram.pages.on.values())) == (PAGE, TOUCHED // PAGE)
    there = places(child.pid, array("Q", child.addresses))
    assert there.count(-errno.ENOENT) == (SIZE - TOUCHED) // PAGE
    assert {node: there.count(node) for node in ram.pages.on} == ram.pages.on


def test_pages_move_in_batches_with_pauses_up_to_the_number_asked_for(child: Child) -> None:
    moved, pauses = Moved(), list[float]()
    move_range(child.pid, child.addresses, child.node, child.node, 1 << 40, moved, pauses.append)
    there = places(child.pid, array("Q", child.addresses)).count(child.node)
    assert (moved.pages, moved.failed) == (there, {})
    assert len(pauses) == 2  # 32 MiB and the rest
    assert all(0 < pause <= 0.25 for pause in pauses)
    few = Moved()
    move_range(child.pid, child.addresses, child.node, child.node, 7, few, lambda seconds: None)
    assert few.pages == 7


def test_pages_of_another_node_are_left_alone(child: Child) -> None:
    moved = Moved()
    move_range(child.pid, child.addresses, child.node + 1, child.node, 1 << 40, moved, lambda seconds: None)
    assert moved == Moved()


def test_the_kernels_refusals_are_named(child: Child) -> None:
    with pytest.raises(WriteFailed) as refused:
        move_range(child.pid, child.addresses, child.node, 1023, 1, Moved(), lambda seconds: None)
    assert refused.value.errno in (errno.ENODEV, errno.EACCES)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(WriteFailed, match="No such process"):
        places(ended.pid, array("Q", [child.start]))


def test_failures_have_the_kernels_text_and_ours() -> None:
    moved = Moved()
    moved.failed.update({errno.EACCES: 3, errno.EBUSY: 1})
    assert moved.failures == (
        f"3 EACCES ({os.strerror(errno.EACCES)}: another process has them mapped too), "
        f"1 EBUSY ({os.strerror(errno.EBUSY)}: in use by the kernel at that moment)"
    ) or moved.failures.startswith("1 EBUSY")
