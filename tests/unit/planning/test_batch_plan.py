"""Several guests in one plan, against the exact oracle: as many as fit, as near as they can be, nothing shared."""

from __future__ import annotations

import json

import pytest
from batch_cases import case, flat_case
from batch_judge import faults
from examplehosts import discovered
from plan_facts import Json
from sweeps import sample

from hosttune.inventory.sizing import read_field
from hosttune.model.host import Host
from hosttune.model.intent import Intent, Reserve
from hosttune.planning import plan
from hosttune.planning.batch import guest_request_of
from hosttune.planning.search.branch_and_bound import search_problem
from hosttune.planning.search.ledger import Ledger
from hosttune.planning.search.placements import PlacementStream

BATCHES = sample("batches", range(300), 24)  # `make bench` judges as many again
FLAT = [  # nodes with a GPU, nodes with room for a cell; the nodes of the cells, their level, counted work
    (32, frozenset(range(32)), tuple(range(8)), 0, 20_000),
    (24, frozenset(range(7)) | frozenset(range(24, 32)), (*range(7), 24), 1, 20_000),
]
PORTIONS = 6  # one test judges many seeds and names those that are wrong


def planned(host: Json, intent: Json) -> Json:
    """The plan as JSON."""
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_batches_are_planned_as_well_as_they_can_be(portion: int) -> None:
    wrong = {}
    for seed in BATCHES[portion::PORTIONS]:
        found = case(seed)
        if lines := faults(found.host, found.intent, planned(found.host, found.intent)):
            wrong[seed] = lines
    assert wrong == {}


@pytest.mark.parametrize("seed", range(12))
def test_one_guest_is_planned_as_in_a_batch(seed: int) -> None:
    """Beside a guest that has no place anywhere, a guest is what it is alone."""
    found = case(seed, guests=1)
    alone = planned(found.host, found.intent)
    giant = {"name": "giant", "gpus": 0, "vcpus": 4096, "memory": "1GiB", "numa": 1}
    beside = planned(found.host, {**found.intent, "guests": [*found.intent["guests"], giant]})
    assert beside["guests"] == alone["guests"]
    assert [row["guest"] for row in beside["unplaced"]] == [*(row["guest"] for row in alone["unplaced"]), "giant"]


def test_nics_by_count_are_those_beside_the_gpus() -> None:
    """On the example as many NICs are on the same node off the GPUs' switches: equally far by node, and not taken."""
    host = discovered()
    intent = Intent.from_yaml("version: 1\nguests: [{name: g, gpus: 2, nics: 2}]")
    devices = plan(host, intent).guests[0].devices
    gpus, nics = ([int(d.address[5:7], 16) for d in devices if d.kind == kind] for kind in ("gpu", "nic"))
    assert nics == [bus + 1 for bus in gpus]  # each behind the switch of its GPU
    assert len(nics) == 2


@pytest.mark.parametrize(("gpu_nodes", "large", "nodes", "level", "most_work"), FLAT)
def test_eight_gpus_on_many_flat_nodes(
    gpu_nodes: int, large: frozenset[int], nodes: tuple[int, ...], level: int, most_work: int
) -> None:
    """Any 8 GPUs are as good as others: the first 8 nodes with room, after so much counted work (not time)."""
    found = flat_case(8, gpu_nodes, large)
    context = read_field(Host.from_json(json.dumps(found.host)), Reserve())
    guest = Intent.from_json(json.dumps(found.intent)).guests[0]
    problem = search_problem(context, [guest_request_of(context, guest, "guests[0]")]).problem
    ledger = Ledger(problem)
    stream = PlacementStream(problem, 0, ledger.view())
    first = stream.get(0)
    assert first is not None
    assert (first.nodes, first.rank.level, stream.cut_off) == (nodes, level, False)
    assert ledger.work <= most_work
