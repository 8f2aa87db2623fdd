"""Hosts for tests of the guest's own tree: from lists of switches, from `topo -m` matrices and from NCCL files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lxml import etree
from planhosts import Shape, build_host

HERE = Path(__file__).parents[1]
MATRICES = HERE / "cases" / "gpu" / "topo"
FILES = HERE / "cases" / "nccl"
_CLASSES = {"gpu": "030200", "nic": "020700", "nvme": "010802", "switch": "060400"}
_IDS = {"gpu": ("10de", "2335"), "nic": ("15b3", "1021"), "nvme": ("144d", "a80a"), "switch": ("1000", "c030")}
LINK = {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0, "max_width": 16}


@dataclass(frozen=True)
class Leaf:
    """A function to place: "gpu", "nic" or "nvme"; `name` is the test's own."""

    kind: str
    name: str


@dataclass(frozen=True)
class Hub:
    """A switch, and what is below it."""

    below: tuple[Leaf | Hub, ...]


@dataclass(frozen=True)
class Root:
    """A host bridge of a node (None: unknown) and PCI domain, with what is below its root ports."""

    below: tuple[Leaf | Hub, ...]
    node: int | None = 0
    domain: int = 0


class NoBusLeftError(Exception):
    """A PCI domain has 256 buses."""


class Made:
    """A host document, and the addresses of its leaves by name. `typed` False: no port types, as without root."""

    def __init__(self, roots: Sequence[Root], *, nodes: int, typed: bool = True, cores: int = 8) -> None:
        self.pci: list[dict[str, Any]] = []
        self.at: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.typed = typed
        self._next: dict[int, int] = {}
        for root in roots:
            self._root(root)
        shape = Shape(nodes=nodes, cores_per_node=cores, memory_gib=256)
        self.document: dict[str, Any] = {
            **build_host(shape),
            "cpu_model": {"vendor": "GenuineIntel", "physical_address_bits": 52},
            "pci": self.pci,
            "gpus": [{"address": a, "vendor": "nvidia", "model": "test card"} for a in self.of("gpu")],
            "nics": [
                {"address": a, "kind": "infiniband", "rdma": f"mlx5_{n}", "rate_gbps": 400, "interfaces": []}
                for n, a in enumerate(self.of("nic"))
            ],
            "nvme": [{"address": a} for a in self.of("nvme")],
        }

    def of(self, kind: str) -> list[str]:
        """The addresses of all leaves of a kind."""
        return [self.at[name] for name, other in self.kinds.items() if other == kind]

    def text(self) -> str:
        return json.dumps(self.document)

    def _bus(self, domain: int) -> int:
        self._next[domain] = self._next.get(domain, -1) + 1
        if self._next[domain] > 0xFF:
            raise NoBusLeftError
        return self._next[domain]

    def _root(self, root: Root) -> None:
        bus = self._bus(root.domain)
        for n, node in enumerate(root.below):
            slot, function = divmod(n, 8) if len(root.below) > 30 else (n, 0)
            port = f"{root.domain:04x}:{bus:02x}:{1 + slot:02x}.{function}"
            self._add(port, "switch", None, root.node, "root-port")
            self._grow(node, port, root)

    def _grow(self, node: Leaf | Hub, port: str, root: Root) -> None:
        bus = self._bus(root.domain)
        address = f"{root.domain:04x}:{bus:02x}:00.0"
        if isinstance(node, Leaf):
            self.at[node.name] = address
            self.kinds[node.name] = node.kind
            self._add(address, node.kind, port, root.node, "endpoint", group=len(self.pci))
            return
        self._add(address, "switch", port, root.node, "upstream-port")
        inner = self._bus(root.domain)
        # A switch has more ports than those in use, and one of its own functions: so it shows what it is.
        for n, child in enumerate((*node.below, None)):
            slot, function = divmod(n, 8) if len(node.below) > 31 else (n, 0)
            down = f"{root.domain:04x}:{inner:02x}:{slot:02x}.{function}"
            self._add(down, "switch", address, root.node, "downstream-port")
            if child is not None:
                self._grow(child, down, root)

    def _add(
        self, address: str, kind: str, parent: str | None, node: int | None, port: str, group: int | None = None
    ) -> None:
        vendor, device = _IDS[kind]
        self.pci.append(
            {
                "address": address,
                "vendor_id": vendor,
                "device_id": device,
                "class_code": _CLASSES[kind],
                "numa_node": node,
                "numa_source": "unknown" if node is None else "device",
                "iommu_group": group,
                "driver": "pcieport" if kind == "switch" else "vfio-pci",
                "parent": parent,
                "port_type": port if self.typed else None,
                "link": LINK,
                "bars": [],
            }
        )


# --- topo -m ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A `topo -m` matrix: names, cells by pair, and the node of each GPU (None: not told)."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    nodes: Mapping[str, int | None]


