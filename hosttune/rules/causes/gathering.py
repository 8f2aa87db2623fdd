"""The input of a diagnosis from what hosttune knows: a host document, a validation, facts of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hosttune.bench.baselines import Standard
from hosttune.bench.compare import middle_of, runs_of
from hosttune.gpu import VENDORS
from hosttune.inventory.pcielink import JudgedLink, path
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Nic
from hosttune.model.listing import some
from hosttune.model.measured import COLLECTIVES, Figure, LinkSeen, Measured, NicLink, Nics, Observations, Setup
from hosttune.model.pci import PCIE_GTS
from hosttune.model.validation import Sample, Validation
from hosttune.model.values import number
from hosttune.predicting.formulas import pcie_gb_per_s
from hosttune.predicting.shape import of_host

# Figures of a validation -> metrics of a diagnosis. Copies from the far node are named by their subject.
_METRICS: Mapping[str, str] = {
    "h2d-ce": "h2d", "d2h-ce": "d2h", "p2p-write-ce": "p2p", "p2p-read-ce": "p2p", "device-copy": "device-copy",
    "gemm-bf16": "gemm-bf16", "gemm-fp8": "gemm-fp8", "memory-copy": "memory-copy", "memory-latency": "memory-latency",
    "disk-read": "disk-read", "rdma-write": "rdma-write", "load-sm-clock": "sm-clock", "load-power": "power",
    "load-link-speed": "link-speed-gts", "load-link-width": "link-width",
}  # fmt: skip
_SIZES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_HOT = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_Path = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
_PATHS: tuple[_Path, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
_INFINIBAND = "InfiniBand"


def of_validation(validation: Validation, host: Host | None) -> Measured:
    """Return the figures of a validation, with what its host shows. Without a host only the GPUs' model is known."""
    figures = tuple(figures_of(validation.samples))
    if host is not None:
        known = of_host_facts(host)
        return msgspec.structs.replace(known, figures=figures)
    models = {(gpu.model, gpu.id) for gpu in validation.machine.gpus} if validation.machine else set()
    model, device = models.pop() if len(models) == 1 else (None, None)
    count = len(validation.machine.gpus) if validation.machine else 0
    return Measured(
        version=1, setup=Setup(gpu=model, pci_id=device, gpus_per_host=count or None, hosts=1), figures=figures
    )


