"""The PCI side of the host tree: GPUs, NICs, NVMe drives and NVSwitches under their host bridges and switches.

A host has hundreds of functions, and an operator looks for a few dozen. So bridges are shown only where a path forks or
the link is degraded, virtual functions are counted on their physical function, and all other functions are counted in
the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from hosttune.model.host import Gpu, Host, Link, Nic, Nvme, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.pci import PORT_WORDS, for_vfio
from hosttune.model.text import count
from hosttune.model.values import Value, address_key, format_size, grouped, slot_of
from hosttune.report.branch import Branch

_KIND_WIDTH = 9


class DeviceLookups(Value, frozen=True, kw_only=True):
    """Lookups over one host that every line needs."""

    devices: DeviceIndex
    labels: Mapping[str, tuple[str, str]]  # address -> (kind, description by its class)
    holders: Mapping[str, str]  # address -> guest that has it
    users: Mapping[str, Mapping[str, str]]  # address -> guests that share it, each with the path
    problems: Mapping[str, int]  # place and reason of a problem -> its number
    groups: bool  # whether the host has IOMMU groups

    @property
    def pci(self) -> Mapping[str, PciDevice]:
        """The PCI functions by address."""
        return self.devices.pci


def shown(host: Host, problems: Mapping[str, int]) -> DeviceLookups:
    """Build the lookups for a host. `problems` gives the number of the line that lists each problem."""
    labels: dict[str, tuple[str, str]] = {}
    labels.update({nic.address: ("NIC", _nic(nic)) for nic in host.nics})
    labels.update({drive.address: ("NVMe", _nvme(drive)) for drive in host.nvme})
    labels.update({switch.address: ("NVSwitch", switch.model or "") for switch in host.nvswitches})
    labels.update({gpu.address: ("GPU" if gpu.is_accelerator else "display", _gpu(gpu)) for gpu in host.gpus})
    return DeviceLookups(
        devices=host.index,
        labels=labels,
        holders=host.index.holders,
        users=host.index.users,
        problems=problems,
        groups=any(device.iommu_group is not None for device in host.pci),
    )


def listed(index: DeviceLookups) -> tuple[str, ...]:
    """Return the addresses that get a line: those known by class, without virtual functions."""
    return tuple(address for address in index.labels if address not in index.pci or not index.pci[address].physfn)


def device_branches(index: DeviceLookups, addresses: Iterable[str]) -> tuple[Branch, ...]:
    """Return the host bridges that lead to these devices, in bus order, each with its branch of the tree."""
    paths = map(index.devices.path, sorted(addresses, key=address_key))
    by_bridge = grouped((path[0].rpartition(":")[0], path) for path in paths)
    return tuple(Branch(text=f"host bridge {bus}", children=_forks(index, below)) for bus, below in by_bridge.items())


def _forks(index: DeviceLookups, paths: list[tuple[str, ...]]) -> tuple[Branch, ...]:
    """Return the branches below one bridge. A chain of bridges is one line.

    Above a single slot, only bridges with a degraded link are shown.
    """
    groups = grouped((path[0], path) for path in paths)
    branches: list[Branch] = []
    for members in groups.values():
        if len({slot_of(path[-1]) for path in members}) == 1:
            devices = tuple(_device(index, path[-1]) for path in members)
            faulty = tuple(bridge for bridge, below in pairwise(members[0]) if _at_fault(index, bridge, below))
            branches += [_chained(index, faulty, devices)] if faulty else devices
            continue
        depth = 0
        while all(len(path) > depth + 1 for path in members) and len({path[depth] for path in members}) == 1:
            depth += 1
        chain, rest = members[0][:depth], [path[depth:] for path in members]
        branches.append(_chained(index, chain, _forks(index, rest)))
    return tuple(branches)


def _chained(index: DeviceLookups, chain: tuple[str, ...], below: tuple[Branch, ...]) -> Branch:
    style = "warn" if any(_degraded(index, address) for address in chain) else "plain"
    return Branch(text=" > ".join(_bridge(index, address) for address in chain), style=style, children=below)


def _at_fault(index: DeviceLookups, bridge: str, below: str) -> bool:
    """Whether a bridge's link is degraded and the device at the other end of the same link does not already show it."""
    device = index.pci.get(below)
    upstream = device.link.upstream if device and device.link else None
    twin = upstream is not None and upstream.address == bridge and _degraded(index, below)
    return _degraded(index, bridge) and not twin


def _degraded(index: DeviceLookups, address: str) -> bool:
    device = index.pci.get(address)
    return bool(device and device.link and device.link.state == "degraded")


def _bridge(index: DeviceLookups, address: str) -> str:
    device = index.pci.get(address)
    name = PORT_WORDS.get((device and device.port_type) or "", "bridge")
    facts = [link_text(device.link)] if device and (name == "switch" or _degraded(index, address)) else []
    number = _problem_of(index, address) if _degraded(index, address) else None
    facts += [] if number is None else [f"see problem {number}"]
    text = ", ".join(fact for fact in facts if fact)
    return f"{name} {address}" + (f" ({text})" if text else "")


