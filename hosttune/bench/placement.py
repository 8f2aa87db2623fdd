"""Place a benchmark's thread and its memory: CPU affinity and memory policy of the calling thread.

Sources: sched_setaffinity(2), set_mempolicy(2), move_pages(2); system call numbers of linux/arch/x86/entry/syscalls
and include/uapi/asm-generic/unistd.h. This module uses only the standard library, because the Python of the child
processes may have nothing else.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NUMBERS = {"x86_64": (238, 279), "aarch64": (237, 239)}  # set_mempolicy, move_pages
_MPOL_DEFAULT = 0
_MPOL_BIND = 2
_MAX_NODES = 1024  # CONFIG_NODES_SHIFT is at most 10
_PAGE = 4096


class NotPlaced(Exception):
    """The kernel did not place a thread or its memory as a benchmark requested."""


def _number(which: int) -> int:
    try:
        return _NUMBERS[platform.machine()][which]
    except KeyError as error:
        raise NotPlaced(f"no system call numbers known for {platform.machine()}") from error


def _bind_memory(node: int | None) -> None:
    """Make new pages of this thread come only from `node`; None: the kernel's default policy."""
    libc = ctypes.CDLL(None, use_errno=True)
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    if node is not None:
        mask[node // 64] = 1 << (node % 64)
    mode = _MPOL_DEFAULT if node is None else _MPOL_BIND
    if libc.syscall(
        _number(0), mode, ctypes.byref(mask) if node is not None else None, _MAX_NODES if node is not None else 0
    ):
        raise NotPlaced(f"set_mempolicy to node {node}: {os.strerror(ctypes.get_errno())}")


@contextmanager
def placed(cpus: Sequence[int], node: int | None) -> Iterator[None]:
    """Run this thread on these CPUs (empty: unchanged) with new memory on this node (None: unchanged).

    At the end the thread gets its previous CPUs and the kernel's default memory policy. Raises NotPlaced if the kernel
    refuses (a cpuset excludes the CPUs or the node).
    """
    before = os.sched_getaffinity(0)
    try:
        if cpus:
            try:
                os.sched_setaffinity(0, cpus)
            except OSError as error:
                raise NotPlaced(f"CPUs of the node: {error.strerror}") from error
        if node is not None:
            _bind_memory(node)
        yield
    finally:
        os.sched_setaffinity(0, before)
        if node is not None:
            _bind_memory(None)


def nodes_of(address: int, length: int, samples: int = 64) -> frozenset[int]:
    """Return the nodes that hold the pages of a buffer, from `samples` of its pages. Untouched pages are ignored."""
    libc = ctypes.CDLL(None, use_errno=True)
    step = max(_PAGE, length // samples // _PAGE * _PAGE)
    pages = [address + offset for offset in range(0, length - _PAGE + 1, step)]
    pointers = (ctypes.c_void_p * len(pages))(*pages)
    status = (ctypes.c_int * len(pages))()
    if libc.syscall(_number(1), 0, ctypes.c_ulong(len(pages)), pointers, None, status, 0):
        raise NotPlaced(f"move_pages: {os.strerror(ctypes.get_errno())}")
    return frozenset(node for node in status if node >= 0)
