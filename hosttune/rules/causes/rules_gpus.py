"""Causes between the GPUs of a host: their links, the switch, and what the collectives' library was asked to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.model.diagnosis import Grade
from hosttune.model.measured import COLLECTIVES, RINGS
from hosttune.predicting import formulas
from hosttune.rules.causes.rule import NETWORK, WORK, Case, first_kept, keeps_to, observed, rule, slower_run, supports
from hosttune.rules.causes.verdicts import Judged
from hosttune.rules.engine import Finding

_GUIDE = "NCCL user guide, Environment Variables"
# p2pBandwidthLatencyTest (CUDA samples) prints 1 to 3 µs for peer access and 10 µs and more for copies through host
# memory; cloud-hypervisor pull request 6235 has 1.4 and 12.
_BY_DESIGN = (
    "nothing to unset: the driver gives these models no peer access over PCIe; count with copies through host memory,"
    " or use GPUs with NVLink or a data-center or workstation model"
)
_OF_MACHINE = (
    "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL where they are set; peer access over PCIe needs BARs that hold the whole"
    " memory (Above 4G Decoding and Resizable BAR in the firmware, addresses that the GPUs reach) and no"
    " redirection; between the sockets of some hosts there is none: use GPUs of one; in a"
    " guest let the planner keep GPUs of one switch together"
)
_NVLS_FAILED = (
    "restart Fabric Manager, then reset all GPUs of the board together or reboot; in a guest the fabric must give it"
    " multicast; NCCL_NVLS_ENABLE=0 runs without the switch's help"
)
_BRIDGED = r"\b(?:GeForce|TITAN|Quadro|RTX|PCIe|NVL)\b"
_BRIDGE = (
    "reseat or replace the NVLink bridge between the cards, and see in hosttune discover (nvlinks_active) whether its"
    " links are up"
)
OFF = ("0", "N", "NO", "OFF")  # how UCX and NCCL read a switch that is off
_THROUGH_HOST_SECONDS = 8e-6
_STEPS_SECONDS = 1e-3  # more than the steps of any message take
_STEP_SECONDS = 15e-6  # about twice what the library needs to start (src/graph/tuning.cc, baseLat: 6.6 µs)
_SMALL, _LATENCY = 1 << 20, 0.3  # bytes; part of the time from which latency explains a figure
_RACK, _RING_LEAST = 72, 0.7  # GPUs that links join at most (GB200 NVL72); part of links or ports that a ring gives
_ENGINE = 50.0  # GB/s, of an MI200: rocm.docs.amd.com, "GPU-enabled MPI", copies by SDMA
_BLOCKS = 1 << 16  # bytes; of such blocks 16 ports give a quarter, of 1 MiB 0.9 (kvcache-ai/Mooncake, EFA transport)
_QUEUED = 4096  # bytes; perftest has 128 requests under way, and its default of 64 KiB fills a port


def _set(case: Case, **values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the variables that have one of these values (no value given: any), as NAME=VALUE."""
    return tuple(
        f"{name}={case.environment[name][:60]}"
        for name, wanted in values.items()
        if name in case.environment and (not wanted or case.environment[name].upper() in wanted)
    )


def _pairs(case: Case) -> tuple[Judged, ...]:
    pairs = tuple(judged for judged in (*case.about(("p2p",)), *case.local) if (judged.hosts or 1) == 1)
    return pairs or (case.about(WORK) if case.shape.per_host != 1 and case.shape.hosts in (None, 1) else ())


def _low_pairs(case: Case) -> tuple[Judged, ...]:
    """Return the low figures between GPUs of a host that latency does not explain."""
    return tuple(pair for pair in _pairs(case) if pair.verdict == "low" and latency_share(case, pair) < _LATENCY)


def _no_faster(case: Case) -> tuple[Judged, ...]:
    """Return the low collectives between hosts that a slot can hold: all data crosses the GPUs of a host."""
    rate = case.shape.slot_gb_per_s
    return tuple(judged for judged in case.low_between if rate and (judged.value or 0) <= rate)


