"""Causes between hosts: the path to the NIC, the ports, and the network."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.model.measured import COLLECTIVES, RINGS
from hosttune.predicting.formulas import FLAT_PART, SOCKET_SOURCE, TCP_GB_PER_S, TCP_WIDTH
from hosttune.rules.causes.equals import BESIDE, OF_MPI
from hosttune.rules.causes.rule import NETWORK, STORAGE, WORK, Case, first_kept, observed, rule, supports
from hosttune.rules.causes.rules_gpus import _LATENCY, OFF, _set, latency_share
from hosttune.rules.causes.verdicts import SHARE, Judged
from hosttune.rules.engine import Finding

_GUIDE = "NCCL user guide, Environment Variables"
_PORT_RATES = (10.0, 25.0, 40.0, 50.0, 56.0, 100.0, 200.0, 400.0)  # Gb/s of Ethernet and InfiniBand ports
_UNSEEN = (
    "the process sees no RDMA device: ibv_devinfo where it runs. A container needs /dev/infiniband (docker --device;"
    " Kubernetes: an RDMA device plugin, hostNetwork or SR-IOV), libibverbs and IPC_LOCK; a guest the RDMA function;"
    " a host the NIC's driver and ib_uverbs; NCCL_IB_HCA names that are there"
)
_RDMA = re.compile(r"(?i)\b(?:all|ib|(?:rc|dc|ud)(?:_\w{1,8})?)\b")  # transports of UCX
_PLAIN = 0.021  # so near one of _PARTS counts as it
_NEAR_PORTS = 0.04  # so near a part of the ports' rate counts as that part: typical figures differ by less
_FAMILY = re.compile(r"(?:mlx|hfi|cxgb)\d_?$")  # how all names of a driver begin
_BOTH = 2  # ways within a host: between GPUs, and through its memory
_PARTS = (0.1, 0.25, 1 / 3, 0.5, 0.75)  # of the others, that a port less or a lower rate leaves
# Hosts whose flows share links by chance, where routes are static; times what more hosts give: runs differ by less.
_MANY_HOSTS, _FALLS = 4, 1.5
_FABRIC = re.compile(r"(?i)\b(?:rack|switch|lea[fv]|spine|pod|tor)")  # parts of a network between hosts
_RAILS = re.compile(r"(?i)\b(?:any|other|across|cross|between)[ -]rails?\b")
_MPI = r"\b(?:osu_|(?:MPI|mpi|ranks)\b)"  # it takes sockets where it finds nothing else; perftest has RDMA alone
_CROWDED = r"\b(?:incast|permutation)"
_NO_SOCKET = 100.0  # GB/s: links between hosts carry that, whatever is set (GB200 NVL72)
# GB/s that collectives over TCP give (docs/models.md), at most with 5 ports of 200 Gb/s (skypilot-org/skypilot issue
# 3592), and of how many ports that is too little for anything else.
_AS_TCP, _MOST_TCP, _TCP_PART = (TCP_GB_PER_S * (1 - TCP_WIDTH), TCP_GB_PER_S * (1 + TCP_WIDTH)), 20.0, 0.05
_LITTLE = 0.2  # of the ports' rate


def _several(judged: Judged) -> bool:
    """Return whether a figure is compared with that of fewer ports."""
    return " times what " in judged.apart


def beside_host(figures: tuple[Judged, ...]) -> tuple[Judged, ...]:
    """Return those of GPU memory that are far below host memory over the same port: the network is in order."""
    return tuple(judged for judged in figures if judged.apart.endswith(BESIDE))


def _plain(judged: Judged) -> bool:
    """Return whether a figure is a plain part of its equals, or low as all pairs of one host are."""
    share = re.search(r"(?<![0-9])([0-9]{1,4})% of", judged.apart)
    near = share is not None and any(abs(int(share[1]) / 100 - part) <= _PLAIN for part in _PARTS)
    return near or "all pairs of" in judged.apart


def _low(case: Case) -> tuple[Judged, ...]:
    return tuple(judged for judged in case.networked if judged.verdict == "low" and judged.figure.metric not in WORK)


def _of_ucx(case: Case, name: str) -> str:
    """Return the value of a variable of UCX; "" in a run of NCCL, where it is about MPI's own messages alone."""
    return "" if any(other.startswith("NCCL_") for other in case.environment) else case.environment.get(name, "")


