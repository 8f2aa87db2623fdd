"""How a guest is divided into cells, and what each cell needs. Pure values."""

from __future__ import annotations

import msgspec


class CellDemand(msgspec.Struct, frozen=True):
    """What one cell needs: vCPUs and memory. `memory_bytes` is exact and a whole number of pages."""

    vcpus: int
    memory_bytes: int


class GuestShape(msgspec.Struct, frozen=True):
    """The cells of a guest, the threads used of each core, and the page size (None: ordinary memory)."""

    cells: tuple[CellDemand, ...]
    threads: int
    page: int | None
    share_cores: bool  # true with `smt: threads`
    at_boot: bool = False  # the next boot reserves its pages, because they need more memory than is free now

    @property
    def vcpus(self) -> int:
        """The vCPUs of the whole guest."""
        return sum(cell.vcpus for cell in self.cells)
