"""Output of nvidia-smi that an operator saved, for a diagnosis: `topo -m` and `-q`."""

from __future__ import annotations

from typing import Literal

from hosttune.errors import BadInput
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.nvidia_topo import TopoMatrix, parse_topo_matrix
from hosttune.gpu.vendor import LogReader
from hosttune.model.gpu import Gpu
from hosttune.model.measured import Measured, Nics, Observations, Setup

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


NVIDIA_LOGS = (
    LogReader(name="nvidia-smi topo -m", machine=_topology,
              sign=r"(?m)^[ \t]+(?:\x1b\[\w+)?GPU0\b.*\bCPU Affinity\b|^[ \t]+GPU0[ \t]+GPU1\b"),
    LogReader(name="nvidia-smi -q", sign=r"=NVSMI LOG=|<nvidia_smi_log>", gpus=_query),
)  # fmt: skip
