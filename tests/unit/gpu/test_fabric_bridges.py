"""ConnectX functions that carry the NVLink fabric of HGX B200 and B300: told by their VPD, kept, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from evidences import evidence, judged
from evidences import host as evidence_host
from planhosts import Card, build_host, intent_of

from hosttune.discovery.devices import read_nics
from hosttune.discovery.scrub import Scrub
from hosttune.errors import BadInput
from hosttune.gpu.bridges import MARK
from hosttune.handover.targets import kind_of
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.gpu import Fabric
from hosttune.model.host import Gpu, Host, Nic, PciDevice
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.ports import NicPorts, RdmaPort
from hosttune.model.values import to_json
from hosttune.planning import plan

GPU, BRIDGE, FULL, NIC, OTHER = "0000:41:00.0", "0000:05:00.0", "0000:05:00.1", "0000:42:00.0", "0000:43:00.0"
VPD = b"\x82\x0e\x00ConnectX-7 HGX\x90\x1c\x00SN\x08MT123456V0\x0b" + MARK + b"\x78"
PLAIN = b"\x82\x0a\x00ConnectX-7\x90\x0c\x00SN\x08MT123456\x78"
Json = dict[str, Any]


def function(address: str, vendor: str = "15b3", device: str = "1021", **facts: Any) -> PciDevice:
    kind = "030200" if vendor == "10de" else "020700"
    return PciDevice(address=address, vendor_id=vendor, device_id=device, class_code=kind, **facts)


# --- discovery -----------------------------------------------------------------------------------------------


def discovered(root: Path, vpd: dict[str, bytes | None], gpu: str = "2901") -> dict[str, bool | None]:
    (root / "sys").mkdir()
    for address, data in vpd.items():
        folder = root / f"sys/bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        if data is not None:
            (folder / "vpd").write_bytes(data)
    pci = (function(GPU, "10de", gpu), *(function(address) for address in vpd))
    return {nic.address: nic.fabric_bridge for nic in read_nics(Reader(Capture(str(root))), pci)}


def test_the_mark_in_the_vpd_tells_a_bridge_and_its_neighbour_in_the_slot(tmp_path: Path) -> None:
    found = discovered(tmp_path, {BRIDGE: VPD, FULL: PLAIN, NIC: PLAIN})
    assert found == {BRIDGE: True, FULL: True, NIC: False}


@pytest.mark.parametrize("data", [None, b""])
def test_what_was_not_read_is_unknown(tmp_path: Path, data: bytes | None) -> None:
    assert discovered(tmp_path, {BRIDGE: data, NIC: PLAIN}) == {BRIDGE: None, NIC: False}


def test_nothing_is_asked_beside_other_gpus(tmp_path: Path) -> None:
    assert discovered(tmp_path, {NIC: PLAIN}, gpu="2335") == {NIC: None}


def test_a_capture_keeps_the_mark_and_no_serial_number() -> None:
    scrub = Scrub("key", None)
    path = f"/sys/bus/pci/devices/{BRIDGE}/vpd"
    assert MARK in scrub.contents(path, VPD)
    for data in (VPD, PLAIN):
        kept = scrub.contents(path, data)
        assert b"MT123456" not in kept
        assert kept
        assert (MARK in kept) == (data is VPD)
        assert scrub.contents(path, kept) == kept


# --- plans ---------------------------------------------------------------------------------------------------


def planned(marks: dict[str, bool | None], gpu: str = "2901", **intent: Any) -> Plan:
    cards = [Card(GPU, 0, group=1)]
    cards += [Card(address, 0, kind="nic", group=10 + i) for i, address in enumerate(marks)]
    document = build_host(cards=cards)
    for row in document["pci"]:
        if row["address"] == GPU:
            row["device_id"] = gpu
    for row in document["nics"]:
        if marks[row["address"]] is not None:
            row["fabric_bridge"] = marks[row["address"]]
    wanted = intent_of(**{"gpus": 1, "vcpus": 4, "memory": "4GiB", **intent})
    return plan(Host.from_json(to_json(document)), Intent.from_json(to_json(wanted)))


def nics(made: Plan) -> list[str]:
    return [device.address for device in made.guests[0].devices if device.kind == "nic"]


def test_a_count_takes_no_bridge() -> None:
    assert nics(planned({BRIDGE: True, NIC: False, OTHER: False}, nics=2)) == [NIC, OTHER]
    (left,) = planned({BRIDGE: True, NIC: False}, nics=2).unplaced
    assert any("carry the GPUs' fabric" in line for line in left.why)


def test_a_count_takes_none_of_which_nobody_knows() -> None:
    assert nics(planned({BRIDGE: None, NIC: False}, nics=1)) == [NIC]
    assert planned({BRIDGE: None}, nics=1).guests == ()


def test_on_other_boards_they_are_nics_like_any() -> None:
    assert nics(planned({BRIDGE: None, NIC: None}, gpu="2335", nics=2)) == [BRIDGE, NIC]


def test_a_bridge_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="carries the NVLink fabric") as error:
        planned({BRIDGE: True}, nics=[BRIDGE])
    assert error.value.where == "intent: guests[0].nics"


def test_a_nic_that_may_be_one_is_named_in_vain() -> None:
    (left,) = planned({BRIDGE: None}, nics=[BRIDGE]).unplaced
    assert any(f"{BRIDGE} stays with the host" in line and "/vpd" in line for line in left.why)


# --- the check -----------------------------------------------------------------------------------------------


def checked(nics: Mapping[str, Json], gpu: str = "nvidia") -> dict[str, tuple[str, str]]:
    """Outcome and `actual` by subject; the values are facts of functions, `mark` and `driver`. `gpu`: its driver."""
    pci: tuple[PciDevice, ...] = (function(GPU, "10de", "2901", driver=gpu),)
    pci += tuple(function(at, driver=facts["driver"]) for at, facts in nics.items())
    rows = tuple(Nic(address=at, fabric_bridge=facts["mark"]) for at, facts in nics.items())
    ports = {
        at: NicPorts(rdma=(RdmaPort(device=f"mlx5_{n}", number=1, state=facts.get("state", "active")),))
        for n, (at, facts) in enumerate(nics.items())
        if facts.get("state", "") is not None
    }
    found = judged("fabric-bridge", evidence(evidence_host(pci=pci, nics=rows), ports=ports))
    return {subject: (result.outcome, result.actual or "") for subject, result in found.items()}


def test_a_bridge_on_the_hosts_driver_is_well() -> None:
    found = checked({BRIDGE: {"mark": True, "driver": "mlx5_core"}, NIC: {"mark": False, "driver": "vfio-pci"}})
    assert found == {BRIDGE: ("pass", "on mlx5_core; mlx5_0/1 active")}


def test_a_port_of_one_bridge_is_active_or_nothing_manages_the_nvswitches() -> None:
    """NVIDIA/gpu-operator#2781: the Fabric Manager's service is active, and nvlsm or ib_umad is not there."""
    both = {BRIDGE: {"mark": True, "driver": "mlx5_core", "state": "init"}, FULL: {"mark": True, "driver": "mlx5_core"}}
    assert {outcome for outcome, _ in checked(both).values()} == {"pass"}
    for state, told in (("init", "mlx5_0/1 init, mlx5_1/1 init"), (None, "no RDMA port")):
        found = checked({at: {**facts, "state": state} for at, facts in both.items()})
        assert {outcome for outcome, _ in found.values()} == {"fail"}
        assert told in found[BRIDGE][1]


