"""Memory of running guests: what of it is to move to other nodes while they run (the value of `live-memory`). Pure."""

from __future__ import annotations

from hosttune.model.guestmemory import MemoryPlaces, RunningMemory, read_memory, transfers
from hosttune.model.values import FrozenMap, format_size, parse_cpus
from hosttune.planning.adopting.changes import Placement

LIVE_MEMORY = "live-memory"


def memory_to_move(memory: RunningMemory | None, placement: Placement) -> tuple[str | None, str | None]:
    """Return the nodes that the cells' memory is to have, None if nothing is to move; and why it stays, if it must."""
    if memory is None:
        return None, None
    if memory.places is None:
        return None, memory.stays
    want = _wanted(memory.places, placement)
    if want is None:
        return None, None
    lacking = set(read_memory(want).nodes.values()) - parse_cpus(memory.allowed)
    stays = memory.stays
    if lacking and not stays:
        nodes = f"the control group of the guest allows memory of node {memory.allowed or 'none'} only"
        stays = f"{nodes}: it moves at its next start"
    return (None, stays) if stays else (want, None)


def _wanted(memory: str, placement: Placement) -> str | None:
    """Return the nodes that the memory is to have; None if it is there, or if the cells are not those that run.

    A cell that may have several nodes has none that its memory could be moved to.
    """
    now = read_memory(memory)
    nodes = {cell: parse_cpus(planned.host_nodes) for cell, planned in placement.cells}
    if nodes.keys() != now.pages.keys() or any(len(found) != 1 for found in nodes.values()):
        return None
    want = MemoryPlaces(process=now.process, nodes=FrozenMap({cell: min(found) for cell, found in nodes.items()}))
    return str(want) if transfers(now, want) else None


def why_moved(memory: str, want: str, name: str) -> str:
    """Return where memory is that has to move, and how."""
    now = read_memory(memory)
    sizes: dict[int, int] = {}
    for one in transfers(now, read_memory(want)):
        sizes[one.source] = sizes.get(one.source, 0) + one.pages * now.pages[one.cell].page_bytes
    there = ", ".join(f"{format_size(size)} on node {node}" for node, size in sorted(sizes.items()))
    return f"{there}: far from its vCPUs; moved while it runs, if it is named: --disrupt {name}"
