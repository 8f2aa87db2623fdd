"""Check of the NUMA nodes of GPUs: the node of each is known, and it exists."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, unknown, warned
from hosttune.rules.checks.facts import accelerators, lacks, named_nodes

_ID = "numa-affinity"
_NOT_READ, _NOT_COMPARED = "NUMA node not read", "NUMA node not compared"  # `Problem.what` of discovery (pci)
_EXPECTED = "its NUMA node is known"
_SOURCES = {
    "device": "from the device itself",
    "bridge": "from the bridge above",
    "firmware": "from its local CPUs",
}


def numa_affinity(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result per GPU of a known maker, whether or not a guest has it."""
    host = evidence.host
    gpus = accelerators(host)
    functions = host.index.pci
    for gpu in gpus:
        yield _judge(evidence, gpu, functions.get(gpu.address))


def _judge(evidence: Evidence, gpu: Gpu, device: PciDevice | None) -> CheckResult:
    host = evidence.host
    source = sysfs.function(gpu.address, "numa_node")
    node = device.numa_node if device else None
    lost = next((p for p in host.problems if p.what == _NOT_READ and gpu.address in p.where), None)
    if lost is not None:
        why = f"its numa_node was not read: {lost.why}"
        return unknown(_ID, gpu.address, expected=_EXPECTED, why=why, hint=f"look with: cat {source}", source=source)
    if device is None or node is None:
        return _without_node(host, gpu, source)
    known = {one.id for one in host.numa_nodes}
    if known and node not in known:
        hint = "update the firmware, whose tables name a node that it does not describe; plan with numa: 0 until then"
        actual = f"node {node}, which this host does not have"
        return failed(_ID, gpu.address, expected=_EXPECTED, actual=actual, source=source, hint=hint)
    if not known and not lacks(evidence, sysfs.NODES):
        why = f"node {node}; which nodes this host has was not read"
        hint = "look with: ls -d /sys/devices/system/node/node*"
        return unknown(_ID, gpu.address, expected=_EXPECTED, why=why, hint=hint, source=source)
    source_text = _SOURCES.get(device.numa_source or "")
    actual = f"node {node}{f', {source_text}' if source_text else ''}"
    alone = next((p for p in host.problems if p.what == _NOT_COMPARED and gpu.address in p.where), None)
    if alone is not None:
        hint = f"look with: cat {source}; and those of the bridges above, and local_cpulist beside it"
        why = f"{actual}; {alone.why}"
        return unknown(_ID, gpu.address, expected=_EXPECTED, why=why, hint=hint, source=source)
    doubt = next(
        (p for p in host.problems if p.what.startswith("NUMA node contradicts") and gpu.address in p.where), None
    )
    if doubt is not None:
        hint = "see which is right in the board's manual, or measure it: hosttune validate --level 1"
        return warned(
            _ID, gpu.address, expected=_EXPECTED, actual=f"{actual}; but it {doubt.why}", source=source, hint=hint
        )
    return passed(_ID, gpu.address, expected=_EXPECTED, actual=actual, source=source)


def _without_node(host: Host, gpu: Gpu, source: str) -> CheckResult:
    if host.hypervisor is False and len(host.numa_nodes) == 1 and len(named_nodes(host)) == 1:
        actual = f"node {host.numa_nodes[0].id}: the only one, though the device names none"
        return passed(_ID, gpu.address, expected=_EXPECTED, actual=actual, source=source)
    if host.hypervisor:
        hint = (
            "give the guest NUMA cells and put the GPU behind an expander bus of its cell (hosttune plan on its host"
            " does both); no setting in here shows it"
        )
        why = "the hypervisor of this machine shows no node for it"
    else:
        hint = (
            "enable NUMA (SRAT, ACPI _PXM) in the firmware or update it; write the node to its numa_node file only if"
            " the board's manual says it"
        )
        why = "neither the device, nor a bridge above it, nor its local CPUs name a node"
    return unknown(_ID, gpu.address, expected=_EXPECTED, why=why, hint=hint, source=source)


CHECKS = (
    Check(
        id=_ID,
        title="NUMA node of every GPU",
        subjects="each GPU of a known maker, given to a guest or not",
        why="memory and CPUs of another node halve the bandwidth to a GPU; what is unknown cannot be placed",
        source="Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node); ACPI 6.5, 5.2.16 SRAT and 6.2.14 _PXM",
        judge=numa_affinity,
        none="GPU",
        inside=True,
    ),
)
