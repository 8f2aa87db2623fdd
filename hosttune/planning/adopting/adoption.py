"""Plan a guest that is already defined, where it is now if that is as good as any other place. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from hosttune.domain.edit import XmlText
from hosttune.domain.facts import DomainFacts
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.model.host import Host, NumaNode, RunningGuest
from hosttune.model.intent import Intent
from hosttune.model.plan import Cell, Finding, Plan, PlannedGuest
from hosttune.model.platform import RUNNING
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.planning import plan
from hosttune.planning.adopting.changes import Change, Placement, write_placement
from hosttune.planning.adopting.request import check_supported, in_order, intent_of, kept, pci_devices, refusals
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.inventory.pages import guest_shares
from hosttune.planning.inventory.resources import NodeResources, place_cpus, read_resources
from hosttune.planning.inventory.sizing import PlanningContext, read_field

# Namespaces of the metadata that other managers of guests write.
_MANAGERS = {
    "http://openstack.org/xmlns/libvirt/nova/": "OpenStack Nova",
    "http://ovirt.org/vm/": "oVirt",
    "http://kubevirt.io": "KubeVirt",
}


@dataclass(frozen=True)
class Adoption:
    """A definition before and after, the changes between them, and the plan that they follow.

    `unplaced`: why there is no plan; then `after` is `before`. `kept`: what the planner does not decide. `findings`:
    those of the plan, and about the definition. `runs`: the guest runs now.
    """

    name: str
    before: bytes
    after: bytes
    changes: tuple[Change, ...]
    plan: Plan | None
    unplaced: tuple[str, ...]
    relaxation: tuple[str, ...]
    kept: tuple[str, ...]
    findings: tuple[Finding, ...]
    runs: bool


def adopt(host: Host, data: bytes, *, where: str = "domain XML") -> Adoption:
    """Plan the guest of a definition beside all others of the host; what it holds now counts as its own.

    Raises BadInput: not the definition of a guest of QEMU on x86-64, a device does not exist, another guest has its
    name or its UUID.
    """
    text = XmlText(data, where=where)
    facts = read_domain(data, where=where)
    check_supported(facts, where)
    resident = _resident(host, facts, where)
    runs = resident is not None and (resident.state or "running") in RUNNING
    intent = intent_of(host, facts, where)
    findings = tuple(_managers(text, facts))
    nothing = Adoption(facts.name or "", data, data, (), None, refusals(facts), (), kept(host, facts), findings, runs)
    if nothing.unplaced:
        return nothing
    free = _without(host, resident)
    decided = _best_plan(host, free, facts, intent, where)
    if decided.unplaced:
        (refused,) = decided.unplaced
        return replace(nothing, plan=decided, unplaced=refused.why, relaxation=refused.relaxation)
    (guest,) = decided.guests
    placement = _placement(free, facts, guest)
    changes = write_placement(text, facts, placement)
    findings += (*decided.findings, *_missing_devices(facts, guest))
    decided = changed(decided, actions=tuple(a for a in decided.actions if not _by_libvirt(facts, a.kind, a.target)))
    return replace(nothing, after=bytes(text), changes=changes, plan=decided, findings=findings)


def _by_libvirt(facts: DomainFacts, kind: str, target: str) -> bool:
    """Return whether libvirt itself binds this device when the guest starts."""
    return kind == "driver" and any(one.managed and one.source == target for one in facts.hostdevs)


def _resident(host: Host, facts: DomainFacts, where: str) -> RunningGuest | None:
    """Return the host's guest that this definition is of; None if it is not defined there. Raises BadInput."""
    hint = "correct the name or the UUID, or plan on the guest's own host"
    for guest in host.guests or ():
        same_uuid = facts.uuid is not None and facts.uuid == (guest.uuid or "").lower()
        if guest.name == facts.name:
            if facts.uuid and guest.uuid and not same_uuid:
                raise BadInput(f"guest {guest.name!r} of this host has another UUID", where=where, hint=hint)
            return guest
        if same_uuid:
            raise BadInput(f"guest {guest.name!r} of this host has this UUID", where=where, hint=hint)
    return None


def _without(host: Host, resident: RunningGuest | None) -> Host:
    """Return the host as it would be without the guest: what a running guest holds of a node's memory is free."""
    if resident is None:
        return host
    guests = tuple(guest for guest in host.guests or () if guest is not resident)
    if (resident.state or "running") not in RUNNING:
        return changed(host, guests=guests)
    shares = guest_shares(resident, host.numa_nodes, place_cpus(host).nodes)
    nodes = []
    for node in host.numa_nodes:
        for of, size, page in shares:
            node = _given_back(node, size, page) if of == node.id else node
        nodes.append(node)
    return changed(host, guests=guests, numa_nodes=tuple(nodes))


