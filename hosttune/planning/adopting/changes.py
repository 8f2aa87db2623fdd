"""Write a planned guest into its existing definition: only what must change, each change with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from hosttune.domain.compare import compare, in_words, on_nodes
from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Guest, GuestCpu, Memnode, MemoryBacking, Pages, Pin
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.domain.update import write_parts
from hosttune.model.plan import AdoptedChange, AdoptedGuest
from hosttune.model.values import CpuSet, parse_cpus

LIVE, NEXT_START = "live", "next start"
# Where a guest runs, in libvirt's XML.
_PLACE = (
    *("vcpu/@placement", "cputune/vcpupin", "cputune/emulatorpin", "cputune/iothreadpin"),
    *("numatune/memory", "numatune/memnode", "memoryBacking/hugepages", "cpu/topology", "cpu/numa/cell"),
)


def write_placement(text: XmlText, adopted: AdoptedGuest) -> tuple[AdoptedChange, ...]:
    """Change the definition so that the guest runs where the plan has it. Return the changes; empty: none is needed."""
    # The ids of the I/O threads: those that are listed, then the lowest others (formatdomain, iothreadids)
    now = text.guest
    written = (element.attributes.get("id") for element in text.root.all("iothreadids", "iothread"))
    listed = [int(number, 16 if number.lower().startswith("0x") else 10) for number in written if number]
    others = (number for number in range(1, now.iothreads + 1) if number not in listed)
    write_parts(text, _lacks(now, adopted, sorted([*listed, *islice(others, now.iothreads - len(listed))])), _PLACE)
    return tuple(_changes(now, read_domain(bytes(text)), on_nodes(_nodes(adopted))))


def _lacks(facts: Guest, adopted: AdoptedGuest, iothreads: Sequence[int]) -> Guest:
    """Return what of its place the definition does not have, in the numbers of the definition."""
    want = guest_of(replace(adopted.guest, devices=(), controllers=(), networks=()))
    service, foreign = adopted.guest.emulator_cpus, parse_cpus(adopted.foreign_cpus)
    pins, iothread_pins = _by_id(facts.vcpu_pins), _by_id(facts.iothread_pins)

    def may_stay(cpus: CpuSet | None) -> bool:
        return not service or bool(cpus and (cpus.isdisjoint(foreign) or cpus == parse_cpus(service)))

    page_bytes = adopted.guest.huge_page_bytes if facts.backing.pages is None else None
    divide = not facts.cells and len(want.cells) > 1 and want.cpu.topology is not None
    nodes, bound = _nodes(adopted), {policy.cell: _as_bound(policy) for policy in facts.policies}
    wanted = [Memnode(mode="strict", nodes=str(nodes))] if nodes else []
    if nodes and (len(adopted.cells) > 1 or facts.memnodes):
        wanted += (Memnode(cell=cell.id, mode="strict", nodes=cell.cell.host_nodes) for cell in adopted.cells)
    policies = [policy for policy in wanted if bound.get(policy.cell) != _as_bound(policy)]
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
        numatune=next((policy for policy in policies if policy.cell is None), None),
        memnodes=tuple(policy for policy in policies if policy.cell is not None),
        backing=MemoryBacking(pages=(Pages(size_bytes=page_bytes),) if page_bytes else None),
        cpu=want.cpu if divide else GuestCpu(),
        cells=want.cells if divide else (),
    )


def _as_bound(policy: Memnode) -> object:
    return policy.mode, parse_cpus(policy.nodes), policy.placement == "auto"


def _by_id(pins: Sequence[Pin]) -> Mapping[int, CpuSet]:
    return {pin.id: parse_cpus(pin.cpus) for pin in pins}


def _nodes(adopted: AdoptedGuest) -> CpuSet:
    return CpuSet(node for adopted_cell in adopted.cells for node in parse_cpus(adopted_cell.cell.host_nodes))


def _changes(now: Guest, then: Guest, place: str) -> Iterator[AdoptedChange]:
    """Yield each change with its reason. `place`: the guest's nodes."""
    housekeeping = "would interrupt vCPUs: they run on housekeeping CPUs, off every vCPU"
    strict = (
        "only strict fails when the node has too little memory; otherwise it comes from another node without an error"
    )
    whys = {
        "vcpu": ("with auto, numad chooses the guest's nodes at each start", NEXT_START),
        "vcpupin": (
            f"one host CPU each, shared with no other guest, on {place}, where its memory and devices are planned",
            LIVE,
        ),
        "emulatorpin": (f"QEMU's own threads {housekeeping}", LIVE),
        "iothreadpin": (f"they {housekeeping}", LIVE),
        "numatune": (strict, NEXT_START),
        "memory": ("its vCPUs run on {}; memory of another node is slower", NEXT_START),
        "memoryBacking": (
            "fewer misses of the address translation, and memory that is reserved for the guest",
            NEXT_START,
        ),
    }
    for element, becomes, was in in_words(compare(then, now)):
        if (word := element.split()[0]) in whys:
            why, effect = whys[word]
            on = becomes.partition(", ")[2]
            yield AdoptedChange(element=element, was=was, becomes=becomes, why=why.format(on), effect=effect)
    if then.cells and not now.cells:
        why = "the guest spans several host nodes: its kernel must know which memory is near which vCPU"
        cells = f"{len(then.cells)} cells"
        yield AdoptedChange(element="cpu numa and topology", was="no cells", becomes=cells, why=why, effect=NEXT_START)
