"""Checks of guests: the running definition against the kept one, and against the applied plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hosttune.domain.defined import as_adopted, as_planned
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, compare_definition
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.guestplan import ExpectedCell, ExpectedDevice, ExpectedPair
from hosttune.model.host import RunningGuest
from hosttune.model.pcitree import grade
from hosttune.model.values import format_size, parse_cpus
from hosttune.rules.checks.facts import AS_LIBVIRT, guests_known, listed, planned_guests
from hosttune.rules.checks.guestplacement import FORMATDOMAIN, PLACE, started, with_definition
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guest_plan, guests
from hosttune.rules.engine import Finding, NoValue, inapplicable


@check(
    "guest-definition",
    title="The running definition is the kept one",
    about="each running guest",
    why="a guest that was edited while it ran becomes another one with its next start",
    source="libvirt virDomainGetXMLDesc (VIR_DOMAIN_XML_INACTIVE)",
    expected="it runs with the definition that libvirt keeps",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=guests,
)
def guest_definition(on: On, guest: RunningGuest) -> Finding:
    started(on, guest)
    what = "its running or its kept definition (of a transient guest libvirt keeps none)"
    if differing := on.need(guest.next_start, what):
        hint = f"shut it down and start it again: virsh shutdown {guest.name}, virsh start {guest.name}"
        return on.warned(f"its next start differs in: {listed(differing, 4)}", hint)
    return on.passed("it does")


class _AppliedGuest(NamedTuple):
    """A guest of the applied plans, and as libvirt has it; None: it has none, or that is not known."""

    plan: RunningGuest
    guest: RunningGuest | None
    adopted: bool


def _planned(evidence: Evidence) -> Iterator[tuple[str, _AppliedGuest]]:
    """Yield every guest of the applied plans; the host if there is none, or if no guest at all is known."""
    plans = {name: (as_planned(guest), False) for name, guest in planned_guests(evidence).items()}
    for plan in evidence.plans:
        plans |= {adopted.name: (as_adopted(adopted), True) for adopted in plan.adoptions}
    if not plans:
        raise inapplicable("no applied plan has a guest")
    if guests_known(evidence) is None and not evidence.host.guests:
        raise NoValue(Finding(outcome="unknown", text="which guests there are is unknown"))
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    yield from ((name, _AppliedGuest(plan, known.get(name), adopted)) for name, (plan, adopted) in plans.items())


@check(
    "guest-planned",
    title="The guest is the planned one",
    about="each guest of the applied plans",
    why="what was validated is only worth something for the guest that is there",
    source=FORMATDOMAIN,
    expected="libvirt has it as the applied plan says",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=_planned,
)
def guest_planned(on: On, planned: _AppliedGuest) -> Finding:
    if planned.guest is None and guests_known(on.evidence) is None:
        on.give_up("whether it is defined is unknown: there may be other guests than those listed")
    if planned.guest is None:
        hint = "hosttune apply --intent FILE defines it; after hosttune apply --no-guests that is left to you"
        return on.warned("it is not defined", hint)
    with_definition(on, planned.guest)
    rows = compare_definition(planned.plan, planned.guest, adopted=planned.adopted)
    if different := [row for row in rows if row.state == DIFFERENT]:
        actual = "; ".join(f"{row.what}: {row.actual}, planned {row.planned}" for row in different)
        return on.failed(actual, PLACE.format(on.subject))
    if unread := [row.what for row in rows if row.state == UNKNOWN]:
        on.give_up(f"of its definition was not read: {listed(unread)}")
    return on.passed(f"as planned: {listed([row.what for row in rows], 8)}")


# --- the PCI tree of a guest ----------------------------------------------------------------------------------

_Part = ExpectedCell | ExpectedDevice | ExpectedPair
# What firmware and kernel take from a node's memory before they count it: 64 of every 4096 bytes for struct page (Linux
# Documentation/mm/vmemmap_dedup.rst), and fixed amounts for each, for example for the crash kernel.
_LEAST_SHARE = 0.95
_FIXED_BYTES = 1 << 30


def _parts(evidence: Evidence) -> Iterator[tuple[str, _Part]]:
    """Yield each node, each passed function, and each pair of GPU and NIC that the guest's plan names."""
    plan = guest_plan(evidence)
    yield from ((f"node {cell.id}", cell) for cell in plan.cells)
    yield from ((device.address, device) for device in plan.devices)
    yield from ((f"{pair.gpu} {pair.nic}", pair) for pair in plan.pairs)


@check(
    "guest-topology",
    title="A guest's own tree is its plan's",
    about="each node, passed function, and GPU with a NIC of the guest's plan",
    why="libraries place their work by what the guest shows: a NIC that looks far is not used for its GPU",
    source="the guest's plan (docs/guest-topology.md); nvidia-smi topo -m, legend; Linux ABI/testing/sysfs-bus-pci",
    expected="what its plan says",
    remedy="shut the guest down, apply its plan again on the host (hosttune apply) and start it",
    each=_parts,
    inside=True,
)
def guest_topology(on: On, part: _Part) -> Finding:
    if isinstance(part, ExpectedCell):
        path = f"{sysfs.NODES}/node{part.id}"
        on = on.reading(path, f"CPUs {part.cpus}, {format_size(part.memory_bytes)}")
        nodes = {node.id: node for node in on.host.numa_nodes}
        if not nodes:
            on.give_up("which NUMA nodes there are is unknown", "start a kernel that has CONFIG_NUMA, without numa=off")
        if part.id not in nodes:
            return on.failed("no such node")
        cpus = on.need(nodes[part.id].cpus, "the list of its CPUs", f"{path}/cpulist")
        memory = on.need(nodes[part.id].memory_bytes, "the size of its memory", f"{path}/meminfo")
        actual = f"CPUs {cpus}, {format_size(memory)}"
        least = part.memory_bytes * _LEAST_SHARE - _FIXED_BYTES
        same = parse_cpus(cpus) == parse_cpus(part.cpus) and least <= memory <= part.memory_bytes
        return on.passed(actual) if same else on.failed(actual)
    if isinstance(part, ExpectedDevice):
        path = sysfs.function(part.address)
        on = on.reading(path, _thread_name(part.kind, part.ids, part.node))
        functions = on.need(on.host.index.pci or None, "the list of PCI functions", look="lspci -D")
        if part.address not in functions:
            return on.failed("nothing there")
        there = functions[part.address]
        on.need(there.ids if part.ids else "", "what device it is", f"{path}/device")
        actual = _thread_name(part.kind if there.ids == part.ids else "a device", there.ids, there.numa_node)
        if part.ids not in (None, there.ids) or part.node not in (None, there.numa_node):
            return on.failed(actual)
        return on.passed(actual)
    on, index = on.reading("/sys/devices/pci*", part.grade), on.host.index
    near = grade(index, part.gpu, part.nic) if part.gpu in index.pci and part.nic in index.pci else None
    if near is None:
        why = "how near they are is unknown: one is not there, or its node is not known"
        on.give_up(why, "see to the two functions first; then run hosttune validate as root")
    return on.passed(near) if near == part.grade else on.failed(near)


def _thread_name(kind: str, ids: str | None, node: int | None) -> str:
    return f"{kind} {ids or 'of unknown ids'} {'of no node' if node is None else f'on node {node}'}"