def _ports_fine(case: Case) -> bool:
    """Return whether a port reached its rate: ports, cables and switches are in order then."""
    return any(judged.figure.metric == "rdma-write" and judged.verdict == "expected" for judged in case.figures)


def _little(case: Case, figures: tuple[Judged, ...]) -> list[Judged]:
    """Return those that are less than a fifth of the rate of their port, or of all ports that the run may use."""
    one = case.shape.nic_gb_per_s or 0
    ports = one * (ports_named(case.environment.get("NCCL_IB_HCA", "")) or case.shape.nics or 1)
    return [v for v in figures if (v.value or one) < (one if v.figure.metric == "rdma-write" else ports) * _LITTLE]


@rule(
    "socket-transport-instead-of-ib",
    tier="stop",
    source=f"{_GUIDE} (NCCL_IB_DISABLE, NCCL_NET, NCCL_SOCKET_IFNAME)",
    remedy="unset NCCL_IB_DISABLE and NCCL_NET; give the guest the RDMA function, load ib_uverbs and the NIC's RDMA"
    " driver; a container needs libibverbs and /dev/infiniband",
    confirm='NCCL_DEBUG=INFO: "NET/IB : Using" and not "NET/Socket : Using"; ibv_devinfo',
)
def socket_transport(case: Case) -> Finding | None:
    """Hosts talk over TCP, not over RDMA."""
    variables = _set(case, NCCL_IB_DISABLE=("1",), NCCL_NET=("SOCKET",), FI_PROVIDER=("TCP", "SOCKETS", "TCP;OFI_RXM"))
    transports = _of_ucx(case, "UCX_TLS")
    if re.search(r"(?i)\btcp\b", transports) and not _RDMA.search(transports):
        variables += _set(case, UCX_TLS=())
    words = [
        *variables,
        *([case.told("transport", "the library uses sockets")] if case.seen.transport == "socket" else []),
    ]
    unseen = case.seen.transport == "socket" and "No device" in case.seen.said.get("transport", "")
    alone = _set(case, NCCL_P2P_DISABLE=("1",), NCCL_SHM_DISABLE=("1",))  # of one host, too
    if case.shape.hosts == 1 and alone and not [word for word in words if "IB_DISABLE" not in word]:
        return None  # its own devices have no other way then
    if words:
        within = len(alone) == _BOTH or (case.seen.transport == "socket" and case.shape.hosts == 1)
        about = case.about((*COLLECTIVES, "p2p")) if within else case.networked or case.about(STORAGE)
        about = tuple(judged for judged in about if judged.figure.metric in WORK or (judged.value or 0) < _NO_SOCKET)
        finding = observed(case, "; ".join((*words, *alone) if len(alone) == _BOTH else words), about)
        if finding and not variables and case.one_host:
            return replace(finding, outcome="fits")  # it is what is left where GPUs do not reach each other
        return replace(finding, remedy=_UNSEEN) if finding and unseen and not variables else finding
    of_mpi = tuple(judged for judged in _low(case) if re.search(_MPI, judged.figure.subject[:400]))
    low = (*case.low_between, *of_mpi)
    if case.seen.transport is not None or case.seen.gpudirect_rdma:
        return None
    if case.shape.nic_kind == "ethernet" and low:
        return supports("default", ("the NICs are Ethernet: without RDMA the library uses sockets",), low)
    # Boards with switches have ports of 100 Gb/s and more, also where they are not told.
    untold = case.shape.switched and case.shape.nic_gb_per_s is None
    slow = [v for v in case.networked if untold and v.bound is None and (v.hosts or 0) > 1 and not v.small]
    slow += [judged for judged in _little(case, low) if (judged.value or 0) < _MOST_TCP]
    if slow and all(
        v.figure.metric in RINGS
        and latency_share(case, v) < _LATENCY
        and _AS_TCP[0]
        <= (v.value or 0)
        <= min(_AS_TCP[1], (case.shape.host_gb_per_s or _MOST_TCP / _TCP_PART) * _TCP_PART)
        for v in slow
    ):
        return supports("fits", (f"{slow[0].name} is about what TCP gives",), low or tuple(slow))
    if not slow or not low:
        return None
    # EFA and Slingshot, which are neither InfiniBand nor RoCE, need a plugin of the library's.
    return supports(
        "possible" if case.shape.nic_kind or untold else "default",
        (f"{slow[0].name} is less than a fifth of the ports' rate",),
        low,
    )


