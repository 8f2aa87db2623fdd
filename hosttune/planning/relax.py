"""Why a guest does not fit, and what would make it fit: every suggestion has been tried on the same host.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hosttune.model.intent import GuestIntent
from hosttune.model.values import format_size, parse_size
from hosttune.planning.candidates import Candidates
from hosttune.planning.choice import fits as anything_fits
from hosttune.planning.pages import SMALL_PAGE, page_sizes
from hosttune.planning.placement import cores_needed
from hosttune.planning.sizing import Field, base_cells, read_field, shapes


def shortage(field: Field, guest: GuestIntent, candidates: Candidates, named: tuple[str, ...]) -> tuple[str, ...]:
    """What stands against the guest, node by node, for the first set of GPUs that was tried."""
    resources = field.resources
    gpus = candidates.first() or ()
    cells = base_cells(field, guest, gpus).cells
    have = len([node for node in resources.nodes.values() if node.cores])
    why: list[str] = []
    if cells > have:
        why.append(f"{cells} cells wanted, {have} nodes with CPUs: every cell has a host node of its own")
    if isinstance(guest.vcpus, int) and not isinstance(guest.numa, tuple) and guest.vcpus % cells:
        why.append(f"{guest.vcpus} vCPUs do not divide into {cells} equal cells")
    cuts = list(shapes(field, guest, gpus, cells))
    if not cuts and not why:
        why.append(_no_cut(field, guest))
    if cuts:
        shape = cuts[0].shape
        cell = max(shape.cells, key=lambda c: (c.vcpus, c.memory_bytes))
        need = f"{cores_needed(cell.vcpus, shape.threads)} cores" if not shape.share_cores else f"{cell.vcpus} CPUs"
        why.append(
            f"{'the largest cell' if len(shape.cells) > 1 else 'the guest'} needs {need} and"
            f" {format_size(cell.memory_bytes)} on one node"
        )
        for node in resources.nodes.values():
            memory = field.memory.get(node.id)
            room = memory.capacity_bytes(shape.page) if memory else None
            free = f"{len(node.free_threads)} CPUs" if shape.share_cores else f"{len(node.free)} cores"
            why.append(f"node {node.id}: {free} of {len(node.cores)} cores free, {format_size(room)} can be given")
    return tuple(why)


def _no_cut(field: Field, guest: GuestIntent) -> str:
    if guest.memory == "auto":
        return "auto memory needs the nodes' memory sizes, which are unknown: give memory"
    unit = page_sizes(field.host, guest.hugepages)[-1] or SMALL_PAGE
    return f"its memory is no whole number of {format_size(unit)} pages for every cell"


def relaxations(field: Field, guest: GuestIntent, candidates: Candidates, named: tuple[str, ...]) -> tuple[str, ...]:
    """Single changes, cheapest first, with each of which the guest would be placed."""

    def fits(changed: GuestIntent, on: Field = field) -> bool:
        return anything_fits(on, changed, candidates, named)

    found: list[str] = []
    cells = base_cells(field, guest, candidates.first() or ()).cells
    if isinstance(guest.vcpus, int) and not isinstance(guest.numa, tuple):
        step = cells
        best = _largest(guest.vcpus // step, lambda n: fits(msgspec.structs.replace(guest, vcpus=n * step)))
        if best:
            found.append(f"vcpus: {best * step} ({guest.vcpus - best * step} fewer)")
    if guest.memory != "auto" and not isinstance(guest.numa, tuple):
        unit = (page_sizes(field.host, guest.hugepages)[-1] or SMALL_PAGE) * cells
        wanted = parse_size(guest.memory, where="memory")
        best = _largest(wanted // unit, lambda n: fits(msgspec.structs.replace(guest, memory=n * unit)))
        if best:
            found.append(f"memory: {format_size(best * unit)} ({format_size(wanted - best * unit)} less)")
    if guest.numa != "auto" and fits(_uncut(guest)):
        found.append("numa: auto")
    if guest.smt == "cores" and fits(msgspec.structs.replace(guest, smt="threads")):
        found.append("smt: threads (shares cores with others)")
    if guest.hugepages == "1GiB" and fits(msgspec.structs.replace(guest, hugepages="2MiB")):
        found.append("hugepages: 2MiB")
    for other in field.host.guests or ():
        left = tuple(g for g in field.host.guests or () if g.name != other.name)
        if fits(guest, read_field(msgspec.structs.replace(field.host, guests=left), field.reserve)):
            found.append(f"release guest {other.name}")
    return tuple(found)


def _uncut(guest: GuestIntent) -> GuestIntent:
    """The same guest with the planner free to cut it; listed cells give its size."""
    if not isinstance(guest.numa, tuple):
        return msgspec.structs.replace(guest, numa="auto")
    vcpus = sum(cell.vcpus for cell in guest.numa)
    memory = sum(parse_size(cell.memory, where="numa") for cell in guest.numa)
    return msgspec.structs.replace(guest, numa="auto", vcpus=vcpus, memory=memory)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..limit that fits, by bisection; 0 when none does (less never fits worse)."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
