"""Kernel arguments of the IOMMU, as actions: enable it if no groups are visible; the profile's `iommu=pt`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.inventory.devices import Catalogue
from hosttune.knobs.actions import make_action
from hosttune.knobs.bootargs import off_arguments, passthrough, values, without_off
from hosttune.knobs.kernelargs import IOMMU_PASSTHROUGH
from hosttune.knobs.knob import wanted
from hosttune.model import sysfs
from hosttune.model.commandline import text_of
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.settings.kernelargs import KernelArguments

SEV_SNP = "/sys/module/kvm_amd/parameters/sev_snp"


def iommu_actions(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...], findings: list[Finding]
) -> Iterable[Action]:
    """Return the kernel arguments that enable the IOMMU if no groups are visible, and the profile's `iommu=pt`."""
    off: list[Action] = []
    if any(guest.devices for guest in guests) and not catalogue.groups:
        off = _iommu_off(host, findings)
    change = passthrough(host.kernel_args) if wanted(intent, IOMMU_PASSTHROUGH) else None
    if change and host.switched_on("kvm_amd", "sev_snp"):
        # drivers/iommu/amd/init.c, iommu_snp_enable: "SNP: IOMMU disabled or configured in passthrough mode"
        named = IOMMU_PASSTHROUGH.name in (intent.settings or {})
        text = (
            "SEV-SNP is on (kvm_amd.sev_snp), and the kernel switches it off where the IOMMU passes through: iommu=pt"
        )
        outcome = "is asked for by name: confidential guests will not start" if named else "is left out"
        findings.append(Finding(level="warn" if named else "info", text=f"{text} {outcome}", where=SEV_SNP))
        change = change if named else None
    if change:
        needed = any(action.target == change[0] for action in off)  # the argument is one action; it also removes "off"
        why = IOMMU_PASSTHROUGH.why
        off = [action for action in off if action.target != change[0]]
        off.append(_argument(*change, f"iommu=off hides the IOMMU; {why}" if needed else why, needed=needed))
    return off


def _iommu_off(host: Host, findings: list[Finding]) -> list[Action]:
    """Report that no IOMMU groups are visible, and return an argument only if the facts call for one.

    Intel's driver needs intel_iommu=on unless the kernel was built with on as its default; AMD's driver runs unless
    firmware or an argument disables it (admin-guide/kernel-parameters).
    """
    present = host.iommu.present if host.iommu else None
    state = "and whether the kernel runs an IOMMU is unknown"
    if present is not None:
        state = "though the kernel runs an IOMMU" if present else "the kernel runs no IOMMU"
    text = f"no IOMMU groups are visible, {state}: no device can be given to a guest until its group is read"
    findings.append(Finding(level="error", text=text, where=sysfs.IOMMU_GROUPS))
    if present:
        return []
    vendor = host.cpu_model.vendor if host.cpu_model else None
    off = off_arguments(host.kernel_args, vendor)
    actions = []
    for name, argument in {argument.partition("=")[0]: argument for argument in off}.items():
        change = without_off(host.kernel_args, name)
        why = f"{argument} keeps the IOMMU off{'' if change[2] else ': the argument goes away'}"
        actions.append(_argument(*change, why, needed=True))
    if vendor == "GenuineIntel" and "on" not in values(host.kernel_args, "intel_iommu"):
        if not any(action.target == "intel_iommu" for action in actions):
            why = "no IOMMU groups are visible; Intel needs this argument unless its kernel defaults to on"
            now = text_of(host.kernel_args, "intel_iommu")
            want = ",".join(("intel_iommu=on", *values(host.kernel_args, "intel_iommu")))
            actions.append(_argument("intel_iommu", now, want, why, needed=True))
    elif not off:
        findings.append(Finding(level="error", text=_iommu_hint(host, vendor), where="firmware"))
    return actions


def _iommu_hint(host: Host, vendor: str | None) -> str:
    """Return where else the IOMMU may be disabled, if no kernel argument explains it."""
    if host.hypervisor:
        return "this host is itself a guest: its hypervisor has to give it an IOMMU"
    name = {"GenuineIntel": "VT-d", "AuthenticAMD": "AMD-Vi", "HygonGenuine": "AMD-Vi"}.get(vendor or "")
    if name is None:
        return "the CPUs' maker is unknown: switch the IOMMU (VT-d, AMD-Vi) on in the firmware, and in the kernel"
    arguments = "the kernel's arguments are unknown" if host.kernel_args is None else "no argument keeps the IOMMU off"
    return f"{arguments}: switch {name} on in the firmware's settings"


def _argument(target: str, current: str | None, want: str | None, why: str, *, needed: bool = False) -> Action:
    """Return a kernel argument of the next boot. `want` None: the argument is removed."""
    return make_action(KernelArguments.kind, target, current, want, why, effect="reboot", needed=needed)
