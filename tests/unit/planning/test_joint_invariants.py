"""Several guests on odd hosts: whatever is asked of whatever host, the plan keeps every invariant of the contract."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from plan_facts import Json, named
from plan_oracle import violations
from planhosts import Card, build_host, wild_intents, wild_shapes
from sweeps import examples

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.planning import plan

SMALL: Json = {"vcpus": 2, "memory": "1GiB", "hugepages": "2MiB"}
ONE, TWO, THREE, NIC = "0000:21:00.0", "0000:22:00.0", "0000:31:00.0", "0000:41:00.0"


def planned(host: Json, *guests: Json, **top: object) -> Json:
    """The plan as JSON."""
    intent = {"version": 1, **top, "guests": list(guests)}
    document: Json = json.loads(plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent))).to_json())
    return document


@st.composite
def batches(draw: st.DrawFn) -> tuple[Json, Json]:
    """A host of any kind and two guests or more of any legal kind; a device is named by one of them at most."""
    shape = draw(wild_shapes())
    drawn = [draw(wild_intents(shape)) for _ in range(draw(st.integers(2, 5)))]
    guests: list[Json] = []
    taken: set[str] = set()
    for i, intent in enumerate(drawn):
        guest = {**intent["guests"][0], "name": f"g{i}"}
        if not named(guest) & taken:
            guests.append(guest)
            taken |= named(guest)
    return build_host(shape), {**drawn[0], "guests": guests}


@settings(
    max_examples=examples(25, full=120),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(batches())
def test_every_plan_keeps_the_invariants(batch: tuple[Json, Json]) -> None:
    host, intent = batch
    top = {key: value for key, value in intent.items() if key not in ("version", "guests")}
    found = planned(host, *intent["guests"], **top)
    event(f"{len(found['guests'])} placed")
    assert violations(host, intent, found) == []


# --- IOMMU groups of several guests ------------------------------------------------------------------------------


def grouped(**groups: int) -> Json:
    """A host with three GPUs and a NIC; `one`, `two`, `three`, `nic` name their groups."""
    cards = [Card(address, 0, group=groups[key]) for key, address in (("one", ONE), ("two", TWO), ("three", THREE))]
    return build_host(cards=[*cards, Card(NIC, 0, kind="nic", group=groups["nic"])], nodes=1)


def holders(found: Json) -> dict[str, set[str]]:
    """Devices of each placed guest."""
    return {guest["name"]: {row["address"] for row in guest["devices"]} for guest in found["guests"]}


def test_a_group_is_not_divided_among_guests() -> None:
    """[inv] any other member only if the intent names it, else the guest is unplaced and the members are named."""
    host = grouped(one=1, two=1, three=2, nic=3)
    found = planned(host, {"name": "a", **SMALL, "gpus": [ONE]}, {"name": "b", **SMALL, "gpus": [TWO]})
    assert found["guests"] == []
    told = {row["guest"]: " ".join(row["why"]) for row in found["unplaced"]}
    assert TWO in told["a"]
    assert ONE in told["b"]


@pytest.mark.parametrize("order", [1, -1])
def test_who_names_the_whole_group_has_it_and_who_counts_has_another(order: int) -> None:
    host = grouped(one=1, two=1, three=2, nic=3)
    guests = [{"name": "a", **SMALL, "gpus": 1}, {"name": "b", **SMALL, "gpus": [ONE, TWO]}]
    assert holders(planned(host, *guests[::order])) == {"a": {THREE}, "b": {ONE, TWO}}


def test_a_nic_in_the_group_of_anothers_gpu_is_not_counted_out() -> None:
    host = grouped(one=1, two=2, three=3, nic=1)
    found = planned(host, {"name": "a", **SMALL, "gpus": 1}, {"name": "b", **SMALL, "gpus": 1, "nics": 1})
    assert "a" in holders(found)
    assert ONE not in holders(found)["a"]
    (row,) = found["unplaced"]
    assert row["guest"] == "b"
    assert any("share groups" in line for line in row["why"]), row


def test_a_guest_that_names_gpu_and_nic_of_a_group_has_both() -> None:
    host = grouped(one=1, two=2, three=3, nic=1)
    both = {"name": "b", **SMALL, "gpus": [ONE], "nics": [NIC]}
    found = holders(planned(host, {"name": "a", **SMALL, "gpus": 2}, both))
    assert found == {"a": {TWO, THREE}, "b": {ONE, NIC}}
