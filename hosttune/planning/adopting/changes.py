"""Write a planned guest into its existing definition: only what must change, each change with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Guest, GuestCpu, Memnode, MemoryBacking, Numatune, Pages, Pin
from hosttune.domain.planned import guest_of
from hosttune.domain.update import write_parts
from hosttune.model.plan import AdoptedChange, AdoptedGuest
from hosttune.model.values import CpuSet, format_size, parse_cpus

LIVE, NEXT_START = "live", "next start"
# Where a guest runs, in libvirt's XML.
_PLACE = (
    *("vcpu/@placement", "cputune/vcpupin", "cputune/emulatorpin", "cputune/iothreadpin"),
    *("numatune/memory", "numatune/memnode", "memoryBacking/hugepages", "cpu/topology", "cpu/numa/cell"),
)


def write_placement(text: XmlText, adopted: AdoptedGuest) -> tuple[AdoptedChange, ...]:
    """Change the definition so that the guest runs where the plan has it. Return the changes; empty: none is needed."""
    # The ids of the I/O threads: those that are listed, then the lowest others (formatdomain, iothreadids)
    written = (element.attributes.get("id") for element in text.root.all("iothreadids", "iothread"))
    listed = [int(number, 16 if number.lower().startswith("0x") else 10) for number in written if number]
    others = (number for number in range(1, text.guest.iothreads + 1) if number not in listed)
    lacks = _lacks(text.guest, adopted, sorted([*listed, *islice(others, text.guest.iothreads - len(listed))]))
    write_parts(text, lacks, _PLACE)
    return (*_of_threads(text.guest, lacks, adopted), *_of_memory(text.guest, lacks))


def _lacks(facts: Guest, adopted: AdoptedGuest, iothreads: Sequence[int]) -> Guest:
    """Return what of its place the definition does not have, in the numbers of the definition."""
    want = guest_of(replace(adopted.guest, devices=(), controllers=(), networks=()))
    service, foreign = adopted.guest.emulator_cpus, parse_cpus(adopted.foreign_cpus)
    pins, iothread_pins = _by_id(facts.vcpu_pins), _by_id(facts.iothread_pins)

    def may_stay(cpus: CpuSet | None) -> bool:
        return not service or bool(cpus and (cpus.isdisjoint(foreign) or cpus == parse_cpus(service)))

    page_bytes = adopted.guest.huge_page_bytes if facts.backing.pages is None else None
    divide = not facts.cells and len(want.cells) > 1 and want.cpu.topology is not None
    return Guest(
        type=None,
        name=None,
        vcpus=facts.vcpus,
        vcpu_placement="static" if facts.vcpu_placement == "auto" else None,
        vcpu_pins=tuple(
            Pin(id=pin.vcpu, cpus=pin.cpus) for pin in adopted.pins if pins.get(pin.vcpu) != parse_cpus(pin.cpus)
        ),
        emulator_cpus=None if may_stay(parse_cpus(facts.emulator_cpus)) else service,
        iothread_pins=tuple(
            Pin(id=iothread, cpus=service) for iothread in iothreads if not may_stay(iothread_pins.get(iothread))
        ),
        numatune=_binding(facts.numatune, adopted),
        backing=MemoryBacking(pages=(Pages(size_bytes=page_bytes),) if page_bytes else None),
        cpu=want.cpu if divide else GuestCpu(),
        cells=want.cells if divide else (),
    )


def _binding(now: Numatune, adopted: AdoptedGuest) -> Numatune:
    """Return what binds the memory, without the cells that are bound so; no mode: the whole is bound so."""
    nodes, bound = _nodes(adopted), {memnode.cell: memnode for memnode in now.memnodes}
    if not nodes:
        return Numatune()
    same = now.mode == "strict" and parse_cpus(now.nodes) == nodes and now.placement != "auto"
    cells = adopted.cells if len(adopted.cells) > 1 or bound else ()
    want = (Memnode(cell=adopted_cell.id, mode="strict", nodes=adopted_cell.cell.host_nodes) for adopted_cell in cells)
    return Numatune(
        mode=None if same else "strict",
        nodes=str(nodes),
        memnodes=tuple(memnode for memnode in want if _as_bound(bound.get(memnode.cell)) != _as_bound(memnode)),
    )


def _as_bound(memnode: Memnode | None) -> object:
    return memnode and (memnode.mode, parse_cpus(memnode.nodes))


def _by_id(pins: Sequence[Pin]) -> Mapping[int, CpuSet]:
    return {pin.id: parse_cpus(pin.cpus) for pin in pins}


def _nodes(adopted: AdoptedGuest) -> CpuSet:
    return CpuSet(node for adopted_cell in adopted.cells for node in parse_cpus(adopted_cell.cell.host_nodes))


# --- each change with its reason -----------------------------------------------------------------------------


def _of_threads(facts: Guest, lacks: Guest, adopted: AdoptedGuest) -> Iterator[AdoptedChange]:
    pins, iothread_pins = _by_id(facts.vcpu_pins), _by_id(facts.iothread_pins)
    if lacks.vcpu_placement:
        why = "with auto, numad chooses the guest's nodes at each start"
        yield _change("vcpu placement", "auto", "static", why, NEXT_START)
    if moved := _by_id(lacks.vcpu_pins):
        place = _on(_nodes(adopted))
        why = f"one host CPU each, shared with no other guest, on {place}, where its memory and devices are planned"
        was = _cpus(pins.get(vcpu) for vcpu in moved)
        yield _change(f"vcpupin of vCPUs {CpuSet(moved)}", was, _cpus(moved.values()), why, LIVE)
    why = "would interrupt vCPUs: they run on housekeeping CPUs, off every vCPU"
    becomes = f"host CPUs {adopted.guest.emulator_cpus}"
    if lacks.emulator_cpus:
        was = _cpus((parse_cpus(facts.emulator_cpus),))
        yield _change("emulatorpin", was, becomes, f"QEMU's own threads {why}", LIVE)
    if moved := _by_id(lacks.iothread_pins):
        was = _cpus(iothread_pins.get(iothread) for iothread in moved)
        yield _change(f"iothreadpin of I/O threads {CpuSet(moved)}", was, becomes, f"they {why}", LIVE)


def _of_memory(facts: Guest, lacks: Guest) -> Iterator[AdoptedChange]:
    now = facts.numatune
    if lacks.numatune.mode:
        was = f"{now.mode}, {_on(now.nodes)}" if now.mode else "any node"
        becomes = f"strict, {_on(lacks.numatune.nodes)}"
        why = "only strict fails when the node has too little memory; otherwise it comes from another node without"
        yield _change("numatune memory", was, becomes, f"{why} an error", NEXT_START)
    bound = {memnode.cell: f"{memnode.mode}, {_on(memnode.nodes)}" for memnode in now.memnodes}
    for memnode in lacks.numatune.memnodes:
        place = _on(memnode.nodes)
        why = f"its vCPUs run on {place}; memory of another node is slower"
        element, was = f"memory of cell {memnode.cell}", bound.get(memnode.cell, "not bound")
        yield _change(element, was, f"strict, {place}", why, NEXT_START)
    for page in lacks.backing.pages or ():
        why = "fewer misses of the address translation, and memory that is reserved for the guest"
        becomes = f"pages of {format_size(page.size_bytes or 0)}"
        yield _change("memoryBacking", "ordinary pages", becomes, why, NEXT_START)
    if lacks.cells:
        why = "the guest spans several host nodes: its kernel must know which memory is near which vCPU"
        yield _change("cpu numa and topology", "no cells", f"{len(lacks.cells)} cells", why, NEXT_START)


def _change(element: str, was: str, becomes: str, why: str, effect: str) -> AdoptedChange:
    return AdoptedChange(element=element, was=was, becomes=becomes, why=why, effect=effect)


def _on(nodes: CpuSet | str | None) -> str:
    cpu_set = parse_cpus(nodes)
    return f"node{'s' if len(cpu_set) > 1 else ''} {cpu_set}" if cpu_set else "node chosen at the start"


def _cpus(lists: Iterable[CpuSet | None]) -> str:
    places = [*lists]
    cpus = CpuSet(cpu for cpu_set in places for cpu in cpu_set or ())
    floating = sum(not cpu_set for cpu_set in places)
    return (
        f"host CPUs {cpus}" + (f", {floating} of {len(places)} not pinned" if floating else "")
        if cpus
        else "not pinned"
    )