# --- one device ----------------------------------------------------------------------------------------------


def _device(index: DeviceLookups, address: str) -> Branch:
    kind, what = index.labels[address]
    device = index.pci.get(address)
    name = sold_as(device)
    facts = [name, what] if kind == "NIC" else [what or name or _ids(device)]
    number = _problem_of(index, address)
    if device:
        facts += [link_text(device.link), driver_text(device), _group(device, index.groups), _vfs(index, device)]
        if device.boot_display:
            facts.append("boot display")
        if device.numa_node is not None and device.numa_source not in (None, "device"):
            facts.append(f"node from {device.numa_source}")
    if address in index.holders:
        facts.append(f"held by guest {index.holders[address]}")
    facts += [f"used by guest {name}, by {path}" for name, path in index.users.get(address, {}).items()]
    if number is not None:
        facts.append(f"see problem {number}")
    style = "warn" if number is not None or _degraded(index, address) else "strong" if kind == "GPU" else "plain"
    text = f"{kind:{_KIND_WIDTH}}{address}  " + ", ".join(fact for fact in facts if fact)
    return Branch(text=text, style=style)


def _problem_of(index: DeviceLookups, address: str) -> int | None:
    numbers = [number for place, number in index.problems.items() if address in place]
    return min(numbers, default=None)


def sold_as(device: PciDevice | None) -> str:
    """Return the name in pci.ids; of "CHIP [PRODUCT]" the product: "MT2910 Family [ConnectX-7]" is a "ConnectX-7"."""
    name = (device.device_name if device else None) or ""
    chip, bracket, product = name.partition("[")
    return product.rstrip("]") if bracket else chip


def _ids(device: PciDevice | None) -> str:
    return f"{device.vendor_id}:{device.device_id or '????'}" if device and device.vendor_id else "unknown device"


def _gpu(gpu: Gpu) -> str:
    facts = [gpu.model or ""]
    if gpu.memory_bytes is not None:
        facts.append(format_size(gpu.memory_bytes))
    if gpu.module_id is not None:
        facts.append(f"module {gpu.module_id}")
    if gpu.compute_partition and gpu.memory_partition:
        facts.append(f"{gpu.compute_partition} with {gpu.memory_partition}")
    if gpu.mig and gpu.mig_on:
        facts.append(f"MIG on with {count(len(gpu.mig.instances or ()), 'instance')}")
    return ", ".join(fact for fact in facts if fact)


def _nic(nic: Nic) -> str:
    facts = [nic.kind or "", f"{nic.rate_gbps:g} Gb/s" if nic.rate_gbps is not None else ""]
    names = [name for name in (nic.rdma, *nic.interfaces) if name]
    facts.append(" ".join(names))
    if nic.state and nic.state.lower() not in ("active", "up"):
        facts.append(nic.state.lower())
    return ", ".join(fact for fact in facts if fact)


def _nvme(drive: Nvme) -> str:
    facts = [drive.model or "", " ".join(drive.namespaces) or drive.controller or ""]
    if drive.in_use:
        facts.append(f"in use: {drive.in_use}")
    return ", ".join(fact for fact in facts if fact)


def driver_text(device: PciDevice) -> str:
    """Return "driver nvme", or "no driver" if that is proven, or "driver not read" if the driver may be lost."""
    if device.driver is not None:
        return f"driver {device.driver}"
    return "no driver" if device.unbound else "driver not read"


def _group(device: PciDevice, groups: bool) -> str:
    if device.iommu_group is not None:
        return f"group {device.iommu_group}"
    return "no IOMMU group" if groups else ""


def _vfs(index: DeviceLookups, device: PciDevice) -> str:
    if not device.sriov_total_vfs or not (device.sriov_vfs or device.virtfns):
        return ""
    passed = sum(1 for vf in device.virtfns if vf in index.pci and for_vfio(index.pci[vf].driver))
    text = (
        f"{device.sriov_vfs if device.sriov_vfs is not None else len(device.virtfns)} of {device.sriov_total_vfs} VFs"
    )
    return f"{text}, {passed} on vfio-pci" if passed else text


def link_text(link: Link | None) -> str:
    """Return a link as text: the present figures, and why they are below the maximum if they are."""
    if link is None:
        return ""
    now, most = _figures(link.speed_gts, link.width), _figures(link.max_speed_gts, link.max_width)
    if not now:
        return "link unknown"
    if link.state == "degraded":
        return f"DEGRADED link {now} of {most or '?'}"
    if link.state in ("by-design", "idle"):
        return f"{now} ({link.state.replace('-', ' ')}, of {most or '?'})"
    return f"{now} (not provable)" if link.state == "unknown" else now


def _figures(speed_gts: float | None, width: int | None) -> str:
    if speed_gts is None or width is None:
        return ""
    return f"{speed_gts:g} GT/s x{width}"
