"""Lines in which a library, a driver or the kernel says outright what is wrong, whatever stands around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from hosttune.gpu import VENDORS
from hosttune.gpu.matrices import named_pairs
from hosttune.model.measured import LinkSeen, Measured, Observations, Setup, Stated
from hosttune.rules.causes.clusterlines import CLUSTER_FAILURES, CLUSTER_LINES, CLUSTER_SYMPTOMS
from hosttune.rules.causes.driverlines import DRIVER_LINES, DRIVER_SYMPTOMS
from hosttune.rules.causes.faultlines import FAILURES, FAULT_LINES, SYMPTOMS, FaultLine
from hosttune.rules.causes.guestlines import GUEST_FAILURES, GUEST_LINES, GUEST_SYMPTOMS, NOT_READY
from hosttune.rules.causes.kernel import ASLEEP, of_kernel
from hosttune.rules.causes.labels import rejoined
from hosttune.rules.causes.ports import shared_slot
from hosttune.rules.causes.search import distinct, findall, search

NO_FABRIC = "|".join(
    rf"{words}\b[^\n]{{0,60}}"
    for words in (
        r"[Ss]ystem not yet initialized",
        r"[Ee]rror 802",
        r"[Ee]rror: 802",
        r"returned 802",
        r"code=802",
        r"\[802\] Call to cuInit",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "cudaErrorSystemNotReady",
    )
)
# An observation, its value, and the line from its first fixed letters on: those are found fast in long logs.
_ROWS: tuple[tuple[str, Any, str], ...] = (
    # NVIDIA/nccl src/transport/net_ib.cc, src/graph/paths.cc, p2p.cc, nvls.cc; ROCm/rccl src/init.cc
    ("gpudirect_rdma", False, r"(?<!Socket : )GPU Direct RDMA Disabled for (?:HCA|GPU)[^\n]{0,80}"),
    ("p2p", "off", r"P2P is disabled between (?:\w{1,10} )?connected GPUs[^\n.]{0,40}"),
    ("p2p", "off", r"Could not enable P2P between[^\n]{0,60}"),
    ("transport", "socket", r"NET/OFI Could not find any optimal provider"),  # aws-ofi-nccl: sockets are left
    ("nvls", False, r"transport/nvls\.cc:\d{1,5} NCCL WARN[^\n]{0,80}|Failed to bind NVLink SHARP[^\n]{0,120}"),
    ("iommu", "on", r"Missing \"iommu=pt\" from kernel command line"),
    # Linux drivers/iommu/iommu.c, iommu_subsys_init; /proc/cmdline
    ("iommu", "passthrough", r"iommu: Default domain type: Passthrough|BOOT_IMAGE=[^\n]{1,600}\biommu=pt\b"),
    ("iommu", "on", r"iommu: Default domain type: Translated|BOOT_IMAGE=[^\n]{1,600}\b(?:intel|amd)_iommu=on\b"),
    # CUDA samples, simpleP2P.cu; cudaErrorSystemNotReady; HIP samples, hipBusBandwidth; ROCm Validation Suite, pqt
    ("p2p", "off", r"Peer access from [^\n]{1,200}? : No\b"),
    ("p2p", "off", NO_FABRIC),
    ("p2p", "off", r"peer2peer not supported : gpu#\d{1,3}"),
    ("p2p", "off", r"p2p \d{1,6} \d{1,6} peers:false\b|p2p-bandwidth No peers found"),
    # NVIDIA/nccl src/graph/xml.cc, NCCL_TOPO_DUMP_FILE: its issue 1329
    ("guest_topology", "flat", r"<cpu numaid=\"-1\"[^>\n]{0,160}>\s{1,16}<pci busid=\"[^\"\n]{7,16}\" class=\"0x03"
     r"[^>\n]{0,200}link_speed=\"\" link_width=\"0\""),
    ("p2p", "off", r"only 0 out of \d{1,4} GPU pairs are enabled direct access"),  # MXNet, src/kvstore/comm.h
    # nvidia-smi -q, also a part of it; amd-smi metric --throttle; Linux drivers/accel/habanalabs
    ("thermal_slowdown", True, r"[SH]W Thermal Slowdown[ \t]{0,40}: Active\b"),
    ("thermal_slowdown", True, r"(?:SOCKET|VR|HBM)_THERMAL_VIOLATION_STATUS: ACTIVE\b"),
    ("thermal_slowdown", True, r"Clock throttling due to overheating"),
)  # fmt: skip
# Those of which some say that a pair has access.
_PEERS = (
    r"Peer access from [^\n]{1,120}?\(GPU(\d{1,3})\) -> [^\n]{1,120}?\(GPU(\d{1,3})\) : (Yes|No)\b"
    r"|\bp2p (\d{1,6}) (\d{1,6}) peers:(true|false)\b"
)
_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
# Linux drivers/pci/pci.c, __pcie_print_link_status, and probe.c, pci_setup_device. Devices 07 and 08 of an AMD CPU are
# bridges to what is inside it, where a slower link is by design.
_NARROW = (
    rf"\b([\w-]{{1,32}}) ({_ADDRESS}):[^\n]{{0,40}} [0-9.]{{1,9}} Gb/s available PCIe bandwidth, limited by"
    rf" ([0-9.]{{1,5}}) GT/s (?:PCIe )?x(\d{{1,2}}) link at (?!\S{{4}}:\S\S:0[78]\.1 )(\S{{1,20}})"
    r" \(capable of [0-9.]{1,9} Gb/s with"
    r" ([0-9.]{1,5}) GT/s (?:PCIe )?x(\d{1,2}) link\)"
)
_CLASS = rf"\bpci ({_ADDRESS}): \[[0-9a-f]{{4}}:[0-9a-f]{{4}}\] type 0[01] class 0x([0-9a-f]{{4}})"
_REFUSED = (
    r"(vfio_\w{0,20}dma_map ?\(0x[0-9a-f]{1,16}, (0x[0-9a-f]{1,16}), (0x[0-9a-f]{1,16}), 0x[0-9a-f]{1,16}\) = -22)"
)
_RESERVED = r"(?m:^)[ \t]*(0x[0-9a-f]{16}) (0x[0-9a-f]{16}) reserved\b"
_GIDS = (  # ibv_devinfo -v; show_gids
    r"GID\[ {0,3}(\d{1,3})\]:[ \t]{1,16}([0-9a-fA-F:.]{4,45}), (?:IB/)?RoCE (v[12])"
    r"|(?m:^)[ \t]*[a-z]\w{2,20}[ \t]+\d[ \t]+(\d{1,3})[ \t]+([0-9a-f:]{15,39})[ \t][^\n]{0,60}?(v[12])\b"
)
_UNREACHED = "show_gids"  # of the remedies for ports that do not reach each other
_HYPERTRANSPORT = (0xFD_0000_0000, 0xFF_FFFF_FFFF)  # QEMU hw/i386/pc.c, AMD_HT_START, AMD_HT_END
_GPU, _NIC, _DRIVE = ("03", "12"), ("02",), ("0108",)  # PCI classes
_UPLINK = 4
# Linux drivers/gpu/drm: a GPU of which a driver tells trouble.
_HUNG = rf"\b(?:amdgpu|xe|i915) ({_ADDRESS}): [^\n]{{0,60}}?(?:page fault|[Rr]eset begin|wedged|GPU HANG|timeout)"
_LAST = r"RmInitAdapter failed|Fatal error during GPU init"  # what a driver says when it gives a GPU up
_CERTAIN = (*GUEST_LINES, *DRIVER_LINES, *CLUSTER_LINES, *FAULT_LINES)
_SEEN = (*DRIVER_SYMPTOMS, *CLUSTER_SYMPTOMS, *SYMPTOMS, *GUEST_SYMPTOMS)
_FAILED = (*CLUSTER_FAILURES, *FAILURES, *GUEST_FAILURES)
_FOLLOWING = {row.says for row in _CERTAIN if row.follows}
SPOKEN = (*(pattern for _, _, pattern in _ROWS), *(row.pattern for row in (*_CERTAIN, *_SEEN, *_FAILED)))


def spoken(line: str) -> bool:
    """Return whether a rule knows what a line says."""
    return any(search(pattern, line) for pattern in SPOKEN)


def stated(text: str) -> dict[str, tuple[Any, str]]:
    """Return the observations that lines state, each with its value and the line's words."""
    unready = search(NOT_READY, text)  # CUDA says the same of it
    rows = (
        (name, value, search(pattern, text))
        for name, value, pattern in reversed(_ROWS)
        if not unready or pattern is not NO_FABRIC
    )
    found = {name: (value, match[0].strip()) for name, value, match in rows if match}
    peers = [("".join(row[::3]), "".join(row[1::3]), "".join(row[2::3])) for row in findall(_PEERS, text)]
    off = [(f"gpu{start}", f"gpu{end}") for start, end, word in peers if word in ("No", "false")]
    if off and len(off) < len(peers):
        found["p2p"] = ("partly", named_pairs(off))
    if "/GDRDMA" in text or re.search(r"GPU Direct RDMA (?:\(DMABUF\) )?[Ee]nabled", text):  # of one of several ports
        found.pop("gpudirect_rdma", None)
    return found


