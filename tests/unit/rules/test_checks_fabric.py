"""The checks of what joins GPUs: links against the board and the others, the fabric, NVSwitches, Fabric Manager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpuevidence import CASES, A, B, C, evidence, evidence_from_smi, function, is_whole, not_well, nvidia, of, results

from hosttune.discovery.evidence import gather
from hosttune.gpu.nvidia_links import parse_topo_matrix, peers_from_matrix
from hosttune.gpu.nvidia_words import fabric_faults
from hosttune.machine.capture import Capture
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Fabric, FabricManager, FabricPartition, Gpu, Mig, Peer
from hosttune.model.host import Module, NvSwitch, PciDevice, Platform
from hosttune.model.validation import CheckResult

FABRIC = ("nvlinks", "fabric")
SWITCHES = ("0000:83:00.0", "0000:84:00.0", "0000:85:00.0", "0000:86:00.0")


def outcomes(found: Evidence, check: str) -> dict[str, str]:
    told = of(found, check, *FABRIC)
    assert all(is_whole(result) for result in told.values())
    return {subject: result.outcome for subject, result in told.items()}


def of_matrix(name: str, device_id: str) -> Evidence:
    """The host of a topology matrix: only peers are known, and as many links as it names."""
    matrix = parse_topo_matrix((CASES / "topo" / f"{name}.txt").read_text())
    assert matrix is not None
    order = tuple(f"0000:{n:02x}:00.0" for n in range(1, len(matrix.gpus) + 1))
    peers = peers_from_matrix(matrix, order)
    gpus = (
        Gpu(
            address=a,
            vendor="nvidia",
            model="one",
            source="nvidia-smi",
            peers=peers.get(a),
            nvlinks_active=max((peer.links or 0 for peer in peers.get(a, ())), default=None),
        )
        for a in order
    )
    return evidence(*gpus, host={"pci": tuple(function(address, device_id=device_id) for address in order)})


# --- NVLink --------------------------------------------------------------------------------------------------


def test_the_one_b200_off_nvlink_fails_and_no_other() -> None:
    told = outcomes(of_matrix("b200-one-gpu-off-nvlink", "2901"), "nvlink")
    assert {subject for subject, found in told.items() if found == "fail"} == {"0000:03:00.0"}


@pytest.mark.parametrize(
    "name", ["b200-4node-28cpu", "h100-hgx-10nic-sys", "h20-8nic-legend-offset", "aws-p5-48xlarge"]
)
def test_whole_fabrics_pass(name: str) -> None:
    assert set(outcomes(of_matrix(name, "GPU"), "nvlink").values()) == {"pass"}


def test_bridged_pairs_are_whole() -> None:
    told = outcomes(of_matrix("a100-pcie-8-bridge-pairs-cgroup", "20b5"), "nvlink")
    assert set(told.values()) == {"pass"}


def test_cards_without_nvlink_are_skipped() -> None:
    assert set(outcomes(of_matrix("pcie-6gpu-pix-pairs", "26b9"), "nvlink").values()) == {"skip"}


def linked(address: str, links: int | None, *peers: str, **facts: Any) -> Gpu:
    joined = tuple(Peer(address=peer, kind="nvlink", links=links) for peer in peers)
    return nvidia(address, nvlinks_active=links, peers=joined, **facts)


def test_a_gpu_with_fewer_links_than_its_board_fails() -> None:
    found = evidence(linked(A, 18, B, C), linked(B, 16, A, C), linked(C, 18, A, B))
    assert outcomes(found, "nvlink") == {A: "pass", B: "fail", C: "pass"}
    assert of(found, "nvlink", *FABRIC)[B].actual == "16 links, NVLink to 2 of 2 others"


def test_all_gpus_off_nvlink_fail_against_their_board() -> None:
    """No GPU to compare with: the data sheet's number of links decides. In a guest it cannot."""
    gpus = tuple(nvidia(a, nvlinks_active=0, peers=()) for a in (A, B))
    assert outcomes(evidence(*gpus), "nvlink") == {A: "fail", B: "fail"}
    assert outcomes(evidence(*gpus, host={"hypervisor": True}), "nvlink") == {A: "skip", B: "skip"}