def _at_pcie(case: Case) -> tuple[Judged, str] | None:
    """Return a low figure of linked GPUs that is no more than a PCIe slot carries, if none of their copies is more."""
    own = case.shape.generation.pcie_gts if case.shape.generation else None
    rate = case.shape.slot_gb_per_s or (formulas.pcie_gb_per_s(own, 16) if own else None)
    fast = any(judged.figure.metric == "p2p" and (judged.value or 0) > (rate or 0) for judged in case.figures)
    if rate is None or not case.shape.linked or fast:
        return None
    low = [verdict for verdict in _low_pairs(case) if verdict.value is not None and verdict.value <= rate]
    return (low[0], f"what a PCIe slot carries at most, {rate:.1f} GB/s") if low else None


def _of_links(case: Case) -> Grade:
    """Return how well PCIe's rate shows that links are not used: in a guest a meshed board can be hidden, too."""
    return "default" if case.shape.meshed and case.shape.virtual else "fits"


@rule(
    "fabric-manager-not-running",
    tier="stop",
    source="Fabric Manager user guide: GPUs on NVSwitches have no peer access without it, or without their partition",
    remedy="start Fabric Manager, of the driver's version; of a guest, activate its partition (hosttune plan,"
    " fabric_partition)",
    confirm="hosttune validate (fabric-state)",
)
def fabric_manager(case: Case) -> Finding | None:
    """Fabric Manager has not set up the board's switches."""
    if not case.shape.switched:
        return None
    if case.seen.p2p == "off" and not _set(case, NCCL_P2P_DISABLE=("1",)):
        words = case.told("p2p", "no peer access on a board with switches")
        return observed(case, words, _pairs(case) or _no_faster(case), _at_pcie(case))
    kept = _at_pcie(case)
    if case.seen.p2p == "pcie" and _all_links(case):
        return observed(case, "all links are up, and copies between GPUs go over PCIe", _pairs(case), kept)
    if kept is None or case.seen.p2p == "nvlink" or case.seen.transport == "nvls":
        return None
    words = f"{kept[0].name} is below {kept[1]}, on a board with switches; without it CUDA mostly does not start (802)"
    return supports("possible", (words,), _pairs(case))


def _all_links(case: Case) -> bool:
    """Return whether as many links of a GPU are up as its model has."""
    return bool(case.shape.links) and case.measured.setup.nvlinks_per_gpu == case.shape.links


def _without_switch(case: Case) -> bool:
    """Return whether the model is known, and its switches do not reduce."""
    return case.shape.generation is not None and case.shape.generation.switch_part is None


def _ring_kept(case: Case) -> tuple[Judged, str] | None:
    """Return the figure that keeps to a ring where the model expects the switch to reduce."""
    links, generation = case.shape.links_gb_per_s, case.shape.generation
    if links is None or generation is None or generation.ring_part is None or generation.switch_part is None:
        return None
    limits: Iterator[tuple[float, str]] = iter([(links * 1.02, f"the bound of a ring, B = {links:.1f} GB/s")])
    return first_kept([verdict for verdict in case.low(("all-reduce-busbw",)) if verdict in case.local], limits)


@rule(
    "p2p-disabled",
    tier="stop",
    unless=("fabric-manager-not-running",),
    source=f"{_GUIDE} (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL); p2pBandwidthLatencyTest of the CUDA samples;"
    " cloud-hypervisor pull request 6235",
    remedy="unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE; in a guest let the planner keep GPUs of one"
    " switch together",
    confirm="p2pBandwidthLatencyTest with and without --p2p_read, or hosttune validate --level 1 (p2p-write-ce)",
)
def p2p_disabled(case: Case) -> Finding | None:
    """GPUs copy to each other through host memory."""
    finding = _p2p_disabled(case)
    if finding is None or _set(case, NCCL_P2P_DISABLE=(), NCCL_P2P_LEVEL=()):
        return finding
    if not lacks_peers(case):
        return replace(finding, remedy=_OF_MACHINE)
    waived = "Waiv" in finding.text  # a test that did not run
    missed = waived or any(judged.verdict == "low" for judged in case.figures)
    return replace(finding, remedy=_BY_DESIGN) if missed else None


