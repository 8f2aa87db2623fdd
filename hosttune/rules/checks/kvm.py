"""Check of interrupts for guests: whether the CPU and the IOMMU deliver them without KVM's help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hosttune.rules.checks.facts import OTHER_ARCHES
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding


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
_SWITCHES = {
    "GenuineIntel": _ModuleSwitch("kvm_intel", "enable_apicv"),
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
}


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
