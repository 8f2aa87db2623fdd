"""How near two functions are, by the host's sysfs, a host document, domain XML, and an NCCL topology file.

Written from the definitions alone, and imports nothing of the program. nvidia-smi's legend ("topo -m"): PIX "at most a
single PCIe bridge", PXB "multiple PCIe bridges (without traversing the PCIe Host Bridge)", PHB "a PCIe Host Bridge",
NODE "the interconnect between PCIe Host Bridges within a NUMA node", SYS between NUMA nodes; a switch counts as one
bridge, as for NCCL (NVIDIA/nccl, src/graph/paths.cc: PXB where a path joins two PCI nodes). In NCCL's file PHB and NODE
are one, "CPU" here. Also the firmware's way to number buses (depth first, by slot and function).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lxml import etree

Json = Mapping[str, Any]


def merged(grade: str) -> str:
    """PHB and NODE as one."""
    return "CPU" if grade in ("PHB", "NODE") else grade


def _by_chains(a: Sequence[str], b: Sequence[str]) -> str | None:
    """PIX or PXB from the switches above two functions, nearest first; None where they share none."""
    for n, switch in enumerate(a):
        if switch in b:
            passed = {*a[: n + 1], *b[: b.index(switch) + 1]}
            return "PIX" if len(passed) == 1 else "PXB"
    return None


# --- sysfs ---------------------------------------------------------------------------------------------------------


class Sysfs:
    """The PCI functions of a host, read from the files of its kernel."""

    def __init__(self, root: Path) -> None:
        self.devices = root / "sys/bus/pci/devices"

    def grade(self, a: str, b: str) -> str:
        """PIX, PXB, PHB, NODE or SYS."""
        if a.rpartition(".")[0] == b.rpartition(".")[0]:
            return "PIX"
        (root_a, *switches_a), (root_b, *switches_b) = self._above(a), self._above(b)
        if shared := _by_chains(switches_a, switches_b):
            return shared
        if root_a == root_b:
            return "PHB"
        nodes = [(self.devices / end / "numa_node").read_text().strip() for end in (a, b)]
        return "NODE" if nodes[0] == nodes[1] else "SYS"

    def _above(self, address: str) -> list[str]:
        """The host bridge, then the switches above a function, nearest first."""
        parts = (self.devices / address).resolve().parts[:-1]
        top = next(n for n, part in enumerate(parts) if part.startswith("pci"))
        bridges = parts[top + 1 :]
        return [parts[top], *(one for n, one in list(enumerate(bridges))[::-1] if self._is_upstream(one, n))]

    def _is_upstream(self, bridge: str, depth: int) -> bool:
        """By the PCI Express capability (PCIe 5.0, 7.5.3.2); without it every second bridge below a root port."""
        config = (self.devices / bridge / "config").read_bytes() if (self.devices / bridge / "config").exists() else b""
        at = config[0x34] if len(config) > 64 else 0
        while at and config[at] != 0x10:
            at = config[at + 1]
        return (config[at + 2] >> 4) == 5 if at else depth % 2 == 1


# --- a host document: the walk of lspci -t ------------------------------------------------------------------------


def host_grade(pci: Mapping[str, Json], a: str, b: str) -> str:
    """The grade on a host whose document has port types and nodes."""
    if a.rpartition(".")[0] == b.rpartition(".")[0]:
        return "PIX"
    chains = []
    tops = []
    for end in (a, b):
        switches = []
        at = end
        while pci[at].get("parent"):
            at = pci[at]["parent"]
            if pci[at].get("port_type") == "upstream-port":
                switches.append(at)
        chains.append(switches)
        tops.append(at.rpartition(":")[0])
    shared = _by_chains(*chains)
    if shared:
        return shared
    if tops[0] == tops[1]:
        return "PHB"
    return "NODE" if pci[a]["numa_node"] == pci[b]["numa_node"] else "SYS"


# --- domain XML ------------------------------------------------------------------------------------------------------


class Tree:
    """The PCIe tree that domain XML describes, walked from each host device."""

    def __init__(self, xml: str) -> None:
        root: Any = etree.fromstring(xml)
        self.controllers: dict[int, Any] = {
            int(c.get("index", "")): c for c in root.iterfind("devices/controller") if c.get("type") == "pci"
        }
        self.devices = {
            _text(h.find("source/address")): h.find("address") for h in root.iterfind("devices/hostdev[@type='pci']")
        }

    def at(self, source: str) -> str:
        """The guest address of a host device."""
        return _text(self.devices[source])

    def chain(self, source: str) -> list[Any]:
        """Controllers above a device, nearest first."""
        found = []
        address = self.devices[source]
        while address is not None:
            controller = self.controllers[int(address.get("bus"), 16)]
            found.append(controller)
            address = controller.find("address")
        return found

    def grade(self, a: str, b: str) -> str:
        """PIX, PXB, PHB, NODE or SYS."""
        one, other = self.chain(a), self.chain(b)
        if self.at(a)[:10] == self.at(b)[:10]:
            return "PIX"
        switches = [
            [c.get("index") for c in chain if c.get("model") == "pcie-switch-upstream-port"] for chain in (one, other)
        ]
        if shared := _by_chains(*switches):
            return shared
        roots = [
            next(c for c in chain if c.get("model") in ("pcie-expander-bus", "pcie-root")) for chain in (one, other)
        ]
        if roots[0] is roots[1]:
            return "PHB"
        return "NODE" if self.node(a) == self.node(b) else "SYS"

    def node(self, source: str) -> str | None:
        """The guest's node: that of the expander above."""
        return next((node for c in self.chain(source) if (node := c.findtext("target/node")) is not None), None)

    def numbered(self) -> dict[int, int]:
        """Bus numbers by controller index, as firmware gives them: each root bus has its own, the rest depth first."""
        below: dict[int, list[tuple[int, int, int]]] = {}
        for index, controller in self.controllers.items():
            address = controller.find("address")
            if address is not None and controller.get("model") != "pcie-expander-bus":
                place = int(address.get("slot"), 16), int(address.get("function"), 16), index
                below.setdefault(int(address.get("bus"), 16), []).append(place)
        roots = {0: 0}
        for index, controller in self.controllers.items():
            if controller.get("model") == "pcie-expander-bus":
                roots[index] = int(controller.find("target").get("busNr"))
        numbers: dict[int, int] = {}
        for root, first in sorted(roots.items(), key=lambda item: item[1]):
            self._descend(root, first, below, numbers)
        return numbers

    def _descend(
        self, index: int, number: int, below: Mapping[int, list[tuple[int, int, int]]], numbers: dict[int, int]
    ) -> int:
        assert number < 256, f"no bus number for controller {index}"
        assert number not in numbers.values(), f"bus number {number} twice: {numbers} and controller {index}"
        numbers[index] = number
        last = number
        for _, _, child in sorted(below.get(index, ())):
            last = self._descend(child, last + 1, below, numbers)
        return last


