"""Rules of the machine and its firmware: machine type, UEFI without Secure Boot, ACPI, sleep, what QEMU offers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hosttune.domain import elements
from hosttune.domain.arguments import passed_functions, values_of
from hosttune.domain.xml import QEMU
from hosttune.inventory.window import AMD_HT_START, BELOW_4G, DEFAULT_HOLE
from hosttune.model.values import format_size
from hosttune.rules.engine import Finding, Need
from hosttune.rules.lint.guest_on_host import QEMU_ARGUMENTS, GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, CPU_VENDOR, ERROR, INFO, PCI, WARN, rule, unknown

_TYPE = "/domain/os/type"
_FIRMWARE = "/domain/os/firmware"
_OFFER = Need[GuestOnHost](
    "what this QEMU offers is unknown (virsh domcapabilities)",
    lambda scene: scene.host.virtualization is not None and scene.host.virtualization.capabilities is not None,
)
_KVM = Need[GuestOnHost](
    "whether KVM works here is unknown (/dev/kvm)",
    lambda scene: scene.host.virtualization is not None and scene.host.virtualization.kvm is not None,
)


@rule(
    "machine-type",
    ADVICE,
    _TYPE,
    right="an x86 guest with devices of the host has machine q35",
    why="the older machine pc has no PCIe: no extended configuration space, no ATS, no large BARs behind ports",
    source="QEMU docs/system/i386/pc; docs/pcie.txt",
    remedy="write <type arch='x86_64' machine='q35'>hvm</type>",
    applies=lambda scene: scene.x86 and bool(scene.given),
)
def machine_type(scene: GuestOnHost) -> Iterator[Finding]:
    """Find passed devices on a machine without PCIe."""
    if not scene.q35:
        yield Finding(f"machine {scene.guest.machine or 'not written (libvirt: pc)'}, and not q35", _TYPE)


@rule(
    "guest-arch",
    ERROR,
    _TYPE,
    right="a guest on KVM has the architecture of the host",
    why="KVM runs no other: the guest does not start",
    source="libvirt qemu_capabilities.c; Linux Documentation/virt/kvm",
    remedy="start it on a host of its architecture",
    needs=(Need("the architecture of the host is unknown", lambda scene: scene.host.arch is not None),),
    applies=lambda scene: scene.kvm and scene.demanding and scene.guest.arch is not None,
)
def guest_arch(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests of another architecture; x86-64 runs 32-bit guests, too."""
    arch, host = scene.guest.arch, scene.host.arch
    if arch != host and (arch, host) != ("i686", "x86_64"):
        yield Finding(f"a guest of {arch} on a host of {host}", _TYPE)


def _says_windows(scene: GuestOnHost) -> bool:
    systems = scene.root.iterfind("metadata//{http://libosinfo.org/xmlns/libvirt/domain/1.0}os")
    return any((element.get("id") or "").startswith("http://microsoft.com/win/") for element in systems)


@rule(
    "secure-boot",
    ADVICE,
    _FIRMWARE,
    right="a guest with GPUs boots without Secure Boot, unless its metadata (libosinfo) says Windows",
    why="drivers built in the guest are not signed, and its kernel does not load them",
    source="libvirt formatdomain, BIOS bootloader: firmware feature; Linux module signing",
    remedy="write <firmware><feature enabled='no' name='secure-boot'/></firmware> in <os firmware='efi'>",
    needs=(PCI,),
    applies=lambda scene: (
        scene.x86
        and scene.may_have_gpus
        and scene.guest.firmware == "efi"
        and not (_says_windows(scene) or scene.confidential)
    ),
)
def secure_boot(scene: GuestOnHost) -> Iterator[Finding]:
    """Find UEFI guests in which Secure Boot is on, or may be: libvirt then chooses any firmware."""
    if scene.written("os/loader[@secure='yes']") or scene.guest.secure_boot:
        text = "Secure Boot is on: drivers that are built in the guest do not load"
        loader = scene.written("os/loader[@secure='yes']")
        remedy = "take secure='yes' and its <nvram> out, and name a firmware without Secure Boot" if loader else None
        asked = scene.written("os/firmware/feature[@name='secure-boot'][@enabled='yes']")  # somebody wants it
        yield Finding(text, _FIRMWARE, INFO if asked else "", remedy=remedy)
    elif (
        scene.guest.secure_boot is None
        and scene.written("os[@firmware='efi']")
        and not scene.written("os/loader")
        and elements.FIRMWARE_FEATURES in scene.facts.elements
    ):
        yield Finding("Secure Boot is not switched off: libvirt may choose a firmware that has it on", _FIRMWARE)


