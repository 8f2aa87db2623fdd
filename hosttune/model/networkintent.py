"""What an operator declares of the network between hosts, for `hosttune validate` to compare with each port."""

from __future__ import annotations

from typing import Literal

from hosttune.errors import BadInput
from hosttune.model.limits import check_count
from hosttune.model.values import Part, parse_address

RDMA_MTUS = (256, 512, 1024, 2048, 4096)  # enum ibv_mtu (rdma-core, verbs.h)
_MTU = (1280, 65535)  # the least that IPv6 allows (RFC 8200, 5); the most of an Ethernet interface in Linux
_PRIORITIES = range(8)  # IEEE 802.1Q


class Roce(Part, frozen=True, kw_only=True):
    """What must hold at each RoCE port. None: not declared, so not compared."""

    nics: tuple[str, ...] | None = None
    """PCI addresses of the NICs that it is about; left out: every NIC with a RoCE port."""
    mtu: int | None = None
    """MTU of the interface, in bytes."""
    rdma_mtu: int | None = None
    """Active MTU of the RDMA port: 256, 512, 1024, 2048 or 4096."""
    trust: Literal["dscp", "pcp"] | None = None
    """From what a packet's priority is taken."""
    pfc: tuple[int, ...] | None = None
    """Exactly these priorities have priority flow control."""
    ecn: tuple[int, ...] | None = None
    """Congestion control (DCQCN) is on for these priorities, at both of its ends."""
    traffic_class: int | None = None
    """Of RDMA packets: DSCP × 4 + ECN bits."""

    @property
    def addresses(self) -> tuple[str, ...] | None:
        """The addresses of `nics` in the kernel's spelling."""
        return None if self.nics is None else tuple(parse_address(nic, where="fabric.roce.nics") for nic in self.nics)


class NetworkIntent(Part, frozen=True, kw_only=True):
    """The network between hosts."""

    roce: Roce | None = None
    """What must hold at RoCE ports; left out: nothing is compared."""


def check_fabric(fabric: NetworkIntent | None, at: str) -> None:
    """Refuse values that no port can have. Raises BadInput with the path."""
    roce = fabric.roce if fabric is not None else None
    if roce is None:
        return
    at = f"{at}.roce"
    check_count(len(roce.nics or ()), "nics", f"{at}.nics")
    seen: set[str] = set()
    for n, address in enumerate(roce.nics or ()):
        canonical = parse_address(address, where=f"{at}.nics[{n}]")
        if canonical in seen:
            raise BadInput(f"{address} is named twice", where=f"{at}.nics[{n}]", hint="name each NIC once")
        seen.add(canonical)
    if roce.nics == ():
        raise BadInput("no NIC is named", where=f"{at}.nics", hint="name the NICs, or leave it out for every RoCE port")
    if roce.mtu is not None and not _MTU[0] <= roce.mtu <= _MTU[1]:
        raise BadInput(f"{roce.mtu} is no MTU", where=f"{at}.mtu", hint=f"write a number from {_MTU[0]} to {_MTU[1]}")
    if roce.rdma_mtu is not None and roce.rdma_mtu not in RDMA_MTUS:
        hint = f"write {', '.join(map(str, RDMA_MTUS[:-1]))} or {RDMA_MTUS[-1]}"
        raise BadInput(f"{roce.rdma_mtu} is no MTU of RDMA", where=f"{at}.rdma_mtu", hint=hint)
    for key in ("pfc", "ecn"):
        numbers: tuple[int, ...] = getattr(roce, key) or ()
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(_PRIORITIES):
            raise BadInput(
                f"{list(numbers)} are not priorities", where=f"{at}.{key}", hint="list numbers from 0 to 7, each once"
            )
    if roce.traffic_class is not None and not 0 <= roce.traffic_class <= 255:
        hint = "write a number from 0 to 255: DSCP times 4, plus 2 for ECN"
        raise BadInput(f"{roce.traffic_class} is no traffic class", where=f"{at}.traffic_class", hint=hint)