def _text(address: Any) -> str:
    parts = (int(address.get(name), 16) for name in ("domain", "bus", "slot", "function"))
    domain, bus, slot, function = parts
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


# --- NCCL's file ----------------------------------------------------------------------------------------------------


class Nccl:
    """An NCCL topology file."""

    def __init__(self, xml: str) -> None:
        self.root: Any = etree.fromstring(xml)
        self.pci: dict[str, Any] = {str(node.get("busid")): node for node in self.root.iter("pci")}

    def above(self, bus_id: str) -> list[str]:
        """Bus ids of the switches above a function, nearest first."""
        return [up.get("busid") for up in self.pci[bus_id].iterancestors("pci")]

    def numaid(self, bus_id: str) -> str:
        """The node of the <cpu> above."""
        return str(next(self.pci[bus_id].iterancestors("cpu")).get("numaid"))

    def grade(self, a: str, b: str) -> str:
        """PIX, PXB, CPU or SYS."""
        if a.rpartition(".")[0] == b.rpartition(".")[0] and self.above(a) == self.above(b):
            return "PIX"
        return _by_chains(self.above(a), self.above(b)) or ("CPU" if self.numaid(a) == self.numaid(b) else "SYS")


def read_mask(text: str) -> set[int]:
    """CPUs of a mask, as NCCL's ncclStrToCpuset reads it: groups of 32 bits, the last one lowest."""
    groups = [int(group, 16) for group in text.split(",")]
    return {32 * n + bit for n, group in enumerate(reversed(groups)) for bit in range(32) if group >> bit & 1}
