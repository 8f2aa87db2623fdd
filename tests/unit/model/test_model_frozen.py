"""Values cannot be changed, by their maker neither: what is read, given, copied or pickled is frozen all the way."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hosttune
from hosttune.model.host import Cpu, Host, NumaNode
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan, PlannedGuest, PlannedPin
from hosttune.model.values import FrozenMap, freeze

CAPTURED = "derived/xe9680-8xh100-lspci"


def discovered(host_root: Callable[[str], Path]) -> Host:
    """A captured host with every mapping that a document has."""
    return hosttune.discover(str(host_root(CAPTURED)))


def planned(host: Host) -> Plan:
    intent = {"version": 1, "settings": {"aspm": "keep"}, "guests": [{"name": "a", "vcpus": 2, "memory": "1GiB"}]}
    return hosttune.plan(host, Intent.from_json(json.dumps(intent)))


def same(value: Host | Plan, again: Host | Plan) -> None:
    assert again == value
    assert hash(again) == hash(value)
    assert again.to_json() == value.to_json()


def test_a_discovered_host_and_its_plan_are_hashed_copied_and_pickled(host_root: Callable[[str], Path]) -> None:
    host = discovered(host_root)
    assert host.numa_nodes[0].distances, "a host without mappings proves nothing"
    plan = planned(host)
    assert plan.actions
    for value in (host, plan):
        same(value, copy.copy(value))
        same(value, copy.deepcopy(value))
        same(value, pickle.loads(pickle.dumps(value)))
        same(value, type(value).from_json(value.to_json()))
    assert len({host, copy.deepcopy(host), msgspec.structs.replace(host, hostname="other")}) == 2


def lists_in(value: object, at: str = "$") -> list[str]:
    """Where a value can still be changed: fields that are a list, a dict or a set."""
    if isinstance(value, list | dict | set):
        return [at]
    parts: list[tuple[object, object]] = []
    if isinstance(value, msgspec.Struct):
        parts = [(name, getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    return [found for name, part in parts for found in lists_in(part, f"{at}.{name}")]


def test_nothing_in_a_host_or_plan_can_be_changed(host_root: Callable[[str], Path]) -> None:
    host = discovered(host_root)
    plan = planned(host)
    for value in (host, plan, Host.from_json(host.to_json()), Plan.from_json(plan.to_json())):
        assert lists_in(value) == []
    distances: Any = host.numa_nodes[0].distances
    with pytest.raises(TypeError):
        distances["0"] = 11
    with pytest.raises(TypeError):
        del distances["0"]
    for name in ("_items", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(distances, name, {})
    with pytest.raises(AttributeError, match="cannot be changed"):
        del distances._items
    with pytest.raises(AttributeError):
        host.cpus = ()  # type: ignore[misc]


def test_a_host_keeps_no_list_and_no_mapping_of_its_maker() -> None:
    cpus: Any = [Cpu(id=0)]
    settings = {"/a": "1"}
    distances = {"0": 10}
    host = Host(cpus=cpus, settings=settings, numa_nodes=(NumaNode(id=0, distances=distances),))
    before = hash(host)
    cpus.append(Cpu(id=1))
    settings["/a"] = "2"
    distances["0"] = 11
    assert host == Host(cpus=(Cpu(id=0),), settings={"/a": "1"}, numa_nodes=(NumaNode(id=0, distances={"0": 10}),))
    assert hash(host) == before


def test_what_an_action_wants_is_frozen_where_it_is_given_and_where_it_is_read() -> None:
    want = ["a", {"b": [1, {"c": []}]}]
    fields = {"id": "x", "kind": "k", "target": "t", "effect": "now", "needed": False, "reversible": True, "why": "w"}
    action = Action(current={"d": [2]}, want=want, **fields)  # type: ignore[arg-type]
    want.clear()
    plan = Plan(intent=Intent(version=1), actions=(action,))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert lists_in(again) == lists_in(plan) == []
    assert hash(again) == hash(plan)
    assert again.actions[0].want == ("a", {"b": (1, {"c": ()})})
    assert json.loads(again.to_json())["actions"][0]["want"] == ["a", {"b": [1, {"c": []}]}]
    assert copy.deepcopy(again) == pickle.loads(pickle.dumps(again)) == again


def test_a_planned_guest_keeps_no_list_of_its_maker() -> None:
    pins: Any = [PlannedPin(vcpu=0, cpus="1")]
    guest = PlannedGuest(name="a", vcpu_pins=pins, emulator_cpus="0", cells=(), page_bytes=None)
    pins.clear()
    assert guest.vcpu_pins == (PlannedPin(vcpu=0, cpus="1"),)


def test_an_intents_settings_are_frozen_all_the_way() -> None:
    settings: dict[str, Any] = {"a": [1, [2]]}
    intent = Intent(version=1, settings=settings)
    settings["a"].append(3)
    assert intent.settings == {"a": (1, (2,))}
    assert len({intent, copy.deepcopy(intent)}) == 1


def test_a_frozen_map_is_a_mapping_like_any_other() -> None:
    given = {"b": 1, "a": 2}
    frozen = FrozenMap(given)
    given["c"] = 3
    assert frozen == {"b": 1, "a": 2} == dict(frozen)
    assert frozen != {"b": 1}
    assert list(frozen) == list(frozen.keys()) == ["b", "a"]
    assert (list(frozen.values()), list(frozen.items()), len(frozen)) == ([1, 2], [("b", 1), ("a", 2)], 2)
    assert hash(frozen) == hash(FrozenMap({"a": 2, "b": 1}))
    assert (frozen.get("x"), "a" in frozen, repr(frozen)) == (None, True, "FrozenMap({'b': 1, 'a': 2})")
    with pytest.raises(KeyError):
        frozen["x"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(FrozenMap({"a": []}))
    assert hash(freeze({"a": [{"b": []}]})) == hash(freeze({"a": ({"b": ()},)}))
