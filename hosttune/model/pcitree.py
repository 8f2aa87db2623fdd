"""The distance between two PCI functions: the switches above each, and the grade of a pair.

Pure. The grades are those of `nvidia-smi topo -m`, defined by its legend, nearest first: PIX at most one PCIe switch
between the two, PXB several switches, PHB a host bridge, NODE the path between host bridges of one NUMA node, SYS the
path between NUMA nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hosttune.model.index import DeviceIndex
from hosttune.model.values import grouped, slot_of


def switches_above(index: DeviceIndex, address: str) -> tuple[str, ...]:
    """Return the switches above a function, nearest first, each named by its upstream port.

    If a bridge's kind was not read (configuration space needs root), it is derived from the tree: below a root port
    there are an upstream port, its downstream ports, and so on in turn; and only a switch has several slots on its bus.
    """
    chain = index.above(address)
    return tuple(bridge for n, bridge in enumerate(chain) if _is_switch(index, chain, n))


def shared_switch(index: DeviceIndex, a: str, b: str) -> str | None:
    """Return the nearest bridge above both functions, if it is the upstream port of a switch."""
    others = index.above(b)
    nearest = index.pci.get(next((bridge for bridge in index.above(a) if bridge in others), ""))
    return nearest.address if nearest is not None and nearest.port_type == "upstream-port" else None


def _is_switch(index: DeviceIndex, chain: tuple[str, ...], n: int) -> bool:
    bridge = index.pci.get(chain[n])
    kind = bridge.port_type if bridge else None
    if kind in ("upstream-port", "root-port", "downstream-port"):
        return kind == "upstream-port"
    in_turn = kind is None and n > 0 and (len(chain) - 1 - n) % 2 == 1
    return in_turn or _several_slots(index, chain[n])


def _several_slots(index: DeviceIndex, bridge: str) -> bool:
    """Whether functions of several slots are on the bus directly below a bridge. Virtual functions are not counted."""
    below = (device for device in index.below.get(bridge, ()) if device.physfn is None)
    return len({slot_of(device.address) for device in below}) > 1


def locality_switches(chains: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the switches that show how near some slots are to each other.

    `chains` has the switches of each slot, nearest first. A switch is included if it connects at least two slots. Below
    such a switch, one that is directly above a slot is also included, because the path past it distinguishes PXB from
    PIX. A switch that connects nothing, or that only leads to another switch, is not included.
    """
    return frozenset(_locality_switches([(slot, chain[::-1]) for slot, chain in chains.items()], shared=False))


def _locality_switches(placed: Sequence[tuple[str, tuple[str, ...]]], *, shared: bool) -> Iterator[str]:
    """Yield the switches of `locality_switches` for one level of the tree.

    `placed`: each slot with the switches that remain above it, outermost first. `shared`: the level is below a switch
    that connects several slots.
    """
    below = grouped((chain[0], (slot, chain[1:])) for slot, chain in placed if chain)
    for switch, inner in below.items():
        branches = {chain[0] if chain else slot for slot, chain in inner}
        joins = len(branches) > 1
        if joins or (shared and not inner[0][1]):
            yield switch
        yield from _locality_switches(inner, shared=shared or joins)


def host_bridge(index: DeviceIndex, address: str) -> str:
    """Return domain and number of the root bus above a function ("0000:15")."""
    top = (address, *index.above(address))[-1]
    return top.rpartition(":")[0]


def grade(index: DeviceIndex, a: str, b: str) -> str | None:
    """Return the grade of a pair of functions; None if it depends on NUMA nodes that are unknown."""
    if slot_of(a) == slot_of(b):
        return "PIX"
    above_a, above_b = switches_above(index, a), switches_above(index, b)
    shared = next((switch for switch in above_a if switch in above_b), None)
    if shared is not None:
        return "PIX" if shared == above_a[0] == above_b[0] else "PXB"
    if host_bridge(index, a) == host_bridge(index, b):
        return "PHB"
    nodes = [device.numa_node if device else None for device in (index.pci.get(a), index.pci.get(b))]
    if None in nodes:
        return None
    return "NODE" if nodes[0] == nodes[1] else "SYS"
