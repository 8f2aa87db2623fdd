"""Causes in how a guest, its CPUs and its memory are placed."""

from __future__ import annotations

import re

from hosttune.model.measured import COLLECTIVES
from hosttune.predicting.formulas import flat
from hosttune.rules.causes.equals import SPREAD
from hosttune.rules.causes.rule import (  # fmt: skip
    HOST_COPIES,
    MEMORY,
    NETWORK,
    STORAGE,
    WORK,
    Case,
    first_kept,
    observed,
    rule,
    supports,
)
from hosttune.rules.causes.verdicts import Judged
from hosttune.rules.engine import Finding

_FAR = re.compile(
    r"\b(?:far|remote|(?:another|other|wrong) (?:numa )?(?:node|socket|memory))\b|cross[- ]socket", re.IGNORECASE
)
_WIDE = 47.0, 64.0  # GB/s: all that a link of 32 GT/s x16, the fastest, carries
BY_NODE = re.compile(r"\b(?:numa|node|socket|cpu)s? ?[0-9]", re.IGNORECASE)
_FROM_NEAR, _NEARER = 0.8, 0.9  # of a link: copies from near memory; of these: runs are nearer to each other
_ON_HOST = re.compile(r"(?i)\b(?:bare[- ]?metal|on the host|of the host)\b")
_TWO_ALONE = 2.0  # times what all give, over one switch
_CLOUDRIFT = "CloudRift, April 2026, six hosts: guest NUMA gave 2 to 7 times the STREAM bandwidth"


def several_alike(case: Case, metrics: tuple[str, ...] = HOST_COPIES) -> bool:
    """Return whether figures of several GPUs are low by the same: no single link or GPU does that."""
    groups = (
        {judged.figure.subject: judged.value or 0 for judged in case.low((metric,)) if not judged.apart}.values()
        for metric in metrics
    )
    each = any(
        re.search(r"(?i)\b(?:each|every|all) ", judged.figure.subject[:400])
        for judged in case.low(metrics)
        if not judged.apart
    )
    return each or any(len(values) > 1 and max(values) <= SPREAD * min(values) for values in groups)


@rule(
    "far-numa-node",
    source="hosttune's own measurement of both nodes (h2d-ce-far); NVIDIA/nccl src/graph/topo.h prices a path"
    " between sockets",
    remedy="hosttune plan: it puts vCPUs, memory and GPU on one node; on a bare host numactl --cpunodebind and"
    " --membind",
    confirm="the same copy from each node: hosttune validate --level 1 (h2d-ce and h2d-ce-far)",
)
def far_node(case: Case) -> Finding | None:
    """Memory or CPUs of another node are used."""
    near = (*HOST_COPIES, *MEMORY)
    about = tuple(
        judged
        for judged in case.about((*near, *WORK, *STORAGE, "rdma-write"))
        if judged.verdict != "unknown" or judged.figure.metric not in HOST_COPIES
        or not _WIDE[0] < (judged.value or 0) < _WIDE[1]
    )  # fmt: skip
    named = tuple(
        judged
        for judged in about
        if judged.figure.metric in near and _FAR.search(judged.figure.subject[:400])
        and (judged.verdict == "low" or judged.figure.metric != "memory-latency")  # it is longer there
    )  # fmt: skip
    if named:
        return observed(case, f"the figure is of another node: {named[0].figure.subject[:80]}", named)
    if case.seen.memory_node not in (None, "far"):
        return None
    if case.seen.memory_node == "far":
        about += tuple(
            verdict
            for verdict in case.figures
            if verdict.verdict == "expected" and verdict.figure.metric in HOST_COPIES
            and (verdict.value or 0) < (verdict.typical or (verdict.bound or 0) * _FROM_NEAR) * _NEARER
        )  # fmt: skip
        if case.alone and case.seen.relaxed_ordering is False:  # with it the far node is as fast: netdev, 2020-06-23
            return supports("fits", ("memory of the far node, to which writes of the NIC keep their order",))
        return observed(case, "memory of the far node", about)
    if apart := tuple(verdict for verdict in case.apart(near) if BY_NODE.search(verdict.figure.subject[:400])):
        return supports("fits", tuple(f"{verdict.name}: {verdict.apart}" for verdict in apart), apart)
    if across := _across_sockets(case):
        words = f"{across[0].name}: two GPUs reach more than twice that: between the others the path crosses CPUs"
        return supports("fits", (words,), across)
    low = case.low(near)
    fine = [judged for judged in case.figures if judged.figure.metric in HOST_COPIES and judged.verdict == "expected"]
    if several_alike(case) and len(fine) == len(low) > 1:
        return supports(
            "fits", (f"{len(low)} copies are low by the same, the others, whose CPU has the memory, not",), low
        )
    several = not case.shape.virtual and not re.match(r"1 ?(?:[x×]|socket)", case.shape.cpu or "")
    if case.seen.pinned is False and several and (copies := case.low(HOST_COPIES)):
        return supports("observed", ("the process is not bound to the GPU's node",), copies)
    crowded = tuple(judged for judged in case.low(HOST_COPIES) if judged.at_once)
    if crowded and any(not judged.at_once for judged in fine):
        words = f"{crowded[0].name}: one alone is as it should be: they share the memory of one node, or an uplink"
        return supports("fits", (words,), crowded)
    if low and case.shape.virtual and case.seen.guest_numa is False:
        return supports("default", ("the guest has no NUMA cells: its memory comes from any node",), low)
    alone = len(low) == 1 and low[0].apart  # one device far below the others, which copy from the same memory
    if case.low(HOST_COPIES) and not alone and re.match(r"2 ?(?:[x×]|sockets)", case.shape.cpu or ""):
        return supports("default", ("a process runs on either socket unless it is bound; it was not read",), low)
    low = low or tuple(v for v in case.low(("rdma-write",)) if "GPU" not in v.name)
    return supports("possible", ("the node of the memory was not read",), low) if low and not alone else None