@rule(
    "gpudirect-rdma-off",
    tier="network",
    source="NCCL user guide, Troubleshooting, GPU Direct (a peer-memory module or DMA-BUF); nccl-tests issue 29: half"
    " the rate without; nccl issue 1579: a NIC at the CPU needs a wider NCCL_NET_GDR_LEVEL",
    remedy="load the peer-memory module (nvidia_peermem: NCCL after 2.22), or use DMA-BUF; unset NCCL_NET_GDR_LEVEL, or"
    " set SYS where the NIC is at the CPU",
    confirm='NCCL_DEBUG=INFO: "GPU Direct RDMA Enabled" for each NIC, "via NET/IB/0/GDRDMA" for each channel',
)
def gpudirect_off(case: Case) -> Finding | None:
    """NICs do not reach GPU memory directly: data goes through host memory."""
    if case.seen.gpudirect_rdma or case.shape.staged:
        return None
    variables = _set(
        case, NCCL_NET_GDR_LEVEL=("0", "LOC"), NCCL_IB_CUDA_SUPPORT=("0",), FI_EFA_USE_DEVICE_RDMA=("0",),
        NCCL_NET_GDR_READ=("0",), UCX_IB_GPU_DIRECT_RDMA=OFF,
    )  # fmt: skip
    words = [
        *variables,
        *([case.told("gpudirect_rdma", "GPUDirect RDMA is off")] if case.seen.gpudirect_rdma is False else []),
    ]
    if case.seen.peer_memory_module is False and not words:
        words.append("the peer-memory module is not loaded")
    # Larger messages take another way: from the GPU directly, or in pieces through host memory.
    fallen = tuple(
        judged
        for judged in case.figures
        if "GPU memory" in judged.figure.subject
        and (judged in case.falling or (OF_MPI in judged.figure.subject and judged.apart.endswith(BESIDE)))
    )
    if fallen and not words:
        return supports("fits", tuple(f"{judged.name}: {judged.apart}" for judged in fallen), fallen)
    about = tuple(verdict for verdict in case.networked if verdict.figure.metric in COLLECTIVES) or case.networked
    if words:
        finding = observed(case, "; ".join(words), about)
        # Between sockets the library leaves it off by itself (NVIDIA/nccl src/graph/paths.cc).
        left_off = case.seen.gpu_nic_path == "SYS" and not variables and case.seen.peer_memory_module is not False
        return replace(finding, outcome="fits") if finding and left_off else finding
    low = case.low_between
    if not low or case.seen.transport == "socket":
        return None
    if case.seen.peer_memory_module:
        return supports("possible", ("the peer-memory module is loaded; whether the run used it was not read",), low)
    return supports("default", ("the peer-memory module is not loaded by itself; it was not read",), low)


@rule(
    "nic-on-other-socket",
    tier="network",
    source=f"{SOCKET_SOURCE}: the price of a path between sockets",
    remedy="hosttune plan: it gives each GPU a NIC below the same switch; otherwise NCCL_IB_HCA with the near NICs",
    confirm="the path from each GPU to its NIC (hosttune discover), and the same run with a NIC of the GPU's socket",
)
def other_socket(case: Case) -> Finding | None:
    """The NIC is on another socket than the GPU."""
    path, limit = case.seen.gpu_nic_path, case.shape.socket_gb_per_s
    limits = [(limit, f"what the library counts between sockets, {limit:g} GB/s")] if limit else []
    if path == "SYS" and (not case.complaint or case.alone or (case.shape.hosts or 1) > 1):  # few NICs are in order
        words = case.told(
            "gpu_nic_path", "the path from GPU to its nearest NIC is SYS: it crosses the link between sockets"
        )
        return observed(case, words, case.networked, first_kept(_low(case), limits))
    if path in ("PHB", "NODE") and _low(case):
        return supports(
            "indirect", (f"the path from GPU to NIC is {path}: it goes through the CPU's host bridges",), _low(case)
        )
    if path is None and (kept := first_kept(_low(case), limits)):
        return supports("possible", (f"{kept[0].name} keeps to {kept[1]}",), _low(case))
    if path is None and (beside := beside_host(_low(case))):
        return supports("possible", (f"{beside[0].name}: {beside[0].apart}",), beside)
    if unread := tuple(
        v
        for v in (() if path or case.shape.staged or case.seen.transport == "socket" else _low(case))
        if "GPU memory" in v.name or (case.shape.nics == 1 and v in case.low_between)
    ):
        return supports("possible", ("the path from GPU to NIC was not read",), unread)
    return None


