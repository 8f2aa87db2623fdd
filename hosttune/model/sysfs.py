"""Paths in sysfs of PCI functions, IOMMU groups, CPUs and NUMA nodes, each defined in one place.

Source: Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups, sysfs-devices-system-cpu and
ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = "/sys/bus/pci/drivers"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"


def function(address: str, name: str = "") -> str:
    """Return the folder of a PCI function, or the path of `name` in it."""
    return f"{PCI_DEVICES}/{address}/{name}" if name else f"{PCI_DEVICES}/{address}"


def pool(node: int | str, size_bytes: int) -> str:
    """Return the folder of a node's pool of huge pages of one size."""
    return f"{NODES}/node{node}/hugepages/hugepages-{size_bytes // 1024}kB"
