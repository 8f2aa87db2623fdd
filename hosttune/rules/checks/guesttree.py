"""Check that a guest sees what its plan says: nodes, passed functions, and GPUs as near their NICs as planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.guestplan import PLACE, UNREADABLE, ExpectedCell, ExpectedDevice, ExpectedPair
from hosttune.model.host import Host, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.pcitree import grade
from hosttune.model.validation import CheckResult
from hosttune.model.values import format_size, parse_cpus
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.facts import HOST

_ID = "guest-topology"
_AGAIN = "shut the guest down, apply its plan again on the host (hosttune apply) and start it"
# What firmware and kernel take from a node's memory before they count it: 64 of every 4096 bytes for struct page (Linux
# Documentation/mm/vmemmap_dedup.rst), and fixed amounts for each, for example for the crash kernel.
_LEAST_SHARE = 0.95
_FIXED_BYTES = 1 << 30
_SAME_NODE = ("PHB", "NODE")  # a guest has one host bridge per node, the host may have several


def guest_topology(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result per node, per passed function, and per pair of GPU and NIC that the guest's plan names."""
    plan = evidence.guest_plan
    if plan is None:
        broken = next((problem for problem in evidence.problems if problem.what == UNREADABLE), None)
        if broken is not None:
            hint = "write the guest's seed or bundle again (hosttune apply on its host) and install it"
            yield unknown(_ID, HOST, expected="what its plan says", why=broken.why, hint=hint, source=PLACE)
        else:
            yield skipped(_ID, HOST, f"no plan of a guest is here: a planned guest's seed or bundle brings {PLACE}")
        return
    host = evidence.host
    index = host.index
    for cell in plan.cells:
        yield _node(host, cell)
    for device in plan.devices:
        yield _device(index.pci, device)
    for pair in plan.pairs:
        yield _pair(index, pair)


def _node(host: Host, cell: ExpectedCell) -> CheckResult:
    subject = f"node {cell.id}"
    source = f"{sysfs.NODES}/node{cell.id}"
    expected = f"CPUs {cell.cpus}, {format_size(cell.memory_bytes)}"
    found = next((node for node in host.numa_nodes if node.id == cell.id), None)
    if found is None and not host.numa_nodes:
        why, hint = "which NUMA nodes there are is unknown", "start a kernel that has CONFIG_NUMA, without numa=off"
        return unknown(_ID, subject, expected=expected, why=why, hint=hint, source=source)
    if found is None:
        return failed(_ID, subject, expected=expected, actual="no such node", source=source, hint=_AGAIN)
    if found.cpus is None or found.memory_bytes is None:
        why, hint = "its CPUs or its memory could not be read", f"read {source}/cpulist and {source}/meminfo"
        return unknown(_ID, subject, expected=expected, why=why, hint=hint, source=source)
    actual = f"CPUs {found.cpus}, {format_size(found.memory_bytes)}"
    least = cell.memory_bytes * _LEAST_SHARE - _FIXED_BYTES
    same = parse_cpus(found.cpus) == parse_cpus(cell.cpus) and least <= found.memory_bytes <= cell.memory_bytes
    if same:
        return passed(_ID, subject, expected=expected, actual=actual, source=source)
    return failed(_ID, subject, expected=expected, actual=actual, source=source, hint=_AGAIN)


def _device(functions: Mapping[str, PciDevice], device: ExpectedDevice) -> CheckResult:
    source = sysfs.function(device.address)
    expected = _named(device.kind, device.ids, device.node)
    found = functions.get(device.address)
    if found is None and not functions:
        why, hint = "no PCI function could be read", "read /sys/bus/pci/devices"
        return unknown(_ID, device.address, expected=expected, why=why, hint=hint, source=source)
    if found is None:
        return failed(_ID, device.address, expected=expected, actual="nothing there", source=source, hint=_AGAIN)
    actual = _named(device.kind if found.ids == device.ids else "a device", found.ids, found.numa_node)
    if device.ids is not None and found.ids is None:
        hint = f"read {source}/vendor and {source}/device"
        return unknown(_ID, device.address, expected=expected, why="its ids are unknown", hint=hint, source=source)
    if device.ids not in (None, found.ids) or device.node not in (None, found.numa_node):
        return failed(_ID, device.address, expected=expected, actual=actual, source=source, hint=_AGAIN)
    return passed(_ID, device.address, expected=expected, actual=actual, source=source)


def _named(kind: str, ids: str | None, node: int | None) -> str:
    return f"{kind} {ids or 'of unknown ids'} {'of no node' if node is None else f'on node {node}'}"


def _pair(index: DeviceIndex, pair: ExpectedPair) -> CheckResult:
    subject = f"{pair.gpu} {pair.nic}"
    source = "/sys/devices/pci*"
    found = _grade(index, pair)
    if found is None:
        hint = "see to the two functions first; then run hosttune validate as root"
        why = "how near they are is unknown: one is not there, or its node is not known"
        return unknown(_ID, subject, expected=pair.grade, why=why, hint=hint, source=source)
    if found == pair.grade or (found in _SAME_NODE and pair.grade in _SAME_NODE):
        return passed(_ID, subject, expected=pair.grade, actual=found, source=source)
    return failed(_ID, subject, expected=pair.grade, actual=found, source=source, hint=_AGAIN)


def _grade(index: DeviceIndex, pair: ExpectedPair) -> str | None:
    ends: list[PciDevice | None] = [index.pci.get(pair.gpu), index.pci.get(pair.nic)]
    return None if None in ends else grade(index, pair.gpu, pair.nic)


CHECKS = (
    Check(
        id=_ID,
        title="A guest's own tree is its plan's",
        subjects="each node, each passed function, and each pair of a GPU and a NIC that the guest's plan names",
        why="NCCL and CUDA place their work by what the guest shows: a NIC that looks far is not used for its GPU",
        source="the guest's plan (docs/guest-topology.md); nvidia-smi topo -m, legend; Linux ABI/testing/sysfs-bus-pci",
        judge=guest_topology,
        inside=True,
    ),
)
