"""Checks of what keeps tenants apart: CPU vulnerabilities, microcode, SEV-SNP, Secure Boot and TPM."""

from __future__ import annotations

import re
from itertools import chain

from hosttune.knobs.kernelargs import passthrough
from hosttune.model import sysfs
from hosttune.model.evidence import SECURE_BOOT, Evidence, Security
from hosttune.rules.checks.facts import listed, pinned
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_SINCE = 2
_OPEN = re.compile(
    r"(?<!smt )\bvulnerable\b(?!, kvm: )|kvm: vulnerable|ibpb: disabled|(?:safe ret|ibpb), no microcode|^unknown",
    re.IGNORECASE,
)
_SEV = "/sys/module/kvm_amd/parameters"


def _security(on: On) -> Security:
    return on.need(on.evidence.security, "what the kernel says of it")


def _sharing(evidence: Evidence) -> list[str]:
    """Return the guests that share a core with another guest, or may: their vCPUs float."""
    cores = {cpu.id: cpu.core for cpu in evidence.host.cpus}
    held = {name: {cores.get(cpu) for cpu in cpus} for name, cpus in pinned(evidence).items()}
    floating = [guest.name for guest in evidence.host.guests or () if guest.may_run and guest.name not in held]
    if floating and len(floating) + len(held) > 1:
        return [*floating, *held]
    all_cores = list(chain.from_iterable(held.values()))
    return [name for name, own in held.items() if any(all_cores.count(core) > 1 for core in own)]


@check(
    "cpu-vulnerabilities",
    title="CPU vulnerabilities are mitigated",
    about="the host",
    why="a guest may read what another guest, or the host, has in the CPU",
    source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu (vulnerabilities), admin-guide/hw-vuln;"
    " arch/x86/kernel/cpu/bugs.c (the words)",
    expected="each mitigated; no core for two guests where SMT is vulnerable",
    remedy="take what switches mitigations off out of the kernel's arguments (mitigations=, NAME=off), where it says no"
    " microcode update the firmware and that package, and reboot; where cores are shared, plan with smt: cores",
    reads=f"{sysfs.VULNERABILITIES}/*",
    for_guests=True,
    since=_SINCE,
)
def cpu_vulnerabilities(on: On) -> Finding:
    """ "Vulnerable, KVM: …" means that guests are kept out. "SMT vulnerable" is about threads that share a core."""
    said = _security(on).vulnerabilities
    said = on.need(said, "what the kernel says of its CPUs", sysfs.VULNERABILITIES, skip="this kernel reports none")
    is_open = [f"{name}: {words}" for name, words in said.items() if words and _OPEN.search(words)]
    threads = [name for name, words in said.items() if words and "smt vulnerable" in words.lower()]
    sharing = _sharing(on.evidence) if threads else []
    if sharing:
        is_open.append(
            f"SMT vulnerable ({', '.join(threads)}), and {listed(sharing)} may share a core with another guest"
        )
    if is_open:
        several = len(on.host.guests or ()) > 1 and not on.host.hypervisor  # a virtual CPU says less than it is
        return (on.failed if several else on.warned)(
            "; ".join(is_open) + ("" if several else ": not with several tenants")
        )
    for name, words in said.items():
        on.need(words, name, f"{sysfs.VULNERABILITIES}/{name}")
    note = f"; SMT vulnerable ({', '.join(threads)}): no two guests share a core" if threads else ""
    return on.passed(f"none of {len(said)}{note}")


@check(
    "microcode",
    title="One microcode on all CPUs",
    about="the host",
    why="the kernel reports vulnerabilities of the CPU that it booted on: another package may lack the correction",
    source="Linux Documentation/arch/x86/microcode; /proc/cpuinfo",
    expected="the same revision on all CPUs",
    remedy="update the firmware and the distribution's microcode package, then reboot: it is loaded early on every CPU",
    reads="/proc/cpuinfo",
    since=_SINCE,
)
def microcode(on: On) -> Finding:
    revisions = on.need(_security(on).microcode, "the microcode of the CPUs", "/proc/cpuinfo")
    if not revisions:
        on.skip("these CPUs report none")
    if len(revisions) > 1:
        return on.failed(", ".join(f"{revision} (CPUs {cpus})" for revision, cpus in sorted(revisions.items())))
    return on.passed(next(iter(revisions)))


@check(
    "sev-snp",
    title="The IOMMU does not switch SEV-SNP off",
    about="the host, where SEV is on and SEV-SNP is meant to be",
    why="confidential guests do not start",
    source="Linux drivers/iommu/amd/init.c (iommu_snp_enable: no SNP with an IOMMU in passthrough mode);"
    " AMDESE/AMDSEV#88",
    expected="SEV-SNP on, or an IOMMU that translates",
    remedy="take iommu=pt and iommu.passthrough=1 out of the kernel's arguments, or boot with iommu=nopt: SEV-SNP needs"
    " an IOMMU that translates",
    reads=f"{_SEV}/sev_snp, /proc/cmdline",
)
def sev_snp(on: On) -> Finding:
    if not on.host.snp_meant:
        on.skip("nothing asks for SEV-SNP here")
    if on.host.switched_on("kvm_amd", "sev_snp"):
        return on.passed("SEV-SNP is on")
    mode = on.host.iommu.mode if on.host.iommu else None
    words = on.need(on.host.kernel_args, "the kernel's command line", "/proc/cmdline")
    if passthrough(words) is None or mode == "identity":
        return on.warned("SEV is on, SEV-SNP off, and the IOMMU in passthrough mode, which ends SEV-SNP")
    return on.passed("SEV-SNP is off, and not because of the IOMMU: it translates")


@check(
    "secure-boot",
    title="Secure Boot with a TPM 2.0",
    about="the host, where Secure Boot is on",
    why="Secure Boot without a TPM proves to no tenant which firmware and kernel the host runs",
    source="Requirements for AI Clouds 2.3, SEC22 (docs/requirements.md); UEFI 2.10, 3.3 (SecureBoot)",
    expected="a TPM 2.0 beside Secure Boot",
    remedy="switch the TPM on in the firmware, or set it to version 2.0",
    reads=f"{SECURE_BOOT}, /sys/class/tpm",
    for_guests=True,
    since=_SINCE,
)
def secure_boot(on: On) -> Finding:
    """Off is a choice: it is told, and no fault. A fleet that wants it declares the fact `secure-boot`."""
    security = _security(on)
    secure = on.need(security.secure_boot, "whether Secure Boot is on", SECURE_BOOT, look="mokutil --sb-state")
    if not secure:
        on.skip("Secure Boot is off, and nothing asks for it")
    tpm = on.need(security.tpm, "the TPM's version", "/sys/class/tpm", look="cat /sys/class/tpm/tpm0/tpm_version_major")
    text = f"Secure Boot on, {'no TPM' if tpm == 'none' else f'TPM {tpm}'}"
    return on.passed(text) if tpm == "2" else on.warned(text)
