"""Devices that must not go away silently: the host's own, physical functions under virtual ones, parts of GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planhosts import Card, Held, build_host, intent_of

from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.intent import GuestIntent, Intent
from hosttune.model.plan import Plan
from hosttune.planning import plan

Json = dict[str, Any]
GPU, NIC, DRIVE = "0000:21:00.0", "0000:31:00.0", "0000:41:00.0"
VIRTUAL = "0000:31:00.2"


def decide(host: Json, **guest: Any) -> Plan:
    wanted = {"gpus": 0, "vcpus": 2, "memory": "1GiB", **guest}
    return plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent_of(**wanted))))


def row(host: Json, address: str, kind: str = "pci") -> Json:
    found: Json = next(row for row in host[kind] if row["address"] == address)
    return found


def said(result: Plan, level: str) -> list[str]:
    assert result.unplaced == ()
    return [finding.text for finding in result.findings if finding.level == level and finding.where == "guest g"]


def passed(result: Plan) -> list[str]:
    assert result.unplaced == ()
    return [device.address for device in result.guests[0].devices]


def refused(result: Plan) -> str:
    assert result.guests == ()
    return " | ".join(result.unplaced[0].why)


# --- what the host itself uses -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rows", "address"), [("nvme", "nvme", DRIVE), ("nic", "nics", NIC)])
def test_a_named_device_that_the_host_uses_is_an_error_finding(kind: str, rows: str, address: str) -> None:
    host = build_host(cards=[Card(address, kind=kind, group=4)])
    row(host, address, rows)["in_use"] = "mounted on /"
    result = decide(host, **{rows: [address]})
    assert passed(result) == [address]
    assert said(result, "error") == [f"{address} is asked for, but the host uses it (mounted on /): apply will refuse"]


def test_a_named_device_that_nobody_uses_is_no_error() -> None:
    host = build_host(cards=[Card(DRIVE, kind="nvme", group=4)])
    assert said(decide(host, nvme=[DRIVE]), "error") == []


def test_a_companion_that_the_host_uses_is_named_and_the_guest_unplaced() -> None:
    port = "0000:31:00.1"
    host = build_host(cards=[Card(NIC, kind="nic", group=4), Card(port, kind="nic", group=4)])
    row(host, port, "nics")["in_use"] = "default route"
    assert f"{port} would have to go to the same guest, and the host uses it (default route)" in refused(
        decide(host, nics=[NIC])
    )


def test_a_companion_of_a_gpu_that_is_the_boot_display_unplaces_the_guest() -> None:
    display = "0000:21:00.1"
    host = build_host(cards=[Card(GPU, group=1), Card(display, kind="vga", vendor="other", group=1, boot_display=True)])
    assert f"{display} is the boot display" in refused(decide(host, gpus=[GPU]))


def test_a_device_that_sources_contradict_is_given_to_nobody() -> None:
    other = "0000:22:00.0"
    host = build_host(cards=[Card(GPU, group=1), Card(other, group=2)])
    row(host, GPU)["contradicted"] = "configuration space says another device"
    assert f"sources disagree on what {GPU} is" in refused(decide(host, gpus=[GPU]))
    assert passed(decide(host, gpus=1)) == [other]


def test_a_device_that_another_driver_holds_in_a_second_source_is_given_to_nobody() -> None:
    host = build_host(cards=[Card(NIC, kind="nic", group=4)])
    seen = {"address": NIC, "kind": "nic", "driver": "mlx5_core"}
    host["sources"] = [{"name": "the drivers' folders", "read": "/sys", "could": 1, "contrary": [seen]}]
    assert "held by mlx5_core in the drivers' folders" in refused(decide(host, nics=[NIC]))


def test_a_count_passes_over_a_port_whose_companion_the_host_uses() -> None:
    ports = [NIC, "0000:31:00.1", "0000:51:00.0"]
    groups = [4, 4, 5]
    host = build_host(cards=[Card(a, kind="nic", group=g) for a, g in zip(ports, groups, strict=True)])
    row(host, ports[1], "nics")["in_use"] = "default route"
    assert passed(decide(host, nics=1)) == [ports[2]]


def test_a_count_prefers_an_equally_near_port_that_apply_can_take() -> None:
    ports = [NIC, "0000:31:00.1"]
    host = build_host(cards=[Card(a, kind="nic", group=g) for a, g in zip(ports, [4, 5], strict=True)])
    row(host, NIC, "nics")["busy"] = "eth0 is up and has an address"
    one, both = decide(host, nics=1), decide(host, nics=2)
    assert (passed(one), passed(both)) == ([ports[1]], ports)
    told = f"{NIC}: eth0 is up and has an address: apply will refuse until the interface is taken down"
    assert told not in said(one, "warn")
    assert told in said(both, "warn")


def test_what_goes_along_with_counted_devices_is_told() -> None:
    ports = [NIC, "0000:31:00.1"]
    host = build_host(cards=[Card(a, kind="nic", group=4) for a in ports])
    result = decide(host, nics=1)
    assert passed(result) == ports
    assert f"goes to the same guest, by IOMMU group: {ports[1]}" in said(result, "info")


def test_a_device_named_in_capitals_does_not_go_along_with_itself() -> None:
    address = "0000:3a:00.0"
    host = build_host(cards=[Card(address, kind="nic", group=4)])
    assert [
        text for text in said(decide(host, nics=[address.upper()]), "info") if "goes to the same guest" in text
    ] == []


def test_a_device_named_twice_is_bad_input_in_an_intent_that_was_built_by_hand_too() -> None:
    host = Host.from_json(json.dumps(build_host(cards=[Card(NIC, kind="nic", group=4)])))
    guest = GuestIntent(name="g", gpus=0, vcpus=2, memory="1GiB", nics=(NIC, NIC))
    with pytest.raises(BadInput, match=f"{NIC} is named twice") as caught:
        plan(host, Intent(version=1, guests=(guest,)))
    assert caught.value.where == "intent: guests[0].nics"


# --- physical and virtual functions --------------------------------------------------------------------------


def with_virtual(group: int, *, other: int = 4, holder: str | None = None) -> Json:
    """A NIC in group `other` with one virtual function in `group`, held by `holder`'s guest if given."""
    guests = [Held(devices=(holder,))] if holder else []
    cards = [Card(NIC, kind="nic", group=other), Card(VIRTUAL, kind="nic", group=group)]
    host = build_host(cards=cards, guests=guests)
    row(host, NIC)["virtfns"] = [VIRTUAL]
    row(host, VIRTUAL)["physfn"] = NIC
    return host


