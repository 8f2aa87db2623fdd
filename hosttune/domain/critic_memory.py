"""Faults of memory: policy, pages, locking, ballooning."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.facts import GuestCell
from hosttune.domain.guest_on_host import Fault, GuestOnHost
from hosttune.model import sysfs
from hosttune.model.host import NumaNode
from hosttune.model.values import CpuSet, format_size, parse_cpus

_NUMATUNE = "/domain/numatune"
_BACKING = "/domain/memoryBacking"
_NODES = sysfs.NODES
_VFIO_RESERVE = 1 << 30  # libvirt's own allowance for MMIO, in addition to the guest's memory


def memory_faults(scene: GuestOnHost) -> Iterator[Fault]:
    """Yield all faults that the rules of this file find."""
    yield from _sum(scene)
    yield from _policy(scene)
    yield from _near_vcpus(scene)
    yield from _pages(scene)
    yield from _room(scene)
    yield from _locking(scene)


def _sum(scene: GuestOnHost) -> Iterator[Fault]:
    """Compare the guest's memory with the sum of its cells: libvirt uses the sum and ignores the written amount."""
    guest = scene.guest
    sizes = [cell.memory_bytes for cell in guest.cells if cell.memory_bytes is not None]
    if not sizes or len(sizes) < len(guest.cells) or guest.memory_bytes is None:
        return
    more = guest.memory_bytes - sum(sizes)
    # Memory devices count in <memory> but in no cell. They need a <maxMemory>.
    if more < 0 or (more > 0 and guest.max_memory_bytes is None):
        text = (
            f"<memory> is {format_size(guest.memory_bytes)} ({guest.memory_bytes} bytes), but the cells add up to "
            f"{format_size(sum(sizes))} ({sum(sizes)} bytes): libvirt gives the guest the cells' sum"
        )
        yield Fault("warn", text, "/domain/memory")


def _policy(scene: GuestOnHost) -> Iterator[Fault]:
    numatune = scene.guest.numatune
    if len(scene.host.numa_nodes) > 1 and (scene.pins or scene.passed):
        loose = [cell.id for cell in scene.guest.cells if scene.memory_nodes(cell.id) is None]
        if loose or (not scene.guest.cells and scene.memory_nodes(None) is None):
            mode = numatune.mode or next((memnode.mode for memnode in numatune.memnodes), None)
            said = f"numatune mode is {mode}" if mode else "there is no numatune"
            text = f"memory is not bound: {said}, so it may come from any node ({_NODES}), without a warning"
            yield Fault("warn", text, _NUMATUNE)
    known = {node.id: node for node in scene.host.numa_nodes}
    if not known:
        return
    wanted = parse_cpus(numatune.nodes)
    for memnode in numatune.memnodes:
        wanted = wanted | parse_cpus(memnode.nodes)
    absent = wanted - known
    if absent:
        yield Fault("error", f"nodes {absent} do not exist on this host ({_NODES})", _NUMATUNE)
    empty = CpuSet(node for node in wanted & known.keys() if known[node].memory_bytes == 0)
    if empty:
        yield Fault("error", f"nodes {empty} have no memory ({_NODES}/node*/meminfo)", _NUMATUNE)


def _near_vcpus(scene: GuestOnHost) -> Iterator[Fault]:
    """Check that each cell's memory is on the node of its vCPUs."""
    for cell in (*(cell.id for cell in scene.guest.cells), None):
        if cell is None and scene.guest.cells:
            return
        memory = scene.memory_nodes(cell)
        vcpus = scene.vcpu_nodes(cell)
        who = "the guest" if cell is None else f"cell {cell}"
        if memory is not None and vcpus and not vcpus <= memory:
            text = f"the vCPUs of {who} run on nodes {vcpus}, its memory is on nodes {memory}: remote access"
            yield Fault("warn", text, f"{_NUMATUNE}/memnode")


