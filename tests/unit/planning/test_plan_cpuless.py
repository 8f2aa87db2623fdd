"""GPUs on nodes without CPUs (CXL, HBM) or without memory: they count for the nearest node with both, in the plan, lint
and validate.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from evidences import evidence, outcome
from msgspec.structs import replace as changed
from plan_facts import Json
from planhosts import Card, build_host, intent_of
from xmledits import edited

from hosttune.domain.defined import as_planned
from hosttune.domain.writer import domain_xml
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.planning import plan
from hosttune.predicting.paths import path_between
from hosttune.rules.lint import LintedDefinition, lint

BARE, NEAR, FAR = "0000:21:00.0", "0000:31:00.0", "0000:41:00.0"
CARDS = (Card(BARE, 2, group=1), Card(NEAR, 0, group=2), Card(FAR, 1, group=3))
TABLE = [[10, 21, 17], [21, 10, 27], [17, 27, 10]]


def document(**changes: Any) -> Json:
    """Two nodes with 8 cores each, and node 2, which has memory only and is nearer to node 0."""
    return build_host(**{"nodes": 3, "cores_per_node": [8, 8, 0], "distances": TABLE, "cards": CARDS, **changes})


def planned(host: Json, **guest: Any) -> Plan:
    return plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent_of(**guest))))


def cells(made: Plan) -> list[str]:
    assert made.unplaced == ()
    return [cell.host_nodes for cell in made.guests[0].cells]


def test_two_gpus_nearest_to_one_node_have_one_cell() -> None:
    made = planned(document(), gpus=[BARE, NEAR])
    assert cells(made) == ["0"]
    assert [device.guest_cell for device in made.guests[0].devices] == [0, 0]
    (said,) = [finding for finding in made.findings if BARE in finding.text and "node 2" in finding.text]
    assert (said.level, said.where) == ("info", "guest g")
    counts = "it counts for node 0, the nearest with CPUs and memory, at distance 17"
    assert f"no CPU that a guest can use: {counts}" in said.text


def test_all_gpus_fit_on_the_nodes_with_cpus() -> None:
    assert cells(planned(document(), gpus=3)) == ["0", "1"]
    assert cells(planned(document(), gpus=3, vcpus=8, memory="32GiB")) == ["0", "1"]


def test_of_equally_near_nodes_it_is_the_lowest() -> None:
    table = [[10, 21, 17], [21, 10, 17], [17, 17, 10]]
    assert cells(planned(document(distances=table), gpus=[BARE])) == ["0"]


def test_a_counted_gpu_is_the_one_beside_cpus() -> None:
    made = planned(document(), gpus=1)
    assert [device.address for device in made.guests[0].devices] == [NEAR]


def test_a_node_whose_cpus_are_offline_or_hidden_is_one_without() -> None:
    of_node_2 = list(range(16, 24)) + list(range(40, 48))
    for how in ("offline", "hidden"):
        host = document(cores_per_node=8, **{how: of_node_2})
        assert cells(planned(host, gpus=[BARE, NEAR])) == ["0"]


def test_without_distances_the_nearest_node_is_not_guessed() -> None:
    host = document()
    for node in host["numa_nodes"]:
        node["distances"] = None
    made = planned(host, gpus=[BARE, NEAR])
    assert len(cells(made)) == 1
    text = "node 2 lacks CPUs or memory, and which node with both is nearest to it is unknown"
    text = f"{text}: auto is a share of the whole host"
    assert text in [finding.text for finding in made.findings if finding.level == "warn"]


def test_with_one_node_of_cpus_the_nearest_needs_no_distances() -> None:
    host = document(cores_per_node=[8, 0, 0])
    for node in host["numa_nodes"]:
        node["distances"] = None
    assert cells(planned(host, gpus=[BARE, NEAR, FAR])) == ["0"]


NEARNESS = {"gpu-vcpus", "gpu-memory", "flat-topology", "device-cell"}


NO_MEMORY = {"cores_per_node": 8, "memory_gib": [64, 64, 0]}


@pytest.mark.parametrize("lacks", [{}, NO_MEMORY], ids=["no CPUs", "no memory"])
def test_lint_and_validate_count_as_the_plan_does(lacks: Json) -> None:
    host = Host.from_json(json.dumps(document(**lacks)))
    for gpus in ([BARE, NEAR], [BARE, NEAR, FAR]):
        made = planned(document(**lacks), gpus=gpus)
        assert "2" not in cells(made)
        xml = domain_xml(made, "g")
        assert [f.rule for f in lint(host, (LintedDefinition("g.xml", xml),)) if f.rule in NEARNESS] == []
        resident = as_planned(made.guests[0])
        assert outcome("guest-numa", evidence(changed(host, guests=(resident,))), "g")[0] == "pass"
    far = planned(document(**lacks), gpus=[FAR])
    xml = edited(domain_xml(far, "g"), "devices/hostdev/source/address", {"bus": "0x21"})
    found = {f.rule: f.text for f in lint(host, (LintedDefinition("g.xml", xml),)) if f.rule in NEARNESS}
    assert set(found) == {"gpu-vcpus", "gpu-memory"}
    place = f"{BARE} is on node 2 (/sys/bus/pci/devices/{BARE}/numa_node), which lacks CPUs or memory (node 0 is the"
    assert all(place in text for text in found.values())


def test_interrupts_of_a_gpu_go_to_the_node_that_it_counts_for() -> None:
    made = planned(document(), gpus=[BARE, NEAR, FAR])
    wanted = {action.target: action.want for action in made.actions if action.kind == "irq-affinity"}
    assert wanted[BARE] == wanted[NEAR] != wanted[FAR]


def test_the_way_between_a_node_without_cpus_and_its_nearest_stays_in_the_socket() -> None:
    host = Host.from_json(json.dumps(document()))
    assert [hop.words for hop in path_between(host, BARE, NEAR).hops if hop.kind == "socket"] == ["within one socket"]
    assert "between sockets" in " ".join(hop.words for hop in path_between(host, BARE, FAR).hops)
