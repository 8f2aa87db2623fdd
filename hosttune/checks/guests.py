"""Guests: where their threads and memory really are, against what libvirt and the applied plan say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from hosttune.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.checks.facts import HOST, RUNNING, by_address, listed, planned_guests
from hosttune.model.evidence import Evidence, GuestProcess, GuestThread
from hosttune.model.host import PciDevice, RunningGuest
from hosttune.model.plan import PlannedGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, parse_cpus

_NUMA, _PINS, _MEMORY, _NEXT, _PLANNED = "guest-numa", "guest-pins", "guest-memory", "guest-definition", "guest-planned"
_VCPU, _IO = re.compile(r"CPU (\d{1,5})/(?:KVM|TCG)"), re.compile(r"IO iothread(\d{1,5})")
_LIBVIRT = "libvirt"
_Judge = Callable[[RunningGuest, GuestProcess, str], CheckResult]
_ASK = "run hosttune validate as root with libvirt running, so that its guests can be asked about"
_PLACE = "plan it again and redefine it: hosttune plan, hosttune apply --disrupt NAME"


def _guests(evidence: Evidence, check: str, expected: str) -> tuple[tuple[RunningGuest, ...], tuple[CheckResult, ...]]:
    """(the guests here, what is to be said where there are none to judge)."""
    guests = evidence.host.guests
    if guests is None:
        if evidence.host.hypervisor and not evidence.plans:
            return (), (skipped(check, HOST, "this machine is itself a guest, and gives nothing to guests of its own"),)
        return (), (unknown(check, HOST, expected=expected, why="which guests there are is unknown", hint=_ASK),)
    return guests, () if guests else (skipped(check, HOST, "no guest here"),)


# --- where it was placed -------------------------------------------------------------------------------------


def guest_numa(evidence: Evidence) -> Iterable[CheckResult]:
    """CPUs and memory of every guest against the nodes of its devices, running or not."""
    expected = "its CPUs and memory are on the nodes of its devices"
    guests, said = _guests(evidence, _NUMA, expected)
    yield from said
    functions = by_address(evidence.host)
    of_cpu = {cpu.id: cpu.numa_node for cpu in evidence.host.cpus}
    for guest in guests:
        yield _numa(guest, functions, of_cpu, expected)


def _numa(
    guest: RunningGuest, functions: Mapping[str, PciDevice], of_cpu: Mapping[int, int | None], expected: str
) -> CheckResult:
    if not guest.devices:
        return skipped(_NUMA, guest.name, "it has no host device")
    nodes = {functions[address].numa_node if address in functions else None for address in guest.devices}
    known = CpuSet(node for node in nodes if node is not None)
    if not known:
        why = "no node of its devices is known"
        hint = "see the numa-affinity check of each device: the firmware has to name their nodes"
        return unknown(_NUMA, guest.name, expected=expected, why=why, hint=hint, source=_LIBVIRT)
    cpus = CpuSet(cpu for pin in guest.vcpu_pins or () for cpu in parse_cpus(pin.cpus))
    if not cpus:
        actual = f"its vCPUs float over the host; devices on node {known}"
        return failed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=_PLACE)
    of_vcpus = CpuSet(node for cpu in cpus if (node := of_cpu.get(cpu)) is not None)
    of_memory = CpuSet(part.node for part in guest.memory or () if part.node is not None)
    far = [f"vCPUs on node {of_vcpus}"] if of_vcpus - known else []
    far += [f"memory on node {of_memory}"] if of_memory - known else []
    loose = any(part.node is None for part in guest.memory or ())
    actual = f"vCPUs on node {of_vcpus or '?'}, memory on node {of_memory or '?'}, devices on node {known}"
    if far:
        return failed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=_PLACE)
    if loose:
        actual += "; memory without a node of its own may come from any"
        return warned(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=_PLACE)
    return passed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT)


# --- where it really is --------------------------------------------------------------------------------------


def guest_pins(evidence: Evidence) -> Iterable[CheckResult]:
    """Every thread of every running guest on the CPUs that its definition gives it, by /proc."""
    yield from _running(evidence, _PINS, "each thread may run where the definition says, and nowhere else", _pins)


def guest_memory(evidence: Evidence) -> Iterable[CheckResult]:
    """The memory of every running guest on the nodes and of the page size of its definition, by /proc."""
    yield from _running(evidence, _MEMORY, "its memory is on the nodes, and of the pages, of its definition", _memory)


def _running(evidence: Evidence, check: str, expected: str, judge: _Judge) -> Iterator[CheckResult]:
    guests, said = _guests(evidence, check, expected)
    yield from said
    processes = {process.guest: process for process in evidence.processes or ()}
    for guest in guests:
        if guest.state not in RUNNING:
            yield skipped(check, guest.name, f"it is {guest.state or 'in an unknown state'}")
            continue
        process = processes.get(guest.name)
        if process is None or process.pid is None:
            yield unknown(check, guest.name, expected=expected, why="its process is not to be seen", hint=_ASK)
        else:
            yield judge(guest, process, expected)


def _pins(guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/task/*/status"
    if process.threads is None or any(thread.cpus is None for thread in process.threads):
        why = "the kernel does not show its threads"
        return unknown(_PINS, guest.name, expected=expected, why=why, hint="run hosttune validate as root")
    wrong = list(_strays(guest, process.threads))
    floating = not guest.vcpu_pins
    if wrong or floating:
        what = ["its vCPUs are not pinned"] if floating else []
        hint = f"virsh vcpupin and emulatorpin put it right at once; for good: {_PLACE}"
        actual = listed([*what, *wrong], 4)
        return failed(_PINS, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    actual = f"{len(guest.vcpu_pins or ())} vCPUs and the emulator's threads are where they belong"
    return passed(_PINS, guest.name, expected=expected, actual=actual, source=source)


def _strays(guest: RunningGuest, threads: Iterable[GuestThread]) -> Iterator[str]:
    pins = {pin.vcpu: parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()}
    io = dict(enumerate((parse_cpus(cpus) for cpus in guest.iothread_cpus or ()), 1))
    emulator = parse_cpus(guest.emulator_cpus) if guest.emulator_cpus else None
    for thread in threads:
        cpus = CpuSet.parse(thread.cpus or "")
        vcpu, iothread = _VCPU.fullmatch(thread.name), _IO.fullmatch(thread.name)
        if vcpu:
            wanted = pins.get(int(vcpu[1]))
            if wanted is not None and cpus != wanted:
                yield f"vCPU {vcpu[1]} may run on CPUs {cpus}, its pin is {wanted}"
        elif iothread:
            wanted = io.get(int(iothread[1]))
            if wanted is not None and cpus != wanted:
                yield f"I/O thread {iothread[1]} may run on CPUs {cpus}, its pin is {wanted}"
        elif emulator is not None and not cpus <= emulator and not thread.name.startswith("TC tc-ram"):
            # QEMU's memory-clearing threads sleep ever after; kernel threads of KVM may be held to fewer CPUs.
            yield f"thread {thread.name!r} may run on CPUs {cpus}, the emulator's are {emulator}"
    if emulator is None and pins:
        yield "the emulator's threads are not pinned: they run on the vCPUs' CPUs too"


def _memory(guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/numa_maps"
    if process.memory_by_node is None:
        hint = "run hosttune validate as root, on a kernel with NUMA (CONFIG_NUMA)"
        return unknown(_MEMORY, guest.name, expected=expected, why="the kernel does not show its memory", hint=hint)
    held = {int(node): size for node, size in process.memory_by_node.items()}
    planned = CpuSet(part.node for part in guest.memory or () if part.node is not None)
    actual = ", ".join(f"{size >> 20} MiB on node {node}" for node, size in sorted(held.items()))
    pages = {part.page_bytes for part in guest.memory or () if part.page_bytes}
    if process.page_bytes:
        actual += f", pages of {process.page_bytes >> 10} KiB"
    hint = f"shut it down and start it again; if it stays so, {_PLACE}"
    if pages and process.page_bytes not in pages:
        actual += f", wanted {', '.join(f'{page >> 10} KiB' for page in sorted(pages))}"
        return failed(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    if not planned:
        actual += "; its definition names no node"
        return warned(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=_PLACE)
    # On ordinary pages the emulator's own heap is among them, which may lie anywhere.
    if set(held) - planned and process.page_bytes:
        actual += f"; its definition says node {planned}"
        return failed(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    return passed(_MEMORY, guest.name, expected=expected, actual=actual, source=source)


# --- what it is against what it shall be ---------------------------------------------------------------------


def guest_definition(evidence: Evidence) -> Iterable[CheckResult]:
    """Whether every running guest runs with the definition that its next start would have."""
    expected = "it runs with the definition that libvirt keeps"
    guests, said = _guests(evidence, _NEXT, expected)
    yield from said
    for guest in guests:
        if guest.state not in RUNNING:
            yield skipped(_NEXT, guest.name, f"it is {guest.state or 'in an unknown state'}")
        elif guest.next_start is None:
            why = "libvirt did not give both its running and its kept definition"
            yield unknown(_NEXT, guest.name, expected=expected, why=why, hint=_ASK)
        elif guest.next_start:
            actual = f"its next start differs: {listed(guest.next_start, 3)}"
            hint = f"shut it down and start it again: virsh shutdown {guest.name}, virsh start {guest.name}"
            yield warned(_NEXT, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
        else:
            yield passed(_NEXT, guest.name, expected=expected, actual="it does", source=_LIBVIRT)


def guest_planned(evidence: Evidence) -> Iterable[CheckResult]:
    """Every guest of the applied plans as libvirt has it."""
    expected = "libvirt has it as the applied plan says"
    planned = planned_guests(evidence)
    if not planned:
        yield skipped(_PLANNED, HOST, "no applied plan has a guest")
        return
    if evidence.host.guests is None:
        yield unknown(_PLANNED, HOST, expected=expected, why="which guests there are is unknown", hint=_ASK)
        return
    known = {guest.name: guest for guest in evidence.host.guests}
    for name, plan in planned.items():
        guest = known.get(name)
        differences = ["it is not defined"] if guest is None else list(_differences(plan, guest))
        if differences:
            hint = f"define it as planned: hosttune apply --disrupt {name}"
            actual = listed(differences, 3)
            yield failed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
        else:
            actual = "pins, memory and devices agree"
            yield passed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT)


def _differences(plan: PlannedGuest, guest: RunningGuest) -> Iterator[str]:
    pins = {pin.vcpu: parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()}
    moved = [pin.vcpu for pin in plan.vcpu_pins if pins.get(pin.vcpu) != parse_cpus(pin.cpus)]
    if moved or len(pins) != len(plan.vcpu_pins):
        yield f"vCPU pins differ ({CpuSet(moved) or 'their number'})"
    if guest.emulator_cpus is None or parse_cpus(guest.emulator_cpus) != parse_cpus(plan.emulator_cpus):
        yield f"the emulator's threads are on {guest.emulator_cpus or 'any CPU'}, planned {plan.emulator_cpus}"
    memory = sum(cell.memory_bytes for cell in plan.cells)
    if guest.memory_bytes != memory:
        yield f"memory is {guest.memory_bytes} bytes, planned {memory}"
    devices = {device.address for device in plan.devices if device.kind != "mdev"}
    if devices != set(guest.devices):
        missing, more = sorted(devices - set(guest.devices)), sorted(set(guest.devices) - devices)
        yield f"devices differ (missing {listed(missing) or 'none'}, not planned {listed(more) or 'none'})"


_FORMATDOMAIN = "libvirt formatdomain: CPU Tuning, NUMA Node Tuning, Memory Backing"
CHECKS = (
    Check(
        id=_NUMA,
        title="CPUs and memory beside the devices",
        subjects="each guest that libvirt knows, running or not",
        why="every access from another node crosses the link between packages: bandwidth to a GPU halves",
        source=f"{_FORMATDOMAIN}; Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node)",
        judge=guest_numa,
    ),
    Check(
        id=_PINS,
        title="threads where they were pinned",
        subjects="each running guest",
        why="XML says what was asked for; a thread that floats takes time from vCPUs, its own or another guest's",
        source="proc(5), /proc/PID/task/TID/status (Cpus_allowed_list)",
        judge=guest_pins,
    ),
    Check(
        id=_MEMORY,
        title="memory where it was placed",
        subjects="each running guest",
        why="memory that came from another node stays there as long as the guest runs",
        source="proc(5), /proc/PID/numa_maps",
        judge=guest_memory,
    ),
    Check(
        id=_NEXT,
        title="the running definition is the kept one",
        subjects="each running guest",
        why="a guest that was edited while it ran becomes another one with its next start",
        source="libvirt virDomainGetXMLDesc (VIR_DOMAIN_XML_INACTIVE)",
        judge=guest_definition,
    ),
    Check(
        id=_PLANNED,
        title="the guest is the planned one",
        subjects="each guest of the applied plans",
        why="what was validated is only worth something for the guest that is there",
        source=_FORMATDOMAIN,
        judge=guest_planned,
    ),
)
