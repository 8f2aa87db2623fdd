"""What KVM has the CPU do by itself for guests: their interrupts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hosttune.checks.check import Check, passed, skipped, unknown, warned
from hosttune.checks.facts import HOST, at_rest, lacks, refused
from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult

_YES, _NO = ("Y", "1"), ("N", "0")


class _Switch(NamedTuple):
    """A module's switch by CPU maker. `only`: the CPU's flag without which the kernel leaves it off by itself."""

    module: str
    parameter: str
    only: str | None = None

    @property
    def folder(self) -> str:
        """Where the module shows its switches."""
        return f"/sys/module/{self.module}/parameters"

    @property
    def path(self) -> str:
        """Its file."""
        return f"{self.folder}/{self.parameter}"


# AVIC is the kernel's default from Zen 4 on, which has x2AVIC, since commit ca2967de5a5b; before, it is off everywhere.
_AMD = _Switch("kvm_amd", "avic", "x2avic")
_SWITCHES = {
    "GenuineIntel": _Switch("kvm_intel", "enable_apicv"),
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
}


def interrupt_virtualisation(evidence: Evidence) -> Iterable[CheckResult]:
    """APICv, AVIC: without them each interrupt of a passed device stops the vCPU that it is for."""
    check = "interrupt-virtualisation"
    rest = at_rest(evidence, check)
    if rest is not None:
        yield rest
        return
    model = evidence.host.cpu_model
    vendor = model.vendor if model else None
    switch = _SWITCHES.get(vendor or "")
    expected = "on, as far as the CPU has it"
    if switch is None:
        why = f"no rule for CPUs of {vendor}" if vendor else "the CPUs' maker is unknown"
        hint = "look with: grep . /sys/module/kvm_*/parameters/*apicv* /sys/module/kvm_amd/parameters/avic"
        yield unknown(check, HOST, expected=expected, why=why, hint=hint)
        return
    platform = evidence.host.platform
    modules = {module.name: module.parameters for module in platform.modules} if platform else {}
    strange = sorted({other.module for other in _SWITCHES.values()} & modules.keys() - {switch.module})
    if strange:
        why = f"the CPUs are of {vendor}, and {strange[0]} is loaded"
        hint = "look with: grep vendor_id /proc/cpuinfo; ls -d /sys/module/kvm_*"
        yield unknown(check, HOST, expected=expected, why=why, hint=hint)
        return
    if switch.module not in modules and lacks(evidence, f"/sys/module/{switch.module}"):
        yield skipped(check, HOST, f"{switch.module} is not loaded: no guest runs on KVM")
        return
    switches = modules.get(switch.module)
    if switches and switch.parameter not in switches and lacks(evidence, switch.path):
        yield skipped(check, HOST, f"this {switch.module} shows switches and no {switch.parameter} among them")
        return
    value = (switches or {}).get(switch.parameter, "").strip()
    if value in _YES:
        yield passed(check, HOST, expected=expected, actual=f"{switch.parameter} is {value}", source=switch.path)
        return
    if value not in _NO:
        why = refused(evidence, switch.folder) or (f"it reads {value!r}" if value else "not recorded")
        hint = f"look with: cat {switch.path}"
        yield unknown(check, HOST, expected=expected, why=why, hint=hint, source=switch.path)
        return
    flags = model.flags if model else None
    if switch.only is not None and flags and switch.only not in flags:
        actual = f"{switch.parameter} is {value}: the kernel leaves it off on CPUs without {switch.only}"
        yield passed(check, HOST, expected=expected, actual=actual, source=switch.path)
        return
    hint = (
        f"write 'options {switch.module} {switch.parameter}=1' into a file of /etc/modprobe.d; with no guest running"
        " load the module again, or reboot; measure before and after"
    )
    actual = f"{switch.parameter} is {value}: interrupts of guests go through the host"
    yield warned(check, HOST, expected=expected, actual=actual, source=switch.path, hint=hint)


CHECKS = (
    Check(
        id="interrupt-virtualisation",
        title="Interrupts reach vCPUs without the host",
        subjects="the host",
        why="without it each interrupt of a passed device stops the vCPU that it is for",
        source="Linux arch/x86/kvm/vmx/vmx.c (enable_apicv), arch/x86/kvm/svm/avic.c (avic); commit ca2967de5a5b",
        judge=interrupt_virtualisation,
    ),
)