def figures_of(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield the median of each metric and subject that a diagnosis knows."""
    units = {sample.metric: sample.unit for sample in samples}
    for (name, subject), values in runs_of(samples).items():
        size = None
        metric = _METRICS.get(name)
        for busbw in COLLECTIVES:
            word = name.removeprefix(busbw.removesuffix("busbw"))
            many, unit = number(digits := word.rstrip("kmgib"), 1 << 20), _SIZES.get(word[len(digits) :])
            if word != name and many is not None and unit is not None:
                metric, size = busbw, many * unit
        if metric is not None:
            yield Figure(metric=metric, subject=subject, value=middle_of(values), unit=units[name], size_bytes=size)


def of_host_facts(host: Host) -> Measured:
    """Return what a host document shows of its GPUs, their links, NICs and bridges. Pure; no figures."""
    gpus = host.index.accelerators
    shape = of_host(host, [gpu.address for gpu in gpus], Standard({}, ()))
    nics = [nic for nic in host.nics if nic.rdma and nic.physfn is None and nic.kind == "infiniband"]
    functions = [host.index.pci[nic.address] for nic in nics if nic.address in host.index.pci]
    partial = of_gpus(gpus)
    setup = msgspec.structs.replace(
        partial.setup,
        hosts=1,
        virtual=host.hypervisor,
        nvswitch=shape.switched,
        nics=_nics(nics),
        pcie=next((f"{g}.0 x{shape.slot[1]}" for g, gts in PCIE_GTS.items() if gts == shape.slot[0]), None)
        if shape.slot
        else None,
        cpu=host.cpu_model.model if host.cpu_model else None,
    )
    modules = host.platform.modules if host.platform else None
    link, place = _link([link for gpu in gpus for link in path(host.index, gpu.address)])
    redirecting = _redirecting(host, gpus, nics)
    seen = msgspec.structs.replace(
        partial.observations,
        iommu=_iommu(host),
        acs_redirect=None if redirecting is None else bool(redirecting),
        ats=_all(function.ats_enabled for function in functions),
        relaxed_ordering=_all(function.relaxed_ordering for function in functions),
        max_read_request_bytes=_least(function.read_request_bytes for function in functions),
        gpu_nic_path=_path(host, gpus, nics),
        peer_memory_module=_peer_memory(gpus, {module.name for module in modules or ()}),
        link=link,
        nic_link=_nic_link(nics),
        said={
            **partial.observations.said,
            **({"link": place} if place else {}),
            **({"acs_redirect": "at " + some(redirecting, 4)} if redirecting else {}),
        },
    )
    return msgspec.structs.replace(partial, setup=setup, observations=seen)


def of_gpus(gpus: Sequence[Gpu]) -> Measured:
    """Return what the GPUs' driver reports of them together. A fact in which they differ is that of the worst."""
    models = {gpu.model for gpu in gpus}
    reasons = [gpu.clock_reasons for gpu in gpus]
    known = all(reason is not None for reason in reasons) and bool(reasons)
    words = {word for reason in reasons for word in reason or ()}
    limited = min(
        (gpu for gpu in gpus if gpu.power_limit_watts and gpu.power_default_watts),
        key=lambda gpu: (gpu.power_limit_watts or 0) / (gpu.power_default_watts or 1),
        default=None,
    )
    hot = [gpu.address for gpu in gpus if set(gpu.clock_reasons or ()).intersection(_HOT)]
    said = {"power_limit_watts": limited.address} if limited else {}
    said |= {"thermal_slowdown": ", ".join(hot)} if hot else {}
    kinds = {peer.kind for gpu in gpus for peer in gpu.peers or ()}
    links = [gpu.nvlinks_active for gpu in gpus]
    sliced = any(gpu.mig_on for gpu in gpus)
    model = models.pop() if len(models) == 1 else None
    p2p: Literal["nvlink", "pcie"] | None = None
    if kinds and all(gpu.peers is not None for gpu in gpus):
        p2p = "pcie" if kinds == {"pcie"} else "nvlink" if "pcie" not in kinds else None
    return Measured(
        version=1,
        setup=Setup(
            gpu=f"{model} MIG" if model and sliced else model,
            gpus_per_host=len(gpus) or None,
            nvlinks_per_gpu=_least(links) if all(link is not None for link in links) else None,
        ),
        observations=Observations(
            p2p=p2p,
            power_capped=True if "hw_power_brake_slowdown" in words else None,
            power_limit_watts=limited.power_limit_watts if limited else None,
            default_power_limit_watts=limited.power_default_watts if limited else None,
            thermal_slowdown=bool(words.intersection(_HOT)) if known else None,
            said=said,
        ),
    )


def _least(values: Iterable[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _all(values: Iterable[bool | None]) -> bool | None:
    """Return False if one is off, True if all are on, None if that is not known."""
    known = list(values)
    return False if False in known else True if known and None not in known else None


def _nics(nics: Sequence[Nic]) -> Nics | None:
    if not nics:
        return None
    rates = {nic.rate_gbps for nic in nics}
    layers = {nic.link_layer for nic in nics}
    kind: Literal["infiniband", "roce"] | None = None
    if len(layers) == 1 and None not in layers:
        kind = "infiniband" if layers == {_INFINIBAND} else "roce"
    return Nics(count=len(nics), rate_gbps=rates.pop() if len(rates) == 1 else None, kind=kind)


def _nic_link(nics: Sequence[Nic]) -> NicLink | None:
    """Return the number of ports and of active ones. The rate that a port could have is not in the document."""
    states = [nic.state for nic in nics]
    if not nics or None in states:
        return None
    active = sum("ACTIVE" in (state or "").upper() for state in states)
    return NicLink(ports=len(nics), ports_active=active)


def _iommu(host: Host) -> Literal["off", "on", "passthrough"] | None:
    if host.iommu is None or host.iommu.present is None:
        return None
    if not host.iommu.present:
        return "off"
    mode = (host.iommu.mode or "").lower()
    return "passthrough" if mode in ("identity", "passthrough") else "on" if mode else None


def _redirecting(host: Host, gpus: Sequence[Gpu], nics: Sequence[Nic]) -> list[str] | None:
    """Return the bridges above both a GPU and a NIC, or two GPUs, that redirect requests; None if that is not read."""
    devices = [*(gpu.address for gpu in gpus), *(nic.address for nic in nics)]
    above = [set(host.index.above(address)) for address in devices]
    shared = {bridge for one in above for bridge in one if sum(bridge in other for other in above) > 1}
    ports = {host.index.above(address)[0] for address in devices if host.index.above(address)}
    found = {bridge: host.index.pci[bridge].acs for bridge in sorted(shared | ports) if bridge in host.index.pci}
    redirecting = [bridge for bridge, acs in found.items() if acs is not None and "ReqRedir" in acs.enabled]
    return redirecting if redirecting or (found and None not in found.values()) else None


def _path(host: Host, gpus: Sequence[Gpu], nics: Sequence[Nic]) -> _Path | None:
    """Return the path to its nearest NIC of the GPU that has the worst one, in the words of a topology matrix."""
    if not gpus or not nics or host.hypervisor is not False:
        return None  # a guest does not show the bridges that its devices have
    best = [min((_between(host, gpu.address, nic.address) for nic in nics), default=None) for gpu in gpus]
    known = [distance for distance in best if distance is not None]
    return _PATHS[max(known)] if len(known) == len(gpus) else None


def _between(host: Host, one: str, other: str) -> int:
    """Return the place in `_PATHS` of the path between two functions."""
    here, there = host.index.above(one), host.index.above(other)
    common = next((bridge for bridge in here if bridge in there), None)
    if common is not None:
        bridges = here.index(common) + there.index(common)
        root = not host.index.above(common)
        return _PATHS.index("PHB") if root else _PATHS.index("PIX" if bridges <= 2 else "PXB")
    nodes = [host.index.pci[address].numa_node if address in host.index.pci else None for address in (one, other)]
    return _PATHS.index("NODE") if nodes[0] is not None and nodes[0] == nodes[1] else _PATHS.index("SYS")


def _peer_memory(gpus: Sequence[Gpu], loaded: set[str]) -> bool | None:
    """Return True if a module is loaded that lets NICs reach these GPUs. The list of modules does not prove absence."""
    makers = {gpu.vendor for gpu in gpus}
    wanted = {name for vendor in VENDORS if vendor.name in makers for name in vendor.peer_memory}
    return True if wanted & loaded else None


def _link(links: Sequence[JudgedLink]) -> tuple[LinkSeen | None, str]:
    """Return the worst link, that which carries the smallest part of what the device can do, and where it is."""
    worst: tuple[float, LinkSeen, str] | None = None
    for judged in links:
        link, best = judged.link, judged.best
        if link.width is None or link.speed_gts is None or not link.max_width or not link.max_speed_gts or best is None:
            continue
        idle = judged.state == "idle"
        rate, most = pcie_gb_per_s(link.speed_gts, link.width), pcie_gb_per_s(link.max_speed_gts, link.max_width)
        part = rate / most if rate and most and not idle else 1.0
        seen = LinkSeen(
            speed_gts=link.speed_gts,
            width=link.width,
            max_speed_gts=best[0],
            max_width=best[1],
            under_load=False if idle else None,
        )
        if worst is None or part < worst[0]:
            worst = (part, seen, judged.end.address)
    return (worst[1], worst[2]) if worst else (None, "")
