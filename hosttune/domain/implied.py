"""What a planned guest implies for its XML beyond the plan's own numbers: the rules that writer and proof share.

The writer prints these, the proof compares them with what is read back: KVM or emulation, the CPU's maker, and the
optional elements that the plan may use (`elements`).
"""

from __future__ import annotations

from hosttune.domain import elements
from hosttune.domain.facts import AddressWidth
from hosttune.model.plan import PlannedGuest

_KVM_HINTS = (elements.HINT_DEDICATED, elements.POLL_CONTROL)
PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_SMALL_PAGE_BYTES = 4096


def with_kvm(guest: PlannedGuest) -> bool:
    """Whether the guest runs on KVM; else QEMU emulates its CPU."""
    return guest.accelerator == "kvm"


def cpu_mode(guest: PlannedGuest) -> str:
    """The host's own CPU on KVM; all that QEMU can emulate without."""
    return "host-passthrough" if with_kvm(guest) else "maximum"


AGENT_CHANNEL = "org.qemu.guest_agent.0"  # where the QEMU guest agent looks for its host (formatdomain, channel)
RANDOM_SOURCE = "/dev/urandom"  # libvirt's own default (formatdomain, rng)
# A choice of hosttune's, not a limit: a tap device takes 256 (Linux include/linux/if_tap.h, MAX_TAP_QUEUES), and
# KubeVirt gives one for each vCPU. Each pair costs a vhost thread's work and 64 KiB on the host, interrupts inside.
MOST_QUEUES = 8
NO_DMA_TRANSLATION = ("-global", "intel-iommu.dma-translation=off")  # QEMU 7.2: -device intel-iommu,help
_AMD = ("AuthenticAMD", "HygonGenuine")


def pit_policy(guest: PlannedGuest) -> str:
    """What the timer does with missed ticks.

    AMD's interrupt virtualisation (AVIC) is off in a guest whose in-kernel PIT gives them again, which is what "delay"
    asks for (Linux arch/x86/kvm/i8254.c, kvm_pit_set_reinject); no guest of today ticks by the PIT.
    """
    return "discard" if with_kvm(guest) and guest.cpu_vendor in _AMD else "delay"


def network_queues(guest: PlannedGuest) -> int | None:
    """Pairs of queues of each virtio NIC: as many as vCPUs, at most `MOST_QUEUES`; None = libvirt's default of one."""
    queues = min(len(guest.vcpu_pins), MOST_QUEUES)
    return queues if guest.networks and queues > 1 else None


def dma_translation(guest: PlannedGuest) -> bool | None:
    """Whether the guest's IOMMU device translates DMA: False is written where libvirt can; None = not written."""
    return False if guest.iommu_eim and elements.DMA_TRANSLATION in guest.elements else None


def qemu_arguments(guest: PlannedGuest) -> tuple[str, ...]:
    """Arguments to QEMU that libvirt has no element for."""
    found: list[str] = []
    if guest.ovmf_window_mib is not None:
        found += ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={guest.ovmf_window_mib}"]
    if guest.iommu_eim and dma_translation(guest) is None and elements.DMA_TRANSLATION_GLOBAL in guest.elements:
        found += NO_DMA_TRANSLATION
    return tuple(found)


def cpu_features(guest: PlannedGuest) -> tuple[tuple[str, str], ...]:
    """(name, policy) of each CPU feature asked for by name.

    AMD's CPUID says nothing of threads without topoext, and QEMU's emulated maximum CPU is an AMD one.
    """
    return (("topoext", "require"),) if not with_kvm(guest) or guest.cpu_vendor == "AuthenticAMD" else ()


def kvm_features(guest: PlannedGuest) -> tuple[str, ...]:
    """KVM's hints that are on: none under emulation."""
    return tuple(hint for hint in _KVM_HINTS if with_kvm(guest) and hint in guest.elements)


def address_width(guest: PlannedGuest) -> AddressWidth | None:
    """The maxphysaddr element: the host's own width, cut where the IOMMU maps less; a plain number without KVM."""
    if elements.MAXPHYSADDR not in guest.elements:
        return None
    if not with_kvm(guest):
        bits = guest.physical_address_bits
        return AddressWidth(mode="emulate", bits=bits) if bits else None
    limit = guest.physical_address_limit_bits if elements.MAXPHYSADDR_LIMIT in guest.elements else None
    return AddressWidth(mode="passthrough", limit=limit)


def secure_boot(guest: PlannedGuest) -> bool | None:
    """False: switched off by name, which only UEFI and a libvirt that knows the element can; else None."""
    return False if guest.firmware == "efi" and elements.FIRMWARE_FEATURES in guest.elements else None


def allocation_threads(guest: PlannedGuest) -> int | None:
    """Threads that touch the guest's memory at start; None = libvirt's default of one."""
    return guest.allocation_threads if elements.ALLOCATION_THREADS in guest.elements else None


def huge_page_bytes(guest: PlannedGuest) -> int | None:
    """The size of the pages behind the guest, None for the kernel's ordinary ones."""
    return guest.page_bytes if guest.page_bytes and guest.page_bytes > _SMALL_PAGE_BYTES else None


def fixed_ports(guest: PlannedGuest) -> frozenset[int]:
    """The indexes of ports that lead to a passed device: nothing is ever plugged into them, or taken out.

    Firmware and kernel keep memory and 4 KiB of the 64 KiB of I/O free behind each port that says it can be plugged
    into (QEMU docs/pcie.txt, 3; Linux admin-guide/kernel-parameters, pci=hpiosize), and below an expander none can be.
    """
    if elements.PORT_HOTPLUG not in guest.elements:
        return frozenset()
    by_index = {controller.index: controller for controller in guest.controllers}
    found: set[int] = set()
    for device in guest.devices:
        index: int | None = int(device.guest_address.split(":")[1], 16)
        while index is not None and index not in found and index in by_index:
            if by_index[index].model in PORTS:
                found.add(index)
            index = by_index[index].bus
    return frozenset(found)


def disk_form(path: str) -> tuple[str, str]:
    """libvirt's (type, format) of a disk by its path: a device node is raw, a file qcow2 or raw by its suffix."""
    if path.startswith("/dev/"):
        return "block", "raw"
    return "file", "qcow2" if path.endswith(".qcow2") else "raw"
