"""Check of rails: each GPU has a NIC with RDMA below its own PCIe switch, where the host is wired so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.gpu import VENDORS
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Nic
from hosttune.model.pcitree import shared_switch
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import LIST_PCI, RECORD, driver_unread, for_vfio, listed, unlisted

_ID = "gpu-rail"
_EXPECTED = "a NIC with RDMA below its own PCIe switch"
_SOURCE = f"{sysfs.PCI_DEVICES}/*/config (PCI Express port types), /sys/class/infiniband"
_MOST = 256  # NICs that are compared with each GPU
_OWN_PORTS = frozenset(vendor.name for vendor in VENDORS if vendor.ports is not None)


def gpu_rail(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result for each GPU: which NICs share its switch."""
    host = evidence.host
    gpus = host.index.accelerators
    nics = [nic for nic in host.nics if nic.physfn is None and not nic.fabric_bridge][:_MOST]
    sure = [nic for nic in nics if _has_rdma(evidence, nic)]
    maybe = [nic for nic in nics if nic not in sure and not _has_none(evidence, nic)]
    maybe += [nic for nic in sure if not _is_placed(evidence, nic)]
    rails = {gpu.address: _near(evidence, gpu, sure) for gpu in gpus}
    wired = {host.index.ids(gpu.address) for gpu in gpus if rails[gpu.address]}
    for gpu in gpus:
        yield _judge(evidence, gpu, rails[gpu.address], maybe, wired=host.index.ids(gpu.address) in wired)


def _has_rdma(evidence: Evidence, nic: Nic) -> bool:
    """Return whether a NIC has RDMA, or is an InfiniBand function; one for guests may have it, its guest sees."""
    device = evidence.host.index.pci.get(nic.address)
    return nic.rdma is not None or nic.kind == "infiniband" or for_vfio(device.driver if device else None)


def _has_none(evidence: Evidence, nic: Nic) -> bool:
    """Return whether it is known that a NIC has no RDMA device."""
    ports = (evidence.ports or {}).get(nic.address)
    return ports is not None and ports.rdma == () and not driver_unread(evidence, nic.address)


def _is_placed(evidence: Evidence, nic: Nic) -> bool:
    """Return whether a NIC and all bridges above it are in the PCI tree."""
    index = evidence.host.index
    return nic.address in index.pci and len(index.bridges(nic.address)) == len(index.above(nic.address))


def _near(evidence: Evidence, gpu: Gpu, nics: Iterable[Nic]) -> list[str]:
    return [nic.address for nic in nics if shared_switch(evidence.host.index, gpu.address, nic.address)]


def _judge(evidence: Evidence, gpu: Gpu, near: list[str], maybe: list[Nic], *, wired: bool) -> CheckResult:
    at, index = gpu.address, evidence.host.index
    if evidence.host.hypervisor:
        return skipped(_ID, at, "this machine is a guest: guest-tree compares its ports with the plan")
    if gpu.vendor in _OWN_PORTS:
        return skipped(_ID, at, "it carries the ports to other hosts itself")
    if near:
        names = {nic.address: nic.rdma for nic in evidence.host.nics}
        words = [f"{one} ({names[one]})" if names.get(one) else one for one in near]
        return passed(_ID, at, expected=_EXPECTED, actual=listed(words, 4), source=_SOURCE)
    for why, hint in _doubts(evidence, gpu, maybe):
        return unknown(_ID, at, expected=_EXPECTED, why=why, hint=hint, source=_SOURCE)
    if not wired:
        return skipped(_ID, at, "no GPU of its model here shares a PCIe switch with a NIC that has RDMA")
    above = index.bridges(at)
    hint = "compare with the board's manual: a NIC may be missing, in another slot, or without its RDMA driver"
    actual = f"none below {above[-1].address if above else 'its root bus'}, and another GPU of its model has one"
    return warned(_ID, at, expected=_EXPECTED, actual=actual, source=_SOURCE, hint=hint)


def _doubts(evidence: Evidence, gpu: Gpu, maybe: list[Nic]) -> Iterator[tuple[str, str]]:
    """Yield why a GPU may have such a NIC although none was found, each with what to do."""
    if (why := unlisted(evidence)) is not None:
        yield f"whether there is one is not known: {why}", LIST_PCI
    lost = [seen.address for source in evidence.host.sources or () for seen in source.beyond if seen.kind == "nic"]
    if lost:
        yield f"where {listed(lost, 3)} is, which the PCI tree does not show, is not known", LIST_PCI
    above = evidence.host.index.above(gpu.address)
    bridges = evidence.host.index.bridges(gpu.address)
    if len(bridges) < len(above) or any(bridge.port_type is None for bridge in bridges):
        yield "which of the bridges above it are switches was not read", "run hosttune validate as root"
    unread = [nic.address for nic in maybe]
    if unread:
        yield f"whether {listed(unread, 3)} has RDMA, or where it is, was not read", RECORD


CHECKS: tuple[Check, ...] = (
    Check(
        _ID,
        "Each GPU has the NIC of its rail below its switch",
        "each GPU of a known maker, on a host",
        "traffic between a GPU and a NIC below another switch crosses the root complex, which costs bandwidth",
        "PCI Express Base 5.0, 1.3 (switches); NVIDIA/nccl, src/graph/topo.cc (PIX, PXB before PHB and SYS)",
        gpu_rail,
        none="GPU",
        of_tree=True,
    ),
)
