"""Checks of guests: placement by their definitions, the running definition, and the applied plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hosttune.domain.expectedguest import ExpectedGuest
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, compare_definition
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, RunningGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    AS_LIBVIRT,
    HOST,
    RUNNING,
    accelerators,
    guests_known,
    guests_or_why,
    listed,
    online,
    only_node,
    planned_guests,
    undefined,
)
from hosttune.rules.checks.guestthreads import CHECKS as THREAD_CHECKS
from hosttune.rules.checks.guestthreads import PLACE

_NUMA, _NEXT, _PLANNED = "guest-numa", "guest-definition", "guest-planned"
_LIBVIRT = "libvirt"
_UNREAD = "its definition could not be read"

# --- where it was placed -------------------------------------------------------------------------------------


def guest_numa(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare the CPUs and memory of every guest, running or not, with the nodes of its devices."""
    expected = "its CPUs and memory are on the nodes of its devices"
    guests, results = guests_or_why(evidence, _NUMA, expected)
    yield from results
    nodes = _nodes_of_devices(evidence.host)
    gpus = {gpu.address for gpu in accelerators(evidence.host)}
    for guest in guests:
        yield _numa(evidence.host, guest, nodes, gpus, expected)


def _nodes_of_devices(host: Host) -> dict[str, int | None]:
    """Return nodes by address. On a machine with one node everything is on it, whatever a device reports."""
    only = only_node(host) if host.hypervisor is False else None
    return {address: device.numa_node if only is None else only for address, device in host.index.pci.items()}


def _numa(
    host: Host, guest: RunningGuest, of_device: Mapping[str, int | None], gpus: set[str], expected: str
) -> CheckResult:
    if undefined(guest):
        return unknown(_NUMA, guest.name, expected=expected, why=_UNREAD, hint=AS_LIBVIRT, source=_LIBVIRT)
    if not guest.devices:
        return skipped(_NUMA, guest.name, "it has no host device")
    defined = ExpectedGuest.of_definition(guest, only_node=only_node(host))
    own = _nodes(of_device.get(address) for address in guest.devices)
    devices = _nodes(map(host.home, own))  # a device on a node without CPUs counts for the nearest that has
    cpus = _nodes(_cpu_nodes(host, defined))
    memory = CpuSet(node for part in defined.memory or () for node in part.nodes)
    floats = _floats(host, defined)
    actual = f"vCPUs on node {cpus or '?'}, memory on node {memory or '?'}, devices on node {own or '?'}"
    if bare := own - devices:
        actual += f" (node {bare} has no CPU, node {_nodes(map(host.home, bare))} is the nearest that has)"
    if floats:
        actual = f"its vCPUs float over the host; {actual}"
    without = _nodes(host.home(of_device.get(address)) for address in guest.devices if address in gpus) - cpus
    if devices and cpus and (cpus - devices or memory - devices - own or without):
        actual += f"; no vCPU on node {without}, where it has GPUs" if without else ""
        hint = PLACE.format(guest.name)
        return failed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    unplaced = [address for address in guest.devices if of_device.get(address) is None]
    return _unknown_or_loose(host, defined, unplaced, expected, actual)


