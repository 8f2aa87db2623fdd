"""Checks of interrupts: those of passed devices go to their guests' nodes, those of the host not to guests' CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.linux.irqbalance import IRQBALANCE
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.values import CpuSet
from hosttune.rules.checks.facts import RUNNING, holders, lacks, pinned, wanted
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import nothing_given
from hosttune.rules.engine import Finding
from hosttune.settings.irqs import cpu_list


def devices_in_use(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield each function that a guest has which runs."""
    functions = evidence.host.index.pci
    running = {guest.name for guest in evidence.host.guests or () if (guest.state or "running") in RUNNING}
    held = [function for function, names in holders(evidence).items() if set(names) & running and function in functions]
    yield from ((address, functions[address]) for address in held)
    if not held:
        nothing_given(evidence, "no guest runs with a device: its interrupts exist only then")


@check(
    "irq-affinity",
    title="Interrupts of passed devices",
    about="each device of a guest that runs",
    why="an interrupt on another node or on a vCPU's core delays both the device and the vCPU",
    source="Linux Documentation/core-api/irq/irq-affinity",
    reads="/proc/irq/*/{smp,effective}_affinity_list",
    each=devices_in_use,
    for_guests=True,
)
def irq_affinity(on: On, device: PciDevice) -> Finding:
    """Check the interrupts of running guests' devices: as planned, else on the device's node and on no guest's vCPU.

    Where the kernel does not show the CPU to which an interrupt goes, those count to which it may go.
    """
    host, want = on.host, wanted(on.evidence, "irq-affinity").get(device.address)
    home = host.home(device.numa_node)
    near = CpuSet(cpu.id for cpu in host.cpus if home is not None and cpu.numa_node in (home, device.numa_node))
    if want is not None:
        allowed, expected = CpuSet.parse(cpu_list(str(want)) or ""), f"CPUs {want}, as planned"
    else:
        taken = CpuSet(cpu for cpus in pinned(on.evidence).values() for cpu in cpus)
        allowed = (near or CpuSet(cpu.id for cpu in host.cpus)) - taken
        expected = f"CPUs of node {home} that no vCPU has" if near else "CPUs that no vCPU has"
    on = on.reading("/proc/irq/*/{smp,effective}_affinity_list", expected)
    folder = sysfs.function(device.address, "msi_irqs")
    irqs = on.need(device.irqs, "which interrupts it has", folder, look=f"ls {folder}")
    if not irqs:
        on.skip("its guest has not switched its interrupts on")
    places: dict[int, CpuSet] = {}
    for irq in irqs:
        text = cpu_list(irq.effective) or cpu_list(irq.affinity) or None
        path = f"/proc/irq/{irq.irq}/"
        places[irq.irq] = CpuSet.parse(on.need(text, f"where interrupt {irq.irq} goes", path, look=f"grep . {path}*"))
    stray = [place for place in places.values() if not place <= allowed]
    if not stray:
        return on.passed(f"{len(places)} on CPUs {CpuSet(cpu for place in places.values() for cpu in place)}")
    actual = f"{len(stray)} of {len(places)} go to CPUs {CpuSet(cpu for place in stray for cpu in place)}"
    if want is None:
        return on.warned(actual, "plan the guest with profile guest and apply (setting irq_affinity)")
    return on.failed(
        actual, "hosttune apply again sets it (it is lost when the guest stops), and keep irqbalance off these CPUs"
    )


@check(
    "irqbalance",
    title="irqbalance kept off the CPUs of guests",
    about="the host, where irqbalance is installed and guests are pinned",
    why="irqbalance moves the host's interrupts onto any CPU that it is not banned from",
    source="irqbalance(1), IRQBALANCE_BANNED_CPULIST (1.8 or later)",
    for_guests=True,
)
def irqbalance(on: On) -> Finding:
    """Check that irqbalance, if it is installed, is banned from the CPUs that guests are pinned to.

    Without a list, it avoids isolated and nohz_full CPUs by itself (cputree.c).
    """
    host, evidence = on.host, on.evidence
    taken = CpuSet(cpu for cpus in pinned(evidence).values() for cpu in cpus)
    if evidence.irqbalance is False:
        on.skip("irqbalance is not installed, or masked")
    if not taken:
        nothing_given(evidence, "no guest is pinned")
    settings = host.settings or {}
    source = next((path for path in IRQBALANCE if path in settings), IRQBALANCE[0])
    on = on.reading(source, f"banned from CPUs {taken}")
    none = "" if evidence.irqbalance is not None and lacks(evidence, *IRQBALANCE) else None
    look = f"cat {' '.join(IRQBALANCE)}; systemctl restart irqbalance where it owes one"
    text = on.need(settings.get(source, none), "its ban", source, look=look)
    if cpu_list(text) is None:
        on.give_up(f"its ban reads {text!r}", on.look(look))
    banned = CpuSet.parse(text) or CpuSet(cpu.id for cpu in host.cpus if cpu.isolated or cpu.nohz_full)
    actual = f"banned from CPUs {banned}" if banned else "banned from none"
    if taken <= banned:
        return on.passed(actual)
    return on.warned(
        f"{actual}: not from {taken - banned}",
        "plan the guests with profile guest and apply (setting irqbalance_ban), or set IRQBALANCE_BANNED_CPULIST and"
        " restart it",
    )