def test_a_missing_bridge_warns() -> None:
    gpus = (linked(A, 12, B), linked(B, 12, A), nvidia(C, nvlinks_active=0, peers=()))
    pci = tuple(function(gpu.address, device_id="20b5") for gpu in gpus)
    assert outcomes(evidence(*gpus, host={"pci": pci}), "nvlink") == {A: "pass", B: "pass", C: "warn"}


def test_mig_turns_nvlink_off_by_design() -> None:
    gpus = (linked(A, 18, B), linked(B, 18, A), nvidia(C, nvlinks_active=0, peers=(), mig=Mig(mode="enabled")))
    assert outcomes(evidence(*gpus), "nvlink")[C] == "skip"


@pytest.mark.parametrize(
    ("links", "reach", "pending", "expected"),
    [
        (18, (), "enabled", "skip"),
        (17, (), "enabled", "fail"),
        (18, (B,), "enabled", "fail"),
        (0, (), "disabled", "fail"),
        (17, (A, B), "disabled", "fail"),
    ],
)
def test_links_that_mig_would_have_turned_off_are_judged(
    links: int, reach: tuple[str, ...], pending: str, expected: str
) -> None:
    odd = msgspec.structs.replace(linked(C, links, *reach), mig=Mig(mode="enabled", pending=pending))
    assert outcomes(evidence(linked(A, 18, B, C), linked(B, 18, A, C), odd), "nvlink")[C] == expected


def test_links_that_nobody_told_are_unknown() -> None:
    assert outcomes(evidence(linked(A, 18, B), nvidia(B)), "nvlink")[B] == "unknown"


@pytest.mark.parametrize(("kinds", "expected"), [(("xgmi", "xgmi"), "pass"), (("xgmi", "pcie"), "fail")])
def test_xgmi(kinds: tuple[str, str], expected: str) -> None:
    def gpu(address: str, others: tuple[str, str], kinds: tuple[str, str]) -> Gpu:
        peers = tuple(Peer(address=other, kind=kind) for other, kind in zip(others, kinds, strict=True))
        return Gpu(address=address, vendor="amd", model="MI300X", source="amdgpu", peers=peers)

    whole = ("xgmi", "xgmi")
    gpus = (gpu(A, (B, C), whole), gpu(B, (A, C), kinds), gpu(C, (A, B), whole))
    found = evidence(*gpus, host={"pci": tuple(function(a, "amdgpu", "74a1") for a in (A, B, C))})
    assert outcomes(found, "xgmi") == {A: "pass", B: expected, C: "pass"}
    assert set(outcomes(found, "nvlink").values()) == {"skip"}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("xgmi", "xgmi"), "pass"), (("xgmi", "pcie"), "unknown"), (("pcie", "pcie"), "unknown")],
)
def test_a_gpu_without_xgmi_to_all_is_unknown_where_nobody_knows_what_one_of_them_has(
    kinds: tuple[str, str], expected: str
) -> None:
    peers = tuple(Peer(address=other, kind=kind) for other, kind in zip((B, C), kinds, strict=True))
    told = Gpu(address=A, vendor="amd", model="MI300X", source="amdgpu", peers=peers)
    others = tuple(Gpu(address=address, vendor="amd", model="MI300X", source="amdgpu") for address in (B, C))
    found = evidence(told, *others, host={"pci": tuple(function(a, "amdgpu", "74a1") for a in (A, B, C))})
    assert outcomes(found, "xgmi") == {A: expected, B: "unknown", C: "unknown"}


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", None])
def test_what_its_maker_does_not_have_is_skipped_even_of_a_gpu_that_tells_nothing(driver: str | None) -> None:
    bare = Gpu(address=A, vendor="nvidia", source="sysfs")
    assert outcomes(evidence(bare, driver=driver, complete=False), "xgmi") == {A: "skip"}
    for maker in ("amd", "habana", "intel"):
        other = Gpu(address=A, vendor=maker, source="sysfs")
        assert outcomes(evidence(other, driver=driver, complete=False), "nvlink") == {A: "skip"}


