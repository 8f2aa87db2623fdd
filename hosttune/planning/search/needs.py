"""The needs of a guest wherever it is placed, and whether it certainly has no place any more.

Pure. Less exact than a placement, and cheap: a search asks this often, to end branches that cannot succeed.
"""

from __future__ import annotations

import msgspec

from hosttune.inventory.cores import cores_needed
from hosttune.inventory.devices import gpu_count
from hosttune.inventory.pages import HUGE_1G
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.intent import GuestIntent, NicRequest
from hosttune.model.values import parse_size
from hosttune.planning.mig.instances import is_vgpu_guest
from hosttune.planning.mig.packing import most
from hosttune.planning.request.resource_pool import (
    GuestRequest,
    ResourcePool,
    functions_of,
    gpu_pools,
    gpu_sets,
    occupied,
)
from hosttune.planning.search.ledger import Ledger, Totals
from hosttune.planning.search.problem import PlacementProblem
from hosttune.planning.search.selections import Picks

_SLICES = 8  # memory slices of a GPU of most products
WORK_OF_SLICES = 30  # cost of a look for MIG slices; one placement costs 1
WORK_OF_ROOM = 8

CellNeed = tuple[int, int, int]  # cores (CPUs, if they are shared), bytes, and how many nodes must have this much


class GuestNeeds(msgspec.Struct, frozen=True):
    """The needs of one guest: `least` on the whole host, and where devices come from (index in the pool, count).

    `named`: devices that it names; `sets`: it gets one of these sets; `pools`: `gpus` are counted from these (index,
    devices in each bundle); `counted`: the NICs and drives that it may have, and how many it wants; `cells`: what its
    cells need, for each possible number of cells.
    """

    want: GuestRequest
    least: Totals
    named: Picks
    sets: tuple[Picks, ...]
    pools: tuple[Picks, ...]
    gpus: int
    counted: tuple[tuple[tuple[int, ...], int], ...]
    cells: tuple[tuple[CellNeed, ...], ...]


def need_of(problem: PlacementProblem, which: int) -> GuestNeeds:
    """Return the needs of the guest of this number."""
    resource_pool, want = problem.resource_pool, problem.wants[which]

    def listed(what: str, part: int) -> Picks:
        return tuple((kind.index, len(kind.bundles)) for kind in resource_pool.of((which, what, part)))

    pools = tuple(
        tuple((kind.index, kind.trait.size) for kind in resource_pool.of((which, "gpu", part)))
        for part in range(len(gpu_pools(want)))
    )
    named, sets = listed("named", 0), tuple(listed("set", part) for part in range(len(gpu_sets(want.candidates))))
    count = 0 if sets else gpu_count(want.guest) or 0

    def in_pool(what: str, taken: Picks) -> int:
        """Return how many devices of a pool these are."""
        sizes = dict(resource_pool.pools[what])
        return sum(sizes.get(index, 0) * bundles for index, bundles in taken)

    nics = want.guest.nics.count if isinstance(want.guest.nics, NicRequest) else want.guest.nics
    wanted = {what: count for what, count in (("nic", nics), ("nvme", want.guest.nvme)) if isinstance(count, int)}
    counted = tuple(
        (tuple(kind.index for kind in resource_pool.of((which, w, 0))), count) for w, count in wanted.items()
    )
    cores, cpus = _least_cpus(problem, want.guest)
    least = Totals(
        cores=cores,
        memory_bytes=_least_memory(want.guest),
        gpus=min((in_pool("any-gpu", addresses) for addresses in sets), default=count),
        cpus=cpus,
        slices=_least_slices(resource_pool, want.guest),
        counted_gpus=min((in_pool("gpu", addresses) for addresses in sets), default=count),
        nics=in_pool("nic", named) + wanted.get("nic", 0),
        drives=in_pool("nvme", named) + wanted.get("nvme", 0),
    )
    return GuestNeeds(want, least, named, sets, pools or ((),), count, counted, _cells_of(problem, want.guest))


def _least_cpus(problem: PlacementProblem, guest: GuestIntent) -> tuple[int, int]:
    """Return the least (whole cores, CPUs) that a guest takes; a guest that shares cores takes no whole ones."""
    if isinstance(guest.numa, tuple):
        vcpus = [cell.vcpus for cell in guest.numa]
    else:
        vcpus = [guest.vcpus if isinstance(guest.vcpus, int) else 1]
    if guest.smt == "threads":
        return 0, sum(vcpus)
    cores = sum(cores_needed(count, problem.context.resources.threads_per_core) for count in vcpus)
    return cores, cores * min(problem.resource_pool.narrowest.values(), default=1)


