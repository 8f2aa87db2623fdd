"""Why a guest does not fit, and changes that make it fit: each suggestion was tried on the same host.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from hosttune.inventory.cores import cores_needed, fits
from hosttune.inventory.devices import gpu_count
from hosttune.inventory.pages import MIB, SMALL_PAGE, page_sizes
from hosttune.inventory.sizing import PlanningContext, base_cells, read_field, shapes
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.model.values import format_size, parse_size
from hosttune.planning.mig.instances import mig_changes
from hosttune.planning.request.candidates import Candidates

GIB = 1 << 30
MOST_RELEASES = 8
WouldPlace = Callable[[PlanningContext, GuestIntent], bool]  # a complete trial, with devices and MMIO window


def shortage(context: PlanningContext, guest: GuestIntent, candidates: Candidates) -> tuple[str, ...]:
    """Return why a guest does not fit, node by node, for the first set of GPUs that was tried."""
    resources = context.resources
    gpus = candidates.first() or ()
    cells = base_cells(context, guest, gpus).cells
    have = len([node for node in resources.nodes.values() if node.cores])
    why: list[str] = []
    if cells > have:
        why.append(f"{cells} cells wanted, {have} nodes with CPUs: every cell has a host node of its own")
    if isinstance(guest.vcpus, int) and not isinstance(guest.numa, tuple) and guest.vcpus % cells:
        why.append(f"{guest.vcpus} vCPUs do not divide into {cells} equal cells")
    cuts = list(shapes(context, guest, gpus, cells))
    if not cuts and not why:
        why.append(_no_cut(context, guest))
    if cuts:
        shape = cuts[0].shape
        cell = max(shape.cells, key=lambda c: (c.vcpus, c.memory_bytes))
        need = f"{cores_needed(cell.vcpus, shape.threads)} cores" if not shape.share_cores else f"{cell.vcpus} CPUs"
        why.append(
            f"{'the largest cell' if len(shape.cells) > 1 else 'the guest'} needs {need} and"
            f" {format_size(cell.memory_bytes)} on one node"
        )
        for node in resources.nodes.values():
            memory = context.memory.get(node.id)
            room = memory.capacity_bytes(shape.page) if memory else None
            now = " (free now)" if memory and memory.short_now else ""
            free = f"{len(node.free_threads)} CPUs" if shape.share_cores else f"{len(node.free)} cores"
            why.append(f"node {node.id}: {free} of {len(node.cores)} cores free, {format_size(room)}{now} can be given")
    return tuple(why)


def _no_cut(context: PlanningContext, guest: GuestIntent) -> str:
    if guest.memory == "auto":
        return "auto memory needs the nodes' memory sizes, which are unknown: give memory"
    unit = page_sizes(context.host, guest.hugepages)[-1] or SMALL_PAGE
    return f"its memory is not a whole number of {format_size(unit)} pages for every cell"


def relaxations(
    context: PlanningContext, guest: GuestIntent, candidates: Candidates, fits_with_change: WouldPlace
) -> tuple[str, ...]:
    """Return single changes, the smallest of each kind, with each of which the guest would be placed completely.

    At most MOST_RELEASES guests are named whose release would help: enough for a choice, not hundreds.
    """
    texts: list[str] = []
    for text, changed in _changes(context, guest, candidates):
        kind = text.partition(":")[0]
        if not any(known.startswith(f"{kind}:") for known in texts) and fits_with_change(context, changed):
            texts.append(text)
    if context.boot_pages is not True and fits_with_change(msgspec.structs.replace(context, boot_pages=True), guest):
        texts.append("settings: {boot_pages: true} (a reboot reserves its 1 GiB pages)")
    released = 0
    for other in context.host.guests or ():
        left = tuple(g for g in context.host.guests or () if g.name != other.name)
        freed = read_field(msgspec.structs.replace(context.host, guests=left), context.reserve, context.boot_pages)
        if fits_with_change(freed, guest):
            texts.append(f"release guest {other.name}")
            released += 1
            if released == MOST_RELEASES:
                break
    return tuple(texts)


def _changes(context: PlanningContext, guest: GuestIntent, candidates: Candidates) -> Iterator[tuple[str, GuestIntent]]:
    """Yield the changes to try, each with its text; changes of one kind start with the smallest."""
    replace = msgspec.structs.replace
    for count in range(min(gpu_count(guest) or 0, len(context.host.gpus) + 1) - 1, 0, -1):
        gpus = replace(guest.gpus, count=count) if isinstance(guest.gpus, GpuRequest) else count
        yield f"gpus: {count}", replace(guest, gpus=gpus)
    yield from mig_changes(context, guest)
    if candidates.first() is None:
        return  # without possible GPUs no other size helps
    if isinstance(guest.vcpus, int) and not isinstance(guest.numa, tuple):
        for count in _lower_vcpus(context, guest, guest.vcpus, candidates):
            yield f"vcpus: {count} ({guest.vcpus - count} fewer)", replace(guest, vcpus=count)
    if guest.memory != "auto" and not isinstance(guest.numa, tuple):
        for size in _lower_memory(context, guest, parse_size(guest.memory, where="memory"), candidates):
            yield f"memory: {size_text(size)}", replace(guest, memory=size)
    if guest.numa != "auto":
        yield "numa: auto", _uncut(guest)
    if isinstance(guest.nics, int) and guest.nics:
        for count in range(min(guest.nics, len(context.host.nics) + 1) - 1, -1, -1):
            yield f"nics: {count}", replace(guest, nics=count)
    if isinstance(guest.nvme, int) and guest.nvme:
        for count in range(min(guest.nvme, len(context.host.nvme) + 1) - 1, -1, -1):
            yield f"nvme: {count}", replace(guest, nvme=count)
    if guest.smt == "cores":
        yield "smt: threads (shares cores with others)", replace(guest, smt="threads")
    if guest.hugepages == "1GiB":
        yield "hugepages: 2MiB", replace(guest, hugepages="2MiB")


def has_room(context: PlanningContext, guest: GuestIntent, candidates: Candidates) -> bool:
    """Return whether enough nodes have room for the guest's cells, in some number of cells. Ignores its devices."""
    return any(_has_room(context, guest, candidates, cells) for cells in _cell_counts(context, guest, candidates))


