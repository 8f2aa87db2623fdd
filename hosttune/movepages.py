"""move_pages(2): where the pages of a process are, and moving them to another node, in bounded batches with pauses.

The kernel moves a page while the process runs: whoever touches it meanwhile waits for that one page. MPOL_MF_MOVE
leaves pages alone that other processes have mapped too. The call is refused as a whole (EACCES) for a node that the
process' cpuset does not have. What is policy of a mapping stays: only new pages follow it (move_pages(2), mbind(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hosttune.errors import WriteFailed

_NUMBERS = {"x86_64": 279, "aarch64": 239}  # arch/x86/entry/syscalls/syscall_64.tbl, asm-generic/unistd.h
_ONLY_OURS = 1 << 1  # MPOL_MF_MOVE, linux/mempolicy.h
_BATCH_BYTES = 32 << 20
_LONGEST_PAUSE = 0.25  # seconds
_GOES_ON = (errno.ENOENT, errno.EBUSY, errno.ENOMEM, errno.EIO)  # of a whole batch: some pages, not the process
# What a page's status means (move_pages(2), "Page states in the status array"), beside the kernel's own text.
MEANINGS = {
    errno.EACCES: "another process has them mapped too",
    errno.EBUSY: "in use by the kernel at that moment",
    errno.ENOMEM: "the node has no memory for them",
    errno.EIO: "could not be written back",
    errno.EINVAL: "cannot be moved",
    errno.EFAULT: "no memory of the process any more",
}


@dataclass
class Moved:
    """What came of some pages: how many moved, and how many failed by errno."""

    pages: int = 0
    failed: Counter[int] = field(default_factory=Counter)

    @property
    def failures(self) -> str:
        """Return the failures for people: "12 EBUSY (Device or resource busy: …)"; empty if there are none."""
        texts = []
        for number, count in sorted(self.failed.items()):
            more = f": {MEANINGS[number]}" if number in MEANINGS else ""
            texts.append(f"{count} {errno.errorcode.get(number, str(number))} ({os.strerror(number)}{more})")
        return ", ".join(texts)


def places(process: int, addresses: array[int]) -> array[int]:
    """Return the node of each page, or a negative errno (-ENOENT: not in memory). Raises WriteFailed."""
    status = array("i", bytes(4 * len(addresses)))
    _call(process, addresses, None, status)
    return status


def move_range(
    process: int,
    addresses: range,
    source: int,
    target: int,
    most: int,
    moved: Moved,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Move at most `most` of the pages at these addresses (`step`: the size of a page) from one node to another.

    In batches of 32 MiB, or of one page that is larger; after each a pause as long as it took, at most a quarter of a
    second. What came of the pages is added to `moved`. Raises WriteFailed if the process or the node is refused.
    """
    size = max(1, _BATCH_BYTES // addresses.step)
    left = most
    for first in range(0, len(addresses), size):
        if left <= 0:
            return
        batch = array("Q", addresses[first : first + size])
        there = [page for page, node in zip(batch, places(process, batch), strict=True) if node == source][:left]
        if there:
            began = time.monotonic()
            left -= _move(process, array("Q", there), target, moved)
            pause(min(time.monotonic() - began, _LONGEST_PAUSE))


def _move(process: int, pages: array[int], target: int, moved: Moved) -> int:
    """Move one batch. Return how many are on the target then: their places count, not what the call says of them."""
    status = array("i", [-errno.EAGAIN]) * len(pages)  # the kernel leaves those alone that it did not come to
    _call(process, pages, array("i", [target]) * len(pages), status)
    done = 0
    for said, now in zip(status, places(process, pages), strict=True):
        if now == target:
            done += 1
        elif now != -errno.ENOENT:
            moved.failed[-said if said < 0 else -now if now < 0 else errno.EBUSY] += 1
    moved.pages += done
    return done


def _call(process: int, pages: array[int], nodes: array[int] | None, status: array[int]) -> None:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise WriteFailed("move_pages", f"not known on {platform.machine()}")
    count = len(pages)
    arguments = (ctypes.c_long(process), ctypes.c_ulong(count), _address(pages), _address(nodes), _address(status))
    if _syscall()(ctypes.c_long(number), *arguments, ctypes.c_long(_ONLY_OURS if nodes else 0)) >= 0:
        return
    found = ctypes.get_errno()
    if nodes is None or found not in _GOES_ON:
        raise WriteFailed(f"move_pages of process {process}", os.strerror(found), found)


def _address(values: array[int] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if values is None else values.buffer_info()[0])


def _syscall() -> Callable[..., int]:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall
