"""The formulas: rates in GB/s (10^9 bytes) and one direction, sizes in bytes, times in seconds, unless a name says so.

Each number that is not physics has its source beside it. The points that they were fitted to are in
tests/cases/models/points.json, and tests/unit/predicting/test_models.py leaves each out in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hosttune.model.pci import PCIE_GTS

MEASURED = "measured on H200 SXM in a guest, driver 580.159.04, 2026-11-20"
ML_ENGINEERING = "stas00/ml-engineering@744d01e network/README.md"

# --- PCIe ------------------------------------------------------------------------------------------------------
# PCI Express Base Specification: 8b/10b at 2.5 and 5 GT/s, 128b/130b at 8 to 32 GT/s. Faster links are not modelled.
_OLD_GTS, _MOST_GTS = 5.0, 32.0
PCIE_SPEEDS = tuple(gts for gts in PCIE_GTS.values() if gts <= _MOST_GTS)
PCIE_WIDTHS = (1, 2, 4, 8, 16)
COPY_PART, COPY_GTS = 0.88, 32.0  # pinned copies: 55.1 to 55.5 of 63.0 GB/s, PCIe 5.0
PCIE_SOURCE = "PCI Express Base Specification"
COPY_SOURCE = f"link rate and encoding: PCI Express Base Specification; 0.88: {ML_ENGINEERING} (55.4, 55.1) and {MEASURED} (55.5, 55.4)"  # noqa: E501


def pcie_gb_per_s(speed_gts: float, width: int) -> float | None:
    """Return what a link carries after its encoding; None for speeds that are not modelled."""
    if not 0 < speed_gts <= _MOST_GTS or width <= 0:
        return None
    return speed_gts * width * (0.8 if speed_gts <= _OLD_GTS else 128 / 130) / 8


# --- within a GPU, and from one to another -----------------------------------------------------------------------
PAIR_PART, DEVICE_COPY_PART, BF16_PART = 394.5 / 450, 4247 / 4800, 797.5 / 989.5
FP8_PART = 1506 / 1979  # the median of nine H200, 1,433 to 1,542
ON_GPU_SOURCE = f"peak: data sheet (baselines/roofline.toml); part: {MEASURED}"
MEMORY, DENSE = "the memory bandwidth", "the dense peak"
PEAK_SOURCE = "peak: data sheet (baselines/roofline.toml)"
FP8_SOURCE = (
    "peak: data sheet (baselines/roofline.toml); part: measured on nine H200 SXM in guests, driver 580.159.04,"
    " 2026-11-20 to 26 (1,433 to 1,542)"
)

# --- collectives within a host -------------------------------------------------------------------------------------
SMALL_BYTES = 32 << 20  # of smaller messages the time is mostly latency, and the formulas do not hold (docs/models.md)
# NCCL's own price of a collective in seconds (NVIDIA/nccl src/graph/tuning.cc, baseLat and hwLat, Ring/Simple): once,
# and for each step over NVLink, PCI or a network.
BASE_SECONDS = 8.4e-6
STEP_SECONDS = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "network": 9.6e-6}
# All links of one pair, fitted to 2 H200 and 2 H100, which we measured from 256 MiB to 8 GiB. Two GPUs also lose more
# time than the steps take: 122 us from 256 MiB on, less for smaller messages, about as the root of their size (41 us at
# 32 MiB, 55 at 64, 82 at 128). No source says why.
PAIR_RING_PART = 343.5 / 370.8
PAIR_SECONDS, PAIR_SECONDS_FROM_BYTES = 122e-6, 256 << 20
RING_SOURCE = (
    f"links × NCCL's rate of a link (NVIDIA/nccl@5067397 src/graph/topo.h); time of the steps: its src/graph/tuning.cc;"
    f" parts: {ML_ENGINEERING} and {MEASURED}"
)
SWITCH_SOURCE = f"derived from {ML_ENGINEERING}: within 2 % on the points of 5 to 8 GPUs"


def ring(links_gb_per_s: float, part: float, ranks: int, size_bytes: float | None) -> float:
    """Return the bus bandwidth of an all-reduce over a ring: S·2(n-1)/n ÷ (S·2(n-1)/n ÷ rB + α₀ + 2(n-1)·α)."""
    seconds = BASE_SECONDS + 2 * (ranks - 1) * STEP_SECONDS["nvlink"]
    if ranks == 2 and size_bytes:
        seconds = max(seconds, PAIR_SECONDS * min(1.0, size_bytes / PAIR_SECONDS_FROM_BYTES) ** 0.5)
    return at_size(links_gb_per_s * part, 2 * (ranks - 1) / ranks, seconds, size_bytes)


def at_size(rate: float, factor: float, seconds: float, size_bytes: float | None) -> float:
    """Return the bus bandwidth of one message: `rate` for large ones, less where `seconds` of latency count."""
    if not size_bytes:
        return rate
    moved = size_bytes * factor / 1e9
    return moved / (moved / rate + seconds)


def in_switch(links_gb_per_s: float, part: float, ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce that NVSwitches compute (NVLS): f · 2(n-1)/(n+1) · B."""
    return part * 2 * (ranks - 1) / (ranks + 1) * links_gb_per_s


