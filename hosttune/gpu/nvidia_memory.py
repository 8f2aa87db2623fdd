"""Write a pattern into all memory of a GPU that can be allocated, or search all of it for data and for that pattern.

A program of its own (`python -m hosttune.gpu.nvidia_memory write|search ADDRESS PATTERN`): the driver frees the memory
when it ends. It prints one JSON object: `bytes` written or searched; `total`, the bytes that the device has; of a write
`seen`, whether the same program reads the pattern; of a search `found`, how often the pattern (16 bytes, in hex) is
there, at multiples of 16 bytes, and `nonzero`, how many bytes are not zero. It needs libcuda alone. What is searched is
not initialized: the documentation of cuMemAlloc says that it does not clear memory.
Source: CUDA driver API (cuda.h), cuDeviceGetByPCIBusId, cuMemGetInfo, cuMemAlloc, cuMemsetD32, cuMemcpyDtoH.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_CHUNK, _LEAST = 1 << 30, 1 << 21  # bytes of one allocation, first and last
_PIECE = 1 << 26  # bytes copied at once


class _CallFailed(Exception):
    """A call of the driver failed."""


class _CudaGpu:
    """One GPU by its address, with a context."""

    def __init__(self, address: str) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), address.encode())
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        total = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        self.total = total.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise _CallFailed(f"{name}: {(text.value or b'?').decode()}")

    def allocate(self) -> list[tuple[int, int]]:
        """Allocate all memory that can be had; return (address, bytes) of each piece."""
        places: list[tuple[int, int]] = []
        size = _CHUNK
        while size >= _LEAST:
            place = ctypes.c_uint64()
            if self._cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)) == 0:
                places.append((place.value, size))
            else:
                size //= 2
        return places

    def write(self, place: int, size: int, pattern: bytes) -> None:
        """Fill a piece with the pattern."""
        buffer = ctypes.create_string_buffer(pattern * (_LEAST // len(pattern)), _LEAST)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(place), buffer, ctypes.c_size_t(_LEAST))
        done = _LEAST
        while done < size:
            more = min(done, size - done)
            self._call("cuMemcpyDtoD_v2", ctypes.c_uint64(place + done), ctypes.c_uint64(place), ctypes.c_size_t(more))
            done += more
        self._call("cuCtxSynchronize")

    def has(self, place: int, size: int, pattern: bytes) -> bool:
        """Return whether the beginning of a piece is the pattern throughout."""
        length = min(_PIECE, size)
        return self._read(place, length) == pattern * (length // len(pattern))

    def count(self, place: int, size: int, pattern: bytes) -> tuple[int, int]:
        """Return how often a piece has the pattern, at multiples of its length, and how many bytes are not zero."""
        filled = nonzero = 0
        for at in range(0, size, _PIECE):
            length = min(_PIECE, size - at)
            data = self._read(place + at, length)
            if data != bytes(length):
                filled += count_aligned(data, pattern)
                nonzero += length - data.count(0)
        return filled, nonzero

    def _read(self, place: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(place), ctypes.c_size_t(size))
        return buffer.raw


def count_aligned(data: bytes, pattern: bytes) -> int:
    """Return how often the pattern occurs at multiples of its length."""
    count, at = 0, data.find(pattern)
    while at >= 0:
        if at % len(pattern) == 0:
            count += 1
            at = data.find(pattern, at + len(pattern))
        else:
            at = data.find(pattern, at + 1)
    return count


def main(words: list[str]) -> int:
    """Run one command; exit code 1 with a reason on stderr if the driver refuses."""
    task, address, pattern = words[0], words[1], bytes.fromhex(words[2])
    try:
        device = _CudaGpu(address)
        pieces = device.allocate()
        answer: dict[str, Any] = {"bytes": sum(size for _, size in pieces), "total": device.total}
        if task == "write":
            for place, size in pieces:
                device.write(place, size, pattern)
            answer["seen"] = all(device.has(place, size, pattern) for place, size in pieces)
        else:
            counts = [device.count(place, size, pattern) for place, size in pieces]
            answer |= {"found": sum(count for count, _ in counts), "nonzero": sum(count for _, count in counts)}
    except (_CallFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