def _pages(scene: GuestOnHost) -> Iterator[Fault]:
    pages = scene.guest.backing.pages
    if pages is None:
        if scene.gpus:
            text = "no huge pages: the IOMMU and the guest walk 4 KiB pages, and starting takes longer"
            yield Fault("warn", text, _BACKING)
        return
    offered = {page.size_bytes for node in scene.host.numa_nodes for page in node.hugepages or ()}
    for page in pages:
        if page.size_bytes and offered and page.size_bytes not in offered:
            text = (
                f"pages of {format_size(page.size_bytes)}: this host has {_sizes(offered)} ({_NODES}/node*/hugepages)"
            )
            yield Fault("error", text, f"{_BACKING}/hugepages")
    for cell in scene.guest.cells:
        size = _page_size(scene, cell.id)
        if size and cell.memory_bytes is not None and cell.memory_bytes % size:
            text = f"cell {cell.id}: {cell.memory_bytes} bytes is not a whole number of {format_size(size)} pages"
            yield Fault("error", text, "/domain/cpu/numa/cell")
    total = scene.guest.memory_bytes
    size = _page_size(scene, None)
    if not scene.guest.cells and size and total is not None and total % size:
        text = f"{total} bytes is not a whole number of {format_size(size)} pages"
        yield Fault("error", text, "/domain/memory")


def _sizes(sizes: set[int]) -> str:
    return " and ".join(format_size(size) for size in sorted(sizes))


def _page_size(scene: GuestOnHost, cell: int | None) -> int | None:
    """Return a cell's page size: of the pages for that cell, else for all cells; None = unknown or ordinary pages."""
    pages = scene.guest.backing.pages or ()
    for page in pages:
        if page.cells is not None and (cell or 0) in parse_cpus(page.cells):
            return page.size_bytes
    settings = scene.host.memory_settings
    fallback = next((page for page in pages if page.cells is None), None)
    if fallback is None:
        return None
    return fallback.size_bytes or (settings.default_hugepage_bytes if settings else None)


def _room(scene: GuestOnHost) -> Iterator[Fault]:
    """Check that each node can hold the memory bound to it alone, and that its huge pages are already reserved."""
    need: dict[int, dict[int | None, int]] = {}
    cells = scene.guest.cells or (GuestCell(id=0, vcpus="", memory_bytes=scene.guest.memory_bytes),)
    for cell in cells:
        nodes = scene.memory_nodes(cell.id if scene.guest.cells else None)
        if nodes is None or len(nodes) != 1 or cell.memory_bytes is None:
            continue
        of_node = need.setdefault(min(nodes), {})
        size = _page_size(scene, cell.id)
        of_node[size] = of_node.get(size, 0) + cell.memory_bytes
    known = {node.id: node for node in scene.host.numa_nodes}
    for node, sizes in sorted(need.items()):
        found = known.get(node)
        if found is None:
            continue
        total = sum(sizes.values())
        if found.memory_bytes is not None and total > found.memory_bytes:
            has = f"{format_size(found.memory_bytes)} ({_NODES}/node{node}/meminfo)"
            text = f"{format_size(total)} of memory bound to node {node}, which has {has}"
            yield Fault("error", text, _NUMATUNE)
            continue
        yield from _pool(found, sizes)


def _pool(node: NumaNode, sizes: dict[int | None, int]) -> Iterator[Fault]:
    for size, needed in sizes.items():
        pool = next((page for page in node.hugepages or () if page.size_bytes == size), None)
        if size is None or pool is None or pool.total is None or pool.total * size >= needed:
            continue
        text = (
            f"needs {needed // size} pages of {format_size(size)} on node {node.id}, where {pool.total} are reserved "
            f"({_NODES}/node{node.id}/hugepages/hugepages-{size // 1024}kB/nr_hugepages): reserve them before the start"
        )
        yield Fault("info", text, f"{_BACKING}/hugepages")


def _locking(scene: GuestOnHost) -> Iterator[Fault]:
    guest = scene.guest
    if guest.backing.locked and guest.hard_limit_bytes is None:
        text = "<locked/> without a hard_limit: the guest may lock all memory of the host"
        yield Fault("warn", text, f"{_BACKING}/locked")
    if not guest.hostdevs:
        return
    if guest.balloon != "none":
        model = f"model {guest.balloon}" if guest.balloon else "libvirt adds one where none is written"
        text = f"a memory balloon ({model}) beside passed devices: VFIO pins all memory, a balloon cannot give it back"
        yield Fault("warn", text, "/domain/devices/memballoon")
    limit = guest.hard_limit_bytes
    if scene.passed and limit is not None and guest.memory_bytes is not None:
        least = guest.memory_bytes + _VFIO_RESERVE
        if limit < least:
            text = f"hard_limit {format_size(limit)} is below memory + 1 GiB ({format_size(least)}) that VFIO locks"
            yield Fault("error", text, "/domain/memtune/hard_limit")
