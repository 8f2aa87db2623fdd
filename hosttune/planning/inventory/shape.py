"""How a guest is cut: its cells, and what each of them needs. Pure values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellDemand:
    """What one cell needs: vCPUs and memory. `memory_bytes` is exact and whole in pages."""

    vcpus: int
    memory_bytes: int


@dataclass(frozen=True)
class Shape:
    """How a guest is cut: its cells, threads used of each core, page size (None: ordinary memory)."""

    cells: tuple[CellDemand, ...]
    threads: int
    page: int | None
    share_cores: bool  # smt: threads
    at_boot: bool = False  # its pages are reserved by the next boot, for more than is free now

    @property
    def vcpus(self) -> int:
        """vCPUs of the whole guest."""
        return sum(cell.vcpus for cell in self.cells)
