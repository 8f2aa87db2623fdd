"""The bundled example host: reproducible, synthetic and says so, and planned the way its topology demands."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

import hosttune
from hosttune.discovery.evidence import gather
from hosttune.machine.opening import open_root
from hosttune.model.host import Host, PciDevice
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import CpuSet
from hosttune.rules.checks import judge

GIB = 1 << 30
MOVED = "0000:41:00.0"

EXAMPLES = Path(__file__).parents[2] / "examples"
ARCHIVE = EXAMPLES / "hgx-h200-8.tar.xz"

Member = tuple[bytes, str, int, int, bytes]


def contents(archive: Path) -> dict[str, Member]:
    """Every member of a tar: type, link target, mode, time, bytes."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        return {
            m.name: (m.type, m.linkname, m.mode, int(m.mtime), tar.extractfile(m).read() if m.isreg() else b"")  # type: ignore[union-attr]
            for m in members
        }


@pytest.fixture(scope="module")
def bundled() -> dict[str, Member]:
    return contents(ARCHIVE)


def test_building_it_again_gives_the_same_archive(tmp_path: Path, bundled: dict[str, Member]) -> None:
    again = tmp_path / "again.tar.xz"
    subprocess.run([sys.executable, str(EXAMPLES / "build_hgx_h200.py"), str(again)], check=True)
    built = contents(again)
    assert list(built) == list(bundled)
    assert [name for name in built if built[name] != bundled[name]] == []


def test_it_says_that_it_is_synthetic(bundled: dict[str, Member]) -> None:
    assert bundled[".hosttune/SYNTHETIC"][4].startswith(b"SYNTHETIC HOST")
    assert b"SYNTHETIC" in bundled["sys/devices/virtual/dmi/id/product_name"][4]


def test_it_is_small() -> None:
    assert ARCHIVE.stat().st_size < 300_000


def test_every_link_leads_to_something_inside(bundled: dict[str, Member]) -> None:
    known = set(bundled)
    for name in bundled:
        known.update(str(parent) for parent in Path(name).parents)
    for name, (kind, target, *_) in bundled.items():
        if kind != tarfile.SYMTYPE:
            continue
        parts = name.split("/")[:-1]
        for part in target.split("/"):
            assert part != ".." or parts, name
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert "/".join(parts) in known, name


@pytest.fixture(scope="module")
def host() -> Host:
    return hosttune.discover(str(ARCHIVE))


def test_discovery_finds_eight_h200_four_on_each_node(host: Host) -> None:
    gpus = [gpu for gpu in host.gpus if gpu.vendor == "nvidia"]
    assert {gpu.model for gpu in gpus} == {"NVIDIA H200"}
    assert {gpu.memory_bytes for gpu in gpus} == {143771 << 20}
    functions = devices(host)
    assert [functions[gpu.address].numa_node for gpu in gpus] == [0] * 4 + [1] * 4
    assert MOVED in {gpu.address for gpu in gpus}
    assert len(host.nvswitches) == 4


def test_every_gpu_has_an_iommu_group_of_its_own(host: Host) -> None:
    groups = [device.iommu_group for device in host.pci]
    for gpu in host.gpus:
        group = devices(host)[gpu.address].iommu_group
        assert group is not None
        if gpu.vendor == "nvidia":
            assert groups.count(group) == 1
    assert {device.iommu_group_type for device in host.pci} == {"DMA-FQ"}


def test_the_bars_of_a_gpu_are_those_that_were_measured(host: Host) -> None:
    bars = devices(host)[MOVED].bars or ()
    assert [(bar.index, bar.size_bytes) for bar in bars] == [(0, 16 << 20), (2, 256 * GIB), (4, 32 << 20)]
    assert all(bar.is_64bit and bar.prefetchable for bar in bars)


def test_module_ids_are_not_in_bus_order(host: Host) -> None:
    modules = [gpu.module_id for gpu in host.gpus if gpu.vendor == "nvidia"]
    assert sorted(filter(None, modules)) == list(range(1, 9))
    assert modules != sorted(filter(None, modules))