@rule(
    "firmware-choice",
    ERROR,
    "/domain/os",
    right="libvirt knows the attribute firmware",
    why="libvirt ignores it, and the guest gets SeaBIOS, which has no room for large BARs; with --validate it refuses",
    source="libvirt formatdomain, BIOS bootloader: since 5.2.0",
    remedy="write <loader readonly='yes' type='pflash'> with the path of the firmware, and its <nvram>",
    applies=lambda scene: scene.written("os[@firmware]"),
)
def firmware_choice(scene: GuestOnHost) -> Iterator[Finding]:
    """Find the choice of a firmware by a libvirt that does not make it."""
    if elements.FIRMWARE not in scene.facts.elements:
        yield Finding(f"firmware='{scene.guest.firmware}' on a libvirt before 5.2", "/domain/os")


@rule(
    "high-memory",
    INFO,
    "/domain/memory",
    right="a Windows guest on an AMD host has no address above 1012 GiB",
    why="machines since pc-q35-7.1 move it above AMD's HyperTransport hole: GPUs can fail (Code 43)",
    source="QEMU hw/i386/pc.c (AMD_HT_START); Red Hat issue RHEL-98247",
    remedy="make <memory>, <maxMemory> and <pcihole64> smaller, or take machine pc-q35-7.0",
    needs=(CPU_VENDOR,),
    applies=lambda scene: scene.q35 and bool(scene.given) and _says_windows(scene),
)
def high_memory(scene: GuestOnHost) -> Iterator[Finding]:
    """Find Windows guests whose memory QEMU moves on AMD hosts. No other machine does."""
    guest = scene.guest
    holes = (
        controller.pcihole64_bytes or DEFAULT_HOLE
        for controller in guest.controllers
        if controller.model == "pcie-root"
    )
    size = max(guest.memory_bytes or 0, guest.max_memory_bytes or 0)
    top = size + BELOW_4G + next(holes, DEFAULT_HOLE)
    old = re.search(r"q35-(?:[0-6]\.|7\.0)", guest.machine or "")
    if scene.cpu_vendor == "AuthenticAMD" and top > AMD_HT_START and not old:
        text = f"its addresses end at {format_size(top)}, above AMD's hole at 1012 GiB: GPUs can fail (Code 43)"
        yield Finding(text, "/domain/memory")


