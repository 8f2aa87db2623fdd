"""What several guests ask and what a host has, as plain numbers for the batch oracles; and the score of a plan.

From the contract's sentences and plain JSON alone; imports nothing that it judges. Free room is in whole cores,
threads, bytes and devices of each node. Inputs that the contract leaves open (cores of several widths, CPUs hidden by
a cpuset, groups with foreign functions, sizes `auto`, partitions, MIG) raise `Undecided` instead of being guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from plan_facts import GIB, HostFacts, Json, ids, named, size

PAGES = {"auto": (2 << 20, GIB), "2MiB": (2 << 20,), "1GiB": (GIB,), "none": (4096,)}
POOLS = {"gpus": "gpus", "nics": "nics", "nvme": "nvme"}


class Undecided(Exception):
    """The contract does not decide this input, or the oracle does not know its sentences yet."""


@dataclass(frozen=True)
class Class:
    """Free devices that are alike to every guest: their list of the intent, node (None = unknown) and functions.

    `functions` counts those of a device that are passed together: a GPU and its audio function are two devices.
    """

    pool: str
    node: int | None
    functions: int


@dataclass(frozen=True)
class CellKind:
    """`cells` equal cells of a guest, each on a node of its own."""

    cells: int
    vcpus: int
    bytes: int


@dataclass(frozen=True)
class Cut:
    """One way to cut a guest into cells, with pages of one size."""

    kinds: tuple[CellKind, ...]
    page: int

    @property
    def cells(self) -> int:
        """Cells of the guest."""
        return sum(kind.cells for kind in self.kinds)


@dataclass(frozen=True)
class Ask:
    """One guest. `counts`: devices of any class of a pool; `fixed`: devices that it names; `cuts` empty = impossible.

    `follows`: `numa: auto`, cells go to the nodes of the guest's GPUs unless that does not fit.
    """

    name: str
    threads: bool
    follows: bool
    cuts: tuple[Cut, ...]
    counts: dict[str, int]
    fixed: Counter[Class]

    def share(self, kind: CellKind, cut: Cut) -> Fraction:
        """The cell's share of the guest's vCPUs."""
        return Fraction(kind.vcpus, sum(k.cells * k.vcpus for k in cut.kinds))


@dataclass(frozen=True)
class Room:
    """What is free on a host: whole cores and threads, bytes for new pages, free pages of each size, devices."""

    width: int
    nodes: tuple[int, ...]
    cores: dict[int, int]
    threads: dict[int, int]
    growth: dict[int, int]
    pages: dict[tuple[int, int], int]
    devices: Counter[Class]
    distance: dict[tuple[int, int], int]

    def near(self, cell: int, device: int | None) -> int:
        """Distance of a cell's node to a device's; devices of unknown node add nothing."""
        return 0 if device is None else self.distance[cell, device]


def room_of(host: Json, intent: Json) -> Room:
    """Free room of a host for this intent."""
    facts = HostFacts(host)
    kept = facts.housekeeping(_per_node(intent), hidden_counts=True)
    widths = {len(core) for core in facts.cores.values()}
    if kept is None or len(widths) != 1 or facts.hidden:
        raise Undecided("cores: several widths, hidden or in part isolated or held")
    cores: dict[int, int] = {}
    threads: dict[int, int] = {}
    for node in facts.nodes:
        members = [facts.cores[core] for core in facts.node_cores(node)]
        cores[node] = sum(not core & (kept | facts.held) for core in members)
        threads[node] = sum(len(core - kept - facts.held) for core in members)
    devices = Counter(_free_devices(facts))
    pairs = {(a, b): facts.distance(a, b) for a in facts.nodes for b in facts.nodes}
    if None in pairs.values():
        raise Undecided("distances are unknown")
    known = {pair: step for pair, step in pairs.items() if step is not None}
    growth, pages = _memory(facts, intent)
    return Room(widths.pop(), tuple(facts.nodes), cores, threads, growth, pages, devices, known)


def _per_node(intent: Json) -> int:
    return int((intent.get("reserve") or {}).get("cores_per_node", 1))


def _memory(facts: HostFacts, intent: Json) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Bytes of each node that new pages can take, and free pages there: the node less reserve, pools and guests."""
    growth: dict[int, int] = {}
    pages: dict[tuple[int, int], int] = {}
    for node, row in facts.nodes.items():
        if row.get("memory_bytes") is None or row.get("hugepages") is None:
            raise Undecided("memory or pages of a node are unknown")
        pools = [p for p in row["hugepages"] if p["total"]]
        guests = sum(_held_bytes(facts, guest, node) for guest in facts.document.get("guests") or [])
        if guests and any(p["total"] != p["free"] for p in pools):
            raise Undecided("whether a guest's memory is in the pages in use")
        pooled = sum(p["total"] * p["size_bytes"] for p in pools)
        growth[node] = max(0, row["memory_bytes"] - facts.reserve_bytes(intent, node) - pooled - guests)
        pages |= {(node, p["size_bytes"]): p["free"] for p in pools}
    return growth, pages


def _held_bytes(facts: HostFacts, guest: Json, node: int) -> int:
    memory = int(guest.get("memory_bytes") or 0)
    places = {facts.cpus[c]["numa_node"] for pin in guest.get("vcpu_pins") or [] for c in ids(pin["cpus"])}
    if memory and len(places) != 1:
        raise Undecided("where an existing guest's memory is")
    return memory if places == {node} else 0