def lacks_peers(case: Case) -> bool:
    """Return whether the GPUs are consumer models without links, to which peer access is not given."""
    unnamed = not case.shape.linked and not case.shape.gpu and "GNS" in case.seen.said.get("p2p", "")
    return case.shape.without_peers or unnamed


def _p2p_disabled(case: Case) -> Finding | None:
    variables = _set(case, NCCL_P2P_DISABLE=("1",), NCCL_P2P_LEVEL=("0", "LOC"))
    shared = _set(case, NCCL_SHM_DISABLE=("1",))
    if variables and shared and _set(case, NCCL_NET=("SOCKET",)):
        return None  # then it is sockets that carry the data
    told = (("p2p", "off", "peer access is off"), ("p2p", "partly", "peer access is off between some of them"),
            ("transport", "shm", "its channels go via SHM"))  # fmt: skip
    words = [
        *variables,
        # Where the driver gives no peer access, shared memory is the only way within a host.
        *(() if variables or case.shape.linked or (case.shape.hosts or 1) > 1 else shared),
        *(case.told(name, text) for name, value, text in told if getattr(case.seen, name) == value),
    ]
    if case.seen.transport == "socket" and case.one_host and case.seen.p2p in (None, "off", "partly"):
        words += [*shared, "the library uses sockets within the host: no peer access, and no shared memory"]
    kept = _at_pcie(case)
    if words:
        about = _pairs(case) or (case.about(COLLECTIVES) if case.shape.hosts is None else _no_faster(case))
        if case.seen.p2p == "partly":
            off = re.findall(r"gpu\d+-gpu\d+", case.seen.said.get("p2p", ""))
            about = tuple(
                judged
                for judged in about
                if judged.figure.metric != "p2p"
                or "-".join(sorted(re.findall(r"gpu\d+", judged.figure.subject))) in off
            )
        if finding := observed(case, "; ".join(words), about, kept):
            return finding
        measured = any(
            judged.verdict == "low" or judged.figure.metric in ("p2p", *COLLECTIVES) for judged in case.figures
        )
        fine = any(judged.verdict == "expected" for judged in case.figures) and not case.about(WORK)
        return supports("observed", words) if case.seen.p2p == "off" and case.open and not (measured or fine) else None
    slow = tuple(
        judged
        for judged in case.figures
        if judged.figure.metric == "p2p" and (judged.seconds or 0) >= _THROUGH_HOST_SECONDS
    )
    if slow and case.seen.p2p is None:
        words = [
            f"{judged.name}: {judged.seconds * 1e6:.3g} µs; peer access takes 1 to 3 µs"
            for judged in slow
            if judged.seconds
        ]
        return supports("fits", tuple(words), slow)
    low = _low_pairs(case)
    if not low or case.seen.p2p is not None or case.seen.transport in ("p2p", "nvls"):
        return None
    if kept is not None and kept[0] not in case.apart(("p2p",)):
        return supports(_of_links(case), (f"{kept[0].name} is below {kept[1]}",), low)
    if not case.shape.linked and case.shape.virtual:
        return supports("default", ("in guests GPUs have no peer access over PCIe unless it is set up",), low)
    if lacks_peers(case):
        return supports("default", ("the driver gives these models no peer access over PCIe",), low)
    return (
        supports("possible", ("whether GPUs access each other directly was not read",), low)
        if not case.shape.linked
        else None
    )


@rule(
    "nvlink-down-or-missing",
    tier="stop",
    source="number of links: the model's data sheet (baselines/roofline.toml); NVIDIA/nccl src/graph/topo.h: rate of"
    " a link",
    remedy="hosttune validate (nvlink); restart the fabric's service, or send the board back if links stay down",
    confirm="the state of each link (hosttune discover, nvlinks_active) and hosttune validate --level 1 (p2p-write-ce)",
    fault_itself=True,
)
def links_down(case: Case) -> Finding | None:
    """Links between GPUs are down, or the path does not use them."""
    finding = _links_down(case)
    return replace(finding, remedy=_BRIDGE) if finding and re.search(_BRIDGED, case.shape.gpu or "") else finding


