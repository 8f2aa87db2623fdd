"""Checks of guests: the running definition against the kept one, and against the applied plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from hosttune.domain.defined import as_adopted, as_planned
from hosttune.domain.guestdiff import (
    DIFFERENT,
    ELSEWHERE,
    MISSING,
    OWN_PART,
    UNKNOWN,
    compare_definition,
    compare_memory,
    compare_threads,
    vcpu_of,
)
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence, GuestProcess
from hosttune.model.guestplan import ExpectedCell, ExpectedDevice, ExpectedPair
from hosttune.model.host import Host, RunningGuest
from hosttune.model.pci import for_vfio
from hosttune.model.pcitree import grade
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.rules.checks.facts import (
    AS_LIBVIRT,
    RUNNING,
    accelerators,
    guests_known,
    listed,
    online,
    only_node,
    planned_guests,
    undefined,
)
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guest_plan, guests
from hosttune.rules.engine import Finding, NoValue, inapplicable

# --- where guests are ------------------------------------------------------------------------------------------
# Checks of where guests are: by their definitions beside their devices, by /proc where the definitions say.

# Of a guest that hosttune defined, and of any other.
PLACE = "define it as planned: hosttune apply --intent FILE; a guest of somebody else: hosttune plan --adopt {0}"
FORMATDOMAIN = "libvirt formatdomain: CPU Tuning, NUMA Node Tuning, Memory Backing"
_ROOT = "run hosttune validate as root, while libvirt runs"


def started(on: On, guest: RunningGuest) -> None:
    """End the check for a guest that does not run, or of which that is not known."""
    if guest.state is None:
        on.give_up("whether it runs is unknown", AS_LIBVIRT)
    if guest.state not in RUNNING:
        on.skip(f"it is {guest.state}")


def _process(on: On, guest: RunningGuest) -> GuestProcess:
    """Return the process of a running guest; the check ends if it has none, or is not visible."""
    started(on, guest)
    if guest.starting:
        why = "libvirt has not ended its start, and places its threads and memory until then"
        on.give_up(why, "validate again when it has started")
    processes = {process.guest: process for process in on.evidence.processes or () if process.pid is not None}
    if guest.name not in processes:
        on.give_up("its process is not visible", AS_LIBVIRT)
    return processes[guest.name]


def with_definition(on: On, guest: RunningGuest) -> None:
    """End the check for a guest whose definition could not be read."""
    if undefined(guest):
        on.give_up("its definition could not be read")


# --- placement -------------------------------------------------------------------------------------------------


@check(
    "guest-numa",
    title="CPUs and memory beside the devices",
    about="each guest that libvirt knows, running or not",
    why="every access from another node crosses the link between packages: bandwidth to a GPU halves",
    source=f"{FORMATDOMAIN}; Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node)",
    expected="its CPUs and memory are on the nodes of its devices",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=guests,
)
def guest_numa(on: On, guest: RunningGuest) -> Finding:
    """On a machine with one node everything is on it, whatever a device reports. A device on a node without CPUs counts
    for the nearest that has.
    """
    with_definition(on, guest)
    if not guest.devices:
        on.skip("it has no host device")
    host, guest = on.host, _on_only_node(on.host, guest)
    only, functions = only_node(host) if host.hypervisor is False else None, host.index.pci
    of_device = {at: functions[at].numa_node if only is None else only for at in guest.devices if at in functions}
    own = _nodes(of_device.values())
    devices = _nodes(map(host.home, own))
    cpu_nodes = _cpu_nodes(host, guest)
    cpus, memory = _nodes(cpu_nodes), _nodes(part.node for part in guest.memory or ())
    actual = f"vCPUs on node {cpus or '?'}, memory on node {memory or '?'}, devices on node {own or '?'}"
    if bare := own - devices:
        actual += f" (node {bare} lacks CPUs or memory, node {_nodes(map(host.home, bare))} is the nearest with both)"
    if _floats(host, guest):
        actual = f"its vCPUs float over the host; {actual}"
    gpus = {gpu.address for gpu in accelerators(host)}
    without = _nodes(host.home(node) for at, node in of_device.items() if at in gpus and node not in cpus) - cpus
    if devices and cpus and (cpus - devices - own or memory - devices - own or without):
        actual += f"; no vCPU on node {without}, where it has GPUs" if without else ""
        return on.failed(actual, PLACE.format(guest.name))
    if unplaced := [address for address in guest.devices if of_device.get(address) is None]:
        hint = "see the numa-affinity check of each GPU: the firmware has to name the nodes of devices"
        on.give_up(f"the node of {listed(unplaced, 3)} is not known; {actual}", hint)
    if guest.memory is None or None in cpu_nodes:
        on.give_up(f"the nodes of its vCPUs or its memory are not known; {actual}")
    if not guest.memory or any(part.node is None for part in guest.memory):
        return on.warned(f"{actual}; memory without a node of its own may come from any", PLACE.format(guest.name))
    return on.passed(actual)


def _on_only_node(host: Host, guest: RunningGuest) -> RunningGuest:
    """Return the guest; on a machine with one node, all memory is from there."""
    only = only_node(host)
    if only is None or guest.memory is None:
        return guest
    memory = tuple(replace(part, node=only) if part.node is None else part for part in guest.memory)
    return replace(guest, memory=memory)


def _nodes(nodes: Iterable[int | None]) -> CpuSet:
    return CpuSet(node for node in nodes if node is not None)


def _floats(host: Host, guest: RunningGuest) -> bool:
    """Return whether a vCPU may run on every CPU: it has no pin, or a pin to all CPUs."""
    everywhere, pins = online(host), guest.pins
    return guest.vcpu_pins is not None and (
        len(pins) < (guest.vcpus or 1) or any(everywhere and everywhere <= cpus for cpus in pins.values())
    )


def _cpu_nodes(host: Host, guest: RunningGuest) -> set[int | None]:
    """Return the nodes of the CPUs that its vCPUs may run on; it contains None if the node of a CPU is unknown."""
    if guest.vcpu_pins is None:
        return {None}
    of_cpu = {cpu.id: cpu.numa_node for cpu in host.cpus}
    cpus = set(of_cpu) if _floats(host, guest) else {cpu for pins in guest.pins.values() for cpu in pins}
    # A CPU that is offline has no node, and nothing runs on it.
    return {of_cpu.get(cpu) for cpu in cpus if cpu not in of_cpu or cpu in online(host)} or {None}


# --- threads -------------------------------------------------------------------------------------------------


@check(
    "guest-pins",
    title="Threads where they were pinned",
    about="each running guest",
    why="an unpinned thread takes time from vCPUs, its own or another guest's",
    source="proc(5), /proc/PID/task/TID/status (Cpus_allowed_list); libvirt formatdomain, CPU Tuning",
    expected="each thread may run where the definition says, and nowhere else",
    look=_ROOT,
    each=guests,
)
def guest_pins(on: On, guest: RunningGuest) -> Finding:
    """A pinned vCPU without a thread was unplugged from the running guest, where everything was looked at."""
    process = _process(on, guest)
    on = on.reading(f"/proc/{process.pid}/task/*/status")
    on.need(guest.vcpu_pins, "its definition")
    threads = on.need(process.threads, "the list of its threads")
    on.need(None if any(thread.cpus is None for thread in threads) else "", "where each of its threads may run")
    seen = [vcpu for thread in threads if (vcpu := vcpu_of(thread)) is not None]
    on.need(seen or None, "the name of a vCPU's thread")
    if (missing := guest.pins.keys() - set(seen)) and not on.evidence.complete:
        on.give_up(f"vCPU {CpuSet(missing)} shows no thread")
    known = online(on.host)
    differences = compare_threads(guest, threads, online=known)
    wrong = [difference.text for difference in differences if difference.kind == ELSEWHERE]
    loose, place = list(_loose(guest, known)), PLACE.format(guest.name)
    if wrong or (loose and guest.devices):
        hint = f"virsh vcpupin and emulatorpin correct it at once; permanently: {place}"
        return on.failed(listed([*loose, *wrong], 4), hint)
    if loose:
        return on.warned(listed(loose, 4), f"pin it, so that it takes no time from pinned guests: {place}")
    return on.passed(f"{len(seen)} vCPUs and the emulator's threads are where they belong")


def _loose(guest: RunningGuest, everywhere: CpuSet) -> Iterator[str]:
    """Yield what its definition lets run anywhere. A pin to all CPUs does not count: libvirt shows it for no pin."""
    every, emulator = guest.pins, parse_cpus(guest.emulator_cpus)
    pins = {vcpu: cpus for vcpu, cpus in every.items() if not everywhere or not everywhere <= cpus}
    count = max(guest.vcpus or 0, len(every))
    if not pins:
        yield "its vCPUs are not pinned"
    elif len(pins) < count:
        yield f"vCPU {CpuSet(set(range(count)) - pins.keys())} is not pinned"
    if pins and (not emulator or (everywhere and everywhere <= emulator)):
        yield "the emulator's threads are not pinned: they run on the vCPUs' CPUs too"


# --- memory --------------------------------------------------------------------------------------------------


@check(
    "guest-memory",
    title="Memory where it was placed",
    about="each running guest",
    why="memory that came from another node stays there as long as the guest runs",
    source="proc(5), /proc/PID/numa_maps",
    expected="its memory is on the nodes, and of the pages, of its definition",
    look="run hosttune validate as root, on a kernel with NUMA (CONFIG_NUMA)",
    each=guests,
)
def guest_memory(on: On, guest: RunningGuest) -> Finding:
    process, guest = _process(on, guest), _on_only_node(on.host, guest)
    on = on.reading(f"/proc/{process.pid}/numa_maps")
    parts = on.need(guest.memory, "its definition")
    vcpus = [thread for thread in process.threads or () if vcpu_of(thread) is not None]
    on.need(vcpus or None, "the name of a vCPU's thread")
    differences = list(compare_memory(guest, process))
    held = {int(node): size for node, size in on.need(process.memory_by_node, "its memory").items()}
    huge = sum(part.memory_bytes or 0 for part in parts if part.page_bytes)
    lacking = max(huge - sum(held.values()), 0) or _unplaced(on.evidence, guest, process)
    wrong = [difference.text for difference in differences if difference.kind == ELSEWHERE]
    if guest.has_huge_pages and not lacking:  # all huge pages are present: what one node lacks is on another node
        wrong += [difference.text for difference in differences if difference.kind == MISSING]
    actual = ", ".join(f"{size >> 20} MiB on node {node}" for node, size in sorted(held.items()))
    if process.page_sizes:
        actual += f", pages of {', '.join(f'{size >> 10} KiB' for size in process.page_sizes)}"
    if wrong:
        again = f"shut it down and start it again; if it stays so, {PLACE.format(guest.name)}"
        return on.failed(f"{actual}; {listed(wrong, 4)}", again)
    if lacking:
        what = "huge pages" if guest.has_huge_pages else "memory"
        hint = "run hosttune validate again, as root: /proc/PID/numa_maps shows all memory that a process has"
        on.give_up(f"no node is shown for {lacking >> 20} MiB of its {what}; {actual}", hint)
    if not parts or any(part.node is None for part in parts):
        return on.warned(f"{actual}; its definition names no node", PLACE.format(guest.name))
    return on.passed(actual)


def _unplaced(evidence: Evidence, guest: RunningGuest, process: GuestProcess) -> int:
    """Return the bytes on ordinary pages that its process must have and does not show on any node; 0 if it shows all.

    The kernel counts what the process has in memory (proc(5), VmRSS, which is not exact: a part as small as the one
    that may be elsewhere is ignored). All memory of a guest with a VFIO device is pinned, and so in memory
    (Documentation/driver-api/vfio).
    """
    if guest.has_huge_pages or process.page_sizes:
        return 0
    held = sum((process.memory_by_node or {}).values())
    counted = process.resident_bytes or 0
    least = counted - counted // OWN_PART
    devices = (evidence.host.index.pci.get(address) for address in guest.devices)
    if any(device is not None and for_vfio(device.driver) for device in devices):
        least = max(least, sum(part.memory_bytes or 0 for part in guest.memory or ()))
    return max(least - held, 0)


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