def _least_memory(guest: GuestIntent) -> int:
    if isinstance(guest.numa, tuple):
        return sum(parse_size(cell.memory, where="numa") for cell in guest.numa)
    return 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")


def _least_slices(resource_pool: ResourcePool, guest: GuestIntent) -> int:
    if guest.mig is None or not is_vgpu_guest(guest):
        return 0
    return guest.mig.count * min(
        (site.profile.size or 1 for _, site in resource_pool.sites[guest.mig.profile]), default=1
    )


def weight(context: PlanningContext, need: GuestNeeds) -> float:
    """Return the part of the host that a guest takes, for the resource of which it takes most."""
    least = need.least
    memory = sum(node.memory_bytes or 0 for node in context.memory.values())
    all_cores = sum(len(node.cores) for node in context.resources.nodes.values())
    all_gpus = len(context.catalogue.gpus)
    whole = least.gpus + least.slices / _SLICES
    return max(least.cores / max(1, all_cores), (least.memory_bytes or 0) / max(1, memory), whole / max(1, all_gpus))


def is_dead(ledger: Ledger, need: GuestNeeds) -> bool:
    """Return whether a guest certainly has no placement: too few devices, or no room for any number of cells."""
    ledger.spend(WORK_OF_ROOM)
    left = ledger.left
    guest = need.want.guest
    if guest.mig is not None and is_vgpu_guest(guest):
        ledger.spend(WORK_OF_SLICES)
        return instances_left(ledger, guest.mig.profile) < guest.mig.count or not _has_room(ledger, need)
    if any(left[index] < count for index, count in need.named):
        return True
    if need.sets and not any(all(left[index] >= count for index, count in needed) for needed in need.sets):
        return True
    if need.gpus and max(sum(left[index] * size for index, size in pool) for pool in need.pools) < need.gpus:
        return True
    if any(sum(left[index] for index in pool) < count for pool, count in need.counted):
        return True
    return not _has_room(ledger, need)


def instances_left(ledger: Ledger, profile: str) -> int:
    """Return how many more instances of a profile the host's GPUs can carry as vGPUs."""
    resource_pool, left = ledger.resource_pool, ledger.left
    taken = occupied(resource_pool, left)
    total = 0
    for address, site in resource_pool.sites[profile]:
        room = most(site.profile, site.occupied | taken.get(address, 0))
        total += min(room, left[resource_pool.parts[functions_of(address)]])
    return total


def _has_room(ledger: Ledger, need: GuestNeeds) -> bool:
    """Return whether enough nodes have room for some number of cells.

    Less exact than a placement: it can be true without a possible placement, but it is never wrongly false.
    """
    nodes = ledger.rooms(shared=need.want.guest.smt == "threads")

    def able(cpus: int, size: int) -> int:
        return sum(have >= cpus and (room is None or room >= size) for have, room in nodes)

    return any(all(able(cpus, size) >= count for cpus, size, count in cells) for cells in need.cells)


def _cells_of(problem: PlacementProblem, guest: GuestIntent) -> tuple[tuple[CellNeed, ...], ...]:
    """Return what the cells need at least, for every number of cells that the guest may have."""
    nodes = len(problem.context.resources.nodes)
    most = problem.context.resources.threads_per_core

    def units(vcpus: int) -> int:
        return vcpus if guest.smt == "threads" else cores_needed(vcpus, most)

    if isinstance(guest.numa, tuple):
        listed = [(units(cell.vcpus), parse_size(cell.memory, where="numa"), 1) for cell in guest.numa]
        return (tuple(listed),) if len(listed) <= nodes else ()
    total = 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")
    cells: list[tuple[CellNeed, ...]] = []
    for count in range(1, nodes + 1) if guest.numa == "auto" else (guest.numa,):
        if isinstance(guest.vcpus, int) and guest.vcpus % count:
            continue
        cpus = units(guest.vcpus // count) if isinstance(guest.vcpus, int) else 1
        # memory in whole pages of 1 GiB may be divided unevenly
        cells.append(((cpus, total // count - HUGE_1G, count),))
    return tuple(cells)
