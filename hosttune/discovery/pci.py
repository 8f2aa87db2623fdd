"""The PCI tree of a host: every function with its bridge, NUMA node, link on both ends, IOMMU group, BARs and limits.

Second step of discovery, after the NUMA nodes: System → `read_pci` → Host.pci. `pci_function` reads, `pciconfig`
decodes, `pci_nodes` finds NUMA nodes, `pci_link` judges links, `pci_names` finds names; this module puts the functions
together. It writes nothing and wakes no sleeping device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hosttune.discovery import pci_names
from hosttune.discovery.pci_function import Bars, Function, not_read, read_function, read_irqs
from hosttune.discovery.pci_link import Links
from hosttune.discovery.pci_nodes import NodeFinder
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.host import Link, NumaNode, PciDevice
from hosttune.model.limits import check_count
from hosttune.model.values import MAX_ID, is_address, slot_of

DEVICES = sysfs.PCI_DEVICES
GROUPS = sysfs.IOMMU_GROUPS


def read_pci(
    reader: Reader, nodes: tuple[NumaNode, ...], *, fallback_ids: Callable[[], bytes | None] | None = None
) -> tuple[PciDevice, ...]:
    """Return every PCI function, sorted by address (a domain of more than four digits after the others).

    `nodes` are the host's NUMA nodes with their CPUs; they are needed for functions whose node follows from a list of
    local CPUs. Names come from the pci.ids of the same system. Only if it has none, `fallback_ids` is called for
    another one (`pci_names.load`). What cannot be read or contradicts itself becomes a problem of the reader.
    """
    functions = _read_functions(reader)
    home = NodeFinder(reader, nodes, functions)
    judge = Links(functions)
    links = {address: judge.of(function) for address, function in functions.items()}
    _report_degraded_links(reader, functions, links)
    for address, function in functions.items():
        if function.gone:
            why = "its ids or its configuration space read all ones: it is off the bus, or the link above it is down"
            reader.problem("PCI function does not answer", f"{DEVICES}/{address}", why)
    names = _read_names(reader, functions, fallback_ids)
    groups = _Groups(reader, functions)
    return tuple(
        PciDevice(
            **_identity(function, names),
            **_affinity(home, function),
            **groups.of(function),
            **_functions_of(reader, function),
            **_power(reader, function),
            **_config(function),
            link=links[function.address],
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
        folder, _, own = path.rpartition("/")
        if folder not in bridges:
            bridges[folder] = tuple(reversed(sysfs.functions_in(folder)))
        above = bridges[folder]
        # A function below a host bridge of its own ("pci10000:00", made by Intel VMD) is on a root bus, although its
        # path goes through the VMD device. The path still shows where the domain is attached.
        parent = above[0] if above and folder.endswith(f"/{above[0]}") else None
        if own != address:
            why = f"its link leads to {path}, the folder of another function"
            reader.problem("PCI function contradicts itself", f"{DEVICES}/{address}", why)
            functions[address] = not_read(address, why)
        else:
            functions[address] = read_function(reader, address, path, above, parent, bars)
    for address, function in functions.items():
        if function.physfn is not None and not _is_virtual(reader, function, functions.get(function.physfn)):
            why = f"its physfn leads to {function.physfn}, which has no such virtual function"
            reader.problem("PCI function contradicts itself", f"{DEVICES}/{address}/physfn", why)
            again = read_function(reader, address, function.path, function.above, function.parent, bars, physical=True)
            functions[address] = msgspec.structs.replace(again, contradicted=why)
    for address, function in functions.items():
        if function.matters and (misplaced := _misplaced(function, functions.get(function.parent or ""))):
            reader.problem("PCI function contradicts itself", f"{DEVICES}/{address}", misplaced)
            functions[address] = msgspec.structs.replace(function, contradicted=function.contradicted or misplaced)
    return functions


def _misplaced(function: Function, above: Function | None) -> str | None:
    """Return why a function cannot be below the bridge whose folder it is in; None if nothing contradicts it.

    A bridge forwards only what is for its own buses, so a function below it cannot be on another bus. A bridge that has
    no bus numbers yet (firmware or the kernel assigns them) proves nothing.
    """
    if above is None or above.config.buses is None or 0 in above.config.buses:
        return None
    first, last = above.config.buses
    domain, bus, _ = function.address.split(":")
    if above.address.startswith(f"{domain}:") and first <= int(bus, 16) <= last:
        return None
    return f"its folder is below {above.address}, which leads to buses {first:02x} to {last:02x} alone"


def _is_virtual(reader: Reader, function: Function, physical: Function | None) -> bool:
    """Return whether `function` really is a virtual function of `physical`, as its link says.

    It is one if `physical` has a link to it. It is also one if `physical` has virtual functions and this function has
    no ids in its header, which only virtual functions lack (PCI Express base specification, SR-IOV: Vendor ID and
    Device ID of a VF read FFFFh). If a capture has neither links nor numbers nor configuration space, it is enough that
    there are no ids in the header.
    """
    if physical is None or physical.address == function.address:
        return False
    if function.address in _virtfns(reader, physical):
        return True
    sriov = physical.config.sriov
    count = reader.count(f"{physical.path}/sriov_numvfs") if "sriov_numvfs" in physical.names else None
    if count is None and sriov is not None:
        count = sriov.vfs if sriov.enabled else 0
    if count is None and not physical.config.capabilities:
        return function.config.vendor_id is None
    return bool(count) and function.config.vendor_id is None


def _report_degraded_links(reader: Reader, functions: Mapping[str, Function], links: Mapping[str, Link | None]) -> None:
    """Add one problem for each degraded link, at the first function of its lower end and not at the port above."""
    reported: set[tuple[str, str]] = set()
    for address, link in links.items():
        if link is None or link.state != "degraded" or link.upstream is None or functions[address].physfn is not None:
            continue
        ends = (link.upstream.address, slot_of(address))
        if ends not in reported:
            reported.add(ends)
            reader.problem("degraded PCIe link", f"{DEVICES}/{address}", link.why or "")


def _read_names(
    reader: Reader, functions: Mapping[str, Function], fallback_ids: Callable[[], bytes | None] | None
) -> dict[tuple[str, str], pci_names.Names]:
    ids = {(f.vendor, f.device) for f in functions.values() if f.vendor and f.device}
    data = pci_names.load(reader.system) if ids else None
    if data is None and ids and fallback_ids is not None:
        data = fallback_ids()
    return pci_names.lookup(data, ids)


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
        "contradicted": function.contradicted,
    }


def _affinity(home: NodeFinder, function: Function) -> dict[str, Any]:
    node, source = home.place(function)
    return {"numa_node": node, "numa_source": source, "local_cpus": home.near(function).text}


class _Groups:
    """Finds each function's IOMMU group from its own link, and compares it with the group's folder of devices.

    A capture may lack the folder. If the two differ, the group of the function is unknown, and so is the group of all
    members of both groups, because it is unknown which functions share it with them.
    """

    def __init__(self, reader: Reader, functions: Mapping[str, Function]) -> None:
        self._reader = reader
        self._facts: dict[str, dict[str, Any]] = {}
        self._members = {name: frozenset(reader.names(f"{GROUPS}/{name}/devices")) for name in reader.names(GROUPS)}
        self._listed: dict[str, str] = {}
        self._doubtful: set[str] = set()
        for name, found in self._members.items():
            for address in found & self._listed.keys():
                self._doubtful.update((name, self._listed[address]))
            self._listed.update(dict.fromkeys(found, name))
        links = {address: self._link(function) for address, function in functions.items()}
        self._links = {address: name for address, name in links.items() if name is not None}
        contradicted = {address for address, name in self._links.items() if self._why_not(address, name) is not None}
        self._doubtful.update(name for address, name in self._listed.items() if address in contradicted)
        self._doubtful.update(self._links[address] for address in contradicted)

    def of(self, function: Function) -> dict[str, Any]:
        """Return the IOMMU group, the type of its default domain and the regions that its devices must keep.

        If the link was not recorded, the folder decides.
        """
        address, where = function.address, f"{function.path}/iommu_group"
        name = self._links.get(address)
        if name is None and ("iommu_group" in function.names or address not in self._listed):
            return {}
        name = name or self._listed[address]
        why = self._why_not(address, name)
        if why is None and name in self._doubtful:
            why = f"leads to group {name}, and two sources disagree on what else is in that group"
        if why is not None:
            self._reader.problem("IOMMU groups disagree", where, why)
            return {}
        if name not in self._facts:
            # A group's reserved regions of type "direct", as start-end (ABI/testing/sysfs-kernel-iommu_groups). The
            # kernel writes "start end type" for each region; "direct-relaxable" is another type. No group is without a
            # region: that of interrupts is in each.
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
        if "iommu_group" not in function.names:
            return None
        name = self._reader.link_name(f"{function.path}/iommu_group")
        if name is None or number(name, MAX_ID) is None:
            self._reader.problem("no IOMMU group number", f"{function.path}/iommu_group", f"leads to {name!r}")
            return None
        return name

    def _why_not(self, address: str, name: str) -> str | None:
        """Return why the function cannot be in this group; None if nothing contradicts it."""
        if self._members and name not in self._members:
            return f"leads to group {name}, which is not in {GROUPS}"
        if self._listed.get(address, name) != name:
            return f"leads to group {name}, and the folder of devices of group {self._listed[address]} names it"
        # The kernel keeps no group without members. So an empty folder among recorded folders has lost its entries.
        if self._listed and address not in self._members.get(name, ()):
            return f"leads to group {name}, whose folder of devices does not name it"
        return None


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
    if sriov is not None:
        total = sriov.total_vfs if total is None else total
        count = (sriov.vfs if sriov.enabled else 0) if count is None else count
    return {"virtfns": _virtfns(reader, function), "sriov_total_vfs": total, "sriov_vfs": count}


def _virtfns(reader: Reader, function: Function) -> tuple[str, ...]:
    numbers = (number(name[6:], MAX_ID) for name in function.names if name.startswith("virtfn"))
    sorted_numbers = sorted(count for count in numbers if count is not None)
    links = (reader.link_name(f"{function.path}/virtfn{count}") for count in sorted_numbers)
    return tuple(link for link in links if link is not None and is_address(link))


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
    }
