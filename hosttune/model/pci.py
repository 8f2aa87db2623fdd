"""PCI functions of a host document: identity, position and link."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model import pciclass
from hosttune.model.values import Value

# GT/s of a link by its generation, which is also the code of LNKCAP and LNKSTA and the bit of LNKCAP2 (PCI Express
# Base Specification, 7.5.3.6, 7.5.3.18).
PCIE_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# What people call a bridge by its port type.
PORT_WORDS = {"root-port": "root port", "upstream-port": "switch", "downstream-port": "switch port"}
# Support pages of board makers: HPE's conrep option RMRDS_SlotN, "Endpoints_Excluded".
DIRECT_REMEDY = (
    "update the firmware, switch off its reserved memory for this slot (RMRR; HPE: conrep, RMRDS_SlotN), or use another"
    " slot"
)


class LinkEnd(Value, frozen=True, kw_only=True):
    """The port at the other end of a device's link, and what it supports."""

    address: str
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None


def common_link(ends: Iterable[tuple[float | None, int | None]]) -> tuple[float | None, int | None]:
    """Return the speed in GT/s and the width in lanes that all ends of a link can do; None if no end reports it."""
    speeds, widths = zip(*ends, strict=True)
    return (
        min((speed for speed in speeds if speed is not None), default=None),
        min((width for width in widths if width is not None), default=None),
    )


def link_shape(speed: float | None, width: int | None) -> str:
    """Return a link as operators write it: "32 GT/s x16"."""
    return f"{'?' if speed is None else f'{speed:g}'} GT/s x{'?' if width is None else width}"


class LinkFigures(Value, frozen=True, kw_only=True):
    """What one source reports about a link. `read` names the files that were read."""

    read: str
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None


class Link(Value, frozen=True, kw_only=True):
    """A PCIe link as one function sees it, with the port above it in `upstream`.

    `state` is one of:

    - "full": it runs at this device's maximum.
    - "by-design": lower, because the other end supports no more.
    - "degraded": lower than both ends support.
    - "idle": the speed is lower, the width is full, and the device is suspended or known to slow its idle link.
    - "unknown": it cannot be decided (a virtual port, a device in D3cold, missing figures).

    `told`: what each source reports, the files of sysfs before configuration space; None: not kept separately.
    """

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    upstream: LinkEnd | None = None
    state: str | None = None
    why: str | None = None
    told: tuple[LinkFigures, ...] | None = None


class Bar(Value, frozen=True, kw_only=True):
    """A base address register, with its size from sysfs `resource`.

    `index` is the region number (6, the ROM, is left out).
    """

    index: int
    size_bytes: int
    prefetchable: bool | None = None
    is_64bit: bool | None = None


class Acs(Value, frozen=True, kw_only=True):
    """Access Control Services: the names that lspci uses ("SrcValid", "ReqRedir", …), supported and enabled."""

    capable: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()


class Irq(Value, frozen=True, kw_only=True):
    """One interrupt of a device, the CPUs it may go to, and those it actually goes to."""

    irq: int
    affinity: str | None = None
    effective: str | None = None


