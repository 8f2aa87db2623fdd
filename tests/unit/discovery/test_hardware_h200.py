"""Real H200 SXM guests with 1 and 4 GPUs, captured by `hosttune capture` (2026-11-20): what a guest can truly know.

The facts are those that NVIDIA's own tool printed on the same machines (the h200 captures beside these), and the MIG
table is the vendor's (MIG user guide, supported profiles: H200-141).
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import hosttune
from hosttune.model.host import Host
from hosttune.report.text import print_host

HOSTS = Path(__file__).parents[2] / "hosts" / "h200"
MODULES = {1: [3], 4: [6, 8, 5, 7]}
# name, start slices, size in memory slices, most instances
MIG_TABLE = {
    ("1g.18gb", (0, 1, 2, 3, 4, 5, 6), 1, 7),
    ("1g.18gb+me", (0, 1, 2, 3, 4, 5, 6), 1, 1),
    ("1g.35gb", (0, 2, 4, 6), 2, 4),
    ("2g.35gb", (0, 2, 4), 2, 3),
    ("3g.71gb", (0, 4), 4, 2),
    ("4g.71gb", (0,), 4, 1),
    ("7g.141gb", (0,), 8, 1),
}


@pytest.fixture(params=[1, 4], ids=["one GPU", "four GPUs"])
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def host(count: int) -> Host:
    return hosttune.discover(str(HOSTS.parent / "older" / f"vm-x{count}.tar.gz"))


def test_it_is_a_guest_that_hides_its_topology(host: Host, count: int) -> None:
    assert host.hypervisor is True
    assert [node.id for node in host.numa_nodes] == [0]
    assert len(host.cpus) == 16 * count
    assert all(device.parent is None and device.numa_node is None for device in host.pci)
    assert all(device.numa_source == "unknown" for device in host.pci)
    assert "topology hidden" in [problem.what for problem in host.problems]
    assert host.iommu is not None
    assert host.iommu.present is False


def test_its_gpus_are_what_nvml_told(host: Host, count: int) -> None:
    assert [gpu.address for gpu in host.gpus] == [f"0000:00:0{6 + i}.0" for i in range(count)]
    assert [gpu.module_id for gpu in host.gpus] == MODULES[count]
    for gpu in host.gpus:
        assert (gpu.vendor, gpu.model, gpu.source) == ("nvidia", "NVIDIA H200", "nvml")
        assert gpu.memory_bytes == 143771 << 20
        assert (gpu.power_limit_watts, gpu.power_min_watts, gpu.power_max_watts) == (700, 200, 700)
        assert (gpu.ecc, gpu.persistence, gpu.remapped_pending, gpu.remapped_failed) == (True, True, False, False)
        assert (gpu.pcie_max_generation, gpu.pcie_gpu_max_generation) == (5, 5)
        assert gpu.mig is not None
        assert gpu.mig.mode == "disabled"
        profiles = {(p.name, p.starts, p.size, p.max_instances) for p in gpu.mig.profiles or ()}
        assert profiles == MIG_TABLE


def test_four_gpus_reach_each_other_over_18_nvlinks(count: int, host: Host) -> None:
    for gpu in host.gpus:
        others = [other.address for other in host.gpus if other is not gpu]
        assert [(p.address, p.kind, p.links) for p in gpu.peers or ()] == [(a, "nvlink", 18) for a in others]
    if count == 4:
        assert {(g.nvlinks_active, g.nvlink_gb_per_s, g.fabric_state) for g in host.gpus} == {(18, 26.562, "completed")}


def test_links_and_bars_are_the_gpus_own(host: Host) -> None:
    for gpu in host.gpus:
        device = next(d for d in host.pci if d.address == gpu.address)
        assert device.link is not None
        assert (device.link.speed_gts, device.link.width) == (32.0, 16)
        assert device.link.upstream is None
        sizes = [(bar.size_bytes, bar.is_64bit, bar.prefetchable) for bar in device.bars or ()]
        assert sizes == [(16 << 20, True, True), (256 << 30, True, True), (32 << 20, True, True)]


def test_the_text_says_so_at_a_glance(host: Host, count: int) -> None:
    out = io.StringIO()
    print_host(host, Console(file=out, width=110, force_terminal=False))
    text = out.getvalue()
    assert "this machine is itself a guest" in text
    assert "affinity unknown" in text
    assert text.count("NVIDIA H200, 140.4 GiB, module") == count


def test_a_plan_for_it_stands_with_its_doubts(host: Host, count: int) -> None:
    intent = hosttune.Intent.from_json(f'{{"version": 1, "guests": [{{"name": "g", "gpus": {count}}}]}}')
    plan = hosttune.plan(host, intent)
    assert len(plan.guests[0].devices) == count
    assert {device.guest_cell for device in plan.guests[0].devices} == {None}
    said = [(finding.level, finding.text) for finding in plan.findings]
    assert any(level == "error" and text.startswith("no IOMMU groups") for level, text in said)
    assert any(level == "warn" and "is itself a guest" in text for level, text in said)
    assert sum("the NUMA node of GPU" in text for _, text in said) == count
    assert [a.want for a in plan.actions if a.effect == "reboot"] == ["intel_iommu=on"]
