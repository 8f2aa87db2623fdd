"""Seeded batches: a random host and several guests for it, as documents, where the contract decides the optimum.

Hosts have 1-8 nodes of uneven cores, flat, two-level or irregular distances, GPUs, NICs and drives spread unevenly,
now and then an existing guest, isolated cores, free pages. Guests are drawn until they ask for about as much as there
is, often more: what does not fit together is the point. Kept out are inputs that the contract leaves open: counts of
vCPUs or pages that do not divide by the number of cells that a guest may get, existing guests across nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from random import Random

from plan_facts import GIB, Json
from planhosts import PAGE_SIZES, Card, Held, Shape, build_host, cores_of


@dataclass(frozen=True)
class Case:
    """A host document and an intent for it."""

    seed: int
    host: Json
    intent: Json


def case(seed: int, guests: int | None = None) -> Case:
    """The batch of a seed; `guests` asks for so many instead of 2-10."""
    rng = Random(seed)
    shape = _shape(rng)
    reserve: Json = {"cores_per_node": rng.choice([1, 1, 1, 1, 0, 2])}
    if rng.random() < 0.3:
        reserve["memory_per_node"] = rng.choice([0, "1GiB", "4GiB"])
    maker = _Guests(rng, shape, build_host(shape))
    asked = [maker.guest(f"g{i}") for i in range(guests or rng.randint(2, rng.choice([4, 7, 10])))]
    return Case(seed, maker.host, {"version": 1, "reserve": reserve, "guests": asked})


def flat_case(gpus: int, gpu_nodes: int, large: frozenset[int]) -> Case:
    """A guest of this many GPUs, 8 vCPUs and 8 GiB each, for 32 nodes that are equally far from each other.

    The first `gpu_nodes` nodes have a GPU each; the `large` nodes have 12 cores, the others 3.
    """
    nodes = 32
    cards = [Card(f"0000:{0x11 + 6 * i:02x}:00.0", i, group=i) for i in range(gpu_nodes)]
    cores = [12 if node in large else 3 for node in range(nodes)]
    flat = [[10 if a == b else 21 for b in range(nodes)] for a in range(nodes)]
    shape = Shape(nodes=nodes, cores_per_node=cores, llc_cores=6, memory_gib=64, distances=flat, cards=cards)
    guest = {"name": "g", "gpus": gpus, "vcpus": 8 * gpus, "memory": f"{8 * gpus}GiB"}
    return Case(0, build_host(shape), {"version": 1, "guests": [guest]})


# --- hosts ---------------------------------------------------------------------------------------------------


def _shape(rng: Random) -> Shape:
    nodes = rng.choice([1, 2, 2, 3, 4, 4, 5, 6, 8])
    base = rng.choice([3, 4, 6, 9, 12])
    shape = Shape(
        nodes=nodes,
        cores_per_node=[max(2, base + rng.randint(-2, 2)) for _ in range(nodes)],
        threads=rng.choice([1, 2, 2]),
        numbering=rng.choice(["block", "adjacent", "interleaved"]),
        llc_cores=rng.choice([2, 4, 16]),
        memory_gib=[rng.choice([8, 16, 24, 32, 48]) for _ in range(nodes)],
        distances=_distances(rng, nodes),
    )
    shape = replace(shape, cards=_cards(rng, nodes))
    if rng.random() < 0.2:
        shape = replace(shape, hugepages=_pools(rng, shape))
    if rng.random() < 0.25:
        shape = replace(shape, guests=[_held(rng, shape)])
    if rng.random() < 0.15:
        spare = [core for node in range(nodes) for core in cores_of(shape, node)[1:]]
        held = {cpu for guest in shape.guests for cpu in guest.pins}
        some = [core for core in rng.sample(spare, len(spare) // 3) if not held & set(core)]
        shape = replace(shape, isolated=[cpu for core in some for cpu in core])
    return shape


def _distances(rng: Random, nodes: int) -> list[list[int]]:
    """Flat, two packages of near nodes (as NPS and SNC hosts have), or any symmetric table."""
    kind = rng.choice(["flat", "packages", "packages", "any"])
    table = [[10] * nodes for _ in range(nodes)]
    for a in range(nodes):
        for b in range(a):
            near = 12 if a * 2 // nodes == b * 2 // nodes else 32
            table[a][b] = table[b][a] = {"flat": 21, "packages": near}.get(kind) or rng.choice([12, 16, 21, 32])
    return table


def _cards(rng: Random, nodes: int) -> list[Card]:
    """GPUs crowded on some nodes, a few NICs and drives, each alone in its group.

    GPUs of unknown node are all of a host's, or of maker `other` (had by name alone): whether a count prefers one of
    unknown node, which only seems near, is open.
    """
    crowd = [rng.randrange(nodes) for _ in range(rng.randint(1, 3))]
    blind = rng.choice(["", "", "", "", "", "", "", "all", "other", "other"])
    cards = []
    for i in range(rng.choice([0, 1, 2, 3, 4, 4, 6, 8, 8])):
        node = rng.choice(crowd) if rng.random() < 0.5 else rng.randrange(nodes)
        other = blind == "other" and rng.random() < 0.5
        unknown = blind == "all" or (other and rng.random() < 0.7)
        vendor = "other" if other else "nvidia"
        cards.append(Card(f"0000:{0x21 + 0x10 * i:02x}:00.0", None if unknown else node, vendor=vendor, group=i))
    for i in range(rng.choice([0, 0, 2, 4])):
        kind = rng.choice(["nic", "nvme"])
        cards.append(Card(f"0001:{0x11 + i:02x}:00.0", rng.randrange(nodes), kind=kind, group=100 + i))
    return cards


def _pools(rng: Random, shape: Shape) -> dict[int, dict[int, tuple[int, int]]]:
    """Free pages of one size or two on some nodes, at most half of the node."""
    table: dict[int, dict[int, tuple[int, int]]] = {}
    for node in range(shape.nodes):
        for page in PAGE_SIZES:
            if rng.random() < 0.4:
                total = rng.randint(1, _of(shape.memory_gib, node) // 4) * (GIB // page)
                table.setdefault(node, {})[page] = (total, total)
    return table


def _held(rng: Random, shape: Shape) -> Held:
    """An existing guest with whole cores of one node, memory and some of its GPUs."""
    node = rng.randrange(shape.nodes)
    cores = cores_of(shape, node)[1:]
    mine = rng.sample(cores, rng.randint(1, len(cores)))
    gpus = [card.address for card in shape.cards if card.kind == "gpu" and rng.random() < 0.2]
    memory = rng.choice([1, 2, 4]) * GIB
    return Held(pins=tuple(cpu for core in mine for cpu in core), memory_bytes=memory, devices=tuple(gpus))


def _of(value: object, node: int) -> int:
    assert isinstance(value, list)
    return int(value[node])


# --- guests --------------------------------------------------------------------------------------------------


class _Guests:
    """Draws guests of one host; a device is named by one guest at most."""

    def __init__(self, rng: Random, shape: Shape, host: Json) -> None:
        self.rng, self.shape, self.host = rng, shape, host
        self.cores = max(_of(shape.cores_per_node, node) for node in range(shape.nodes))
        self.places = {card.address: card.node for card in shape.cards}
        self.unnamed = {
            pool: [row["address"] for row in host[rows]]
            for pool, rows in (("gpus", "gpus"), ("nics", "nics"), ("nvme", "nvme"))
        }
        self.load = rng.choice([0.15, 0.3, 0.3, 0.5, 0.5, 0.8])  # of the largest node, at most, a guest

    def guest(self, name: str) -> Json:
        """One guest of whole numbers."""
        rng, asked = self.rng, {"name": name, "gpus": self._gpus()}
        for pool in ("nics", "nvme"):
            if self.unnamed[pool] and rng.random() < 0.25:
                asked[pool] = rng.choice([1, 1, 2]) if rng.random() < 0.7 else self._named(pool, 1)
        if rng.random() < 0.12:
            asked["smt"] = "threads"
        asked["hugepages"] = rng.choice(["auto", "2MiB", "2MiB", "2MiB", "1GiB", "none"])
        kind = rng.choice(["auto"] * 7 + ["number", "number", "list"])
        if kind == "list":
            return asked | {"numa": self._list(asked)}
        return asked | self._sizes(asked, kind)

    def _gpus(self) -> int | list[str]:
        most = len(self.unnamed["gpus"])
        if not most or self.rng.random() < 0.25:
            return 0
        count = min(self.rng.choice([1, 1, 1, 2, 2, 3, 4] if self.load > 0.3 else [1, 1, 2]), most)
        return self._named("gpus", count) if self.rng.random() < 0.25 else count

    def _named(self, pool: str, count: int) -> list[str]:
        free = self.unnamed[pool]
        taken = self.rng.sample(free, min(count, len(free)))
        for address in taken:
            free.remove(address)
        return taken

    def _spread(self, asked: Json) -> int:
        """Most nodes that the guest's GPUs may be on."""
        gpus = asked["gpus"]
        nodes = {node for address, node in self.places.items() if not isinstance(gpus, list) or address in gpus}
        return max(1, min(len(nodes - {None}), len(gpus) if isinstance(gpus, list) else gpus))

    def _sizes(self, asked: Json, kind: str) -> Json:
        rng, width = self.rng, self.shape.threads
        numa = rng.randint(1, min(4, self.shape.nodes)) if kind == "number" else None
        step = numa or lcm(*range(1, self._spread(asked) + 1))
        wanted = rng.uniform(0.2, 2 if rng.random() < 0.1 else 1) * self.load * self.cores * width
        vcpus = step * max(1, round(wanted / step))
        if numa is None and vcpus < self._spread(asked) * width:  # "one cell ... with too few cores"
            vcpus *= width
        cells = [numa] if numa else [n for n in range(1, self.shape.nodes + 1) if vcpus % n == 0]
        memory = self._memory(asked, lcm(*cells))
        return {"vcpus": vcpus, "memory": memory, **({"numa": numa} if numa else {})}

    def _memory(self, asked: Json, cells: int) -> str:
        """A size that is whole pages in each number of cells, in MiB: who gets a page more is open."""
        whole = asked["hugepages"] in ("auto", "1GiB")
        unit = (1024 if whole else self.rng.choice([128, 256, 1024])) * cells
        most = max(_of(self.shape.memory_gib, n) for n in range(self.shape.nodes))
        wanted = self.rng.uniform(0.1, 1.0) * self.load * most
        return f"{max(1, round(wanted * 1024 / unit)) * unit}MiB"

    def _list(self, asked: Json) -> list[Json]:
        count = self.rng.randint(1, min(3, self.shape.nodes))
        most = max(1, round(self.load * self.cores * self.shape.threads))
        return [{"vcpus": self.rng.randint(1, most), "memory": self._memory(asked, 1)} for _ in range(count)]
