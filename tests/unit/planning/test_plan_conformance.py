"""Cases of other planners that concern one guest: what fits there fits here, and what does not, does not.

`cases/planner/conformance.json` holds the facts with their sources. Only `fits` binds: asked with `smt: threads`,
reserves 0 and a `numa` list. One case of our own also names the best nodes, which the contract's objective decides.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_facts import Json
from plan_optimum import judge
from plan_oracle import violations
from planhosts import MIB, intent_of

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

DOCUMENT: Json = json.loads((Path(__file__).parents[2] / "cases/planner/conformance.json").read_text())
BINDING: list[Json] = DOCUMENT["binding"]


def _host(case: Json) -> Json:
    """The case's nodes and cores as a host document; CPUs in use are pins of a guest that is already there."""
    nodes = case["nodes"]
    table = case.get("distances") or [[10 if a == b else 20 for b in range(len(nodes))] for a in range(len(nodes))]
    in_use = [cpu for node in nodes for cpu in node["cpus_in_use"]]
    cpus = [
        {"id": cpu, "core": min(core), "package": node["node"], "numa_node": node["node"], "online": True}
        for node in nodes
        for core in node["cores"]
        for cpu in core
    ]
    rows = [
        {
            "id": node["node"],
            "cpus": ",".join(str(cpu) for core in node["cores"] for cpu in core),
            "memory_bytes": node["memory_mib"] * MIB,
            "distances": {str(other["node"]): table[i][j] for j, other in enumerate(nodes)},
        }
        for i, node in enumerate(nodes)
    ]
    guest = {"name": "there", "vcpu_pins": [{"vcpu": i, "cpus": [cpu]} for i, cpu in enumerate(in_use)]}
    return {
        "schema": "hosttune.host/v1",
        "arch": "x86_64",
        "cpus": sorted(cpus, key=lambda cpu: cpu["id"]),
        "numa_nodes": rows,
        "pci": [],
        "gpus": [],
        "guests": [guest] if in_use else [],
    }


def _intent(case: Json) -> Json:
    cells = [{"vcpus": cell["vcpus"], "memory": f"{cell['memory_mib']}MiB"} for cell in case["cells"]]
    reserve = {"cores_per_node": 0, "memory_per_node": 0}
    return intent_of(reserve=reserve, smt="threads", numa=cells, hugepages=case.get("hugepages", "auto"))


@pytest.mark.parametrize("case", BINDING, ids=[case["id"] for case in BINDING])
def test_fits_agrees(case: Json) -> None:
    host, intent = _host(case), _intent(case)
    document = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    assert violations(host, intent, document) == []
    assert bool(document["guests"]) == case["fits"], document["unplaced"]
    if "best_host_nodes" in case:
        nodes = sorted(int(cell["host_nodes"]) for cell in document["guests"][0]["cells"])
        assert nodes == case["best_host_nodes"]


@pytest.mark.parametrize("case", BINDING, ids=[case["id"] for case in BINDING])
def test_the_oracle_agrees_with_the_cases(case: Json) -> None:
    """The exhaustive oracle is judged by the same facts; None = it leaves the case open."""
    assert judge(_host(case), _intent(case)).placed in (case["fits"], None)


def test_every_case_is_either_run_or_set_aside_with_a_reason() -> None:
    assert len(BINDING) == 12
    assert all(case["why"] and case["source"] for case in DOCUMENT["not_binding"])
    assert len({case["id"] for case in [*BINDING, *DOCUMENT["not_binding"]]}) == 35