@rule(
    "nic-rate-or-link-down",
    tier="network",
    source="/sys/class/infiniband/*/ports/*/rate and state; standard rates of ports",
    remedy="check cable and switch port; then hosttune validate --level 1 --peer HOST (rdma-write)",
    confirm="ibstat or ethtool: rate and state of each port",
)
def port_down(case: Case) -> Finding | None:
    """A port is down or runs at a lower rate."""
    link, words = case.seen.nic_link, []
    limits: list[tuple[float, str]] = []
    if link is not None:
        most = link.max_rate_gbps or (case.shape.nic_gb_per_s or 0) * 8
        if link.rate_gbps is not None and link.rate_gbps < most:
            words.append(case.told("nic_link", f"port at {link.rate_gbps:g} of {most:g} Gb/s"))
            limits += [
                (link.rate_gbps / 8 * (case.shape.nics or 1), "the ports' rate now"),
                (link.rate_gbps / 8, "the port's rate now"),
            ]
        if link.ports is not None and link.ports_active is not None and link.ports_active < link.ports:
            words.append(case.told("nic_link", f"{link.ports_active} of {link.ports} ports are active"))
            limits += [
                (rate / 8 * link.ports_active, "the active ports' rate")
                for rate in (link.rate_gbps, link.max_rate_gbps, (case.shape.nic_gb_per_s or 0) * 8)
                if rate
            ]
    if words:
        about = case.networked or case.about(("tcp",))
        if not about and (link.ports_active if link else None) in range(case.shape.nics or 0):  # all were to be in use
            about = tuple(
                v
                for v in case.figures
                if v.figure.metric in COLLECTIVES
                and (v.hosts or 1) > 1
                and (v.value or 0) <= max(limits, default=(0.0, ""))[0]
            )
        return observed(case, "; ".join(words), about, first_kept(_low(case), limits))
    if apart := tuple(
        verdict for verdict in case.apart(NETWORK) if verdict in case.networked and not _several(verdict)
    ):
        # A port less, or a lower rate, takes a plain part of a collective; routes that meet take any.
        return supports(
            "fits" if any(v.figure.metric not in COLLECTIVES or _plain(v) for v in apart) else "indirect",
            tuple(f"{v.name}: {v.apart}" for v in apart),
            apart,
        )
    one = case.shape.nic_gb_per_s
    if one is None or link is not None or _ports_fine(case):
        return None
    slower = [(rate / 8, f"the rate of a port of {rate:g} Gb/s") for rate in _PORT_RATES if rate / 8 < one * 0.99]
    other = rf"GPU|{_MPI}|{_CROWDED}"
    kept = first_kept(
        [v for v in _low(case) if v.figure.metric == "rdma-write" and not (v.at_once or re.search(other, v.name))],
        slower,
    )
    return supports("fits", (f"{kept[0].name} keeps to {kept[1]}",), (kept[0],)) if kept else None


