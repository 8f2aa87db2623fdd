"""The physical address bits of a guest, and how many of them it can use.

Pure. Under KVM the guest has the host CPU's own width (host-passthrough). The host's IOMMU must also map what the
guest's devices address: memory and each other's BARs. So a narrower IOMMU is the real limit, and libvirt's
`<maxphysaddr limit=…>` reports it to the guest.
"""

from __future__ import annotations

import msgspec

from hosttune.domain.elements import MAXPHYSADDR_LIMIT, known_elements
from hosttune.model.host import Host, Virtualization

TCG_ADDRESS_BITS = 40  # QEMU refuses any other width without KVM (target/i386/cpu.c, TCG_PHYS_ADDR_BITS)
FIRMWARE_BITS = 46  # edk2 uses no more, whatever the CPU has (OvmfPkg PlatformInitLib MemDetect.c)


class AddressBits(msgspec.Struct, frozen=True):
    """A guest's physical address width.

    `bits`: the bits that its CPU reports, None unknown; `usable`: the smaller of these and what the IOMMU maps;
    `limit`: the value for the XML, None for no limit. `finding` is (level, text) if the IOMMU is narrower.
    """

    bits: int | None = None
    usable: int | None = None
    limit: int | None = None
    finding: tuple[str, str] | None = None


def address_width(host: Host, accelerator: str, *, devices: bool) -> AddressBits:
    """Return the width of a guest on this host; the IOMMU matters only for a guest with host devices."""
    cpu = host.cpu_model.physical_address_bits if host.cpu_model else None
    own = TCG_ADDRESS_BITS if accelerator == "tcg" else cpu
    iommu = host.iommu.address_bits if host.iommu and devices else None
    if own is None or iommu is None or iommu >= own:
        return AddressBits(own, own)
    narrower = f"the IOMMU maps {iommu} address bits, the guest's CPU has {own}"
    if accelerator == "tcg":
        return AddressBits(own, iommu, None, ("warn", f"{narrower}: its devices reach only the lower part"))
    stack = host.virtualization
    known, left_out = supported_elements(stack)
    if MAXPHYSADDR_LIMIT in known:
        return AddressBits(iommu, iommu, iommu, ("info", f"{narrower}: the guest is limited to {iommu}"))
    why = dict(left_out)[MAXPHYSADDR_LIMIT]
    if iommu >= FIRMWARE_BITS:
        text = f"{narrower}, and it cannot be limited ({MAXPHYSADDR_LIMIT} {why}): firmware keeps to {FIRMWARE_BITS}"
        return AddressBits(own, iommu, None, ("warn", f"{text} bits today, the guest's kernel need not"))
    text = f"{narrower}, and it cannot be limited ({MAXPHYSADDR_LIMIT} {why}): BARs beyond the IOMMU's reach fail"
    return AddressBits(own, iommu, None, ("error", f'{text} with "VFIO_MAP_DMA failed"'))


def supported_elements(stack: Virtualization | None) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the optional XML elements that a host's libvirt and QEMU support, and those left out with the reason."""
    if stack is None:
        return known_elements(None, None)
    return known_elements(stack.libvirt_version, stack.qemu_version, stack.schema_elements)
