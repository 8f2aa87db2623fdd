"""The KFD topology of amdgpu: which GPUs compute, where they are, and which ones XGMI joins.

Sources: drivers/gpu/drm/amd/amdkfd/kfd_topology.c, kfd_crat.h. Recorded ones: tests/cases/gpu/kfd.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hosttune.machine.reader import Reader, number
from hosttune.model.gpu import Peer
from hosttune.model.values import MAX_ID

NODES = "/sys/class/kfd/kfd/topology/nodes"
IOLINK_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI, drivers/gpu/drm/amd/amdkfd/kfd_crat.h
_MOST_NODES = 256  # GPUs whose pairs are examined
_MAX_U32, _MAX_U64 = (1 << 32) - 1, (1 << 64) - 1  # location_id and domain; any property (kfd_topology.h)


def listed_gpus(reader: Reader) -> list[str]:
    """Return the addresses of the GPUs of the topology, which leaves out GPUs that cannot compute."""
    return sorted({address for address in _places(_nodes(reader)).values() if address})


def render_nodes(reader: Reader, address: str, driver: str) -> list[str]:
    """Return the render nodes of a GPU's partitions, which are not in its folder of sysfs (amdgpu_xcp_drv.c)."""
    if driver != "amdgpu":
        return []
    nodes = _nodes(reader)
    mine = [nodes[name] for name, place in _places(nodes).items() if place == address]
    minors = [node.get("drm_render_minor") for node in mine]
    if len(mine) > 1 and not all(minors):
        reader.problem("partition without a render node", f"{NODES}: {address}", "drm_render_minor was not read")
    return [f"/dev/dri/renderD{minor}" for minor in minors if minor]


def read_xgmi(reader: Reader) -> tuple[dict[str, tuple[Peer, ...]], frozenset[str]]:
    """Return each GPU's peers by address, and the addresses of all GPUs, from the KFD topology.

    The kernel lists a link between two GPUs at both of them (kfd_parse_subtype_iolink adds the reverse link). A GPU is
    left out of the peers if its links, or those of a peer to it, were not read or lead to an unknown node. The number
    of XGMI links of a pair stays unknown: bandwidths are 0 in recorded topologies of MI300X.
    """
    nodes = {name: node for name, node in _nodes(reader).items() if number(name, MAX_ID) is not None}
    places = {int(name): place for name, place in _places(nodes).items()}
    addresses = {key: address for key, address in places.items() if address}
    here = sorted(set(addresses.values()))
    if len(here) > _MOST_NODES:
        reader.problem("too many GPUs", NODES, f"{len(here)}, at most {_MOST_NODES}: their XGMI links are unknown")
        return {}, frozenset(here)
    links: dict[str, dict[str | None, set[int | None]]] = {address: {} for address in here}
    for key, address in addresses.items():
        for link in _links(reader, f"{NODES}/{key}"):
            node_to = link.get("node_to")
            to = None if node_to is None else places.get(node_to)
            links[address].setdefault(to, set()).add(link.get("type"))
    kinds = {
        (address, other): _kind(links[address].get(other), links[other].get(address))
        for address in here
        for other in here
    }
    peers: dict[str, tuple[Peer, ...]] = {}
    for one in here:
        others = [other for other in here if other != one]
        unread = [other for other in others if kinds[one, other] is None]
        if unread or None in links[one]:
            why = f"its links to {unread[0] if unread else 'a node'} were not read: which peers it has is unknown"
            reader.problem("XGMI links not read", f"{NODES}: {one}", why)
        elif links[one]:  # a GPU has at least a link to its CPU: without any link, they were not read
            peers[one] = tuple(Peer(address=other, kind=kinds[one, other] or "") for other in others)
    return peers, frozenset(here)


def _links(reader: Reader, node: str) -> Iterator[dict[str, int | None]]:
    for folder in (f"{node}/io_links", f"{node}/p2p_links"):
        for entry in reader.names(folder):
            yield read_properties(reader, f"{folder}/{entry}/properties")


def _kind(there: Collection[int | None] | None, back: Collection[int | None] | None) -> str | None:
    """Return what connects two GPUs, by the types of the links that each lists to the other; None if one was not read.

    GPUs connected by PCIe list no link, or links of other types.
    """
    if there == back == {IOLINK_XGMI}:
        return "xgmi"
    return None if {IOLINK_XGMI, None} & {*(there or ()), *(back or ())} else "pcie"


def _nodes(reader: Reader) -> dict[str, dict[str, int | None]]:
    """Return the properties of each node of the KFD topology, by its name, which is its number."""
    return {name: read_properties(reader, f"{NODES}/{name}/properties") for name in reader.names(NODES)}


def read_properties(reader: Reader, path: str) -> dict[str, int | None]:
    """Return the values of a KFD `properties` file: one "name number" a line.

    None: not a number, or two different ones.
    """
    numbers: dict[str, int | None] = {}
    for line in (reader.text(path) or "").splitlines():
        name, _, word = line.partition(" ")
        value = number(word, _MAX_U64)
        if value is None or numbers.get(name, value) != value:
            reader.problem("not a property of the KFD topology", path, f"reads {line[:40]!r}")
            value = None
        numbers[name] = value
    return numbers


def _places(nodes: Mapping[str, Mapping[str, int | None]]) -> dict[str, str | None]:
    """Return where each node is (see `_place`); the partitions of a divided GPU are all where their GPU is.

    Each partition has a node. On MI300 its number is in the last bits of `location_id`, which are the PCI function's;
    newer kernels have it in bits 31:28 (kfd_topology.c, kfd_topology_add_device). All have the GPU's `unique_id`.
    """
    places = {name: _place(node) for name, node in nodes.items()}
    gpus: dict[tuple[str, int], str] = {}
    slots = {
        name: (place[:-1], unique)
        for name, place in places.items()
        if place and (unique := nodes[name].get("unique_id"))
    }
    for name, slot in slots.items():
        place = places[name] or ""
        gpus[slot] = min(gpus.get(slot, place), place)
    return {name: gpus[slots[name]] if name in slots else place for name, place in places.items()}


def _place(node: Mapping[str, int | None]) -> str | None:
    """Return the PCI address of a node that is a GPU, "" for a CPU (it has no SIMD), None if unknown.

    `location_id` is bus << 8 | device << 3 | function, and `domain` its PCI domain (kfd_topology.c).
    """
    simd, location, domain = node.get("simd_count"), node.get("location_id"), node.get("domain", 0)
    if simd == 0:
        return ""
    if simd is None or location is None or domain is None or max(location, domain) > _MAX_U32:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