def _unknown_or_loose(
    host: Host, guest: ExpectedGuest, unplaced: Sequence[str], expected: str, actual: str
) -> CheckResult:
    """Return the result if nothing is known to be on another node: unknown parts, or memory that may be anywhere."""
    if unplaced:
        hint = "see the numa-affinity check of each GPU: the firmware has to name the nodes of devices"
        why = f"the node of {listed(unplaced, 3)} is not known; {actual}"
        return unknown(_NUMA, guest.name, expected=expected, why=why, hint=hint, source=_LIBVIRT)
    if guest.vcpu_pins is None or guest.memory is None or None in _cpu_nodes(host, guest):
        why = f"the nodes of its vCPUs or its memory are not known; {actual}"
        return unknown(_NUMA, guest.name, expected=expected, why=why, hint=AS_LIBVIRT, source=_LIBVIRT)
    if not guest.memory or not all(part.nodes for part in guest.memory):
        actual += "; memory without a node of its own may come from any"
        hint = PLACE.format(guest.name)
        return warned(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    return passed(_NUMA, guest.name, expected=expected, actual=actual, source=_LIBVIRT)


def _nodes(found: Iterable[int | None]) -> CpuSet:
    return CpuSet(node for node in found if node is not None)


def _floats(host: Host, guest: ExpectedGuest) -> bool:
    """Return whether a vCPU may run on every CPU: it has no pin, or a pin to all CPUs."""
    everywhere, pins = online(host), guest.vcpu_pins
    return pins is not None and (
        len(pins) < (guest.vcpus or 1) or any(everywhere and everywhere <= cpus for cpus in pins.values())
    )


def _cpu_nodes(host: Host, guest: ExpectedGuest) -> set[int | None]:
    """Return the nodes of the CPUs that its vCPUs may run on; it contains None if the node of a CPU is unknown."""
    if guest.vcpu_pins is None:
        return {None}
    of_cpu = {cpu.id: cpu.numa_node for cpu in host.cpus}
    cpus = set(of_cpu) if _floats(host, guest) else {cpu for pins in guest.vcpu_pins.values() for cpu in pins}
    # A CPU that is offline has no node, and nothing runs on it.
    return {of_cpu.get(cpu) for cpu in cpus if cpu not in of_cpu or cpu in online(host)} or {None}


# --- what it is, compared with what is expected -------------------------------------------------------------


def guest_definition(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that every running guest runs with the definition that its next start would use."""
    expected = "it runs with the definition that libvirt keeps"
    guests, results = guests_or_why(evidence, _NEXT, expected)
    yield from results
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
    """Compare every guest of the applied plans with its definition in libvirt."""
    expected = "libvirt has it as the applied plan says"
    planned = {name: ExpectedGuest.of_plan(guest) for name, guest in planned_guests(evidence).items()}
    for plan in evidence.plans:
        planned |= {adopted.name: ExpectedGuest.of_adoption(adopted) for adopted in plan.adoptions}
    if not planned:
        yield skipped(_PLANNED, HOST, "no applied plan has a guest")
        return
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    whole = guests_known(evidence) is not None
    if not whole and not known:
        yield unknown(_PLANNED, HOST, expected=expected, why="which guests there are is unknown", hint=AS_LIBVIRT)
        return
    for name, wanted in planned.items():
        if name not in known and not whole:
            why = "whether it is defined is unknown: there may be other guests than those listed"
            yield unknown(_PLANNED, name, expected=expected, why=why, hint=AS_LIBVIRT, source=_LIBVIRT)
        else:
            yield _as_planned(wanted, known.get(name), expected)


def _as_planned(plan: ExpectedGuest, guest: RunningGuest | None, expected: str) -> CheckResult:
    name = plan.name
    if guest is None:
        hint = "hosttune apply --intent FILE defines it; after hosttune apply --no-guests that is left to you"
        actual = "it is not defined"
        return warned(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    if undefined(guest):
        return unknown(_PLANNED, name, expected=expected, why=_UNREAD, hint=AS_LIBVIRT, source=_LIBVIRT)
    rows = compare_definition(plan, ExpectedGuest.of_definition(guest))
    words = [f"{row.what}: {row.actual}, planned {row.planned}" for row in rows if row.state == DIFFERENT]
    if words:
        hint = PLACE.format(name)
        actual = "; ".join(words)
        return failed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT, hint=hint)
    unread = [row.what for row in rows if row.state == UNKNOWN]
    if unread:
        why = f"of its definition was not read: {listed(unread)}"
        return unknown(_PLANNED, name, expected=expected, why=why, hint=AS_LIBVIRT, source=_LIBVIRT)
    actual = f"as planned: {listed([row.what for row in rows])}"
    return passed(_PLANNED, name, expected=expected, actual=actual, source=_LIBVIRT)


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
