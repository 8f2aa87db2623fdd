"""Check of the NUMA nodes of GPUs: the node of each is known, and it exists."""

from __future__ import annotations

from hosttune.model import sysfs
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.rules.checks.facts import lacks, only_node
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import gpus
from hosttune.rules.engine import Finding

_FROM = {"device": ", from the device itself", "bridge": ", from the bridge above", "firmware": ", from its local CPUs"}


@check(
    "numa-affinity",
    title="NUMA node of every GPU",
    about="each GPU",
    why="memory and CPUs of another node halve the bandwidth to a GPU; what is unknown cannot be placed",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node); ACPI 6.5, 5.2.16 SRAT and 6.2.14 _PXM",
    expected="its NUMA node is known",
    each=gpus,
    none="GPU",
    inside=True,
)
def numa_affinity(on: On, gpu: Gpu) -> Finding:
    host, path = on.host, sysfs.function(gpu.address, "numa_node")
    on = on.reading(path)
    if unread := _problem(host, "NUMA node not read", gpu):
        on.give_up(f"its numa_node was not read: {unread}", f"look with: cat {path}")
    device = host.index.pci.get(gpu.address)
    if device is None or device.numa_node is None:
        return _without_node(on)
    nodes = {node.id for node in host.numa_nodes}
    actual = f"node {device.numa_node}"
    if not nodes and not lacks(on.evidence, sysfs.NODES):
        hint = "look with: ls -d /sys/devices/system/node/node*"
        on.give_up(f"{actual}; which nodes this host has was not read", hint)
    if nodes and device.numa_node not in nodes:
        hint = "update the firmware, whose tables name a node that it does not describe; plan with numa: 0 until then"
        return on.failed(f"{actual}, which this host does not have", hint)
    actual += _FROM.get(device.numa_source or "", "")
    if alone := _problem(host, "NUMA node not compared", gpu):
        hint = f"look with: cat {path}; and those of the bridges above, and local_cpulist beside it"
        on.give_up(f"{actual}; {alone}", hint)
    if doubt := _problem(host, "NUMA node contradicts", gpu):
        hint = "see which is right in the board's manual, or measure it: hosttune validate --level 1"
        return on.warned(f"{actual}; but it {doubt}", hint)
    return on.passed(actual)


def _problem(host: Host, what: str, gpu: Gpu) -> str | None:
    """Return what discovery says of a GPU's node (`Problem.what` of pci); None if it has nothing to say."""
    return next(
        (problem.why for problem in host.problems if problem.what.startswith(what) and gpu.address in problem.where),
        None,
    )


def _without_node(on: On) -> Finding:
    only = only_node(on.host)
    if on.host.hypervisor is False and only is not None:
        return on.passed(f"node {only}: the only one, though the device names none")
    if on.host.hypervisor:
        hint = (
            "give the guest NUMA cells and put the GPU behind an expander bus of its cell (hosttune plan on its host"
            " does both); no setting in here shows it"
        )
        why = "the hypervisor of this machine shows no node for it"
        return on.warned(why, hint) if on.evidence.complete else on.unknown(why, hint)
    hint = (
        "enable NUMA (SRAT, ACPI _PXM) in the firmware or update it; write the node to its numa_node file only if"
        " the board's manual says it"
    )
    return on.unknown("neither the device, nor a bridge above it, nor its local CPUs name a node", hint)