def _links_down(case: Case) -> Finding | None:
    kept, shape = _at_pcie(case), case.shape
    expected = shape.generation.links if shape.generation else None
    given = case.measured.setup.nvlinks_per_gpu
    peak = shape.peaks.get("scale-up")
    rate = shape.generation.link_peak_gb_per_s if shape.generation else None
    expected = expected if expected is not None else round(peak / rate) if peak and rate else None
    inactive = case.seen.said.get("nvlinks", "")
    if (given or (given == 0 and shape.links)) and (given < expected if expected else inactive):
        return observed(case, inactive or f"{given} links of {expected}", _pairs(case), kept)
    if case.seen.p2p == "pcie" and (shape.links or shape.switched) and not (shape.switched and _all_links(case)):
        return observed(case, "copies between GPUs go over PCIe although the GPUs have links", _pairs(case), kept)
    low = _low_pairs(case)
    joined = shape.generation is not None and shape.generation.joins_hosts and case.seen.transport in ("ib", "roce")
    one_rack = tuple(v for v in case.low_between if (v.hosts or 0) * (shape.per_host or 1) <= _RACK)
    if joined and one_rack and not _set(case, NCCL_CUMEM_ENABLE=("0",), NCCL_MNNVL_ENABLE=("0",)):
        words = "links join the hosts of a rack, and the run used ports: IMEX is not ready, or the racks are different"
        return supports("fits", (words,), one_rack)
    apart = tuple(
        judged for judged in case.apart(("p2p", *COLLECTIVES)) if judged.figure.metric == "p2p" or judged.hosts == 1
    )
    if case.shape.linked and apart:
        return supports("fits", tuple(f"{verdict.name}: {verdict.apart}" for verdict in apart), apart)
    if not low or not case.shape.linked or case.seen.p2p is not None:
        return None
    if kept is not None:
        return supports(_of_links(case), (f"{kept[0].name} is below {kept[1]}",), low)
    return supports("possible", ("how many links are up was not read",), low)


@rule(
    "nvls-off",
    source=f"{_GUIDE} (NCCL_NVLS_ENABLE); stas00/ml-engineering: 473 with NVLS, 365 without, 8 H200",
    remedy="unset NCCL_NVLS_ENABLE and leave NCCL_ALGO unset; in a guest the fabric must give it multicast",
    confirm='NCCL_DEBUG=INFO: "NVLS multicast support is available"; the same run with NCCL_NVLS_ENABLE=1',
)
def nvls_off(case: Case) -> Finding | None:
    """The switch could reduce, and the library does not use it."""
    if _without_switch(case) or case.shape.meshed or case.shape.per_host == 1:  # nothing to reduce within a host
        return None
    variables = _set(case, NCCL_NVLS_ENABLE=("0",))
    kept = _ring_kept(case)
    if variables or (
        case.seen.nvls is False and (case.complaint or kept is not None or case.low(("all-reduce-busbw",)))
    ):
        words = ", ".join(variables) or case.told("nvls", "the run did not use NVLS")
        about = (*case.local, *case.networked)
        most = min(filter(None, (case.shape.links_gb_per_s, case.shape.host_gb_per_s)), default=0) * _RING_LEAST
        near = tuple(judged for judged in about if (judged.value or most) >= most)  # less is not what a ring gives
        finding = observed(case, words, near, kept, weak=about)
        failed = finding and not variables and "nvls" in case.seen.said
        return replace(finding, remedy=_NVLS_FAILED) if finding and failed else finding
    if kept is not None and case.seen.nvls is None and case.seen.transport != "nvls":
        return supports(
            "fits", (f"{kept[0].name} keeps to {kept[1]}; the switch gives {kept[0].typical:.0f}",), (kept[0],)
        )
    return None


@rule(
    "nvls-expected-not-available",
    source="Fabric Manager user guide (multicast needs the whole partition); docs/models.md: up to 4 GPUs the ring"
    " is taken",
    remedy="give the guest all GPUs of a partition; with 4 GPUs or fewer expect the ring's figure",
    confirm='NCCL_DEBUG=INFO: "NVLS multicast support is (not) available"',
)
def nvls_not_available(case: Case) -> Finding | None:
    """The machine cannot let the switch reduce."""
    kept = _ring_kept(case)
    if case.seen.nvls is False and case.complaint and not _set(case, NCCL_NVLS_ENABLE=("0",)):
        return supports(
            "observed",
            ("switches of this generation do not reduce" if _without_switch(case) else "the run did not use NVLS",),
        )
    if kept is None or case.seen.nvls or case.seen.transport == "nvls" or _set(case, NCCL_NVLS_ENABLE=("0",)):
        return None
    grade: Grade = "fits" if case.shape.virtual else "default"
    return supports(grade, (f"{kept[0].name} keeps to {kept[1]}: multicast may not be available here",), (kept[0],))


