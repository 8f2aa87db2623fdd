"""Check of interrupts for guests: whether the CPU and the IOMMU deliver them without KVM's help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import HOST, lacks, refused

_CHECK, _EXPECTED = "interrupt-virtualisation", "on, as far as the CPU has it"
_YES, _NO = ("Y", "1"), ("N", "0")


class _Switch(NamedTuple):
    """A switch of a KVM module. `only`: the CPU flag without which the kernel itself leaves the switch off."""

    module: str
    parameter: str
    only: str | None = None

    @property
    def folder(self) -> str:
        """Return the directory of the module's parameters."""
        return f"/sys/module/{self.module}/parameters"

    @property
    def path(self) -> str:
        """Return the path of the switch."""
        return f"{self.folder}/{self.parameter}"


# Since commit ca2967de5a5b AVIC is on by default from Zen 4 on, which has x2AVIC; on older CPUs it is off by default.
_AMD = _Switch("kvm_amd", "avic", "x2avic")
_SWITCHES = {
    "GenuineIntel": _Switch("kvm_intel", "enable_apicv"),
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
}


def interrupt_virtualisation(evidence: Evidence) -> Iterable[CheckResult]:
    """Check APICv or AVIC, and posted interrupts: without them a passed device's interrupt stops its vCPU."""
    model = evidence.host.cpu_model
    vendor = model.vendor if model else None
    switch = _SWITCHES.get(vendor or "")
    if switch is None:
        why = f"no rule for CPUs of {vendor}" if vendor else "the CPUs' maker is unknown"
        hint = "look with: grep . /sys/module/kvm_*/parameters/*apicv* /sys/module/kvm_amd/parameters/avic"
        yield unknown(_CHECK, HOST, expected=_EXPECTED, why=why, hint=hint)
        return
    platform = evidence.host.platform
    modules = {module.name: module.parameters for module in platform.modules} if platform else {}
    strange = sorted({other.module for other in _SWITCHES.values()} & modules.keys() - {switch.module})
    if strange:
        why = f"the CPUs are of {vendor}, and {strange[0]} is loaded"
        hint = "look with: grep vendor_id /proc/cpuinfo; ls -d /sys/module/kvm_*"
        yield unknown(_CHECK, HOST, expected=_EXPECTED, why=why, hint=hint)
        return
    if switch.module not in modules and lacks(evidence, f"/sys/module/{switch.module}"):
        yield skipped(_CHECK, HOST, f"{switch.module} is not loaded: no guest runs on KVM")
        return
    switches = modules.get(switch.module)
    if switches and switch.parameter not in switches and lacks(evidence, switch.path):
        yield skipped(_CHECK, HOST, f"this {switch.module} shows switches and no {switch.parameter} among them")
        return
    yield _by_value(evidence, switch, (switches or {}).get(switch.parameter, "").strip())


def _by_value(evidence: Evidence, switch: _Switch, value: str) -> CheckResult:
    """Judge the value that the module shows; "" if there is none."""
    if value in _YES:
        return _posted(evidence, switch, f"{switch.parameter} is {value}")
    if value not in _NO:
        why = refused(evidence, switch.folder) or (f"it reads {value!r}" if value else "not recorded")
        hint = f"look with: cat {switch.path}"
        return unknown(_CHECK, HOST, expected=_EXPECTED, why=why, hint=hint, source=switch.path)
    model = evidence.host.cpu_model
    flags = model.flags if model else None
    if switch.only is not None and flags and switch.only not in flags:
        actual = f"{switch.parameter} is {value}: the kernel leaves it off on CPUs without {switch.only}"
        return passed(_CHECK, HOST, expected=_EXPECTED, actual=actual, source=switch.path)
    hint = (
        f"write 'options {switch.module} {switch.parameter}=1' into a file of /etc/modprobe.d; with no guest running"
        " load the module again, or reboot; measure before and after"
    )
    actual = f"{switch.parameter} is {value}: interrupts of guests go through the host"
    return warned(_CHECK, HOST, expected=_EXPECTED, actual=actual, source=switch.path, hint=hint)


