"""PCIe settings of a plan: links by the port above, ACS bits only added, what is left to a guest, what the host keeps.

The tree: a root port, a switch, and below its ports a GPU (0000:41:00.0), an RDMA NIC (0000:42:00.0) and a drive.
"""

from __future__ import annotations

from typing import Any

import pytest
from planhosts import Card, build_host, intent_of

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import FrozenMap, to_json
from hosttune.planning import plan
from hosttune.transaction.kinds import setting_of

Json = dict[str, Any]
ROOT, UP = "0000:3e:01.0", "0000:3f:00.0"
GPU_PORT, NIC_PORT, OTHER_PORT = "0000:40:00.0", "0000:40:01.0", "0000:40:02.0"
GPU, NIC, OTHER = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
FOUR = ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
SMALL: Json = {"read_request_bytes": 512, "relaxed_ordering": False}
MORE = [*FOUR, "DirectTrans"]


def bridge(address: str, parent: str | None, kind: str, **more: Any) -> Json:
    return {
        "address": address,
        "vendor_id": "8086",
        "device_id": "352a",
        "class_code": "060400",
        "parent": parent,
        "port_type": kind,
        "driver": "pcieport",
        "link": {"speed_gts": 32.0, "width": 16},
        "aspm": "off",
        "acs": {"capable": MORE if kind == "downstream-port" else FOUR, "enabled": FOUR},
        **more,
    }


def switched(changes: dict[str, Json] | None = None) -> Json:
    """The host; `changes` are fields of functions by address."""
    cards = [
        Card(GPU, 0, group=1, driver="nvidia"),
        Card(NIC, 0, "nic", group=2, driver="mlx5_core"),
        Card(OTHER, 0, group=3, driver="nvidia"),
    ]
    host = build_host(cards=cards)
    rows = [row for row in host["pci"] if row["address"] in (GPU, NIC, OTHER)]
    for row in rows:
        port = {GPU: GPU_PORT, NIC: NIC_PORT, OTHER: OTHER_PORT}[row["address"]]
        row |= {"parent": port, "port_type": "endpoint", "aspm": "off", "read_request_bytes": 4096}
        row |= {"relaxed_ordering": True, "ats_enabled": True, "acs": {"capable": [], "enabled": []}}
    ports = [bridge(address, UP, "downstream-port") for address in (GPU_PORT, NIC_PORT, OTHER_PORT)]
    up = bridge(UP, ROOT, "upstream-port", acs={"capable": [], "enabled": []})
    host["pci"] = [bridge(ROOT, None, "root-port"), up, *ports, *rows]
    host["nics"][0]["rdma"] = "mlx5_0"
    for row in host["pci"]:
        row |= (changes or {}).get(row["address"], {})
    return host


def planned(host: Json, profile: str = "guest", settings: Json | None = None, **guest: Any) -> Plan:
    wanted_setting = {"gpus": [GPU], "vcpus": 4, "memory": "4GiB", **guest}
    document = intent_of(profile=profile, settings=settings or {}, **wanted_setting)
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def actions(made: Plan, *kinds: str) -> list[tuple[str, Any, Any]]:
    return [(a.target, a.current, a.want) for a in made.actions if a.kind in kinds]


def only(made: Plan, kind: str) -> Action:
    (found,) = [a for a in made.actions if a.kind == kind]
    return found


def said(made: Plan, where: str, word: str = "") -> list[str]:
    return [f"{f.level}: {f.text}" for f in made.findings if where in f.where and word in f.text]


# --- ASPM ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "gpu", "current"),
    [
        ("L1", "L1", "L1"),
        ("L0s L1", "L0s L1", "L0s L1"),
        ("off", "L1", FrozenMap({GPU: "L1", GPU_PORT: "off"})),
        ("L1", "off", FrozenMap({GPU: "off", GPU_PORT: "L1"})),
        ("L1", None, "L1"),  # the other end sleeps
        (None, "L1", None),  # unknown
    ],
)
def test_a_link_goes_off_by_the_port_above(port: str | None, gpu: str | None, current: object) -> None:
    made = planned(switched({GPU_PORT: {"aspm": port}, GPU: {"aspm": gpu}, OTHER_PORT: {"aspm": "L1"}}))
    assert actions(made, "aspm") == [(GPU_PORT, current, "off")]
    assert "inside the guest" in only(made, "aspm").why


def test_a_link_that_is_off_gets_no_action_and_keep_is_heeded() -> None:
    assert actions(planned(switched()), "aspm") == []
    on = switched({GPU_PORT: {"aspm": "L1"}, GPU: {"aspm": "L1"}})
    assert actions(planned(on, settings={"aspm": "keep"}), "aspm") == []
    assert actions(planned(on, profile="none"), "aspm") == []