def read_matrix(name: str) -> Matrix:
    """A matrix of the cases, from the hand-made transcription beside it for nodes, from the text for cells."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", (MATRICES / f"{name}.txt").read_text()).splitlines()
    head = next(line for line in lines if "GPU0" in line)
    columns = re.findall(r"\b(?:GPU|NIC)\d+\b", head)
    cells: dict[tuple[str, str], str] = {}
    for line in lines:
        words = line.split()
        if words and words[0] in columns and line != head:
            cells |= {(words[0], column): word for column, word in zip(columns, words[1:], strict=False)}
    facts = json.loads((MATRICES / "affinity.json").read_text())[name]
    told = {gpu: str(row["numa"] or "") for gpu, row in facts.items()}
    return Matrix(
        gpus=tuple(c for c in columns if c.startswith("GPU")),
        nics=tuple(c for c in columns if c.startswith("NIC")),
        cells=cells,
        nodes={gpu: int(told[gpu]) if told.get(gpu, "").isdigit() else None for gpu in columns if gpu in told},
    )


def host_of(matrix: Matrix) -> tuple[Made, dict[str, int | None]]:
    """A host whose tree gives the matrix's PIX and PXB cells, one host bridge for each group; and each name's node.

    The node of a NIC is that of the GPU it shares a switch with, else of the GPUs that it is no farther than NODE from
    (where those agree), else one without GPUs, else unknown.
    """
    names = (*matrix.gpus, *matrix.nics)
    outer = _classes(names, matrix.cells, ("PIX", "PXB"))
    nodes = {name: _node(name, matrix, outer) for name in names}
    roots = []
    for group in outer:
        inner = _classes(group, matrix.cells, ("PIX",))
        hubs = tuple(_hub(part) for part in inner)
        node = nodes[group[0]]
        if len(group) == 1:
            roots.append(Root((_leaf(group[0]),), node))
        else:
            roots.append(Root(hubs if len(hubs) == 1 else (Hub(hubs),), node))
    known = [node for node in nodes.values() if node is not None]
    return Made(roots, nodes=max(known, default=0) + 1, cores=12), nodes


def _leaf(name: str) -> Leaf:
    return Leaf("gpu" if name.startswith("GPU") else "nic", name)


def _hub(part: Sequence[str]) -> Hub:
    return Hub(tuple(_leaf(name) for name in part))


def _classes(names: Sequence[str], cells: Mapping[tuple[str, str], str], near: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = []
    for name in names:
        beside = [group for group in found if any(cells.get((name, other)) in near for other in group)]
        found = [group for group in found if group not in beside]
        found.append([*(other for group in beside for other in group), name])
    return found


def _node(name: str, matrix: Matrix, outer: Sequence[Sequence[str]]) -> int | None:
    if name in matrix.nodes:
        return matrix.nodes[name]
    group = next(group for group in outer if name in group)
    beside = {matrix.nodes.get(other) for other in group if other in matrix.nodes}
    near = {matrix.nodes.get(gpu) for gpu in matrix.gpus if matrix.cells.get((name, gpu)) in ("PHB", "NODE")}
    taken = {node for node in matrix.nodes.values() if node is not None}
    free = set(range(max(taken, default=0))) - taken  # far from every GPU: on a node that has none, where there is one
    nodes = beside or near or {min(free, default=None)}
    return next(iter(nodes)) if len(nodes) == 1 else None


# --- NCCL's files ----------------------------------------------------------------------------------------------------


def host_of_file(name: str) -> tuple[Made, list[str], list[str]]:
    """A host with the tree of an NCCL file: its GPUs and NICs by bus id, and their names in order.

    Host bridges are one for each <pci> below a <cpu>; nodes are the file's, numbered in order.
    """
    tree = etree.parse(str(FILES / f"{name}.xml")).getroot()
    roots = []
    for node, cpu in enumerate(tree.iterfind("cpu")):
        roots += [Root((grown,), node) for pci in cpu.iterfind("pci") if (grown := _from_file(pci)) is not None]
    made = Made(roots, nodes=len(tree.findall("cpu")), cores=12)
    kinds = made.kinds
    return made, [n for n in kinds if kinds[n] == "gpu"], [n for n in kinds if kinds[n] == "nic"]


def _from_file(pci: Any) -> Leaf | Hub | None:
    kind = pci.get("class")[:4]
    if pci.get("class")[:8] == "0x060400":
        below = tuple(grown for inner in pci.iterfind("pci") if (grown := _from_file(inner)) is not None)
        return Hub(below) if below else None
    if kind in ("0x03", "0x12"):
        return Leaf("gpu", pci.get("busid"))
    return Leaf("nic", pci.get("busid")) if kind == "0x02" else None