def _told(rows: Iterable[FaultLine], text: str) -> Iterator[Stated]:
    """Yield what lines say; of one line what the first row says that has it."""
    begins: set[int] = set()  # of the first line of a match and of its last
    for row in rows:
        match = search(row.pattern, text)
        lines = {text.rfind("\n", 0, place) for place in match.span()} if match else set()
        if match and begins.isdisjoint(lines) and (not row.beside or search(row.beside, text)):
            begins |= lines
            yield Stated(says=row.says, line=" ".join(match[0].split()), remedy=row.remedy, source=row.source)


def _unwrapped(text: str) -> tuple[str, Callable[[FaultLine], FaultLine]]:
    """Return the text with each cell of DCGM's tables in one line, and what makes a row fit it.

    DCGM cuts words at the cell's end, and a blank that was there is lost (dcgmi's CommandOutputController).
    """
    joined = re.sub(r"[ \t]{0,80}\|[ \t\r]{0,8}\n\|[ \t]{4,60}\|[ \t]?", "", text)
    if joined == text:
        return text, lambda row: row
    # A look-behind has a fixed width.
    return (
        joined,
        lambda row: row if "(?<" in row.pattern else row._replace(pattern=re.sub(r" (?![?*+{\]])", " ?", row.pattern)),
    )


