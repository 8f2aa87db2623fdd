"""Causes on PCIe: the link, the IOMMU, redirection between devices, and what a device may ask of the bus."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hosttune.model.measured import COLLECTIVES
from hosttune.predicting.formulas import PCIE_SPEEDS, PCIE_WIDTHS, pcie_gb_per_s
from hosttune.predicting.shape import slot_of
from hosttune.rules.causes.equals import BESIDE, OF_MPI
from hosttune.rules.causes.rule import (
    HOST_COPIES,
    LINK,
    STORAGE,
    WORK,
    Case,
    first_kept,
    keeps_to,
    observed,
    rule,
    supports,
)
from hosttune.rules.causes.rules_gpus import OFF, _set
from hosttune.rules.causes.rules_guest import BY_NODE, several_alike
from hosttune.rules.causes.verdicts import GEN2, IDLE_SPEEDS, Judged
from hosttune.rules.engine import Finding

_OVER_PCIE = (*HOST_COPIES, *LINK, *COLLECTIVES, *WORK, "p2p", "rdma-write")
_WRITTEN, _NIC_LINKS = 0.84, (  # the least part of a NIC's link that perftest reaches; GB/s and words
    (7.88, "a link of 8 GT/s x8, 7.9 GB/s"), (15.75, "a link of 8 GT/s x16, 15.8 GB/s"),
    (31.5, "a link of 16 GT/s x16, 31.5 GB/s"), (63.0, "a link of 32 GT/s x16, 63.0 GB/s"),
)  # fmt: skip
_COPIED = 0.73  # the least part of a link that copies reach: 0.76 (docs/models.md), P100 in a 3.0 x4 slot 0.736
_BETWEEN, _OF_SLOT = 0.6, 0.45  # of a slot: copies between GPUs through switches; less is not the slot's doing
_DIRECT = 0.7  # of a slot: direct copies reach 0.83 to 0.89 of PCIe 5.0 (local-inference-lab/rtx6kpro), 0.76 of 4.0
_MOST = 64.0  # GB/s, of 32 GT/s x16
_FAR_LESS = 0.3  # of a link: what goes through it can be slowed by its steps, but not so much
_OFFLOADED = r"(?i)host memory|offload|system memory"
_NDR, _ORDERED = 50.0, (13.0, 18.0)  # GB/s: a port of 400 Gb/s; what it writes to a GPU in strict order
_DEFAULT_READ = 512  # bytes; PCI Express Base Specification, Device Control register
_BY_DESIGN = "count with this link: the port's rate needs a NIC with more lanes, or a second one"
# A guest has at most so many GPUs; where its copies go through the root they reach this part of the NICs' rate:
# NVIDIA/nccl issues 949 (27 of 50 GB/s) and 2171, nccl-tests issue 380.
_IN_A_GUEST, _PART, _LARGE = 8, (0.4, 0.62), 1 << 28
_SPEC = "PCI Express Base Specification: rate × lanes × encoding"


def _slower(case: Case) -> Iterator[tuple[float, str]]:
    """Yield (GB/s, words) of each link that is slower than the GPU's slot."""
    slot = case.shape.slot
    for speed in PCIE_SPEEDS:
        for width in PCIE_WIDTHS:
            rate = pcie_gb_per_s(speed, width)
            if slot and rate and speed <= slot[0] and width <= slot[1] and (speed, width) != slot:
                yield rate, f"the bound of a link of {speed:g} GT/s x{width}, {rate:.1f} GB/s"


def _slot_limit(case: Case) -> tuple[float, int] | None:
    """Return what the slot can do (GT/s, lanes) where it is less than the GPU can; None if not, or not known."""
    link, written = case.seen.link, slot_of(case.measured.setup.pcie)
    speed = (link.max_speed_gts if link else None) or (written[0] if written else None)
    width = (link.max_width if link else None) or (written[1] if written else None)
    if case.shape.slot is None and speed is None:
        return None
    own, lanes = case.shape.slot or (GEN2, 16)  # a model without a known slot has that at least
    own = max(own, GEN2)
    limited = (speed is not None and speed < own) or (written is not None and written[1] < max(lanes, 8))
    return (speed or own, width or lanes) if limited else None


