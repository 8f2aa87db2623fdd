"""What a planned guest needs in its XML besides the plan's own numbers: rules that writer and proof share.

The writer prints these values, and the proof compares them with what is read back: KVM or emulation, the CPU's maker,
and the optional elements that the plan may use (`elements`).
"""

from __future__ import annotations

from hosttune.domain import elements
from hosttune.domain.facts import AddressWidth
from hosttune.model.plan import PlannedGuest

_KVM_HINTS = (elements.HINT_DEDICATED, elements.POLL_CONTROL)
PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_SMALL_PAGE_BYTES = 4096


def with_kvm(guest: PlannedGuest) -> bool:
    """Return whether the guest runs on KVM; otherwise QEMU emulates its CPU."""
    return guest.accelerator == "kvm"


def cpu_mode(guest: PlannedGuest) -> str:
    """Return the CPU mode: the host's own CPU with KVM, otherwise the maximum that QEMU can emulate."""
    return "host-passthrough" if with_kvm(guest) else "maximum"


AGENT_CHANNEL = "org.qemu.guest_agent.0"  # the QEMU guest agent's channel to the host (formatdomain, channel)
RANDOM_SOURCE = "/dev/urandom"  # libvirt's own default (formatdomain, rng)
# A choice of hosttune, not a limit: a tap device takes 256 (Linux include/linux/if_tap.h, MAX_TAP_QUEUES), and
# KubeVirt gives one per vCPU. Each pair costs a vhost thread's work and 64 KiB on the host, and interrupts in guests.
MOST_QUEUES = 8
NO_DMA_TRANSLATION = ("-global", "intel-iommu.dma-translation=off")  # QEMU 7.2: -device intel-iommu,help
_AMD = ("AuthenticAMD", "HygonGenuine")


def pit_policy(guest: PlannedGuest) -> str:
    """Return what the PIT does with missed ticks.

    KVM disables AMD's interrupt virtualisation (AVIC) in a guest whose in-kernel PIT reinjects missed ticks, which is
    what "delay" asks for (Linux arch/x86/kvm/i8254.c, kvm_pit_set_reinject). Current guests do not use PIT ticks.
    """
    return "discard" if with_kvm(guest) and guest.cpu_vendor in _AMD else "delay"


def network_queues(guest: PlannedGuest) -> int | None:
    """Return the queue pairs of each virtio NIC: one per vCPU, at most `MOST_QUEUES`; None = libvirt's default, one."""
    queues = min(len(guest.vcpu_pins), MOST_QUEUES)
    return queues if guest.networks and queues > 1 else None


def dma_translation(guest: PlannedGuest) -> bool | None:
    """Return whether the guest's IOMMU device translates DMA: False if libvirt can write it; None = not written."""
    return False if guest.iommu_eim and elements.DMA_TRANSLATION in guest.elements else None


def qemu_arguments(guest: PlannedGuest) -> tuple[str, ...]:
    """Return the arguments to QEMU that libvirt has no element for."""
    found: list[str] = []
    if guest.ovmf_window_mib is not None:
        found += ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={guest.ovmf_window_mib}"]
    if guest.iommu_eim and dma_translation(guest) is None and elements.DMA_TRANSLATION_GLOBAL in guest.elements:
        found += NO_DMA_TRANSLATION
    return tuple(found)


def cpu_features(guest: PlannedGuest) -> tuple[tuple[str, str], ...]:
    """Return (name, policy) of each CPU feature that is requested by name.

    Without topoext, AMD's CPUID does not describe threads, and QEMU's emulated maximum CPU is an AMD CPU.
    """
    return (("topoext", "require"),) if not with_kvm(guest) or guest.cpu_vendor == "AuthenticAMD" else ()


def kvm_features(guest: PlannedGuest) -> tuple[str, ...]:
    """Return KVM's hints that are on; none under emulation."""
    return tuple(hint for hint in _KVM_HINTS if with_kvm(guest) and hint in guest.elements)


def address_width(guest: PlannedGuest) -> AddressWidth | None:
    """Return the maxphysaddr element: the host's width, limited to what the IOMMU maps; a plain number without KVM."""
    if elements.MAXPHYSADDR not in guest.elements:
        return None
    if not with_kvm(guest):
        bits = guest.physical_address_bits
        return AddressWidth(mode="emulate", bits=bits) if bits else None
    limit = guest.physical_address_limit_bits if elements.MAXPHYSADDR_LIMIT in guest.elements else None
    return AddressWidth(mode="passthrough", limit=limit)


def secure_boot(guest: PlannedGuest) -> bool | None:
    """Return False to switch Secure Boot off by name, which needs UEFI and a libvirt with the element; else None."""
    return False if guest.firmware == "efi" and elements.FIRMWARE_FEATURES in guest.elements else None


def allocation_threads(guest: PlannedGuest) -> int | None:
    """Return the number of threads that allocate the guest's memory at start; None = libvirt's default, one."""
    return guest.allocation_threads if elements.ALLOCATION_THREADS in guest.elements else None


def huge_page_bytes(guest: PlannedGuest) -> int | None:
    """Return the size of the huge pages behind the guest; None for the kernel's ordinary pages."""
    return guest.page_bytes if guest.page_bytes and guest.page_bytes > _SMALL_PAGE_BYTES else None


def fixed_ports(guest: PlannedGuest) -> frozenset[int]:
    """Return the indexes of ports that lead to a passed device: nothing is ever plugged into or out of them.

    Firmware and kernel reserve memory and 4 KiB of the 64 KiB of I/O behind each port that supports hot plug (QEMU
    docs/pcie.txt, 3; Linux admin-guide/kernel-parameters, pci=hpiosize); below an expander no port can support it.
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
    """Return libvirt's (type, format) of a disk path: a device node is raw, a file qcow2 or raw by its suffix."""
    if path.startswith("/dev/"):
        return "block", "raw"
    return "file", "qcow2" if path.endswith(".qcow2") else "raw"
