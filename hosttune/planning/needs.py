"""What a guest needs wherever it goes, and whether it certainly has no place any more.

Pure. Less exact than a way, and cheap: a search asks this often, to end branches that nothing can come of.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosttune.gpu.mig_tables import SLICES
from hosttune.model.values import parse_size
from hosttune.planning.devices import gpu_count
from hosttune.planning.ledger import Ledger
from hosttune.planning.mig import is_vgpu_guest
from hosttune.planning.migpack import most
from hosttune.planning.options import Picks
from hosttune.planning.pages import HUGE_1G
from hosttune.planning.placement import cores_needed
from hosttune.planning.sizing import Field
from hosttune.planning.stock import Stock, Want, functions_of, gpu_pools, gpu_sets, occupied

WORK_OF_SLICES = 30  # what looking for MIG slices costs, where looking at one way costs 1
WORK_OF_ROOM = 8
Amounts = tuple[int, int, int, int, int]  # cores, bytes, GPUs, CPUs, memory slices of GPUs


@dataclass(frozen=True)
class Need:
    """One guest's needs: `least` on the whole host, and where the devices come from (index of the stock, count).

    `named` are those that it names, `sets` those of which it has one, `pools` those from which `gpus` are counted
    (index, devices in each bundle).
    """

    want: Want
    least: Amounts
    named: Picks
    sets: tuple[Picks, ...]
    pools: tuple[Picks, ...]
    gpus: int


def need_of(field: Field, stock: Stock, want: Want, which: int) -> Need:
    """The needs of the guest of this number."""

    def listed(what: str, part: int) -> Picks:
        return tuple((kind.index, len(kind.bundles)) for kind in stock.of((which, what, part)))

    pools = tuple(
        tuple((kind.index, kind.trait.size) for kind in stock.of((which, "gpu", part)))
        for part in range(len(gpu_pools(want)))
    )
    sets = tuple(listed("set", part) for part in range(len(gpu_sets(want.candidates))))
    count = 0 if sets else gpu_count(want.guest) or 0
    return Need(want, _least(field, stock, want), listed("named", 0), sets, pools or ((),), count)


def _least(field: Field, stock: Stock, want: Want) -> Amounts:
    guest = want.guest
    threads = field.resources.threads_per_core
    if isinstance(guest.numa, tuple):
        cores = sum(cores_needed(cell.vcpus, threads) for cell in guest.numa)
        size = sum(parse_size(cell.memory, where="numa") for cell in guest.numa)
    else:
        cores = cores_needed(guest.vcpus, threads) if isinstance(guest.vcpus, int) else 1
        size = 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")
    count = gpu_count(guest)
    gpus = len(want.candidates.named or ()) if count is None else count
    shares = guest.smt == "threads"
    cpus = sum(cell.vcpus for cell in guest.numa) if isinstance(guest.numa, tuple) else guest.vcpus
    least = min(stock.narrowest.values(), default=1)
    threads = (cpus if isinstance(cpus, int) else 1) if shares else cores * least
    slices = 0
    if guest.mig is not None and is_vgpu_guest(guest):
        sites = stock.sites[guest.mig.profile]
        slices = guest.mig.count * min((site.profile.size or 1 for _, site in sites), default=1)
    return (0 if shares else cores), size, gpus, threads, slices


def weight(field: Field, need: Need) -> float:
    """How much of the host a guest takes, by the resource of which it takes most."""
    cores, size, gpus, _, slices = need.least
    memory = sum(node.memory_bytes or 0 for node in field.memory.values())
    all_cores = sum(len(node.cores) for node in field.resources.nodes.values())
    all_gpus = len(field.catalogue.gpus)
    whole = gpus + slices / SLICES
    return max(cores / max(1, all_cores), size / max(1, memory), whole / max(1, all_gpus))


def is_dead(ledger: Ledger, need: Need) -> bool:
    """Whether a guest certainly has no way now: too few devices, or no number of cells finds room."""
    ledger.spend(WORK_OF_ROOM)
    left = ledger.left
    guest = need.want.guest
    if guest.mig is not None and is_vgpu_guest(guest):
        ledger.spend(WORK_OF_SLICES)
        return instances_left(ledger, guest.mig.profile) < guest.mig.count or not _has_room(ledger, need)
    if any(left[index] < count for index, count in need.named):
        return True
    if need.sets and not any(all(left[index] >= count for index, count in one) for one in need.sets):
        return True
    if need.gpus and max(sum(left[index] * size for index, size in pool) for pool in need.pools) < need.gpus:
        return True
    return not _has_room(ledger, need)


def instances_left(ledger: Ledger, profile: str) -> int:
    """How many more instances of a profile the host's GPUs take as vGPUs."""
    stock, left = ledger.stock, ledger.left
    taken = occupied(stock, left)
    total = 0
    for address, site in stock.sites[profile]:
        room = most(site.profile, site.occupied | taken.get(address, 0))
        total += min(room, left[stock.parts[functions_of(address)]])
    return total


def _has_room(ledger: Ledger, need: Need) -> bool:
    """Whether enough nodes have room for some number of cells; less exact than a way, never too strict."""
    guest = need.want.guest
    most = ledger.field.resources.threads_per_core
    shares = guest.smt == "threads"
    places = ledger.stock.threads.items() if shares else ((n, ledger.stock.cores[n, 1]) for n in ledger.stock.threads)
    nodes = [(ledger.left[index], ledger.memory_left(node)) for node, index in places]

    def units(vcpus: int) -> int:
        return vcpus if shares else cores_needed(vcpus, most)

    def able(cpus: int, size: int) -> int:
        return sum(have >= cpus and (room is None or room >= size) for have, room in nodes)

    if isinstance(guest.numa, tuple):
        cells = [(units(cell.vcpus), parse_size(cell.memory, where="numa")) for cell in guest.numa]
        return len(cells) <= len(nodes) and all(able(cpus, size) for cpus, size in cells)
    total = 0 if guest.memory == "auto" else parse_size(guest.memory, where="memory")
    for k in range(1, len(nodes) + 1) if guest.numa == "auto" else (guest.numa,):
        if not isinstance(guest.vcpus, int):
            if able(1, 0) >= k:
                return True
        elif guest.vcpus % k == 0 and able(units(guest.vcpus // k), total // k - HUGE_1G) >= k:
            return True
    return False