# --- the fabric's state --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"fabric_state": "completed", "fabric_status": "success"}, "pass"),
        ({"fabric_state": "completed", "fabric_status": "success", "fabric_health": ()}, "pass"),
        ({"fabric_state": "completed", "fabric_status": "success", "fabric_health": ("no partition",)}, "fail"),
        ({"fabric_state": "completed", "fabric_status": "gpu is lost"}, "fail"),
        ({"fabric_state": "completed"}, "unknown"),
        ({"fabric_state": "in progress"}, "unknown"),  # the mode is not known
        ({"fabric_state": "not started"}, "fail"),
        ({"fabric_state": "in progress", "mig": Mig(mode="enabled")}, "skip"),
        ({"fabric_state": "in progress", "mig": Mig(mode="enabled", pending="disabled")}, "unknown"),
        ({"lacks": ("fabric_state",)}, "skip"),
        ({}, "unknown"),
    ],
)
def test_fabric_state(facts: dict[str, Any], expected: str) -> None:
    assert outcomes(evidence(nvidia(**facts)), "fabric-state") == {A: expected}


WAITING = {"fabric_state": "in progress", "module_id": 3}


def partition(*modules: int, active: bool | None) -> FabricPartition:
    return FabricPartition(id=len(modules), module_ids=modules, active=active)


UNUSED = Fabric(mode=1, partitions=(partition(3, active=False),))


@pytest.mark.parametrize(
    ("facts", "fabric", "hypervisor", "expected"),
    [
        (WAITING, Fabric(mode=1, partitions=(partition(1, 3, active=False),)), False, "pass"),
        (WAITING, Fabric(mode=2, partitions=(partition(1, 3, active=False),)), False, "pass"),
        # a partition with it is active: it should have registered
        (WAITING, Fabric(mode=1, partitions=(partition(1, 3, active=True),)), False, "fail"),
        (WAITING, Fabric(mode=1, partitions=(partition(3, active=False), partition(1, 3, active=True))), False, "fail"),
        (WAITING, Fabric(mode=1, partitions=(partition(3, active=False), partition(2, 4, active=True))), False, "pass"),
        (WAITING, Fabric(mode=0), False, "fail"),
        (WAITING, Fabric(mode=0, partitions=(partition(1, 3, active=False),)), False, "fail"),
        (WAITING, Fabric(mode=1, partitions=(partition(1, 3, active=False),)), True, "fail"),
        # nothing is known of the mode, of the partitions, or of its place in them
        (WAITING, Fabric(partitions=(partition(1, 3, active=False),)), False, "unknown"),
        (WAITING, Fabric(mode=1), False, "unknown"),
        (WAITING, Fabric(mode=1, partitions=()), False, "unknown"),
        (WAITING, Fabric(mode=1, partitions=(partition(1, 2, active=False),)), False, "unknown"),
        (WAITING, Fabric(mode=1, partitions=(partition(1, 3, active=None),)), False, "unknown"),
        ({"fabric_state": "in progress"}, Fabric(mode=1, partitions=(partition(1, 3, active=False),)), False, "pass"),
        ({"fabric_state": "in progress"}, Fabric(mode=1, partitions=(partition(1, 3, active=True),)), False, "unknown"),
        # other faults are not explained by a missing partition
        (WAITING | {"fabric_state": "not started"}, UNUSED, False, "fail"),
        (WAITING | {"fabric_health": ("no partition",)}, UNUSED, False, "pass"),
        (WAITING | {"fabric_health": ("route unhealthy",)}, UNUSED, False, "fail"),
    ],
)  # fmt: skip
def test_without_an_active_partition_a_gpu_waits_for_one(
    facts: dict[str, Any], fabric: Fabric, hypervisor: bool, expected: str
) -> None:
    found = evidence(nvidia(**facts), host={"fabric": fabric, "hypervisor": hypervisor})
    assert outcomes(found, "fabric-state") == {A: expected}


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (0, None),
        (0b10_10_10_10 | 1 << 8, ()),
        (0b10_10_10_01 | 1 << 8, ("degraded bandwidth",)),
        (0b01_01_01_10 | 1 << 8, ("route recovery in progress", "route unhealthy", "access timeout recovery")),
        (0b10_10_10_10 | 4 << 8, ("no partition",)),
        (0b10_10_10_10 | 5 << 8, ("insufficient NVLinks",)),
        (0b10_10_10_10 | 14 << 8, ("incorrect configuration 14",)),
        (0b10_10_10_10 | 1 << 8 | 2 << 12, ()),
    ],
)
def test_health_mask(mask: int, faults: tuple[str, ...] | None) -> None:
    assert fabric_faults(mask) == faults


