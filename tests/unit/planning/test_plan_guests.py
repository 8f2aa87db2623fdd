"""What a placed guest is told and what is said about it: distances, idle siblings, pages, homes, short shares."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planhosts import Card, build_host, intent_of

from hosttune.domain.writer import domain_xml
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.planning import plan

Json = dict[str, Any]
GPU, FAR_GPU = "0000:21:00.0", "0000:31:00.0"
GIB = 1 << 30


def decide(host: Json, **guest: Any) -> Plan:
    result = plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent_of(**guest))))
    assert result.unplaced == ()
    return result


def two_cells(distances: list[list[int]]) -> Plan:
    return decide(build_host(distances=distances), gpus=0, vcpus=8, memory="8GiB", numa=2)


def said(result: Plan) -> list[str]:
    return [finding.text for finding in result.findings if finding.where == "guest g"]


def why(result: Plan, word: str) -> str:
    return next(line for line in result.guests[0].why if word in line)


# --- distances -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "guest"),
    [
        ([[10, 21], [21, 10]], [(10, 21), (21, 10)]),
        ([[10, 10], [10, 10]], [(10, 11), (11, 10)]),
        ([[10, 255], [255, 10]], [(10, 254), (254, 10)]),
        ([[12, 21], [21, 9]], [(10, 21), (21, 10)]),
    ],
)
def test_cells_are_told_distances_that_libvirt_takes(host: list[list[int]], guest: list[tuple[int, ...]]) -> None:
    result = two_cells(host)
    assert [cell.distances for cell in result.guests[0].cells] == guest
    changed = [(a, b) for a in (0, 1) for b in (0, 1) if host[a][b] != guest[a][b]]
    told = [text for text in said(result) if "is written as" in text]
    starts = [
        f"the host's distance {host[a][b]} from node {a} to node {b} is written as {guest[a][b]}:" for a, b in changed
    ]
    assert [text.startswith(start) for text, start in zip(told, starts, strict=True)] == [True] * len(changed)


def without_distances(host: Json) -> Json:
    for node in host["numa_nodes"]:
        node["distances"] = None
    return host


def test_unknown_distances_are_left_out_and_said() -> None:
    host = without_distances(build_host())
    result = decide(host, gpus=0, vcpus=8, memory="8GiB", numa=2)
    assert [cell.distances for cell in result.guests[0].cells] == [(), ()]
    assert "the distances between its nodes are unknown: its cells get none" in said(result)
    assert "<distances>" not in domain_xml(result, "g")
    assert "<distances>" in domain_xml(two_cells([[10, 21], [21, 10]]), "g")


def test_no_reason_cites_a_distance_that_the_host_does_not_have() -> None:
    host = without_distances(build_host(cards=[Card(GPU, node=0, group=1)]))
    line = why(decide(host, gpus=[GPU], vcpus=2, memory="2GiB"), "cell 0")
    assert line.endswith("distance to its GPUs unknown")
    assert "/sys" not in line


def test_a_device_off_the_guests_nodes_is_at_an_unknown_distance_without_a_table() -> None:
    host = build_host(cards=[Card(GPU, node=0, group=1), Card(FAR_GPU, node=1, group=2)])
    asked: Json = {"gpus": [GPU, FAR_GPU], "vcpus": 2, "memory": "2GiB", "numa": 1}
    assert [text[-16:] for text in said(decide(host, **asked)) if "has no cell" in text] == ["s at distance 21"]
    assert [text[-19:] for text in said(decide(without_distances(host), **asked)) if "has no cell" in text] == [
        "an unknown distance"
    ]


# --- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vcpus", "cells"), [((3, 4), "cell 0"), ((4, 3), "cell 1"), ((3, 5), "cells 0-1")])
def test_only_odd_cells_have_an_idle_sibling(vcpus: tuple[int, int], cells: str) -> None:
    numa = [{"vcpus": n, "memory": "2GiB"} for n in vcpus]
    result = decide(build_host(), gpus=0, vcpus=sum(vcpus), memory="4GiB", numa=numa)
    assert [text for text in said(result) if "sibling" in text] == [
        f"an odd number of vCPUs: the last sibling of a core stays idle in {cells}; threads=1"
    ]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("auto", "pages of 2 MiB: the largest in which every cell is whole and fits its node"),
        ("2MiB", "pages of 2 MiB, as asked"),
        ("1GiB", "pages of 1 GiB, as asked"),
    ],
)
def test_pages_that_were_asked_for_are_not_called_the_largest(asked: str, text: str) -> None:
    memory = "3GiB" if asked == "1GiB" else "1026MiB"
    result = decide(build_host(), gpus=0, vcpus=2, memory=memory, hugepages=asked)
    assert why(result, "pages of") == text


@pytest.mark.parametrize("source", ["unknown", None, "device"])
def test_an_unknown_node_is_called_unknown_whatever_the_source(source: str | None) -> None:
    host = build_host(cards=[Card(GPU, node=None, group=1)])
    next(row for row in host["pci"] if row["address"] == GPU)["numa_source"] = source
    line = why(decide(host, gpus=[GPU], vcpus=2, memory="2GiB"), "GPU")
    assert "its NUMA node is unknown" in line
    assert "sysfs" not in line


def test_a_node_that_the_host_does_not_have_is_called_that() -> None:
    host = build_host(cards=[Card(GPU, node=7, group=1)])
    line = why(decide(host, gpus=[GPU], vcpus=2, memory="2GiB"), "GPU")
    assert line == f"GPU {GPU} is on node 7, which is none of this host's"


# --- auto that comes out short -------------------------------------------------------------------------------


def short_of(result: Plan) -> tuple[str, str]:
    found = [(f.level, f.text) for f in result.findings if f.text.startswith("less than the auto share")]
    assert len(found) == 1
    return found[0]


def test_a_short_auto_names_the_node_and_what_it_had() -> None:
    host = build_host(nodes=1, cards=[Card(GPU, node=0, group=1)])
    pins = [{"vcpu": n, "cpus": str(cpu)} for n, cpu in enumerate((5, 13))]
    host["guests"] = [{"name": "old", "state": "running", "vcpu_pins": pins, "memory_bytes": 20 * GIB, "devices": []}]
    level, text = short_of(decide(host, gpus=[GPU], vcpus="auto", memory="auto"))
    assert level == "info"
    assert (
        text == "less than the auto share of 7 cores and 56 GiB a cell: node 0 has 6 of 8 cores free and 36 GiB to give"
    )


def test_auto_of_a_gpu_on_a_node_without_memory_is_a_share_of_the_nearest_node_and_says_so() -> None:
    host = build_host(memory_gib=[64, 0], cards=[Card(GPU, node=1, group=1)])
    result = decide(host, gpus=[GPU], vcpus=2, memory="auto")
    assert result.guests[0].cells[0].memory_bytes == 56 * GIB
    said = [(f.level, f.text) for f in result.findings]
    assert any("is on node 1, which has no memory: it counts for node 0" in text for _, text in said)
