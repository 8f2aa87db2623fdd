"""A host on which the shapes of `domain_shapes` are right, and what the critic finds in an edited guest there."""

from __future__ import annotations

from domain_shapes import GIB, SHAPES, changed, plan_of
from xmledits import Edit, with_edits

from hosttune.domain.writer import domain_xml
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, Host, HugePages, NumaNode, PciDevice
from hosttune.model.lint import LintFinding
from hosttune.model.plan import PlannedGuest
from hosttune.rules.lint import LintedDefinition, lint

CORES = 100  # of each node; node n has CPUs from n * 512, siblings adjacent


def host_of(**fields: object) -> Host:
    """Two nodes of 100 cores and 2 TiB, 1 GiB pages reserved, and every device of the shapes on its node."""
    cpus = tuple(
        Cpu(id=n * 512 + i, core=n * 512 + i // 2 * 2, package=n, numa_node=n) for n in (0, 1) for i in range(2 * CORES)
    )
    nodes = tuple(
        NumaNode(
            id=n,
            memory_bytes=2048 * GIB,
            distances={"0": 10 if n == 0 else 21, "1": 21 if n == 0 else 10},
            hugepages=(HugePages(size_bytes=2 << 20, total=1 << 16), HugePages(size_bytes=GIB, total=2000)),
        )
        for n in (0, 1)
    )
    devices = {device.address: device for guest in SHAPES.values() for device in guest.devices}
    pci = tuple(
        PciDevice(address=address, class_code="030200", numa_node=device.host_node, iommu_group=n)
        for n, (address, device) in enumerate(devices.items())
    )
    gpus = tuple(Gpu(address=address, vendor="nvidia") for address, device in devices.items() if device.kind == "gpu")
    return changed(Host(cpus=cpus, numa_nodes=nodes, pci=pci, gpus=gpus), **fields)


def xml_of(guest: PlannedGuest, *edits: tuple[str, Edit]) -> str:
    """The guest's XML with some elements changed."""
    return with_edits(domain_xml(plan_of(guest), guest.name), *edits)


def criticise(host: Host, xml: str | bytes, *, where: str) -> tuple[LintFinding, ...]:
    """What is wrong with one XML on this host."""
    return lint(host, (LintedDefinition(where, xml),))


def findings(guest: PlannedGuest, *edits: tuple[str, Edit], host: Host | None = None) -> tuple[LintFinding, ...]:
    return criticise(host or host_of(), xml_of(guest, *edits), where="vm.xml")


def faults(guest: PlannedGuest, *edits: tuple[str, Edit], host: Host | None = None) -> tuple[LintFinding, ...]:
    """Without the rules that this bare host leaves unjudged, and without what only the host lacks."""
    only_host = ("host-driver", "hugetlbfs-mount")
    return tuple(one for one in findings(guest, *edits, host=host) if one.judged and one.rule not in only_host)