@rule(
    "pcie-generation-limit",
    tier="stop",
    source="the model's data sheet and the slot's capability (lspci -vv, LnkCap)",
    remedy="put the GPU into a slot of its own generation and width, or set the slot's speed in the firmware to Auto",
    confirm="lspci -vv: LnkCap of the GPU and of the port above it",
)
def generation_limit(case: Case) -> Finding | None:
    """A slot or link supports less than the device."""
    nic = case.seen.nic_pcie_link
    if nic is not None and nic.width == nic.max_width and nic.speed_gts == nic.max_speed_gts:
        rate = pcie_gb_per_s(nic.speed_gts or 0, nic.width or 0)
        kept = first_kept(case.low(("rdma-write",)), [(rate, f"its bound, {rate:.1f} GB/s")] if rate else [])
        if kept:
            words = case.told("nic_pcie_link", f"the NIC has x{nic.width} at {nic.speed_gts:g} GT/s, by design")
            return supports("proven", (words, f"{kept[0].name} keeps to {kept[1]}"), case.networked, _BY_DESIGN)
    limit = _slot_limit(case)
    if limit is None:
        alike = case.of_every_device(tuple(v for v in case.low(HOST_COPIES) if not (v.apart or v.at_once)))
        kept = first_kept(alike, (row for row in _slower(case) if "x16" in row[1]), _COPIED)
        if kept is None or case.seen.link is not None:
            return None
        words = f"{kept[0].name} keeps to {kept[1]}"
        return supports("fits" if several_alike(case) else "possible", (words,), alike)
    rate = pcie_gb_per_s(*limit)
    words = f"the slot can do {limit[0]:g} GT/s x{limit[1]}, the GPU more"
    bound = [(rate, f"the slot's bound {rate:.1f} GB/s")] if rate else []
    kept = first_kept(case.low(HOST_COPIES), bound) or first_kept(case.low(("p2p",)), bound, _BETWEEN)
    alone = case.measured.setup.gpus_per_host == 1  # work of one GPU is mostly in its own memory
    about = tuple(
        judged
        for judged in case.about(_OVER_PCIE)
        if not alone or judged.figure.metric not in WORK or re.search(_OFFLOADED, judged.figure.subject[:400])
    )
    crossing = (*COLLECTIVES, "p2p", "rdma-write")
    strong: list[Judged] = []
    little: list[Judged] = []
    for judged in about:
        small = judged.figure.metric in crossing and (judged.value or 0) < (rate or 0) * _OF_SLOT
        (little if small else strong).append(judged)
    lanes = case.shape.slot[1] if case.shape.slot else 16
    return observed(case, words, tuple(strong), kept, weak=tuple(little) if limit[1] < lanes else ())


