"""Rules of the machine and its firmware: machine type, UEFI without Secure Boot, ACPI, sleep, what QEMU offers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hosttune.domain import elements
from hosttune.domain.arguments import passed_functions, values_of
from hosttune.domain.xml import QEMU
from hosttune.inventory.width import supported_elements
from hosttune.inventory.window import AMD_HT_START, BELOW_4G, DEFAULT_HOLE
from hosttune.model.values import format_size, grouped
from hosttune.rules.engine import Finding, Need
from hosttune.rules.lint.guest_on_host import QEMU_ARGUMENTS, GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, CPU_VENDOR, ERROR, INFO, LIBVIRT, PCI, QEMU_VERSION, WARN, rule, unknown

_SET = re.compile(r"device\.([\w-]+)\.([\w-]+)=(.+)")
_SWITCH = {"on": "true", "off": "false", "true": "true", "false": "false", "yes": "true", "no": "false"}
_WORDS = ("display", "enable-migration")  # on, off or auto, which is no bool (QEMU hw/vfio/pci.c)
_NUMBER = re.compile("0x[0-9a-fA-F]+|[1-9][0-9]*|0")
_MACHINE = re.compile(r"(pc-q35|pc-i440fx)-([0-9]{1,3})\.([0-9]{1,3})")  # as QEMU names them: hw/i386/pc_q35.c
_ALIASES = {"pc-q35": "q35", "pc-i440fx": "pc"}
_OF_PC = ("devices/*[@model='pci-root']", "devices/*/address[@type='pci']", "devices/disk/target[@bus='ide']")
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
    why="the older machine pc has no PCIe: no extended configuration space, no ATS",
    source="QEMU docs/system/i386/pc; docs/pcie.txt",
    remedy="write <type arch='x86_64' machine='q35'>hvm</type>",
    applies=lambda scene: scene.x86 and bool(scene.given),
)
def machine_type(scene: GuestOnHost) -> Iterator[Finding]:
    """Find passed devices on a machine without PCIe."""
    if not scene.q35:
        anew = "make it anew with machine='q35' and its disks: q35 takes no pci-root, IDE and PCI addresses of pc"
        text = f"machine {scene.guest.machine or 'not written (libvirt: pc)'}, and not q35"
        yield Finding(text, _TYPE, remedy=anew if any(map(scene.written, _OF_PC)) else None)


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
    why="libvirt ignores it: the guest gets SeaBIOS; with --validate it refuses",
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
        lacks = "no NUMA nodes" if scene.guest.cells else "PCIe without its full configuration space"
        yield Finding(f"no <acpi/>: the guest sees {lacks}", "/domain/features/acpi")


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
    """Find too many vCPUs, machines that QEMU lacks; firmware and CPU modes are missing on the host only."""
    offered = scene.host.virtualization.capabilities if scene.host.virtualization else None
    if offered is None:
        return
    if offered.max_vcpus is not None and scene.guest.vcpus > offered.max_vcpus and scene.q35:
        text = f"{scene.guest.vcpus} vCPUs, this QEMU's machine takes {offered.max_vcpus}"
        yield Finding(text, "/domain/vcpu", remedy=f"write at most <vcpu>{offered.max_vcpus}</vcpu>")
    machine, qemu = _MACHINE.fullmatch(scene.guest.machine or ""), scene.facts.qemu
    usual = (scene.root.findtext("devices/emulator") or "/usr/bin/").startswith(("/usr/bin/", "/usr/libexec/"))
    if machine and qemu and usual and (int(machine[2]), int(machine[3])) > qemu[:2]:
        remedy = f"update QEMU, or write machine='{_ALIASES[machine[1]]}'"
        yield Finding(f"machine {machine[0]} is newer than QEMU {'.'.join(map(str, qemu))}", _TYPE, remedy=remedy)
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
    why="libvirt does not see them: it prepares no device and raises no limit",
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
    "qemu-set",
    ERROR,
    QEMU_ARGUMENTS,
    right="-set changes no device of libvirt's",
    why="libvirt writes devices as JSON, where QEMU's -set finds none: no start",
    source="libvirt issue 287; QEMU issue 787",
    remedy="write <qemu:override>",
    needs=(LIBVIRT, QEMU_VERSION),
    applies=lambda scene: (
        any(values_of(scene.guest.qemu_arguments, "set"))
        and not scene.written(f"{QEMU}capabilities/{QEMU}del")  # a filter that makes libvirt write devices as before
    ),
)
def qemu_set(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices whose properties are set by name; devices of other arguments keep theirs."""
    own = set(re.findall(r"\bid=([^,]+)", " ".join(values_of(scene.guest.qemu_arguments, "device"))))
    written = map(_SET.fullmatch, values_of(scene.guest.qemu_arguments, "set") if scene.facts.json_devices else ())
    for alias, matches in grouped((match[1], match) for match in written if match and match[1] not in own).items():
        properties = "".join(map(_property, matches))
        remedy = (
            f"take -set and device.{alias}.… out, and write in <domain> <qemu:override><qemu:device alias='{alias}'>"
            f"<qemu:frontend>{properties}</qemu:frontend></qemu:device></qemu:override>"
        )
        yield Finding(f"-set device.{alias}.…: this QEMU finds no device {alias}", QEMU_ARGUMENTS, remedy=remedy)


