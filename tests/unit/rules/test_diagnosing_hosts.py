"""Faults put into the example host and into a validation of it: the right cause each, and none on the clean host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examplehosts import discovered

from hosttune import discover
from hosttune.cli import run
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.gpu import Mig
from hosttune.model.host import Host, Link
from hosttune.model.measured import Figure, Measured
from hosttune.model.validation import Sample, Validation
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.gathering import of_host_facts, of_validation
from hosttune.rules.causes.merging import merge

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples/hgx-h200-8.tar.xz")
HOSTS = Path(__file__).resolve().parents[2] / "hosts/h200"
HOST = discovered()
GPU = "0000:18:00.0"
UPLINK = "0000:16:00.0"  # of the switch above it
replace = msgspec.structs.replace
CLEAN: dict[tuple[str, str], tuple[float, str]] = {
    **{("h2d-ce", gpu.address): (55.5, "GB/s") for gpu in HOST.index.accelerators},
    **{("gemm-bf16", gpu.address): (797.0, "TFLOP/s") for gpu in HOST.index.accelerators},
    **{("device-copy", gpu.address): (4247.0, "GB/s") for gpu in HOST.index.accelerators},
    ("p2p-write-ce", f"{GPU}->0000:29:00.0"): (394.0, "GB/s"),
    ("all-reduce-1mib", "8 GPUs"): (40.0, "GB/s"),
    ("all-reduce-8gib", "8 GPUs"): (473.1, "GB/s"),
    ("rdma-write", "mlx5_0"): (390.0, "Gb/s"),
    ("memory-copy", "node0->node0"): (310.0, "GB/s"),
}


def validation(**changes: float) -> Validation:
    """Five runs of each figure. A change names the metric without "-": all its subjects get the value."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    samples = [
        Sample(metric=metric, subject=subject, value=named.get(metric, value), unit=unit)
        for (metric, subject), (value, unit) in CLEAN.items()
        for _ in range(5)
    ]
    return Validation(samples=tuple(samples), level=1)


def diagnosed(host: Host, extra: str = "{version: 1}", **changes: float) -> Diagnosis:
    parts = [("validation", of_validation(validation(**changes), host)), ("extra", Measured.from_yaml(extra))]
    merged, doubts = merge(parts)
    assert doubts == ()
    return diagnose(merged, complaining=False)


def with_gpus(**facts: Any) -> Host:
    return replace(HOST, gpus=tuple(replace(gpu, **facts) for gpu in HOST.gpus))


def with_link(speed: float, width: int, slot: float) -> Host:
    """The first GPU's link runs so; the port above it can do `slot` GT/s."""
    link = Link(speed_gts=speed, width=width, max_speed_gts=32.0, max_width=16)
    links = {GPU: link, HOST.index.pci[GPU].parent: replace(link, max_speed_gts=slot)}
    return replace(HOST, pci=tuple(replace(one, link=links.get(one.address, one.link)) for one in HOST.pci))


def with_uplink(width: int) -> Host:
    """The switch above the first GPU has so many lanes to its root port, of 16."""
    link = Link(speed_gts=32.0, width=width, max_speed_gts=32.0, max_width=16)
    return replace(HOST, pci=tuple(replace(one, link=link) if one.address == UPLINK else one for one in HOST.pci))


def far_nics() -> Host:
    """The NICs hang directly off the other socket than the GPUs do; the host is measured without translation."""
    nodes = {gpu.address: 0 for gpu in HOST.index.accelerators} | {nic.address: 1 for nic in HOST.nics}
    pci = tuple(
        replace(one, numa_node=nodes[one.address], parent=None if nodes[one.address] else one.parent)
        if one.address in nodes
        else one
        for one in HOST.pci
    )
    return replace(HOST, pci=pci)


def without_ats() -> Host:
    """The NICs ask the IOMMU for each address; no bridge redirects."""
    nics = {nic.address for nic in HOST.nics if nic.rdma}
    pci = tuple(
        replace(
            one,
            ats_enabled=False if one.address in nics else one.ats_enabled,
            acs=None if one.acs is None else replace(one.acs, enabled=()),
        )
        for one in HOST.pci
    )
    return replace(HOST, pci=pci)


