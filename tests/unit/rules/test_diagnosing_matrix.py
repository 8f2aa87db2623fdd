"""Each fault on several machines: seen in each way in which documents show it, it is named first, in any unit.

Figures are low by what the fault costs: half of the lanes give half of a copy. What each machine gives when nothing is
wrong is that of docs/models.md, and the peaks are those of baselines/roofline.toml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from hosttune.bench.baselines import Standard, shipped_peaks
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.measured import Measured
from hosttune.rules.causes import diagnose

# gpu, GPUs a host, links, switches, slot, ports × Gb/s, their kind; then what it gives: a copy, a pair, an all-reduce
MACHINES: Mapping[str, tuple[Any, ...]] = {
    "4090": ("NVIDIA GeForce RTX 4090", 4, 0, False, "4.0 x16", 2, 100, "infiniband", 25.5, 20, 14),
    "L40S": ("NVIDIA L40S", 8, 0, False, "4.0 x16", 2, 200, "roce", 25.5, 23, 19),
    "A100": ("NVIDIA A100-SXM4-80GB", 8, 12, True, "4.0 x16", 8, 200, "infiniband", 25.5, 270, 235),
    "H100": ("NVIDIA H100 80GB HBM3", 8, 18, True, "5.0 x16", 8, 400, "infiniband", 55.4, 394, 473),
    "MI300X": ("AMD Instinct MI300X", 8, None, None, "5.0 x16", 8, 400, "roce", 55, 48, 320),
}
PCIE, BOARDS, ALL = "4090 L40S", "A100 H100", "4090 L40S A100 H100 MI300X"
COPY, PAIR, IN_HOST, BETWEEN, PORT = "h2d", "p2p", "all-reduce-busbw", "between", "rdma-write"
HALF_LINK = {"link": {"width": 8, "max_width": 16}}
# cause, machines, metric, part of what is good, observations, variables, setup
ROWS: list[tuple[str, str, str, float, dict[str, Any], dict[str, str], dict[str, Any]]] = [
    ("pcie-link-degraded", ALL, COPY, 0.47, HALF_LINK, {}, {}),
    ("pcie-link-degraded", PCIE, PAIR, 0.5, HALF_LINK, {}, {}),
    ("pcie-generation-limit", "4090 L40S A100", COPY, 0.5, {}, {}, {"pcie": "3.0 x16"}),
    ("pcie-generation-limit", ALL, COPY, 0.06, {}, {}, {"pcie": "3.0 x2", "gpu": None}),
    ("far-numa-node", ALL, COPY, 0.82, {"memory_node": "far"}, {}, {}),
    ("vcpu-floating-or-unpinned", ALL, COPY, 0.6, {"pinned": False}, {}, {"virtual": True}),
    ("guest-topology-hidden", ALL, BETWEEN, 0.55, {"guest_topology": "flat"}, {}, {"virtual": True}),
    ("guest-topology-hidden", ALL, BETWEEN, 0.55, {"guest_numa": False}, {}, {"virtual": True}),
    ("gpudirect-rdma-off", ALL, BETWEEN, 0.5, {"gpudirect_rdma": False}, {}, {}),
    ("gpudirect-rdma-off", ALL, BETWEEN, 0.5, {"peer_memory_module": False}, {}, {}),
    ("gpudirect-rdma-off", ALL, BETWEEN, 0.5, {}, {"NCCL_NET_GDR_LEVEL": "LOC"}, {}),
    ("acs-redirect", PCIE, PAIR, 0.4, {"acs_redirect": True, "c_states": "deep"}, {}, {}),
    ("acs-redirect", ALL, BETWEEN, 0.55, {"acs_redirect": True, "storage_bound": True}, {}, {}),
    ("iommu-translation", ALL, COPY, 0.3, {"iommu": "on"}, {}, {}),
    ("p2p-disabled", ALL, IN_HOST, 0.04, {}, {"NCCL_P2P_DISABLE": "1"}, {}),
    ("p2p-disabled", PCIE, IN_HOST, 0.4, {"transport": "shm"}, {"NCCL_ALGO": "Ring"}, {}),
    ("nvlink-down-or-missing", BOARDS, PAIR, 0.5, {}, {}, {"nvlinks_per_gpu": 6}),
    ("nvlink-down-or-missing", BOARDS, IN_HOST, 0.05, {}, {}, {"nvlinks_per_gpu": 0}),
    ("nvls-off", "H100", IN_HOST, 0.77, {}, {"NCCL_NVLS_ENABLE": "0"}, {}),
    ("algorithm-or-protocol-forced", "H100", IN_HOST, 0.77, {}, {"NCCL_ALGO": "Ring"}, {}),
    ("algorithm-or-protocol-forced", ALL, IN_HOST, 0.3, {}, {"NCCL_MAX_NCHANNELS": "1"}, {}),
    ("nic-on-other-socket", ALL, BETWEEN, 0.45, {"gpu_nic_path": "SYS"}, {}, {"virtual": False}),
    ("nic-rate-or-link-down", ALL, BETWEEN, 0.5, {"nic_link": {"ports": 2, "ports_active": 1}}, {}, {}),
    ("nic-rate-or-link-down", ALL, PORT, 0.25, {"nic_link": {"rate_gbps": 50}}, {}, {}),
    ("nic-count-or-rail-mismatch", ALL, BETWEEN, 0.12, {}, {"NCCL_IB_HCA": "mlx5_0"}, {}),
    ("nic-count-or-rail-mismatch", BOARDS, BETWEEN, 0.12, {}, {"UCX_NET_DEVICES": "mlx5_0:1"}, {}),
    ("nic-count-or-rail-mismatch", BOARDS, BETWEEN, 0.12, {}, {"NCCL_IB_HCA": "mlx5_0"}, {"nics": None}),
    ("roce-config", "L40S MI300X", BETWEEN, 0.3, {}, {"NCCL_IB_GID_INDEX": "0"}, {"nics": None}),
    ("network-congestion-or-routing", ALL, BETWEEN, 0.5, {"congestion": True, "other_cpu_load": True}, {}, {}),
    ("socket-transport-instead-of-ib", ALL, BETWEEN, 0.02, {"transport": "socket", **HALF_LINK}, {}, {}),
    ("socket-transport-instead-of-ib", ALL, BETWEEN, 0.02, {}, {"UCX_TLS": "tcp,cuda_copy"}, {}),
    ("socket-transport-instead-of-ib", ALL, "tokens-per-second", 1, {}, {"NCCL_IB_DISABLE": "1"}, {"hosts": None}),
    ("measurement-artefact", ALL, COPY, 0.25, {"pageable_memory": True}, {}, {}),
    ("measurement-artefact", ALL, BETWEEN, 0.5, {"cold": True}, {}, {}),
    ("gpudirect-rdma-off", ALL, BETWEEN, 0.5, {"gpudirect_rdma": False, "cold": True, "nvls": False}, {}, {}),
    ("noisy-neighbour-cpu", ALL, BETWEEN, 0.5, {"other_cpu_load": True}, {}, {}),
    ("kernel-or-driver-bug", ALL, IN_HOST, 0.4, {"changed_with_version": True}, {}, {}),
    ("storage", ALL, "tokens-per-second", 1, {"storage_bound": True}, {}, {}),
    ("algorithm-or-protocol-forced", ALL, "tokens-per-second", 1, {}, {"CUDA_LAUNCH_BLOCKING": "1"}, {}),
]  # fmt: skip
# What reports of machines in order tell as well.
HARMLESS: list[dict[str, Any]] = [
    {}, {"iommu": "passthrough"}, {"hugepages": True}, {"c_states": "shallow"}, {"power_capped": False},
]  # fmt: skip


@pytest.fixture(scope="module")
def standard() -> Standard:
    return shipped_peaks()


def good(machine: str, metric: str) -> tuple[float, str, str]:
    """What a machine gives, its unit, and of what it is."""
    _, many, _, _, _, ports, rate, _, copy, pair, within = MACHINES[machine]
    return {
        COPY: (copy, "GB/s", "GPU 0"), PAIR: (pair, "GB/s", "GPU 0 to GPU 1"),
        IN_HOST: (within, "GB/s", f"{many} GPUs"), PORT: (rate * 0.96, "Gb/s", "port"),
        BETWEEN: (ports * rate / 8 * 0.957, "GB/s", f"{2 * many} GPUs on 2 hosts"),
        "tokens-per-second": (900, "tokens/s", "training"),
    }[metric]  # fmt: skip


def of(machine: str, metric: str, value: float, unit: str, subject: str, **rest: Any) -> dict[str, Any]:
    gpu, many, links, switches, slot, ports, rate, kind, *_ = MACHINES[machine]
    setup = {
        "gpu": gpu, "gpus_per_host": many, "nvlinks_per_gpu": links, "nvswitch": switches, "pcie": slot,
        "hosts": 2 if metric in (BETWEEN, PORT) else 1, "nics": {"count": ports, "rate_gbps": rate, "kind": kind},
        "environment": rest.get("variables", {}), **rest.get("setup", {}),
    }  # fmt: skip
    row = {"metric": IN_HOST if metric == BETWEEN else metric, "subject": subject, "value": value, "unit": unit}
    return {"version": 1, "setup": setup, "figures": [row], "observations": rest.get("seen", {})}


def asked(document: dict[str, Any], standard: Standard) -> Diagnosis:
    return diagnose(Measured.from_yaml(json.dumps(document)), standard, written=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[2]}: {[*row[4], *row[5], *row[6]]}")
def test_a_fault_that_is_seen_is_named_first(row: tuple[Any, ...], standard: Standard) -> None:
    cause, machines, metric, part, seen, variables, setup = row
    for machine, beside in product(machines.split(), HARMLESS):
        value, *rest = good(machine, metric)
        known = {**beside, **seen}
        document = of(machine, metric, value * part, *rest, seen=known, variables=variables, setup=setup)
        assert [named.cause for named in asked(document, standard).causes][:1] == [cause], document


@pytest.mark.parametrize("metric", [COPY, PAIR, IN_HOST, BETWEEN, PORT])
def test_what_costs_nothing_there_is_no_cause(metric: str, standard: Standard) -> None:
    for _, machines, _, _, seen, variables, setup in ROWS:
        if setup or {"link", "changed_with_version"} & set(seen):  # faults in any case, or another machine
            continue
        for machine in machines.split():
            document = of(machine, metric, *good(machine, metric), seen=seen, variables=variables)
            assert not asked(document, standard).causes, document


@pytest.mark.parametrize(
    ("unit", "times", "subject"),
    [("Gb/s", 8, ""), ("MB/s", 1e3, ""), ("GiB/s", 1e9 / 2**30, ""), ("GB/s per GPU", 1, ""),
     ("GB/s one direction", 1, ""), ("GB/s", 2, "both ways"), ("GB/s", 2, "bi-directional"), ("GB/s bidir", 2, "")],
)  # fmt: skip
def test_the_same_figure_in_other_words(unit: str, times: float, subject: str, standard: Standard) -> None:
    for metric, part in ((PAIR, 0.3), (PAIR, 1), (COPY, 0.45), (COPY, 1)):
        for machine in MACHINES:
            value, own, of_what = good(machine, metric)
            plain = asked(of(machine, metric, value * part, own, of_what), standard)
            same = asked(of(machine, metric, value * part * times, unit, f"{of_what}, {subject}"), standard)
            assert [one.verdict for one in same.figures] == [one.verdict for one in plain.figures], (machine, metric)
            assert [one.cause for one in same.causes] == [one.cause for one in plain.causes], (machine, metric)


@pytest.mark.parametrize("subject", ["2 nodes × 8", "2 x 8 GPUs", "16-GPU run", "16x H100", "2-node run", "16 ranks"])
def test_counts_as_people_write_them(subject: str, standard: Standard) -> None:
    for part, verdict in ((0.5, "low"), (1, "expected")):
        value = good("H100", BETWEEN)[0] * part
        assert asked(of("H100", BETWEEN, value, "GB/s", subject), standard).figures[0].verdict == verdict
