"""A host of which one more guest has taken its part.

Pure. The same that discovery would find once the guest is defined there (`RunningGuest`), without reading the
whole host again.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from hosttune.domain.expectedguest import as_defined
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.planning.inventory.pages import NodeMemory, Pool
from hosttune.planning.inventory.resources import NodeResources
from hosttune.planning.inventory.sizing import PlanningContext


def pins_of(guest: PlannedGuest) -> CpuSet:
    """The CPUs that a planned guest's vCPUs are pinned to."""
    return CpuSet(cpu for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))


def take(context: PlanningContext, guest: PlannedGuest, *, exclusive: bool = False) -> PlanningContext:
    """What is left for others once a guest has its CPUs, memory and devices.

    `exclusive`: the idle siblings of its CPUs are for nobody either. Of guests that exist already, that is not known.
    """
    entry = as_defined(guest)
    pins = pins_of(guest)
    service = parse_cpus(guest.emulator_cpus).union(*(parse_cpus(cpus) for cpus in guest.iothread_cpus))
    taken = CpuSet(pins | service if context.reserve.cores_per_node else pins)  # as `read_resources`
    nodes = {n: _without(node, taken, exclusive) if taken else node for n, node in context.resources.nodes.items()}
    memory = dict(context.memory)
    for cell in guest.cells:
        node = int(cell.host_nodes)
        if node in memory:
            memory[node] = _less(memory[node], cell.memory_bytes, guest.page_bytes)
    holders = {**context.catalogue.holders, **dict.fromkeys(entry.devices, guest.name)}
    return replace(
        context,
        host=msgspec.structs.replace(context.host, guests=(*(context.host.guests or ()), entry)),
        resources=replace(context.resources, nodes=nodes, pinned=CpuSet(context.resources.pinned | taken)),
        memory=memory,
        catalogue=replace(
            context.catalogue, holders=holders, fabric=context.catalogue.fabric.given(entry.devices, guest.name)
        ),
    )


def _without(node: NodeResources, taken: CpuSet, exclusive: bool) -> NodeResources:
    """A node with these CPUs held: their cores are free no more, their idle siblings are unless they are theirs too."""
    free = tuple(core for core in node.free if taken.isdisjoint(core.siblings))
    siblings = (cpu for core in node.cores if exclusive and not taken.isdisjoint(core.siblings) for cpu in core.cpus)
    return replace(node, free=free, free_threads=CpuSet(node.free_threads - taken - CpuSet(siblings)))


def _less(memory: NodeMemory, size: int, page: int | None) -> NodeMemory:
    """A node with so much memory given away: of the pages that are free, the rest made from other memory."""
    pools = dict(memory.pools)
    left = size
    if page in pools:
        pool: Pool = pools[page]
        used = min(max(0, pool.free), -(-size // page))
        pools[page] = replace(pool, free=pool.free - used)
        left = max(0, size - used * page)
    creatable, now = memory.creatable_bytes, memory.now_bytes
    return replace(
        memory,
        pools=pools,
        creatable_bytes=None if creatable is None else max(0, creatable - left),
        now_bytes=None if now is None else max(0, now - left),
    )