BETWEEN = (
    "{version: 1, setup: {hosts: 2}, figures: [{metric: all-reduce-busbw, subject: 16 GPUs on 2 hosts, value: 150,"
    " unit: GB/s, size_bytes: 8589934592}], observations: {%s}}"
)
FAULTS: dict[str, tuple[str, Callable[[], Diagnosis]]] = {
    "x8 link": ("pcie-link-degraded", lambda: diagnosed(with_link(32.0, 8, 32.0), h2d_ce=27.5)),
    "x4 uplink": ("pcie-link-degraded", lambda: diagnosed(with_uplink(4), h2d_ce=13.8)),
    "Gen3 slot": ("pcie-generation-limit", lambda: diagnosed(with_link(8.0, 16, 8.0), h2d_ce=13.1)),
    "far node": (
        "far-numa-node", lambda: diagnosed(HOST, "{version: 1, observations: {memory_node: far}}", h2d_ce=35.0),
    ),
    "power limit": ("power-cap", lambda: diagnosed(with_gpus(power_limit_watts=400.0), gemm_bf16=520.0)),
    "hot GPU": ("thermal", lambda: diagnosed(with_gpus(clock_reasons=("hw_thermal_slowdown",)), gemm_bf16=500.0)),
    "hot GPU, not yet slow": ("thermal", lambda: diagnosed(with_gpus(clock_reasons=("hw_thermal_slowdown",)))),
    "MIG slice": (
        "mig-slice",
        lambda: diagnosed(with_gpus(mig=Mig(mode="enabled")), gemm_bf16=340.0, device_copy=2100.0),
    ),
    "links down": ("nvlink-down-or-missing", lambda: diagnosed(with_gpus(nvlinks_active=9), p2p_write_ce=196.0)),
    "NVLS off": (
        "nvls-off", lambda: diagnosed(HOST, "{version: 1, observations: {nvls: false}}", all_reduce_8gib=365.0),
    ),
    "busy housekeeping": (
        "noisy-neighbour-cpu",
        lambda: diagnosed(HOST, "{version: 1, observations: {other_cpu_load: true}}", memory_copy=100.0),
    ),
    "4 KiB pages": (
        "no-hugepages",
        lambda: diagnosed(HOST, "{version: 1, observations: {hugepages: false}}", memory_copy=100.0),
    ),
}  # fmt: skip


def test_a_clean_host_has_no_cause() -> None:
    found = diagnosed(HOST)
    assert found.causes == ()
    assert {one.verdict for one in found.figures if one.metric != "memory-copy"} == {"expected"}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_named(fault: str) -> None:
    cause, found = FAULTS[fault]
    causes = found().causes
    assert [one.cause for one in causes][:1] == [cause]


@pytest.mark.parametrize(
    ("host", "seen", "cause"),
    [
        (HOST, "gpudirect_rdma: true", "acs-redirect"),
        (HOST, "peer_memory_module: false", "gpudirect-rdma-off"),
        (far_nics(), "gpudirect_rdma: true", "nic-on-other-socket"),
        (without_ats(), "gpudirect_rdma: true", "ats-off"),
    ],
    ids=["redirection", "no peer-memory module", "NICs on the other socket", "ATS off"],
)
def test_one_fault_between_hosts_is_named(host: Host, seen: str, cause: str) -> None:
    known = of_host_facts(host)
    known = replace(known, setup=replace(known.setup, hosts=None), figures=())
    merged, doubts = merge([("host", known), ("extra", Measured.from_yaml(BETWEEN % seen))])
    assert doubts == ()
    assert diagnose(merged).causes[0].cause == cause


def test_a_fault_of_the_whole_host_does_not_explain_one_slow_device() -> None:
    """The IOMMU translates for all GPUs alike; seven of eight are as they should be."""
    assert of_host_facts(HOST).observations.iommu == "on"
    one = [
        replace(sample, value=27.0) if sample.subject == GPU and sample.metric == "h2d-ce" else sample
        for sample in validation().samples
    ]
    found = diagnose(of_validation(Validation(samples=tuple(one), level=1), HOST), complaining=False)
    assert [figure.verdict for figure in found.figures if figure.subject == GPU and figure.metric == "h2d"] == ["low"]
    assert "iommu-translation" not in [cause.cause for cause in found.causes]
    assert "iommu-translation" in [cause.cause for cause in diagnosed(HOST, h2d_ce=27.0).causes]


