"""A host document and a planned guest, indexed for the oracles. Plain JSON only; imports nothing that it judges.

`[inv]` marks a sentence of the contract's "Plans always keep these", `[plan]`, `[intent]`, `[host]` its other
sections, `[issue]` the requirements that they were written for.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

Json = dict[str, Any]
GIB = 1 << 30
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BRIDGES = ("0600", "0604")


def ids(cpus: str | list[int] | None) -> set[int]:
    """A CPU list ("0-3,8", or a list of ids) as a set."""
    if cpus is None or not isinstance(cpus, str):
        return set(cpus or ())
    found: set[int] = set()
    for part in filter(None, cpus.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def size(value: int | str) -> int:
    """Bytes of a SIZE."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"([\d.]+)\s*(KiB|MiB|GiB|TiB)?", value)
    assert match, value
    return int(float(match[1]) * _UNITS.get(match[2], 1))


class HostFacts:
    """A host document, indexed. A fact that the document leaves out stays unknown (None)."""

    def __init__(self, host: Json) -> None:
        self.document = host
        self.cpus: dict[int, Json] = {cpu["id"]: cpu for cpu in host["cpus"]}
        self.online = {c for c, cpu in self.cpus.items() if cpu.get("online") is not False}
        self.isolated = {c for c in self.online if self.cpus[c].get("isolated")}
        self.hidden = {c for c in self.online if self.cpus[c].get("allowed") is False}
        self.nodes: dict[int, Json] = {node["id"]: node for node in host["numa_nodes"]}
        self.pci: dict[str, Json] = {row["address"]: row for row in host["pci"]}
        guests = host.get("guests") or []
        self.held = {c for g in guests for pin in g.get("vcpu_pins") or [] for c in ids(pin["cpus"])}
        self.held_devices = {address for g in guests for address in g.get("devices") or []}

    @cached_property
    def cores(self) -> dict[int, frozenset[int]]:
        """Online CPUs of each core, by core name."""
        groups: dict[int, set[int]] = {}
        for cpu in self.online:
            groups.setdefault(self.core(cpu), set()).add(cpu)
        return {core: frozenset(members) for core, members in groups.items()}

    def core(self, cpu: int) -> int:
        """Name of the core of an online CPU."""
        return int(self.cpus[cpu]["core"])

    def node(self, cpu: int) -> int | None:
        """Node of a CPU."""
        node: int | None = self.cpus[cpu].get("numa_node")
        return node

    def node_cores(self, node: int) -> list[int]:
        """Cores of a node, lowest first."""
        return sorted((c for c, members in self.cores.items() if self.node(min(members)) == node), key=self._first)

    def _first(self, core: int) -> int:
        return min(self.cores[core])

    @property
    def boot_core(self) -> int:
        """[inv] boot CPU = lowest online."""
        return self.core(min(self.online))

    def device_node(self, address: str) -> int | None:
        """Node of a device, None when unknown."""
        node: int | None = self.pci[address].get("numa_node")
        return node

    def distance(self, a: int, b: int) -> int | None:
        """distance(a, b) of the host's table; None = not in the document."""
        table = self.nodes[a].get("distances") or {}
        found: int | None = table.get(str(b))
        return found

    def home(self, node: int) -> int:
        """[plan] a device on a node without CPUs counts for the nearest that has some, at a tie the lowest."""
        with_cpus = [n for n in self.nodes if self.node_cores(n)]
        return node if node in with_cpus else min(with_cpus, key=lambda n: (self.distance(n, node) or 0, n))

    def device_home(self, address: str) -> int | None:
        """The node that a device counts for, None when unknown."""
        node = self.device_node(address)
        return None if node is None else self.home(node)

    def group(self, address: str) -> set[str] | None:
        """Non-bridge functions of the device's IOMMU group; None when no group was read."""
        number = self.pci[address].get("iommu_group")
        if number is None:
            return None
        rows = self.document["pci"]
        return {r["address"] for r in rows if r.get("iommu_group") == number and not is_bridge(r)}

    def housekeeping(self, per_node: int, *, hidden_counts: bool) -> set[int] | None:
        """[plan] the boot core, else the node's lowest non-isolated core that no guest holds; None = doubtful.

        `hidden_counts`: whether a core that a cpuset hides may be the reserved one; the contract leaves it open.
        Doubtful: cores that are isolated, held or hidden in part, a boot core that is isolated, held or hidden.
        """
        partly = [
            m
            for m in self.cores.values()
            if any(0 < len(m & s) < len(m) for s in (self.isolated, self.held, self.hidden))
        ]
        boot = self.cores[self.boot_core]
        if partly or boot & (self.isolated | self.held | self.hidden):
            return None
        kept: set[int] = set()
        for node in self.nodes:
            bad = self.isolated | self.held | (set() if hidden_counts else self.hidden)
            cores = [c for c in self.node_cores(node) if not self.cores[c] & bad or c == self.boot_core]
            cores.sort(key=lambda c: (c != self.boot_core, self._first(c)))
            kept |= {cpu for core in cores[:per_node] for cpu in self.cores[core]}
        return kept

    def reserve_bytes(self, intent: Json, node: int) -> int:
        """[intent] reserve.memory_per_node: 8GiB; the default is at most a quarter of the node."""
        asked = (intent.get("reserve") or {}).get("memory_per_node")
        memory = int(self.nodes[node].get("memory_bytes") or 0)
        return min(8 * GIB, memory // 4) if asked is None else size(asked)


def is_bridge(row: Json) -> bool:
    """Host bridges and PCI-to-PCI bridges; an NVSwitch (0680) is none of these."""
    return str(row.get("class_code") or "")[:4] in _BRIDGES


def named(asked: Json) -> set[str]:
    """Addresses that a guest of the intent names itself."""
    lists = [asked.get(key) for key in ("gpus", "nics", "nvme")]
    return {address.lower() for value in lists if isinstance(value, list) for address in value}


class GuestFacts:
    """A planned guest with the host and the intent it came from."""

    def __init__(self, host: HostFacts, intent: Json, plan: Json, guest: Json) -> None:
        self.host, self.intent, self.plan, self.planned = host, intent, plan, guest
        self.asked: Json = next(g for g in intent["guests"] if g["name"] == guest["name"])
        self.smt: str = self.asked.get("smt") or "cores"
        pins = sorted(guest["vcpu_pins"], key=lambda pin: pin["vcpu"])
        self.pin_sets = [ids(pin["cpus"]) for pin in pins]
        self.pins = [min(found, default=-1) for found in self.pin_sets]
        self.cells: list[Json] = guest["cells"]
        self.devices: list[Json] = guest["devices"]
        theirs = [pin for g in plan["guests"] if g["name"] != guest["name"] for pin in g["vcpu_pins"]]
        self.others = {cpu for pin in theirs for cpu in ids(pin["cpus"])}  # what the plan pins other guests to
        self.helpers = [ids(guest["emulator_cpus"]), *(ids(cpus) for cpus in guest["iothread_cpus"])]

    @property
    def cores_per_node(self) -> int:
        """[intent] reserve.cores_per_node, 1 when left out."""
        reserve = self.intent.get("reserve") or {}
        return int(reserve.get("cores_per_node", 1))

    def cell_pins(self, cell: Json) -> list[int]:
        """Host CPUs of a cell's vCPUs."""
        return [self.pins[v] for v in sorted(ids(cell["vcpus"])) if v < len(self.pins)]

    def said(self, pattern: str) -> bool:
        """Something in the findings or this guest's `why` matches."""
        lines = [f"{f['text']} {f['where']}" for f in self.plan["findings"]] + list(self.planned["why"])
        return any(re.search(pattern, line, re.IGNORECASE) for line in lines)
