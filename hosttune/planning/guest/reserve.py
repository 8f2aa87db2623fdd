"""The host after one more guest got its resources.

Pure. Gives the same as a discovery after the guest is defined there (`RunningGuest`), without reading the whole host
again.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hosttune.domain.defined import as_planned
from hosttune.inventory.pages import NodeMemory, Pool
from hosttune.inventory.resources import NodeResources
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.host import RunningGuest
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus


def pins_of(guest: PlannedGuest) -> CpuSet:
    """Return the CPUs that a planned guest's vCPUs are pinned to."""
    return CpuSet(cpu for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))


def take(context: PlanningContext, guest: PlannedGuest, *, exclusive: bool = False) -> PlanningContext:
    """Return what is left for others once a guest has its CPUs, memory and devices.

    `exclusive`: no other guest may have the idle siblings of its CPUs. For existing guests this is unknown.
    """
    return take_entry(context, as_planned(guest), exclusive=exclusive)


def take_entry(context: PlanningContext, entry: RunningGuest, *, exclusive: bool = False) -> PlanningContext:
    """Return what is left for others beside a guest of the host document. `exclusive`: see `take`."""
    pins = CpuSet(cpu for pin in entry.vcpu_pins or () for cpu in parse_cpus(pin.cpus))
    service = parse_cpus(entry.emulator_cpus).union(*(parse_cpus(cpus) for cpus in entry.iothread_cpus or ()))
    taken = CpuSet(pins | service if context.reserve.cores_per_node != 0 else pins)  # same rule as `read_resources`
    nodes = {n: _without(node, taken, exclusive) if taken else node for n, node in context.resources.nodes.items()}
    memory = dict(context.memory)
    for part in entry.memory or ():
        if part.node in memory:
            memory[part.node] = _less(memory[part.node], part.memory_bytes or 0, part.page_bytes)
    holders = {**context.catalogue.holders, **dict.fromkeys(entry.devices, entry.name)}
    users = {
        address: f"{entry.name}, by {path}"
        for path in entry.host_paths
        for address in context.catalogue.index.functions_under(path) or ()
    }
    return replace(
        context,
        host=msgspec.structs.replace(context.host, guests=(*(context.host.guests or ()), entry)),
        resources=replace(context.resources, nodes=nodes, pinned=CpuSet(context.resources.pinned | taken)),
        memory=memory,
        catalogue=replace(
            context.catalogue,
            holders=holders,
            users={**users, **context.catalogue.users},
            fabric=context.catalogue.fabric.given(entry.devices, entry.name),
        ),
    )


def _without(node: NodeResources, taken: CpuSet, exclusive: bool) -> NodeResources:
    """Return a node without these CPUs: their cores are no longer free.

    The idle siblings stay free for sharing unless `exclusive`.
    """
    free = tuple(core for core in node.free if taken.isdisjoint(core.siblings))
    siblings = (cpu for core in node.cores if exclusive and not taken.isdisjoint(core.siblings) for cpu in core.cpus)
    return replace(node, free=free, free_threads=CpuSet(node.free_threads - taken - CpuSet(siblings)))


def _less(memory: NodeMemory, size: int, page: int | None) -> NodeMemory:
    """Return a node's memory after `size` bytes were given away: free pages first, then pages made of other memory."""
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
