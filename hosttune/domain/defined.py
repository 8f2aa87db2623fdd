"""A guest as the host document shows it once it is defined: the part of it that no other guest gets. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from hosttune.domain.guest import Guest
from hosttune.domain.planned import guest_of
from hosttune.model.host import GuestMemory, RunningGuest, VcpuPin
from hosttune.model.plan import AdoptedGuest, PlannedGuest
from hosttune.model.values import parse_cpus


def as_planned(planned: PlannedGuest) -> RunningGuest:
    """Return a planned guest as it will be defined."""
    return as_defined(guest_of(planned))


def as_adopted(adopted: AdoptedGuest) -> RunningGuest:
    """Return the place of an existing guest as a plan decides it; its other threads and devices are its own."""
    pins = tuple(VcpuPin(vcpu=pin.vcpu, cpus=pin.cpus) for pin in adopted.pins)
    return replace(as_planned(adopted.guest), vcpu_pins=pins)


def as_defined(guest: Guest, *, default_page_bytes: int | None = None) -> RunningGuest:
    """Return a guest that does not run. `default_page_bytes`: of huge pages whose size its definition leaves open."""
    pins = guest.pins
    texts = {cpus: str(cpus) for cpus in set(pins.values())}  # thousands of vCPUs may share one long list
    memory = _memory(guest, default_page_bytes)
    sizes = {part.page_bytes for part in memory}
    return RunningGuest(
        name=guest.name or "",
        state="shut off",
        vcpus=guest.vcpus,
        vcpu_pins=tuple(VcpuPin(vcpu=vcpu, cpus=texts[pins[vcpu]]) for vcpu in sorted(pins)),
        emulator_cpus=guest.emulator_cpus or guest.vcpu_cpus,  # formatdomain, emulatorpin: vcpu's cpuset by default
        iothread_cpus=tuple(pin.cpus for pin in guest.iothread_pins),
        memory_bytes=guest.memory_bytes,
        memory=memory,
        page_bytes=sizes.pop() if len(sizes) == 1 else None,
        devices=tuple(sorted(guest.functions)),
        mdevs=tuple(sorted(guest.mdevs)),
        uuid=guest.uuid,
        host_paths=guest.host_paths,
        cliques=tuple(
            (device.source, device.clique) for device in guest.hostdevs if device.source and device.clique is not None
        ),
    )


def _memory(guest: Guest, default_page_bytes: int | None) -> tuple[GuestMemory, ...]:
    """Return where the guest's memory comes from: one part for each cell, or one part for the whole guest.

    Memory that may come from several nodes has no single node.
    """
    whole = guest.numatune.nodes if guest.numatune else None
    nodes_of = {memnode.cell: memnode.nodes for memnode in guest.memnodes}
    parts: list[tuple[int | None, int | None]] = [(cell.id, cell.memory_bytes) for cell in guest.cells]
    return tuple(
        GuestMemory(
            node=_single(nodes_of.get(cell, whole)),
            memory_bytes=size,
            page_bytes=_page_bytes(guest, cell, default_page_bytes),
        )
        for cell, size in parts or [(None, guest.memory_bytes)]
    )


def _single(nodes: str | None) -> int | None:
    ids = parse_cpus(nodes)
    return next(iter(ids)) if len(ids) == 1 else None


def _page_bytes(guest: Guest, cell: int | None, default: int | None) -> int | None:
    """Return the huge page size of a cell in bytes (`cell` None: of the guest); None without huge pages."""
    chosen = None
    for pages in guest.backing.pages or ():
        named = pages.cells is not None and cell is not None and cell in parse_cpus(pages.cells)
        if named or (pages.cells is None and chosen is None):
            chosen = pages
    return (chosen.size_bytes or default) if chosen else None