def test_a_bridge_on_vfio_pci_is_a_fault() -> None:
    assert checked({BRIDGE: {"mark": True, "driver": "vfio-pci"}}) == {BRIDGE: ("fail", "on vfio-pci")}


def test_all_bridges_and_all_gpus_are_given_together() -> None:
    both = {address: {"mark": True, "driver": "vfio-pci"} for address in (BRIDGE, FULL)}
    assert checked(both, gpu="vfio-pci")[FULL] == ("pass", "on vfio-pci, as all of them and all GPUs")
    assert checked(both)[FULL][0] == "fail"
    assert checked({**both, FULL: {"mark": True, "driver": "mlx5_core"}}, gpu="vfio-pci")[BRIDGE][0] == "fail"


def test_what_nobody_can_tell_is_unknown() -> None:
    found = checked({BRIDGE: {"mark": True, "driver": "mlx5_core"}, NIC: {"mark": None, "driver": "mlx5_core"}})
    assert found[BRIDGE][0] == "pass"
    assert found["host"][0] == "unknown"
    assert NIC in found["host"][1]
    assert checked({NIC: {"mark": False, "driver": "mlx5_core"}})["host"][0] == "unknown"


def test_other_boards_are_skipped() -> None:
    (result,) = judged("fabric-bridge", evidence()).values()
    assert result.outcome == "skip"


# --- existing XML --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "found"), [(True, True), (False, False), (None, False)])
def test_xml_that_gives_a_bridge_away_is_wrong(mark: bool | None, found: bool) -> None:
    from domain_faults import faults, host_of
    from domain_shapes import ONE_GPU

    address = ONE_GPU.devices[0].address
    host = host_of(
        pci=(function("0000:99:00.0", "10de", "2901"), function(address)),
        nics=(Nic(address=address, fabric_bridge=mark),),
    )
    told = [fault for fault in faults(ONE_GPU, host=host) if "carries the NVLink fabric" in fault.text]
    assert [fault.level for fault in told] == (["error"] if found else [])


def test_xml_that_gives_all_of_them_and_all_gpus_away_is_full_passthrough() -> None:
    from domain_faults import faults, host_of
    from domain_shapes import ONE_GPU

    gpu = ONE_GPU.devices[0]
    gpus = [gpu.address, *(f"0000:{bus:02x}:00.0" for bus in range(0xA1, 0xA8))]
    shape = msgspec.structs.replace(
        ONE_GPU,
        devices=tuple(
            msgspec.structs.replace(gpu, address=address, guest_address=f"0000:{at:02x}:00.0")
            for at, address in enumerate((*gpus, BRIDGE), 1)
        ),
    )
    host = host_of(
        pci=(*(function(address, "10de", "2901") for address in gpus), function(BRIDGE)),
        gpus=tuple(Gpu(address=address, vendor="nvidia") for address in gpus),
        nics=(Nic(address=BRIDGE, fabric_bridge=True),),
        fabric=Fabric(mode=0),
    )
    assert {fault.rule for fault in faults(shape, host=host)}.isdisjoint({"fabric-bridge", "fabric-partition"})


def test_a_hand_over_takes_them_for_nvswitches() -> None:
    """Their reset touches the NVLinks of all GPUs, and nothing erases them."""
    pci = (function(GPU, "10de", "2901"), function(BRIDGE), function(NIC))
    nics = (Nic(address=BRIDGE, fabric_bridge=True), Nic(address=NIC, fabric_bridge=False))
    host = evidence_host(pci=pci, nics=nics)
    assert [kind_of(host, address) for address in (BRIDGE, NIC)] == ["nvswitch", "nic"]