def _overlaps(text: str) -> Iterator[Stated]:
    """Yield a refused mapping of guest memory that runs over addresses which the IOMMU keeps, as the text lists them.

    Without the list: over those of HyperTransport below 1 TiB, which AMD's IOMMU keeps on every host.
    """
    kept = [(int(start, 16), int(end, 16)) for start, end in findall(_RESERVED, text)] or [_HYPERTRANSPORT]
    for line, start, size in findall(_REFUSED, text):
        first = int(start, 16)
        for low, high in kept:
            if first <= high and low < first + int(size, 16):
                yield Stated(
                    says=f"the guest's memory runs over addresses that the IOMMU keeps, {low:#x} to {high:#x}",
                    line=line,
                    remedy="on AMD, QEMU with a machine type of 7.1 or later leaves out those below 1 TiB; or give the"
                    " guest less memory",
                    source="QEMU hw/i386/pc.c, pc_set_amd_above_4g_mem_start; iommu_groups/*/reserved_regions",
                )
                return


def _gids(text: str) -> Iterator[Stated]:
    """Yield that the GID which a variable names is no RoCE v2 one with an address, as ibv_devinfo or show_gids say."""
    index = search(r"GID_INDEX(?: set (?:by environment )?to |=\"?)(\d{1,3})\b", text)
    table = [(number or other, gid.lower(), kind) for number, gid, kind, other, shown, ver in findall(_GIDS, text)
             for gid, kind in [(gid or shown, kind or ver)]]  # fmt: skip
    routed = [number for number, gid, kind in table if "ffff:" in gid and kind == "v2"]
    for number, gid, kind in table:
        if index and number == index[1] and routed and number not in routed:
            yield Stated(
                says=f"NCCL_IB_GID_INDEX={number} is {'link-local' if gid.startswith('fe80') else 'of RoCE ' + kind},"
                " which does not reach the other hosts",
                line=f"GID {number}: {gid}, RoCE {kind}",
                remedy=f"NCCL_IB_GID_INDEX={routed[0]}, which is RoCE v2 with an IPv4 address, where show_gids has it"
                " on all hosts; or unset it: NCCL 2.21 and later chooses by itself",
                source="NCCL user guide, NCCL_IB_GID_INDEX; NVIDIA/nccl issue 769",
            )
            return