# --- NVSwitches and Fabric Manager ---------------------------------------------------------------------------


def board(
    gpu_driver: str | None = "nvidia",
    switch_drivers: tuple[str | None, ...] = ("nvidia-nvswitch",) * 4,
    manager: FabricManager | None = None,
    **rest: Any,
) -> Evidence:
    """An HGX host: two of its GPUs, and its NVSwitches."""
    told: dict[str, Any] = {"nvlinks_active": 18, "driver_version": "580.1"} if gpu_driver == "nvidia" else {}
    gpus = tuple(nvidia(address, **told) for address in (A, B))
    switches = tuple(NvSwitch(address=a, driver=d) for a, d in zip(SWITCHES, switch_drivers, strict=False))
    pci = tuple(function(gpu.address, gpu_driver) for gpu in gpus)
    pci += tuple(PciDevice(address=s.address, vendor_id="10de", device_id="22a3", driver=s.driver) for s in switches)
    host = {"pci": pci, "nvswitches": switches, "platform": Platform(modules=(Module(name="nvidia", version="580.1"),))}
    return evidence(*gpus, host=host, fabric_manager=manager, **rest)


RUNNING = FabricManager(installed=True, running=True, state="active", version="580.1", mode=0)


def fabric(found: Evidence) -> dict[str, str]:
    """The one result of each check of the Fabric Manager."""
    told = [
        r for r in results(found, *FABRIC) if r.check in ("fabric-manager", "driver-fm-version", "fabric-manager-mode")
    ]
    assert all(is_whole(result) for result in told)
    return {result.check: result.outcome for result in told}


def test_bare_metal_as_it_should_be() -> None:
    found = board(manager=RUNNING)
    assert set(outcomes(found, "nvswitch").values()) == {"pass"}
    assert fabric(found) == {"fabric-manager": "pass", "driver-fm-version": "pass", "fabric-manager-mode": "skip"}


def test_mode_0_with_gpus_in_guests_does_not_isolate_tenants() -> None:
    found = board("vfio-pci", manager=RUNNING)
    assert fabric(found)["fabric-manager-mode"] == "fail"
    assert "not isolated" in (of(found, "fabric-manager-mode", *FABRIC)["host"].actual or "")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({"mode": 1}, "pass"), ({"mode": 2}, "pass"), ({"mode": None}, "unknown"), ({"running": None}, "unknown"),
     ({"running": False, "state": "failed"}, "skip")],
)  # fmt: skip
def test_fabric_mode_with_gpus_in_guests(facts: dict[str, Any], expected: str) -> None:
    found = board("vfio-pci", manager=msgspec.structs.replace(RUNNING, **facts))
    assert fabric(found)["fabric-manager-mode"] == expected


@pytest.mark.parametrize(
    ("version", "expected", "word"),
    [("580.1", "pass", "580.1"), ("580.2", "fail", "another release"), ("570.9", "fail", "another branch"),
     (None, "unknown", "its version was not read")],
)  # fmt: skip
def test_driver_and_fabric_manager(version: str | None, expected: str, word: str) -> None:
    found = board(manager=msgspec.structs.replace(RUNNING, version=version))
    assert fabric(found)["driver-fm-version"] == expected
    assert word in (of(found, "driver-fm-version", *FABRIC)["host"].actual or "")


def test_a_driver_that_was_updated_is_loaded_and_not_replaced() -> None:
    """Fabric Manager compares itself with the loaded driver; the library is of the one that is installed."""
    found = board(manager=msgspec.structs.replace(RUNNING, version="590.1"))
    gpus = tuple(msgspec.structs.replace(gpu, driver_version="590.1") for gpu in found.host.gpus)
    host = msgspec.structs.replace(found.host, gpus=gpus)
    result = of(msgspec.structs.replace(found, host=host), "driver-fm-version", *FABRIC)["host"]
    assert (result.outcome, result.expected) == ("fail", "580.1, as the driver")
    assert "reboot" in (result.hint or "")


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        (None, "unknown"),
        (FabricManager(), "unknown"),
        (FabricManager(installed=False, running=False), "fail"),
        (FabricManager(installed=True, running=False, state="failed"), "fail"),
    ],
)
def test_fabric_manager_is_needed_where_the_switches_are(manager: FabricManager | None, expected: str) -> None:
    assert fabric(board(manager=manager))["fabric-manager"] == expected


