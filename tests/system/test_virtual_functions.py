"""Guests with virtual functions of a NIC, day by day on a scratch root: made, set, read back, grown, taken away."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boardroots
import pytest
from applyroots import Root, copied
from secondday import Day

NIC, INTERFACE = "0000:02:00.0", "ens2f0np0"
FIRST, SECOND, THIRD = "0000:02:02.0", "0000:02:02.1", "0000:02:02.2"
NET = {"vf_of": NIC, "vlan": 100, "trust": False, "spoof_check": True, "max_rate_mbps": 10000}
OTHER = {"vf_of": NIC, "mac": "52:54:00:AA:BB:CC", "max_rate_mbps": 500}
A = {"name": "a", "gpus": 1, "networks": [NET, {"network": "default"}]}
B = {"name": "b", "gpus": 0, "vcpus": 2, "memory": "4GiB", "networks": [OTHER]}
C = {**B, "name": "c", "networks": [{"vf_of": NIC}]}


pristine = boardroots.fewer_cpus


@pytest.fixture
def day(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    with copied(pristine, tmp_path / "root") as root:
        place = (root.path / "sys/bus/pci/devices" / NIC).resolve().relative_to(root.path)
        for name, text in {"totalvfs": "8", "offset": "16", "stride": "1", "vf_device": "16d7"}.items():
            root.put(f"{place}/sriov_{name}", f"{text}\n")
        root.put(f"{place}/sriov_numvfs", "0\n")
        root.put(f".hosttune/commands/ip-link-{INTERFACE}", json.dumps([{"ifname": INTERFACE}]))
        found = Day(Root(root.path), pristine)
        found.log = [str(place)]
        found.intent = {"version": 1, "guests": [A, B]}
        yield found


def count(day: Day) -> str:
    return day.root.get(f"{day.log[0]}/sriov_numvfs")


def kept(day: Day) -> list[dict[str, Any]]:
    """What the NIC keeps for its virtual functions."""
    text = day.root.get(f".hosttune/commands/ip-link-{INTERFACE}")
    found: list[dict[str, Any]] = json.loads(text)[0].get("vfinfo_list", [])
    return found


def keep(day: Day, rows: list[dict[str, Any]]) -> None:
    """Another program sets what the NIC keeps."""
    day.root.put(f".hosttune/commands/ip-link-{INTERFACE}", json.dumps([{"ifname": INTERFACE, "vfinfo_list": rows}]))


def interfaces(day: Day, guest: str) -> list[tuple[str, str | None, str | None]]:
    """(the function's bus, slot and function, MAC, VLAN) of each virtual function of a guest."""
    found = []
    for one in ET.fromstring(day.definitions()[guest]).iterfind("devices/interface[@type='hostdev']"):
        source, mac, tag = one.find("source/address"), one.find("mac"), one.find("vlan/tag")
        assert one.get("managed") == "yes"
        assert source is not None
        assert mac is not None
        place = ".".join(source.get(name, "")[2:] for name in ("bus", "slot", "function"))
        found.append((place, mac.get("address"), None if tag is None else tag.get("id")))
    return found


def test_they_are_made_and_set_and_read_back(day: Day) -> None:
    result = day.apply().ended()
    outcomes = {one["action"]: one["outcome"] for one in result["entries"]}
    assert outcomes[f"sriov-vfs:{NIC}"] == "done"
    assert (outcomes[f"virtual-function:{NIC}/0"], outcomes["guest:a"]) == ("done", "done")
    ((place, mac, vlan),) = interfaces(day, "a")
    assert (place, vlan, interfaces(day, "b")) == ("02.02.0", "100", [("02.02.1", "52:54:00:aa:bb:cc", None)])
    mine, other = kept(day)
    assert re.fullmatch("52:54:00(:[0-9a-f]{2}){3}", mac or "")
    assert (mine["rate"]["max_tx"], mine["trust"], mine["spoofchk"]) == (10000, False, True)
    assert other["rate"]["max_tx"] == 500
    assert day.apply().ended()["changed"] is False
    assert day("status", "-o", "json").ended()["drift"] == []


def test_what_the_nic_lost_is_drift_and_set_again(day: Day) -> None:
    day.apply().ended()
    rows = kept(day)
    rows[0]["rate"]["max_tx"] = 0
    keep(day, rows)
    (drift,) = day("status", "-o", "json").ended(1)["drift"]
    assert drift["action"] == f"virtual-function:{NIC}/0"
    day.apply().ended()
    assert kept(day)[0]["rate"]["max_tx"] == 10000


def test_mac_and_vlan_are_libvirts_from_a_start_of_the_guest_to_its_stop(day: Day) -> None:
    before = day.contents()
    day.apply().ended()
    rows = kept(day)
    keep(day, [{**rows[0], "address": "42:23:6f:ad:46:a1", "vlan_list": [{"vlan": 100}]}, rows[1]])
    assert day("status", "-o", "json").ended()["drift"] == []
    assert day.apply().ended()["changed"] is False
    day("revert", "--yes", "-o", "json").ended()
    answers = f".hosttune/commands/ip-link-{INTERFACE}"
    assert {**day.contents(), answers: None} == {**before, answers: None}


def test_one_guest_more_keeps_what_the_others_have(day: Day) -> None:
    day.apply().ended()
    before = interfaces(day, "a")
    day.intent["guests"].append(C)
    day.apply().ended()
    assert (count(day), interfaces(day, "a"), len(kept(day))) == ("3", before, 3)
    assert kept(day)[0]["rate"]["max_tx"] == 10000  # all were made anew


def test_the_last_one_that_goes_takes_them_away_and_all_is_as_it_was(day: Day) -> None:
    before = day.contents()
    day.apply().ended()
    day.intent["guests"] = [{"name": "a", "state": "absent"}, B]
    day.apply().ended()
    assert (count(day), [row["rate"]["max_tx"] for row in kept(day)]) == ("2", [0, 500])
    day.intent["guests"] = [{"name": "b", "state": "absent"}]
    day.apply().ended()
    assert (count(day), kept(day)) == ("0", [])
    day("revert", "--yes", "-o", "json").ended()
    answers = f".hosttune/commands/ip-link-{INTERFACE}"
    assert {**day.contents(), answers: None} == {**before, answers: None}
