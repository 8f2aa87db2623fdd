"""Check of rails: each GPU has a NIC with RDMA below its own PCIe switch, where the host is wired so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hosttune.gpu import VENDORS
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.pci import for_vfio
from hosttune.model.pcitree import shared_switch
from hosttune.rules.checks.facts import LIST_PCI, RECORD, listed, unlisted
from hosttune.rules.checks.nics import IB, PhysicalFunction, nics
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_MOST = 256  # NICs that are compared with each GPU
_OWN_PORTS = frozenset(vendor.name for vendor in VENDORS if vendor.ports is not None)


class _Rail(NamedTuple):
    """A GPU and the NICs with RDMA below its switch. `wired`: another GPU of its model has one, or it has.

    `doubtful`: NICs of which it is not known whether they have RDMA, or where they are.
    """

    gpu: Gpu
    near: list[PhysicalFunction]
    doubtful: list[str]
    wired: bool


def _rails(evidence: Evidence) -> Iterator[tuple[str, _Rail]]:
    """Yield each GPU of the PCI tree with its rail. A NIC for guests may have RDMA: its guest sees."""
    index = evidence.host.index
    cards = [nic for _, nic in nics(evidence) if not nic.nic.fabric_bridge][:_MOST]
    having = [nic for nic in cards if nic.nic.rdma or nic.nic.kind == IB or for_vfio(nic.device.driver)]
    without = [nic for nic in cards if nic.rdma_devices == frozenset() and (nic.free or nic.device.driver is not None)]
    doubtful = [nic.address for nic in cards if nic not in having and nic not in without]
    doubtful += [nic.address for nic in having if not _is_placed(evidence, nic.address)]
    near = {
        gpu.address: [nic for nic in having if shared_switch(index, gpu.address, nic.address)]
        for gpu in index.accelerators
    }
    wired = {index.ids(address) for address, cards in near.items() if cards}
    for gpu in index.accelerators:
        yield gpu.address, _Rail(gpu, near[gpu.address], doubtful, index.ids(gpu.address) in wired)


def _is_placed(evidence: Evidence, address: str) -> bool:
    """Return whether a NIC and all bridges above it are in the PCI tree."""
    index = evidence.host.index
    return address in index.pci and len(index.bridges(address)) == len(index.above(address))


@check(
    "gpu-rail",
    title="Each GPU has the NIC of its rail below its switch",
    about="each GPU of a known maker, on a host",
    why="traffic to a NIC below another switch crosses the root complex, which costs bandwidth",
    source="PCI Express Base 5.0, 1.3 (switches); NVIDIA/nccl, src/graph/topo.cc (PIX, PXB before PHB and SYS)",
    expected="a NIC with RDMA below its own PCIe switch",
    reads=f"{sysfs.PCI_DEVICES}/*/config (PCI Express port types), /sys/class/infiniband",
    each=_rails,
    none="GPU",
    of_tree=True,
)
def gpu_rail(on: On, rail: _Rail) -> Finding:
    """Check which NICs share a GPU's switch; before one is missed, all of them and all bridges have to be known."""
    if on.host.hypervisor:
        on.skip("this machine is a guest: guest-tree compares its ports with the plan")
    if rail.gpu.vendor in _OWN_PORTS:
        on.skip("it carries the ports to other hosts itself")
    if rail.near:
        names = [f"{nic.address} ({nic.nic.rdma})" if nic.nic.rdma else nic.address for nic in rail.near]
        return on.passed(listed(names, 4))
    if why := unlisted(on.evidence):
        on.give_up(f"whether there is one is not known: {why}", LIST_PCI)
    lost = [seen.address for source in on.host.sources or () for seen in source.beyond if seen.kind == "nic"]
    if lost:
        on.give_up(f"where {listed(lost, 3)} is, which the PCI tree does not show, is not known", LIST_PCI)
    bridges, index = on.host.index.bridges(on.subject), on.host.index
    if len(bridges) < len(index.above(on.subject)) or any(bridge.port_type is None for bridge in bridges):
        on.give_up("which of the bridges above it are switches was not read", "run hosttune validate as root")
    if rail.doubtful:
        on.give_up(f"whether {listed(rail.doubtful, 3)} has RDMA, or where it is, was not read", RECORD)
    if not rail.wired:
        on.skip("no GPU of its model here shares a PCIe switch with a NIC that has RDMA")
    hint = "compare with the board's manual: a NIC may be missing, in another slot, or without its RDMA driver"
    below = bridges[-1].address if bridges else "its root bus"
    return on.warned(f"none below {below}, and another GPU of its model has one", hint)
