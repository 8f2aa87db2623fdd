"""What is said of a guest that found no place: every suggestion, followed, places it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from examplehosts import discovered
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from planhosts import Card, Held, Shape, build_host, intent_of, small_intents, small_shapes
from sweeps import examples

import hosttune
from hosttune.model.host import Host
from hosttune.model.plan import Plan


@pytest.fixture(scope="module")
def example() -> Host:
    return discovered()


def planned(host: Host | dict[str, Any], intent: dict[str, Any]) -> Plan:
    document = host if isinstance(host, Host) else Host.from_json(json.dumps(host))
    return hosttune.plan(document, hosttune.Intent.from_json(json.dumps(intent)))


def followed(host: dict[str, Any], intent: dict[str, Any], text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Host and intent after one suggestion was followed; fails on a suggestion that nobody could follow."""
    guest = dict(intent["guests"][0])
    if name := re.fullmatch(r"release guest (\S+)", text):
        left = [g for g in host["guests"] if g["name"] != name[1]]
        return {**host, "guests": left}, intent
    change = re.fullmatch(r"(gpus|vcpus|memory|nics|nvme|numa|smt|hugepages): (\w+)( \(.*\))?", text)
    assert change, text
    key, value = change[1], change[2]
    if key == "numa" and isinstance(guest.get("numa"), list):
        guest["vcpus"] = sum(cell["vcpus"] for cell in guest["numa"])
        guest["memory"] = sum(hosttune_size(cell["memory"]) for cell in guest["numa"])
    guest[key] = int(value) if value.isdecimal() else value
    return host, {**intent, "guests": [guest]}


def hosttune_size(text: int | str) -> int:
    from hosttune.model.values import parse_size

    return parse_size(text, where="test")


@settings(
    max_examples=examples(20, full=150),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_every_suggestion_places_the_guest(data: st.DataObject) -> None:
    shape = data.draw(small_shapes())
    host, intent = build_host(shape), data.draw(small_intents(shape))
    plan = planned(host, intent)
    assume(plan.unplaced and plan.unplaced[0].relaxation)
    for text in plan.unplaced[0].relaxation:
        if re.match(r"(gpus|vcpus|memory|nics|nvme|numa|smt|hugepages):|release guest ", text):
            assert planned(*followed(host, intent, text)).unplaced == (), text


def test_the_largest_size_below_is_offered(example: Host) -> None:
    def relaxation(**guest: Any) -> tuple[str, ...]:
        return planned(example, intent_of(**guest)).unplaced[0].relaxation

    gpu = ["0000:41:00.0"]
    assert relaxation(gpus=gpu, vcpus=189) == ("vcpus: 188 (1 fewer)",)
    assert relaxation(gpus=gpu, memory="2100GiB") == ("memory: 2032GiB",)
    assert relaxation(gpus=9) == ("gpus: 8",)
    assert relaxation(gpus=gpu, vcpus=4000, memory="3TiB") == ()


def test_a_guest_that_holds_the_gpu_can_be_released() -> None:
    card = Card("0000:21:00.0", 0, group=1)
    host = build_host(Shape(cards=[card], guests=[Held(name="old", devices=(card.address,))]))
    plan = planned(host, intent_of(gpus=[card.address], vcpus=4, memory="4GiB"))
    assert plan.unplaced[0].why == ("0000:21:00.0 is held by guest old",)
    assert plan.unplaced[0].relaxation == ("release guest old",)


def test_the_reasons_name_need_and_room_node_by_node(example: Host) -> None:
    why = planned(example, intent_of(gpus=["0000:41:00.0"], vcpus=4000)).unplaced[0].why
    assert why == (
        "the guest needs 2000 cores and 254 GiB on one node",
        "node 0: 47 cores of 48 cores free, 1016 GiB can be given",
        "node 1: 47 cores of 48 cores free, 1016 GiB can be given",
    )
