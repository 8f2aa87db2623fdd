"""Several guests on hosts whose cores have unequal numbers of usable threads: what is counted is what is pinned."""

from __future__ import annotations

import json
from random import Random

import pytest
from plan_facts import Json
from plan_oracle import violations
from planhosts import GIB, Held, build_host
from sweeps import sample

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

SEEDS = sample("widths", range(400), 120)
PORTIONS = 4


def drawn(seed: int) -> tuple[Json, Json]:
    """A small host with CPUs hidden by a cpuset, offline, isolated or held one by one, and guests for it."""
    rng = Random(seed)
    nodes, threads, cores = rng.choice([1, 1, 2]), rng.choice([2, 2, 4]), rng.randint(2, 5)
    cpus = list(range(1, nodes * threads * cores))
    hidden = rng.sample(cpus, rng.randint(0, min(4, len(cpus) - 1)))
    offline = [cpu for cpu in rng.sample(cpus, rng.randint(0, 2)) if cpu not in hidden]
    online = [cpu for cpu in cpus if cpu not in offline]
    held = rng.sample(online, min(len(online), rng.choice([0, 0, 1, 2])))
    host = build_host(
        nodes=nodes,
        cores_per_node=cores,
        threads=threads,
        hidden=hidden,
        offline=offline,
        isolated=rng.sample(cpus, rng.randint(0, 3)),
        memory_gib=32,
        guests=[Held(pins=tuple(held), memory_bytes=GIB)] if held else [],
    )
    guests = [
        {
            "name": f"g{i}",
            "vcpus": rng.randint(1, 6),
            "memory": "1GiB",
            "smt": rng.choice(["cores", "cores", "threads"]),
        }
        for i in range(rng.randint(2, 5))
    ]
    return host, {"version": 1, "guests": guests}


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_every_guest_has_the_cpus_that_it_asked_for(portion: int) -> None:
    wrong = {}
    for seed in SEEDS[portion::PORTIONS]:
        host, intent = drawn(seed)
        found = plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent)))
        if lines := violations(host, intent, json.loads(found.to_json())):
            wrong[seed] = lines
    assert wrong == {}