def _property(match: re.Match[str]) -> str:
    """Return a property for <qemu:override>, whose type must be QEMU's own."""
    _, name, value = match.groups()
    kind = "unsigned" if _NUMBER.fullmatch(value) else "bool" if value in _SWITCH and name not in _WORDS else "string"
    text = str(int(value, 0)) if kind == "unsigned" else _SWITCH[value] if kind == "bool" else value
    return f"<qemu:property name='{name}' type='{kind}' value='{text}'/>"


# Optional elements that libvirt leaves out without a word, if it is older than they are.
_OPTIONAL = {
    elements.MAXPHYSADDR: "cpu/maxphysaddr",
    elements.MAXPHYSADDR_LIMIT: "cpu/maxphysaddr[@limit]",
    elements.DMA_TRANSLATION: "devices/iommu/driver[@dma_translation]",
    elements.PORT_HOTPLUG: "devices/controller/target[@hotplug]",
    elements.FIRMWARE_FEATURES: "os/firmware/feature",
    elements.ALLOCATION_THREADS: "memoryBacking/allocation[@threads]",
}


@rule(
    "libvirt-knows",
    WARN,
    "/domain",
    right="libvirt and QEMU know each element",
    why="libvirt ignores what it does not know",
    source="libvirt formatdomain",
    remedy="update them, or take it out",
    needs=(LIBVIRT,),
    applies=lambda scene: any(map(scene.written, _OPTIONAL.values())),
)
def libvirt_knows(scene: GuestOnHost) -> Iterator[Finding]:
    """Find elements that are newer than the installed libvirt or QEMU."""
    for name, why in supported_elements(scene.host.virtualization)[1]:
        if scene.written(_OPTIONAL.get(name, "none")):
            yield Finding(f"{_OPTIONAL[name]}: {why}", f"/domain/{_OPTIONAL[name]}")


@rule(
    "qemu-override",
    WARN,
    "/domain/qemu:override",
    right="libvirt knows <qemu:override>",
    why="libvirt ignores it",
    source="libvirt docs, drvqemu: Overriding properties of QEMU devices (since 8.2.0)",
    remedy="update libvirt to 8.2 or newer",
    applies=lambda scene: scene.written(f"{QEMU}override"),
)
def qemu_override(scene: GuestOnHost) -> Iterator[Finding]:
    """Find overrides that libvirt ignores, and those that say which device is passed: that is not judged."""
    if elements.CLIQUE not in scene.facts.elements:
        words = "<qemu:arg value='-set'/><qemu:arg value='device.ALIAS.PROPERTY=VALUE'/>"
        remedy = None if scene.facts.json_devices else f"update libvirt, or write {words} in <qemu:commandline>"
        yield Finding("<qemu:override> needs libvirt 8.2", "/domain/qemu:override", remedy=remedy)
    names = {str(element.get("name")) for element in scene.root.iterfind(f"{QEMU}override//{QEMU}property")}
    if other := sorted(names & {"host", "sysfsdev", "bus", "addr"}):
        yield unknown(f"what the properties {named(other)} of <qemu:override> change", "/domain/qemu:override")