@rule(
    "pcie-link-degraded",
    tier="stop",
    source=_SPEC + "; sysfs-bus-pci, current_link_speed and current_link_width",
    remedy="reseat the card or riser; then hosttune validate (pcie-link)",
    confirm="the link's speed and width while copies run: hosttune validate --level 1 (load-link-speed,"
    " load-link-width)",
    fault_itself=True,
)
def degraded(case: Case) -> Finding | None:
    """The link runs below what both ends support."""
    untold = case.shape.nic_gb_per_s or 0 if case.seen.nic_pcie_link is case.seen.link is None else 0
    if kept := first_kept(
        [v for v in case.low(("rdma-write",)) if _of_host_memory(v)],
        [row for row in _NIC_LINKS if row[0] < untold],
        _WRITTEN,
    ):
        return supports("fits", (f"{kept[0].name} keeps to {kept[1]}",), (kept[0],))
    for name, link, metrics in (
        ("link", case.seen.link, HOST_COPIES),
        ("nic_pcie_link", case.seen.nic_pcie_link, ("rdma-write",)),
    ):
        short: list[str] = []
        if link is None:
            continue
        if link.width is not None and link.max_width is not None and link.width < link.max_width:
            short.append(f"link x{link.width} of x{link.max_width}")
        own = case.shape.slot[0] if name == "link" and case.shape.slot else 0
        rate = pcie_gb_per_s(link.speed_gts or link.max_speed_gts or own, link.width or link.max_width or 0)
        kept = first_kept(case.low(metrics), [(rate, f"the bound of this link, {rate:.1f} GB/s")] if rate else [])
        slow = link.speed_gts is not None and link.max_speed_gts is not None and link.speed_gts < link.max_speed_gts
        most = pcie_gb_per_s(link.speed_gts or 0, link.width or link.max_width or 16) or 0
        ran = any(0 < (judged.value or 0) <= most for judged in case.figures if judged.figure.metric in metrics)
        idle = link.speed_gts in IDLE_SPEEDS and link.under_load is not True and kept is None and not ran
        if slow and not idle and link.under_load is not False:
            short.append(f"link at {link.speed_gts:g} of {link.max_speed_gts:g} GT/s")
        about = case.about(_OVER_PCIE) if name == "link" else case.networked or case.about(("tcp",))
        if len(short) == 1 and slow and link.under_load is None and case.measured.figures and not about:
            continue  # of a link at rest, or of an older slot: nothing that was measured needs more
        if short:
            strong = tuple(judged for judged in about if not (name == "link" and _not_of_link(case, judged, rate or 0)))
            # Decoding needs 1 % of eight lanes (noonghunna/club-3090 issue 1000): a lowered power limit costs it more.
            weak = case.lowered and all(re.search(r"(?i)decod", judged.figure.subject[:400]) for judged in about)
            told = case.told(name, ", ".join(short))
            if about and not strong:
                return supports("observed", (told,))
            return observed(case, told, () if weak else strong, kept, weak=about)
    link = case.seen.link
    full = (
        link is not None
        and link.width is not None
        and link.width == link.max_width
        and link.speed_gts == link.max_speed_gts
    )
    if full or (link is not None and _slot_limit(case) is not None):
        return None
    if low := case.low(LINK):
        return supports("observed", tuple(f"{verdict.name}: {verdict.why}" for verdict in low), low)
    # What no slot carries goes over other links, of which a pair can have fewer, or none of its own.
    linked = case.shape.links or any((v.value or 0) > _MOST for v in case.figures if v.figure.metric == "p2p")
    apart = case.apart((*HOST_COPIES, *(() if linked else ("p2p",))))
    near = case.seen.memory_node == "near"  # all CPUs are one node: its name tells no GPU from another
    apart = tuple(verdict for verdict in apart if near or not BY_NODE.search(verdict.figure.subject[:400]))
    words = tuple(f"{verdict.name}: {verdict.apart}" for verdict in apart)
    words += ("fewer lanes, a lower speed, or an uplink that it shares can do that",) if apart else ()
    # Copies that peer access makes no faster are held by the link of a GPU, not by a bridge.
    fast = any(judged.figure.metric == "p2p" and judged.verdict == "expected" for judged in case.figures)
    metrics = (*HOST_COPIES, *(("p2p",) if case.seen.peer_copies_slow is False or fast else ()))
    low = apart or tuple(
        judged
        for judged in case.low(metrics)
        if not judged.at_once and not (judged.apart and BY_NODE.search(judged.figure.subject))
    )
    if kept := first_kept(low, _slower(case), _COPIED):
        words = (*words[:1], f"{kept[0].name} keeps to {kept[1]}")
    if not words and case.shape.slot is None:  # low for any slot
        words = tuple(f"{judged.name}: {judged.why}" for judged in low if judged.figure.metric in HOST_COPIES)
    if words:
        return supports("possible" if several_alike(case) else "fits", words[:4], low)
    low = tuple(judged for judged in case.low(HOST_COPIES) if not (judged.apart or judged.at_once))
    return supports("possible", ("speed and width of the link were not read",), low) if low and link is None else None


def _not_of_link(case: Case, judged: Judged, rate: float) -> bool:
    """Return whether a low figure between GPUs or hosts is not the link's doing: far less, or over other links."""
    between, over_links = judged.figure.metric in (*COLLECTIVES, "p2p"), case.shape.linked and judged.hosts == 1
    less, more = (judged.value or 0) < rate * _FAR_LESS, (judged.value or 0) > rate
    return judged.verdict == "low" and between and (less or (over_links and more))


def _between_devices(case: Case) -> tuple[Judged, ...]:
    """Figures of copies between devices that cross PCIe: to NICs, and between GPUs that no other link joins.

    Without peer access GPUs copy through the host's memory, not to each other.
    """
    off = case.seen.p2p == "off" or case.environment.get("NCCL_P2P_DISABLE") == "1"
    linked = off or (case.shape.linked and case.seen.p2p != "pcie")
    return (*case.networked, *(() if linked else (*case.about(("p2p",)), *case.local)))


