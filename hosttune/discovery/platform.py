"""System → what the machine is: kernel, firmware's names, hypervisor, IOMMU, kernel modules, and its digest."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from hosttune.discovery.cpuinfo import first_block, read_cpuinfo, values_of
from hosttune.gpu import VENDORS
from hosttune.linux.systemdboot import BY_KERNEL_INSTALL, LOADER_INFO, PROXMOX, PROXMOX_DISKS
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.commandline import split
from hosttune.model.host import Iommu, Module, NumaNode, PciDevice, Platform
from hosttune.model.values import Value

_MODULES = ("vfio", "kvm", "irqbypass", "iommufd", "mdev", *(name for v in VENDORS for name in v.traces.modules))
# What firmware or hypervisors write into DMI sys_vendor, product_name, bios_vendor (as in systemd-detect-virt).
_DMI_HYPERVISORS = (
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("CloudStack KVM", "kvm"),
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("QEMU", "qemu"),
    ("Bochs", "qemu"),
    ("SeaBIOS", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Virtual Machine", "microsoft"),  # product_name of Hyper-V; Microsoft's own hardware has another name
    ("Cloud Hypervisor", "cloud-hypervisor"),
    ("Apple Virtualization", "apple"),
)
_BARE_METAL_CLOUDS = ("amazon", "google")
_DMI = "/sys/class/dmi/id"
_XEN = "/sys/hypervisor/type"
_KVM_CLOCK = "kvm-clock"  # registered only if KVM's CPUID leaf is there (arch/x86/kernel/kvmclock.c, kvmclock_init)
_BOOT_LOADERS = (
    ("/boot/loader/loader.conf", "systemd-boot"),
    ("/boot/efi/loader/loader.conf", "systemd-boot"),
    ("/efi/loader/loader.conf", "systemd-boot"),
    ("/boot/grub/grub.cfg", "grub"),
    ("/boot/grub2/grub.cfg", "grub"),
)


class Identity(Value, frozen=True, kw_only=True):
    """Name, boot and kernel of the machine, as far as they can be read."""

    hostname: str | None
    boot_id: str | None
    kernel: str | None
    kernel_args: tuple[str, ...] | None
    arch: str | None


def read_identity(reader: Reader) -> Identity:
    """Return host name, boot id, kernel release and arguments, and the architecture (`uname -m`)."""
    # The architecture: the kernel's own name; or else `uname`; or else what the form of /proc/cpuinfo shows.
    reported = reader.text("/proc/sys/kernel/arch") or reader.query("uname-m", lambda: os.uname().machine)
    shape = _arch_of_cpuinfo(first_block(read_cpuinfo(reader)))
    return Identity(
        hostname=reader.text("/proc/sys/kernel/hostname") or reader.text("/etc/hostname") or None,
        boot_id=reader.text("/proc/sys/kernel/random/boot_id") or None,
        kernel=_kernel(reader),
        kernel_args=_kernel_args(reader),
        arch=reported or shape or _arch_of_release(_kernel(reader) or ""),
    )


def _kernel(reader: Reader) -> str | None:
    release = reader.text("/proc/sys/kernel/osrelease")
    if release:
        return release
    words = (reader.text("/proc/version") or "").split()  # Linux version 6.1.0-18-amd64 (debian…) …
    return words[2] if words[:2] == ["Linux", "version"] and len(words) > 2 else None


def _kernel_args(reader: Reader) -> tuple[str, ...] | None:
    text = reader.text("/proc/cmdline")
    if text is None:
        return None
    arguments = split(text)
    printable = text.replace("\t", " ").isprintable() and "\ufffd" not in text
    if not printable or not any(word.strip('"')[:1].isalpha() for word in arguments):  # no word that names a parameter
        reader.problem("kernel arguments not understood", "/proc/cmdline", f"reads {text[:40]!r}")
        return None
    return arguments


def _arch_of_cpuinfo(facts: dict[str, str]) -> str | None:
    """Return a machine name from the form of /proc/cpuinfo.

    None if two architectures share the form (ppc64, ppc64le).
    """
    if facts.get("vendor_id", "").startswith("IBM/S390"):
        return "s390x"
    if facts.get("arch") == "IA-64":
        return "ia64"
    if "CPU implementer" in facts:
        return "aarch64" if facts.get("CPU architecture") in ("8", "AArch64") else "arm"
    if facts.get("isa", "").startswith("rv"):
        return "riscv64" if facts["isa"].startswith("rv64") else "riscv32"
    if "vendor_id" in facts and "cpu family" in facts:
        flags = facts.get("flags")
        # A 32-bit kernel on a 64-bit CPU looks the same. Only a CPU without long mode is certain.
        return "x86_64" if flags is None or "lm" in flags.split() else "i686"
    return None


def _arch_of_release(release: str) -> str | None:
    """Return the machine name that RPM distributions append to their kernel release ("4.18.0-553.el8.ppc64le")."""
    last = release.rpartition(".")[2]
    return last if last in ("x86_64", "aarch64", "ppc64le", "ppc64", "s390x", "riscv64") else None


# --- platform ------------------------------------------------------------------------------------------------


def read_platform(reader: Reader) -> tuple[Platform, bool | None]:
    """Return the firmware's name for the machine, its modules and boot loader.

    Also returns whether it is a guest (None: unknown).
    """
    dmi = {
        name: reader.text(f"{_DMI}/{name}") or None
        for name in ("sys_vendor", "product_name", "bios_vendor", "bios_version", "product_uuid")
    }
    hypervisor, kind = _hypervisor(reader, dmi)
    text = reader.text("/etc/os-release") or reader.text("/usr/lib/os-release") or ""
    match = re.search(r'^PRETTY_NAME=["\']?([^"\'\n]*)', text, re.MULTILINE)
    loaded = {line.split(" ", 1)[0] for line in (reader.text("/proc/modules") or "").split("\n") if line}
    names = {name for name in (*reader.names("/sys/module"), *loaded) if name.startswith(_MODULES)}
    platform = Platform(
        vendor=dmi["sys_vendor"],
        product=dmi["product_name"],
        bios_version=dmi["bios_version"],
        uuid=dmi["product_uuid"],
        virtualization=kind,
        modules=tuple(_module(reader, name) for name in sorted(names)),
        os=match[1] if match and match[1] else None,
        boot_loader=(loader := _boot_loader(reader)),
        unused_arguments=_grub_arguments(reader) if loader in BY_KERNEL_INSTALL else (),
    )
    return platform, hypervisor


def _hypervisor(reader: Reader, dmi: dict[str, str | None]) -> tuple[bool | None, str | None]:
    """Return whether this machine is a guest, and the name of its hypervisor.

    On x86 the CPUs show it (CPUID 1:ECX bit 31, flag "hypervisor"). None if the kernel and the firmware contradict
    them, or if one of these sources exists on this machine and was not read: fewer checks apply to a guest, so a host
    must not be taken for one.
    """
    named = _named_hypervisor(reader, dmi)
    cpuinfo = read_cpuinfo(reader)
    flags = next(iter(values_of(cpuinfo, "flags")), None)
    if flags is not None:
        return _x86_hypervisor(reader, "hypervisor" in flags.split(), named, dmi)
    control = reader.text("/proc/sysinfo") or ""  # s390: "VM00 Control Program: KVM/Linux"
    if "VM00" in control:
        return True, "kvm" if "KVM" in control else "zvm"
    if "emulated by qemu" in cpuinfo:  # POWER: "platform : pSeries (emulated by qemu)"
        return True, "qemu"
    # If the flags of x86 CPUs were not read, the firmware's name is only one of two sources.
    other = _arch_of_cpuinfo(first_block(cpuinfo)) not in (None, "x86_64", "i686")
    if other and named and named not in _BARE_METAL_CLOUDS:
        return True, named
    return None, None


def _x86_hypervisor(
    reader: Reader, flagged: bool, named: str | None, dmi: dict[str, str | None]
) -> tuple[bool | None, str | None]:
    """Decide by the flag of the CPUs, and by what firmware or kernel name.

    They can differ for Xen's control domain, a guest that hides the flag or the firmware's names, or a Hyper-V root
    partition. Clouds also write their name into the firmware of bare-metal machines; there the
    CPU's flag decides.
    """
    where = "/proc/cpuinfo"
    clocks = (reader.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split()
    kind = named or ("kvm" if _KVM_CLOCK in clocks else None)
    names = [f"{_DMI}/{name}" for name in ("product_name", "sys_vendor", "bios_vendor")]
    unread = [path for path in names if dmi[path.rpartition("/")[2]] is None and not _is_without(reader, path)]
    why = None
    if flagged:
        if kind is not None:
            return True, kind
        if any(dmi[path.rpartition("/")[2]] for path in names):
            why = f"every CPU has the flag hypervisor; the firmware names none ({dmi['product_name']!r:.60})"
        elif not unread:
            return True, "unidentified"
    elif kind is not None and (kind not in _BARE_METAL_CLOUDS or _KVM_CLOCK in clocks):
        why = f"no CPU has the flag hypervisor; the firmware or the kernel names {kind!r:.40}"
    elif not unread:
        return False, None
    if why is None:
        where, why = unread[0], "the firmware's name of the machine was not read"
    reader.problem("whether this machine is a guest is not known", where, why)
    return None, None


def _is_without(reader: Reader, path: str) -> bool:
    """Return whether the machine does not have this file, as far as that can be known.

    If the system can prove that a file is absent (Xen's file is the test), the absence of this file must be proven too.
    Otherwise it was lost.
    """
    proves = reader.lacks(_XEN) or reader.exists(_XEN) is not False
    return reader.lacks(path) if proves else reader.exists(path) is False


def _named_hypervisor(reader: Reader, dmi: dict[str, str | None]) -> str | None:
    kind = reader.text(_XEN)
    if kind:
        return kind
    for key in ("product_name", "sys_vendor", "bios_vendor"):
        text = dmi[key] or ""
        for sign, name in _DMI_HYPERVISORS:
            if text.startswith(sign):
                return name
    return None


def _boot_loader(reader: Reader) -> str | None:
    """Return the boot loader that started this host, as systemd-boot leaves its name, else the one with files here.

    If both have files, systemd-boot: it can be installed beside old GRUB files.
    """
    if "systemd-boot" in (reader.text(LOADER_INFO) or "").replace("\0", ""):  # UTF-16
        return PROXMOX if reader.exists(PROXMOX_DISKS) else "systemd-boot"
    return next((name for path, name in _BOOT_LOADERS if reader.exists(path)), None)


def _grub_arguments(reader: Reader) -> tuple[str, ...]:
    lines = re.findall(r'(?m)^GRUB_CMDLINE_LINUX(?:_DEFAULT)?="([^"\n]*)"', reader.text("/etc/default/grub") or "")
    return tuple(word for line in lines for word in line.split())


def _module(reader: Reader, name: str) -> Module:
    folder = f"/sys/module/{name}/parameters"
    values = {parameter: reader.text(f"{folder}/{parameter}") for parameter in reader.names(folder)}
    return Module(
        name=name,
        version=reader.text(f"/sys/module/{name}/version") or None,
        parameters={parameter: value for parameter, value in values.items() if value is not None} or None,
    )


# --- IOMMU ---------------------------------------------------------------------------------------------------


def read_iommu(reader: Reader, pci: Sequence[PciDevice]) -> Iommu:
    """Return the IOMMU as the kernel runs it; None for what a capture does not hold.

    `present` means that groups exist. `vendor` is also known if the IOMMU is switched off (from the firmware's ACPI
    table). `address_bits` is the smallest number that any DMA remapping unit can map (VT-d specification, CAP_REG.MGAW,
    bits 21:16). `interrupt_posting`: whether all units support it (CAP_REG.PI, bit 59); one unit without it disables it
    for all (drivers/iommu/intel/irq_remapping.c, set_irq_posting_cap).
    """
    groups = reader.listing(sysfs.IOMMU_GROUPS)
    units = reader.names("/sys/class/iommu")
    registers = [
        reader.integer(f"/sys/class/iommu/{unit}/intel-iommu/cap", 16) for unit in units if unit.startswith("dmar")
    ]
    if groups or any(device.iommu_group is not None for device in pci):
        present: bool | None = True
    else:
        present = None if groups is None else False
    # The domain type of most groups: DMA, DMA-FQ, identity, … (ABI/testing/sysfs-kernel-iommu_groups).
    types = {device.iommu_group: device.iommu_group_type for device in pci if device.iommu_group is not None}
    kinds: Iterable[str | None] = types.values()
    if not types:
        kinds = [reader.text(f"{sysfs.IOMMU_GROUPS}/{group}/type") for group in (groups or ())]
    counted = Counter(sorted(kind for kind in kinds if kind))
    # Whether interrupts go through a remapping unit: then their chips are called IR-PCI-MSI, IR-IO-APIC.
    text = reader.text("/proc/interrupts")
    if text is None:
        interrupt_remapping = None
    elif re.search(r"\bIR-(?:PCI|IO-APIC|HPET)", text):
        interrupt_remapping = True
    else:
        interrupt_remapping = False if re.search(r"\bPCI-MSI|\bIO-APIC", text) else None
    return Iommu(
        present=present,
        mode=counted.most_common(1)[0][0] if counted else None,
        vendor=_iommu_vendor(reader, units),
        address_bits=min(((register >> 16 & 0x3F) + 1 for register in registers if register is not None), default=None),
        interrupt_remapping=interrupt_remapping,
        interrupt_posting=_interrupt_posting(registers),
    )


def _iommu_vendor(reader: Reader, units: Iterable[str]) -> str | None:
    for unit in units:
        for prefix, vendor in (("dmar", "intel"), ("ivhd", "amd"), ("smmu", "smmu"), ("virtio", "virtio")):
            if unit.startswith(prefix):
                return vendor
    tables = set(reader.names("/sys/firmware/acpi/tables"))
    return next(
        (vendor for table, vendor in (("DMAR", "intel"), ("IVRS", "amd"), ("IORT", "smmu")) if table in tables), None
    )


def _interrupt_posting(registers: Sequence[int | None]) -> bool | None:
    if any(register is not None and not register >> 59 & 1 for register in registers):
        return False
    return True if registers and None not in registers else None


# --- digest --------------------------------------------------------------------------------------------------


def read_digest(reader: Reader, nodes: Sequence[NumaNode]) -> str | None:
    """Return what ties a plan to this machine: SHA-256 over machine id, present CPUs and node ids.

    None in a capture (but not on a scratch root, which stands in for a machine), and if a part is unknown.
    """
    if reader.system.captured and not reader.system.scratch:
        return None
    machine_id = reader.text("/etc/machine-id")
    present = reader.text(f"{sysfs.CPUS}/present")
    if not machine_id or machine_id == "uninitialized" or not present:
        return None
    parts = (machine_id, present, ",".join(str(node.id) for node in sorted(nodes, key=lambda node: node.id)))
    from hashlib import sha256  # here: it loads OpenSSL, and a capture has no digest

    return sha256("\n".join(parts).encode()).hexdigest()
