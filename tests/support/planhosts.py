"""Host documents for planner tests: a small builder, and hypothesis strategies of odd hosts and one-guest intents.

Documents are plain dicts with the contract's fields only (`boot_display` is the one extra: the contract refuses
a boot display but names no field for it). Everything here is synthetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

GIB = 1 << 30
MIB = 1 << 20
PAGE_SIZES = (2 * MIB, GIB)
_CLASS = {
    "gpu": "030200",
    "vga": "030000",
    "audio": "040300",
    "nic": "020700",
    "nvme": "010802",
    "nvswitch": "068000",
    "usb": "0c0330",
}
_IDS = {"nvidia": ("10de", "2335"), "amd": ("1002", "74a1"), "habana": ("1da3", "1060"), "other": ("1a03", "2000")}


@dataclass(frozen=True)
class Card:
    """One PCI function. `node` None = affinity unknown; `group` None = no IOMMU group read.

    `kind`: gpu, vga, audio, nic, nvme, nvswitch, usb. `vendor` matters for GPUs only.
    """

    address: str
    node: int | None = 0
    kind: str = "gpu"
    vendor: str = "nvidia"
    group: int | None = None
    bar_bytes: int | None = None
    boot_display: bool = False
    driver: str | None = "vfio-pci"


@dataclass(frozen=True)
class Held:
    """A guest that is already defined on the host, and what it keeps. `pins`: one host CPU a vCPU."""

    name: str = "old"
    pins: tuple[int, ...] = ()
    memory_bytes: int | None = None
    devices: tuple[str, ...] = ()
    state: str = "running"


@dataclass(frozen=True)
class Shape:
    """What `build_host` is made from, so that strategies can vary one thing at a time.

    `cores_per_node` and `memory_gib` are one number for all nodes, or one a node (0 = CPU-less, memory-less).
    `numbering`: block (siblings n, n+cores: Linux's usual), adjacent (siblings 2n, 2n+1), interleaved
    (nodes even/odd, siblings n, n+cores). `hugepages`: node -> page size -> (total, free), or None = unknown.
    `free_mib`: what of each node no pool holds and nobody uses; None = the document does not say.
    """

    nodes: int = 2
    cores_per_node: int | Sequence[int] = 8
    threads: int = 2
    numbering: str = "block"
    llc_cores: int = 4
    memory_gib: int | Sequence[int] = 64
    free_mib: Sequence[int] | None = None
    hugepages: Mapping[int, Mapping[int, tuple[int, int]]] | None = field(default_factory=dict)
    offline: Sequence[int] = ()
    isolated: Sequence[int] = ()
    hidden: Sequence[int] = ()
    distances: Sequence[Sequence[int]] | None = None
    cards: Sequence[Card] = ()
    guests: Sequence[Held] = ()
    digest: str | None = None


def build_host(shape: Shape | None = None, **changes: Any) -> dict[str, Any]:
    """A host document of that shape; keyword arguments are fields of Shape (`build_host(nodes=4, threads=1)`)."""
    shape = replace(shape or Shape(), **changes)
    cpus = _cpus(shape)
    return {
        "schema": "hosttune.host/v1",
        "hostname": "builder",
        "boot_id": None,
        "kernel": "6.1.0",
        "kernel_args": [],
        "arch": "x86_64",
        "hypervisor": False,
        "digest": shape.digest,
        "cpus": cpus,
        "numa_nodes": [_node(shape, n, cpus) for n in range(shape.nodes)],
        "pci": [*_bridges(shape.cards), *(_function(card, i) for i, card in enumerate(shape.cards))],
        "gpus": [
            {"address": c.address, "vendor": c.vendor, "model": f"{c.vendor} test card"}
            for c in shape.cards
            if c.kind in ("gpu", "vga")
        ],
        "nics": [
            {"address": c.address, "kind": "infiniband", "rdma": f"mlx5_{i}", "rate_gbps": 400, "interfaces": []}
            for i, c in enumerate(shape.cards)
            if c.kind == "nic"
        ],
        "nvme": [{"address": c.address} for c in shape.cards if c.kind == "nvme"],
        "nvswitches": [{"address": c.address} for c in shape.cards if c.kind == "nvswitch"],
        "guests": [_guest(guest) for guest in shape.guests],
        "problems": [],
    }


def cores_of(shape: Shape, node: int) -> list[list[int]]:
    """CPU ids of each core of a node, lowest core first, whatever is offline."""
    return [_thread_ids(shape, node, core) for core in range(_per_node(shape.cores_per_node, node))]


def intent_of(**guest: Any) -> dict[str, Any]:
    """A one-guest intent; `reserve=` and `profile=` go to the top, all else to the guest."""
    top: dict[str, Any] = {key: guest.pop(key) for key in ("reserve", "profile", "settings") if key in guest}
    return {"version": 1, **top, "guests": [{"name": "g", **guest}]}


def _per_node(value: int | Sequence[int], node: int) -> int:
    return value if isinstance(value, int) else value[node]


def _thread_ids(shape: Shape, node: int, core: int) -> list[int]:
    counts = [_per_node(shape.cores_per_node, n) for n in range(shape.nodes)]
    total = sum(counts)
    if shape.numbering == "interleaved":
        place = sum(min(core, count) for count in counts) + sum(1 for n in range(node) if counts[n] > core)
    else:
        place = sum(counts[:node]) + core
    if shape.numbering == "adjacent":
        return [place * shape.threads + t for t in range(shape.threads)]
    return [t * total + place for t in range(shape.threads)]


def _cpus(shape: Shape) -> list[dict[str, Any]]:
    rows = []
    offline = set(shape.offline)
    for node in range(shape.nodes):
        cores = [[c for c in core if c not in offline] for core in cores_of(shape, node)]
        for i, core in enumerate(cores):
            first = i // shape.llc_cores * shape.llc_cores
            llc = min((c for group in cores[first : first + shape.llc_cores] for c in group), default=None)
            rows += [
                {
                    "id": cpu,
                    "core": core[0],
                    "package": node,
                    "die": 0,
                    "numa_node": node,
                    "llc": llc,
                    "online": True,
                    "isolated": cpu in shape.isolated,
                    "allowed": cpu not in shape.hidden,
                }
                for cpu in core
            ]
    places = {"core": None, "package": None, "die": None, "numa_node": None, "llc": None}
    rows += [{"id": cpu, **places, "online": False, "isolated": False, "allowed": True} for cpu in offline]
    return sorted(rows, key=lambda row: row["id"])


def _node(shape: Shape, node: int, cpus: list[dict[str, Any]]) -> dict[str, Any]:
    memory = _per_node(shape.memory_gib, node) * GIB
    pools = None
    if shape.hugepages is not None:
        known = shape.hugepages.get(node, {})
        pools = [
            {"size_bytes": size, "total": known.get(size, (0, 0))[0], "free": known.get(size, (0, 0))[1]}
            for size in PAGE_SIZES
        ]
    row = shape.distances[node] if shape.distances else [10 if n == node else 21 for n in range(shape.nodes)]
    free = {} if shape.free_mib is None else {"free_bytes": shape.free_mib[node] * MIB, "cache_bytes": 0}
    return {
        **free,
        "id": node,
        "cpus": ",".join(str(cpu["id"]) for cpu in cpus if cpu["numa_node"] == node),
        "memory_bytes": memory,
        "distances": {str(n): distance for n, distance in enumerate(row)},
        "hugepages": pools if memory else [],
    }


def _slots(cards: Sequence[Card]) -> list[str]:
    return sorted({card.address.rpartition(".")[0] for card in cards})


def _bridges(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """A root port above each slot, in the group of what is below it: bridges never count as members."""
    rows = []
    for i, slot in enumerate(_slots(cards)):
        below = next(card for card in cards if card.address.startswith(slot + "."))
        row = _function(replace(below, address=f"0000:00:{i:02x}.0", boot_display=False, driver="pcieport"), i)
        rows.append({**row, "vendor_id": "8086", "device_id": "352a", "class_code": "060400", "parent": None})
        rows[-1]["bars"] = []
    return rows


def _function(card: Card, i: int) -> dict[str, Any]:
    vendor_id, device_id = _IDS[card.vendor] if card.kind in ("gpu", "vga") else ("15b3", "1021")
    if card.kind in ("audio", "nvswitch"):
        vendor_id, device_id = ("10de", "22a3" if card.kind == "nvswitch" else "22ba")
    bars = None
    if card.bar_bytes is not None:
        bars = [{"index": 2, "size_bytes": card.bar_bytes, "prefetchable": True, "is_64bit": True}]
    row = {
        "address": card.address,
        "vendor_id": vendor_id,
        "device_id": device_id,
        "class_code": _CLASS[card.kind],
        "numa_node": card.node,
        "numa_source": "unknown" if card.node is None else "device",
        "local_cpus": None,
        "iommu_group": card.group,
        "driver": card.driver,
        "parent": None,
        "link": {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0, "max_width": 16},
        "bars": bars,
        "physfn": None,
        "virtfns": [],
    }
    return {**row, "boot_display": True} if card.boot_display else row


def _guest(guest: Held) -> dict[str, Any]:
    return {
        "name": guest.name,
        "state": guest.state,
        "vcpu_pins": [{"vcpu": i, "cpus": str(cpu)} for i, cpu in enumerate(guest.pins)],
        "emulator_cpus": None,
        "memory_bytes": guest.memory_bytes,
        "devices": list(guest.devices),
    }


# --- strategies ----------------------------------------------------------------------------------------------


@st.composite
def distance_tables(draw: st.DrawFn, nodes: int) -> list[list[int]]:
    """Symmetric distances; half of the tables have two packages of near nodes (12 inside, 32 across), as NPS and
    SNC hosts do: there a distance-blind choice shows, and one that leaves a GPU's node for a nearer pair."""
    table = [[10] * nodes for _ in range(nodes)]
    packages = draw(st.booleans())
    for a in range(nodes):
        for b in range(a):
            step = 12 if a * 2 // nodes == b * 2 // nodes else 32
            table[a][b] = table[b][a] = step if packages else draw(st.sampled_from([21, 32, 16]))
    return table


@st.composite
def small_shapes(draw: st.DrawFn) -> Shape:
    """Hosts that the exhaustive oracle decides: 1–4 nodes, few cores, whole cores offline, isolated or held."""
    nodes = draw(st.integers(1, 4))
    shape = Shape(
        nodes=nodes,
        cores_per_node=[draw(st.sampled_from([1, 2, 3, 4, 5, 5, 0][: 6 + (n > 0)])) for n in range(nodes)],
        threads=draw(st.sampled_from([1, 2, 2, 4])),
        numbering=draw(st.sampled_from(["block", "adjacent", "interleaved"])),
        llc_cores=draw(st.sampled_from([1, 2, 8])),
        memory_gib=[draw(st.sampled_from([8, 16, 32, 64])) for _ in range(nodes)],
        hugepages=draw(st.sampled_from([{}, None])),
        distances=draw(distance_tables(nodes)),
    )
    spare = [(n, core) for n in range(nodes) for core in cores_of(shape, n)[1:]]
    marks = draw(st.lists(st.sampled_from(["", "", "", "", "", "offline", "isolated", "held"]), min_size=len(spare)))
    marked = {word: [c for (_, core), m in zip(spare, marks, strict=False) if m == word for c in core] for word in _W}
    cards = draw(gpu_cards(nodes, groups=draw(st.booleans()), most=5))
    taken = tuple(card.address for card in cards if draw(st.integers(0, 8)) == 0)
    guests = [Held(pins=tuple(marked["held"]), devices=taken)] if marked["held"] or taken else []
    return replace(shape, offline=marked["offline"], isolated=marked["isolated"], cards=cards, guests=guests)


_W = ("offline", "isolated", "held")


@st.composite
def gpu_cards(draw: st.DrawFn, nodes: int, *, groups: bool, most: int) -> list[Card]:
    """GPUs, each alone in its IOMMU group (or no groups at all), now and then of unknown affinity or maker."""
    places = draw(st.lists(st.one_of(st.integers(0, nodes - 1), st.sampled_from([None, 0])), max_size=most))
    maker = draw(st.sampled_from(["nvidia", "nvidia", "amd", "habana"]))  # one maker a host: counts may not mix
    return [
        Card(
            f"0000:{0x21 + 0x10 * i:02x}:00.0",
            node,
            vendor=draw(st.sampled_from([maker] * 5 + ["other"])),
            group=i if groups else None,
            driver=draw(st.sampled_from(["vfio-pci", "vfio-pci", "nvidia", None])),
            bar_bytes=draw(st.sampled_from([None, 256 * GIB])),
        )
        for i, node in enumerate(places)
    ]


@st.composite
def wild_shapes(draw: st.DrawFn) -> Shape:
    """Hosts of 1–16 nodes with everything odd at once; the invariants must hold on all of them."""
    nodes = draw(st.one_of(st.integers(1, 4), st.integers(1, 16)))
    shape = Shape(
        nodes=nodes,
        cores_per_node=[
            draw(st.sampled_from([0, 1, 2, 4, 6, 8])) if n else draw(st.integers(2, 8)) for n in range(nodes)
        ],
        threads=draw(st.sampled_from([1, 2, 2, 4])),
        numbering=draw(st.sampled_from(["block", "adjacent", "interleaved"])),
        llc_cores=draw(st.sampled_from([1, 2, 3, 8])),
        memory_gib=[draw(st.sampled_from([0, 4, 16, 64, 64])) for _ in range(nodes)],
        distances=draw(st.one_of(st.none(), distance_tables(nodes))),
        digest=draw(st.sampled_from([None, "sha256:5f"])),
    )
    shape = replace(shape, hugepages=draw(pools(shape)), cards=draw(wild_cards(nodes)))
    if draw(st.booleans()):  # half of the documents say what is free: anything up to what no pool holds
        pooled = [sum(t * size for size, (t, _) in (shape.hugepages or {}).get(n, {}).items()) for n in range(nodes)]
        rest = [max(0, _per_node(shape.memory_gib, n) * GIB - pooled[n]) // MIB for n in range(nodes)]
        shape = replace(shape, free_mib=[draw(st.integers(0, most)) for most in rest])
    cpus = [cpu for n in range(nodes) for core in cores_of(shape, n) for cpu in core]
    some = st.lists(st.sampled_from(cpus), max_size=max(1, len(cpus) // 5), unique=True)
    offline = [cpu for cpu in draw(some) if cpu != 0 or len(cpus) > 1]
    online = [cpu for cpu in cpus if cpu not in offline] or cpus[:1]
    offline = [cpu for cpu in offline if cpu not in online]
    held = draw(st.lists(st.sampled_from(online), max_size=len(online) // 5, unique=True))
    held = [cpu for cpu in held if cpu != min(online)]
    devices = [card.address for card in shape.cards if draw(st.integers(0, 8)) == 0]
    guest = Held(
        pins=tuple(held),
        devices=tuple(devices),
        memory_bytes=draw(st.sampled_from([None, GIB, 4 * GIB])),
        state=draw(st.sampled_from(["running", "shut off"])),
    )
    return replace(
        shape,
        offline=offline,
        isolated=draw(st.one_of(st.just([]), some)),
        hidden=draw(st.one_of(st.just([]), some)),
        guests=[guest] if held or devices else [],
    )


@st.composite
def pools(draw: st.DrawFn, shape: Shape) -> dict[int, dict[int, tuple[int, int]]] | None:
    """Page pools: unknown, empty, or at most half of a node's memory with some pages in use."""
    if draw(st.integers(0, 3)) == 0:
        return None
    table: dict[int, dict[int, tuple[int, int]]] = {}
    for node in range(shape.nodes):
        memory = _per_node(shape.memory_gib, node)
        for size in PAGE_SIZES if draw(st.booleans()) else ():
            total = draw(st.integers(0, memory // 4)) * (GIB // size)
            table.setdefault(node, {})[size] = (total, draw(st.integers(0, total)))
    return table


@st.composite
def wild_cards(draw: st.DrawFn, nodes: int) -> list[Card]:
    """GPUs with audio functions, foreign NICs or NVSwitches in their groups, loose NICs and NVMe drives."""
    cards: list[Card] = []
    groups = draw(st.integers(0, 5)) > 0
    for i, gpu in enumerate(draw(gpu_cards(nodes, groups=groups, most=6))):
        company = draw(st.sampled_from([*[""] * 6, "audio", "audio", "nic", "nvswitch"]))
        cards.append(gpu)
        slot, bus = gpu.address.rpartition(".")[0], 0x22 + 0x10 * i
        if company == "audio":
            cards.append(replace(gpu, address=f"{slot}.1", kind="audio"))
        elif company:
            cards.append(replace(gpu, address=f"0000:{bus:02x}:00.0", kind=company))
    for i in range(draw(st.integers(0, 3))):
        node = draw(st.one_of(st.none(), st.integers(0, nodes - 1)))
        kind = draw(st.sampled_from(["nic", "nvme"]))
        cards.append(Card(f"0000:{0xA1 + i:02x}:00.0", node, kind=kind, group=100 + i if groups else None))
    return cards


def _gpu_requests(shape: Shape) -> st.SearchStrategy[int | list[str]]:
    named = [card.address for card in shape.cards if card.kind == "gpu"]
    if not named:
        return st.just(0)
    lists = st.lists(st.sampled_from(named), min_size=1, max_size=3, unique=True)
    return st.one_of(st.integers(0, min(3, len(named))), lists, lists)


@st.composite
def small_intents(draw: st.DrawFn, shape: Shape) -> dict[str, Any]:
    """One guest of whole numbers (or auto) that the exhaustive oracle decides."""
    guest: dict[str, Any] = {"gpus": draw(_gpu_requests(shape))}
    if guest["gpus"] and draw(st.integers(0, 3)) == 0:
        guest |= {"vcpus": "auto", "memory": "auto"}
    else:
        guest |= {"vcpus": draw(st.integers(1, 14)), "memory": f"{draw(st.sampled_from([1, 2, 2, 12, 12, 24, 48]))}GiB"}
    kind = draw(st.sampled_from(["auto", "auto", "auto", "number", "list"]))
    if kind == "number" and guest["vcpus"] != "auto":
        guest["numa"] = draw(st.integers(1, shape.nodes))
        guest["vcpus"] = guest["numa"] * draw(st.integers(1, 6))
    if kind == "list":
        cells = draw(st.lists(st.integers(1, 7), min_size=1, max_size=min(3, shape.nodes)))
        guest = {"gpus": guest["gpus"], "numa": [{"vcpus": n, "memory": "1GiB"} for n in cells]}
    guest["smt"] = draw(st.sampled_from(["cores", "cores", "threads"]))
    return intent_of(reserve={"cores_per_node": draw(st.sampled_from([1, 1, 1, 2, 0]))}, **guest)


@st.composite
def wild_intents(draw: st.DrawFn, shape: Shape) -> dict[str, Any]:
    """One guest of any legal kind."""
    intent: dict[str, Any] = draw(small_intents(shape))
    guest = intent["guests"][0]
    guest["hugepages"] = draw(st.sampled_from(["auto", "auto", "2MiB", "1GiB", "none"]))
    for key, kind in (("nics", "nic"), ("nvme", "nvme")):
        there = [card.address for card in shape.cards if card.kind == kind]
        if there:
            named = st.lists(st.sampled_from(there), max_size=2, unique=True)
            guest[key] = draw(st.one_of(st.just(0), st.integers(0, 2), named))
    if draw(st.booleans()):
        intent["reserve"]["memory_per_node"] = draw(st.sampled_from([0, "1GiB", "8GiB"]))
    intent["profile"] = draw(st.sampled_from(["guest", "none", "host"]))
    return intent
