"""Checks of guests: placement by their definitions, the running definition, and the applied plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hosttune.domain.expectedguest import ExpectedGuest
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, compare_definition
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, RunningGuest
from hosttune.model.values import CpuSet
from hosttune.rules.checks.facts import (
    AS_LIBVIRT,
    accelerators,
    guests_known,
    listed,
    online,
    only_node,
    planned_guests,
    undefined,
)
from hosttune.rules.checks.guestthreads import PLACE, started
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guests
from hosttune.rules.engine import Finding, NoValue

_FORMATDOMAIN = "libvirt formatdomain: CPU Tuning, NUMA Node Tuning, Memory Backing"


def _with_definition(on: On, guest: RunningGuest) -> None:
    """End the check for a guest whose definition could not be read."""
    if undefined(guest):
        on.give_up("its definition could not be read")


# --- where it was placed -------------------------------------------------------------------------------------


@check(
    "guest-numa",
    title="CPUs and memory beside the devices",
    about="each guest that libvirt knows, running or not",
    why="every access from another node crosses the link between packages: bandwidth to a GPU halves",
    source=f"{_FORMATDOMAIN}; Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node)",
    expected="its CPUs and memory are on the nodes of its devices",
    remedy=AS_LIBVIRT,
    reads="libvirt",
    each=guests,
)
def guest_numa(on: On, guest: RunningGuest) -> Finding:
    """Compare the CPUs and memory of a guest, running or not, with the nodes of its devices.

    On a machine with one node everything is on it, whatever a device reports. A device on a node without CPUs counts
    for the nearest that has.
    """
    _with_definition(on, guest)
    if not guest.devices:
        on.skip("it has no host device")
    host, defined = on.host, ExpectedGuest.of_definition(guest, only_node=only_node(on.host))
    only, functions = only_node(host) if host.hypervisor is False else None, host.index.pci
    of_device = {at: functions[at].numa_node if only is None else only for at in guest.devices if at in functions}
    own = _nodes(of_device.values())
    devices = _nodes(map(host.home, own))
    cpu_nodes = _cpu_nodes(host, defined)
    cpus, memory = _nodes(cpu_nodes), CpuSet(node for part in defined.memory or () for node in part.nodes)
    actual = f"vCPUs on node {cpus or '?'}, memory on node {memory or '?'}, devices on node {own or '?'}"
    if bare := own - devices:
        actual += f" (node {bare} has no CPU, node {_nodes(map(host.home, bare))} is the nearest that has)"
    if _floats(host, defined):
        actual = f"its vCPUs float over the host; {actual}"
    gpus = {gpu.address for gpu in accelerators(host)}
    without = _nodes(host.home(node) for address, node in of_device.items() if address in gpus) - cpus
    if devices and cpus and (cpus - devices or memory - devices - own or without):
        actual += f"; no vCPU on node {without}, where it has GPUs" if without else ""
        return on.failed(actual, PLACE.format(guest.name))
    if unplaced := [address for address in guest.devices if of_device.get(address) is None]:
        hint = "see the numa-affinity check of each GPU: the firmware has to name the nodes of devices"
        on.give_up(f"the node of {listed(unplaced, 3)} is not known; {actual}", hint)
    if defined.memory is None or None in cpu_nodes:
        on.give_up(f"the nodes of its vCPUs or its memory are not known; {actual}")
    if not defined.memory or not all(part.nodes for part in defined.memory):
        return on.warned(f"{actual}; memory without a node of its own may come from any", PLACE.format(guest.name))
    return on.passed(actual)


def _nodes(nodes: Iterable[int | None]) -> CpuSet:
    return CpuSet(node for node in nodes if node is not None)


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


@check(
    "guest-definition",
    title="The running definition is the kept one",
    about="each running guest",
    why="a guest that was edited while it ran becomes another one with its next start",
    source="libvirt virDomainGetXMLDesc (VIR_DOMAIN_XML_INACTIVE)",
    expected="it runs with the definition that libvirt keeps",
    remedy=AS_LIBVIRT,
    reads="libvirt",
    each=guests,
)
def guest_definition(on: On, guest: RunningGuest) -> Finding:
    """Check that a running guest runs with the definition that its next start would use."""
    started(on, guest)
    if guest.next_start is None:
        on.give_up("libvirt did not give both its running and its kept definition (of a transient guest it keeps none)")
    if guest.next_start:
        hint = f"shut it down and start it again: virsh shutdown {guest.name}, virsh start {guest.name}"
        return on.warned(f"its next start differs in: {listed(guest.next_start, 4)}", hint)
    return on.passed("it does")


class _Planned(NamedTuple):
    """A guest of the applied plans, and as libvirt has it; None: it has none, or that is not known."""

    plan: ExpectedGuest
    guest: RunningGuest | None


def _planned(evidence: Evidence) -> Iterator[tuple[str, _Planned]]:
    """Yield every guest of the applied plans; the host if there is none, or if no guest at all is known."""
    plans = {name: ExpectedGuest.of_plan(guest) for name, guest in planned_guests(evidence).items()}
    for plan in evidence.plans:
        plans |= {adopted.name: ExpectedGuest.of_adoption(adopted) for adopted in plan.adoptions}
    if not plans:
        raise NoValue(Finding(outcome="skip", text="no applied plan has a guest"))
    if guests_known(evidence) is None and not evidence.host.guests:
        raise NoValue(Finding(outcome="unknown", text="which guests there are is unknown"))
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    yield from ((name, _Planned(plan, known.get(name))) for name, plan in plans.items())


@check(
    "guest-planned",
    title="The guest is the planned one",
    about="each guest of the applied plans",
    why="what was validated is only worth something for the guest that is there",
    source=_FORMATDOMAIN,
    expected="libvirt has it as the applied plan says",
    remedy=AS_LIBVIRT,
    reads="libvirt",
    each=_planned,
)
def guest_planned(on: On, planned: _Planned) -> Finding:
    """Compare a guest of the applied plans with its definition in libvirt."""
    if planned.guest is None and guests_known(on.evidence) is None:
        on.give_up("whether it is defined is unknown: there may be other guests than those listed")
    if planned.guest is None:
        hint = "hosttune apply --intent FILE defines it; after hosttune apply --no-guests that is left to you"
        return on.warned("it is not defined", hint)
    _with_definition(on, planned.guest)
    rows = compare_definition(planned.plan, ExpectedGuest.of_definition(planned.guest))
    if different := [row for row in rows if row.state == DIFFERENT]:
        actual = "; ".join(f"{row.what}: {row.actual}, planned {row.planned}" for row in different)
        return on.failed(actual, PLACE.format(on.subject))
    if unread := [row.what for row in rows if row.state == UNKNOWN]:
        on.give_up(f"of its definition was not read: {listed(unread)}")
    return on.passed(f"as planned: {listed([row.what for row in rows])}")
