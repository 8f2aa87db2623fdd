"""Which GPUs of a guest may exchange data over PCIe, and what is written, judged and said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from domain_faults import criticise
from evidences import evidence
from evidences import outcome as outcome_of
from guestplans import everything, gpu, nic, only
from guesttrees import Hub, Made, Root
from xmledits import edited

from hosttune.discovery.scrub import strip_xml
from hosttune.domain.reader import read_domain
from hosttune.domain.update import updated
from hosttune.domain.writer import domain_xml
from hosttune.inventory.cliques import cliques
from hosttune.model.host import Host
from hosttune.predicting.expecting import scope_of
from hosttune.predicting.predict import predict


def made(**changes: Any) -> Made:
    """Two host bridges of one node with a switch each: a, b below the one, c, d and a NIC below the other."""
    found = Made([Root((Hub((gpu("a"), gpu("b"))),)), Root((Hub((gpu("c"), gpu("d"), nic("n"))),))], nodes=1)
    found.document |= changes
    return found


def sets(host: Made) -> dict[str, int]:
    found = cliques(Host.from_json(host.text()), host.at.values())
    return {name: found[address] for name, address in host.at.items() if address in found}


def function(host: Made, address: str | None) -> dict[str, Any]:
    return next(device for device in host.pci if device["address"] == address)


def test_gpus_below_one_host_bridge_are_a_clique() -> None:
    assert sets(made()) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_gpus_of_one_group_are_in_no_clique() -> None:
    host = made()
    function(host, host.at["a"])["iommu_group"] = function(host, host.at["b"])["iommu_group"]
    assert sets(host) == {"c": 0, "d": 0}


def test_gpus_of_unknown_groups_are_in_no_clique() -> None:
    host = made()
    function(host, host.at["c"])["iommu_group"] = None
    assert sets(host) == {"a": 0, "b": 0}


def test_without_redirection_of_a_port_there_is_no_clique() -> None:
    host = made()
    port = function(host, function(host, host.at["b"])["parent"])
    port["acs"] = {"capable": ["SrcValid", "ReqRedir"], "enabled": ["SrcValid"]}
    assert sets(host) == {"c": 0, "d": 0}
    port["acs"]["enabled"] = ["SrcValid", "ReqRedir"]
    assert sets(host) == {"a": 0, "b": 0, "c": 1, "d": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_args": ["pcie_acs_override=downstream,multifunction"]},
        {"nvswitches": [{"address": "0000:f0:00.0"}]},
    ],
    ids=["groups made up", "switches"],
)
def test_no_cliques_at_all(changes: dict[str, Any]) -> None:
    assert sets(made(**changes)) == {}


def test_gpus_that_links_join_need_none() -> None:
    host = made()
    names = ("a", "b", "c", "d")
    for gpu_row in host.document["gpus"]:
        others = (host.at[name] for name in names if host.at[name] != gpu_row["address"])
        gpu_row["peers"] = [{"address": other, "kind": "nvlink", "links": 4} for other in others]
    assert sets(host) == {}


def test_the_plan_writes_them_and_says_who_has_none() -> None:
    host = made()
    plan = everything(host)
    xml = domain_xml(plan, "g")
    assert {one.source: one.clique for one in read_domain(xml).hostdevs if one.clique is not None} == {
        host.at[name]: number for name, number in {"a": 0, "b": 0, "c": 1, "d": 1}.items()
    }
    (said,) = [finding.text for finding in plan.findings if "peer-to-peer" in finding.text]
    assert said.startswith("no peer-to-peer over PCIe in the guest: ")
    assert said.count("below different host bridges") == 1
    assert ", and 3 more such pairs" in said


def test_an_older_libvirt_gets_none_and_the_plan_says_so() -> None:
    plan = everything(made(virtualization={"libvirt_version": "8.0.0", "qemu_version": "6.2.0"}))
    assert "override" not in domain_xml(plan, "g")
    said = [finding.text for finding in plan.findings if "peer-to-peer" in finding.text]
    assert any("a clique needs libvirt 8.2, this one is 8.0.0" in text for text in said)


PROPERTIES = ".//{http://libvirt.org/schemas/domain/qemu/1.0}property"


def found_by_lint(host: Made, xml: str) -> list[tuple[str, str]]:
    findings = criticise(Host.from_json(host.text()), xml, where="g.xml")
    return [(one.level, one.text) for one in findings if "clique" in one.text]


def test_the_linter_knows_missing_and_wrong_cliques() -> None:
    host = made()
    xml = domain_xml(everything(host), "g")
    assert found_by_lint(host, xml) == []
    (missing,) = found_by_lint(host, edited(xml, PROPERTIES, {"name": "x-other"}, each=True))
    assert missing[0] == "info"
    assert missing[1].startswith(f"no peer-to-peer between {host.at['a']} and {host.at['b']}, and 1 more such pair")
    wrong = found_by_lint(host, edited(xml, PROPERTIES, {"value": "0"}, each=True))
    assert {level for level, _ in wrong} == {"warn"}
    assert len(wrong) == 4


def test_cliques_by_arguments_to_qemu_count() -> None:
    host = made()
    xml = edited(domain_xml(everything(host), "g"), PROPERTIES, {"name": "x-other"}, each=True)
    devices = [one.source for one in read_domain(xml).hostdevs]
    words = []
    for name, number in {"a": 0, "b": 0, "c": 1, "d": 1}.items():
        value = f"device.ua-{host.at[name].replace(':', '-').replace('.', '-')}.x-nv-gpudirect-clique={number}"
        words += ["-set", value]
    assert len(devices) == 5
    arguments = "".join(f"<qemu:arg value='{word}'/>" for word in words)
    space = "http://libvirt.org/schemas/domain/qemu/1.0"
    xml = edited(xml, ".", f"<qemu:commandline xmlns:qemu='{space}'>{arguments}</qemu:commandline>")
    assert not [text for text in found_by_lint(host, xml) if "in no clique" in text[1]]


def test_an_update_changes_only_its_own_overrides() -> None:
    host = made()
    xml = domain_xml(everything(host), "g")
    bare = domain_xml(everything(made(virtualization={"libvirt_version": "8.0.0", "qemu_version": "6.2.0"})), "g")
    theirs = (
        "<qemu:override xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:device alias='ua-disk'>"
        "<qemu:frontend><qemu:property name='x' type='string' value='y'/></qemu:frontend></qemu:device></qemu:override>"
    )
    present = edited(bare, ".", theirs)
    new = updated(bare, present, xml)
    given = {one.source for one in read_domain(xml).hostdevs if one.clique is not None}
    assert {change.element.split()[2] for change in new.changes if change.element.endswith(" clique")} == given
    assert "ua-disk" in new.xml
    assert read_domain(new.xml).hostdevs == read_domain(xml).hostdevs
    back = updated(xml, new.xml, bare)
    assert "ua-disk" in back.xml
    assert "clique" not in back.xml
    assert updated(xml, new.xml, xml).changes == ()


def test_a_check_compares_the_cliques_of_guests() -> None:
    host = made()
    names = {"name": "g", "state": "running", "vcpus": 1, "devices": list(host.at.values())}
    whole, gone = json.loads(host.text()), [host.at[name] for name in "bcd"]

    def outcome(more: Mapping[str, object] = MappingProxyType({}), of: str = "g", **numbers: int) -> tuple[str, str]:
        pairs = [[host.at[name], number] for name, number in numbers.items()]
        document = whole | {"guests": [names | {"cliques": pairs}]} | more
        return outcome_of("gpu-cliques", evidence(Host.from_json(json.dumps(document)), absent=()), of)

    assert outcome(a=0, b=0, c=1, d=1)[0] == "pass"
    assert outcome(a=0, b=0)[0] == "warn"
    assert outcome(a=0, b=0, c=0, d=0)[0] == "fail"
    assert outcome({"pci": [], "gpus": []}, "host", a=0, b=0)[0] == "unknown"
    there = {name: [row for row in whole[name] if row["address"] not in gone] for name in ("pci", "gpus")}
    seen = [{"address": address, "kind": "gpu"} for address in gone]
    source = {"name": "the plan", "read": "the journal", "shows": 4, "could": 1, "beyond": seen}
    assert outcome(there | {"sources": [source]}, a=0, b=0)[0] == "unknown"
    assert outcome(there, "host", a=0, b=0)[0] == "skip"


def test_the_prediction_says_which_pairs_have_no_peer_to_peer() -> None:
    host = made()
    rows = predict(Host.from_json(host.text()), scope_of(only(everything(host)))).figures
    without = {row.subject for row in rows if row.metric == "p2p" and "no peer-to-peer" in " ".join(row.because)}
    assert without == {f"{host.at[one]}->{host.at[other]}" for one in "ab" for other in "cd"}


def test_a_capture_keeps_the_cliques_and_no_other_property() -> None:
    host = made()
    xml = domain_xml(everything(host), "g")
    kept = strip_xml(xml, str)
    assert kept is not None
    assert read_domain(kept).hostdevs == read_domain(xml).hostdevs
    assert "romfile" not in str(strip_xml(edited(xml, PROPERTIES, {"name": "romfile"}), str))


def test_only_the_plan_knows_a_guest_by_its_device() -> None:
    assert {one.clique for one in only(everything(made())).devices} == {0, 1, None}
