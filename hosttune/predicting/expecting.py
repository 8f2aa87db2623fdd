"""The few figures of a plan that matter: what a guest with GPUs can reach, and what a worse placement would lose. Pure.

All of them are `predict`'s; devices that are alike share a row. What no source tells is None, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from hosttune.bench.baselines import Standard, pair_links, shipped
from hosttune.domain.defined import as_planned
from hosttune.inventory.pcielink import narrowest, uplinks
from hosttune.model.host import Host
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.prediction import Expectation, PredictedFigure, WorsePlacement
from hosttune.model.values import CpuSet
from hosttune.predicting import formulas
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.pairs import pair_estimate
from hosttune.predicting.predict import Scope, predict
from hosttune.predicting.shape import of_host

_COPIES = ("h2d", "d2h")
_SIZE = "1 GiB"  # of the all-reduce: large enough for the bandwidth, as gradients are


def with_expectations(plan: Plan, host: Host, standard: Standard | None = None) -> Plan:
    """Return the plan with what its guests with whole GPUs can expect. `host`: the one that it was made for."""
    expectations = []
    for guest in plan.guests:
        parts = {assignment.gpu for assignment in guest.mig}
        known = {gpu.address for gpu in host.index.accelerators}
        gpus = [device.address for device in guest.devices if device.address in known and device.address not in parts]
        if gpus:
            standard = standard or shipped()
            figures, worse = _figures(host, guest, gpus, standard), _worse(host, guest, gpus, standard)
            expectations.append(Expectation(guest=guest.name, figures=tuple(figures), worse=tuple(worse)))
    return msgspec.structs.replace(plan, expected=tuple(expectations))


def scope_of(guest: PlannedGuest, hosts: int = 1) -> Scope:
    """Return what a planned guest has: its devices, and the host nodes of its cells."""
    nodes = {node for cell in guest.cells for node in CpuSet.parse(cell.host_nodes)}
    cliques = dict(as_planned(guest).cliques)
    return Scope(guest.name, tuple(device.address for device in guest.devices), hosts, nodes=nodes, cliques=cliques)


def _figures(host: Host, guest: PlannedGuest, gpus: Sequence[str], standard: Standard) -> Iterator[PredictedFigure]:
    rows = predict(host, scope_of(guest), standard).figures
    near = [figure for figure in rows if figure.metric in _COPIES and figure.subject.endswith("near node")]
    above = Counter(hop.end.address for gpu in gpus for hop in uplinks(host.index, gpu))
    most = max(above.values(), default=1)
    where = f"near node, alone: up to {most} share an uplink" if most > 1 else "near node"
    for metric in _COPIES:
        yield from _alike([figure for figure in near if figure.metric == metric], "GPUs", where)
    yield from _alike([figure for figure in rows if figure.metric == "p2p"], "pairs of GPUs")
    largest = f"{len(gpus)} GPUs, {_SIZE}"
    yield from (figure for figure in rows if figure.metric == "all-reduce-busbw" and figure.subject == largest)
    yield from _alike([figure for figure in rows if figure.metric == "memory-copy"], "pairs of nodes")


def _alike(rows: Sequence[PredictedFigure], noun: str, where: str = "") -> Iterator[PredictedFigure]:
    """Yield one row for all that have the same bound, typical figure and reasons."""
    groups: dict[tuple[object, ...], list[PredictedFigure]] = {}
    for figure in rows:
        groups.setdefault((figure.bound, figure.typical, figure.because), []).append(figure)
    for same in groups.values():
        words = f"each of {len(same)} {noun}" + (f", {where}" if where else "")
        yield msgspec.structs.replace(same[0], subject=words) if len(same) > 1 else same[0]


# --- worse placements ------------------------------------------------------------------------------------------


def _worse(host: Host, guest: PlannedGuest, gpus: Sequence[str], standard: Standard) -> Iterator[WorsePlacement]:
    """Yield what would be lost on another node, by NICs of another socket, and by GPUs that fewer links join."""
    if sum(1 for node in host.numa_nodes if node.cpus) > 1:
        shape = replace(of_host(host, gpus, standard), slot=narrowest(host.index, gpus, now=True))
        near, far = (estimate(Question("h2d", far=far), shape) for far in (False, True))
        why = "; ".join(far.because[1:]) or "; ".join(far.because)
        price = shape.socket_gb_per_s
        if price:
            why += f"; the library counts {price:g} GB/s for the link between sockets"
        here, there = near.typical, far.typical
        yield WorsePlacement(
            placement="memory and vCPUs on the far node",
            metric="h2d",
            here=_rounded(here),
            there=_rounded(there),
            unit="GB/s",
            loses=_lost(here, there),
            why=why,
            source=formulas.COPY_SOURCE,
        )
        yield from _far_nic(host, guest)
    if len(gpus) > 1:
        yield from _worse_pair(host, gpus, standard)


def _far_nic(host: Host, guest: PlannedGuest) -> Iterator[WorsePlacement]:
    """Yield the price of a NIC on another socket: what the library counts for the link between the two."""
    mine = {device.address for device in guest.devices}
    rates = [nic.rate_gbps for nic in host.nics if nic.address in mine and nic.rdma and nic.rate_gbps]
    if not rates:
        return
    here = min(rates) / 8
    price = of_host(host, (), Standard({}, ())).socket_gb_per_s
    there = min(here, price) if price else None
    why = f"the library counts {price:g} GB/s for the link between sockets, the port has {here:g}" if price else (
        "not known: what the library counts between the sockets of this CPU"
    )  # fmt: skip
    yield WorsePlacement(
        placement="NIC on another socket than its GPU", metric="rdma-write", here=here, there=there, unit="GB/s",
        loses=_lost(here, there), why=why, source=formulas.SOCKET_SOURCE,
    )  # fmt: skip


def _worse_pair(host: Host, gpus: Sequence[str], standard: Standard) -> Iterator[WorsePlacement]:
    """Yield the worst pair of GPUs of the same models on this host, if it is worse than every pair of the guest."""
    links = pair_links(host, gpus)
    alike = {gpu.model for gpu in host.index.accelerators if gpu.address in set(gpus)}
    others = {gpu.address for gpu in host.index.accelerators if gpu.model in alike}
    counts = {pair: count for pair, count in links.items() if set(pair.split("->")) <= others}
    mine = [count for pair, count in counts.items() if set(pair.split("->")) <= set(gpus)]
    if not mine or not counts or min(counts.values()) >= min(mine):
        return
    pair = min(counts, key=lambda key: (counts[key], key))
    shape = replace(of_host(host, gpus[:1], standard))
    here, there = (pair_estimate(shape, count) for count in (min(mine), counts[pair]))
    best, worst = here.typical or here.bound, there.bound
    yield WorsePlacement(
        placement=f"GPUs that fewer links join ({pair})", metric="p2p", here=_rounded(best), there=_rounded(worst),
        unit="GB/s", loses=_lost(best, worst), why="; ".join(there.because), source=there.source,
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _lost(here: float | None, there: float | None) -> float | None:
    return None if here is None or there is None else round(1 - there / here, 3)
