"""Checks of interrupts: those of passed devices reach their guests' nodes without KVM, others no guest's CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hosttune.linux.irqbalance import IRQBALANCE
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.values import CpuSet
from hosttune.rules.checks.facts import OTHER_ARCHES, RUNNING, holders, lacks, pinned, wanted
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
    """Where the kernel does not show the CPU to which an interrupt goes, those count to which it may go."""
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
    """Without a list, it avoids isolated and nohz_full CPUs by itself (cputree.c)."""
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


class _ModuleSwitch(NamedTuple):
    """A switch of a KVM module. `only`: the CPU flag without which the kernel itself leaves the switch off."""

    module: str
    parameter: str
    only: str | None = None

    @property
    def path(self) -> str:
        """Return the path of the switch."""
        return f"/sys/module/{self.module}/parameters/{self.parameter}"


# Since commit ca2967de5a5b AVIC is on by default from Zen 4 on, which has x2AVIC; on older CPUs it is off by default.
_AMD = _ModuleSwitch("kvm_amd", "avic", "x2avic")
_SWITCHES = {"GenuineIntel": _ModuleSwitch("kvm_intel", "enable_apicv"), "AuthenticAMD": _AMD, "HygonGenuine": _AMD}


@check(
    "interrupt-virtualisation",
    title="Interrupts reach vCPUs without the host",
    about="the host",
    why="without it each interrupt of a passed device stops the vCPU that it is for",
    source="Linux arch/x86/kvm/vmx/vmx.c (enable_apicv), arch/x86/kvm/svm/avic.c (avic); commit ca2967de5a5b;"
    " admin-guide/kernel-parameters.txt (intremap, amd_iommu_intr); drivers/iommu/intel/irq_remapping.c"
    " (set_irq_posting_cap); Intel VT-d specification, CAP_REG.PI",
    expected="the CPU and the IOMMU hand interrupts to vCPUs",
    for_guests=True,
)
def interrupt_virtualisation(on: On) -> Finding:
    """Check APICv or AVIC, and posted interrupts: without them a passed device's interrupt stops its vCPU.

    Linux: drivers/iommu/irq_remapping.c (every word of every intremap= counts, and nopost cannot be undone),
    drivers/iommu/amd/init.c, parse_amd_iommu_intr (the first word of the last amd_iommu_intr= counts). The capability
    register of AMD's IOMMUs is not read: vapic is the default if the hardware has it.
    """
    host = on.host
    if host.arch in OTHER_ARCHES:
        on.skip(f"KVM of {host.arch} has no such switch")
    model = on.need(host.cpu_model, "the CPUs' model", "/proc/cpuinfo")
    maker = on.need(model.vendor, "the CPUs' maker", "/proc/cpuinfo")
    switch = on.need(_SWITCHES.get(maker), f"a rule for CPUs of {maker}", look="grep . /sys/module/kvm_*/parameters/*")
    on = on.reading(switch.path)
    modules = {module.name: module.parameters for module in host.platform.modules} if host.platform else {}
    loaded = f"{switch.module} is not loaded: no guest runs on KVM"
    on.need(switch.module in modules or None, switch.module, f"/sys/module/{switch.module}", skip=loaded)
    shown = on.need(modules[switch.module], f"the parameters of {switch.module}", f"/sys/module/{switch.module}")
    without = f"this {switch.module} shows switches and no {switch.parameter} among them"
    value = on.need(shown.get(switch.parameter), switch.parameter, switch.path, skip=without).strip()
    actual = f"{switch.parameter} is {value}"
    if value in ("N", "0"):
        if switch.only and switch.only not in on.need(model.flags, "the CPU's flags", "/proc/cpuinfo"):
            return on.passed(f"{actual}: the kernel leaves it off on CPUs without {switch.only}")
        hint = (
            f"write 'options {switch.module} {switch.parameter}=1' into a file of /etc/modprobe.d; with no guest"
            " running load the module again, or reboot; measure before and after"
        )
        return on.warned(f"{actual}: interrupts of guests go through the host", hint)
    if value not in ("Y", "1"):
        return on.unknown(f"it reads {value!r}", f"look with: cat {switch.path}")
    is_intel = switch.module == "kvm_intel"
    off = _posting_off(on.need(host.kernel_args, "the kernel's command line", "/proc/cmdline"), is_intel)
    if off is not None:
        text = f"{actual}, and {off} keeps the IOMMU from handing passed devices' interrupts to vCPUs"
        return on.warned(text, f"take {off} out of the kernel's arguments, and reboot", "/proc/cmdline")
    iommu = on.need(host.iommu, "the IOMMU", "/sys/class/iommu")
    if iommu.present is False:
        on.skip("the IOMMU is off: no device is passed (see iommu-mode)")
    if not on.need(iommu.interrupt_remapping, "interrupt remapping", "/proc/interrupts"):
        text = f"{actual}, and the IOMMU remaps no interrupts, so it hands none to vCPUs"
        return on.warned(text, "see interrupt-remapping", "/proc/interrupts")
    units = "/sys/class/iommu/dmar*/intel-iommu/cap"
    if is_intel and not on.need(iommu.interrupt_posting, "whether the IOMMU can post interrupts (bit 59)", units):
        text = f"{actual}, and an IOMMU unit cannot post interrupts, so the kernel posts none"
        hint = "nothing to switch on: this IOMMU lacks it; passed devices that interrupt often cost guests more here"
        return on.warned(text, hint, f"{units} (bit 59)")
    return on.passed(actual)


def _posting_off(arguments: Iterable[str], is_intel: bool) -> str | None:
    """Return the kernel argument that switches posted interrupts off; None if there is none."""
    name = "intremap=" if is_intel else "amd_iommu_intr="
    given = [word for word in arguments if word.startswith(name)]
    if is_intel:
        off = (word for word in given if any(option.startswith("nopost") for option in word[len(name) :].split(",")))
        return next(off, None)
    last = given[-1] if given else ""
    legacy, vapic = last.find("legacy"), last.find("vapic")
    return last if legacy >= 0 and (vapic < 0 or legacy < vapic) else None
