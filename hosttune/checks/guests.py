"""Guests: where their definitions put them, what runs of them, and what the applied plans wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hosttune.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.checks.facts import (
    AS_LIBVIRT,
    HOST,
    RUNNING,
    accelerators,
    guests_known,
    guests_or_why,
    listed,
    named_nodes,
    online,
    own_pins,
    planned_guests,
    undefined,
)
from hosttune.checks.guestthreads import CHECKS as THREAD_CHECKS
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, RunningGuest
from hosttune.model.plan import PlannedGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, parse_cpus

_NUMA, _NEXT, _PLANNED = "guest-numa", "guest-definition", "guest-planned"
_LIBVIRT = "libvirt"
_UNREAD = "its definition could not be read"
_PLACE = "plan it again and redefine it: hosttune plan, hosttune apply --disrupt {0}"

# --- where it was placed -------------------------------------------------------------------------------------


def guest_numa(evidence: Evidence) -> Iterable[CheckResult]:
    """CPUs and memory of every guest against the nodes of its devices, running or not."""
    expected = "its CPUs and memory are on the nodes of its devices"
    guests, said = guests_or_why(evidence, _NUMA, expected)
    yield from said
    nodes = _nodes_of_devices(evidence.host)
    gpus = {gpu.address for gpu in accelerators(evidence.host)}
    for guest in guests:
        yield _numa(evidence.host, guest, nodes, gpus, expected)


def _nodes_of_devices(host: Host) -> dict[str, int | None]:
    """Nodes by address. On a machine with a single node everything is there, whatever a device says."""
    single = len(host.numa_nodes) == 1 and len(named_nodes(host)) == 1
    only = host.numa_nodes[0].id if single and host.hypervisor is False else None
    return {address: device.numa_node if only is None else only for address, device in host.index.pci.items()}


def _numa(
    host: Host, guest: RunningGuest, of_device: Mapping[str, int | None], gpus: set[str], expected: str
) -> CheckResult:
    if undefined(guest):
        return unknown(_NUMA, guest.name, expected=expected, why=_UNREAD, hint=AS_LIBVIRT, source=_LIBVIRT)
    if not guest.devices:
        return skipped(_NUMA, guest.name, "it has no host device")
    devices = _nodes(of_device.get(address) for address in guest.devices)
    cpus = _nodes(_cpu_nodes(host, guest))
    memory = _nodes(_memory_nodes(host, guest))
    floats = _floats(host, guest)
    actual = f"vCPUs on node {cpus or '?'}, memory on node {memory or '?'}, devices on node {devices or '?'}"
    if floats:
        actual = f"its vCPUs float over the host; {actual}"
    without = _nodes(of_device.get(address) for address in guest.devices if address in gpus) - cpus
    if devices and cpus and (cpus - devices or memory - devices or without):
        actual += f"; no vCPU on node {without}, where it has GPUs" if without else ""
        hint = _PLACE.format(guest.name)
        return failed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    return _unknown_or_loose(host, guest, of_device, expected, actual)


def _unknown_or_loose(
    host: Host, guest: RunningGuest, of_device: Mapping[str, int | None], expected: str, actual: str
) -> CheckResult:
    """Nothing lies elsewhere, as far as is known: what is not known, and memory that may come from anywhere."""
    stray = [address for address in guest.devices if of_device.get(address) is None]
    if stray:
        hint = "see the numa-affinity check of each GPU: the firmware has to name the nodes of devices"
        why = f"the node of {listed(stray, 3)} is not known; {actual}"
        return unknown(_NUMA, guest.name, expected=expected, why=why, hint=hint, source=_LIBVIRT)
    if guest.vcpu_pins is None or guest.memory is None or None in _cpu_nodes(host, guest):
        why = f"the nodes of its vCPUs or its memory are not known; {actual}"
        return unknown(_NUMA, guest.name, expected=expected, why=why, hint=AS_LIBVIRT, source=_LIBVIRT)
    if None in _memory_nodes(host, guest):
        actual += "; memory without a node of its own may come from any"
        hint = _PLACE.format(guest.name)
        return warned(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    return passed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT)


def _nodes(found: Iterable[int | None]) -> CpuSet:
    return CpuSet(node for node in found if node is not None)


def _floats(host: Host, guest: RunningGuest) -> bool:
    """Whether a vCPU may run on every CPU: it has no pin, or one that names all."""
    everywhere = online(host)
    pins = own_pins(guest)
    return guest.vcpu_pins is not None and (
        len(pins) < (guest.vcpus or 1) or any(everywhere and everywhere <= cpus for cpus in pins.values())
    )


def _cpu_nodes(host: Host, guest: RunningGuest) -> set[int | None]:
    """The nodes of the CPUs that its vCPUs may run on; None among them: of one it is not known."""
    if guest.vcpu_pins is None:
        return {None}
    of_cpu = {cpu.id: cpu.numa_node for cpu in host.cpus}
    cpus = set(of_cpu) if _floats(host, guest) else {cpu for pins in own_pins(guest).values() for cpu in pins}
    # A CPU that is offline has no node, and runs nothing.
    return {of_cpu.get(cpu) for cpu in cpus if cpu not in of_cpu or cpu in online(host)} or {None}


def _memory_nodes(host: Host, guest: RunningGuest) -> set[int | None]:
    """The nodes that its memory comes from; None among them: it may come from any of several."""
    only = host.numa_nodes[0].id if len(host.numa_nodes) == 1 and len(named_nodes(host)) == 1 else None
    return {only if part.node is None else part.node for part in guest.memory or ()} or {only}


# --- what it is against what it shall be ---------------------------------------------------------------------


def guest_definition(evidence: Evidence) -> Iterable[CheckResult]:
    """Whether every running guest runs with the definition that its next start would have."""
    expected = "it runs with the definition that libvirt keeps"
    guests, said = guests_or_why(evidence, _NEXT, expected)
    yield from said
    for guest in guests:
        if guest.state is None:
            yield unknown(_NEXT, guest.name, expected=expected, why="whether it runs is unknown", hint=AS_LIBVIRT)
        elif guest.state not in RUNNING:
            yield skipped(_NEXT, guest.name, f"it is {guest.state}")
        elif guest.next_start is None:
            why = "libvirt did not give both its running and its kept definition (of a transient guest it keeps none)"
            yield unknown(_NEXT, guest.name, expected=expected, why=why, hint=AS_LIBVIRT)
        elif guest.next_start:
            actual = f"its next start differs in: {listed(guest.next_start, 4)}"
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
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    whole = guests_known(evidence) is not None
    if not whole and not known:
        yield unknown(_PLANNED, HOST, expected=expected, why="which guests there are is unknown", hint=AS_LIBVIRT)
        return
    for name, plan in planned.items():
        if name not in known and not whole:
            why = "whether it is defined is unknown: there may be other guests than those listed"
            yield unknown(_PLANNED, name, expected=expected, why=why, hint=AS_LIBVIRT, source=_LIBVIRT)
        else:
            yield _as_planned(plan, known.get(name), expected)


def _as_planned(plan: PlannedGuest, guest: RunningGuest | None, expected: str) -> CheckResult:
    name = plan.name
    if guest is None:
        hint = "hosttune apply defines it; after hosttune apply --no-guests that is left to you"
        actual = "it is not defined"
        return warned(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    if undefined(guest):
        return unknown(_PLANNED, name, expected=expected, why=_UNREAD, hint=AS_LIBVIRT, source=_LIBVIRT)
    differences = list(_differences(plan, guest))
    if differences:
        hint = f"define it as planned: hosttune apply --disrupt {name}"
        actual = listed(differences, 3)
        return failed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    actual = "pins, memory and devices agree"
    return passed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT)


def _differences(plan: PlannedGuest, guest: RunningGuest) -> Iterator[str]:
    pins = own_pins(guest)
    moved = [pin.vcpu for pin in plan.vcpu_pins if pins.get(pin.vcpu) != parse_cpus(pin.cpus)]
    if moved or len(pins) != len(plan.vcpu_pins):
        yield f"vCPU pins differ ({CpuSet(moved) or 'their number'})"
    if guest.emulator_cpus is None or parse_cpus(guest.emulator_cpus) != parse_cpus(plan.emulator_cpus):
        yield f"the emulator's threads are on {guest.emulator_cpus or 'any CPU'}, planned {plan.emulator_cpus}"
    memory = sum(cell.memory_bytes for cell in plan.cells)
    if guest.memory_bytes != memory:
        yield f"memory is {guest.memory_bytes} bytes, planned {memory}"
    devices = {device.address.casefold() for device in plan.devices}
    has = {device.casefold() for device in (*guest.devices, *guest.mdevs)}
    if devices != has:
        missing, more = sorted(devices - has), sorted(has - devices)
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
    *THREAD_CHECKS,
    Check(
        id=_NEXT,
        title="The running definition is the kept one",
        subjects="each running guest",
        why="a guest that was edited while it ran becomes another one with its next start",
        source="libvirt virDomainGetXMLDesc (VIR_DOMAIN_XML_INACTIVE)",
        judge=guest_definition,
    ),
    Check(
        id=_PLANNED,
        title="The guest is the planned one",
        subjects="each guest of the applied plans",
        why="what was validated is only worth something for the guest that is there",
        source=_FORMATDOMAIN,
        judge=guest_planned,
    ),
)
