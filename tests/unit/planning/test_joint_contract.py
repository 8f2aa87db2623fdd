"""What the contract promises of plans with several guests, whatever the optimum is: the same again, nobody harmed."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random

import pytest
from batch_cases import Case, case
from batch_facts import levels, score
from plan_facts import HostFacts, Json, ids
from sweeps import sample

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

SEEDS = sample("orders", range(5000, 5032), 6)


def text_of(host: Json, intent: Json) -> str:
    """The plan as it is saved."""
    return plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json()


def planned(host: Json, intent: Json) -> Json:
    """The plan as JSON."""
    document: Json = json.loads(text_of(host, intent))
    return document


def worth(found: Case, intent: Json, document: Json) -> tuple[int, int, Fraction]:
    """Guests placed, cells beyond those of the GPUs' nodes, and the objective."""
    placed, objective = score(found.host, document)
    return placed, levels(found.host, intent, document), objective


def cut_off(document: Json) -> bool:
    """Whether the plan says that its search was not finished."""
    return any("cut off" in finding["text"] for finding in document["findings"])


def pinned(document: Json) -> set[int]:
    """CPUs of all vCPUs."""
    return {cpu for g in document["guests"] for pin in g["vcpu_pins"] for cpu in ids(pin["cpus"])}


@pytest.mark.parametrize("portion", range(4))
def test_the_same_again_in_any_order_and_beside_what_does_not_fit(portion: int) -> None:
    wrong = {}
    for seed in SEEDS[portion::4]:
        found = case(seed)
        first = text_of(found.host, found.intent)
        document = json.loads(first)
        lines = [] if text_of(found.host, found.intent) == first else ["another plan the second time"]
        mixed = {**found.intent, "guests": Random(seed).sample(found.intent["guests"], len(found.intent["guests"]))}
        big = {"name": "big", "vcpus": 4_000, "memory": "1GiB"}
        beside = {**found.intent, "guests": [*found.intent["guests"], big]}
        for what, intent in (("mixed", mixed), ("beside a guest that fits nowhere", beside)):
            other = planned(found.host, intent)
            mine, theirs = worth(found, found.intent, document), worth(found, intent, other)
            if mine != theirs and not cut_off(document) and not cut_off(other):
                lines.append(f"{what}: {theirs}, was {mine}")
            if what != "mixed" and other["guests"] != document["guests"]:
                lines.append(f"{what}: the others changed")
        if lines:
            wrong[seed] = lines
    assert wrong == {}


def test_guests_that_are_here_keep_what_they_have() -> None:
    held = [found for found in map(case, range(5000, 5120)) if found.host["guests"]]
    assert len(held) > 10
    for found in held:
        document, facts = planned(found.host, found.intent), HostFacts(found.host)
        helpers = [ids(g["emulator_cpus"]) for g in document["guests"]]
        assert not pinned(document) & facts.held, found.seed
        if found.intent["reserve"]["cores_per_node"]:
            assert not set().union(*helpers) & facts.held, found.seed
        devices = {row["address"] for g in document["guests"] for row in g["devices"]}
        assert not devices & facts.held_devices, found.seed


@pytest.mark.parametrize("per_node", [0, 1, 2])
def test_helper_threads_are_off_every_pinned_cpu(per_node: int) -> None:
    """[inv] off the pinned CPUs of all guests; without reserved cores what is left, or the guest's own, said."""
    for seed in sample(f"helpers {per_node}", range(5000, 5020), 4):
        found = case(seed)
        facts = HostFacts(found.host)
        document = planned(found.host, {**found.intent, "reserve": {"cores_per_node": per_node}})
        for guest in document["guests"]:
            own = {cpu for pin in guest["vcpu_pins"] for cpu in ids(pin["cpus"])}
            for helpers in (ids(guest["emulator_cpus"]), *map(ids, guest["iothread_cpus"])):
                assert helpers, (seed, guest["name"])
                if helpers & pinned(document):
                    assert per_node == 0, (seed, guest["name"])
                    assert helpers <= own, (seed, guest["name"])
                    left = facts.online - facts.isolated - facts.hidden - facts.held - pinned(document)
                    assert not left, (seed, guest["name"])
                    said = [f for f in document["findings"] if guest["name"] in f["where"]]
                    assert any("emulator" in f["text"] or "own CPUs" in f["text"] for f in said), (seed, said)


def test_cores_of_a_guest_with_whole_cores_are_its_own() -> None:
    """[intent] smt: cores beside smt: threads; who shares cores is told so."""
    shared = 0
    for seed in sample("cores", range(5000, 5040), 16):
        found = case(seed)
        facts = HostFacts(found.host)
        rng = Random(seed)
        guests = [{**guest, "smt": rng.choice(["cores", "threads"])} for guest in found.intent["guests"]]
        document = planned(found.host, {**found.intent, "guests": guests})
        smt = {guest["name"]: guest["smt"] for guest in guests}
        owners: dict[int, set[str]] = {}
        for guest in document["guests"]:
            for pin in guest["vcpu_pins"]:
                owners.setdefault(facts.core(min(ids(pin["cpus"]))), set()).add(guest["name"])
        kept = {facts.core(cpu) for cpu in ids(document["housekeeping_cpus"])}
        for core, names in owners.items():
            whole = [name for name in names if smt[name] == "cores"]
            assert len(names) == 1 or not whole, (seed, core, names)
            assert core not in kept, (seed, core)
            if len(names) > 1:
                shared += 1
                said = [f["where"] for f in document["findings"] if "share" in f["text"]]
                assert any(name in where for name in names for where in said), (seed, core, names)
    assert shared
