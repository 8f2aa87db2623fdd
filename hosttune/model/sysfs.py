"""Paths in sysfs of PCI functions, IOMMU groups, CPUs and NUMA nodes, each defined in one place.

Source: Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups, sysfs-devices-system-cpu and
ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import re

PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = "/sys/bus/pci/drivers"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
NET = "/sys/class/net"
CPUS = "/sys/devices/system/cpu"
MAX_PERF_PERCENT = f"{CPUS}/intel_pstate/max_perf_pct"  # of all CPUs; absent with intel_pstate=per_cpu_perf_limits
VULNERABILITIES = f"{CPUS}/vulnerabilities"
CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
NODES = "/sys/devices/system/node"
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def function(address: str, name: str = "") -> str:
    """Return the folder of a PCI function, or the path of `name` in it."""
    return f"{PCI_DEVICES}/{address}/{name}" if name else f"{PCI_DEVICES}/{address}"


def functions_in(path: str) -> list[str]:
    """Return the PCI functions that a path leads through, the topmost first."""
    return [part for part in path.split("/") if is_function(part)]


def is_function(name: str) -> bool:
    """Return whether the name of a folder is that of a PCI function."""
    return ":" in name and _FUNCTION.fullmatch(name) is not None


def pool(node: int | str, size_bytes: int) -> str:
    """Return the folder of a node's pool of huge pages of one size."""
    return f"{NODES}/node{node}/hugepages/hugepages-{size_bytes // 1024}kB"


def pool_total(node: int | str, size_bytes: int) -> str:
    """Return the file with the number of pages of such a pool."""
    return f"{pool(node, size_bytes)}/nr_hugepages"
