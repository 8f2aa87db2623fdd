"""The PCI tree of a host: every function with its bridge, NUMA node, link on both ends, IOMMU group, BARs and limits.

Second step of discovery, after the NUMA nodes: System → `read_pci` → Host.pci. `pci_function` reads, `pciconfig`
decodes, `pci_names` names, `pcielink` judges links; this module finds the node of each function and puts them
together. It writes nothing and wakes no sleeping device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hosttune.discovery import pci_names
from hosttune.discovery.pci_function import AFFINITY, LINK_FIGURES, Bars, Function, read_function, read_irqs
from hosttune.discovery.sets import parsed, plain
from hosttune.inventory.pcielink import IN_THE_ROOT, link_of
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.host import Link, LinkEnd, NumaNode, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.limits import check_count
from hosttune.model.values import MAX_ID, CpuSet, is_address, parse_cpus, slot_of

DEVICES = sysfs.PCI_DEVICES
GROUPS = sysfs.IOMMU_GROUPS


def read_pci(
    reader: Reader, nodes: tuple[NumaNode, ...], *, fallback_ids: Callable[[], bytes | None] | None = None
) -> tuple[PciDevice, ...]:
    """Return every PCI function, sorted by address (a domain of more than four digits after the others).

    `nodes` are the host's NUMA nodes with their CPUs; they are needed for functions whose node follows from a list of
    local CPUs. Names come from the pci.ids of the same system. Only if it has none, `fallback_ids` is called for
    another one (`pci_names.load`). What cannot be read becomes a problem of the reader.
    """
    functions = _read_functions(reader)
    home = NodeFinder(reader, nodes, functions)
    # Add a problem for each function that the kernel lists and that no longer answers.
    for address, function in functions.items():
        if function.gone:
            why = "its ids or its configuration space read all ones: it is off the bus, or the link above it is down"
            reader.problem("PCI function does not answer", f"{DEVICES}/{address}", why)
    ids = {(f.vendor, f.device) for f in functions.values() if f.vendor and f.device}
    data = pci_names.load(reader.system) if ids else None
    if data is None and ids and fallback_ids is not None:
        data = fallback_ids()
    names = pci_names.lookup(data, ids)
    groups = _Groups(reader)
    return tuple(
        PciDevice(
            **_identity(function, names),
            **_affinity(home, function),
            **groups.of(function),
            **_functions_of(reader, function),
            **_power(reader, function),
            **_config(function),
            link=_link(function),
            bars=function.bars,
            unassigned_bars=function.unassigned_bars,
            irqs=read_irqs(reader, function) if function.matters else None,
        )
        for function in functions.values()
    )


def _read_functions(reader: Reader) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    bars: Bars = {}
    bridges: dict[str, tuple[str, ...]] = {}  # by folder: the bridges above it, nearest first
    names = reader.names(DEVICES)
    check_count(len(names), "PCI functions", f"{reader.system.origin}: {DEVICES}")
    for address in sorted(names, key=lambda name: (len(name), name)):
        if not is_address(address):
            reader.problem("not a PCI address", f"{DEVICES}/{address}", "left out")
            continue
        path = reader.link(f"{DEVICES}/{address}") or f"{DEVICES}/{address}"
        folder = path.rpartition("/")[0]
        if folder not in bridges:
            bridges[folder] = tuple(reversed(sysfs.functions_in(folder)))
        above = bridges[folder]
        # A function below a host bridge of its own ("pci10000:00", made by Intel VMD) is on a root bus, although its
        # path goes through the VMD device. The path still shows where the domain is attached.
        parent = above[0] if above and folder.endswith(f"/{above[0]}") else None
        functions[address] = read_function(reader, address, path, above, parent, bars)
    return functions


def _link(function: Function) -> Link | None:
    """Return what a function reports of its link; None: no link. One in D3cold is not read: not to wake it."""
    asleep = function.power_state == "D3cold" and "current_link_speed" in function.names
    figures = {name: getattr(function.link[0], name) for name in LINK_FIGURES} if function.link else {}
    if function.config.port_type in IN_THE_ROOT or not (asleep or any(known is not None for known in figures.values())):
        return None
    return Link(**figures, told=function.link or None)


def judged_links(reader: Reader, index: DeviceIndex) -> tuple[PciDevice, ...]:
    """Return the functions with the other end and the state of each link, as all checks judge it.

    Each degraded link is one problem, at the first function of its lower end and not at the port above.
    """
    judged, reported = list[PciDevice](), set[tuple[str, str]]()
    for device in index.pci.values():
        link, end = link_of(index, device.address), None
        if link is not None and link.port is not None:
            figures = {name: getattr(link.port.link, name, None) for name in LINK_FIGURES}
            end = LinkEnd(address=link.port.address, **figures)
            ends = (link.port.address, slot_of(device.address))
            if link.state == "degraded" and link.end is device and ends not in reported:
                reported.add(ends)
                reader.problem("degraded PCIe link", f"{DEVICES}/{device.address}", link.why)
        if link is not None:
            whole = msgspec.structs.replace(link.link, upstream=end, state=link.state, why=link.why)
            device = msgspec.structs.replace(device, link=whole)
        judged.append(device)
    return tuple(judged)


def _identity(function: Function, names: Mapping[tuple[str, str], pci_names.Names]) -> dict[str, Any]:
    named = names.get((function.vendor or "", function.device or ""), (None, None))
    return {
        "address": function.address,
        "parent": function.parent,
        "vendor_id": function.vendor,
        "device_id": function.device,
        "subsystem_vendor_id": function.subsystem_vendor,
        "subsystem_device_id": function.subsystem_device,
        "revision": function.revision,
        "class_code": function.class_code,
        "vendor_name": named[0],
        "device_name": named[1],
        "driver": function.driver,
        "unbound": function.unbound,
        "responds": False if function.gone else None,
    }


def _affinity(home: NodeFinder, function: Function) -> dict[str, Any]:
    node, source = home.place(function)
    return {"numa_node": node, "numa_source": source, "local_cpus": home.near(function).text}


class _Groups:
    """Finds each function's IOMMU group from its own link; if that was not recorded, from the groups' folders."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._facts: dict[str, dict[str, Any]] = {}
        self._listed = {
            address: name for name in reader.names(GROUPS) for address in reader.names(f"{GROUPS}/{name}/devices")
        }

    def of(self, function: Function) -> dict[str, Any]:
        """Return the IOMMU group, the type of its default domain and the regions that its devices must keep."""
        name = self._link(function) if "iommu_group" in function.names else self._listed.get(function.address)
        if name is None:
            return {}
        if name not in self._facts:
            # "start end type" for each region (ABI/testing/sysfs-kernel-iommu_groups); "direct-relaxable" is another
            # type. No group is without a region: that of interrupts is in each.
            rows = [
                line.split() for line in (self._reader.text(f"{GROUPS}/{name}/reserved_regions") or "").splitlines()
            ]
            direct = tuple("-".join(row[:2]) for row in rows if row[2:] == ["direct"])
            self._facts[name] = {
                "iommu_group": int(name),
                "iommu_group_type": self._reader.text(f"{GROUPS}/{name}/type") or None,
                "iommu_direct": direct if rows and all(len(row) == 3 for row in rows) else None,
            }
        return self._facts[name]

    def _link(self, function: Function) -> str | None:
        name = self._reader.link_name(f"{function.path}/iommu_group")
        if name is None or number(name, MAX_ID) is None:
            self._reader.problem("no IOMMU group number", f"{function.path}/iommu_group", f"leads to {name!r}")
            return None
        return name


