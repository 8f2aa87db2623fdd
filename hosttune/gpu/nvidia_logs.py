"""Output of NVIDIA's tools that an operator saved, for a diagnosis: nvidia-smi, and the tests of the CUDA samples."""

from __future__ import annotations

import re
from typing import Literal

from hosttune.errors import BadInput
from hosttune.gpu.matrices import between, matrices, within
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.nvidia_topo import TopoMatrix, parse_topo_matrix
from hosttune.gpu.vendor import LogReader
from hosttune.model.gpu import Gpu
from hosttune.model.measured import Figure, Measured, Nics, Observations, Setup

# Nearest first (nvidia-smi topo -m, legend).
_PATHS: tuple[Literal["PIX", "PXB", "PHB", "NODE", "SYS"], ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
_MOST_LINKS = 18  # of one GPU (nvml.h, NVML_NVLINK_MAX_LINKS)


def _query(text: str) -> tuple[Gpu, ...]:
    answer = parse_smi_xml(text) if text.lstrip().startswith("<") else parse_smi_text(text)
    if not answer.gpus:
        raise BadInput("no GPU in it", where="nvidia-smi -q", hint="save its whole output")
    return answer.gpus


def _topology(text: str) -> Measured:
    matrix = parse_topo_matrix(text)
    if matrix is None or any(len(row) < len(matrix.gpus) + len(matrix.nics) - 1 for row in matrix.paths.values()):
        raise BadInput("no whole matrix in it", where="nvidia-smi topo -m", hint="save its whole output")
    if any(name not in matrix.paths for name in (*matrix.gpus, *matrix.nics)):
        raise BadInput("a row of the matrix is missing", where="nvidia-smi topo -m", hint="save its whole output")
    words = [matrix.paths[one][other] for one in matrix.gpus for other in matrix.gpus if one != other]
    links = {int(word[2:]) for word in words if word.startswith("NV")}
    linked = [word.startswith("NV") for word in words]
    # As many links to each peer, and more than a GPU has if they led to one peer each: they lead to switches.
    peers = len(matrix.gpus) - 1
    count = links.pop() if len(links) == 1 and all(linked) else None
    switched = count is not None and count * peers > _MOST_LINKS
    p2p: Literal["nvlink", "pcie"] | None = None
    if linked:
        p2p = "nvlink" if all(linked) else None if any(linked) else "pcie"
    return Measured(
        version=1,
        setup=Setup(
            gpus_per_host=len(matrix.gpus) or None,
            nvlinks_per_gpu=count if switched else 0 if linked and not any(linked) else None,
            nvswitch=True if switched else None,
            nics=Nics(count=len(matrix.nics)) if matrix.nics else None,
        ),
        observations=Observations(p2p=p2p, gpu_nic_path=_worst_path(matrix)),
    )


def _worst_path(matrix: TopoMatrix) -> Literal["PIX", "PXB", "PHB", "NODE", "SYS"] | None:
    """Return the path to its nearest NIC of the GPU that has the worst one; None without NICs."""
    best = []
    for gpu in matrix.gpus:
        words = [matrix.paths[gpu][nic] for nic in matrix.nics if matrix.paths[gpu].get(nic) in _PATHS]
        if not words:
            return None
        best.append(min(_PATHS.index(word) for word in words))
    return _PATHS[max(best)] if best else None


_PEER_DEVICE = re.compile(r"(?m)^Device: (\d{1,3}), ([^,\n]{1,120}), pciBusID")
_PEER_ACCESS = re.compile(r"(?m)^Device=\d{1,3} (CAN|CANNOT) Access Peer Device=\d{1,3}")
_SAME = 0.05  # two runs of a copy differ by less
_PEER_TITLE = re.compile(
    r"(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth(?: \(P2P (Writes|Reads)\))? Matrix \(GB/s\)"
)


def _peers(text: str) -> Measured:
    """Read p2pBandwidthLatencyTest: copies with peer access where GPUs have it (CUDA samples). Raises BadInput."""
    devices = dict(_PEER_DEVICE.findall(text))
    access = set(_PEER_ACCESS.findall(text))
    peers = {(match[1], match[2], match[3] or "Writes"): cells for match, cells in matrices(text, _PEER_TITLE)}
    order = [(way, state, "Writes") for state in ("Enabled", "Disabled") for way in ("Uni", "Bi")]
    best = next((kind for kind in order if kind in peers), None)
    if best is None and not access:
        raise BadInput("no whole matrix in it", where="p2pBandwidthLatencyTest", hint="save its whole output")
    cells = peers[best] if best else {}
    names = {row: f"gpu{row}" for row, _ in cells}
    one_way = cells if best and best[0] == "Uni" else {}
    # Without peer access the copies of P2P=Enabled go through the host's memory, as those of P2P=Disabled do.
    off = peers.get((best[0], "Disabled", "Writes"), {}) if best and best[1] == "Enabled" else {}
    pairs = [(value, off.get(pair)) for pair, value in cells.items() if value and pair[0] != pair[1]]
    same = bool(pairs) and all(other and abs(value / other - 1) < _SAME for value, other in pairs)
    slow = bool(pairs) and all(other and value * 2 < other for value, other in pairs)
    said = "P2P=Enabled gives what P2P=Disabled gives" if same else ""
    said = "CANNOT Access Peer Device" if access == {"CANNOT"} else said
    return Measured(
        version=1,
        setup=Setup(
            gpu=set(devices.values()).pop() if len(set(devices.values())) == 1 else None,
            gpus_per_host=len(devices) or len(names) or None,
            hosts=1,
        ),
        figures=(*between(cells, names, best is not None and best[0] == "Bi"), *within(one_way, names)),
        observations=Observations(
            p2p="off" if said else None, peer_copies_slow=slow or None, said={"p2p": said} if said else {}
        ),
    )


_COPY = re.compile(r"(Host to Device|Device to Host|Device to Device) Bandwidth, \d{1,3} Device\(s\)")
_COPIES = {"Host to Device": "h2d", "Device to Host": "d2h", "Device to Device": "device-copy"}
_COPY_UNIT = re.compile(r"Bandwidth ?\(([GM]B/s)\)")


def _copies(text: str) -> Measured:
    """Read bandwidthTest of the CUDA samples: the largest transfer of each direction. Raises BadInput."""
    devices = dict(re.findall(r"(?m)^[ \t]*Device (\d{1,3}): (\S[^\n]{0,120}?)[ \t]*$", text))
    bound = re.search(r"\bnumactl\b[^\n]{0,200}?(?:-N|-m|--cpunodebind|--membind)[ =]?(\d{1,4})\b", text)
    subject = (f"gpu{next(iter(devices))}" if len(devices) == 1 else "GPU") + (f", node {bound[1]}" if bound else "")
    figures: dict[str, Figure] = {}
    metric, unit, pageable = None, "", False
    for line in text.split("\n"):
        if title := _COPY.search(line):
            metric, unit = _COPIES[title[1]], ""
        elif heading := _COPY_UNIT.search(line):
            unit = heading[1]
        elif re.match(r"\s*PAGEABLE Memory Transfers", line):
            pageable = True
        elif metric and unit and (row := re.fullmatch(r"\s*(\d{4,12})\s+(\d{1,7}(?:\.\d{1,3})?)\s*", line)):
            size = float(row[1])
            if size >= (figures[metric].size_bytes or 0 if metric in figures else 0):
                figures[metric] = Figure(
                    metric=metric, subject=subject, value=float(row[2]), unit=unit, size_bytes=size
                )
    if not figures:
        raise BadInput("no line of figures", where="bandwidthTest", hint="save its whole output")
    return Measured(
        version=1,
        setup=Setup(gpu=next(iter(devices.values())) if len(devices) == 1 else None, hosts=1),
        figures=tuple(figures.values()),
        observations=Observations(pageable_memory=True if pageable else None),
    )


NVIDIA_LOGS = (
    LogReader(name="p2pBandwidthLatencyTest",
              sign=rf"(?m)P2P \(Peer-to-Peer\) GPU Bandwidth|{_PEER_TITLE.pattern}|{_PEER_ACCESS.pattern[4:]}",
              machine=_peers, begin=r"^\[P2P \(Peer-to-Peer\) GPU"),
    LogReader(name="bandwidthTest", sign=rf"(?m)^\[CUDA Bandwidth Test|{_COPY.pattern}", machine=_copies,
              begin=r"^(?:.*\bnumactl\b.*\n)?\[?CUDA Bandwidth Test"),
    LogReader(name="nvidia-smi topo -m", machine=_topology,
              sign=r"(?m)^[ \t]+(?:\x1b\[\w+)?GPU0\b.*\bCPU Affinity\b|^[ \t]+GPU0[ \t]+GPU1\b"),
    LogReader(name="nvidia-smi -q", sign=r"=NVSMI LOG=|<nvidia_smi_log>", gpus=_query),
)  # fmt: skip