def test_full_passthrough_needs_none_here() -> None:
    found = board("vfio-pci", ("vfio-pci",) * 4, FabricManager(installed=True, running=False, state="inactive"))
    assert set(fabric(found).values()) == {"skip"}
    assert set(outcomes(found, "nvswitch").values()) == {"pass"}


def test_b200_boards_need_one_without_any_nvswitch() -> None:
    gpu = nvidia(A, nvlinks_active=18)
    found = evidence(gpu, host={"pci": (function(A, device_id="2901"),)}, fabric_manager=FabricManager(installed=False))
    assert fabric(found)["fabric-manager"] == "fail"
    guest = evidence(gpu, host={"pci": (function(A, device_id="2901"),), "hypervisor": True})
    assert fabric(guest)["fabric-manager"] == "skip"


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        (("nvidia-nvswitch", "nvidia-nvswitch", "nvidia-nvswitch", None), {"pass", "fail"}),
        (("nvidia-nvswitch", "nvidia-nvswitch", "nvidia-nvswitch", "vfio-pci"), {"fail", "pass"}),
        (("vfio-pci",) * 4, {"fail", "pass"}),
        (("nvidia-nvswitch",) * 3, {"pass", "fail"}),
    ],
)
def test_nvswitches_that_are_wrong(drivers: tuple[str | None, ...], expected: set[str]) -> None:
    assert set(outcomes(board(switch_drivers=drivers, manager=RUNNING), "nvswitch").values()) == expected


def test_three_nvswitches_are_one_too_few() -> None:
    result = of(board(switch_drivers=("nvidia-nvswitch",) * 3), "nvswitch", *FABRIC)["host"]
    assert (result.outcome, result.expected, result.actual) == ("fail", "4 on each baseboard", "3")


def test_a_driver_that_nobody_recorded_is_unknown() -> None:
    found = board(switch_drivers=(None,) * 4, complete=False)
    assert outcomes(found, "nvswitch")[SWITCHES[0]] == "unknown"


# --- real hosts ----------------------------------------------------------------------------------------------


def quiet(told: tuple[CheckResult, ...]) -> set[tuple[str, str]]:
    return not_well(told)


@pytest.mark.parametrize(
    "name", ["derived/xe9680-8xh100-lspci", "older/vm-x4", "older/vm-x1", "derived/azure-ndv4-8xa100-vm"]
)
def test_real_hosts_have_no_fault_of_ours(host_root: Callable[[str], Path], name: str) -> None:
    found = gather(Capture(str(host_root(name))))
    told = results(found, "gpus", "gpumemory", "gpumodes", *FABRIC, "kernelevents", "health")
    assert quiet(told) == set()
    assert all(is_whole(result) for result in told)
    keys = [(result.check, result.subject) for result in told]
    assert len(keys) == len(set(keys))


def test_four_h200_in_a_guest_are_joined_and_registered(host_root: Callable[[str], Path]) -> None:
    found = gather(Capture(str(host_root("older/vm-x4"))))
    assert set(outcomes(found, "nvlink").values()) == {"pass"}
    assert set(outcomes(found, "fabric-state").values()) == {"pass"}
    assert set(fabric(found).values()) == {"skip"}


def test_one_h200_in_a_guest_has_no_fabric(host_root: Callable[[str], Path]) -> None:
    found = gather(Capture(str(host_root("older/vm-x1"))))
    assert set(outcomes(found, "nvlink").values()) == {"skip"}
    assert set(outcomes(found, "fabric-state").values()) == {"skip"}


def test_h100s_of_nvidia_smi_are_registered() -> None:
    assert set(outcomes(evidence_from_smi("h100-x8-535", "2330"), "fabric-state").values()) == {"pass"}