def _functions_of(reader: Reader, function: Function) -> dict[str, Any]:
    """Return the SR-IOV facts: the physical function, or the virtual functions and their maximum number."""
    names, path = function.names, function.path
    if function.physfn is not None:
        return {"physfn": function.physfn}
    sriov = function.config.sriov
    if "sriov_totalvfs" not in names and sriov is None:
        return {}
    total = reader.count(f"{path}/sriov_totalvfs") if "sriov_totalvfs" in names else None
    count = reader.count(f"{path}/sriov_numvfs") if "sriov_numvfs" in names else None
    facts: dict[str, Any] = {
        f"vf_{name}": reader.count(f"{path}/sriov_{name}") if f"sriov_{name}" in names else None
        for name in ("offset", "stride")
    }
    if sriov is not None:
        total = sriov.total_vfs if total is None else total
        count = (sriov.vfs if sriov.enabled else 0) if count is None else count
        of_config = {"vf_offset": sriov.offset, "vf_stride": sriov.stride, "vf_device_id": sriov.device_id}
        facts = of_config | {name: value for name, value in facts.items() if value is not None}
    elif "sriov_vf_device" in names:
        facts["vf_device_id"] = (reader.text(f"{path}/sriov_vf_device") or "").zfill(4)
    numbers = (number(name[6:], MAX_ID) for name in function.names if name.startswith("virtfn"))
    sorted_numbers = sorted(count for count in numbers if count is not None)
    links = (reader.link_name(f"{function.path}/virtfn{count}") for count in sorted_numbers)
    return {
        "virtfns": tuple(link for link in links if link is not None and is_address(link)),
        "sriov_total_vfs": total,
        "sriov_vfs": count,
        **facts,
    }


