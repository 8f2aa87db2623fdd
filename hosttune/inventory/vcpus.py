"""The most vCPUs of a guest on this host, and when it needs an IOMMU device for them.

Pure. An interrupt reaches an APIC id above 254 through interrupt remapping with extended ids (Intel VT-d, 5.1.4, EIME;
Linux arch/x86/kernel/apic/apic.c, try_to_enable_x2apic) or, where the guest knows them, KVM's extended destination ids
(QEMU 5.2 with a split irqchip, target/i386/kvm/kvm-cpu.c; Linux 5.11). libvirt refuses more than 255 vCPUs without
remapping (qemu_validate.c, QEMU_MAX_VCPUS_WITHOUT_EIM). The only QEMU IOMMU device that has it everywhere is Intel's.
The device is emulated and does not need an Intel CPU (libvirt's own tests of it also run on AMD hosts: avocado-vt, pull
3553). hosttune uses it only to remap interrupts. With DMA translation enabled, if the guest's kernel uses it, every
mapping is shadowed for VFIO, which accepts 65,535 of them (vfio_iommu_type1, dma_entry_limit).
"""

from __future__ import annotations

import msgspec

from hosttune.domain.elements import DMA_TRANSLATION, DMA_TRANSLATION_GLOBAL, version_of
from hosttune.inventory.width import supported_elements
from hosttune.model.host import Host
from hosttune.model.plan import Topology

MAX_VCPUS_WITHOUT_IOMMU = 255
LAST_XAPIC_ID = 254  # 255 is the broadcast address
# The most CPUs of QEMU's q35 machine by version (hw/i386/pc_q35.c, max_cpus), used if its capabilities are unknown.
Q35_CPUS = (((8, 1), 1024), ((0,), 288))


class VcpuLimit(msgspec.Struct, frozen=True):
    """The most vCPUs that `auto` gives to a guest on this host, and the reason for the limit."""

    most: int
    why: str


def vcpu_limit(host: Host) -> VcpuLimit:
    """Return the most vCPUs of an `auto` guest: above 255 only if libvirt and QEMU are known to support it."""
    stack = host.virtualization
    if stack is None or stack.libvirt_version is None or stack.qemu_version is None:
        text = "more would need an IOMMU device, and whether this libvirt and QEMU can is unknown; ask by number"
        return VcpuLimit(MAX_VCPUS_WITHOUT_IOMMU, text)
    known, left_out = supported_elements(stack)
    if not {DMA_TRANSLATION, DMA_TRANSLATION_GLOBAL} & {*known}:
        text = f"more would need an IOMMU device that leaves DMA alone ({dict(left_out)[DMA_TRANSLATION_GLOBAL]})"
        return VcpuLimit(MAX_VCPUS_WITHOUT_IOMMU, f"{text}; ask by number")
    most = stack.capabilities.max_vcpus if stack.capabilities else None
    if most is None:
        version = version_of(stack.qemu_version) or (0,)
        most = next(count for since, count in Q35_CPUS if version >= since)
    return VcpuLimit(max(most, MAX_VCPUS_WITHOUT_IOMMU), "this QEMU's machine takes no more")


def last_apic_id(topology: Topology) -> int:
    """Return the highest APIC id of a guest: each level has as many bits as its count needs (QEMU, i386/topology.h)."""
    number = 0
    for count in (topology.sockets, topology.dies, topology.cores, topology.threads):
        number = number << (count - 1).bit_length() | count - 1
    return number


def needs_iommu(vcpus: int, topology: Topology) -> bool:
    """Return whether the guest has a vCPU that interrupts reach only through an IOMMU device."""
    return vcpus > MAX_VCPUS_WITHOUT_IOMMU or last_apic_id(topology) > LAST_XAPIC_ID