def test_one_finding_a_guest_says_what_is_left_to_it() -> None:
    rows: dict[str, Json] = {GPU: {"aspm": "L1", **SMALL}, GPU_PORT: {"aspm": "L1"}}
    (text,) = said(planned(switched(rows)), "guest g", "endpoints")
    assert text.startswith("info: ASPM of the passed endpoints themselves")
    (text,) = said(planned(switched(rows), "host"), "guest g", "endpoints")
    assert text.startswith("info: ASPM, read-request size, relaxed ordering of the passed endpoints")
    assert said(planned(switched()), "guest g", "endpoints") == []
    assert said(planned(switched(rows), "none"), "guest g", "endpoints") == []


# --- ACS and ATS ---------------------------------------------------------------------------------------------


def test_acs_is_by_name_only_and_bits_are_added() -> None:
    rows: dict[str, Json] = {
        ROOT: {"acs": {"capable": FOUR, "enabled": ["SrcValid"]}},
        GPU_PORT: {"acs": {"capable": MORE, "enabled": ["SrcValid", "TransBlk"]}},
        NIC_PORT: {"acs": {"capable": MORE, "enabled": []}},
    }
    for profile in ("none", "guest", "host"):
        assert actions(planned(switched(rows), profile), "acs") == []
    made = planned(switched(rows), "none", {"acs": True})
    assert actions(made, "acs") == [
        (ROOT, "SrcValid", " ".join(FOUR)),
        (GPU_PORT, "SrcValid TransBlk", "SrcValid TransBlk ReqRedir CmpltRedir UpstreamFwd"),
    ]
    for action in made.actions:
        if action.kind == "acs":
            setting_of("acs", action.target).check(action.want)
    made = planned(switched(rows), "none", {"acs": "DirectTrans"}, nics=[NIC])
    assert actions(made, "acs") == [
        (GPU_PORT, "SrcValid TransBlk", "SrcValid TransBlk DirectTrans"),
        (NIC_PORT, "none", "DirectTrans"),
    ]
    assert said(made, ROOT, "no ACS DirectTrans")


def test_acs_that_is_unknown_is_left_alone_and_said() -> None:
    made = planned(switched({GPU_PORT: {"acs": None}}), "none", {"acs": True})
    assert actions(made, "acs") == []
    assert said(made, GPU_PORT) == ["warn: its ACS is unknown: left alone"]


@pytest.mark.parametrize(
    ("nic", "level", "words"),
    [
        ({"ats_enabled": False}, "warn", f"mlxconfig -d {NIC} set ATS_ENABLED=1, then reboot"),
        ({"ats_enabled": None}, "warn", "ATS is off"),  # its whole space was read: there is no such capability
        ({"ats_enabled": None, "acs": None}, "info", "ATS is unknown"),
        ({"ats_enabled": False, "vendor_id": "14e4"}, "warn", "its maker's tool"),
    ],
)
def test_ats_is_said_where_a_guest_has_gpu_and_nic_below_one_switch(nic: Json, level: str, words: str) -> None:
    made = planned(switched({NIC: nic}), nics=[NIC])
    (text,) = said(made, f"guest g: {NIC}", "ATS is")
    assert text.startswith(f"{level}: ATS is")
    assert words in text
    assert GPU in text
    assert ("mlxconfig" in text) == ("vendor_id" not in nic)
    assert not [a for a in made.actions if "ats" in a.kind.split("-")]


def test_nothing_is_said_of_ats_without_a_pair_below_one_switch() -> None:
    off = {NIC: {"ats_enabled": False}}
    assert not said(planned(switched(off)), NIC)
    assert not said(planned(switched({**off, UP: {"port_type": "root-port"}}), nics=[NIC]), NIC, "ATS is")
    host = switched(off)
    host["nics"][0]["rdma"] = None
    assert not said(planned(host, nics=[NIC]), NIC, "ATS is")
    assert not said(planned(switched(), nics=[NIC]), NIC, "ATS is")


def test_an_argument_that_forbids_ats_is_said() -> None:
    host = switched({NIC: {"ats_enabled": False}}) | {"kernel_args": ["pci=realloc,noats"]}
    (text,) = said(planned(host, nics=[NIC]), NIC, "ATS is")
    assert "pci=noats must be removed" in text


def test_ports_are_told_what_direct_traffic_needs_and_lacks() -> None:
    bare = {port: {"acs": {"capable": MORE, "enabled": []}} for port in (GPU_PORT, NIC_PORT)}
    needed = "ReqRedir CmpltRedir UpstreamFwd DirectTrans"
    assert said(planned(switched(bare), nics=[NIC]), NIC, "direct traffic") == [
        f"info: direct traffic between {NIC} and {GPU} needs ACS {needed} and ATS; ports {NIC_PORT}, {GPU_PORT} lack "
        f"{needed}: settings: acs: {needed}"
    ]
    assert said(planned(switched(bare), settings={"acs": needed}, nics=[NIC]), NIC, "direct traffic") == []
    unable = {
        NIC_PORT: {"acs": {"capable": FOUR, "enabled": FOUR}},
        GPU_PORT: {"acs": {"capable": MORE, "enabled": MORE}},
    }
    assert said(planned(switched(unable), nics=[NIC]), NIC, "direct traffic") == [
        f"info: ports {NIC_PORT} redirect without ACS DirectTrans: no direct traffic between {NIC} and {GPU}, whatever"
        " is set"
    ]