@rule(
    "acpi",
    WARN,
    "/domain/features/acpi",
    right="a guest with cells or devices of the host has ACPI",
    why="it sees no NUMA nodes, distances and power button, and PCIe without its full configuration space",
    source="libvirt formatdomain, Hypervisor features: acpi; ACPI SRAT, SLIT, MCFG",
    remedy="write <acpi/> in <features>",
    applies=lambda scene: scene.x86 and bool(scene.guest.cells or scene.given),
)
def acpi(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests without ACPI."""
    if "acpi" not in scene.guest.features:
        yield Finding("no <acpi/>: the guest sees no NUMA nodes", "/domain/features/acpi")


@rule(
    "guest-sleep",
    ADVICE,
    "/domain/pm",
    right="a guest with passed devices cannot suspend",
    why="passed devices do not come back from it: the guest must be started again",
    source="NVIDIA, virtualization guides: no suspend with GPU passthrough; libvirt formatdomain, Power Management",
    remedy="write <pm><suspend-to-mem enabled='no'/><suspend-to-disk enabled='no'/></pm>",
    applies=lambda scene: scene.x86 and bool(scene.given),
)
def guest_sleep(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests with passed devices that may sleep."""
    for state in ("suspend-to-mem", "suspend-to-disk"):
        if not scene.written(f"pm/{state}[@enabled='no']"):
            yield Finding(f"{state} is not switched off", f"/domain/pm/{state}")


@rule(
    "hypervisor-offers",
    ERROR,
    "/domain",
    right="this QEMU and libvirt offer what the guest asks for",
    why="the guest does not start",
    source="virsh domcapabilities",
    remedy="ask for what virsh domcapabilities shows",
    needs=(_OFFER,),
    applies=lambda scene: scene.x86 and scene.demanding,
)
def hypervisor_offers(scene: GuestOnHost) -> Iterator[Finding]:
    """Find too many vCPUs; firmware and CPU modes are missing on the host only."""
    offered = scene.host.virtualization.capabilities if scene.host.virtualization else None
    if offered is None:
        return
    if offered.max_vcpus is not None and scene.guest.vcpus > offered.max_vcpus and scene.q35:
        text = f"{scene.guest.vcpus} vCPUs, this QEMU's machine takes {offered.max_vcpus}"
        yield Finding(text, "/domain/vcpu", remedy=f"write at most <vcpu>{offered.max_vcpus}</vcpu>")
    if scene.guest.firmware == "efi" and offered.firmwares is not None and "efi" not in offered.firmwares:
        yield Finding("libvirt finds no UEFI firmware here", "/domain/os", INFO, remedy="install OVMF (package ovmf)")
    mode = scene.guest.cpu.mode
    same = offered.domain_type in (None, scene.guest.type)
    if mode is not None and same and offered.cpu_modes is not None and mode not in offered.cpu_modes:
        remedy = f"write one of its modes: {', '.join(sorted(offered.cpu_modes))}"
        yield Finding(f"CPU mode {mode} is not offered here", "/domain/cpu", INFO, remedy=remedy)


@rule(
    "host-kvm",
    INFO,
    "/domain",
    right="KVM works on the host of a guest of type kvm",
    why="the guest does not start until it does",
    source="/dev/kvm; Linux Documentation/virt/kvm",
    remedy="switch virtualization on in the firmware, and load kvm_intel or kvm_amd",
    needs=(_KVM,),
    applies=lambda scene: scene.kvm and scene.demanding,
)
def host_kvm(scene: GuestOnHost) -> Iterator[Finding]:
    """Find hosts without KVM."""
    if scene.host.virtualization is not None and scene.host.virtualization.kvm is False:
        yield Finding("no KVM on this host", "/domain")


@rule(
    "qemu-arguments",
    INFO,
    QEMU_ARGUMENTS,
    right="devices of the host and the CPU are elements of the XML, not arguments to QEMU",
    why="libvirt does not see them: it prepares no device and raises no limit; most rules look at elements only",
    source="libvirt docs, drvqemu: Pass-through of arbitrary QEMU commands",
    remedy="write a <hostdev> for the device, and <cpu> for the CPU",
    applies=lambda scene: bool(scene.guest.qemu_arguments),
)
def qemu_arguments(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices, and what else the XML has, that are arguments: of a device only its place is judged."""
    if passed := passed_functions(scene.guest.qemu_arguments):
        text = (
            f"a passed device on the command line is not judged ({named(passed)}), except by what the host says of it"
        )
        yield unknown(text, QEMU_ARGUMENTS)
    for option, element in (("cpu", "cpu"), ("smp", "vcpu"), ("m", "memory"), ("numa", "numa")):
        if values_of(scene.guest.qemu_arguments, option):
            yield unknown(f"-{option} on the command line replaces <{element}>, and is not judged", QEMU_ARGUMENTS)


@rule(
    "qemu-override",
    WARN,
    "/domain/qemu:override",
    right="libvirt knows <qemu:override>",
    why="libvirt ignores it, and QEMU gets what the other elements say",
    source="libvirt docs, drvqemu: Overriding properties of QEMU devices (since 8.2.0)",
    remedy="update libvirt, or set the properties with <qemu:arg value='-set'/>"
    "<qemu:arg value='device.ALIAS.PROPERTY=VALUE'/> in <qemu:commandline>",
    applies=lambda scene: scene.written(f"{QEMU}override"),
)
def qemu_override(scene: GuestOnHost) -> Iterator[Finding]:
    """Find overrides that libvirt ignores, and those that say which device is passed: that is not judged."""
    if elements.CLIQUE not in scene.facts.elements:
        yield Finding("<qemu:override> needs libvirt 8.2", "/domain/qemu:override")
    names = {str(element.get("name")) for element in scene.root.iterfind(f"{QEMU}override//{QEMU}property")}
    if other := sorted(names & {"host", "sysfsdev", "bus", "addr"}):
        yield unknown(f"what the properties {named(other)} of <qemu:override> change", "/domain/qemu:override")
