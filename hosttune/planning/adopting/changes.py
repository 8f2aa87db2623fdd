"""Write a planned guest into its existing definition: only what must change, each change with its reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hosttune.domain.edit import Element, XmlText
from hosttune.domain.guest import Guest
from hosttune.model.plan import Cell, PlannedGuest
from hosttune.model.values import CpuSet, format_size, parse_cpus

LIVE, NEXT_START = "live", "next start"


@dataclass(frozen=True)
class Change:
    """One change of a definition: the element, what it was, what it becomes, why, and when it can take effect.

    `effect`: LIVE (libvirt can do it while the guest runs) or NEXT_START.
    """

    element: str
    was: str
    becomes: str
    why: str
    effect: str


@dataclass(frozen=True)
class Placement:
    """A planned guest in the numbers of its definition: the CPU of each vCPU, and the cells by the guest's ids.

    `foreign`: the CPUs that its other threads must not use: those of all vCPUs, and isolated ones.
    """

    guest: PlannedGuest
    pins: Mapping[int, int]
    cells: tuple[tuple[int, Cell], ...]
    foreign: CpuSet


def write_placement(text: XmlText, facts: Guest, placement: Placement) -> tuple[Change, ...]:
    """Change the definition so that the guest runs where the plan has it. Return the changes; empty: none is needed."""
    return (
        *_pin_vcpus(text, facts, placement),
        *_pin_emulator(text, facts, placement),
        *_pin_iothreads(text, facts, placement),
        *_bind_memory(text, facts, placement),
        *_back_by_pages(text, facts, placement),
        *_divide(text, facts, placement),
    )


def _section(text: XmlText, tag: str) -> Element:
    return text.root.find(tag) or text.add(text.root, tag, {})


def _numbered(parent: Element, tag: str, name: str) -> dict[int, Element]:
    """Return the children of a tag by their numbers, which `read_domain` has checked."""
    numbers = ((one.attributes.get(name), one) for one in parent.all(tag))
    return {int(text, 16 if text.lower().startswith("0x") else 10): one for text, one in numbers if text}


def _pin_vcpus(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    now = {pin.id: parse_cpus(pin.cpus) for pin in facts.vcpu_pins}
    moved = {vcpu: cpu for vcpu, cpu in sorted(placement.pins.items()) if now.get(vcpu) != CpuSet((cpu,))}
    changes = []
    vcpu_element = text.root.find("vcpu")
    if vcpu_element is not None and vcpu_element.attributes.get("placement") == "auto":
        vcpu_element.set("placement", "static")
        why = "with auto, numad chooses the guest's nodes at each start"
        changes.append(Change("vcpu placement", "auto", "static", why, NEXT_START))
    if not moved:
        return changes
    tune = _section(text, "cputune")
    known = _numbered(tune, "vcpupin", "vcpu")
    for vcpu, cpu in moved.items():
        if vcpu in known:
            known[vcpu].set("cpuset", str(cpu))
        else:
            text.add(tune, "vcpupin", {"vcpu": str(vcpu), "cpuset": str(cpu)})
    old = [cpus for vcpu in moved if (cpus := now.get(vcpu))]
    was = f"host CPUs {CpuSet(cpu for cpus in old for cpu in cpus)}" if old else "not pinned"
    nodes = CpuSet(node for _, cell in placement.cells for node in parse_cpus(cell.host_nodes))
    why = f"one host CPU each, shared with no other guest, on {_nodes(nodes)}, where its memory and devices are planned"
    becomes = f"host CPUs {CpuSet(moved.values())}"
    return [*changes, Change(f"vcpupin of vCPUs {CpuSet(moved)}", was, becomes, why, LIVE)]


def _pin_emulator(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    now, want = parse_cpus(facts.emulator_cpus), placement.guest.emulator_cpus
    if (now and now.isdisjoint(placement.foreign)) or not want or now == parse_cpus(want):
        return []
    tune = _section(text, "cputune")
    found = tune.find("emulatorpin")
    if found is None:
        text.add(tune, "emulatorpin", {"cpuset": want})
    else:
        found.set("cpuset", want)
    return [Change("emulatorpin", _cpus(now), f"host CPUs {want}", _off_vcpus("QEMU's own threads"), LIVE)]


def _pin_iothreads(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    now = {pin.id: parse_cpus(pin.cpus) for pin in facts.iothread_pins}
    want = placement.guest.emulator_cpus
    free = [
        one for one, cpus in now.items() if cpus and (cpus.isdisjoint(placement.foreign) or cpus == parse_cpus(want))
    ]
    bad = [one for one in _iothreads(text, facts) if one not in free]
    if not bad or not want:
        return []
    tune = _section(text, "cputune")
    known = _numbered(tune, "iothreadpin", "iothread")
    for one in bad:
        if one in known:
            known[one].set("cpuset", want)
        else:
            text.add(tune, "iothreadpin", {"iothread": str(one), "cpuset": want})
    was = _cpus(CpuSet(cpu for one in bad for cpu in now.get(one, ())))
    return [Change(f"iothreadpin of I/O threads {CpuSet(bad)}", was, f"host CPUs {want}", _off_vcpus("they"), LIVE)]


def _iothreads(text: XmlText, facts: Guest) -> list[int]:
    """Return the ids of the I/O threads: those that are listed, then the lowest others (formatdomain, iothreadids)."""
    parent = text.root.find("iothreadids")
    listed = list(_numbered(parent, "iothread", "id")) if parent else []
    others = (number for number in range(1, facts.iothreads + len(listed) + 1) if number not in listed)
    return sorted([*listed, *(number for number, _ in zip(others, range(facts.iothreads - len(listed)), strict=False))])


def _off_vcpus(who: str) -> str:
    return f"{who} would interrupt vCPUs: they run on housekeeping CPUs, off every vCPU"


def _nodes(nodes: CpuSet | str | None) -> str:
    found = parse_cpus(nodes)
    return f"node{'s' if len(found) > 1 else ''} {found}" if found else "node chosen at the start"


def _cpus(cpus: CpuSet) -> str:
    return f"host CPUs {cpus}" if cpus else "not pinned"


def _bind_memory(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    nodes = CpuSet(node for _, cell in placement.cells for node in parse_cpus(cell.host_nodes))
    if not nodes:
        return []
    changes = _bind_all(text, facts, nodes)
    if len(placement.cells) < 2 and not facts.numatune.memnodes:
        return changes
    now = {one.cell: one for one in facts.numatune.memnodes}
    for number, cell in placement.cells:
        old = now.get(number)
        if old and old.mode == "strict" and parse_cpus(old.nodes) == parse_cpus(cell.host_nodes):
            continue
        tune = _section(text, "numatune")
        found = _numbered(tune, "memnode", "cellid").get(number)
        want = {"mode": "strict", "nodeset": cell.host_nodes}
        if found is None:
            text.add(tune, "memnode", {"cellid": str(number), **want})
        else:
            for name, value in want.items():
                found.set(name, value)
        was = f"{old.mode}, {_nodes(old.nodes)}" if old else "not bound"
        why = f"its vCPUs run on {_nodes(cell.host_nodes)}; memory of another node is slower"
        becomes = f"strict, {_nodes(cell.host_nodes)}"
        changes.append(Change(f"memory of cell {number}", was, becomes, why, NEXT_START))
    return changes


def _bind_all(text: XmlText, facts: Guest, nodes: CpuSet) -> list[Change]:
    now = facts.numatune
    if now.mode == "strict" and parse_cpus(now.nodes) == nodes and now.placement != "auto":
        return []
    tune = _section(text, "numatune")
    memory = tune.find("memory") or text.add(tune, "memory", {"mode": "strict", "nodeset": str(nodes)})
    memory.unset("placement")
    memory.set("mode", "strict")
    memory.set("nodeset", str(nodes))
    was = f"{now.mode}, {_nodes(now.nodes)}" if now.mode else "any node"
    why = "only strict fails when the node has too little memory; otherwise it comes from another node without an error"
    return [Change("numatune memory", was, f"strict, {_nodes(nodes)}", why, NEXT_START)]


def _back_by_pages(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    page = placement.guest.huge_page_bytes
    if page is None or facts.backing.pages is not None:
        return []
    pages = text.add(_section(text, "memoryBacking"), "hugepages", {})
    text.add(pages, "page", {"size": str(page >> 10), "unit": "KiB"})
    why = "fewer misses of the address translation, and memory that is reserved for the guest"
    return [Change("memoryBacking", "ordinary pages", f"pages of {format_size(page)}", why, NEXT_START)]


def _divide(text: XmlText, facts: Guest, placement: Placement) -> list[Change]:
    """Give a guest without cells the planned ones, if they are several: one cell needs no element."""
    guest = placement.guest
    if facts.cells or len(guest.cells) < 2 or guest.topology is None:
        return []
    cpu = text.root.find("cpu")
    if cpu is None:
        cpu = text.add(text.root, "cpu", {"mode": "host-passthrough", "check": "none", "migratable": "off"})
    levels = {name: str(getattr(guest.topology, name)) for name in ("sockets", "dies", "cores", "threads")}
    topology = cpu.find("topology") or text.add(cpu, "topology", levels)
    topology.unset("clusters")
    for name, value in levels.items():
        topology.set(name, value)
    numa = text.add(cpu, "numa", {})
    for cell in guest.cells:
        size = str(cell.memory_bytes >> 10)
        one = text.add(numa, "cell", {"id": str(cell.id), "cpus": cell.vcpus, "memory": size, "unit": "KiB"})
        distances = text.add(one, "distances", {}) if cell.distances else None
        for number, distance in enumerate(cell.distances):
            text.add(distances or one, "sibling", {"id": str(number), "value": str(distance)})
    why = "the guest spans several host nodes: its kernel must know which memory is near which vCPU"
    return [Change("cpu numa and topology", "no cells", f"{len(guest.cells)} cells", why, NEXT_START)]
