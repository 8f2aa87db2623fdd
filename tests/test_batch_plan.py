"""Several guests in one plan, against the exact oracle: as many as fit, as near as they can be, nothing shared."""

from __future__ import annotations

import json

import pytest
from batch_cases import case
from batch_judge import faults
from plan_facts import Json

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

BATCHES = 300
PORTIONS = 10  # one test judges many seeds and names those that are wrong


def planned(host: Json, intent: Json) -> Json:
    """The plan as JSON."""
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_batches_are_planned_as_well_as_they_can_be(portion: int) -> None:
    size = BATCHES // PORTIONS
    wrong = {}
    for seed in range(portion * size, (portion + 1) * size):
        found = case(seed)
        if lines := faults(found.host, found.intent, planned(found.host, found.intent)):
            wrong[seed] = lines
    assert wrong == {}