def lines_of(text: str) -> Measured:
    """Return what such lines show, and the links that the kernel says are narrow."""
    kernel = list(of_kernel(text))
    text = distinct(text)
    found = stated(text)
    seen: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    said = {name: words for name, (_, words) in found.items()}
    classes, drivers = dict(findall(_CLASS, text)), {vendor.driver for vendor in VENDORS}
    worst: dict[str, float] = {}
    joined, fitting = _unwrapped(text)
    told = [*_overlaps(text), *shared_slot(text), *_told(map(fitting, _CERTAIN), joined)]
    told = told or [*_told(_CERTAIN, rejoined(text))]
    told = [*_gids(text), *told] if any(_UNREACHED in line.remedy for line in told) else told
    seen_too = () if told else _told(map(fitting, _SEEN), joined)
    asleep = any(ASLEEP in line.says for line in kernel)  # its driver then fails, whatever its model is
    symptoms = [
        line
        for line in seen_too
        if not any(line.says in other.says for other in kernel) and not (asleep and re.search(_LAST, line.line))
    ]
    # That a GPU was not started is left to the line that says why, if there is one.
    more = [line for line in kernel if not ((told or symptoms or asleep) and re.search(_LAST, line.line))]
    told = [*more, *told] if all(line.says in _FOLLOWING for line in told) else [*told, *more]
    told += symptoms
    if len(hung := set(findall(_HUNG, text))) == 1:
        told = [
            replace(row, line=f"{min(hung)}: {row.line}") if row.says.startswith("a GPU hung") else row for row in told
        ]
    told += [] if told or found else list(_told(_FAILED, text))[:1]
    for driver, address, speed, width, where, top, most in findall(_NARROW, text):
        # A function without a class here that a driver names is a NIC: only drivers of GPUs and NICs print the line.
        # A chipset's uplink, which holds what is behind it, has four lanes; a wider one is above a card.
        unknown = ("03" if int(width) > _UPLINK else "") if driver == "pci" else "02"
        kind = classes.get(address, "03" if driver in drivers else unknown)
        name = "link" if kind.startswith(_GPU) else "nic_pcie_link" if kind.startswith(_NIC) else ""
        part = int(width) / max(1, int(most)) + float(speed) / max(1, float(top)) / 100
        link = LinkSeen(speed_gts=float(speed), width=int(width), max_speed_gts=float(top), max_width=int(most))
        if kind.startswith(_DRIVE):
            told.append(narrow_drive(f"{address}, limited at {where}", link))
        if name and part < worst.get(name, 2):
            worst[name] = part
            seen[name] = link
            said[name] = f"{address}, limited at {where}"
    switched = True if search(NO_FABRIC, text) and not search(NOT_READY, text) else None
    return Measured(
        version=1,
        setup=Setup(nvswitch=switched),
        observations=Observations(**seen, said=said, stated=tuple(told)),
    )


def narrow_drive(address: str, link: LinkSeen) -> Stated:
    """Return what to say of a drive whose link is slower than it can be."""
    now, most = (
        f"{speed:g} GT/s x{lanes}"
        for speed, lanes in ((link.speed_gts or 0, link.width), (link.max_speed_gts or 0, link.max_width))
    )
    return Stated(
        says=f"the drive's link is {now}, and the drive can do {most}",
        line=address,
        remedy="put it into a slot with its lanes and speed, or reseat it and its riser; a slot that has no more is by"
        " design",
        source="PCI Express Base Specification: rate × lanes × encoding",
    )
