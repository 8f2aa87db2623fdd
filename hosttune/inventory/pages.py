"""How much memory of each page size each node can give to a new guest.

Pure. Free pages count as they are. Missing pages can be made from memory that is not in the host's reserve, in existing
guests or in any page pool; before a reboot, only from memory that is free or in caches now. Pages of 1 GiB can be
reserved at boot, when all of that memory is free. A node of unknown size is no reason to refuse a guest, but there is
a finding.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hosttune.inventory.resources import place_cpus
from hosttune.model.host import Host, HugePages, NumaNode, RunningGuest
from hosttune.model.intent import Reserve
from hosttune.model.platform import RUNNING
from hosttune.model.values import format_size, parse_cpus, parse_size

GIB = 1 << 30
MIB = 1 << 20
SMALL_PAGE = 4096
HUGE_2M = 2 * MIB
HUGE_1G = GIB
LEAST_RESERVE = 8 * GIB
# What the reserve must hold. Page tables of BARs that are mapped 4 KiB at a time (before QEMU 9.2 or Linux 6.12): 8
# bytes for each 4 KiB. QEMU: 8 MiB for each vCPU, 256 MiB for each guest (KubeVirt's GetMemoryOverhead: 8 MiB, and 220
# MiB of processes beside QEMU's firmware). The host: 2 GiB (Proxmox VE, "Recommended Hardware"). What firmware keeps is
# in no node's memory: Linux does not count it.
BAR_OF_TABLE = 512
VCPU_OVERHEAD = 8 * MIB
GUEST_OVERHEAD = 256 * MIB
HOST_OVERHEAD = 2 * GIB
# The kernel itself keeps the free memory below its high watermark: the minimum (at most 256 MiB on all nodes) and twice
# a thousandth of the node's memory (Linux admin-guide/sysctl/vm: watermark_scale_factor, min_free_kbytes).
WATERMARK_PART = 256


class Pool(msgspec.Struct, frozen=True):
    """The pages of one size on one node; `free`: what is left after guests that are defined but not running.

    `total` None = unknown; `least` is then the known minimum. `counted` False: the number of free pages is unknown, and
    all pages count as used.
    """

    total: int | None
    free: int
    least: int
    counted: bool


class NodeMemory(msgspec.Struct, frozen=True):
    """Memory of one node. `creatable_bytes` None = the node's size is unknown.

    If the size of a pool is unknown, only its known part is subtracted from `creatable_bytes`, which is then an upper
    limit. `now_bytes` is the memory for new pages or a guest's ordinary memory before a reboot, with what caches give
    back; None = unknown.
    """

    node: int
    memory_bytes: int | None
    reserve_bytes: int
    # All but the reserve or, if that is more, what others hold and cannot give back; also what guests hold. `auto`
    # divides it.
    assignable_bytes: int | None
    creatable_bytes: int | None
    pools: Mapping[int, Pool]
    now_bytes: int | None = None
    held_bytes: int = 0  # what others hold and cannot give back; 0 = unknown

    @property
    def has_memory(self) -> bool:
        """Whether the node may have memory; false only if its size is known to be 0."""
        return self.memory_bytes != 0

    @property
    def nothing_to_share(self) -> str | None:
        """Why `auto` has no memory to divide on this node; None if it has some, or may have some.

        Memory that guests hold counts, too.
        """
        if self.assignable_bytes is None or self.assignable_bytes >= SMALL_PAGE:
            return None
        if not self.has_memory:
            return f"node {self.node} has no memory"
        return f"the host's reserve takes all {format_size(self.memory_bytes)} of node {self.node}"

    def pages_free(self, page: int) -> int:
        """Return the free pages of a size now."""
        pool = self.pools.get(page)
        return max(0, pool.free) if pool else 0

    @property
    def short_now(self) -> bool:
        """Whether less memory is free now than there would be after a reboot."""
        return self.now_bytes is not None and (self.creatable_bytes is None or self.now_bytes < self.creatable_bytes)

    def room_bytes(self, *, at_boot: bool = False) -> int | None:
        """Return the memory from which new pages can be made, now or `at_boot`; None = unknown."""
        return self.now_bytes if self.short_now and not at_boot else self.creatable_bytes

    def capacity_bytes(self, page: int | None, *, at_boot: bool = False) -> int | None:
        """Return the most memory that a guest can get here in pages of one size (None: ordinary pages); None = unknown.

        `at_boot`: the next boot reserves the missing pages.
        """
        room = self.room_bytes(at_boot=at_boot)
        if room is None or page is None:
            return room
        return self.pages_free(page) * page + room // page * page

    def missing_pages(self, page: int, want_bytes: int) -> int:
        """Return how many pages an action must add for this much memory."""
        return max(0, -(-want_bytes // page) - self.pages_free(page))

    def pages_known(self, page: int) -> int:
        """Return the pages of a size that the node has now; if the number is unknown, the known minimum."""
        pool = self.pools.get(page)
        return pool.least if pool else 0

    def pages_wanted(self, page: int, want_bytes: int) -> int:
        """Return how many pages the pool must have so that this much memory is free in it."""
        return self.pages_known(page) + self.missing_pages(page, want_bytes)


def reserve_bytes(host: Host, reserve: Reserve) -> dict[int, int]:
    """Return what the host keeps on each node, in bytes: the requested amount, but never more than the node has.

    Without a request 8 GiB, or more if the page tables of the node's BARs, QEMU and the host need it, with a guest for
    each GPU; at most a quarter of the node. It is the same whatever guests are planned, so that equal requests get
    equal sizes.
    """
    asked = reserve.memory_per_node
    if asked is not None:
        kept = 0 if asked in (0, "0") else parse_size(asked, where="intent: reserve.memory_per_node")
        return {n.id: kept if n.memory_bytes is None else min(kept, n.memory_bytes) for n in host.numa_nodes}
    only = host.numa_nodes[0].id if len(host.numa_nodes) == 1 else None
    needs = {n.id: HOST_OVERHEAD + VCPU_OVERHEAD * len(parse_cpus(n.cpus)) for n in host.numa_nodes}
    for device in host.pci:
        node = only if device.numa_node is None else host.home(device.numa_node)
        if node in needs:
            needs[node] += GUEST_OVERHEAD * device.is_display
            needs[node] += sum(bar.size_bytes for bar in device.bars or ()) // BAR_OF_TABLE
    most = {n.id: None if n.memory_bytes is None else n.memory_bytes // 4 for n in host.numa_nodes}
    wanted = {node: max(LEAST_RESERVE, -(-need // GIB) * GIB) for node, need in needs.items()}
    return {node: want if (quarter := most[node]) is None else min(want, quarter) for node, want in wanted.items()}


def guest_shares(
    guest: RunningGuest, nodes: tuple[NumaNode, ...], places: Mapping[int, int]
) -> list[tuple[int, int, int | None]]:
    """Return (node, bytes, page size) of a guest: as recorded, else by the nodes of its vCPU pins (`places`)."""
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
    """Return the NodeMemory of every node of the host document."""
    places = place_cpus(host).nodes
    shares = [
        (node, size, page, (guest.state or "running") in RUNNING)
        for guest in host.guests or ()
        for node, size, page in guest_shares(guest, host.numa_nodes, places)
    ]
    kept = reserve_bytes(host, reserve)
    return {n.id: _node_memory(n, kept[n.id], [s for s in shares if s[0] == n.id]) for n in host.numa_nodes}


def _pool(pages: HugePages) -> Pool:
    """Return a pool of the host document. Pages that are not known to be free count as used."""
    free = pages.free or 0
    return Pool(
        total=pages.total,
        free=free if pages.total is None else min(free, pages.total),
        least=free if pages.total is None else pages.total,
        counted=pages.free is not None,
    )


def _node_memory(node: NumaNode, kept: int, shares: list[tuple[int, int, int | None, bool]]) -> NodeMemory:
    """Return a node's memory after the shares of existing guests.

    A running guest's pages are already among the used ones. If its share is larger than the used pages, the rest is
    ordinary memory. A guest that is defined but not running still needs its pages: they are subtracted from the free
    ones (from the largest pool first if its page size is unknown), and what is missing is subtracted from the remaining
    memory.
    """
    pools = {p.size_bytes: _pool(p) for p in node.hugepages or ()}
    free = {size: pool.free for size, pool in pools.items()}
    used_bytes = sum((pool.least - pool.free) * size for size, pool in pools.items())
    ordinary = max(0, sum(size for _, size, _, runs in shares if runs) - used_bytes)
    coming = sum(_take_pages(free, size, page) for _, size, page, runs in shares if not runs)  # not in pages
    ordinary += coming
    creatable = assignable = None
    now, held = None, 0
    if node.free_bytes is not None and node.cache_bytes is not None:
        spare = node.free_bytes + node.cache_bytes
        now = max(0, spare - (node.memory_bytes or spare) // WATERMARK_PART - coming)
    if node.memory_bytes is not None:
        pooled = sum(pool.least * size for size, pool in pools.items())
        creatable = max(0, node.memory_bytes - kept - ordinary - pooled)
        held = 0 if now is None else max(0, node.memory_bytes - pooled - ordinary - now)
        assignable = max(0, node.memory_bytes - max(kept, held))
    return NodeMemory(
        node=node.id,
        memory_bytes=node.memory_bytes,
        reserve_bytes=kept,
        assignable_bytes=assignable,
        creatable_bytes=creatable,
        pools={size: replace(pool, free=free[size]) for size, pool in pools.items()},
        now_bytes=now,
        held_bytes=held,
    )


def _take_pages(free: dict[int, int], wanted: int, page: int | None) -> int:
    """Take a guest's memory from the free pages of a node; return how many bytes of it are not in them."""
    for size in [page] if page in free else sorted(free, reverse=True):
        taken = min(free[size], -(-wanted // size))
        free[size] -= taken
        wanted = max(0, wanted - taken * size)
    return wanted


def page_sizes(host: Host, wanted: str) -> list[int | None]:
    """Return page sizes to try, best first. `auto` includes 1 GiB only if the host is known to have such pages."""
    if wanted == "none":
        return [None]
    if wanted == "2MiB":
        return [HUGE_2M]
    if wanted == "1GiB":
        return [HUGE_1G]
    sizes = {pool.size_bytes for node in host.numa_nodes for pool in node.hugepages or ()}
    flags = host.cpu_model.flags if host.cpu_model and host.cpu_model.flags else ()
    return [HUGE_1G, HUGE_2M] if HUGE_1G in sizes or (not sizes and "pdpe1gb" in flags) else [HUGE_2M]


def split_evenly(total_bytes: int, parts: int, page: int | None) -> list[int] | None:
    """Split a total into whole pages for each of `parts` cells, as evenly as possible; None if that is impossible."""
    unit = page or SMALL_PAGE
    pages, rest = divmod(total_bytes, unit)
    if rest or pages < parts:
        return None
    each, more = divmod(pages, parts)
    return [(each + (i < more)) * unit for i in range(parts)]
