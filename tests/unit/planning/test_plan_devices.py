"""Devices that must not go away silently: the host's own, physical functions under virtual ones, parts of GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


# --- guests whose definition could not be read ------------------------------------------------------------------


def with_unread(*cards: Card, state: str | None, **known: Any) -> Json:
    """A host whose guest `old` has only a name and a state, unless more of it is `known`."""
    return {**build_host(cards=cards), "guests": [{"name": "old", "state": state, **known}]}


@pytest.mark.parametrize(
    ("state", "shown", "then"),
    [
        ("running", "running", "apply will refuse to take devices"),
        ("crashed", "crashed", "apply will refuse to take devices"),
        (None, "state unknown", "apply will refuse to take devices"),
        ("shut off", "shut off", "the two cannot run at the same time then"),
    ],
)
def test_a_guest_that_may_hold_anything_is_an_error_finding(state: str | None, shown: str, then: str) -> None:
    """Its definition was lost: were it known, the GPU that it has would not be given away."""
    held = with_unread(Card(GPU, group=4), state=state, devices=[GPU], vcpu_pins=[], memory_bytes=1 << 30)
    assert f"{GPU} is held by guest old" in refused(decide(held, gpus=1))
    result = decide(with_unread(Card(GPU, group=4), state=state), gpus=1)
    assert passed(result) == [GPU]
    (error,) = (one.text for one in result.findings if one.where == "guests: old" and one.level == "error")
    assert error.startswith(f"which CPUs, memory and devices guest old ({shown}) has is unknown: the plan may give")
    assert f"(NVMe drives only by name), and {then}; correct its definition" in error
    assert "plan with --host" in error


def test_what_an_operator_writes_of_such_a_guest_is_enough_to_plan_beside_it() -> None:
    known = with_unread(Card(GPU, group=4), state="running", vcpu_pins=[{"vcpu": 0, "cpus": "5"}])
    assert passed(decide(known, gpus=1)) == [GPU]


@pytest.mark.parametrize("state", ["running", "shut off"])
def test_drives_that_may_hold_data_of_such_a_guest_are_kept(state: str) -> None:
    host = with_unread(Card(DRIVE, kind="nvme", group=5), state=state)
    assert "1 NVMe drive wanted, 0 can be given away" in refused(decide(host, nvme=1))
    named = decide(host, nvme=[DRIVE])
    assert passed(named) == [DRIVE]
    assert said(named, "error") == [
        f"{DRIVE} is asked for, and it may hold data of guest old, whose definition is unknown: a new guest may"
        " overwrite it"
    ]


def test_pins_that_are_unknown_are_not_called_absent() -> None:
    host = {**build_host(), "guests": [{"name": "old", "state": "running", "memory_bytes": 1 << 30}]}
    warnings = [one.text for one in decide(host).findings if one.where == "guests: old"]
    assert warnings == ["the CPUs of guest old's vCPUs are unknown: they may run on any CPU"]


# --- what the host itself uses -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rows", "address"), [("nvme", "nvme", DRIVE), ("nic", "nics", NIC)])
def test_a_named_device_that_the_host_uses_is_an_error_finding(kind: str, rows: str, address: str) -> None:
    host = build_host(cards=[Card(address, kind=kind, group=4)])
    row(host, address, rows)["in_use"] = "mounted on /"
    result = decide(host, **{rows: [address]})
    assert passed(result) == [address]
    assert said(result, "error") == [f"{address} is asked for, but the host uses it (mounted on /): apply will refuse"]


@pytest.mark.parametrize(("kind", "rows", "address"), [("nvme", "nvme", DRIVE), ("nic", "nics", NIC)])
def test_a_device_whose_use_is_unknown_is_taken_by_name_only_and_told(kind: str, rows: str, address: str) -> None:
    host = build_host(cards=[Card(address, kind=kind, group=4)])
    row(host, address, rows)["use_unknown"] = "the routes were not read"
    result = decide(host, **{rows: [address]})
    assert passed(result) == [address]
    assert said(result, "error") == [
        f"{address} is asked for, and whether the host uses it is unknown: the routes were not read; if it does, the"
        " host loses it"
    ]
    assert f"| no count takes {address}: the routes were not read" in refused(decide(host, **{rows: 1}))


def test_a_companion_whose_use_is_unknown_is_named_and_the_guest_unplaced() -> None:
    port = "0000:31:00.1"
    host = build_host(cards=[Card(NIC, kind="nic", group=4), Card(port, kind="nic", group=4)])
    row(host, port, "nics")["use_unknown"] = "the routes were not read"
    why = refused(decide(host, nics=[NIC]))
    assert f"{port} would have to go to the same guest, and the routes were not read" in why


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


def switched_host(nics: tuple[int, ...], on_board: int) -> tuple[Json, list[str]]:
    """A host of two nodes with one GPU and so many NICs below each switch, and NICs on the board; the GPUs.

    Switches with even numbers are on node 0. The first NICs are those of the board, on node 0.
    """
    cards = [Card(f"0000:01:00.{i}", 0, kind="nic", group=i) for i in range(on_board)]
    for switch, count in enumerate(nics):
        bus, node = 0x20 + 8 * switch, switch % 2
        cards.append(Card(f"0000:{bus + 1:02x}:00.0", node, group=100 + bus))
        cards += [Card(f"0000:{bus + 2 + n:02x}:00.0", node, kind="nic", group=100 + bus + 1 + n) for n in range(count)]
    host = build_host(cards=cards, memory_gib=64)
    for switch, count in enumerate(nics):
        bus = 0x20 + 8 * switch
        above = f"0000:{bus:02x}:00.0"
        bridge = next(row for row in host["pci"] if row["class_code"] == "060400")
        host["pci"].append({**bridge, "address": above, "numa_node": switch % 2})
        for n in range(1, count + 2):
            row(host, f"0000:{bus + n:02x}:00.0")["parent"] = above
    return host, [f"0000:{0x21 + 8 * switch:02x}:00.0" for switch in range(len(nics))]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple), st.integers(0, 3), st.data())
@settings(max_examples=40, deadline=None)
def test_each_gpu_gets_a_nic_of_its_own_switch(nics: tuple[int, ...], on_board: int, data: st.DataObject) -> None:
    host, gpus = switched_host(nics, on_board)
    mine = sorted(data.draw(st.sets(st.sampled_from(gpus), min_size=1)))
    got = passed(decide(host, gpus=mine, nics=len(mine), vcpus=8, memory="8GiB"))
    above = {entry["address"]: entry["parent"] for entry in host["pci"]}
    assert sorted(str(above[nic]) for nic in got if nic not in mine) == sorted(str(above[gpu]) for gpu in mine)


def test_of_equally_near_nics_the_faster_comes_first() -> None:
    ports = [NIC, "0000:51:00.0"]
    host = build_host(cards=[Card(a, kind="nic", group=g) for a, g in zip(ports, [4, 5], strict=True)])
    row(host, NIC)["link"] |= {"max_speed_gts": 5.0, "max_width": 2}
    assert passed(decide(host, nics=1)) == [ports[1]]
    row(host, ports[1])["link"] = None
    assert passed(decide(host, nics=1)) == [NIC]


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


def test_counts_choose_what_shares_the_group_of_a_named_gpu() -> None:
    """Without the NIC and the drive the GPU could not go at all; nearer ones do not help."""
    near, other = "0000:21:01.0", "0000:51:00.0"
    cards = [Card(GPU, group=1), Card(NIC, kind="nic", group=1), Card(DRIVE, kind="nvme", group=1)]
    host = build_host(cards=[*cards, Card(near, kind="nic", group=2), Card(other, kind="nvme", group=3)])
    assert passed(decide(host, gpus=[GPU], nics=1, nvme=1)) == [GPU, NIC, DRIVE]
    assert passed(decide(host, gpus=[GPU], nics=2, nvme=1)) == [GPU, near, NIC, DRIVE]
    assert f"IOMMU group 1 of {GPU} also holds {DRIVE}" in refused(decide(host, gpus=[GPU], nics=1))