def _posted(evidence: Evidence, switch: _Switch, actual: str) -> CheckResult:
    """Judge whether the IOMMU posts a passed device's interrupts to the vCPU; `actual`: what the CPU does.

    Linux: drivers/iommu/irq_remapping.c (every word of every intremap= counts, and nopost cannot be undone),
    drivers/iommu/amd/init.c, parse_amd_iommu_intr (the first word of the last amd_iommu_intr= counts). The capability
    register of AMD's IOMMUs is not read: vapic is the default if the hardware has it.
    """
    host = evidence.host
    expected = "the CPU and the IOMMU hand interrupts to vCPUs"
    is_intel = switch.module == "kvm_intel"
    arguments = host.kernel_args
    off = _posting_off(arguments or (), is_intel)
    if off is not None:
        hint = f"take {off} out of the kernel's arguments, and reboot"
        text = f"{actual}, and {off} keeps the IOMMU from handing passed devices' interrupts to vCPUs"
        return warned(_CHECK, HOST, expected=expected, actual=text, source="/proc/cmdline", hint=hint)
    iommu = host.iommu
    if is_intel and iommu is not None and iommu.interrupt_posting is False:
        source = "/sys/class/iommu/dmar*/intel-iommu/cap (bit 59)"
        hint = "nothing to switch on: this IOMMU lacks it; passed devices that interrupt often cost guests more here"
        text = f"{actual}, and an IOMMU unit cannot post interrupts, so the kernel posts none"
        return warned(_CHECK, HOST, expected=expected, actual=text, source=source, hint=hint)
    if iommu is not None and iommu.interrupt_remapping is False:
        text = f"{actual}, and the IOMMU remaps no interrupts, so it hands none to vCPUs"
        hint = "see interrupt-remapping"
        return warned(_CHECK, HOST, expected=expected, actual=text, source="/proc/interrupts", hint=hint)
    why, look = None, ""
    if arguments is None:
        why, look = "the kernel's arguments were not read", "look with: cat /proc/cmdline"
    elif iommu is None or iommu.interrupt_remapping is None:
        why, look = "whether the IOMMU remaps interrupts is not known", "look with: dmesg | grep -i remapping"
    elif is_intel and iommu.interrupt_posting is None:
        why = "whether the IOMMU can post interrupts was not read"
        look = "look with: grep . /sys/class/iommu/dmar*/intel-iommu/cap (bit 59: it can)"
    if why is not None:
        return unknown(_CHECK, HOST, expected=expected, why=f"{actual}; {why}", hint=look, source=switch.path)
    return passed(_CHECK, HOST, expected=expected, actual=actual, source=switch.path)


def _posting_off(arguments: Iterable[str], is_intel: bool) -> str | None:
    """Return the kernel argument that switches posted interrupts off; None if there is none."""
    name = "intremap=" if is_intel else "amd_iommu_intr="
    found = [word for word in arguments if word.startswith(name)]
    if is_intel:
        off = (word for word in found if any(one.startswith("nopost") for one in word[len(name) :].split(",")))
        return next(off, None)
    last = found[-1] if found else ""
    legacy, vapic = last.find("legacy"), last.find("vapic")
    return last if legacy >= 0 and (vapic < 0 or legacy < vapic) else None


CHECKS = (
    Check(
        id=_CHECK,
        title="Interrupts reach vCPUs without the host",
        subjects="the host",
        why="without it each interrupt of a passed device stops the vCPU that it is for",
        source="Linux arch/x86/kvm/vmx/vmx.c (enable_apicv), arch/x86/kvm/svm/avic.c (avic); commit ca2967de5a5b;"
        " admin-guide/kernel-parameters.txt (intremap, amd_iommu_intr); drivers/iommu/intel/irq_remapping.c"
        " (set_irq_posting_cap); Intel VT-d specification, CAP_REG.PI",
        judge=interrupt_virtualisation,
        for_guests=True,
    ),
)