def _power(reader: Reader, function: Function) -> dict[str, Any]:
    """Return power state, reset methods, driver override, and whether firmware shows its screen here."""
    names, path = function.names, function.path
    facts: dict[str, Any] = {"power_state": function.power_state, "runtime_status": function.runtime_status}
    if "boot_vga" in names:
        facts["boot_display"] = {"1": True, "0": False}.get(reader.text(f"{path}/boot_vga") or "")
    if "driver_override" in names:
        override = reader.text(f"{path}/driver_override")
        facts["driver_override"] = None if override in ("(null)", "") else override
    if "reset_method" in names:
        methods = reader.text(f"{path}/reset_method")
        facts["reset_methods"] = None if methods is None else tuple(methods.split())
    return facts


def _config(function: Function) -> dict[str, Any]:
    config = function.config
    return {
        "port_type": config.port_type,
        "aer": config.aer,
        "acs": config.acs,
        "ats_enabled": config.ats_enabled,
        "aspm": config.aspm,
        "aspm_supported": config.aspm_supported,
        "max_payload_bytes": config.max_payload_bytes,
        "max_payload_supported_bytes": config.max_payload_supported_bytes,
        "read_request_bytes": config.read_request_bytes,
        "relaxed_ordering": config.relaxed_ordering,
        "dsn": config.dsn,
    }


# --- NUMA nodes ------------------------------------------------------------------------------------------------
# The NUMA node of each PCI function, and where its sources disagree: its own file, bridges above, its local CPUs.

Place = tuple[int | None, str]


class LocalCpuList(msgspec.Struct, frozen=True):
    """A list of local CPUs: its text (None if it is empty or not a list), and which known CPUs it names.

    `node` is the node of these CPUs; None if there are none, if they are on several nodes, or if they are all CPUs of
    the machine.
    """

    text: str | None = None
    cpus: frozenset[int] = frozenset()
    node: int | None = None