@pytest.mark.parametrize("named", [[NIC], [VIRTUAL]])
def test_a_function_and_its_virtual_function_in_one_group_cannot_go(named: list[str]) -> None:
    why = refused(decide(with_virtual(4), nics=named))
    assert f"{VIRTUAL} is a virtual function of {NIC} and ends when that is given away" in why
    assert "IOMMU group 4" in why


def test_a_function_and_its_virtual_function_cannot_both_be_asked_for() -> None:
    why = refused(decide(with_virtual(5), nics=[NIC, VIRTUAL]))
    assert f"{VIRTUAL} is a virtual function of {NIC} and ends when that is given away" in why


def test_a_function_whose_virtual_function_a_guest_holds_cannot_go() -> None:
    assert "guest old holds it" in refused(decide(with_virtual(5, holder=VIRTUAL), nics=[NIC]))


def test_a_virtual_function_of_a_function_that_a_guest_holds_cannot_go() -> None:
    why = refused(decide(with_virtual(5, holder=NIC), nics=[VIRTUAL]))
    assert why == f"{VIRTUAL} is a virtual function of {NIC}, held by guest old"


def test_a_function_with_live_virtual_functions_goes_with_a_warning() -> None:
    result = decide(with_virtual(5), nics=[NIC])
    assert passed(result) == [NIC]
    assert f"{NIC} has 1 virtual function(s): they end when it is given away" in said(result, "warn")


def test_one_side_of_the_pair_is_enough_to_know_it() -> None:
    for address, key, unknown in ((NIC, "virtfns", []), (VIRTUAL, "physfn", None)):
        host = with_virtual(4)
        row(host, address)[key] = unknown
        assert "ends when that is given away" in refused(decide(host, nics=[NIC]))


def test_a_virtual_function_that_the_host_uses_is_an_error_and_no_count_takes_its_function() -> None:
    host = with_virtual(5)
    row(host, VIRTUAL, "nics")["in_use"] = "default route"
    errors = said(decide(host, nics=[NIC]), "error")
    assert errors == [f"the host uses virtual functions of {NIC}: {VIRTUAL} (default route): apply will refuse"]
    assert "1 NIC wanted, 0 can be given away" in refused(decide(host, nics=1))


def test_drives_of_a_host_that_has_none() -> None:
    host = with_virtual(5)
    host["nvme"] = []
    assert "2 NVMe drives wanted: this host has no NVMe drive" in refused(decide(host, nvme=2))


def test_virtual_functions_alone_in_a_group_are_ordinary_members() -> None:
    host = with_virtual(5)
    sibling = "0000:31:00.3"
    host["pci"].append({**row(host, VIRTUAL), "address": sibling})
    assert passed(decide(host, nics=[VIRTUAL])) == [VIRTUAL, sibling]


# --- parts of GPUs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vendor", "level", "text"),
    [("nvidia", "error", "vfio-pci would break it"), ("amd", "warn", "a share of that GPU")],
)
def test_a_gpu_that_is_a_virtual_function_is_told(vendor: str, level: str, text: str) -> None:
    host = build_host(cards=[Card(GPU, group=1, vendor=vendor)])
    row(host, GPU)["physfn"] = "0000:20:00.0"
    result = decide(host, gpus=[GPU])
    found = [line for line in said(result, level) if line.startswith(f"GPU {GPU} is a virtual function of")]
    assert len(found) == 1
    assert text in found[0]
    assert result.guests[0].devices[0].managed is False


def test_mig_instances_of_a_gpu_are_told() -> None:
    host = build_host(cards=[Card(GPU, group=1)])
    row(host, GPU, "gpus")["mig"] = {"mode": "enabled", "instances": [{"profile": "1g.18gb"}]}
    assert f"GPU {GPU} holds 1 MIG instance(s): they end when it is given away" in said(
        decide(host, gpus=[GPU]), "warn"
    )


@pytest.mark.parametrize(("gpus", "told"), [([GPU], 1), (0, 0)])
def test_ordinary_pages_under_a_gpu_are_told(gpus: Any, told: int) -> None:
    host = build_host(cards=[Card(GPU, group=1)])
    found = [text for text in said(decide(host, gpus=gpus, hugepages="none"), "warn") if "4 KiB pages" in text]
    assert len(found) == told
