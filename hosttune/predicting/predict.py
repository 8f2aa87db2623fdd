"""All figures of a host, or of the devices of a guest, before anything is measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from hosttune.bench.baselines import Standard, shipped_peaks
from hosttune.gpu import Generation
from hosttune.inventory.cliques import apart
from hosttune.inventory.pcielink import narrowest
from hosttune.model.host import Host, Nic
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.predicting import formulas
from hosttune.predicting.estimates import Question, estimate, roofs_of
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.pairs import join
from hosttune.predicting.paths import MOST_PAIRS, path_between, worst_paths
from hosttune.predicting.shape import HostShape, of_host

_SIZES = {"32 MiB": 32 << 20, "256 MiB": 256 << 20, "1 GiB": 1 << 30, "8 GiB": 8 << 30}
NO_SOURCE = "no source"


class Scope(msgspec.Struct, frozen=True):
    """What is asked about: the GPUs, NICs and drives of a host or of one guest, and how many such hosts work together.

    `of` names it. `devices` None: all devices of the host. `between`: pairs of devices whose path is asked for.
    `measured`: peaks that were measured on this host ("memory" in GB/s, number types in TFLOP/s), None without any.
    `nodes`: the host nodes of its CPUs and memory; None: all of the host, or not known of a guest. `cliques`: of the
    GPUs of a guest that may exchange data over PCIe; None: it is no guest.
    """

    of: str
    devices: Collection[str] | None = None
    hosts: int = 1
    between: Sequence[tuple[str, str]] = ()
    measured: Mapping[str, float] | None = None
    nodes: Collection[int] | None = None
    cliques: Mapping[str, int] | None = None


def predict(host: Host, scope: Scope, standard: Standard | None = None) -> Prediction:
    """Return bound and typical figure of everything in the scope; what is not known is null.

    Raises BadInput for a path of which an end is no GPU, NIC or node of the host, and for impossible measured peaks.
    """
    standard = standard or shipped_peaks()
    inside = set(scope.devices) if scope.devices is not None else None
    gpus = [gpu.address for gpu in host.index.accelerators if inside is None or gpu.address in inside]
    nics = [nic for nic in host.nics if nic.rdma and nic.physfn is None and (inside is None or nic.address in inside)]
    drives = [drive.address for drive in host.nvme if inside is None or drive.address in inside]
    shape = replace(of_host(host, gpus, standard), slot=narrowest(host.index, gpus, now=True))
    fabric = [nic for nic in nics if nic.kind == "infiniband"]  # as `of_host`: a management port can have RDMA too
    notes = _notes(host, shape, gpus)
    predicted_figures = [
        *(row for gpu in gpus for row in _of_gpu(host, gpu, standard)),
        *_pairs(host, gpus, standard, scope.cliques),
        *_collectives(replace(shape, nics=len(fabric) or None), len(gpus), scope.hosts),
        *_ports(host, nics),
        *_unknown(drives, _nodes(host, scope)),
    ]
    asked = [path_between(host, *pair, standard) for pair in scope.between]
    paths = asked or worst_paths(host, [*gpus, *(nic.address for nic in nics)], standard)
    roofs = roofs_of(host, gpus, standard, scope.measured)
    return Prediction(of=scope.of, figures=tuple(predicted_figures), notes=notes, paths=tuple(paths), roofs=roofs)


def _notes(host: Host, shape: HostShape, gpus: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if gpus and shape.gpu is None:
        notes.append("the GPUs are of several models, or their model is not known: no figure of all of them together")
    if gpus and shape.slot is None:
        notes.append("what the GPUs' slots can do is not known: no figure of copies between host and GPU")
    if host.hypervisor:
        notes.append("this machine is a guest: it shows neither the slots nor the switches that its devices have")
    return tuple(notes)


def _row(metric: str, subject: str, found: Estimate, unit: str | None = None) -> PredictedFigure:
    return PredictedFigure(
        metric=metric,
        subject=subject,
        bound=None if found.bound is None else round(found.bound, 2),
        typical=None if found.typical is None else round(found.typical, 2),
        unit=unit or found.unit,
        formula=found.formula,
        because=found.because,
        source=found.source,
        width=found.width,
    )


def _of_gpu(host: Host, address: str, standard: Standard) -> Iterator[PredictedFigure]:
    shape = replace(of_host(host, (address,), standard), slot=narrowest(host.index, (address,), now=True))
    for metric in ("h2d", "d2h"):
        yield _row(metric, f"{address}, near node", estimate(Question(metric), shape))
        if len(host.numa_nodes) > 1:
            yield _row(metric, f"{address}, far node", estimate(Question(metric, far=True), shape))
    for metric in ("device-copy", "gemm-bf16", "gemm-fp8"):
        yield _row(metric, address, estimate(Question(metric), shape))
    sustained = estimate(Question("gemm-bf16"), shape)
    because = (*sustained.because, "typical: depends on power and cooling of this board; no source")
    formula, source = f"bound: {formulas.DENSE}", formulas.PEAK_SOURCE
    sustained = replace(sustained, typical=None, because=because, formula=formula, source=source)
    yield _row("gemm-bf16-sustained", address, sustained)


def _pairs(
    host: Host, gpus: Sequence[str], standard: Standard, cliques: Mapping[str, int] | None
) -> Iterator[PredictedFigure]:
    if len(gpus) * (len(gpus) - 1) // 2 > MOST_PAIRS:
        return
    without = set() if cliques is None else {frozenset(pair[:2]) for pair in apart(host, gpus, cliques)}
    price = of_host(host, (), standard).socket_gb_per_s
    for one, other in combinations(gpus, 2):
        joined = join(host, one, other, standard)
        nodes = [host.index.pci[address].numa_node if address in host.index.pci else None for address in (one, other)]
        between_two = joined.estimate
        if joined.count == 0 and None not in nodes and host.home(nodes[0]) != host.home(nodes[1]):
            words = f"the pair is on nodes {nodes[0]} and {nodes[1]}" + (
                f"; the library counts {price:g} GB/s for the link between sockets" if price else ""
            )
            between_two = replace(between_two, because=(*between_two.because, words))
        if {one, other} in without and not joined.linked:
            words = "no peer-to-peer: the two are in no clique of the guest, and data goes through its memory"
            between_two = replace(between_two, because=(*between_two.because, words))
        yield _row("p2p", f"{one}->{other}", between_two)


def _collectives(shape: HostShape, count: int, hosts: int) -> Iterator[PredictedFigure]:
    if count < 2 and hosts < 2:
        return
    counts = [number for number in (2, 4, 8, 16, 32, 64) if number < count] + [count]
    for metric in ("all-reduce-busbw", "all-gather-busbw"):
        for number in counts if count > 1 else ():
            for name, size in _SIZES.items():
                yield _row(metric, f"{number} GPUs, {name}", estimate(Question(metric, number, 1, size), shape))
        if hosts > 1:
            yield from _between_hosts(metric, replace(shape, hosts=hosts, per_host=count), count, hosts)
    ring = replace(shape, generation=_without_switch(shape)) if count > 2 else None
    if ring is not None and ring.generation is not shape.generation:
        by_ring = estimate(Question("all-reduce-busbw", count, 1), ring)
        yield _row("all-reduce-busbw", f"{count} GPUs, ring (NVLS off)", by_ring)


def _between_hosts(metric: str, shape: HostShape, count: int, hosts: int) -> Iterator[PredictedFigure]:
    """Yield what all GPUs reach together, what a flat ring does, and what one GPU of each host does over its own ports.

    A rail joins the ports of GPUs with the same number on all hosts.
    """
    ranks = count * hosts
    everyone = f"{ranks} GPUs on {hosts} hosts"
    yield _row(metric, everyone, estimate(Question(metric, ranks, hosts), shape))
    for name, size in _SIZES.items():
        yield _row(metric, f"{everyone}, {name}", estimate(Question(metric, ranks, hosts, size), shape))
    yield _row(metric, f"{everyone}, flat ring", estimate(Question(metric, ranks, hosts, flat=True), shape))
    yield _row(metric, f"{everyone}, over TCP", estimate(Question(metric, ranks, hosts, tcp=True), shape))
    if count < 2:
        return
    rail = f"{hosts} GPUs on {hosts} hosts, one rail"
    if shape.nics and shape.nics % count:
        why = f"not known: which ports belong to which GPU ({shape.nics} ports, {count} GPUs)"
        yield _row(metric, rail, Estimate("GB/s", "flat ring over the ports of a GPU", NO_SOURCE, because=(why,)))
        return
    host_shape = replace(shape, per_host=1, nics=shape.nics // count if shape.nics else None)
    yield _row(metric, rail, estimate(Question(metric, hosts, hosts), host_shape))


def _without_switch(shape: HostShape) -> Generation | None:
    generation = shape.generation
    return (
        None
        if generation is None
        else msgspec.structs.replace(generation, switch_part=None)
        if generation.switch_part
        else generation
    )


def _ports(host: Host, nics: Sequence[Nic]) -> Iterator[PredictedFigure]:
    for nic in nics:
        slot = narrowest(host.index, [nic.address], now=True)
        shape = HostShape(nic_gb_per_s=nic.rate_gbps / 8 if nic.rate_gbps else None, nic_slot=slot)
        yield _row("rdma-write", nic.rdma or nic.address, estimate(Question("rdma-write"), shape))


def _nodes(host: Host, scope: Scope) -> list[int]:
    """Return the nodes between whose CPUs and memory copies can be asked about."""
    nodes = [node.id for node in host.numa_nodes if node.cpus]
    if scope.nodes is None:
        return nodes if scope.devices is None else []
    return [node for node in nodes if node in scope.nodes]


def _unknown(drives: Sequence[str], nodes: Sequence[int]) -> Iterator[PredictedFigure]:
    """Yield the figures of which no model has a source, so that nobody takes their absence for zero."""
    missing = "not known: kind, number and rate of the memory modules"
    for cpus in nodes:
        for memory in nodes:
            no_estimate = Estimate("GB/s", "channels × rate of a module", NO_SOURCE, because=(missing,))
            yield _row("memory-copy", f"node{cpus}->node{memory}", no_estimate)
    for drive in drives:
        because = ("not known: what this drive can do (its data sheet)",)
        yield _row("disk-read", drive, Estimate("GB/s", "data sheet of the drive", NO_SOURCE, because=because))
