"""PCIe links, NUMA nodes, payloads, ASPM and BARs: what is a fault, what is by design, idle, or cannot be known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evidences import (
    DOWN,
    GIB,
    GPU,
    NIC,
    ROOT_PORT,
    UP,
    bridge,
    end,
    evidence,
    gpu,
    guest,
    host,
    judged,
    link,
    nic,
    outcome,
    rdma,
    switch,
    with_pci,
)

from hosttune.model.evidence import Evidence, Health
from hosttune.model.gpu import Gpu
from hosttune.model.host import Bar, Host, NumaNode, Nvme, PciDevice, Problem
from hosttune.model.validation import CheckResult, Counted, Outcome, Validation

STEADY = "habanalabs"  # a driver that never slows an idle link


def of_gpu(**more: Any) -> Evidence:
    return with_pci(gpu(**more))


# --- pcie-link -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({}, "pass"),
        ({"link": link(state="full", upstream=end(DOWN))}, "pass"),
        # a document with the contract's fields only: the figures decide
        ({"link": link(16.0), "driver": STEADY}, "fail"),
        ({"link": link(32.0, 8)}, "fail"),
        ({"link": link(8.0, state="degraded", upstream=end(DOWN), why="8 GT/s x16 of 32"), "driver": STEADY}, "fail"),
        # what a document says of itself does not hide a low link
        ({"link": link(8.0, state="full", upstream=end(DOWN)), "driver": STEADY}, "fail"),
        ({"link": link(8.0, state="by-design", upstream=end(DOWN)), "driver": STEADY}, "fail"),
        ({"link": link(32.0, 8, state="idle", upstream=end(DOWN)), "driver": "nvidia"}, "fail"),
        # speed alone, and it is proven that the device rests, or a guest has it, whose driver may slow it
        ({"link": link(2.5)}, "unknown"),
        ({"link": link(2.5), "runtime_status": "suspended"}, "unknown"),
        # a link at rest, or one that trained low: only a look under load can tell
        ({"link": link(2.5), "driver": "nvidia"}, "unknown"),
        ({"link": link(2.5, state="idle", why="it may"), "driver": "nvidia"}, "unknown"),
        # not known
        ({"link": link(None)}, "unknown"),
        ({"link": link(32.0, None)}, "unknown"),
        ({"link": link(8.0), "power_state": "D3hot"}, "unknown"),
        ({"link": link(), "power_state": "D3hot"}, "pass"),
        ({"link": link(32.0, 8), "power_state": "D3hot"}, "fail"),
        ({"link": link(8.0, 8), "power_state": "D3hot"}, "fail"),
        ({"link": link(), "power_state": "D3cold"}, "unknown"),
        ({"link": None}, "unknown"),
        ({"link": link(64.0, 16)}, "unknown"),  # more than it can: no figure of this link
        ({"link": link(16.0), "parent": None}, "unknown"),
    ],
)
def test_a_gpu_link(device: dict[str, Any], expected: str) -> None:
    found = judged("pcie-link", of_gpu(**device))
    assert list(found) == [GPU]
    assert found[GPU].outcome == expected
    assert (found[GPU].hint is not None) == (expected in ("fail", "unknown"))


@pytest.mark.parametrize(
    ("device", "loaded", "expected", "actual"),
    [
        ({"link": link(2.5)}, (32.0, 16), "pass", "32 GT/s x16 under load, 2.5 GT/s x16 at rest"),
        (
            {"link": link(2.5, state="idle", why="may")},
            (32.0, 16),
            "pass",
            "32 GT/s x16 under load, 2.5 GT/s x16 at rest",
        ),
        ({}, (32.0, 16), "pass", "32 GT/s x16 under load"),
        # what it does under load is what it can do
        ({"link": link(2.5)}, (16.0, 16), "fail", "2.5 GT/s x16 at rest, 16 GT/s x16 of 32 GT/s x16, which both"),
        ({"link": link(2.5)}, (2.5, 16), "fail", "2.5 GT/s x16 under load, 2.5 GT/s x16 of 32 GT/s x16, which both"),
        ({"link": link(2.5)}, (32.0, 8), "fail", "32 GT/s x8 under load"),
        ({}, (16.0, 16), "fail", "16 GT/s x16 under load, 32 GT/s x16 at rest"),
        ({"link": link(2.5), "runtime_status": "suspended"}, (16.0, 16), "fail", "16 GT/s x16 under load"),
        ({"link": link(8.0), "power_state": "D3hot"}, (32.0, 16), "pass", "32 GT/s x16 under load"),
        ({"link": link(2.5), "parent": None}, (16.0, 16), "unknown", "the other end is not visible"),
    ],
)
def test_a_link_that_was_read_under_load_is_judged_by_that(
    device: dict[str, Any], loaded: tuple[float, int], expected: str, actual: str
) -> None:
    found = msgspec.structs.replace(of_gpu(driver="nvidia", **device), loaded_links={GPU: loaded})
    result = judged("pcie-link", found)[GPU]
    assert result.outcome == expected
    assert actual in (result.actual or "")


def test_a_link_at_rest_leads_to_level_1() -> None:
    result = judged("pcie-link", of_gpu(link=link(2.5), driver="nvidia"))[GPU]
    assert result.actual == "2.5 GT/s x16, at rest: nvidia may slow an idle link"
    assert "--level 1" in (result.hint or "")
    other = judged("pcie-link", of_gpu(link=link(2.5), driver="amdgpu", vendor_id="1002"))[GPU]
    assert (other.outcome, "--level 1" in (other.hint or "")) == ("unknown", False)


@pytest.mark.parametrize(
    ("boot", "then", "now", "expected"),
    [
        ("a", "pass", 2.5, "pass"),
        ("b", "pass", 2.5, "unknown"),
        ("a", "fail", 2.5, "unknown"),
        ("a", "pass", 8.0, "unknown"),
    ],
)
def test_a_link_that_rests_is_known_where_a_validation_since_the_boot_passed_it(
    boot: str, then: Outcome, now: float, expected: str
) -> None:
    found = of_gpu(driver="nvidia", link=link(now, state="idle"))
    of_boot = msgspec.structs.replace(found.host, boot_id="a")
    old = Validation(
        at="2026-03-01T09:30:00Z",
        results=(CheckResult(check="pcie-link", subject=GPU, outcome=then),),
        counted=Counted(boot_id=boot, uptime_seconds=1.0, counters={}),
    )
    later = msgspec.structs.replace(found, host=of_boot, history=(old,), health=Health(uptime_seconds=9.0))
    (result,) = judged("pcie-link", later).values()
    assert result.outcome == expected
    assert ("read at 2026-03-01" in (result.actual or "")) is (expected == "pass")


def test_without_a_guest_a_slow_gpu_on_vfio_pci_in_d0_is_a_fault() -> None:
    found = of_gpu(link=link(2.5))
    alone = msgspec.structs.replace(found, host=msgspec.structs.replace(found.host, guests=()))
    assert judged("pcie-link", alone)[GPU].outcome == "fail"


def test_a_slower_slot_is_by_design_and_the_reason_names_the_port() -> None:
    slower = [bridge(ROOT_PORT, None, "root-port", link=link(16.0, 8, 16.0, 8))]
    found = evidence(host(pci=(*slower, gpu(parent=ROOT_PORT, link=link(16.0, 8)))))
    assert outcome("pcie-link", found, GPU) == ("pass", f"16 GT/s x8, by design: {ROOT_PORT} above can do 16 GT/s x8")
    faulty = evidence(host(pci=(*slower, gpu(parent=ROOT_PORT, link=link(8.0, 8), driver=STEADY))))
    result = judged("pcie-link", faulty)[GPU]
    assert (result.outcome, result.expected) == ("fail", "16 GT/s x8, the most that both ends can do")


def test_a_second_function_may_claim_more_lanes_than_its_slot_has() -> None:
    port = bridge(ROOT_PORT, None, "root-port", link=link(5.0, 1, 5.0, 2))
    first = nic("0000:19:00.0", ROOT_PORT, link=link(5.0, 1, 5.0, 1))
    second = nic("0000:19:00.1", ROOT_PORT, link=link(5.0, 1, 5.0, 2))
    nics = (rdma("0000:19:00.0"), rdma("0000:19:00.1"))
    found = judged("pcie-link", evidence(host(pci=(port, first, second), gpus=(), nics=nics)))
    assert {subject: result.outcome for subject, result in found.items()} == {
        "0000:19:00.0": "pass",
        "0000:19:00.1": "pass",
    }


def test_behind_a_virtual_port_nothing_is_a_fault_and_the_hint_leads_to_the_host() -> None:
    port = bridge(ROOT_PORT, None, "root-port", vendor_id="1b36", link=link(16.0, 32, 16.0, 32))
    found = evidence(host(pci=(port, gpu(parent=ROOT_PORT, link=link(16.0))), hypervisor=True))
    result = judged("pcie-link", found)[GPU]
    assert result.outcome == "unknown"
    assert "on the host of this guest" in (result.hint or "")


def test_subjects_are_gpus_nics_drives_and_not_other_displays_nor_virtual_functions() -> None:
    drive = PciDevice(address="0000:1a:00.0", class_code="010802", link=link(16.0, 4, 16.0, 4), parent=DOWN)
    display = gpu("0000:03:00.0", None, link=None, vendor_id="1a03")
    function = nic("0000:19:00.1", physfn=NIC, link=None)
    found = with_pci(
        gpu(),
        nic(),
        function,
        drive,
        display,
        gpus=(Gpu(address=GPU, vendor="nvidia"), Gpu(address="0000:03:00.0")),
        nics=(rdma(), rdma("0000:19:00.1")),
        nvme=(Nvme(address="0000:1a:00.0"),),
    )
    assert set(judged("pcie-link", found)) == {GPU, NIC, "0000:1a:00.0"}


def test_a_gpu_that_is_in_no_list_of_functions_is_unknown() -> None:
    found = evidence(host(pci=()))
    assert judged("pcie-link", found)[GPU].outcome == "unknown"
    assert judged("numa-affinity", found)[GPU].outcome == "unknown"
    assert judged("bar-size", found)[GPU].outcome == "unknown"


@pytest.mark.parametrize(("complete", "vendor", "expected"), [
    (True, "15b3", "skip"), (False, "15b3", "unknown"), (None, "15b3", "unknown"), (False, "1af4", "skip"),
])  # fmt: skip
def test_a_nic_without_a_link(complete: bool | None, vendor: str, expected: str) -> None:
    found = evidence(
        host(pci=(nic(parent=None, link=None, vendor_id=vendor),), gpus=(), nics=(rdma(),)), complete=complete
    )
    assert judged("pcie-link", found)[NIC].outcome == expected


# --- numa-affinity -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "of_host", "expected"),
    [
        ({}, {}, "pass"),
        ({"numa_source": "bridge"}, {}, "pass"),
        ({"numa_node": 7}, {}, "fail"),
        ({"numa_node": None}, {}, "unknown"),
        ({"numa_node": None}, {"hypervisor": True}, "warn"),
        ({"numa_node": None}, {"numa_nodes": (NumaNode(id=0),), "cpus": ()}, "pass"),
        ({"numa_node": None}, {"numa_nodes": (NumaNode(id=0),)}, "unknown"),  # CPUs of node 1: its folder is lost
        ({"numa_node": None}, {"numa_nodes": (NumaNode(id=0),), "hypervisor": True}, "warn"),
        ({"numa_node": None}, {"numa_nodes": (NumaNode(id=0),), "hypervisor": None}, "unknown"),
        ({"numa_node": 1}, {"numa_nodes": ()}, "pass"),
    ],
)
def test_the_node_of_a_gpu(device: dict[str, Any], of_host: dict[str, Any], expected: str) -> None:
    assert judged("numa-affinity", with_pci(gpu(**device), **of_host))[GPU].outcome == expected


def test_a_node_that_its_bridge_contradicts_is_a_warning() -> None:
    doubt = Problem(
        what="NUMA node contradicts the bridge above",
        where=f"/sys/bus/pci/devices/{GPU}/numa_node",
        why="says 0, bridge says 1",
    )
    assert outcome("numa-affinity", with_pci(gpu(), problems=(doubt,)), GPU)[0] == "warn"


def test_other_displays_have_no_node_to_judge() -> None:
    found = judged("numa-affinity", evidence(host(gpus=(Gpu(address=GPU, vendor="other"),))))
    assert {subject: result.outcome for subject, result in found.items()} == {"host": "skip"}


# --- payload -------------------------------------------------------------------------------------------------


def test_payloads_that_agree_pass_and_one_that_differs_fails_by_name() -> None:
    assert outcome("pcie-payload", of_gpu(), GPU) == ("pass", "256 B")
    result = judged("pcie-payload", of_gpu(max_payload_bytes=512))[GPU]
    assert result.outcome == "fail"
    assert f"{GPU} 512 B" in (result.actual or "")
    assert "pci=pcie_bus_safe" in (result.hint or "")


def test_payloads_may_grow_towards_the_root_only_where_the_kernel_was_told_so() -> None:
    tree = [d if d.address != ROOT_PORT else msgspec.structs.replace(d, max_payload_bytes=512) for d in switch()]
    plain = host(pci=(*tree, gpu()))
    assert outcome("pcie-payload", evidence(plain), GPU)[0] == "fail"
    told = msgspec.structs.replace(plain, kernel_args=("pci=pcie_bus_perf",))
    assert outcome("pcie-payload", evidence(told), GPU)[0] == "pass"
    shrinking = with_pci(gpu(max_payload_bytes=512), kernel_args=("pci=pcie_bus_perf",))
    assert outcome("pcie-payload", shrinking, GPU)[0] == "fail"


def test_an_unread_payload_is_unknown_and_says_how_to_read_it() -> None:
    live = judged("pcie-payload", of_gpu(max_payload_bytes=None))[GPU]
    assert (live.outcome, "as root" in (live.hint or "")) == ("unknown", True)
    captured = judged("pcie-payload", msgspec.structs.replace(of_gpu(max_payload_bytes=None), complete=False))[GPU]
    assert "capture the host again" in (captured.hint or "")


# --- ASPM ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "port", "expected"),
    [("off", "off", "pass"), ("L1", "off", "warn"), ("off", "L0s L1", "warn"), (None, "off", "unknown"),
     ("off", None, "unknown"), (None, "L1", "warn")],
)  # fmt: skip
def test_aspm_of_both_ends(own: str | None, port: str | None, expected: str) -> None:
    ports = [bridge(ROOT_PORT, None, "root-port", aspm=port)]
    assert outcome("aspm", evidence(host(pci=(*ports, gpu(parent=ROOT_PORT, aspm=own)))), GPU)[0] == expected


# --- BARs ----------------------------------------------------------------------------------------------------


def bars(size: int) -> tuple[Bar, ...]:
    return (Bar(index=0, size_bytes=16 << 20), Bar(index=2, size_bytes=size)) if size else ()


@pytest.mark.parametrize(("size", "expected"), [(256 * GIB, "pass"), (0, "fail")])
def test_a_gpu_needs_a_window(size: int, expected: str) -> None:
    found = with_pci(gpu(bars=bars(size)), nic(bars=bars(GIB)))
    assert outcome("bar-size", found, GPU)[0] == expected


def test_no_bar_anywhere_is_not_recorded_rather_than_missing() -> None:
    assert outcome("bar-size", of_gpu(bars=()), GPU)[0] == "unknown"
    assert outcome("bar-size", of_gpu(bars=None), GPU)[0] == "unknown"


def test_a_window_smaller_than_that_of_the_sister_card_fails() -> None:
    sister = "0000:1a:00.0"
    gpus = (Gpu(address=GPU, vendor="nvidia"), Gpu(address=sister, vendor="nvidia"))
    found = judged("bar-size", with_pci(gpu(bars=bars(GIB)), gpu(sister, bars=bars(256 * GIB)), gpus=gpus))
    assert (found[GPU].outcome, found[sister].outcome) == ("fail", "pass")
    assert sister in (found[GPU].actual or "")
    other = gpu(sister, bars=bars(256 * GIB), device_id="2330")
    assert outcome("bar-size", with_pci(gpu(bars=bars(GIB)), other, gpus=gpus), GPU)[0] == "pass"


def test_a_resizable_bar_that_is_smaller_than_it_can_be_costs_something() -> None:
    small = msgspec.structs.replace(of_gpu(bars=bars(GIB // 4)), bar_limits={GPU: 32 * GIB})
    assert outcome("bar-size", small, GPU) == ("warn", "largest BAR 256 MiB, of 32 GiB that it can have")
    assert outcome("bar-size", msgspec.structs.replace(small, bar_limits={GPU: 0}), GPU)[0] == "pass"
    assert outcome("bar-size", msgspec.structs.replace(small, bar_limits={}), GPU)[0] == "unknown"


# --- a guest that is looked at from inside -------------------------------------------------------------------


def test_the_hosts_settings_are_not_judged_in_a_guest_that_gives_nothing_away() -> None:
    inside = host(hypervisor=True, guests=None, pci=(gpu(parent=None, driver="nvidia"),))
    for check in ("pcie-payload", "aspm", "iommu-mode", "hugepages", "cpu-frequency", "acs"):
        assert outcome(check, evidence(inside))[0] == "skip", check


def test_a_guest_with_guests_of_its_own_is_a_host() -> None:
    nested: Host = host(hypervisor=True, guests=(guest(),))
    assert outcome("iommu-mode", evidence(nested))[0] == "pass"


def test_the_path_of_a_document_with_a_loop_of_parents_ends() -> None:
    looped = [bridge(UP, DOWN, "upstream-port"), bridge(DOWN, UP, "downstream-port")]
    assert outcome("pcie-payload", evidence(host(pci=(*looped, gpu(parent=DOWN)))), GPU)[0] == "pass"