@rule(
    "nic-count-or-rail-mismatch",
    tier="network",
    source=f"{_GUIDE} (NCCL_IB_HCA, NCCL_CROSS_NIC); the bound of the ports that are used",
    remedy="name all ports in NCCL_IB_HCA, or unset it; cable port i of each host to the same switch (rail)",
    confirm='NCCL_DEBUG=INFO: the ports after "NET/IB : Using"; counters of each port during the run',
)
def port_count(case: Case) -> Finding | None:
    """Only some of the ports are used, or rails are crossed."""
    kept = next(iter(_part_of_ports(case)), None)
    used = case.seen.said.get("nics", "").split(", ")
    name = "NCCL_IB_HCA" if "NCCL_IB_HCA" in case.environment else "UCX_NET_DEVICES"
    count = None if used[0] else ports_named(case.environment.get("NCCL_IB_HCA") or _of_ucx(case, name))
    several = case.shape.nics or (case.shape.per_host if case.shape.switched else 0) or 0  # such boards have one a GPU
    if count is not None and count < several and (case.networked or case.alone):
        of_run = tuple(judged for judged in case.networked if judged.figure.metric != "rdma-write")  # of one port
        if of_run or case.complaint:
            return observed(case, f"{name} names {count} of {case.shape.nics or 'several'} ports", of_run, kept)
    if used[0] and len(used) < (case.shape.nics or 0):
        return observed(
            case, f"the library uses {', '.join(used)} alone, of {case.shape.nics} NICs", case.networked, kept
        )
    if apart := tuple(verdict for verdict in case.apart(NETWORK) if _several(verdict)):
        return supports("fits", tuple(f"{verdict.name}: {verdict.apart}" for verdict in apart), apart)
    if crossed := tuple(judged for judged in _low(case) if _RAILS.search(judged.figure.subject[:400])):
        return supports("fits", (f"{crossed[0].name}: peers of other rails cross the spine",), crossed)
    few = tuple(v for v in case.about(("rdma-write",)) if v.bound is None and re.search(SHARE, v.figure.subject[:400]))
    if few and 0 < (case.shape.nics or 0) < (case.shape.per_host or 0):  # deepseek-ai/DeepEP issue 60
        words = f"{few[0].name}: {case.shape.per_host} GPUs share {case.shape.nics} NICs"
        return supports("fits", (words,), few, "count with a GPU's part of the ports, or add NICs")
    # deepseek-ai/DeepEP issue 336: all ranks took the first port.
    mapped = _set(case, NVSHMEM_ENABLE_NIC_PE_MAPPING=("1", "TRUE", "YES"), NVSHMEM_HCA_PE_MAPPING=())
    if mapped and (case.alone or _low(case)):
        return observed(case, ", ".join(mapped), _low(case))
    if "NCCL_CROSS_NIC" in case.environment and (_low(case) or case.alone):
        return supports("indirect", (f"NCCL_CROSS_NIC={case.environment['NCCL_CROSS_NIC'][:40]}",), _low(case))
    if case.seen.transport == "socket":
        return None
    bond, rate = case.seen.nic_link, case.shape.nic_gb_per_s
    if kept is None and bond and rate and (bond.ports or 0) > (case.shape.nics or 1):
        limit = rate * (case.shape.nics or 1) / (bond.ports or 1)
        kept = first_kept(_low(case), [(limit, f"the rate of one of {bond.ports} bonded ports, {limit:g} GB/s")])
    if kept is not None:
        return supports("fits", (f"{kept[0].name} keeps to {kept[1]}",), _low(case))
    two = tuple(judged for judged in case.low_between if judged.hosts == 2)  # of more, the network comes first
    many = (case.shape.nics or 0) > 1 and count is None and not used[0]
    return supports("possible", ("how many of the ports the run used was not read",), two) if two and many else None


def ports_named(value: str) -> int | None:
    """Return how many ports NCCL_IB_HCA names; None where it leaves ports out, or has the beginning of several names.

    Names are beginnings unless "=" stands before them (NVIDIA/nccl src/misc/param.cc and utils.cc, matchIf).
    """
    names = [name for name in value.lstrip("=").split(",") if name]
    whole = value.startswith("=") or all(re.search(r"\d(:\d+)?$", name) and not _FAMILY.match(name) for name in names)
    return len(names) if names and whole and not value.startswith("^") else None


def _part_of_ports(case: Case) -> Iterator[tuple[Judged, str]]:
    """Yield the low figures that are near what a part of the ports gives."""
    count, rate = case.shape.nics, case.shape.nic_gb_per_s
    for verdict in _low(case):
        for used in range(1, min(count or 0, 64)):
            # Ports are lost by halves, or one.
            if (
                rate
                and ((count or 0) % used == 0 or used + 1 == count)
                and abs((verdict.value or 0) / (used * rate * FLAT_PART) - 1) <= _NEAR_PORTS
            ):
                yield verdict, f"what {used} of {count} ports give, {used * rate * FLAT_PART:.1f} GB/s"