def _free_devices(facts: HostFacts) -> Iterator[Class]:
    """The class of each device that a guest can have; [host] GPUs of maker `other` are ignored by counts."""
    makers = {g["address"]: g.get("vendor", "other") for g in facts.document.get("gpus") or []}
    if len({maker for maker in makers.values() if maker != "other"}) > 1:
        raise Undecided("GPUs of several makers")
    for pool, rows in POOLS.items():
        for row in facts.document.get(rows) or []:
            address = row["address"]
            if not _together(facts, address) & facts.held_devices and not _foreign(facts, address):
                yield _class(facts, "other" if pool == "gpus" and makers[address] == "other" else pool, address)


def _together(facts: HostFacts, address: str) -> set[str]:
    return facts.group(address) or {address}


def _foreign(facts: HostFacts, address: str) -> set[str]:
    """Functions of the device's group that do not go along by themselves."""
    slot = address.rpartition(".")[0]
    return {other for other in _together(facts, address) if other.rpartition(".")[0] != slot}


def _class(facts: HostFacts, pool: str, address: str) -> Class:
    nodes = {facts.device_node(other) for other in _together(facts, address)}
    if len(nodes) != 1:
        raise Undecided(f"the functions of {address} are on several nodes")
    return Class(pool, nodes.pop(), len(_together(facts, address)))


def asks_of(host: Json, intent: Json) -> list[Ask]:
    """The guests of an intent."""
    facts = HostFacts(host)
    return [_ask(facts, guest) for guest in intent["guests"]]


def _ask(facts: HostFacts, guest: Json) -> Ask:
    if guest.get("mig") or any(isinstance(guest.get(pool), dict) for pool in POOLS):
        raise Undecided("MIG, and devices by a mapping")
    names = named(guest)
    free = all(not _together(facts, address) & facts.held_devices for address in names)
    if any(_foreign(facts, address) for address in names):
        raise Undecided("a named device with foreign functions in its group")
    lists = {pool: guest[pool] for pool in POOLS if isinstance(guest.get(pool), list)}
    pools = {address.lower(): pool for pool, addresses in lists.items() for address in addresses}
    others = {row["address"] for row in facts.document.get("gpus") or [] if row.get("vendor", "other") == "other"}
    fixed = Counter(_class(facts, "other" if a in others else pool, a) for a, pool in pools.items())
    counts = {pool: guest[pool] for pool in POOLS if isinstance(guest.get(pool), int) and guest[pool]}
    cuts = tuple(_cuts(len(facts.nodes), guest)) if free else ()  # [plan] a guest defined here keeps its devices
    follows = guest.get("numa", "auto") == "auto"
    return Ask(guest["name"], guest.get("smt") == "threads", follows, cuts, counts, fixed)


def _cuts(nodes: int, guest: Json) -> Iterator[Cut]:
    """Every way to cut a guest: cells as listed, or equal cells; memory rounded up to whole pages of each cell."""
    numa = guest.get("numa", "auto")
    if not isinstance(numa, list) and "auto" in (guest.get("vcpus", "auto"), guest.get("memory", "auto")):
        raise Undecided("sizes `auto`")
    for page in PAGES[guest.get("hugepages", "auto")]:
        if isinstance(numa, list):
            kinds = Counter((cell["vcpus"], _whole(size(cell["memory"]), page)) for cell in numa)
            if len(numa) <= nodes:
                yield Cut(tuple(CellKind(cells, *kind) for kind, cells in sorted(kinds.items())), page)
            continue
        for cells in range(1, nodes + 1) if numa == "auto" else (numa,):
            if guest["vcpus"] % cells == 0 and cells <= nodes:
                part = _whole(-(-size(guest["memory"]) // cells), page)
                yield Cut((CellKind(cells, guest["vcpus"] // cells, part),), page)


def _whole(count: int, page: int) -> int:
    return -(-count // page) * page


# --- a plan's score ------------------------------------------------------------------------------------------


def score(host: Json, plan: Json) -> tuple[int, Fraction]:
    """(guests placed, objective) of a plan: from its cells, vCPUs and devices alone."""
    return len(plan["guests"]), sum((guest_score(host, guest) for guest in plan["guests"]), Fraction(0))


def guest_score(host: Json, guest: Json) -> Fraction:
    """Σ over cells and devices of (the cell's share of the vCPUs) × distance, plus Σ over cell pairs of theirs."""
    facts = HostFacts(host)
    nodes = [min(ids(cell["host_nodes"])) for cell in guest["cells"]]
    counts = [len(ids(cell["vcpus"])) for cell in guest["cells"]]
    total = Fraction(0)
    for device in guest["devices"]:
        there = facts.device_node(device["address"])
        for node, count in zip(nodes, counts, strict=True):
            step = 0 if there is None else facts.distance(node, there)
            assert step is not None, (node, there)
            total += Fraction(count, sum(counts)) * step
    for a, b in combinations(nodes, 2):
        step = facts.distance(a, b)
        assert step is not None, (a, b)
        total += step
    return total


def level(host: Json, intent: Json, guest: Json) -> int:
    """0: one cell on each node that holds one of its GPUs (one cell without); 1 + e: e cells more than that number.

    A number or list of cells is no choice: 0.
    """
    asked = next(g for g in intent["guests"] if g["name"] == guest["name"])
    if asked.get("numa", "auto") != "auto":
        return 0
    facts, gpus = HostFacts(host), {row["address"] for row in host.get("gpus") or []}
    own = {facts.device_node(d["address"]) for d in guest["devices"] if d["address"] in gpus}
    if None in own:  # "one cell ... with unknown nodes"
        own = set()
    nodes = [min(ids(cell["host_nodes"])) for cell in guest["cells"]]
    if len(nodes) == 1 if not own else set(nodes) == own:
        return 0
    return 1 + len(nodes) - max(1, len(own))


def levels(host: Json, intent: Json, plan: Json) -> int:
    """Σ of the guests' levels."""
    return sum(level(host, intent, guest) for guest in plan["guests"])
