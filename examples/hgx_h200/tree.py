"""The root under construction, and the CPU numbering that all parts share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

CORES_PER_NODE = 48
CPUS = 4 * CORES_PER_NODE
NODE_BYTES = 1 << 40
GIB = 1 << 30


@dataclass
class Tree:
    """The files, links and empty folders of a root under construction, by path without a leading slash."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)  # empty ones, whose being there is a fact

    def put(self, path: str, text: str | int) -> None:
        """A text file with the trailing newline that sysfs writes."""
        self.files[path] = f"{text}\n".encode()

    def put_all(self, directory: str, **values: str | int) -> None:
        """Several files of one directory, by name."""
        for name, value in values.items():
            self.put(f"{directory}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A relative symbolic link from `path` to `target` (both from the root)."""
        here, there = path.split("/")[:-1], target.split("/")
        while here and there and here[0] == there[0]:
            here, there = here[1:], there[1:]
        self.links[path] = "/".join([".."] * len(here) + there)


def node_of(cpu: int) -> int:
    """Package and node of a CPU: first threads 0-47 and 48-95, second threads 96-143 and 144-191."""
    return cpu % (2 * CORES_PER_NODE) // CORES_PER_NODE


def cpulist(node: int) -> str:
    """CPUs of a node in list form."""
    first = node * CORES_PER_NODE
    second = first + 2 * CORES_PER_NODE
    return f"{first}-{first + CORES_PER_NODE - 1},{second}-{second + CORES_PER_NODE - 1}"


def cpumask(cpus: Iterable[int]) -> str:
    """CPUs as the kernel's mask: groups of 32 bits, highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    return ",".join(f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(CPUS - 32, -1, -32))


def node_cpus(node: int) -> list[int]:
    """CPU ids of a node."""
    return [cpu for cpu in range(CPUS) if node_of(cpu) == node]
