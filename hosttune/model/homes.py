"""The node whose CPUs work with a device: its own, or the nearest with CPUs if its own has none.

Pure. Nodes without CPUs have only memory (CXL, HBM), or their CPUs are offline. No vCPU can be on such a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hosttune.model.topology import Cpu, NumaNode


def home_nodes(
    nodes: Iterable[int], with_cpus: Collection[int], distances: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Return, for each node, itself if it has CPUs, else the nearest node that has; of equally near ones the lowest.

    `distances` are those of the host's own table, from a node with CPUs to the other. A node is left out if its nearest
    is unknown: there are several nodes with CPUs and a distance is missing, or there is none.
    """
    found: dict[int, int] = {}
    for node in nodes:
        if node in with_cpus:
            found[node] = node
        elif len(with_cpus) == 1 or all((other, node) in distances for other in with_cpus):
            nearest = min(with_cpus, key=lambda other: (distances.get((other, node), 0), other), default=None)
            if nearest is not None:
                found[node] = nearest
    return found


def table_of(nodes: Iterable[NumaNode]) -> dict[tuple[int, int], int]:
    """Return the distances between nodes, as far as the host's table has them."""
    return {
        (node.id, int(other)): distance
        for node in nodes
        for other, distance in (node.distances or {}).items()
        if distance > 0 and other.isdecimal()  # a document edited by hand can have any keys
    }


def homes_of(nodes: Iterable[NumaNode], cpus: Iterable[Cpu]) -> dict[int, int]:
    """Return the home of each node of a host. A node whose CPUs are unknown counts as one with CPUs."""
    nodes = tuple(nodes)
    with_cpus = {node.id for node in nodes if node.cpus != ""}
    with_cpus |= {cpu.numa_node for cpu in cpus if cpu.numa_node is not None and cpu.online is not False}
    return home_nodes((node.id for node in nodes), with_cpus, table_of(nodes))