def _roomy(case: Case) -> tuple[Judged, ...]:
    """Return the copies between GPUs over PCIe if all leave much of the slot: then what was seen can hold them."""
    pairs = tuple(judged for judged in case.figures if judged.figure.metric == "p2p")
    roomy = all(v.bound and not v.typical and (v.value or 0) < v.bound * _DIRECT for v in pairs)
    without = case.shape.linked or case.shape.without_peers or case.seen.p2p == "off"
    return pairs if roomy and not without else ()


def _of_host_memory(judged: Judged) -> bool:
    """Return whether a port's rate is that of the host's memory: perftest takes it unless it is told a GPU."""
    return judged.figure.metric == "rdma-write" and "GPU" not in judged.figure.subject


def _through_host(case: Case) -> str | None:
    """Return why copies between GPU and NIC cross the CPU anyway, so that redirection costs them nothing more."""
    if case.shape.staged:
        return "its NICs never reach GPU memory directly"
    if case.seen.gpudirect_rdma is False or (case.seen.peer_memory_module is False and not case.seen.gpudirect_rdma):
        return "data goes through host memory (no GPUDirect RDMA)"
    if case.seen.gpu_nic_path in ("PHB", "NODE", "SYS") and case.shape.virtual is False:
        return f"the path from GPU to NIC is {case.seen.gpu_nic_path}"
    return None


_HALF = 1.5  # times the rate of host memory by that of a GPU: runs of one path are nearer
_WITHOUT_GUESTS = (
    "on a host without guests boot with iommu=pt (hosttune plan with profile host), or turn the IOMMU off in the"
    " firmware"
)
_KERNEL_ACS = "Linux drivers/pci/pci.c, pci_enable_acs: redirection is on wherever an IOMMU is used"


@rule(
    "acs-redirect",
    source=f"{_KERNEL_ACS}; NVIDIA/nccl issue 949: 27 → 48 GB/s; NCCL user guide, Troubleshooting, PCI Access Control"
    " Services",
    remedy="hosttune plan with settings {acs: DirectTrans}, and ATS on in the NIC: translated requests then go"
    " directly; hosttune takes no ACS bit away, because redirection keeps tenants apart",
    confirm="lspci -vvv: ACSCtl ReqRedir+ on the bridges between GPU and NIC; then the same run with it off",
)
def acs(case: Case) -> Finding | None:
    """Traffic between the devices goes through the CPU."""
    between = _between_devices(case)
    if case.networked and (through := _through_host(case)):
        between = tuple(judged for judged in between if judged not in case.networked)
        if case.seen.acs_redirect is None or not case.seen.acs_redirect:
            return None
        words = f"{case.told('acs_redirect', 'ACS redirect is on')}, but {through}"
        return observed(case, words, between, weak=case.networked)
    if case.seen.acs_redirect is not None:
        words = case.told("acs_redirect", "ACS redirect is on")
        if case.seen.acs_redirect and case.complaint and case.shape.nic_kind and case.seen.gpudirect_rdma is False:
            return supports("indirect", (f"{words}, but data to the NICs goes through host memory anyway",))
        between += () if case.shape.linked or case.shape.per_host == 1 else case.about(WORK)
        if case.seen.ats and case.shape.virtual:  # as it should be in a guest: translated requests go directly
            between = tuple(judged for judged in between if judged.verdict == "low")
        pairs = case.of_every_device(case.about(("p2p",)))
        between = tuple(judged for judged in between if judged.figure.metric != "p2p" or judged in pairs)
        return observed(case, words, between or _roomy(case)) if case.seen.acs_redirect else None
    if case.seen.peer_copies_slow:
        words = (
            "copies with peer access are slower than those through the host's memory: bridges or IOMMU redirect them"
        )
        return supports(
            "fits", (words,), case.about(("p2p",)),
            f"{_WITHOUT_GUESTS}; with guests hosttune plan with settings {{acs: DirectTrans}}",
        )  # fmt: skip
    waiting = case.seen.said.get("waiting") if case.complaint and not case.shape.links else None
    if waiting and (case.seen.transport == "p2p" or (case.seen.transport is None and case.seen.iommu == "on")):
        return supports(
            "fits",
            (f"{waiting}: they wait for each other, as where their copies do not get through",),
            remedy="run once with NCCL_P2P_DISABLE=1: if that passes, copies between the GPUs do not arrive;"
            f" {_WITHOUT_GUESTS}",
        )
    of_host = {f"{judged.figure.subject}, GPU memory": judged.value or 0 for judged in case.figures}
    if slower := tuple(
        judged
        for judged in between
        if judged.value
        and of_host.get(judged.figure.subject, 0) > judged.value * _HALF
        and OF_MPI not in judged.figure.subject
    ):
        return supports("fits", (f"{slower[0].name} is far below the same port with the host's memory",), slower)
    low = tuple(judged for judged in between if judged.verdict == "low" and not _of_host_memory(judged))
    if beside := tuple(judged for judged in low if judged.apart.endswith(BESIDE) and OF_MPI not in judged.name):
        words = "or the GPU is at another CPU than the NIC: try a NIC that is nearer"
        return supports("fits", (f"{beside[0].name}: {beside[0].apart}", words), beside)
    pairs = tuple(judged for judged in low if judged.figure.metric == "p2p")
    if behind := tuple(judged for judged in pairs if re.search(r"(?i)\bswitch", judged.figure.subject[:400])):
        words = "the devices are behind PCIe switches, where copies cross the CPU only if bridges redirect them"
        return supports("fits", (words,), behind)
    if not low and (halved := _halved(case)):
        words = f"{halved[0].name} is about half of what the guest's NICs carry together"
        return supports("fits", (words,), halved)
    if not low or case.seen.transport in ("socket", "nvls"):
        return None
    if (case.shape.virtual and case.seen.transport != "libfabric") or case.seen.iommu in ("on", "passthrough"):
        return supports("default", ("an IOMMU is in use, with which the kernel turns redirection on",), low)
    return supports("possible", ("whether bridges redirect traffic between devices is not known",), low)