def test_a_port_without_acs_redirects_nothing_so_that_translated_requests_are_direct() -> None:
    none = {port: {"acs": dict[str, list[str]](capable=[], enabled=[])} for port in (GPU_PORT, NIC_PORT)}
    assert said(planned(switched(none), nics=[NIC]), NIC, "direct traffic") == []
    blocking = {port: {"acs": {"capable": ["SrcValid"], "enabled": []}} for port in (GPU_PORT, NIC_PORT)}
    assert said(planned(switched(blocking), nics=[NIC]), NIC, "direct traffic") == []


def test_ports_that_redirect_translated_requests_are_said() -> None:
    (text,) = said(planned(switched(), nics=[NIC]), NIC, "DirectTrans")
    assert NIC_PORT in text
    assert GPU_PORT in text
    assert OTHER_PORT not in text
    direct = {port: {"acs": {"capable": MORE, "enabled": MORE}} for port in (GPU_PORT, NIC_PORT)}
    assert not said(planned(switched(direct), nics=[NIC]), NIC, "DirectTrans")


# --- endpoints that the host keeps ---------------------------------------------------------------------------


def endpoints(made: Plan) -> list[tuple[str, str, Any, Any]]:
    kinds = ("read-request", "relaxed-ordering")
    return [(a.kind, a.target, a.current, a.want) for a in made.actions if a.kind in kinds]


def test_gpus_and_rdma_nics_that_stay_get_larger_reads_and_relaxed_ordering() -> None:
    rows = dict.fromkeys((GPU, NIC, OTHER), SMALL)
    assert endpoints(planned(switched(rows))) == []
    assert endpoints(planned(switched(rows), "host")) == [
        ("read-request", NIC, 512, 4096),
        ("relaxed-ordering", NIC, False, True),
        ("read-request", OTHER, 512, 4096),
        ("relaxed-ordering", OTHER, False, True),
    ]
    kept = {"read_request_bytes": "keep", "relaxed_ordering": True}
    assert endpoints(planned(switched(rows), "none", kept, nics=[NIC])) == [("relaxed-ordering", OTHER, False, True)]
    named = planned(switched(rows), "none", {"read_request_bytes": 1024}, nics=[NIC])
    assert endpoints(named) == [("read-request", OTHER, 512, 1024)]
    assert only(named, "read-request").why == "asked for by name: settings.read_request_bytes"


@pytest.mark.parametrize(
    "row",
    [
        {"driver": "vfio-pci"},
        {"driver": None},
        {"boot_display": True},
        {"physfn": GPU},
        {"read_request_bytes": 4096, "relaxed_ordering": True},
    ],
)
def test_other_endpoints_are_left_alone(row: Json) -> None:
    assert endpoints(planned(switched({OTHER: {**SMALL, **row}}), "host", nics=[NIC])) == []


def test_what_a_guest_holds_or_nobody_knows_is_left_alone() -> None:
    host = switched({OTHER: SMALL})
    host["guests"] = [{"name": "old", "state": "running", "devices": [OTHER]}]
    assert endpoints(planned(host, "host", nics=[NIC])) == []
    host = switched({OTHER: SMALL})
    next(gpu for gpu in host["gpus"] if gpu["address"] == OTHER)["vendor"] = "other"
    assert endpoints(planned(host, "host", nics=[NIC])) == []
    made = planned(switched({OTHER: {"read_request_bytes": None, "relaxed_ordering": None}}), "host", nics=[NIC])
    assert endpoints(made) == []
    assert said(made, OTHER, "cannot be read")


@pytest.mark.parametrize(("vendor", "device"), [("8086", "2f02"), ("8086", "6f0e"), ("1022", "1a01")])
def test_relaxed_ordering_stays_off_below_a_root_port_that_breaks_it(vendor: str, device: str) -> None:
    made = planned(switched({OTHER: SMALL, ROOT: {"vendor_id": vendor, "device_id": device}}), "host", nics=[NIC])
    assert endpoints(made) == [("read-request", OTHER, 512, 4096)]
    assert ROOT in said(made, OTHER, "stays off")[0]


def test_reads_stay_small_where_the_kernel_keeps_them_so() -> None:
    host = switched({OTHER: SMALL}) | {"kernel_args": ["pci=pcie_bus_perf"]}
    made = planned(host, "host", nics=[NIC])
    assert endpoints(made) == [("relaxed-ordering", OTHER, False, True)]
    assert said(made, "pcie_bus_perf")


def test_a_host_without_planned_guests_gets_them_too_and_a_request_without_a_place_does_not() -> None:
    host = Host.from_json(to_json(switched({OTHER: SMALL})))
    bare = plan(host, Intent.from_yaml("{version: 1, profile: host, guests: []}"))
    assert [kind for kind, *_ in endpoints(bare)] == ["read-request", "relaxed-ordering"]
    none = planned(switched({OTHER: SMALL}), "host", gpus=2, vcpus=4000)
    assert none.unplaced
    assert endpoints(none) == []