def _across_sockets(case: Case) -> tuple[Judged, ...]:
    """Return low collectives of GPUs without links, of which two alone reach much more."""
    of_two = {
        (v.figure.metric, v.figure.size_bytes): v.value or 0
        for v in case.figures
        if v.hosts == 1 and v.figure.subject.startswith("2 GPUs")
    }
    slow = case.local if not case.shape.linked and case.seen.p2p == "pcie" else ()
    return tuple(
        v
        for v in slow
        if v.verdict == "low" and (v.value or 0) * _TWO_ALONE < of_two.get((v.figure.metric, v.figure.size_bytes), 0)
    )


@rule(
    "guest-topology-hidden",
    source=f"{_CLOUDRIFT}; nccl-tests issue 380: 320 on the host, 180 in the guest",
    remedy="hosttune plan: cells and expander buses as on the host, and a topology file in the guest's seed",
    confirm="in the guest: the GPUs' topology matrix and lscpu, compared with hosttune discover on the host",
)
def topology_hidden(case: Case) -> Finding | None:
    """The guest does not see which devices and CPUs are near each other."""
    seen, virtual, path = case.seen, case.shape.virtual, case.seen.gpu_nic_path
    rows = (
        (seen.guest_topology == "flat", "the guest's PCI tree is flat"),
        (seen.guest_numa is False, "the guest has no NUMA cells"),
        (virtual and seen.topology_file is False and seen.guest_topology != "mirrored",
         "no topology file in the guest"),
        (virtual and path in ("PHB", "NODE", "SYS") and seen.guest_topology is None
         and any(judged.verdict == "low" for judged in case.figures),
         f"the guest sees the path {path} from GPU to NIC"),
    )  # fmt: skip
    words = [row for holds, row in rows if holds]
    kept = _flat_ring(case)
    if words and rows[-1][0] and len(words) == 1 and kept is None:  # it may be the path that there is
        return supports("fits", words, case.networked)
    if words:
        copies = case.about((*HOST_COPIES, *MEMORY, *WORK)) if seen.guest_numa is False else case.about(WORK)
        return observed(case, "; ".join(words), (*case.networked, *case.local, *copies), kept)
    low = case.low_between if seen.transport != "libfabric" else ()  # aws-ofi-nccl knows the topology of its instances
    if case.shape.meshed or not case.networked:  # RCCL knows meshed boards by their tree (ROCm/rccl issue 1204)
        low += tuple(judged for judged in case.local if judged.verdict == "low")
    low += case.low(("memory-copy",)) if seen.guest_numa is None else ()
    if seen.guest_topology == "mirrored" or not case.shape.virtual or not low or seen.topology_file:
        return None
    if kept is not None:
        return supports("fits", (f"{kept[0].name} keeps to {kept[1]}",), low)
    if fine := [
        v
        for v in case.figures
        if v.verdict == "expected" and _ON_HOST.search(v.name) and v.figure.metric in {j.figure.metric for j in low}
    ]:
        return supports("fits", (f"{fine[0].name} is as it should be: the guest makes the difference",), low)
    return supports(
        "fits" if case.shape.meshed and case.local else "default",
        ("a guest has one NUMA node and a flat PCI tree unless they are planned; they were not read",),
        low,
    )


