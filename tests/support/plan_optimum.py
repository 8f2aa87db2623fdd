"""The contract's rule for one guest, by brute force: does it fit, and what is the least distance.

`judge(host, intent)` tries every choice of GPUs and of nodes. The objective is the requirement's text:
Σ over cells and devices of (the cell's share of the guest's vCPUs) × distance(cell's node, device's node)
+ Σ over unordered pairs of cells of their distance; devices of unknown node add nothing.

The contract leaves some choices open (which fallback when a GPU's node is full). Every reading of its sentence
is then computed and any of their optima is accepted; where even "placed" is open the verdict is None.
Imports nothing of what it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations, product

from plan_facts import GIB, HostFacts, Json, ids, named, size

Nodes = tuple[int, ...]
Choice = tuple[
    int, int, Fraction
]  # 0 = the rule's own cells fit, 1 = a fallback; cells more than the rule's; objective


@dataclass(frozen=True)
class Verdict:
    """`placed` None: the contract does not decide. `objectives`: what an optimal plan may score; empty = undecided."""

    placed: bool | None
    objectives: frozenset[Fraction] = frozenset()


OPEN = Verdict(None)

# Where the rule's own cells do not fit, "more only where that does not fit" may mean: the fewest cells of at least
# the rule's number; the fewest of any number; the fewest with the rule's own nodes among them; the least objective.
_FALLBACKS = ("more", "any", "superset", "least")

# "The objective then chooses GPUs": over all of them, or first those whose own cells fit or that need the fewest more;
# a count may also prefer GPUs of known node, since those of unknown node only seem near ("add nothing to it").
_ORDERS: tuple[Callable[[Choice], tuple[Fraction | int, ...]], ...] = (
    lambda choice: (choice[2],),
    lambda choice: (choice[0], choice[2]),
    lambda choice: (choice[1], choice[2]),
)


def judge(host: Json, intent: Json) -> Verdict:
    """Whether the one guest of the intent fits, and the objective of its best placement."""
    facts, asked = HostFacts(host), intent["guests"][0]
    per_node = int((intent.get("reserve") or {}).get("cores_per_node", 1))
    kept = facts.housekeeping(per_node, hidden_counts=True)
    if kept is None or len({len(core) for core in facts.cores.values()}) != 1 or facts.hidden:
        return OPEN
    choices = _gpu_choices(facts, asked)
    if choices is None or asked.get("nics") or asked.get("nvme"):
        return OPEN
    if not choices:
        return Verdict(False)
    search = _Search(facts, intent, kept)
    if asked.get("vcpus", "auto") == "auto" and not isinstance(asked.get("numa"), list):
        return search.auto(choices)
    if isinstance(asked.get("numa"), list | int):
        return search.fixed(choices)
    return search.free(choices)


def objective(host: Json, guest: Json) -> Fraction:
    """The objective of a planned guest, over all devices that it is given."""
    facts = HostFacts(host)
    nodes = [min(ids(cell["host_nodes"])) for cell in guest["cells"]]
    shares = [Fraction(len(ids(cell["vcpus"])), len(guest["vcpu_pins"])) for cell in guest["cells"]]
    return _score(facts, [facts.device_node(device["address"]) for device in guest["devices"]], nodes, shares)


def _score(
    facts: HostFacts, devices: Iterable[int | None], nodes: Sequence[int], shares: Sequence[Fraction]
) -> Fraction:
    near = sum(
        share * (facts.distance(node, device) or 0)
        for device in devices
        if device is not None
        for node, share in zip(nodes, shares, strict=True)
    )
    return Fraction(near) + sum(facts.distance(a, b) or 0 for a, b in combinations(nodes, 2))


def _gpu_choices(facts: HostFacts, asked: Json) -> list[tuple[int | None, ...]] | None:
    """Nodes of each possible set of GPUs; [] = there are too few, None = groups make it a matter of reading."""
    rows = facts.document.get("gpus") or []
    lone = all(len(facts.group(row["address"]) or {row["address"]}) == 1 for row in rows)
    wanted = asked.get("gpus") or 0
    if not lone or isinstance(wanted, dict):
        return None
    free = [g["address"] for g in rows if g["address"] not in facts.held_devices]
    if isinstance(wanted, list):  # [plan] a guest defined here keeps its devices
        return [tuple(map(facts.device_node, sorted(named(asked))))] if named(asked) <= set(free) else []
    vendors = {g["address"]: g.get("vendor", "other") for g in rows}
    usable = [facts.device_node(a) for a in free if vendors[a] != "other"]  # [host] `other` ignored by counts
    key = lambda node: -1 if node is None else node  # noqa: E731 - a sort key
    return sorted({tuple(sorted(c, key=key)) for c in combinations(usable, wanted)}, key=lambda c: tuple(map(key, c)))


def _known(facts: HostFacts, gpus: Iterable[int | None]) -> Nodes:
    """The nodes with CPUs that one of these GPUs counts for."""
    return tuple(sorted({facts.home(node) for node in gpus if node is not None}))


class _Search:
    """Free cores, threads and memory of each node, and the enumeration of cells over nodes."""

    def __init__(self, facts: HostFacts, intent: Json, kept: set[int]) -> None:
        self.facts, self.asked = facts, intent["guests"][0]
        self.width = len(next(iter(facts.cores.values())))
        self.page = {"1GiB": GIB, "none": 4096}.get(self.asked.get("hugepages", "auto"), 2 << 20)
        self.by_thread = self.asked.get("smt") == "threads"
        self.room: dict[int, int] = {}
        self.memory: dict[int, tuple[int, int] | None] = {}  # (at least, at most) that a guest can have
        for node in facts.nodes:
            cores = [facts.cores[c] for c in facts.node_cores(node)]
            threads = sum(len(core - kept - facts.held) for core in cores)
            self.room[node] = threads if self.by_thread else sum(not core & (kept | facts.held) for core in cores)
            self.memory[node] = self._memory(intent, node)

    def _memory(self, intent: Json, node: int) -> tuple[int, int] | None:
        row = self.facts.nodes[node]
        if row.get("memory_bytes") is None:
            return None  # unknown facts do not unplace a guest
        most = max(0, row["memory_bytes"] - self.facts.reserve_bytes(intent, node))
        taken = sum(g.get("memory_bytes") or 0 for g in self.facts.document.get("guests") or [])
        pools = sum((p["total"] or 0) * p["size_bytes"] for p in row.get("hugepages") or [])
        return max(0, most - taken - pools), max(most, pools)

    def _fits(self, nodes: Sequence[int], vcpus: Sequence[int], memory: Sequence[int | None], *, sure: bool) -> bool:
        for node, count, wanted in zip(nodes, vcpus, memory, strict=True):
            cores = count if self.by_thread else -(-count // self.width)  # in whole cores per node
            limits = self.memory[node]
            least = 1 if wanted is None else wanted
            if cores > self.room[node] or (limits is not None and least > limits[0 if sure else 1]):
                return False
        return True

    def _even(self, nodes: Nodes, *, sure: bool) -> bool:
        """Equal cells on these nodes; memory that does not divide into pages is a matter of reading."""
        cells, vcpus = len(nodes), self.asked["vcpus"]
        if vcpus % cells:
            return False
        asked, part = self.asked.get("memory", "auto"), None
        if asked != "auto":
            part = size(asked) // cells
            if sure and size(asked) % (self.page * cells):
                return False
        return self._fits(nodes, [vcpus // cells] * cells, [part] * cells, sure=sure)

    def _value(self, gpus: tuple[int | None, ...], nodes: Nodes) -> Fraction:
        return _score(self.facts, gpus, nodes, [Fraction(1, len(nodes))] * len(nodes))

    def _best(
        self, gpus: tuple[int | None, ...], families: Iterable[Iterable[Nodes]], *, sure: bool
    ) -> tuple[int, Fraction] | None:
        """(its place, the least objective) of the first family of node sets in which anything fits."""
        for place, family in enumerate(families):
            values = [self._value(gpus, nodes) for nodes in family if self._even(nodes, sure=sure)]
            if values:
                return (place, min(values))
        return None

    # --- a number or a list of cells ---

    def fixed(self, choices: list[tuple[int | None, ...]]) -> Verdict:
        """`numa: N` and `numa: [...]`: so many cells, each on a node of its own; the objective chooses the nodes."""
        numa, found = self.asked["numa"], {}
        for sure in (True, False):
            values = []
            for gpus in choices:
                if isinstance(numa, list):
                    values += self._listed(gpus, numa, sure=sure)
                else:
                    best = self._best(gpus, [combinations(self.room, numa)], sure=sure)
                    values += [] if best is None else [best[1]]
            found[sure] = values
        if not found[False]:
            return Verdict(False)
        if isinstance(numa, int) and self.asked["vcpus"] % numa:
            return OPEN
        accepted = frozenset(min(values) for values in found.values() if values)
        return Verdict(True if found[True] else None, accepted)

    def _listed(self, gpus: tuple[int | None, ...], cells: list[Json], *, sure: bool) -> list[Fraction]:
        vcpus, memory = [cell["vcpus"] for cell in cells], [size(cell["memory"]) for cell in cells]
        shares = [Fraction(count, sum(vcpus)) for count in vcpus]
        if sure and any(part % self.page for part in memory):  # no whole pages: a matter of reading
            return []
        return [
            _score(self.facts, gpus, nodes, shares)
            for nodes in permutations(self.room, len(cells))
            if self._fits(nodes, vcpus, memory, sure=sure)
        ]

    # --- numa: auto ---

    def free(self, choices: list[tuple[int | None, ...]]) -> Verdict:
        """One cell on each node that holds one of the guest's GPUs, more only where that does not fit."""
        counts = range(1, len(self.room) + 1)
        every = [nodes for count in counts for nodes in combinations(self.room, count)]
        if not any(self._even(nodes, sure=False) for nodes in every):
            return Verdict(False)
        surely = any(
            self.asked["vcpus"] % max(1, len(_known(self.facts, gpus))) == 0
            and any(self._even(nodes, sure=True) for nodes in every if len(nodes) >= len(_known(self.facts, gpus)))
            for gpus in choices
        )
        accepted: set[Fraction] = set()
        for one, fallback, sure in product((False, True), _FALLBACKS, (True, False)):
            for subset in (choices, [gpus for gpus in choices if None not in gpus]):
                found = [c for gpus in subset if (c := self._choice(gpus, one=one, fallback=fallback, sure=sure))]
                accepted |= {min(found, key=order)[2] for order in _ORDERS if found}
        return Verdict(True if surely else None, frozenset(accepted))

    def _choice(self, gpus: tuple[int | None, ...], *, one: bool, fallback: str, sure: bool) -> Choice | None:
        """Best cells for these GPUs under one reading: `one` = one cell where "one cell with …" may apply."""
        own, vcpus = _known(self.facts, gpus), self.asked["vcpus"]
        few_cores = -(-vcpus // self.width) < len(own)  # "one cell ... with too few cores"
        may_be_nvswitch = few_cores or None in gpus or vcpus % max(1, len(own)) != 0
        anywhere = list(combinations(self.room, 1))
        base: list[Nodes] = anywhere if not own or (one and may_be_nvswitch) else [own]
        best = self._best(gpus, [base], sure=sure)
        if best is not None:
            return (0, 0, best[1])
        first = len(base[0])
        families: list[list[Nodes]] = [
            [nodes for nodes in combinations(self.room, count) if fallback != "superset" or set(own) <= set(nodes)]
            for count in range(1 if fallback in ("any", "least") else first, len(self.room) + 1)
        ]
        if fallback == "least":
            families = [[nodes for family in families for nodes in family]]
        best = self._best(gpus, families, sure=sure)
        return None if best is None else (1, *best)

    # --- vcpus: auto ---

    def auto(self, choices: list[tuple[int | None, ...]]) -> Verdict:
        """Decided only where each GPU's node has a free core, memory and a share of at least one core."""
        facts = self.facts
        nodes_of = [facts.device_home(row["address"]) for row in facts.document.get("gpus") or []]
        for gpus in choices:
            homes = [None if node is None else facts.home(node) for node in gpus]
            for node in homes:
                if node is None or not (limits := self.memory[node]) or limits[0] < GIB:
                    return OPEN
                there = sum(place == node for place in nodes_of)
                if self.room[node] * homes.count(node) < there * (self.width if self.by_thread else 1):
                    return OPEN
        if self.asked.get("numa", "auto") != "auto" or self.asked.get("memory", "auto") != "auto":
            return OPEN
        return Verdict(True, frozenset({min(self._value(gpus, _known(facts, gpus)) for gpus in choices)}))