_FORCED = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_NTHREADS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_LL_THRESHOLD", "NCCL_TREE_THRESHOLD"),
    *("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER"),
)
_ALGORITHM = re.compile(r"(?i)\b(?:ring|tree|nvls(?: ?tree)?|collnet\w*|pat|simple|ll(?:128)?)\b")
_SIZED = ("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS")


@rule(
    "algorithm-or-protocol-forced",
    source=f"{_GUIDE}: NCCL_ALGO, NCCL_PROTO and the numbers of channels are for tests; the library tunes them itself",
    remedy="unset these variables",
    confirm="the same run without them",
)
def forced(case: Case) -> Finding | None:
    """Variables replace what the library would choose."""
    variables = _set(case, **dict.fromkeys(_FORCED, ()), CUDA_LAUNCH_BLOCKING=("1",), HSA_ENABLE_SDMA=("0",))
    if uncached := _set(case, UCX_CUDA_IPC_CACHE=OFF):  # each message opens its memory anew
        return observed(case, ", ".join(uncached), case.about((*COLLECTIVES, "p2p")))
    engine = tuple(
        judged
        for judged in _pairs(case)
        if re.search(r"\bMI2", case.shape.gpu or "") and keeps_to(judged, _ENGINE, 0.9)
    )
    if engine and case.environment.get("HSA_ENABLE_SDMA") != "0":
        words = (
            f"{engine[0].name} keeps to what a copy engine moves, {_ENGINE:g} GB/s: HSA_ENABLE_SDMA=0 uses all links"
        )
        return supports("fits", (words,), engine)
    if case.shape.generation and case.shape.generation.joins_hosts and (case.complaint or case.low(COLLECTIVES)):
        variables += _set(case, NCCL_CUMEM_ENABLE=("0",))  # without such memory no links between hosts
    if case.shape.links == 0 and not case.shape.virtual and case.low(COLLECTIVES):
        variables += _set(case, NCCL_P2P_LEVEL=("SYS", "5"))  # copies cross the sockets, where the library would not
    if slow := slower_run(case, _ALGORITHM, 1.5):
        return supports("fits", (f"{slow[0].name} is far below the same run with another algorithm",), slow)
    # What is set for all does not set one apart.
    about = tuple(judged for judged in case.about(COLLECTIVES) if judged not in case.apart(COLLECTIVES))
    about += case.about(WORK) if "CUDA_LAUNCH_BLOCKING" in case.environment else ()
    if case.alone and variables:
        return observed(case, ", ".join(variables), ())
    alike = bool(about) and all(judged.figure.subject == "2 GPUs" for judged in about)  # of two, tree and ring are one
    # Where no switch reduces, a ring is what the library itself takes for large messages; between hosts mostly, too.
    reduces = case.shape.generation and case.shape.generation.switch_part and case.shape.switched
    ring = not (case.shape.hosts == 1 and reduces) and _set(case, NCCL_ALGO=("RING",), NCCL_TREE_THRESHOLD=("0",))
    if alike or ring:
        variables = tuple(word for word in variables if not word.startswith(("NCCL_ALGO=", "NCCL_TREE_")))
    # For large messages the library itself takes Simple; more channels than it takes cost memory, and little rate.
    variables = tuple(word for word in variables if not re.match(r"(?i)NCCL_(?:PROTO=(?!\^).*simple|MIN_)", word))
    if variables:
        return observed(case, ", ".join(variables), about)
    sized = _set(case, **dict.fromkeys(_SIZED, ()))
    return supports("indirect", (", ".join(sized),), about) if sized and (about or case.alone) else None