class NodeFinder:
    """Finds each function's NUMA node, and reports where its sources disagree.

    Order of preference: the function's own node; the nearest bridge above with a known node; a local CPU list that
    names only part of the machine's CPUs, all on one node. A list of all CPUs proves nothing.
    """

    def __init__(self, reader: Reader, nodes: tuple[NumaNode, ...], functions: Mapping[str, Function]) -> None:
        self._reader = reader
        self._functions = functions
        self._cpus = {node.id: parse_cpus(node.cpus) for node in nodes}
        self._all = CpuSet().union(*self._cpus.values())
        self._near: dict[str | None, LocalCpuList] = {None: LocalCpuList()}
        self._shown_files = [
            name for name in AFFINITY if any(name in function.names for function in functions.values())
        ]

    def place(self, function: Function) -> Place:
        """Return the node and its source ("device", "bridge", "firmware", "unknown").

        If the kernel shows a file for other functions and not for this one, the file was lost. No other source replaces
        it, because the lost value may have been different.
        """
        where = f"{sysfs.PCI_DEVICES}/{function.address}/numa_node"
        bridge, blank = self._bridge(function)
        if self._lost(function, "numa_node"):
            self._note(function, "NUMA node not read", where, "lost, or not a number; other functions have one")
            return None, "unknown"
        if blank is not None:
            why = f"the numa_node of {blank}, above it, was lost or is not a number"
            self._note(function, "NUMA node not compared", where, why)
        if self._lost(function, "local_cpulist"):
            self._note(function, "NUMA node not compared", where, "its local_cpulist was lost")
        if function.numa_node is not None:
            self._doubt(function, function.numa_node, bridge)
            return function.numa_node, "device"
        if blank is not None:
            return None, "unknown"
        if bridge is not None and bridge.numa_node is not None:
            self._doubt(function, bridge.numa_node, None)
            return bridge.numa_node, "bridge"
        node = self.near(function).node
        return (None, "unknown") if node is None else (node, "firmware")

    def _lost(self, function: Function, name: str) -> bool:
        """Return whether a file of AFFINITY has no value for this function although other functions have the file."""
        return name in self._shown_files and (name in function.unread or name not in function.names)

    def _note(self, function: Function, what: str, where: str, why: str) -> None:
        """Add a problem, if the NUMA node of this function matters."""
        if function.matters:
            self._reader.problem(what, where, why)

    def _bridge(self, function: Function) -> tuple[Function | None, str | None]:
        """Return the nearest function above with a known node; the address of a nearer one that lost its node."""
        for address in function.above:
            above = self._functions.get(address)
            if above is not None and self._lost(above, "numa_node"):
                return None, address
            if above is not None and above.numa_node is not None:
                return above, None
        return None, None

    def near(self, function: Function) -> LocalCpuList:
        """Return the function's local CPUs."""
        text = function.local_cpus
        if text not in self._near:
            self._near[text] = self._locate(text or "", function.path)
        return self._near[text]

    def _locate(self, text: str, path: str) -> LocalCpuList:
        try:
            cpus = parsed(self._reader, text)
        except ValueError:
            self._reader.problem("not a CPU list", f"{path}/local_cpulist", f"reads {text[:40]!r}")
            return LocalCpuList()
        known = cpus & self._all
        nodes = [node for node, on_node in self._cpus.items() if not on_node.isdisjoint(known)]
        node = nodes[0] if len(nodes) == 1 and known != self._all else None
        return LocalCpuList(plain(text, cpus) or None, known, node)

    def _doubt(self, function: Function, node: int, bridge: Function | None) -> None:
        """Report what contradicts the chosen node."""
        where = f"{sysfs.PCI_DEVICES}/{function.address}/numa_node"
        if self._cpus and node not in self._cpus:
            self._reader.problem("NUMA node does not exist", where, f"says {node}; taken as it is")
        if bridge is not None and bridge.numa_node != node:
            self._reader.problem(
                "NUMA node contradicts the bridge above",
                where,
                f"says {node}, bridge {bridge.address} says {bridge.numa_node}; the device's own was taken",
            )
        near, on_node = self.near(function), self._cpus.get(node)
        if on_node and near.cpus and near.cpus.isdisjoint(on_node):
            place = "several nodes" if near.node is None else f"node {near.node}"
            self._reader.problem(
                "NUMA node contradicts the local CPU list",
                where,
                f"node {node} was taken, but local_cpulist {function.local_cpus} lies on {place}",
            )