# --- between hosts ---------------------------------------------------------------------------------------------
# A flat ring over k hosts: 381.8 of 400 (4 × 8 B200), 95.74 of 100 (3 × 8 A100), 48 of 50 (2 × 8 A100).
FLAT_PART = 0.957
# A hierarchical collective over two hosts: 320 of 375 (2 × 8 H100 with 4 CX-7). A single point.
HIERARCHICAL_PART = 320 / 375
PORTS_SOURCE = "bounds: bytes that must cross the ports of a host"
NETWORK_SOURCE = (
    f"{PORTS_SOURCE}; 0.957: stas00/ml-engineering@744d01e (381.8 of 400), nccl-tests"
    " issue 119 (95.74 of 100), nccl issue 949 (48 of 50); 0.853: nccl-tests issue 380 (320 of 375)"
)
# Healthy pairs of GB10 give 18.9 to 23.7 of 25 GB/s (NVIDIA/dgx-spark-playbooks issue 25, pull request 103).
GB10_LEAST = 0.75
RDMA_PART = 0.96  # 24 of 25 GB/s (nccl-tests issue 119) and 390 of 400 Gb/s (Azure, nd96isr_mi300x_v5.conf, line 56)
RDMA_SOURCE = "the port's rate; 0.96: nccl-tests issue 119 (24 of 25 GB/s a port)"


# Between hosts over TCP (NCCL's NET/Socket): the CPU copies every byte, and one thread a connection limits it.
# 256 MiB over the loopback of one machine: an order of magnitude, not a rate of the network.
TCP_GB_PER_S, TCP_WIDTH = 3.5, 0.5
TCP_SOURCE = (
    "a single point, measured: 2 H200 as two hosts (NCCL_HOSTID) on one machine, one process a GPU, NET/Socket over the"
    " loopback, all-reduce of 256 MiB: 3.5 GB/s (297 GB/s as one host)"
)


def flat(host_gb_per_s: float) -> float:
    """Return the bound of a flat ring over hosts: the rate of all ports of one host, g·b."""
    return host_gb_per_s


def hierarchical(host_gb_per_s: float, hosts: int, per_host: int | None) -> float:
    """Return the most that ports allow: g·b·k(n-1) ÷ (n(k-1)).

    Each host must send and receive what only other hosts have. `per_host` None: for any number of GPUs a host.
    """
    many = host_gb_per_s * hosts / (hosts - 1)
    ranks = hosts * per_host if per_host else None
    return many * (ranks - 1) / ranks if ranks else many


# --- training --------------------------------------------------------------------------------------------------
# MFU, a part of the dense peak, as in PaLM (arXiv 2204.02311, appendix B). Matrix products alone reach BF16_PART of it,
# and a step has more than products. Typical: Llama 3 405B on 8,192 to 16,384 GPUs. `PUBLISHED_MFU`: the least and most.
MOST_MFU, TYPICAL_MFU, PUBLISHED_MFU = 0.81, 0.41, (0.30, 0.56)
MFU_SOURCE = "published runs: MT-NLG 0.302, Llama 3 405B 0.38 to 0.43, MegaScale 0.552, Megatron on A100 0.415 to 0.563"

# --- paths of a slower kind: what a bad placement costs ----------------------------------------------------------
# NVIDIA/nccl src/graph/topo.h: what NCCL counts for the link between two sockets, GB/s, by a word of the CPU's name.
SOCKET_LINKS: Sequence[tuple[str, float]] = (
    (r"sapphire|84\d\d|granite", 22.0),
    (r"emerald|85\d\d", 40.0),
    (r"skylake|cascade|ice lake|8[1-3]\d\d", 10.0),
    (r"epyc|zen|rome|milan|genoa|turin", 16.0),
)
_XEON = r"(?:xeon|platinum|gold|silver).*\b"  # desktop models have the same numbers, and two channels
# Memory channels × rate of a socket, GB/s: the CPUs' data sheets. STREAM with all cores reaches about 0.8 of it.
SOCKET_MEMORY: Sequence[tuple[str, float]] = (
    (r"epyc 9\d\d5|turin", 576.0),
    (r"epyc 9\d\d4|genoa|bergamo", 460.8),
    (r"epyc 7\d\d[23]|rome|milan", 204.8),
    (rf"^(?!.*\bmax\b).*sapphire|{_XEON}[468]4\d\d", 307.2),  # Xeon Max has memory of its own
    (rf"emerald|{_XEON}[468]5\d\d", 358.4),
    (rf"{_XEON}[68]3\d\d", 204.8),
    (rf"cascade|{_XEON}[68]2\d\d", 140.8),
    (r"grace", 512.0),
    (r"threadripper pro [35]9[79]5|altra", 204.8),
    (r"threadripper pro 79[789]5", 332.8),
    (r"epyc 7\d\d1|naples", 170.6),
    (rf"{_XEON}[68]1\d\d", 128.0),
    (rf"{_XEON}69\d\dp", 614.4),
    (rf"{_XEON}67\d\dp", 409.6),
    (r"e5-2\d\d\d ?v4", 76.8),
    (r"e5-2\d\d\d ?v3", 68.2),
    (r"ryzen ai max|strix halo", 256.0),
)
SOCKET_SOURCE = "NVIDIA/nccl@5067397 src/graph/topo.h (SKL_QPI_BW, SRP_QPI_BW, ERP_QPI_BW, AMD_BW)"


class Estimate(msgspec.Struct, frozen=True):
    """What a formula gives: bound and typical in `unit`, or None; the inputs used; what is missing is in `because`.

    `low_below`: a figure below this fraction of the typical one is low. `at_least`: where the typical figure is not
    known, less than this part of the bound is low; None: nothing is. `large`: the typical figure of large messages.
    """

    unit: str
    formula: str
    source: str
    bound: float | None = None
    typical: float | None = None
    because: tuple[str, ...] = ()
    low_below: float = 0.85
    width: float | None = None
    at_least: float | None = 0.5
    large: float | None = None