@rule(
    "wrong-topology-file",
    tier="setting",
    source=f"{_GUIDE} (NCCL_TOPO_FILE, NCCL_GRAPH_FILE): the file replaces what is found",
    remedy="write it again: hosttune plan, the guest's seed; or unset the variable",
    confirm="NCCL_TOPO_DUMP_FILE without the file, compared with it; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH",
)
def topology_file(case: Case) -> Finding | None:
    """A topology file says something else than the machine."""
    variables = _set(case, NCCL_TOPO_FILE=(), NCCL_GRAPH_FILE=())
    if not variables and not case.seen.topology_file:
        return None
    about = case.about(COLLECTIVES)
    words = ", ".join(variables) or "a topology file is in use"
    if case.shape.virtual is False or case.seen.gpu_nic_path in ("SYS", "NODE"):
        return observed(case, words, about)
    if not about and not case.alone:
        return None
    return supports("possible" if case.shape.virtual and not variables else "indirect", (words,), about)


@rule(
    "small-message-latency",
    source="nccl-tests doc/PERFORMANCE.md: t = S·2(n-1)/n ÷ B + 2(n-1)·α; steps: NVIDIA/nccl src/graph/tuning.cc,"
    " hwLat",
    remedy="compare large messages (256 MiB and more); send larger ones: bigger buckets, fewer calls",
    confirm="the same run from 8 B to 8 GiB: the time stays the same below some size",
)
def small_messages(case: Case) -> Finding | None:
    """The time of the steps, not the bandwidth, limits a message of this size."""
    about = case.low((*NETWORK, "p2p", "h2d", "d2h"))
    if case.written:  # a log has every size, people give the one that they ask about
        largest: dict[tuple[str, str], float] = {}
        for run in case.figures:
            of = (run.figure.metric, run.figure.subject)
            largest[of] = max(largest.get(of, 0.0), run.figure.size_bytes or 0.0)
        about += tuple(
            judged
            for judged in case.about((*NETWORK, "p2p", "h2d", "d2h"))
            if judged.verdict == "unknown"
            and (judged.figure.size_bytes or 0.0) == largest[judged.figure.metric, judged.figure.subject]
        )
    shares = [(verdict, share) for verdict in about if (share := latency_share(case, verdict)) >= _LATENCY]
    words = [
        f"{verdict.name}: "
        + (f"{verdict.figure.size_bytes:,.0f} bytes; " if verdict.figure.size_bytes else "")
        + (f"{share:.0%} of the time or more is latency" if share < 1 else "nearly all of the time is latency")
        for verdict, share in shares[:4]
    ]
    return supports("fits", tuple(words), tuple(verdict for verdict, _ in shares)) if shares else None


def latency_share(case: Case, judged: Judged) -> float:
    """Return the part of the time that the steps of a message take, at the least; 0 if its size is not known.

    A message of 1 MiB or less is taken for latency alone: nccl-tests measures bandwidth with larger ones.
    """
    size, rate = judged.figure.size_bytes, judged.bound
    if not size:
        short = _STEP_SECONDS <= (judged.seconds or 0.0) < _STEPS_SECONDS
        return 1.0 if short and judged.figure.metric in COLLECTIVES else 0.0
    queued = _BLOCKS if (rate or 0) > (case.shape.nic_gb_per_s or rate or 0) else _QUEUED  # over several ports
    if judged.small or size <= (queued if judged.figure.metric == "rdma-write" else _SMALL):
        seconds = judged.seconds or (size / 1e9 / judged.value if judged.value else 0.0)
        return 1.0 if (0.0 if judged.value else _STEP_SECONDS) <= seconds < _STEPS_SECONDS else 0.0
    if rate is None or judged.figure.metric not in RINGS:
        return 0.0
    hosts = judged.hosts or 1
    ranks = max(2, hosts * (case.shape.per_host or (2 if hosts == 1 else 1)))
    step = formulas.STEP_SECONDS
    within = step["nvlink" if case.shape.links else "pcie"]
    seconds = 2 * (ranks - hosts) * within + 2 * (hosts - 1) * step["network"]
    return seconds / (seconds + 2 * (ranks - 1) / ranks * size / 1e9 / rate)