def test_every_gpu_reaches_every_other_over_nvlink(host: Host) -> None:
    for gpu in host.gpus:
        if gpu.vendor == "nvidia":
            links = [peer.links for peer in gpu.peers or () if peer.kind == "nvlink"]
            assert links == [18] * 7


def test_each_gpu_shares_a_switch_with_an_infiniband_port_and_a_drive(host: Host) -> None:
    functions = devices(host)
    fast = {switch_above(functions, nic.address) for nic in host.nics if nic.rate_gbps == 400}
    drives = {switch_above(functions, drive.address) for drive in host.nvme}
    mine = [switch_above(functions, gpu.address) for gpu in host.gpus if gpu.vendor == "nvidia"]
    assert len(set(mine)) == 8
    assert fast == set(mine)
    assert set(mine) < drives


def test_config_space_shows_acs_on_ports_and_ats_on_the_fast_nics(host: Host) -> None:
    functions = devices(host)
    ports = [device for device in host.pci if device.port_type in ("root-port", "downstream-port")]
    assert all(port.acs and "ReqRedir" in port.acs.enabled for port in ports)
    assert len(ports) == 3 + 1 + 4 + 8 * 4
    assert all(functions[nic.address].ats_enabled for nic in host.nics if nic.rate_gbps == 400)


def test_nothing_about_it_is_doubtful(host: Host) -> None:
    assert host.problems == ()
    assert host.hypervisor is False


def test_the_plan_follows_the_gpu_to_the_other_node(host: Host) -> None:
    before = only_guest(host)
    after = only_guest(moved(host))
    assert places(host, before) == {0}
    assert places(host, after) == {1}
    assert [cell.host_nodes for cell in after.cells] == ["1"]
    assert {device.host_node for device in after.devices} == {1}


def only_guest(host: Host) -> PlannedGuest:
    intent = hosttune.Intent.from_json(f'{{"version": 1, "guests": [{{"name": "g", "gpus": ["{MOVED}"]}}]}}')
    (guest,) = hosttune.plan(host, intent).guests
    return guest


def places(host: Host, guest: PlannedGuest) -> set[int | None]:
    """Nodes of every CPU that the guest runs on."""
    nodes = {cpu.id: cpu.numa_node for cpu in host.cpus}
    used = [int(pin.cpus) for pin in guest.vcpu_pins]
    used += [cpu for text in (guest.emulator_cpus, *guest.iothread_cpus) for cpu in CpuSet.parse(text)]
    return {nodes[cpu] for cpu in used}


def moved(host: Host) -> Host:
    """The same host with the GPU, and all bridges of its branch, on node 1."""
    branch = {MOVED}
    functions = devices(host)
    address: str | None = MOVED
    while address:
        branch.add(address)
        address = functions[address].parent
    cpus = next(node.cpus for node in host.numa_nodes if node.id == 1)
    return msgspec.structs.replace(
        host,
        pci=tuple(
            msgspec.structs.replace(device, numa_node=1, local_cpus=cpus) if device.address in branch else device
            for device in host.pci
        ),
    )


def devices(host: Host) -> dict[str, PciDevice]:
    return {device.address: device for device in host.pci}


def switch_above(functions: dict[str, PciDevice], address: str) -> str | None:
    """The upstream port of the switch that a device sits below."""
    above: str | None = address
    while above and functions[above].port_type != "upstream-port":
        above = functions[above].parent
    return above


def test_a_validation_of_it_knows_everything_and_finds_what_a_fresh_host_has() -> None:
    """What nobody configured costs something; nothing is broken, and nothing is unknown."""
    found = tuple(judge(gather(open_root(str(ARCHIVE)))))
    assert {(r.check, r.outcome) for r in found if r.outcome not in ("pass", "skip")} == {
        ("cpu-frequency", "warn"),
        ("numa-balancing", "warn"),
    }
    assert (
        sum(r.check == "aer" and r.outcome == "pass" for r in found) == 8 + 10 + 9 + 4 + 9
    )  # GPUs, ports, drives, NVSwitches, uplinks of PCIe switches