def _halved(case: Case) -> tuple[Judged, ...]:
    """Return the largest collectives between guests that reach about half of the NICs of each."""
    both = case.shape.host_gb_per_s if case.shape.virtual and case.shape.nic_gb_per_s else None
    if not both or case.seen.transport in ("socket", "nvls", "p2p", "shm"):
        return ()
    largest = max((judged.figure.size_bytes or 0 for judged in case.networked), default=0)
    return tuple(
        judged
        for judged in case.networked
        if judged.value is not None and judged.verdict == "unknown"
        and (judged.figure.size_bytes or 0) == largest >= _LARGE and _PART[0] < judged.value / both < _PART[1]
        and (
            (judged.hosts or 0) > 1
            or ((named := re.search(r"\b(\d{1,4}) GPUs", judged.figure.subject)) and int(named[1]) > _IN_A_GUEST)
        )
    )  # fmt: skip


@rule(
    "ats-off",
    tier="setting",
    source="NVIDIA/nccl issue 949 (ACS and ATS settings in guests); PCI Express Base Specification, Address"
    " Translation Services",
    remedy="turn ATS on in the NIC's firmware (mlxconfig ATS_ENABLED=true); hosttune plan with settings"
    " {acs: DirectTrans}",
    confirm="lspci -vvv: ATSCtl Enable+ of the NIC",
)
def ats(case: Case) -> Finding | None:
    """A device asks the IOMMU for each address."""
    if case.seen.ats is not None:
        # Only redirected traffic needs it: it is off on most hosts.
        alone = case.complaint and not case.alone and not case.shape.virtual and not case.seen.acs_redirect
        return None if case.seen.ats or alone else observed(case, "ATS is off", _between_devices(case))
    low = tuple(judged for judged in case.networked if judged.verdict == "low" and not _of_host_memory(judged))
    if low and case.shape.virtual and case.seen.transport != "socket":
        return supports(
            "possible", ("in a guest copies between GPU and NIC need ATS to go directly; it was not read",), low
        )
    return None