def test_a_validation_and_its_host_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.json").write_text(validation(h2d_ce=27.5).to_json())
    assert run(["diagnose", "--validation", str(tmp_path / "v.json"), "--root", EXAMPLE]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "low h2d 0000:18:00.0 27.5 55.5 63.0 GB/s" in said
    (tmp_path / "v.json").write_text(validation().to_json())
    assert run(["diagnose", "--validation", str(tmp_path / "v.json"), "--root", EXAMPLE]) == 0
    assert run(["diagnose", "--root", EXAMPLE]) == 2
    assert "a host without its validation" in capsys.readouterr().err


# --- faults put into the captured files: what the kernel shows of them ----------------------------------------------

NIC = "0000:19:00.0"  # beside the first GPU, below the same switch
ATS, ACS, REQUEST_REDIRECT = 0x0F, 0x0D, 1 << 2


def test_a_validation_alone_asks_for_its_host_and_groups_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["diagnose", "--validation", str(HOSTS / "vm-x4-level1.json")]
    assert run([*given, "-o", "json"]) == 0
    found = Diagnosis.from_json(capsys.readouterr().out)
    assert len(found.figures) == 51
    assert found.next[0] == "give its host, with --host FILE or --root CAPTURE: 42 of 51 figures need it"
    assert "8 figures (h2d, d2h): not known: the GPU's slot" in found.next
    assert "12 figures (p2p): not known: how two GPUs are connected" in found.next
    assert "memory-copy: node0->node0: no model of this metric has a source" in found.next
    assert len({one.why for one in found.figures}) == len(found.next) - 1
    assert run([*given, "--root", str(HOSTS.parent / "older/vm-x4.tar.gz"), "-o", "json"]) == 0
    known = Diagnosis.from_json(capsys.readouterr().out)
    assert sum(one.verdict == "expected" for one in known.figures) == 42
    assert not any("--root" in line for line in known.next)


def test_reasons_that_are_left_out_are_counted() -> None:
    rows = [Figure(metric="h2d", subject=f"GPU {n}", value=1.0, unit=f"unit{n // 2}") for n in range(40)]
    found = diagnose(Measured(version=1, figures=tuple(rows)), hostless=True)
    assert found.next[0] == "2 figures (h2d): unit0 does not measure bytes per second: the figure cannot be compared"
    assert (len(found.next), found.next[-1]) == (17, "and 8 more figures, for 4 other reasons")


def written(root: Path, address: str, name: str, content: str | bytes) -> None:
    """One file of a function; what is linked to the pristine root is replaced, never written through."""
    path = (root / "sys/bus/pci/devices" / address).resolve() / name
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def with_control(root: Path, address: str, capability: int, change: Callable[[int], int]) -> bool:
    """Change the control register of an extended capability; False if the function has none of it.

    PCI Express Base Specification: header of 4 bytes (id, version, next), both controls at offset 6.
    """
    config = bytearray(((root / "sys/bus/pci/devices" / address).resolve() / "config").read_bytes())
    at = 0x100
    while at and at + 8 <= len(config):
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == capability:
            value = change(int.from_bytes(config[at + 6 : at + 8], "little"))
            config[at + 6 : at + 8] = value.to_bytes(2, "little")
            written(root, address, "config", bytes(config))
            return True
        at = header >> 20
    return False


def redirect_nowhere(root: Path) -> None:
    changed = [with_control(root, one.address, ACS, lambda value: value & ~0x7F) for one in HOST.pci]
    assert any(changed)


def link_of_8_lanes(root: Path) -> None:
    for address in (GPU, str(parent_of(GPU))):
        written(root, address, "current_link_width", "8")


def slot_of_generation_3(root: Path) -> None:
    for address in (GPU, str(parent_of(GPU))):
        written(root, address, "current_link_speed", "8.0 GT/s PCIe")
    written(root, str(parent_of(GPU)), "max_link_speed", "8.0 GT/s PCIe")


def no_ats(root: Path) -> None:
    redirect_nowhere(root)
    nics = [nic.address for nic in HOST.nics if nic.rdma and nic.physfn is None]
    assert all(with_control(root, address, ATS, lambda value: value & 0x7FFF) for address in nics)


def parent_of(address: str) -> str | None:
    return next(one.parent for one in HOST.pci if one.address == address)


def of_tree(root: Path, **figures: Any) -> list[str]:
    return [cause.cause for cause in diagnosed(discover(str(root)), **figures).causes]


def between_of_tree(root: Path) -> list[str]:
    known = of_host_facts(discover(str(root)))
    known = replace(known, setup=replace(known.setup, hosts=None))
    merged, doubts = merge([("host", known), ("extra", Measured.from_yaml(BETWEEN % "gpudirect_rdma: true"))])
    assert doubts == ()
    return [cause.cause for cause in diagnose(merged).causes]


def test_faults_in_the_files_of_a_capture(pristine: Path, tmp_path: Path) -> None:
    """The unchanged tree first: no cause. Each fault is then in a copy of its own."""
    (clean, lanes, slot, ats) = (tmp_path / name for name in ("clean", "lanes", "slot", "ats"))
    for copy in (clean, lanes, slot, ats):
        subprocess.run(["cp", "-al", str(pristine), str(copy)], check=True)
    assert of_tree(clean) == []
    link_of_8_lanes(lanes)
    assert of_tree(lanes, h2d_ce=27.5)[0] == "pcie-link-degraded"
    slot_of_generation_3(slot)
    assert of_tree(slot, h2d_ce=13.1)[0] == "pcie-generation-limit"
    assert between_of_tree(clean)[0] == "acs-redirect"
    no_ats(ats)
    assert between_of_tree(ats)[0] == "ats-off"
    redirect_nowhere(clean)
    assert not {"acs-redirect", "ats-off"} & set(between_of_tree(clean))


def test_a_series_of_sizes_without_its_host_names_no_cause() -> None:
    """Nothing is known of the host, so each figure is unknown; in every series small messages are slower."""
    measured, _ = merge([("validation", of_validation(validation(), None))])
    found = diagnose(measured)
    assert {one.verdict for one in found.figures if one.metric.startswith("all-reduce")} == {"unknown"}
    assert found.causes == ()
