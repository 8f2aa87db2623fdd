"""What an operator should know about this host before using a plan for it.

Pure. Also decides which optional XML elements the installed libvirt and QEMU support.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from hosttune.domain.elements import CHIPSET_WATCHDOG, CLIQUE, DMA_TRANSLATION, DMA_TRANSLATION_GLOBAL
from hosttune.inventory.cliques import apart, in_words
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.vcpus import last_apic_id
from hosttune.inventory.width import supported_elements
from hosttune.model.host import Host, Virtualization
from hosttune.model.hostfields import FORCE_UNKNOWN, UNTIL_THEN
from hosttune.model.listing import some
from hosttune.model.plan import BOOT_WAYS, NO_BOOT, PlanFinding, PlannedGuest
from hosttune.planning.fabric.guest import fabric_findings, fabric_reasons, fabric_steps, guest_partition
from hosttune.planning.host.quirks import guest_quirks
from hosttune.planning.mig.types import HostDevices, unused_vgpu_data, with_type_steps

LAST_AVIC_ID = 254  # arch/x86/kvm/svm/avic.c: 0xff is the broadcast; avic_init_backing_page refuses higher ids
Say = Callable[[str, str, str], None]  # level, text, where


def host_findings(
    host: Host, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]
) -> tuple[tuple[PlannedGuest, ...], tuple[PlanFinding, ...]]:
    """Return (guests with their XML elements and fabric partition, findings about the host)."""
    findings: list[PlanFinding] = []

    def say(level: str, text: str, where: str) -> None:
        findings.append(PlanFinding(level=level, text=text, where=where))

    for problem in host.problems:
        if problem.what == FORCE_UNKNOWN:
            say("error", f"{problem.why}; {UNTIL_THEN}", problem.where)
    _platform(host, say)
    fabric_findings(catalogue.fabric, guests, say)
    _groups(catalogue, guests, say)
    findings += unused_vgpu_data(HostDevices(host, catalogue))
    guests = with_type_steps(host, catalogue, guests)
    stack = host.virtualization
    names, left_out = supported_elements(stack)
    if guests:
        _elements(stack, left_out, say)
    for guest in guests:
        if not guest.boots_from:
            passed = guest.may_boot_from
            alone = f"it can boot only from what is passed to it ({some(passed)}), if a system is there"
            unstarted = f"{NO_BOOT}; apply defines it and does not start it"
            say("warn", f"{alone}: {BOOT_WAYS}" if passed else unstarted, f"guest {guest.name}")
        _guest_iommu(host, guest, names, dict(left_out), say)
        if guest.secure_boot and any(device.kind in ("gpu", "vf") for device in guest.devices):
            text = "Secure Boot: its kernel loads only signed drivers of GPUs (its distribution's, or of enrolled keys)"
            say("info", text, f"guest {guest.name}")
        _whole_nics(catalogue, guest, say)
        _peers(host, guest, dict(left_out).get(CLIQUE), say)
        findings += guest_quirks(host, catalogue, guest)
    if stack is not None:
        _offered(stack, guests, say)
    planned = (
        msgspec.structs.replace(
            guest,
            elements=tuple(names),
            fabric_partition=guest_partition(catalogue.fabric, guest),
            steps=(*guest.steps, *fabric_steps(catalogue.fabric, guest)),
            why=(*guest.why, *fabric_reasons(catalogue.fabric, guest)),
        )
        for guest in guests
    )
    return tuple(planned), tuple(findings)


def _elements(stack: Virtualization | None, left_out: Iterable[tuple[str, str]], say: Say) -> None:
    """Report the XML elements that are not used, because libvirt or QEMU does not know them, or is unknown."""
    if stack is None or stack.libvirt_version is None or stack.qemu_version is None:
        text = "libvirt or QEMU is unknown: only elements that libvirt 9.0 and QEMU 7.2 know are used"
        say("info", text, "virtualization")
    for element, reason in left_out:
        # `_guest_iommu` and `_peers` report these, for the guests that need them; of a watchdog there is another model
        if element not in (DMA_TRANSLATION, DMA_TRANSLATION_GLOBAL, CLIQUE, CHIPSET_WATCHDOG):
            say("info", f"left out of the XML: {element}, which {reason}", "virtualization")


def _whole_nics(catalogue: Catalogue, guest: PlannedGuest, say: Say) -> None:
    nics = (device.address for device in guest.devices if device.kind == "nic")
    if whole := [address for address in nics if (function := catalogue.pci.get(address)) and function.sriov_total_vfs]:
        text = (
            f"whole NICs: {some(whole)}. Who has one can change its firmware's settings, MAC and VLANs; where tenants"
            " share a network, give virtual functions, by address"
        )
        say("info", text, f"guest {guest.name}")


def _peers(host: Host, guest: PlannedGuest, lacking: str | None, say: Say) -> None:
    """Report the GPUs that cannot exchange data over PCIe in the guest. `lacking`: why no clique is written."""
    written = (
        {} if lacking else {device.address: device.clique for device in guest.devices if device.clique is not None}
    )
    pairs = apart(host, (device.address for device in guest.devices), written)
    for words in in_words((one, other, why or f"a clique {lacking}") for one, other, why in pairs):
        text = f"no peer-to-peer over PCIe in the guest: {words}; their data goes through its memory"
        say("info", text, f"guest {guest.name}")


def _guest_iommu(
    host: Host, guest: PlannedGuest, names: Collection[str], left_out: Mapping[str, str], say: Say
) -> None:
    """Report a guest whose vCPUs need an IOMMU device: what the device does, and whether KVM supports so many vCPUs."""
    if not guest.iommu_eim:
        return
    where = f"guest {guest.name}"
    vcpus = len(guest.vcpu_pins)
    last = last_apic_id(guest.topology) if guest.topology else vcpus - 1
    text = f"{vcpus} vCPUs with APIC ids up to {last}: the guest gets an IOMMU device with extended interrupt mode"
    if {DMA_TRANSLATION, DMA_TRANSLATION_GLOBAL}.isdisjoint(names):
        text += (
            f" that always translates DMA, too ({left_out[DMA_TRANSLATION_GLOBAL]}). Boot its kernel"
            " with intel_iommu=off, else each mapping counts against VFIO's limit of 65535"
        )
        say("warn", text, where)
    else:
        say("info", f"{text}, which leaves DMA alone", where)
    if host.switched_on("kvm_amd", "avic") and last > LAST_AVIC_ID:
        text = (
            f"kvm_amd.avic is on, and APIC ids go up to {last}: kernels whose AVIC ends at {LAST_AVIC_ID} (511 with"
            " x2AVIC) refuse such a vCPU; if the start fails, load kvm_amd with avic=0"
        )
        say("warn", text, where)


def _offered(stack: Virtualization, guests: tuple[PlannedGuest, ...], say: Say) -> None:
    """Report what a guest's XML asks for and QEMU does not offer, according to libvirt's domain capabilities."""
    where = "virsh domcapabilities"
    offered = stack.capabilities
    if offered is None:
        if guests and stack.libvirt_version is not None:
            say(
                "info",
                "the domain capabilities are unknown: what this QEMU offers was not checked",
                where,
            )
        return
    for guest in guests:
        if guest.firmware == "efi" and offered.firmwares is not None and "efi" not in offered.firmwares:
            text = f"guest {guest.name}: libvirt finds no UEFI firmware; install OVMF (edk2), or ask for firmware: bios"
            say("error", text, where)
        mode = "host-passthrough" if guest.accelerator == "kvm" else "maximum"
        if offered.cpu_modes is not None and mode not in offered.cpu_modes:
            has = ", ".join(offered.cpu_modes) or "none"
            say("error", f"guest {guest.name}: CPU mode {mode} is not offered here, only {has}", where)
        vcpus = len(guest.vcpu_pins)
        if offered.max_vcpus is not None and vcpus > offered.max_vcpus:
            say("error", f"guest {guest.name}: {vcpus} vCPUs, this QEMU's machine takes {offered.max_vcpus}", where)


def _platform(host: Host, say: Say) -> None:
    if host.hypervisor is None:
        say("info", "whether this host is itself a guest is unknown", "hypervisor")
    elif host.hypervisor:
        say(
            "warn",
            "this host is itself a guest: its topology is what its hypervisor shows, and nesting may be off",
            "/proc/cpuinfo",
        )
    if host.arch is None:
        say("warn", "the architecture is unknown: planned as x86-64", "arch")
    if host.arch in (None, "x86_64") and (host.cpu_model is None or host.cpu_model.physical_address_bits is None):
        say("warn", "the CPUs' physical address width is unknown", "/proc/cpuinfo: address sizes")
    kvm = host.virtualization.kvm if host.virtualization else None
    if kvm is None:
        say("info", "whether KVM works here is unknown", "/dev/kvm")
    elif not kvm:
        say("error", "no KVM on this host: guests cannot start until it is there", "/dev/kvm")
    if host.guests is None:
        say("info", "libvirt could not be asked: guests that run here, if any, are not taken into account", "libvirt")


def _groups(catalogue: Catalogue, guests: tuple[PlannedGuest, ...], say: Say) -> None:
    if not catalogue.groups:
        return  # the action that enables the IOMMU has this finding
    for guest in guests:
        for device in guest.devices:
            if device.kind == "mdev" or device.network:
                continue  # one that does not exist yet is in a group once it does: apply looks then
            function = catalogue.pci.get(device.address)
            if function is None or function.iommu_group is None:
                say("error", f"{device.address} is in no IOMMU group: it cannot be given to a guest", "iommu_group")