@rule(
    "roce-config",
    tier="network",
    source="NIC makers' RoCE guides: PFC or ECN, GID of RoCE v2; NCCL user guide, NCCL_IB_GID_INDEX, NCCL_IB_TC;"
    " NVIDIA/nccl issue 378: 0.x GB/s without flow control",
    remedy="set PFC/ECN alike on NICs and switches, and the traffic class (NCCL_IB_TC); leave NCCL_IB_GID_INDEX"
    " unset with a recent library",
    confirm="counters of the NIC during the run: out_of_sequence, rnr_nak_retry_err, packet_seq_err, rx_prio*_pause",
)
def roce(case: Case) -> Finding | None:
    """RDMA over Ethernet is not set up for lossless or marked traffic."""
    on_ethernet = "roce" in (case.shape.nic_kind or (case.alone and "roce"), case.seen.transport)
    variables = _set(case, NCCL_IB_GID_INDEX=("0", "1"))
    if variables and (on_ethernet or (case.shape.nic_kind is None and case.seen.transport is None)):
        return observed(case, f"{variables[0]}: on Ethernet, GIDs 0 and 1 are link-local or RoCE v1", case.networked)
    low = tuple(judged for judged in _low(case) if not judged.apart.endswith(BESIDE))
    if not (on_ethernet and low) or case.seen.transport == "socket":
        return None
    if little := _little(case, low):
        words = f"{little[0].name} is less than a fifth of the ports' rate: typical of packets that are dropped"
        return supports("default" if _ports_fine(case) else "fits", (words,), low)
    return supports(
        "possible" if _ports_fine(case) else "default",
        ("Ethernet drops packets unless it is set up not to; it was not read",),
        low,
    )


@rule(
    "network-congestion-or-routing",
    tier="network",
    source="static routes: flows share links by chance; NCCL user guide, NCCL_IB_ADAPTIVE_ROUTING",
    remedy="turn adaptive routing on in the fabric; run on hosts of one leaf switch",
    confirm="the same run on two hosts of one leaf switch; PortXmitWait of the switch ports",
)
def congestion(case: Case) -> Finding | None:
    """Links of the network are shared with other traffic."""
    if variables := _set(case, NCCL_IB_ADAPTIVE_ROUTING=("0",)):
        return observed(case, variables[0], case.networked)
    if case.seen.congestion is not None:
        return observed(case, "the network is congested", case.networked) if case.seen.congestion else None
    low = _low(case)
    hosts = max((verdict.hosts or 0 for verdict in low), default=0)
    fallen = tuple(judged for judged in case.falling if judged in low and "GPU memory" not in judged.figure.subject)
    if fallen and case.seen.transport != "socket":
        return supports("fits", tuple(f"{judged.name}: {judged.apart}" for judged in fallen), fallen)
    near = {judged.figure.metric: judged for judged in case.figures if judged.verdict == "expected" and judged.hosts}
    if farther := tuple(
        judged
        for judged in low
        if (other := near.get(judged.figure.metric)) and not judged.apart and 1 < (other.hosts or 0) <= hosts
        and ((other.hosts or 0) < (judged.hosts or 0) or _FABRIC.search(judged.figure.subject[:400]))
    ):  # fmt: skip
        fine = near[farther[0].figure.metric].name
        return supports("fits", (f"{farther[0].name} is low, and {fine} as it should be: ports are in order",), farther)
    if apart := tuple(
        judged for judged in case.apart(NETWORK) if judged.hosts != 1 or judged.figure.metric == "rdma-write"
    ):
        return supports("fits", tuple(f"{judged.name}: {judged.apart}" for judged in apart), apart)
    if crowded := tuple(v for v in low if v.at_once or re.search(_CROWDED, v.figure.subject[:400])):
        return supports("fits", (f"{crowded[0].name}: flows that run together share links by chance",), crowded)
    if fewer := [
        (judged, other)
        for judged in low
        for other in case.figures
        if other.figure.metric == judged.figure.metric and 1 < (other.hosts or 0) < (judged.hosts or 0)
        # With an all-reduce a tree of two hosts gives up to twice what a ring does.
        and (other.value or 0) > (judged.value or 0) * (2 if "all-reduce" in judged.figure.metric else _FALLS)
    ]:  # fmt: skip
        words = f"{fewer[0][0].name} is far below {fewer[0][1].name}, over the same ports"
        return supports("fits", (words,), tuple(judged for judged, _ in fewer))
    if hosts > (2 if case.shape.virtual else 1) and case.seen.transport != "socket":
        return supports(
            "default" if hosts >= _MANY_HOSTS else "possible",
            (f"{hosts} hosts share the network's links; its counters were not read",),
            low,
        )
    return None
