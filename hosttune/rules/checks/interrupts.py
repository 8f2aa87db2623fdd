"""Checks of interrupts: those of passed devices go to their guests' nodes, those of the host not to guests' CPUs."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.linux.irqbalance import IRQBALANCE
from hosttune.model.evidence import Evidence
from hosttune.model.host import Irq, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    HOST,
    RUNNING,
    holders,
    lacks,
    none_given,
    pinned,
    refused,
    wanted,
)
from hosttune.settings.irqs import cpu_list


def irq_affinity(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the interrupts of running guests' devices: as planned, else on the device's node and on no guest's vCPU."""
    check = "irq-affinity"
    functions = evidence.host.index.pci
    running = {guest.name for guest in evidence.host.guests or () if (guest.state or "running") in RUNNING}
    held = {a: names for a, names in holders(evidence).items() if set(names) & running and a in functions}
    if not held:
        yield none_given(evidence, check, "no guest runs with a device: its interrupts exist only then")
        return
    for address in held:
        yield _judge(evidence, check, functions[address])


def _judge(evidence: Evidence, check: str, device: PciDevice) -> CheckResult:
    source = "/proc/irq/*/{smp,effective}_affinity_list"
    want = wanted(evidence, "irq-affinity").get(device.address)
    near = _near(evidence, device)
    if want is not None:
        allowed, expected = CpuSet.parse(cpu_list(str(want)) or ""), f"CPUs {want}, as planned"
    else:
        taken = CpuSet(cpu for cpus in pinned(evidence).values() for cpu in cpus)
        allowed = (near or CpuSet(cpu.id for cpu in evidence.host.cpus)) - taken
        expected = (
            f"CPUs of node {evidence.host.home(device.numa_node)} that no vCPU has" if near else "CPUs that no vCPU has"
        )
    if device.irqs is None:
        why = refused(evidence, "/proc/irq", device.address) or "its interrupts were not read"
        hint = f"look with: ls /sys/bus/pci/devices/{device.address}/msi_irqs"
        return unknown(check, device.address, expected=expected, why=why, hint=hint, source=source)
    if not device.irqs:
        return skipped(check, device.address, "its guest has not switched its interrupts on")
    places = {irq.irq: _place(irq) for irq in device.irqs}
    unread = [str(irq) for irq, place in places.items() if place is None]
    if unread:
        why = refused(evidence, "/proc/irq") or f"where interrupts {', '.join(unread)} go was not read"
        hint = f"look with: grep . /proc/irq/{unread[0]}/*affinity_list"
        return unknown(check, device.address, expected=expected, why=why, hint=hint, source=source)
    stray = {irq: place for irq, place in places.items() if place is not None and not place <= allowed}
    if not stray:
        on = CpuSet(cpu for place in places.values() if place is not None for cpu in place)
        return passed(check, device.address, expected=expected, actual=f"{len(places)} on CPUs {on}", source=source)
    actual = f"{len(stray)} of {len(places)} go to CPUs {CpuSet(cpu for place in stray.values() for cpu in place)}"
    hint = "hosttune apply again sets it (it is lost when the guest stops), and keep irqbalance off these CPUs"
    if want is not None:
        return failed(check, device.address, expected=expected, actual=actual, source=source, hint=hint)
    hint = "plan the guest with profile guest and apply (setting irq_affinity)"
    return warned(check, device.address, expected=expected, actual=actual, source=source, hint=hint)


def _place(irq: Irq) -> CpuSet | None:
    """Return the CPUs that an interrupt goes to; if the kernel does not show them, the CPUs that it may go to."""
    text = cpu_list(irq.effective) or cpu_list(irq.affinity)
    return CpuSet.parse(text) if text else None


def _near(evidence: Evidence, device: PciDevice) -> CpuSet:
    home = evidence.host.home(device.numa_node)
    if home is None:
        return CpuSet()
    return CpuSet(cpu.id for cpu in evidence.host.cpus if cpu.numa_node == home)


def irqbalance(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that irqbalance, if it is installed, is banned from the CPUs that guests are pinned to."""
    check = "irqbalance"
    taken = CpuSet(cpu for cpus in pinned(evidence).values() for cpu in cpus)
    host = evidence.host
    if evidence.irqbalance is False:
        yield skipped(check, HOST, "irqbalance is not installed, or masked")
        return
    if not taken:
        yield none_given(evidence, check, "no guest is pinned")
        return
    source = next((path for path in IRQBALANCE if path in (host.settings or {})), IRQBALANCE[0])
    expected = f"banned from CPUs {taken}"
    text = (host.settings or {}).get(source)
    known = text is not None or (lacks(evidence, *IRQBALANCE) and evidence.irqbalance is not None)
    if not known or (text is not None and cpu_list(text) is None):
        why = f"its ban reads {text!r}" if text is not None else "its environment files were not recorded"
        hint = f"look with: cat {' '.join(IRQBALANCE)}; systemctl restart irqbalance where it owes one"
        yield unknown(check, HOST, expected=expected, why=why, hint=hint, source=source)
        return
    # Without a list, irqbalance itself avoids isolated and nohz_full CPUs (cputree.c).
    quiet = CpuSet(cpu.id for cpu in host.cpus if cpu.isolated or cpu.nohz_full)
    banned = CpuSet.parse(cpu_list(text) or "") or quiet
    free = taken - banned
    actual = f"banned from CPUs {banned}" if banned else "banned from none"
    if not free:
        yield passed(check, HOST, expected=expected, actual=actual, source=source)
        return
    hint = (
        "plan the guests with profile guest and apply (setting irqbalance_ban), or set IRQBALANCE_BANNED_CPULIST and"
        " restart it"
    )
    yield warned(check, HOST, expected=expected, actual=f"{actual}: not from {free}", source=source, hint=hint)


CHECKS = (
    Check(
        id="irq-affinity",
        title="Interrupts of passed devices",
        subjects="each device of a guest that runs",
        why="an interrupt on another node or on a vCPU's core delays both the device and the vCPU",
        source="Linux Documentation/core-api/irq/irq-affinity",
        judge=irq_affinity,
        for_guests=True,
    ),
    Check(
        id="irqbalance",
        title="irqbalance kept off the CPUs of guests",
        subjects="the host, where irqbalance is installed and guests are pinned",
        why="irqbalance moves the host's interrupts onto any CPU that it is not banned from",
        source="irqbalance(1), IRQBALANCE_BANNED_CPULIST (1.8 or later)",
        judge=irqbalance,
        for_guests=True,
    ),
)
