"""How much memory of which page size each node can give to a new guest.

Pure. Pages that are free count as they are; missing ones can be made from memory that neither the host's
reserve, nor existing guests, nor any page pool holds, and now only from memory that is free now. Pages of 1 GiB can
be reserved at boot, when all of that memory is free. A node of unknown size never refuses: that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hosttune.model.host import Host, HugePages, NumaNode, RunningGuest
from hosttune.model.intent import Reserve
from hosttune.model.values import format_size, parse_cpus, parse_size
from hosttune.planning.inventory.resources import place_cpus

GIB = 1 << 30
MIB = 1 << 20
SMALL_PAGE = 4096
HUGE_2M = 2 * MIB
HUGE_1G = GIB
DEFAULT_RESERVE = 8 * GIB
# Of free memory the kernel itself keeps what is below its high watermark: the least (at most 256 MiB on all nodes) and
# twice a thousandth of the node's memory (Linux admin-guide/sysctl/vm: watermark_scale_factor, min_free_kbytes).
WATERMARK_PART = 256
RUNNING = frozenset(("running", "paused", "idle", "in shutdown", "pmsuspended", "blocked"))


@dataclass(frozen=True)
class Pool:
    """The pages of one size on one node; `free` is what is left after guests that are defined but not running.

    `total` None = unknown, `least` is then what it has at least. `counted` False: how many are free is unknown,
    and all of them count as used.
    """

    total: int | None
    free: int
    least: int
    counted: bool


@dataclass(frozen=True)
class NodeMemory:
    """Memory of one node. `creatable_bytes` None = the node's size is unknown.

    Pools of unknown size are not in `creatable_bytes` as far as they are known; it is then the most there can be.
    `now_bytes` is what new pages or a guest's ordinary memory can be made from before a reboot; None = unknown.
    """

    node: int
    memory_bytes: int | None
    reserve_bytes: int
    assignable_bytes: int | None  # not reserved, held by guests or not: what `auto` shares out
    creatable_bytes: int | None
    pools: Mapping[int, Pool]
    reported: frozenset[int]  # page sizes that the host says it has
    now_bytes: int | None = None

    @property
    def has_memory(self) -> bool:
        """Whether the node may have memory: only a size of 0 says that it has none."""
        return self.memory_bytes != 0

    @property
    def nothing_to_share(self) -> str | None:
        """Why `auto` finds no memory to share out here whatever is free; None where there is some, or may be."""
        if self.assignable_bytes is None or self.assignable_bytes >= SMALL_PAGE:
            return None
        if not self.has_memory:
            return f"node {self.node} has no memory"
        return f"the host's reserve takes all {format_size(self.memory_bytes)} of node {self.node}"

    def pages_free(self, page: int) -> int:
        """Free pages of a size now."""
        pool = self.pools.get(page)
        return max(0, pool.free) if pool else 0

    @property
    def short_now(self) -> bool:
        """Whether less is free now than there would be after a reboot."""
        return self.now_bytes is not None and (self.creatable_bytes is None or self.now_bytes < self.creatable_bytes)

    def room_bytes(self, *, at_boot: bool = False) -> int | None:
        """What new pages can be made from, now or `at_boot`; None = unknown."""
        return self.now_bytes if self.short_now and not at_boot else self.creatable_bytes

    def capacity_bytes(self, page: int | None, *, at_boot: bool = False) -> int | None:
        """Most memory a guest can get here in pages of one size (None: ordinary pages); None = unknown.

        `at_boot`: the missing pages are reserved by the next boot.
        """
        room = self.room_bytes(at_boot=at_boot)
        if room is None or page is None:
            return room
        return self.pages_free(page) * page + room // page * page

    def missing_pages(self, page: int, want_bytes: int) -> int:
        """How many pages an action has to add for this much memory."""
        return max(0, -(-want_bytes // page) - self.pages_free(page))

    def pages_known(self, page: int) -> int:
        """Pages of a size that the node has now, as many as are known."""
        pool = self.pools.get(page)
        return pool.least if pool else 0

    def pages_wanted(self, page: int, want_bytes: int) -> int:
        """How many pages the pool has to have so that this much memory is free in it."""
        return self.pages_known(page) + self.missing_pages(page, want_bytes)


def reserve_bytes(reserve: Reserve, memory_bytes: int | None) -> int:
    """What the host keeps on a node: as asked, else 8 GiB but at most a quarter; never more than the node."""
    asked = reserve.memory_per_node
    if asked is not None:
        kept = 0 if asked in (0, "0") else parse_size(asked, where="intent: reserve.memory_per_node")
        return kept if memory_bytes is None else min(kept, memory_bytes)
    return DEFAULT_RESERVE if memory_bytes is None else min(DEFAULT_RESERVE, memory_bytes // 4)


def guest_shares(
    guest: RunningGuest, nodes: tuple[NumaNode, ...], places: Mapping[int, int]
) -> list[tuple[int, int, int | None]]:
    """(node, bytes, page size) of an existing guest: as recorded, else by where its vCPUs are pinned (`places`)."""
    recorded = [
        (part.node, part.memory_bytes, part.page_bytes or guest.page_bytes)
        for part in guest.memory or ()
        if part.node is not None and part.memory_bytes
    ]
    if recorded or not guest.memory_bytes:
        return recorded
    pinned = [cpu for pin in guest.vcpu_pins or () for cpu in parse_cpus(pin.cpus)]
    counts = {node.id: sum(places.get(cpu) == node.id for cpu in pinned) for node in nodes}
    if not sum(counts.values()):
        counts = {node.id: 1 for node in nodes if node.memory_bytes}
    total = sum(counts.values())
    return [(node, guest.memory_bytes * n // total, guest.page_bytes) for node, n in counts.items() if n]


def read_memory(host: Host, reserve: Reserve) -> dict[int, NodeMemory]:
    """NodeMemory for every node of the host document."""
    places = place_cpus(host).nodes
    shares = [
        (node, size, page, (guest.state or "running") in RUNNING)
        for guest in host.guests or ()
        for node, size, page in guest_shares(guest, host.numa_nodes, places)
    ]
    return {node.id: _node_memory(node, reserve, [s for s in shares if s[0] == node.id]) for node in host.numa_nodes}


def _pool(pages: HugePages) -> Pool:
    """A pool as the host document has it: what is not known to be free counts as used."""
    free = pages.free or 0
    return Pool(
        total=pages.total,
        free=free if pages.total is None else min(free, pages.total),
        least=free if pages.total is None else pages.total,
        counted=pages.free is not None,
    )


def _node_memory(node: NumaNode, reserve: Reserve, shares: list[tuple[int, int, int | None, bool]]) -> NodeMemory:
    """Settle existing guests against the node's pools.

    A running guest's pages are already used ones; what its share exceeds the used pages by is ordinary memory.
    A guest that is defined but not running still needs its pages: they are taken off the free ones, largest
    pool first where its page size is unknown, and what is short off the memory that is left.
    """
    pools = {p.size_bytes: _pool(p) for p in node.hugepages or ()}
    free = {size: pool.free for size, pool in pools.items()}
    used_bytes = sum((pool.least - pool.free) * size for size, pool in pools.items())
    ordinary = max(0, sum(size for _, size, _, runs in shares if runs) - used_bytes)
    coming = 0  # ordinary memory that guests which do not run will take
    for _, wanted, page, runs in shares:
        if runs:
            continue
        left = wanted
        for size in [page] if page in free else sorted(free, reverse=True):
            taken = min(free[size], -(-left // size))
            free[size] -= taken
            left = max(0, left - taken * size)
        coming += left
    ordinary += coming
    kept = reserve_bytes(reserve, node.memory_bytes)
    creatable = assignable = None
    if node.memory_bytes is not None:
        pooled = sum(pool.least * size for size, pool in pools.items())
        assignable = max(0, node.memory_bytes - kept)
        creatable = max(0, node.memory_bytes - kept - ordinary - pooled)
    now = None
    if node.free_bytes is not None:
        now = max(0, node.free_bytes - (node.memory_bytes or node.free_bytes) // WATERMARK_PART - coming)
    return NodeMemory(
        node=node.id,
        memory_bytes=node.memory_bytes,
        reserve_bytes=kept,
        assignable_bytes=assignable,
        creatable_bytes=creatable,
        pools={size: replace(pool, free=free[size]) for size, pool in pools.items()},
        reported=frozenset(p.size_bytes for p in node.hugepages or ()),
        now_bytes=now,
    )


def page_sizes(host: Host, wanted: str) -> list[int | None]:
    """Page sizes to try, best first. `auto` offers 1 GiB only where the host is known to have such pages."""
    if wanted == "none":
        return [None]
    if wanted == "2MiB":
        return [HUGE_2M]
    if wanted == "1GiB":
        return [HUGE_1G]
    sizes: set[int] = set()
    for node in host.numa_nodes:
        sizes.update(p.size_bytes for p in node.hugepages or ())
    flags = host.cpu_model.flags if host.cpu_model and host.cpu_model.flags else ()
    return [HUGE_1G, HUGE_2M] if HUGE_1G in sizes or (not sizes and "pdpe1gb" in flags) else [HUGE_2M]


def split_evenly(total_bytes: int, parts: int, page: int | None) -> list[int] | None:
    """A total in whole pages for each of `parts` cells, as even as pages allow; None when it does not come out."""
    unit = page or SMALL_PAGE
    pages, rest = divmod(total_bytes, unit)
    if rest or pages < parts:
        return None
    each, more = divmod(pages, parts)
    return [(each + (i < more)) * unit for i in range(parts)]
