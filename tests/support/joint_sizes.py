"""Batches in which some guests are sized `auto`, and what is wrong with their sizes; from the contract's sentences.

An auto guest has one GPU here, so one cell: its share is the unreserved cores and memory of the GPU's node, divided
by the node's GPUs. Hosts have no page pools and whole free cores, so that what is free is easily counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from plan_facts import GIB, HostFacts, Json, ids
from planhosts import Card, Held, Shape, build_host, cores_of

PAGE = 2 << 20


@dataclass(frozen=True)
class Sized:
    """A host and an intent; `least` is the intent with the auto guests as small as may be."""

    host: Json
    intent: Json

    def least(self, memory: str) -> Json:
        """The intent with a core and this much memory for each auto guest."""
        width = max(len(core) for core in HostFacts(self.host).cores.values())
        small = {"vcpus": width, "memory": memory}
        return {**self.intent, "guests": [{**small, **guest} for guest in self.intent["guests"]]}


def sized(seed: int) -> Sized:
    """The batch of a seed."""
    rng = Random(seed)
    nodes = rng.choice([1, 2, 2, 3])
    shape = Shape(
        nodes=nodes,
        cores_per_node=[rng.choice([3, 4, 6, 8, 12]) for _ in range(nodes)],
        threads=rng.choice([1, 2, 2]),
        numbering=rng.choice(["block", "adjacent", "interleaved"]),
        memory_gib=[rng.choice([8, 16, 32, 48]) for _ in range(nodes)],
        cards=[Card(f"0000:{0x21 + i:02x}:00.0", rng.randrange(nodes), group=i) for i in range(rng.randint(1, 6))],
        guests=(),
    )
    if rng.random() < 0.3:
        node = rng.randrange(nodes)
        core = cores_of(shape, node)[1]
        shape = Shape(**{**shape.__dict__, "guests": (Held(pins=tuple(core), memory_bytes=GIB),)})
    guests = list(_guests(rng, shape))
    reserve = {"cores_per_node": rng.choice([1, 1, 1, 0])}
    return Sized(build_host(shape), {"version": 1, "profile": "none", "reserve": reserve, "guests": guests})


def _guests(rng: Random, shape: Shape) -> Iterator[Json]:
    free = [card.address for card in shape.cards]
    rng.shuffle(free)
    for i in range(rng.randint(2, 5)):
        if free and (i == 0 or rng.random() < 0.6):
            name = free.pop()
            yield {"name": f"g{i}", "gpus": [name] if rng.random() < 0.6 else 1, "hugepages": "2MiB"}
        else:
            memory = f"{rng.choice([1, 2, 6, 12])}GiB"
            yield {"name": f"g{i}", "vcpus": rng.randint(1, 12), "memory": memory, "hugepages": "2MiB", "numa": 1}


def faults(found: Sized, plan: Json) -> Iterator[str]:
    """What is wrong with the sizes of the auto guests of a plan."""
    facts = HostFacts(found.host)
    kept = facts.housekeeping(found.intent["reserve"]["cores_per_node"], hidden_counts=True) or set()
    auto = {guest["name"] for guest in found.intent["guests"] if "vcpus" not in guest}
    pinned = {cpu for guest in plan["guests"] for pin in guest["vcpu_pins"] for cpu in ids(pin["cpus"])}
    for guest in plan["guests"]:
        if guest["name"] not in auto:
            continue
        name = guest["name"]
        (gpu,) = (row["address"] for row in guest["devices"])
        home = facts.device_node(gpu)
        assert home is not None
        (cell,) = guest["cells"]
        cores, memory = share(found, facts, home, kept)
        width = max(len(core) for core in facts.cores.values())
        got_cores = len({facts.core(cpu) for pin in guest["vcpu_pins"] for cpu in ids(pin["cpus"])})
        node = min(ids(cell["host_nodes"]))
        left = [c for c in facts.node_cores(node) if not facts.cores[c] & (kept | facts.held | pinned)]
        said = [f["text"] for f in plan["findings"] if "less than the auto share" in f["text"] and name in f["where"]]
        rest = _memory_left(found, facts, plan, node)
        if len(guest["vcpu_pins"]) != got_cores * width or not got_cores:
            yield f"{name}: {len(guest['vcpu_pins'])} vCPUs on {got_cores} cores"
        if got_cores > max(1, cores) or cell["memory_bytes"] > memory:
            yield f"{name}: {got_cores} cores and {cell['memory_bytes']} bytes, more than {cores} and {memory}"
        short = got_cores < cores or cell["memory_bytes"] < memory
        if short != bool(said) and cores:  # a share of less than a core is rounded up to one
            yield f"{name}: {got_cores} of {cores} cores, {cell['memory_bytes']} of {memory} bytes, said: {said}"
        if got_cores < cores and len(left) >= _short(plan, facts, auto, node):
            yield f"{name}: {got_cores} of {cores} cores, and {len(left)} of node {node} are left"
        if cell["memory_bytes"] < memory and rest >= PAGE * _short(plan, facts, auto, node):
            yield f"{name}: {cell['memory_bytes']} of {memory} bytes, and {rest} of node {node} are left"


def share(found: Sized, facts: HostFacts, node: int, kept: set[int]) -> tuple[int, int]:
    """[intent] the node's unreserved cores and memory, held by guests or not, divided by its GPUs; in whole pages."""
    gpus = sum(facts.device_node(row["address"]) == node for row in found.host["gpus"])
    cores = [core for core in facts.node_cores(node) if not facts.cores[core] & kept]
    memory = int(facts.nodes[node]["memory_bytes"]) - facts.reserve_bytes(found.intent, node)
    return len(cores) // gpus, memory // gpus // PAGE * PAGE


def _short(plan: Json, facts: HostFacts, auto: set[str], node: int) -> int:
    """Auto guests that have their cell on a node: what cannot be divided among them may be left."""
    mine = [g for g in plan["guests"] if g["name"] in auto]
    return sum(min(ids(guest["cells"][0]["host_nodes"])) == node for guest in mine)


def _memory_left(found: Sized, facts: HostFacts, plan: Json, node: int) -> int:
    used = sum(
        cell["memory_bytes"]
        for guest in plan["guests"]
        for cell in guest["cells"]
        if min(ids(cell["host_nodes"])) == node
    )
    held = sum(g["memory_bytes"] or 0 for g in found.host["guests"] if _home(facts, g) == node)
    return int(facts.nodes[node]["memory_bytes"] - facts.reserve_bytes(found.intent, node) - used - held)


def _home(facts: HostFacts, guest: Json) -> int | None:
    return facts.node(min(cpu for pin in guest["vcpu_pins"] for cpu in ids(pin["cpus"])))
