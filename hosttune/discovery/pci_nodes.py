"""The NUMA node of each PCI function, and where its sources disagree: its own file, bridges above, its local CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hosttune.discovery.pci_function import AFFINITY, Function
from hosttune.discovery.sets import parsed, plain
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import NumaNode
from hosttune.model.values import CpuSet, parse_cpus

Place = tuple[int | None, str]


class LocalCpuList(msgspec.Struct, frozen=True):
    """A list of local CPUs: its text (None if it is empty or not a list), and which known CPUs it names.

    `node` is the node of these CPUs; None if there are none, if they are on several nodes, or if they are all CPUs of
    the machine.
    """

    text: str | None = None
    cpus: frozenset[int] = frozenset()
    node: int | None = None


class NodeFinder:
    """Finds each function's NUMA node, and reports where its sources disagree.

    Order of preference: the function's own node; the nearest bridge above with a known node; a local CPU list that
    names only part of the machine's CPUs, all on one node. A list of all CPUs proves nothing.
    """

    def __init__(self, reader: Reader, nodes: tuple[NumaNode, ...], functions: Mapping[str, Function]) -> None:
        self._reader = reader
        self._functions = functions
        self._cpus = {node.id: parse_cpus(node.cpus) for node in nodes}
        self._all = CpuSet().union(*self._cpus.values())
        self._near: dict[str | None, LocalCpuList] = {None: LocalCpuList()}
        self._shown_files = [
            name for name in AFFINITY if any(name in function.names for function in functions.values())
        ]

    def place(self, function: Function) -> Place:
        """Return the node and its source ("device", "bridge", "firmware", "unknown").

        If the kernel shows a file for other functions and not for this one, the file was lost. No other source replaces
        it, because the lost value may have been different.
        """
        where = f"{sysfs.PCI_DEVICES}/{function.address}/numa_node"
        bridge, blank = self._bridge(function)
        if self._lost(function, "numa_node"):
            self._note(function, "NUMA node not read", where, "lost, or not a number; other functions have one")
            return None, "unknown"
        if blank is not None:
            why = f"the numa_node of {blank}, above it, was lost or is not a number"
            self._note(function, "NUMA node not compared", where, why)
        if self._lost(function, "local_cpulist"):
            self._note(function, "NUMA node not compared", where, "its local_cpulist was lost")
        if function.numa_node is not None:
            self._doubt(function, function.numa_node, bridge)
            return function.numa_node, "device"
        if blank is not None:
            return None, "unknown"
        if bridge is not None and bridge.numa_node is not None:
            self._doubt(function, bridge.numa_node, None)
            return bridge.numa_node, "bridge"
        node = self.near(function).node
        return (None, "unknown") if node is None else (node, "firmware")

    def _lost(self, function: Function, name: str) -> bool:
        """Return whether a file of AFFINITY has no value for this function although other functions have the file."""
        return name in self._shown_files and (name in function.unread or name not in function.names)

    def _note(self, function: Function, what: str, where: str, why: str) -> None:
        """Add a problem, if the NUMA node of this function matters."""
        if function.matters:
            self._reader.problem(what, where, why)

    def _bridge(self, function: Function) -> tuple[Function | None, str | None]:
        """Return the nearest function above with a known node; the address of a nearer one that lost its node."""
        for address in function.above:
            above = self._functions.get(address)
            if above is not None and self._lost(above, "numa_node"):
                return None, address
            if above is not None and above.numa_node is not None:
                return above, None
        return None, None

    def near(self, function: Function) -> LocalCpuList:
        """Return the function's local CPUs."""
        text = function.local_cpus
        if text not in self._near:
            self._near[text] = self._locate(text or "", function.path)
        return self._near[text]

    def _locate(self, text: str, path: str) -> LocalCpuList:
        try:
            cpus = parsed(self._reader, text)
        except ValueError:
            self._reader.problem("not a CPU list", f"{path}/local_cpulist", f"reads {text[:40]!r}")
            return LocalCpuList()
        known = cpus & self._all
        nodes = [node for node, on_node in self._cpus.items() if not on_node.isdisjoint(known)]
        node = nodes[0] if len(nodes) == 1 and known != self._all else None
        return LocalCpuList(plain(text, cpus) or None, known, node)

    def _doubt(self, function: Function, node: int, bridge: Function | None) -> None:
        """Report what contradicts the chosen node."""
        where = f"{sysfs.PCI_DEVICES}/{function.address}/numa_node"
        if self._cpus and node not in self._cpus:
            self._reader.problem("NUMA node does not exist", where, f"says {node}; taken as it is")
        if bridge is not None and bridge.numa_node != node:
            self._reader.problem(
                "NUMA node contradicts the bridge above",
                where,
                f"says {node}, bridge {bridge.address} says {bridge.numa_node}; the device's own was taken",
            )
        near, on_node = self.near(function), self._cpus.get(node)
        if on_node and near.cpus and near.cpus.isdisjoint(on_node):
            place = "several nodes" if near.node is None else f"node {near.node}"
            self._reader.problem(
                "NUMA node contradicts the local CPU list",
                where,
                f"node {node} was taken, but local_cpulist {function.local_cpus} lies on {place}",
            )
