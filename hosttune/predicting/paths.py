"""The way between two devices of a host, link by link, with what each link carries. Pure.

Rates: PCIe as `formulas.pcie_gb_per_s`; links between GPUs by their data sheet; between sockets what NCCL counts
(`formulas.SOCKET_SOURCE`); a NIC's port by its rate. What has no source is None: a path is then at most as fast as its
slowest known link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise

import msgspec

from hosttune.bench.baselines import Standard, shipped_peaks
from hosttune.errors import BadInput
from hosttune.gpu import generation_of
from hosttune.inventory.pcielink import JudgedLink, faces_down, link_of
from hosttune.model.devicepath import DevicePath, Hop
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Nic
from hosttune.predicting.formulas import pcie_gb_per_s
from hosttune.predicting.pairs import join
from hosttune.predicting.shape import of_host

_REDIRECT, _DIRECT = "ReqRedir", "DirectTrans"
MOST_PAIRS = 2016  # pairs of 64 GPUs, the most that an intent can name


def path_between(host: Host, one: str, other: str, standard: Standard | None = None) -> DevicePath:
    """Return the path between two GPUs, or a GPU and a NIC (to its network port), or a GPU and "node N", its memory.

    Raises BadInput for an address that is neither a GPU nor a NIC of this host, and for twice the same.
    """
    for address in (one, other):
        if _gpu(host, address) is None and _nic(host, address) is None and _node(host, address) is None:
            known = ", ".join(gpu.address for gpu in host.index.accelerators[:8]) or "none"
            raise BadInput(
                f"{address!r} is no GPU, NIC or node here", where="--between", hint=f"GPUs of this host: {known}"
            )
    if one == other:
        raise BadInput(f"both ends are {one}", where="--between", hint="give two devices")
    joined = None
    if _gpu(host, one) is not None and _gpu(host, other) is not None:
        joined = join(host, one, other, standard or shipped_peaks())
        if joined.linked:
            rate = joined.estimate.bound
            carried = None if rate is None else round(rate, 1)
            return _marked(
                one, other, [Hop(kind="links", start=one, end=other, gb_per_s=carried, words=joined.words)], []
            )
    hops, notes = _over_pcie(host, one, other)
    first, last = _nic(host, one), _nic(host, other)
    hops = [*([_port(first, last=False)] if first else []), *hops, *([_port(last, last=True)] if last else [])]
    if host.hypervisor:
        notes.append("this machine is a guest: the bridges that it shows are not those of the board")
    path = _marked(one, other, hops, notes)
    return path if joined is None or joined.linked is False else _perhaps(path)


def worst_paths(host: Host, addresses: Iterable[str], standard: Standard | None = None) -> tuple[DevicePath, ...]:
    """Return the slowest path between two of these GPUs, and the slowest from one of them to its nearest RDMA NIC."""
    inside = set(addresses)
    gpus = [gpu.address for gpu in host.index.accelerators if gpu.address in inside]
    nics = [
        nic.address
        for nic in host.nics
        if nic.address in inside and nic.rdma and nic.physfn is None and nic.kind == "infiniband"
    ]
    pairs = list(combinations(gpus, 2))
    paths = []
    if pairs and len(pairs) <= MOST_PAIRS:
        paths.append(min((path_between(host, *pair, standard) for pair in pairs), key=_speed))
    if nics:
        near = [path_between(host, gpu, nearest(host, gpu, nics)) for gpu in gpus]
        paths += [min(near, key=_speed)] if near else []
    return tuple(paths)


def nearest(host: Host, device: str, others: Sequence[str]) -> str:
    """Return the device with which this one shares the lowest bridge, else one of its node, else the first."""
    above = host.index.above(device)

    def distance(other: str) -> tuple[int, bool]:
        shared = next((n for n, bridge in enumerate(above) if bridge in host.index.above(other)), len(above))
        return shared, _node_of(host, device) is None or _node_of(host, device) != _node_of(host, other)

    return min(others, key=distance)


def _speed(path: DevicePath) -> tuple[bool, float, int]:
    return path.at_most_gb_per_s is None, path.at_most_gb_per_s or 0.0, -len(path.hops)


def _gpu(host: Host, address: str) -> Gpu | None:
    return next((gpu for gpu in host.index.accelerators if gpu.address == address), None)


def _nic(host: Host, address: str) -> Nic | None:
    return next((nic for nic in host.nics if nic.address == address), None)


def _node(host: Host, name: str) -> int | None:
    return next((node.id for node in host.numa_nodes if name == f"node {node.id}"), None)


def _node_of(host: Host, address: str) -> int | None:
    device = host.index.pci.get(address)
    return device.numa_node if device else _node(host, address)


def _marked(one: str, other: str, hops: Sequence[Hop], notes: Sequence[str]) -> DevicePath:
    """Return the path with its slowest link marked, unless all links carry the same."""
    rates = [hop.gb_per_s for hop in hops if hop.gb_per_s is not None]
    least = min(rates, default=None)
    apart = len(set(rates)) > 1 or len(hops) == 1
    first = next((n for n, hop in enumerate(hops) if hop.gb_per_s == least and least is not None and apart), None)
    unknown = [f"{hop.start} to {hop.end}" for hop in hops if hop.gb_per_s is None]
    words = [f"not known: what the link from {', '.join(unknown)} carries"] if unknown else []
    marked = (msgspec.structs.replace(hop, slowest=n == first) for n, hop in enumerate(hops))
    return DevicePath(start=one, end=other, at_most_gb_per_s=least, hops=tuple(marked), notes=(*notes, *words))


def _perhaps(path: DevicePath) -> DevicePath:
    """Return the path over PCIe of two GPUs that links may join: it bounds nothing then, and says so."""
    most = "" if path.at_most_gb_per_s is None else f", which carries at most {path.at_most_gb_per_s:g} GB/s"
    words = f"not known: whether links join these GPUs; the path is that over PCIe{most}"
    hops = tuple(msgspec.structs.replace(hop, slowest=False) for hop in path.hops)
    return msgspec.structs.replace(path, at_most_gb_per_s=None, hops=hops, notes=(words, *path.notes))


def _port(nic: Nic, *, last: bool) -> Hop:
    start, end = (nic.address, "network") if last else ("network", nic.address)
    words = "port, rate not known" if nic.rate_gbps is None else f"port of {nic.rate_gbps:g} Gb/s"
    rate = None if nic.rate_gbps is None else round(nic.rate_gbps / 8, 2)
    return Hop(kind="port", start=start, end=end, gb_per_s=rate, words=words)


# --- over PCIe and the CPU -----------------------------------------------------------------------------------------


def _over_pcie(host: Host, one: str, other: str) -> tuple[list[Hop], list[str]]:
    here, there = (() if _node(host, end) is not None else host.index.above(end) for end in (one, other))
    common = next((bridge for bridge in here if bridge in there), None)
    notes: list[str] = []
    if common is not None and (ports := _redirecting(host, one, other, common)):
        notes.append(
            f"{', '.join(ports)} redirect requests (ACS): data goes up to the root port and back, unless a device has"
            " translated its requests (ATS) and the ports let those through (DirectTrans)"
        )
        common = here[-1]
    up, down = list(_up(host, one, common)), list(_up(host, other, common))
    between = [] if common is not None else _through_cpu(host, one, other)
    back = [msgspec.structs.replace(hop, start=hop.end, end=hop.start) for hop in reversed(down)]
    return [*up, *between, *back], notes


def _redirecting(host: Host, one: str, other: str, common: str) -> list[str]:
    """Return the ports where the two ways meet that send requests up instead of to each other."""
    addresses = []
    functions = [host.index.pci[end] for end in (one, other) if end in host.index.pci]
    translated = any(function.ats_enabled for function in functions)
    for end in (one, other):
        chain = (end, *host.index.above(end))
        port = host.index.pci.get(chain[chain.index(common) - 1])
        acs = port.acs if port is not None and port.is_bridge else None
        direct = acs is not None and translated and _DIRECT in acs.enabled
        if port is not None and acs is not None and _REDIRECT in acs.enabled and not direct:
            addresses.append(port.address)
    return addresses


def _up(host: Host, address: str, top: str | None) -> Iterator[Hop]:
    """Yield the links from a device up to a bridge, or to the CPU. Within a switch there is no link."""
    gpu = _gpu(host, address)
    generation = generation_of(gpu.model) if gpu is not None else None
    if generation is not None and generation.cpu_link_gb_per_s:
        node = _node_text(host, address)
        rate = generation.cpu_link_gb_per_s
        yield Hop(kind="chip", start=address, end=node, gb_per_s=rate, words="link of the GPU to its CPU")
        return
    chain = () if _node(host, address) is not None else (address, *host.index.above(address))
    for below, above in pairwise(chain):
        if below == top:
            return
        device = host.index.pci.get(below)
        if device is None or not faces_down(host.index, device):
            judged = link_of(host.index, below)
            if judged is not None and judged.end.address in chain[chain.index(above) :]:
                continue  # inside the card: no wire
            carried, words = _carried(judged)
            yield Hop(kind="pcie", start=below, end=above, gb_per_s=carried, words=words)


def _carried(judged: JudgedLink | None) -> tuple[float | None, str]:
    """Return (GB/s, words) of a link as it runs; of one that is idle, as its two ends can."""
    link = judged.link if judged is not None else None
    if judged is None or link is None or link.speed_gts is None or link.width is None:
        return None, "PCIe link, not read"
    idle = judged.state == "idle"
    speed, width = (idle and judged.best) or (link.speed_gts, link.width)
    low = f", degraded: the device can do {link.max_speed_gts:g} GT/s ×{link.max_width}"
    words = f"PCIe {speed:g} GT/s ×{width}{' (idle now)' if idle else ''}{low if judged.state == 'degraded' else ''}"
    rate = pcie_gb_per_s(speed, width)
    return None if rate is None else round(rate, 1), words


def _through_cpu(host: Host, one: str, other: str) -> list[Hop]:
    nodes = [_node_of(host, end) for end in (one, other)]
    names = [_node_text(host, end) for end in (one, other)]
    if nodes[0] is not None and nodes[0] == nodes[1]:
        if _node(host, one) is not None or _node(host, other) is not None:
            return []  # to the memory of its own node
        return [Hop(kind="cpu", start=names[0], end=names[1], words=f"through the CPU of {names[0]}")]
    if None in nodes:
        return [Hop(kind="cpu", start=names[0], end=names[1], words="through the CPU; the nodes are not known")]
    homes = [host.home(node) for node in nodes]
    packages = [{cpu.package for cpu in host.cpus if cpu.numa_node == home} for home in homes]
    if len(packages[0]) == 1 and packages[0] == packages[1] and None not in packages[0]:
        return [Hop(kind="socket", start=names[0], end=names[1], words="within one socket")]
    rate = of_host(host, (), Standard({}, ())).socket_gb_per_s
    words = "between sockets, as NCCL counts it" if rate else "between sockets; no source for this CPU"
    return [Hop(kind="socket", start=names[0], end=names[1], gb_per_s=rate, words=words)]


def _node_text(host: Host, address: str) -> str:
    node = _node_of(host, address)
    return "node unknown" if node is None else f"node {node}"
