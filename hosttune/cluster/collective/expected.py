"""A group of hosts → what `hosttune.predicting` says of it. Pure.

The shape is that of the first host: hosts of other shapes are in no group. Where no host has RDMA, or a variable turns
it off, the library goes over TCP, and the prediction is that of TCP over the port where the hosts meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hosttune.gpu import generation_of
from hosttune.model.collective import Device, Kind, Member, Wiring
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.shape import HostShape

_OFF = {"NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("socket",)}


class Machines(msgspec.Struct, frozen=True):
    """The hosts of a run as the prediction needs them: `ranks` on each, and how they reach each other.

    `tcp`: not over RDMA. `rate_gbps`: of the port where they meet, the lowest; None: unknown.
    """

    wiring: Wiring | None
    ranks: int
    device: Device
    tcp: bool
    rate_gbps: float | None


def machines(members: Sequence[Member], ranks: int, device: Device) -> Machines:
    """Return the machines of these hosts. Where they differ, only what they have in common is known."""
    wirings = [member.wiring for member in members]
    alike = bool(wirings) and all(one == wirings[0] for one in wirings)
    rates = [member.place.rate_gbps if member.place is not None else None for member in members]
    known = [rate for rate in rates if rate is not None]
    least = min(known) if known and len(known) == len(rates) else None
    tcp = all(member.rdma is False or _switched_off(member.environment) for member in members)
    return Machines(wirings[0] if alike else None, ranks, device, tcp, least)


def _switched_off(variables: Mapping[str, str]) -> bool:
    return any(variables.get(name, "").strip().lower() in values for name, values in _OFF.items())


def expected(of: Machines, kind: Kind, hosts: int, size_bytes: int) -> Estimate | None:
    """Return bound and typical bus bandwidth in GB/s of one operation over so many hosts; None without a model."""
    wiring = of.wiring
    if wiring is None or of.device == "cpu" or wiring.gpu is None:
        return None
    tcp = hosts > 1 and of.tcp
    ports, rate = wiring.nics, wiring.nic_gb_per_s
    if wiring.per_host and of.ranks != wiring.per_host:  # the ports of the GPUs that take part
        ports = ports * of.ranks // wiring.per_host if ports and ports * of.ranks % wiring.per_host == 0 else None
    if tcp:
        ports, rate = 1, of.rate_gbps / 8 if of.rate_gbps else None
    shape = HostShape(
        gpu=wiring.gpu,
        generation=generation_of(wiring.gpu),
        peaks=dict(wiring.peaks),
        slot=wiring.slot,
        links=wiring.links,
        switched=wiring.switched,
        per_host=of.ranks,
        hosts=hosts,
        nics=ports,
        nic_gb_per_s=rate,
        cpu=wiring.cpu,
        virtual=wiring.virtual,
    )
    return estimate(Question(f"{kind}-busbw", of.ranks * hosts, hosts, size_bytes, tcp=tcp), shape)