class PciDevice(Value, frozen=True, kw_only=True):
    """One PCI function. `parent` is the bridge directly above; None on a root bus.

    `numa_source` says where the node comes from: "device" the device itself, "bridge" the nearest bridge above that has
    one, "firmware" the local CPU list; or "unknown". Fields after `virtfns` are read from configuration space and may
    need root. `responds` False: its ids or its configuration space read all ones, so no device answers at this address.
    """

    address: str
    vendor_id: str | None = None
    device_id: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_device_id: str | None = None
    revision: str | None = None
    class_code: str | None = None
    vendor_name: str | None = None
    device_name: str | None = None
    numa_node: int | None = None
    numa_source: str | None = None
    local_cpus: str | None = None
    iommu_group: int | None = None
    iommu_group_type: str | None = None
    iommu_direct: tuple[str, ...] | None = None  # its group's reserved regions of type "direct"; None: not read
    driver: str | None = None
    unbound: bool | None = None  # True: it is proven to have no driver. Otherwise a missing `driver` may be lost.
    driver_override: str | None = None
    parent: str | None = None
    link: Link | None = None
    bars: tuple[Bar, ...] | None = None
    unassigned_bars: tuple[int, ...] | None = None  # memory BARs that it has and that got no address
    physfn: str | None = None
    virtfns: tuple[str, ...] = ()
    sriov_total_vfs: int | None = None
    sriov_vfs: int | None = None
    vf_offset: int | None = None  # the routing id of its nth virtual function is its own plus this
    vf_stride: int | None = None  # and n times this
    vf_device_id: str | None = None
    boot_display: bool | None = None
    power_state: str | None = None
    runtime_status: str | None = None
    reset_methods: tuple[str, ...] | None = None
    irqs: tuple[Irq, ...] | None = None
    port_type: str | None = None  # endpoint, legacy-endpoint, root-port, upstream-port, downstream-port, …
    aer: bool | None = None  # it has the capability Advanced Error Reporting
    acs: Acs | None = None
    ats_enabled: bool | None = None
    aspm: str | None = None  # enabled states: "off", "L0s", "L1", "L0s L1"
    aspm_supported: str | None = None
    max_payload_bytes: int | None = None
    max_payload_supported_bytes: int | None = None
    read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    dsn: str | None = None  # its Device Serial Number, 16 hex digits: VFIO shows it too
    responds: bool | None = None

    @property
    def driver_unknown(self) -> bool:
        """True: no driver was read, and it is not proven that there is none."""
        return self.driver is None and self.unbound is not True

    @property
    def vfio_viable(self) -> bool:
        """Whether VFIO opens the group of a function with this driver: none, a stub, a port's, a VFIO driver or a
        variant of it, such as mlx5_vfio_pci (Documentation/driver-api/vfio).
        """
        return self.driver in (None, "pci-stub", "pcieport") or for_vfio(self.driver)

    @property
    def ids(self) -> str | None:
        """Vendor and device id ("10de:2335"); None if one of them is unknown."""
        return f"{self.vendor_id}:{self.device_id}" if self.vendor_id and self.device_id else None

    @property
    def kept_by_firmware(self) -> str | None:
        """Why VFIO and iommufd refuse its IOMMU group; None if nothing is known against it.

        Linux drivers/iommu/iommu.c: IOMMU_RESV_DIRECT sets require_direct, and no other owner may have the group.
        """
        kept = ", ".join(self.iommu_direct or ())
        group = f"IOMMU group {self.iommu_group}"
        return f"{group}: the firmware keeps DMA to {kept} for it (type direct), so VFIO refuses it" if kept else None

    @property
    def is_there(self) -> bool:
        """Whether it was seen to be a device: it has a vendor id or a class, and does not read all ones."""
        return self.responds is not False and bool(self.vendor_id or self.class_code)

    @property
    def is_identified(self) -> bool:
        """Whether its class and its vendor id were read; otherwise it may be any device."""
        return self.class_code is not None and self.vendor_id not in (None, "ffff")

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI-to-PCI or host bridge (class 06 00 or 06 04).

        A bridge is never passed to a guest and never counted in a group.
        """
        return (self.class_code or "").startswith(pciclass.BRIDGES)

    @property
    def is_display(self) -> bool:
        """Whether it is a display (03xx) or processing accelerator (12xx). The host document lists these as GPUs."""
        return (self.class_code or "").startswith(pciclass.GPUS)

    @property
    def is_network(self) -> bool:
        """Whether it is a network function (02xx). The host document lists the usual ones as NICs."""
        return (self.class_code or "").startswith(pciclass.NETWORK)

    @property
    def is_nvme(self) -> bool:
        """Whether it is an NVMe controller (class 01 08)."""
        return (self.class_code or "").startswith(pciclass.NVME)


def vf_address(physical: str, offset: int, stride: int, number: int) -> str:
    """Return the address that the kernel gives a virtual function: drivers/pci/iov.c, pci_iov_virtfn_bus and _devfn."""
    domain, bus, slot = physical.split(":")
    routing = (int(bus, 16) << 8 | int(slot[:2], 16) << 3 | int(slot[3])) + offset + stride * number
    return f"{domain}:{routing >> 8:02x}:{routing >> 3 & 0x1F:02x}.{routing & 7}"


def for_vfio(driver: str | None) -> bool:
    """Return whether a driver is for guests' devices: vfio-pci or a variant (mlx5_vfio_pci, nvgrace_gpu_vfio_pci)."""
    return driver is not None and "vfio" in driver