def _given_back(node: NumaNode, size_bytes: int, page_bytes: int | None) -> NumaNode:
    if page_bytes is None:
        return node if node.free_bytes is None else changed(node, free_bytes=node.free_bytes + size_bytes)
    pools = tuple(
        changed(pool, free=min(pool.free + size_bytes // page_bytes, pool.total or 0))
        if pool.size_bytes == page_bytes and pool.free is not None and pool.total is not None
        else pool
        for pool in node.hugepages or ()
    )
    return changed(node, hugepages=pools)


# --- where -----------------------------------------------------------------------------------------------------


def _best_plan(host: Host, free: Host, facts: DomainFacts, intent: Intent, where: str) -> Plan:
    """Return the plan that leaves the guest on its own CPUs if that is as near as the best one, else the best one."""
    best = plan(free, intent, where=where)
    own = [cpus for _, cpus in sorted(facts.pins.items())]
    cpus = CpuSet(cpu for pin in own for cpu in pin)
    if best.unplaced or len(own) != facts.vcpus or len(cpus) != facts.vcpus:
        return best  # floating or shared: there are no CPUs to keep
    context = read_field(free, intent.reserve, may_boot_pages(intent))
    stay = plan(free, intent, where=where, context=_restricted(host, context, intent, cpus))
    if stay.unplaced:
        return best
    return stay if _cost(context, stay.guests[0]) <= _cost(context, best.guests[0]) else best


def _restricted(host: Host, context: PlanningContext, intent: Intent, own: CpuSet) -> PlanningContext:
    """Return the context in which only the guest's own CPUs are free, and the same cores stay with the host as now."""
    present = read_resources(host, intent.reserve)

    def only(node: NodeResources) -> NodeResources:
        kept_cores = present.nodes[node.id].reserved
        names = {core.id for core in kept_cores}
        taken = own - CpuSet(cpu for core in kept_cores for cpu in core.siblings)
        cores = context.resources.nodes[node.id].cores
        pinned = context.resources.pinned
        mine = [core for core in cores if taken.intersection(core.cpus) and core.id not in names]
        free = tuple(
            replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in own))
            for core in mine
            if pinned.isdisjoint(core.siblings)
        )
        return replace(node, reserved=kept_cores, free=free, free_threads=CpuSet(c for core in free for c in core.cpus))

    nodes = {number: only(node) for number, node in context.resources.nodes.items()}
    resources = replace(context.resources, nodes=nodes, housekeeping=present.housekeeping)
    return replace(context, resources=resources)


def _cost(context: PlanningContext, guest: PlannedGuest) -> tuple[int, int]:
    """Return (the sum of the devices' distances to the nearest cell, the sum of the distances between cells)."""
    nodes = [node for cell in guest.cells for node in parse_cpus(cell.host_nodes)]
    known = [device.host_node for device in guest.devices if device.host_node is not None]
    distance = context.resources.distance
    near = sum(min((distance(node, home) for node in nodes), default=0) for home in known)
    return near, sum(distance(a, b) for a in nodes for b in nodes)


# --- in the numbers of the definition --------------------------------------------------------------------------


def _placement(host: Host, facts: DomainFacts, guest: PlannedGuest) -> Placement:
    cells = in_order(facts.cells)
    planned = {pin.vcpu: int(pin.cpus) for pin in guest.vcpu_pins}
    numbered: list[tuple[int, Cell]] = []
    pins: dict[int, int] = {}
    for n, cell in enumerate(guest.cells):
        numbered.append((cells[n].id if cells else cell.id, cell))
        theirs = sorted(parse_cpus(cells[n].vcpus if cells else cell.vcpus))
        order = [planned[vcpu] for vcpu in sorted(parse_cpus(cell.vcpus))]
        pins.update(zip(theirs, _as_now(host, facts, guest, theirs, order), strict=True))
    others = CpuSet(
        cpu for other in host.guests or () for pin in other.vcpu_pins or () for cpu in _pinned(host, pin.cpus)
    )
    isolated = CpuSet(cpu.id for cpu in host.cpus if cpu.isolated)
    return Placement(guest, pins, tuple(numbered), CpuSet(pins.values()) | others | isolated)


def _pinned(host: Host, cpus: str | tuple[int, ...]) -> CpuSet:
    """Return the CPUs of a pin; none if it is every CPU: then it is not a pin."""
    found = parse_cpus(cpus)
    return CpuSet() if found >= {cpu.id for cpu in host.cpus if cpu.online is not False} else found


def _as_now(host: Host, facts: DomainFacts, guest: PlannedGuest, vcpus: list[int], planned: list[int]) -> list[int]:
    """Return the CPUs of a cell in the guest's own order if that has the same CPUs and the same siblings together."""
    now = [cpu for vcpu in vcpus for cpu in facts.pins.get(vcpu, ())]
    if sorted(now) != sorted(planned):
        return planned
    core = {cpu.id: cpu.core for cpu in host.cpus}
    threads = guest.topology.threads if guest.topology else 1
    groups = [{core.get(cpu) for cpu in now[n : n + threads]} for n in range(0, len(now), threads)]
    return now if all(len(group) == 1 for group in groups) else planned


# --- what is worth knowing --------------------------------------------------------------------------------------


def _managers(text: XmlText, facts: DomainFacts) -> Iterator[Finding]:
    found: Mapping[str, None] = dict.fromkeys(
        manager
        for element in text.root.all("metadata")
        for child in element.children
        for space, manager in _MANAGERS.items()
        if child.tag.startswith(space)
    )
    for manager in found:
        what = f"{manager} manages this guest and writes its definition anew: make the change there"
        yield Finding(level="warn", text=what, where=f"guest {facts.name}: metadata")


def _missing_devices(facts: DomainFacts, guest: PlannedGuest) -> Iterator[Finding]:
    have = pci_devices(facts)
    for device in guest.devices:
        if device.address not in have:
            what = f"{device.address} must go with the guest's devices, and the definition does not have it"
            yield Finding(level="warn", text=f"{what}: no other guest can use it", where=f"guest {guest.name}")
