"""Which GPUs of a guest may exchange data over PCIe, for a maker whose driver has to be told in a guest.

Pure. In a guest such a driver allows peer-to-peer only between GPUs of one clique (`Inside.cliques`). A GPU sends the
guest's addresses, which mean nothing to a switch: only where ACS sends each request up to the IOMMU does it reach its
peer and nothing else (PCIe 5.0, 6.12.1.1). The kernel's IOMMU groups show that: it puts two devices into one group
unless each bridge between them redirects (drivers/iommu/iommu.c, REQ_ACS_FLAGS). Only a root complex of its own is
known to route between its ports (Linux drivers/pci/p2pdma.c, REQ_SAME_HOST_BRIDGE).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from hosttune.gpu import vendor_of
from hosttune.gpu.boards import fabric_gpus
from hosttune.model.host import Host
from hosttune.model.pcitree import host_bridge
from hosttune.model.values import address_key, grouped

UNKNOWN = "their IOMMU groups are unknown"
MOST = 16  # the clique is a number of four bits (QEMU hw/vfio/pci-quirks.c)


def clique_gpus(host: Host, addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the whole GPUs among these that need a clique: those that links join with all others need none."""
    gpus = [host.index.gpus[at] for at in sorted(host.index.gpus.keys() & {*addresses}, key=address_key)]
    fabric = {gpu.address for gpu in fabric_gpus(host)}
    found = []
    for gpu in gpus:
        vendor, function = vendor_of(gpu.vendor), host.index.pci.get(gpu.address)
        whole = function is not None and function.physfn is None and gpu.address not in fabric
        others = {other.address for other in gpus if other != gpu}
        if whole and vendor is not None and vendor.inside.cliques and others - _linked(host, gpu.address):
            found.append(gpu.address)
    return tuple(found)


def _linked(host: Host, address: str) -> set[str]:
    """Return the GPUs that links of their own join with one, as far as its driver has told."""
    return {peer.address for peer in host.index.gpus[address].peers or () if peer.kind != "pcie"}


def cliques(host: Host, addresses: Iterable[str]) -> dict[str, int]:
    """Return the clique of each GPU that has a peer among these."""
    sets: list[list[str]] = []
    for address in clique_gpus(host, addresses):
        own = next((one for one in sets if all(barred(host, address, other) is None for other in one)), None)
        if own is None:
            sets.append([address])
        else:
            own.append(address)
    several = [one for one in sets if len(one) > 1][:MOST]
    return {address: number for number, one in enumerate(several) for address in one}


def barred(host: Host, one: str, other: str) -> str | None:
    """Return why two GPUs of a guest must not exchange data over PCIe; None if they may."""
    index = host.index
    if host_bridge(index, one) != host_bridge(index, other):
        return "below different host bridges"
    if any(argument.startswith("pcie_acs_override") for argument in host.kernel_args or ()):
        return "pcie_acs_override hides which IOMMU groups they are in"
    groups = [index.pci[address].iommu_group for address in (one, other)]
    if None in groups:
        return UNKNOWN
    if groups[0] == groups[1]:
        return "in one IOMMU group, so that a switch may take the guest's addresses for its own"
    apart = {*index.above(one)} ^ {*index.above(other)}
    for port in (index.pci[address] for address in sorted(apart) if address in index.pci):
        if port.acs is not None and "ReqRedir" in port.acs.capable and "ReqRedir" not in port.acs.enabled:
            return f"port {port.address} does not redirect requests (ACS ReqRedir is off)"
    return None


def apart(host: Host, addresses: Iterable[str], written: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield the pairs that no links and no clique join, with the reason; "" where a clique could join them."""
    for one, other in combinations(clique_gpus(host, addresses), 2):
        if other not in _linked(host, one) and (one not in written or written[one] != written.get(other)):
            yield one, other, barred(host, one, other) or ""


def wrong(host: Host, addresses: Iterable[str], written: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield the pairs of one clique that must not exchange data, with the reason."""
    for one, other in combinations(clique_gpus(host, addresses), 2):
        if one in written and written[one] == written.get(other) and (why := barred(host, one, other)):
            yield one, other, why


def in_words(pairs: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield one text for all pairs of the same reason."""
    for why, same in grouped((why, f"{one} and {other}") for one, other, why in pairs).items():
        more = f", and {len(same) - 1} more such pair{'s' * (len(same) > 2)}" if len(same) > 1 else ""
        yield f"{same[0]}{more}{why and f': {why}'}"
