"""Networks by a virtual function: which one a guest gets, at which address, and why it gets none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, Held, build_host

from hosttune.errors import BadInput
from hosttune.inventory.virtualfunctions import functions_of
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.pci import vf_address
from hosttune.model.plan import Plan
from hosttune.planning import plan

Json = dict[str, Any]
NIC, THERE = "0000:31:00.0", "0000:31:00.2"
SRIOV = {"sriov_total_vfs": 4, "sriov_vfs": 0, "vf_offset": 2, "vf_stride": 1, "vf_device_id": "101e"}


def host(kind: str = "ethernet", held: str | None = None, **facts: Any) -> Json:
    guests = [Held(devices=(held,))] if held else []
    there = [Card(address, kind="nic", group=5 + n) for n, address in enumerate(facts.get("virtfns", ()))]
    found = build_host(cards=[Card(NIC, kind="nic", group=4), *there], guests=guests)
    row = next(one for one in found["pci"] if one["address"] == NIC)
    row.update({**SRIOV, **facts})
    for one in found["pci"]:
        if one["address"] in facts.get("virtfns", ()):
            one["physfn"] = NIC
    found["nics"] = [{"address": NIC, "kind": kind, "interfaces": ["up0"]}]
    return found


def decide(document: Json, *networks: list[Json]) -> Plan:
    guests = [
        {"name": f"g{n}", "gpus": 0, "vcpus": 2, "memory": "1GiB", "networks": one} for n, one in enumerate(networks)
    ]
    intent = {"version": 1, "guests": guests}
    return plan(Host.from_json(json.dumps(document)), Intent.from_json(json.dumps(intent)))


def wants(result: Plan) -> dict[str, Any]:
    return {action.id: action.want for action in result.actions if action.kind in ("sriov-vfs", "virtual-function")}


def refused(result: Plan) -> str:
    return " | ".join(result.unplaced[0].why)


def test_each_network_gets_a_function_of_its_own_at_the_address_that_the_kernel_will_give_it() -> None:
    net = {"vf_of": NIC}
    result = decide(host(), [net, {**net, "vlan": 7}], [{**net, "mac": "52:54:00:00:00:02", "trust": True}])
    devices = [[device.address for device in guest.devices] for guest in result.guests]
    assert devices == [["0000:31:00.2", "0000:31:00.3"], ["0000:31:00.4"]]
    assert all(device.kind == "vf" and device.managed for guest in result.guests for device in guest.devices)
    found = wants(result)
    assert found == {f"sriov-vfs:{NIC}": 3, f"virtual-function:{NIC}/2": {"trust": True}}  # MAC and VLAN: libvirt
    macs = [device.network.mac for device in result.guests[0].devices if device.network]
    assert len({*macs}) == 2
    assert not any("IOMMU group" in finding.text for finding in result.findings)


def test_functions_that_somebody_has_made_are_used_and_their_number_stays() -> None:
    there = host(sriov_vfs=2, virtfns=[THERE, "0000:31:00.3"], held=THERE)
    result = decide(there, [{"vf_of": NIC}])
    assert [device.address for device in result.guests[0].devices] == ["0000:31:00.3"]
    assert f"sriov-vfs:{NIC}" not in wants(result)
    assert (
        refused(decide(there, [{"vf_of": NIC}] * 2)) == f"no virtual function of {NIC} is free: it has 2; it offers 4"
    )


def test_one_of_infiniband_has_a_guid_and_no_mac() -> None:
    guid = "00:11:22:33:44:55:66:77"
    result = decide(host("infiniband"), [{"vf_of": NIC, "guid": guid}])
    assert wants(result)[f"virtual-function:{NIC}/0"] == {"node guid": guid, "port guid": guid}
    assert decide(host("infiniband"), [{"vf_of": NIC}]).guests[0].devices[0].network.mac is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"sriov_total_vfs": None, "sriov_vfs": None}, "offers no virtual functions: switch SR-IOV on"),
        ({"vf_offset": None}, "which addresses virtual functions of 0000:31:00.0 will have cannot be read: echo 5 >"),
        ({}, "no virtual function of 0000:31:00.0 is free: it has 4"),
    ],
)
def test_a_guest_that_cannot_have_them_is_unplaced_with_the_reason(facts: Json, why: str) -> None:
    assert why in refused(decide(host(**facts), [{"vf_of": NIC}] * 5))


@pytest.mark.parametrize(
    ("network", "where"),
    [
        ({"vf_of": "0000:99:00.0"}, "networks[0].vf_of"),
        ({"vf_of": NIC, "bridge": "br0"}, "networks[0]"),
        ({"bridge": "br0", "vlan": 7}, "networks[0]"),
        ({"vf_of": NIC, "vlan": 0}, "networks[0].vlan"),
        ({"vf_of": NIC, "mac": "01:00:5e:00:00:01"}, "networks[0].mac"),
        ({"vf_of": NIC, "guid": "00:11"}, "networks[0].guid"),
        ({"vf_of": NIC, "max_rate_mbps": 0}, "networks[0].max_rate_mbps"),
    ],
)
def test_what_no_host_can_do_is_bad_input_with_its_place(network: Json, where: str) -> None:
    with pytest.raises(BadInput) as failed:
        decide(host(), [network])
    assert failed.value.where is not None
    assert failed.value.where.endswith(where)


@given(st.integers(0, 255), st.integers(0, 31), st.integers(0, 7), st.integers(1, 500), st.integers(1, 8))
def test_addresses_follow_the_kernels_rule(bus: int, slot: int, function: int, offset: int, stride: int) -> None:
    """As drivers/pci/iov.c computes them; the first of a 82576 at 01:00.0 (offset 384, stride 2) is 02:10.0."""
    found = vf_address(f"0000:{bus:02x}:{slot:02x}.{function}", offset, stride, 3)
    devfn = (slot << 3 | function) + offset + stride * 3
    assert found == f"0000:{bus + (devfn >> 8):02x}:{(devfn & 0xFF) >> 3:02x}.{devfn & 7}"
    assert vf_address("0000:01:00.0", 384, 2, 0) == "0000:02:10.0"


def test_an_unknown_nic_has_no_functions() -> None:
    assert functions_of(Host(), NIC, 8) == ()
