"""Place a benchmark's thread and its memory: CPU affinity and memory policy of the calling thread.

Sources: sched_setaffinity(2), set_mempolicy(2), get_mempolicy(2), move_pages(2); system call numbers of
linux/arch/x86/entry/syscalls and include/uapi/asm-generic/unistd.h. This module uses only the standard library, because
the Python of the child processes may have nothing else.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NUMBERS = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236, "move_pages": 239},
}
_MPOL_BIND = 2
_MAX_NODES = 1024  # CONFIG_NODES_SHIFT is at most 10
_PAGE = 4096
_Mask = ctypes.c_ulong * (_MAX_NODES // 64)


class NotPlaced(Exception):
    """The kernel did not place a thread or its memory as a benchmark requested."""


def _number(name: str) -> int:
    try:
        return _NUMBERS[platform.machine()][name]
    except KeyError as error:
        raise NotPlaced(f"no system call numbers known for {platform.machine()}") from error


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_number(name), *arguments):
        raise NotPlaced(f"{name}: {os.strerror(ctypes.get_errno())}")


def _memory_policy() -> tuple[int, ctypes.Array[ctypes.c_ulong]]:
    """Return the memory policy of this thread: its mode and its nodes."""
    mode, nodes = ctypes.c_int(), _Mask()
    _call("get_mempolicy", ctypes.byref(mode), nodes, _MAX_NODES, None, 0)
    return mode.value, nodes


@contextmanager
def placed(cpus: Sequence[int], node: int | None) -> Iterator[None]:
    """Run this thread on these CPUs (empty: unchanged) with new memory on this node (None: unchanged).

    At the end the thread gets its previous CPUs and memory policy. Raises NotPlaced if the kernel refuses (a cpuset
    excludes the CPUs or the node).
    """
    before = os.sched_getaffinity(0)
    policy = None if node is None else _memory_policy()
    try:
        if cpus:
            try:
                os.sched_setaffinity(0, cpus)
            except OSError as error:
                raise NotPlaced(f"CPUs of the node: {error.strerror}") from error
        if node is not None:
            nodes = _Mask()
            nodes[node // 64] = 1 << (node % 64)
            try:
                _call("set_mempolicy", _MPOL_BIND, nodes, _MAX_NODES)
            except NotPlaced as error:
                raise NotPlaced(f"memory of node {node}: {error}") from error
        yield
    finally:
        os.sched_setaffinity(0, before)
        if policy is not None:
            _call("set_mempolicy", *policy, _MAX_NODES)


def nodes_of(address: int, length: int, samples: int = 64) -> frozenset[int]:
    """Return the nodes that hold the pages of a buffer, from `samples` of its pages. Untouched pages are ignored."""
    step = max(_PAGE, length // samples // _PAGE * _PAGE)
    pages = [address + offset for offset in range(0, length - _PAGE + 1, step)]
    pointers = (ctypes.c_void_p * len(pages))(*pages)
    status = (ctypes.c_int * len(pages))()
    _call("move_pages", 0, ctypes.c_ulong(len(pages)), pointers, None, status, 0)
    return frozenset(node for node in status if node >= 0)
