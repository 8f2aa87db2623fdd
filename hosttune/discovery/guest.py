"""What a guest has, from its definition: CPUs, memory, devices, and what its next start changes."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from hosttune.discovery.libvirtd import STATES, RawDomain
from hosttune.domain.facts import DomainFacts, GuestCpu
from hosttune.domain.reader import read_domain
from hosttune.domain.sameness import same_guest
from hosttune.errors import BadInput
from hosttune.linux.hugetlbfs import default_page_bytes
from hosttune.machine.reader import Reader
from hosttune.model.host import GuestMemory, RunningGuest, VcpuPin
from hosttune.model.problems import NO_DEFINITION
from hosttune.model.values import CpuSet

_KNOWN_STATES = frozenset((*STATES, "blocked")) - {"no state"}  # older versions of virsh print blocked for idle


def read_guest(reader: Reader, domain: RawDomain, run: Collection[str]) -> RunningGuest:
    """Return one guest; only its name and state, with a problem, if its definition cannot be read or names another.

    `run`: names of guests that have a running QEMU process.
    """
    domain = _with_known_state(reader, domain, run)
    if domain.xml is None:
        reader.problem(NO_DEFINITION, domain.name, "what this guest holds is unknown")
        return RunningGuest(name=domain.name, state=domain.state)
    try:
        facts = read_domain(domain.xml, where=f"guest {domain.name}")
    except BadInput as error:
        reader.problem(NO_DEFINITION, error.where, f"{error.what}: what this guest holds is unknown")
        return RunningGuest(name=domain.name, state=domain.state)
    if facts.name != domain.name:
        why = f"its definition names {facts.name!r}: what this guest holds is unknown"
        reader.problem(NO_DEFINITION, domain.name, why)
        return RunningGuest(name=domain.name, state=domain.state)
    memory = _memory(reader, facts)
    sizes = {part.page_bytes for part in memory}
    return RunningGuest(
        name=domain.name,
        state=domain.state,
        vcpus=facts.vcpus,
        vcpu_pins=_pins(facts),
        emulator_cpus=facts.emulator_cpus or facts.vcpu_cpus,  # formatdomain, emulatorpin: vcpu's cpuset by default
        iothread_cpus=tuple(pin.cpus for pin in facts.iothread_pins),
        memory_bytes=facts.memory_bytes,
        memory=memory,
        page_bytes=sizes.pop() if len(sizes) == 1 else None,
        devices=tuple(sorted(facts.functions)),
        mdevs=tuple(sorted(device.source for device in facts.hostdevs if device.kind == "mdev" and device.source)),
        uuid=facts.uuid,
        starting=domain.starting,
        next_start=_next_start(reader, domain),
        host_paths=facts.host_paths,
    )


def _with_known_state(reader: Reader, domain: RawDomain, run: Collection[str]) -> RawDomain:
    """Return the domain, without a state if the state is not one of libvirt's words or is contradicted.

    The word can be unknown because of another language or damage. `run`: names of guests that have a running QEMU
    process. libvirt ends the process before it reports a guest as shut off.
    """
    if domain.state == "shut off" and domain.name in run:
        why = "libvirt says that it is shut off, and a QEMU of its name runs: it may run"
        reader.problem("state of a guest contradicted", domain.name, why)
        return msgspec.structs.replace(domain, state=None)
    if domain.state is None or domain.state in _KNOWN_STATES:
        return domain
    reader.problem("state of a guest not understood", domain.name, f"reads {domain.state[:40]!r}: it may run")
    return msgspec.structs.replace(domain, state=None)


# Differences of a running guest that no edit caused: what libvirt makes of the CPU's mode host-model, or custom
# (formatdomain, "CPU model and topology"), and the balloon's current memory.
_LIVE_CPU = ("cpu mode", "cpu model", "cpu check", "cpu features")
_LIVE_MEMORY = "current memory"


def _next_start(reader: Reader, domain: RawDomain) -> tuple[str, ...] | None:
    """Return the names of what differs between a running guest and its persistent definition (used at its next start).

    Empty for a guest that does not run. None if that is unknown.
    """
    if domain.state in (None, "shut off"):
        return None if domain.state is None else ()
    if domain.xml is None or domain.inactive_xml is None:
        return None
    where = f"guest {domain.name}, as kept"
    try:
        running = read_domain(domain.xml, where=where).cpu
        kept = read_domain(domain.inactive_xml, where=where).cpu
        differing = same_guest(domain.xml, domain.inactive_xml)
    except BadInput as error:
        reader.problem("no kept definition", where, f"{error.what}: how its next start differs is unknown")
        return None
    names = tuple(text.partition(": wanted ")[0].partition("[")[0] for text in differing)
    of_libvirt = (_LIVE_MEMORY, *_made_by_libvirt(running, kept))
    return tuple(dict.fromkeys(name for name in names if name not in of_libvirt))


def _made_by_libvirt(running: GuestCpu, kept: GuestCpu) -> tuple[str, ...]:
    """Return the names of what libvirt changes in the CPU's definition when it starts the guest.

    A custom model then has `check` full, and as features of its own whatever QEMU switched on or off besides. A feature
    that was taken out of the kept definition since cannot be told from one of these.
    """
    if kept.mode == "host-model":
        return _LIVE_CPU
    if kept.mode != "custom" or running.check != "full":
        return ()
    live = dict(running.features)
    same = all(name in live and policy in (live[name], "optional") for name, policy in kept.features)
    return ("cpu check", "cpu features") if same else ("cpu check",)


def _pins(facts: DomainFacts) -> tuple[VcpuPin, ...]:
    pins = facts.pins
    texts = {cpus: str(cpus) for cpus in set(pins.values())}  # thousands of vCPUs may share one long list
    return tuple(VcpuPin(vcpu=vcpu, cpus=texts[pins[vcpu]]) for vcpu in sorted(pins))


def _memory(reader: Reader, facts: DomainFacts) -> tuple[GuestMemory, ...]:
    """Return where the guest's memory comes from: one part for each cell, or one part for the whole guest.

    Memory that may come from several nodes has no single node.
    """
    by_cell = {memnode.cell: memnode.nodes for memnode in facts.numatune.memnodes}
    if not facts.cells:
        size, pages = facts.memory_bytes, _page_bytes(reader, facts, None)
        return (GuestMemory(node=_single(facts.numatune.nodes), memory_bytes=size, page_bytes=pages),)
    return tuple(
        GuestMemory(
            node=_single(by_cell.get(cell.id, facts.numatune.nodes)),
            memory_bytes=cell.memory_bytes,
            page_bytes=_page_bytes(reader, facts, cell.id),
        )
        for cell in facts.cells
    )


def _single(nodes: str | None) -> int | None:
    ids = CpuSet.parse(nodes or "")
    return next(iter(ids)) if len(ids) == 1 else None


def _page_bytes(reader: Reader, facts: DomainFacts, cell: int | None) -> int | None:
    """Return the huge page size of a cell in bytes (`cell` None: of the guest); None without huge pages."""
    chosen = None
    for pages in facts.backing.pages or ():
        named = pages.cells is not None and cell is not None and cell in CpuSet.parse(pages.cells)
        if named or (pages.cells is None and chosen is None):
            chosen = pages
    if chosen is None:
        return None
    return chosen.size_bytes or default_page_bytes(reader.text("/proc/meminfo") or "")