@rule(
    "iommu-translation",
    tier="setting",
    source="Linux Documentation/admin-guide/kernel-parameters.txt, iommu.passthrough; NCCL user guide,"
    " Troubleshooting (IOMMU)",
    remedy="hosttune plan with profile host (iommu=pt), then reboot",
    confirm="the same run after a boot with iommu=pt",
)
def translation(case: Case) -> Finding | None:
    """Every access of a device is translated on a host that gives no device away."""
    if case.seen.iommu != "on" or (
        case.seen.said.get("iommu", "").startswith(("iommu: Default", "BOOT_IMAGE"))  # how it booted; alone no fault
        and not any(judged.verdict == "low" for judged in case.figures)
    ):
        return None
    links = [pcie_gb_per_s(speed, 16) for speed in PCIE_SPEEDS if speed > GEN2]
    strong = (*case.about((*STORAGE, *HOST_COPIES, *WORK)), *_between_devices(case))
    strong = tuple(
        judged
        for judged in strong
        if judged.verdict == "low" or judged.figure.metric not in HOST_COPIES
        or not any(keeps_to(judged, rate, _COPIED) for rate in links)  # all that a link carries
    )  # fmt: skip
    if case.shape.virtual:  # always translated: small requests notice it, those of 1 MiB and more hardly
        strong = tuple(judged for judged in case.about(STORAGE) if (judged.figure.size_bytes or 0) < 1 << 20)
    about = case.of_every_device(strong) or (() if case.shape.virtual else _roomy(case))
    words = case.told("iommu", "the IOMMU translates every access of a device")
    return observed(case, words, about) if strong or not case.shape.virtual else None


@rule(
    "ib-relaxed-ordering-off",
    tier="setting",
    source="NCCL user guide, NCCL_IB_PCI_RELAXED_ORDERING (in guests it can be needed); no source says what it costs"
    " alone",
    remedy="hosttune plan with profile host, or settings {relaxed_ordering: true}; NCCL_IB_PCI_RELAXED_ORDERING=1 in"
    " the guest",
    confirm="lspci -vv: DevCtl RlxdOrd+ of the NIC; ib_write_bw with and without --disable_pcie_relaxed",
)
def relaxed_ordering(case: Case) -> Finding | None:
    """Writes of a NIC wait for each other."""
    names = (f"{of}_IB_PCI_RELAXED_ORDERING" for of in ("NCCL", "UCX", "MC"))
    variables = _set(case, **dict.fromkeys(names, OFF))
    words = [*(["relaxed ordering is off"] if case.seen.relaxed_ordering is False else []), *variables]
    strict = re.search(r"(?i)\bamd\b|epyc", case.shape.cpu or "")  # openucx/ucx pull request 8062
    if case.complaint and case.shape.virtual is False and not strict:  # NVIDIA/nccl issue 1205: hardly matters
        return None
    if words:  # storage can be at the other end
        return observed(case, "; ".join(words), case.networked or (case.about(STORAGE) if case.seen.transport else ()))
    wide = tuple(  # openucx/ucx pull request 10955: 16 GB/s without, more than 40 with it; uccl pull request 47
        judged
        for judged in case.networked
        if judged.apart.endswith(BESIDE) and (case.shape.nic_gb_per_s or 0) >= _NDR
        and _ORDERED[0] < (judged.value or 0) < _ORDERED[1]
    )  # fmt: skip
    if wide and case.seen.relaxed_ordering is None:
        return supports("fits", (f"{wide[0].name} is what ports of 400 Gb/s write to GPUs in strict order",), wide)
    low = tuple(
        judged
        for judged in case.networked
        if judged.verdict == "low" and (case.shape.virtual or judged.apart.endswith(BESIDE) or strict)
    )
    if low and case.seen.relaxed_ordering is None and case.seen.transport != "socket":
        return supports(
            "default" if strict and low[0].figure.metric == "rdma-write" else "possible",
            ("relaxed ordering of the NIC was not read",),
            low,
        )
    return None


@rule(
    "pcie-max-read-request",
    tier="setting",
    source="NIC makers' tuning guides (4096 bytes); no source says what it costs alone",
    remedy="hosttune plan with profile host, or settings {read_request_bytes: 4096}",
    confirm="lspci -vv: DevCtl MaxReadReq of the NIC, then the same run with 4096",
    unread=("max_read_request_bytes", ("rdma-write",), "the NIC's largest read request was not read", "possible"),
)
def read_request(case: Case) -> Finding | None:
    """A NIC may read only little at once."""
    size = case.seen.max_read_request_bytes
    least = _DEFAULT_READ if case.complaint and not case.alone else 4096  # the default alone is no fault
    if size is not None and size < least:
        strong = (*case.networked, *case.about(STORAGE)) if size <= 512 else ()
        return observed(case, f"largest read request {size:g} bytes", strong, weak=case.networked)
    return None