def _cell_counts(context: PlanningContext, guest: GuestIntent, candidates: Candidates) -> range:
    base = base_cells(context, guest, candidates.first() or ())
    return range(base.cells, 1 + (len(context.resources.nodes) if base.may_grow else base.cells))


def _lower_vcpus(context: PlanningContext, guest: GuestIntent, wanted: int, candidates: Candidates) -> list[int]:
    """Return, for every number of cells, the most vCPUs below `wanted` that fit; the largest first."""

    def room(cells: int, each: int) -> bool:
        changed = msgspec.structs.replace(guest, vcpus=cells * each)
        return _has_room(context, changed, candidates, cells)

    counts = _cell_counts(context, guest, candidates)
    best = {cells * _largest((wanted - 1) // cells, lambda n, c=cells: room(c, n)) for cells in counts}  # type: ignore[misc]
    return sorted(best - {0}, reverse=True)


def _lower_memory(context: PlanningContext, guest: GuestIntent, wanted: int, candidates: Candidates) -> list[int]:
    """Return, for every number of cells, the most memory below `wanted` that fits, in whole pages; largest first."""
    sizes = set()
    for unit in {page or SMALL_PAGE for page in page_sizes(context.host, guest.hugepages)}:
        for cells in _cell_counts(context, guest, candidates):

            def room(pages: int, cells: int = cells, unit: int = unit) -> bool:
                changed = msgspec.structs.replace(guest, memory=pages * unit)
                return _has_room(context, changed, candidates, cells)

            sizes.add(unit * _largest((wanted - 1) // unit, room))
    return sorted(sizes - {0}, reverse=True)


def _has_room(context: PlanningContext, guest: GuestIntent, candidates: Candidates, cells: int) -> bool:
    """Return whether enough nodes have room for the equal cells of some cut (a few cells may be a page larger)."""
    for sizes in shapes(context, guest, candidates.first() or (), cells):
        largest_first = sorted(sizes.shape.cells, key=lambda cell: cell.memory_bytes, reverse=True)
        nodes = context.resources.nodes.values()
        able = {
            cell: sum(fits(node, context.memory.get(node.id), cell, sizes.shape) for node in nodes)
            for cell in set(largest_first)
        }
        if all(able[cell] > i for i, cell in enumerate(largest_first)):
            return True
    return False


def _uncut(guest: GuestIntent) -> GuestIntent:
    """Return the same guest with `numa: auto`; if cells are listed, they give its size."""
    if not isinstance(guest.numa, tuple):
        return msgspec.structs.replace(guest, numa="auto")
    vcpus = sum(cell.vcpus for cell in guest.numa)
    memory = sum(parse_size(cell.memory, where="numa") for cell in guest.numa)
    return msgspec.structs.replace(guest, numa="auto", vcpus=vcpus, memory=memory)


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest n in 1..limit for which `holds` is true, by bisection; 0 if there is none.

    Assumes that a smaller n never fits worse.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def size_text(size_bytes: int) -> str:
    """Return an exact size in the form that an intent takes: "2032GiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)