def _flat_ring(case: Case) -> tuple[Judged, str] | None:
    """Return the figure that keeps to a flat ring where the model expects a hierarchical collective."""
    host = case.shape.host_gb_per_s
    if host is None:
        return None
    bound = flat(host)
    better = [
        verdict for verdict in case.low(COLLECTIVES) if verdict.typical is not None and verdict.typical > bound * 1.1
    ]
    return first_kept(better, [(bound, f"the bound of a flat ring, {bound:g} GB/s")])


@rule(
    "vcpu-floating-or-unpinned",
    tier="setting",
    source="libvirt formatdomain, cputune: without vcpupin the scheduler moves vCPUs between all CPUs",
    remedy="hosttune plan and apply: one CPU for each vCPU",
    confirm="virsh vcpupin GUEST, and the same run with pins",
    unread=("pinned", (*MEMORY, *WORK), "vCPUs float unless they are pinned; it was not read", "default"),
)
def unpinned(case: Case) -> Finding | None:
    """vCPUs run on any CPU."""
    near = case.about((*MEMORY, *WORK, *STORAGE, "rdma-write", *(HOST_COPIES if case.shape.virtual else ())))
    loose = case.seen.pinned is False
    return observed(case, "vCPUs are not pinned", near, weak=case.about((*NETWORK, *HOST_COPIES))) if loose else None


@rule(
    "no-hugepages",
    tier="setting",
    source="Linux Documentation/admin-guide/mm/hugetlbpage.rst; no source says what small pages cost alone",
    remedy="hosttune plan: hugepages in the intent (1GiB or 2MiB)",
    confirm="HugePages_Free on the host while the guest runs, and the same run with huge pages",
    unread=("hugepages", MEMORY, "a guest has small pages unless huge ones are asked for; it was not read", "default"),
)
def small_pages(case: Case) -> Finding | None:
    """A guest's memory is in pages of 4 KiB."""
    weak = case.about((*NETWORK, *HOST_COPIES, *STORAGE))
    small = case.seen.hugepages is False
    return observed(case, "no huge pages", case.about((*MEMORY, *WORK)), weak=weak) if small else None


@rule(
    "noisy-neighbour-cpu",
    tier="machine",
    source="Linux Documentation/admin-guide/cputopology.rst and sched(7): other work on the same cores takes their"
    " time",
    remedy="hosttune plan: housekeeping CPUs of their own; move the other load there",
    confirm="/proc/pressure/cpu and steal time (/proc/stat) while the run goes on",
)
def neighbour(case: Case) -> Finding | None:
    """Other work uses the same CPUs."""
    if not case.seen.other_cpu_load:
        return None
    about = case.about((*MEMORY, *WORK, *HOST_COPIES, *STORAGE))
    direct = case.about((*NETWORK, "p2p"))  # devices move that, unless CPUs copy it
    if case.seen.transport in ("socket", "shm"):
        about += direct
    return supports("observed", ("other load on the CPUs",), about) if about or direct or case.complaint else None


@rule(
    "interrupts-or-c-states",
    tier="setting",
    source="Linux Documentation/admin-guide/pm/cpuidle.rst: deep idle states take 100 µs and more to leave",
    remedy="hosttune plan with profile host, or settings {resume_latency_us: 10}: a bound of idle states on pinned"
    " CPUs",
    confirm="cyclictest, or the same run with /dev/cpu_dma_latency held at 0",
)
def idle_states(case: Case) -> Finding | None:
    """CPUs wake up slowly."""
    if case.seen.c_states != "deep":
        return None
    small = tuple(verdict for verdict in case.about(NETWORK) if (verdict.figure.size_bytes or 1 << 30) <= 1 << 20)
    about = tuple(
        verdict
        for verdict in case.about((*WORK, *STORAGE, "memory-latency"))
        if verdict.verdict != "low" or verdict.figure.metric not in STORAGE
    )
    weak = case.about((*NETWORK, *HOST_COPIES, *MEMORY, *STORAGE))  # long copies hardly wait for a CPU
    return observed(case, "deep idle states are in use", (*small, *about), weak=weak)
