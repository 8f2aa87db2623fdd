"""Streams of guests that fill a host exactly, so that knowing all of them beforehand every one can be placed.

A stream is made by cutting the host up: until nothing is left, a piece of a node becomes a guest, or equal pieces
of two nodes a guest of two cells. The pieces then arrive in random order. Memory goes with the vCPUs and never binds.
Seeded: the same streams on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MIB_PER_VCPU = 1024


@dataclass(frozen=True)
class HostShape:
    """A synthetic host: nodes, CPUs of each (two threads a core), CPUs that share a last-level cache."""

    nodes: int
    cpus: int
    llc_cpus: int = 8

    @property
    def name(self) -> str:
        """As the table writes it: nodes × CPUs of each."""
        return f"{self.nodes}×{self.cpus}"


@dataclass(frozen=True)
class StreamGuest:
    """One arrival: vCPUs of the whole guest, in so many equal cells, each on a node of its own."""

    vcpus: int
    cells: int

    @property
    def memory_mib(self) -> int:
        """Memory of the whole guest."""
        return self.vcpus * MIB_PER_VCPU


@dataclass(frozen=True)
class Family:
    """What guests are cut: sizes of a cell (fractions of a node, or vCPUs), and how often a guest has two cells."""

    name: str
    fractions: tuple[int, ...]  # a node's CPUs divided by these
    sizes: tuple[int, ...]
    two_cells: float

    def cell_sizes(self, cpus: int) -> tuple[int, ...]:
        """vCPUs that a cell can have on nodes of so many CPUs."""
        return tuple(sorted({cpus // part for part in self.fractions} | {size for size in self.sizes if size <= cpus}))


COARSE = Family("nodes and halves", (1, 2), (), 0.25)
FINE = Family("2 to 24 vCPUs", (), (2, 4, 6, 8, 12, 16, 24), 0.2)


def stream(shape: HostShape, family: Family, seed: int) -> tuple[StreamGuest, ...]:
    """The guests of one stream, in order of arrival. Their cells fill every node of the host."""
    rng = random.Random(f"{shape.name} {family.name} {seed}")
    left = [shape.cpus] * shape.nodes
    guests = []
    while any(left):
        open_nodes = [node for node, cpus in enumerate(left) if cpus]
        count = 2 if len(open_nodes) > 1 and rng.random() < family.two_cells else 1
        nodes = rng.sample(open_nodes, count)
        cpus = rng.choice([size for size in family.cell_sizes(shape.cpus) if size <= min(left[n] for n in nodes)])
        for node in nodes:
            left[node] -= cpus
        guests.append(StreamGuest(cpus * count, count))
    rng.shuffle(guests)
    return tuple(guests)
